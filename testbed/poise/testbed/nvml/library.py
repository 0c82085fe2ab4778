"""Builds the simulated NVML library and says how a process gets to load it.

Owns the compiler call, the cache and the two environment variables. Knows the driver branch from a state file's header and
nothing else of what the file means.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from poise.testbed.errors import TestbedError
from poise.testbed.nvml.state import SOURCES, functions, read_header

SONAME = "libnvidia-ml.so.1"
STATE_VARIABLE = "POISE_NVML_STATE"

# Every function that functions.def knows: newer than any driver branch in it.
NEWEST_BRANCH = 9999

COMPILERS = ("cc", "gcc", "clang")
# -O1: the calls are short and the compiler is waited for. Sources become one object, from which each branch is linked.
COMPILE_FLAGS = (
    *("-std=c11", "-D_GNU_SOURCE", "-O1", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-Wall", "-Wextra", "-Werror", "-r", "-nostdlib"),
)
LINK_FLAGS = ("-shared", "-pthread", f"-Wl,-soname,{SONAME}")
COMPILER_SECONDS = 120.0


def build(cache_dir: Path | None = None, branch: int = NEWEST_BRANCH) -> Path:
    """Path of `libnvidia-ml.so.1` as a driver of `branch` (535, 580 …) exports it; compiled on first use.

    The file lies in a folder named after the sources' hash under `cache_dir` (default ${XDG_CACHE_HOME:-~/.cache}/poise),
    so another version of Poise never meets it. Two processes may build at once: the first to finish wins.
    Raises TestbedError when there is no C compiler or it fails.
    """
    symbols = tuple(name for name, since in functions().items() if since <= branch)
    folder = (cache_dir or _default_cache()) / "simulated-nvml" / _fingerprint()
    exported = hashlib.sha256(" ".join(symbols).encode()).hexdigest()[:12]
    return _made(folder / exported / SONAME, lambda target: _link(_object(folder), target, symbols))


def environment(state_path: Path, cache_dir: Path | None = None) -> dict[str, str]:
    """The two variables with which a process starts on the node in `state_path`: LD_LIBRARY_PATH and POISE_NVML_STATE.

    The library is the one of the node's driver branch. An inherited LD_LIBRARY_PATH stays behind ours. The dynamic linker
    reads the variable once, at process start: for the running process there is `inprocess.simulated_pynvml`.
    Raises TestbedError (no compiler, or not a state file of this version).
    """
    library = build(cache_dir, read_header(state_path).driver_major)
    inherited = os.environ.get("LD_LIBRARY_PATH", "")
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(part for part in (str(library.parent), inherited) if part),
        STATE_VARIABLE: str(state_path.absolute()),
    }


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "poise"


def _fingerprint() -> str:
    digest = hashlib.sha256("\0".join((platform.machine(), *COMPILE_FLAGS, *LINK_FLAGS)).encode())
    for source in sorted(SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _made(target: Path, make: Callable[[Path], None]) -> Path:
    """`target`, made in a folder of its own and moved into place whole when it is not there yet."""
    if target.exists():
        return target
    target.parent.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=target.parent.parent) as scratch:
        folder = Path(scratch) / "made"
        folder.mkdir()
        make(folder / target.name)
        try:
            folder.rename(target.parent)
        except OSError:
            if not target.exists():  # otherwise another process was faster
                raise
    return target


def _compiler(environ: Mapping[str, str]) -> str:
    wanted = environ.get("CC")
    for name in (wanted,) if wanted else COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    looked = wanted or ", ".join(COMPILERS)
    raise TestbedError(
        f"poise: no C compiler for the simulated NVML library (looked for {looked}): "
        "install one, e.g. `apt-get install gcc libc6-dev` or `dnf install gcc`, or name it in CC"
    )


def _object(folder: Path) -> Path:
    sources = [str(source) for source in sorted(SOURCES.glob("*.c"))]
    return _made(folder / "object" / "nvml.o", lambda target: _run([*COMPILE_FLAGS, "-o", str(target), *sources]))


def _link(compiled: Path, target: Path, symbols: tuple[str, ...]) -> None:
    script = target.parent / "symbols.map"
    script.write_text(f"{{ global: {' '.join(f'{name};' for name in symbols)} local: *; }};\n", encoding="ascii")
    _run([*LINK_FLAGS, f"-Wl,--version-script={script}", "-o", str(target), str(compiled)])


def _run(arguments: list[str]) -> None:
    compiler = _compiler(os.environ)
    try:
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True, timeout=COMPILER_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise TestbedError(f"poise: {compiler} did not build the simulated NVML library within {COMPILER_SECONDS:.0f} s") from None
    if done.returncode != 0:
        hint = _missing_headers(done.stderr)
        raise TestbedError(f"poise: {compiler} cannot build the simulated NVML library{hint}:\n{done.stderr.strip()}")


def _missing_headers(errors: str) -> str:
    if re.search(r"(stdio|stdlib|stdint|pthread|unistd|errno|limits)\.h", errors):
        return " (the C library's headers are missing: `apt-get install libc6-dev`)"
    return ""
