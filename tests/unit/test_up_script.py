"""scripts/up.sh, which is `make up`: what it starts ends with make, however make ends.

The tree is a small one with this script in it and a `poise` that only waits; all of Poise behind it runs in tests/vllm/test_demo.py.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from poise.testbed import processes

from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TIE = Path("dashboard/poise/dashboard/die_with_parent.py")
WAITING_POISE = "#!/bin/sh\necho $$ >started.new\nmv started.new started\nexec sleep 600\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for script in ("up.sh", "system_packages.sh"):
        (tmp_path / "scripts" / script).symlink_to(ROOT / "scripts" / script)
    (tmp_path / TIE).parent.mkdir(parents=True)
    (tmp_path / TIE).symlink_to(ROOT / TIE)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    poise = tmp_path / ".venv" / "bin" / "poise"
    poise.write_text(WAITING_POISE)
    poise.chmod(0o755)
    (tmp_path / "Makefile").write_text("up:\n\t@sh scripts/up.sh\n")
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_what_make_up_started_ends_with_make(tree: Path, number: signal.Signals) -> None:
    with subprocess.Popen(["make", "up"], cwd=tree, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as make:
        try:
            wait_until(lambda: (tree / "started").exists(), "the start of poise")
            pid = int((tree / "started").read_text())
            assert processes.read_stat(pid) is not None
        finally:
            make.send_signal(number)
    wait_until(lambda: processes.read_stat(pid) is None, "the end of poise")
