"""promtool as a second opinion on rule files, where it is installed. Ours must come to the same answer without it.

It gets copies of texts that were read already, never a path that a person named: promtool waits for a pipe and reads a device without end.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
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


def check_rules(files: Sequence[tuple[Path, str]]) -> Opinion | None:
    """`promtool check rules --lint=all --lint-fatal` of files and their texts, or None where there is no promtool on PATH or nothing to ask about.

    Raises OSError when the copies cannot be written or promtool cannot be started.
    """
    program = shutil.which("promtool")
    if program is None or not files:
        return None
    with tempfile.TemporaryDirectory(prefix="poise-promtool-") as folder:
        copies = [Path(folder, str(number), "rules.yml") for number in range(len(files))]
        for copy, (_, text) in zip(copies, files, strict=True):
            copy.parent.mkdir()
            copy.write_text(text, encoding="utf-8", newline="")
        command = [program, "check", "rules", "--lint=all", "--lint-fatal", *map(str, copies)]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=DEADLINE, check=False
            )
        except subprocess.TimeoutExpired:
            return Opinion(False, f"promtool did not end within {DEADLINE:.0f} s")
    said = done.stdout + done.stderr
    for copy, (path, _) in zip(copies, files, strict=True):
        said = said.replace(str(copy), str(path))
    return Opinion(done.returncode == 0, said)
