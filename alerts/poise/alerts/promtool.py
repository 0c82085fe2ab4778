"""promtool as a second opinion on rule files, where it is installed. Ours must come to the same answer without it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: promtool reads a rule file in milliseconds; this is for a machine that is out of breath.
DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Opinion:
    """What promtool said. `accepted` is its exit code 0, `text` all that it wrote."""

    accepted: bool
    text: str


def check_rules(files: Sequence[Path]) -> Opinion | None:
    """`promtool check rules --lint=all --lint-fatal`, or None where there is no promtool on PATH."""
    program = shutil.which("promtool")
    if program is None:
        return None
    command = [program, "check", "rules", "--lint=all", "--lint-fatal", *(str(path) for path in files)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)
    except subprocess.TimeoutExpired:
        return Opinion(False, f"promtool did not end within {DEADLINE:.0f} s")
    return Opinion(done.returncode == 0, done.stdout + done.stderr)
