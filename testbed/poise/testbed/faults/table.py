"""All faults, and finding one by name. A new file of faults is added to FAULTS here and nowhere else."""

from __future__ import annotations

from poise.testbed.errors import TestbedError
from poise.testbed.faults import blackhole, cards, killing, on_cards, pace, requests, settings, transfer
from poise.testbed.faults.fault import Fault

FAULTS: tuple[Fault, ...] = (
    *settings.FAULTS,
    *killing.FAULTS,
    *pace.FAULTS,
    *blackhole.FAULTS,
    *requests.DIRECT,
    *transfer.FAULTS,
    *pace.SLOW,
    *requests.FAULTS,
    *cards.FAULTS,
    *on_cards.FAULTS,
)


def find(name: str) -> Fault:
    """Raises TestbedError for a name that is not there."""
    for fault in FAULTS:
        if fault.name == name:
            return fault
    raise TestbedError(f"there is no fault {name!r}: choose from {', '.join(fault.name for fault in FAULTS)}")
