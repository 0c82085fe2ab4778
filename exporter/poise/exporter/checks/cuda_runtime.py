"""Check `cuda_runtime`: the CUDA runtime and NCCL that an engine has loaded fit each other and the driver.

Rules: NVIDIA, CUDA compatibility guide. A driver runs every older CUDA; a runtime of the driver's own major version runs on it though newer
(minor-version compatibility, from CUDA 11 on, without just-in-time compilation of PTX); a newer major version needs the package for forward
compatibility, a libcuda of its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks.engine_answers import is_loading
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import DriverInfo, Engine, Libraries, NodeSnapshot

NAME = "cuda_runtime"
TITLE = "CUDA runtime and NCCL fit the driver"
_LINE = Line(NAME, TITLE)

#: The first CUDA with minor-version compatibility.
_MINOR_COMPATIBLE = (11, 0)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine of this node that has loaded CUDA, or of which that cannot be known."""
    del window
    if not any(gpu.up for gpu in snapshot.gpus):
        return
    for engine in snapshot.engines:
        libraries = engine.observed.libraries
        # Before there are ranks nothing has loaded CUDA, and while they load it is not all there; a build without CUDA never loads any.
        waits = libraries is None and is_loading(engine, snapshot.taken_at)
        if engine.observed.process_up and engine.observed.ranks and libraries != Libraries() and not waits:
            yield _check(engine, libraries, snapshot.driver)


def version(text: str) -> tuple[int, int] | None:
    """ "12.8" → (12, 8), "12" → (12, 0); None for what is no version."""
    parts = text.split(".")
    try:
        return int(parts[0]), int(parts[1]) if len(parts) > 1 else 0
    except ValueError:
        return None


def _check(engine: Engine, libraries: Libraries | None, driver: DriverInfo) -> CheckResult:
    about = Subject(engine=engine.identity.engine)
    if libraries is None:
        return _LINE.unknown(
            "it cannot be seen which libraries its processes have loaded",
            about,
            fix="run the exporter as root, or with CAP_SYS_PTRACE, in the host's PID namespace",
        )
    evidence = {
        "CUDA runtime": libraries.cuda_runtime or "not seen",
        "NCCL": f"{libraries.nccl or 'not loaded'}{f' for CUDA {libraries.nccl_cuda}' if libraries.nccl_cuda else ''}",
        "driver": f"{driver.driver}, CUDA {driver.cuda}",
    }
    own_driver = bool(libraries.cuda_driver) and libraries.cuda_driver != driver.driver
    if own_driver:
        evidence["libcuda"] = libraries.cuda_driver
    runtime, built_for, able = version(libraries.cuda_runtime), version(libraries.nccl_cuda), version(driver.cuda)
    needs = [(name, needed) for name, needed in (("CUDA runtime", runtime), ("NCCL", built_for)) if needed is not None]
    if able is None or not needs:
        return _LINE.unknown("the driver or the libraries do not tell their CUDA version", about, evidence)
    newer = [(name, needed) for name, needed in needs if needed > able]
    refused = [(name, needed) for name, needed in newer if needed[0] > able[0] or needed < _MINOR_COMPATIBLE]
    if refused and not own_driver:
        name, needed = refused[0]
        return _LINE.failed(
            State.PROBLEM,
            f"the {name} is for CUDA {_text(needed)} and driver {driver.driver} knows CUDA up to {_text(able)}",
            about,
            evidence,
            cause="a newer major version of CUDA does not run on this driver",
            fix=f"update the driver, use a vLLM build for CUDA {able[0]}, or (data-centre cards only) install cuda-compat-{needed[0]}-{needed[1]}",
        )
    if runtime is not None and built_for is not None and runtime[0] != built_for[0]:
        return _LINE.failed(
            State.WATCH,
            f"NCCL is built for CUDA {_text(built_for)} and the CUDA runtime is {_text(runtime)}",
            about,
            evidence,
            cause="two builds are mixed in one environment: NCCL carries a runtime of its own, and its kernels may not load",
            fix=f"install the NCCL package for CUDA {runtime[0]} (nvidia-nccl-cu{runtime[0]}), or unset VLLM_NCCL_SO_PATH and LD_PRELOAD",
        )
    fits = " and ".join(f"{name} for CUDA {_text(needed)}" if name == "NCCL" else f"{name} {_text(needed)}" for name, needed in needs)
    if own_driver:
        return _LINE.passed(
            f"{fits} over libcuda {libraries.cuda_driver} on driver {driver.driver} (forward compatibility)", about, evidence
        )
    how = " by minor-version compatibility" if newer else ""
    return _LINE.passed(f"{fits} {'fit' if len(needs) > 1 else 'fits'}{how}: driver {driver.driver} (CUDA {_text(able)})", about, evidence)


def _text(numbers: tuple[int, int]) -> str:
    return f"{numbers[0]}.{numbers[1]}"
