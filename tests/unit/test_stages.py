"""scripts/stages.py: a stage that hangs is interrupted, so that its tests take down what they started, and counts as failed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "stages.py"


@pytest.fixture(scope="module")
def stages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stages_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def python(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_exit_code_of_the_tests_is_that_of_the_stage(stages: ModuleType) -> None:
    assert stages._run(python("raise SystemExit(3)"), 60.0) == 3
    assert stages._run(python("pass"), 60.0) == 0


def test_a_stage_that_hangs_is_interrupted_and_has_time_to_take_down(stages: ModuleType, tmp_path: Path) -> None:
    mark = tmp_path / "down"
    hangs = f"import signal, pathlib\ntry:\n    signal.pause()\nfinally:\n    pathlib.Path({str(mark)!r}).touch()"
    assert stages._run(python(hangs), 1.0) != 0
    assert mark.exists()


def test_tests_that_run_in_the_background_of_a_shell_interrupt_what_they_started() -> None:
    one = f"{Path(__file__).resolve()}::{test_a_stage_that_hangs_is_interrupted_and_has_time_to_take_down.__name__}"
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-m", "pytest", "-q", one]
    done = subprocess.run(ignoring, capture_output=True, text=True, timeout=90.0, check=False, cwd=SCRIPT.parents[1])
    assert done.returncode == 0, done.stdout
