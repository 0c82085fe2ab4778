"""The faults that can be put on a deployment: what each is, what it should raise, and how it is taken back.

fault.py says what a fault declares, table.py lists all of them, each other file owns faults of one kind, doing.py puts them on.
"""

from __future__ import annotations

from poise.testbed.faults.doing import apply, undo
from poise.testbed.faults.fault import Fault, Needs, Raises, Sign, Target
from poise.testbed.faults.table import FAULTS, find

__all__ = ["FAULTS", "Fault", "Needs", "Raises", "Sign", "Target", "apply", "find", "undo"]
