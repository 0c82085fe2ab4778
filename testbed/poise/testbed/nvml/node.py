"""A simulated node: its cards, its driver, what is injected into its calls, and its events.

The way for tests and for the testbed to drive a simulated NVML library, in whichever process it is loaded. Knows nothing of
how that process came to load it (library.py, inprocess.py).
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from poise.testbed.nvml import injection, library
from poise.testbed.nvml.codes import EventType, ReturnCode
from poise.testbed.nvml.gpu import SimulatedGPU
from poise.testbed.nvml.injection import Injection
from poise.testbed.nvml.mapping import StateFile
from poise.testbed.nvml.profiles import Profile, load
from poise.testbed.nvml.provision import write_driver, write_profile
from poise.testbed.nvml.state import MAX_EVENTS, NO_INSTANCE, new_state
from poise.testbed.nvml.units import MICRO


class SimulatedNode:
    """A node in a state file. Several may be open on one file, in several processes."""

    def __init__(self, path: Path) -> None:
        """Opens what `create` made. Raises TestbedError when the file is missing or of another version."""
        self.path = path
        self._file = StateFile(path)
        self.gpus = tuple(SimulatedGPU(self._file, position) for position in range(self._file.state.card_count))

    @classmethod
    def create(cls, path: Path, profile: str | Profile, identity: str = "") -> Self:
        """A fresh idle node. `profile` is a name (profiles/*.toml), the path of a .toml file, or a Profile; `identity`
        gives nodes of one profile different UUIDs.

        A file at `path` is replaced at once; whoever has the old one mapped keeps it. Raises TestbedError.
        """
        state = new_state()
        write_profile(state, profile if isinstance(profile, Profile) else load(profile), identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(state)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> Self:
        """The node that another process made. Raises TestbedError as the constructor does."""
        return cls(path)

    def close(self) -> None:
        """Lets go of the file. The node stays as it is, injections too: other processes may be at it."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def environment(self, cache_dir: Path | None = None) -> dict[str, str]:
        """Environment variables with which a process starts on this node. Raises TestbedError (no compiler)."""
        return library.environment(self.path, cache_dir)

    # ---- samples --------------------------------------------------------------------------------------------------

    def tick(self, at: float | None = None) -> None:
        """What the driver does six times a second: every card's present values become one sample each."""
        moment = time.time() if at is None else at
        for gpu in self.gpus:
            gpu.push_samples(moment)

    # ---- injection ------------------------------------------------------------------------------------------------

    def inject(
        self,
        function: str,
        *,
        error: ReturnCode | int = ReturnCode.SUCCESS,
        delay: float = 0.0,
        hang: bool = False,
        gpu: int | None = None,
        times: int | None = None,
    ) -> Injection:
        """Calls of `function` ("*": all) are delayed by `delay` seconds, then held until released when `hang`, then answered
        with `error` unless that is SUCCESS.

        `function` is the C symbol: nvmlInitWithFlags is what pynvml's nvmlInit calls, nvmlDeviceGetMemoryInfo_v2 what its
        nvmlDeviceGetMemoryInfo does with version=nvmlMemory_v2. `gpu`: the card at that position only; None also takes calls
        about no card. `times`: that many calls, then no more. Raises ValueError (unknown name, 64 rules in force).
        """
        self._check_position(gpu)
        return injection.add(self._file, function, error=error, delay=delay, hang=hang, card=gpu, times=times)

    def release(self, function: str | None = None, gpu: int | None = None) -> None:
        """Ends every injection, or those of one function and one card; held calls go on."""
        with self._file.writing() as state:
            for rule in injection.matching(state, function, gpu):
                injection.clear(state, rule)

    def calls(self, function: str, gpu: int | None = None) -> int:
        """How often `function` was called since the node was made, about one card or (None) at all."""
        self._check_position(gpu)
        return injection.count_calls(self._file.state, function, gpu)

    def node_calls(self, function: str) -> int:
        """How often `function` was called about no card (nvmlInitWithFlags, nvmlEventSetWait_v2 …)."""
        return injection.count_node_calls(self._file.state, function)

    def _check_position(self, gpu: int | None) -> None:
        if gpu is not None and not 0 <= gpu < len(self.gpus):
            raise ValueError(f"gpu {gpu} is not one of the {len(self.gpus)} cards of this node")

    # ---- lost and vanished cards ----------------------------------------------------------------------------------

    def lose(self, gpu: int, code: ReturnCode = ReturnCode.GPU_IS_LOST) -> None:
        """Every call about the card answers `code`; it stays in the count."""
        with self.gpus[gpu].changing() as card:
            card.condition = code

    def restore(self, gpu: int) -> None:
        """Back from `lose` and `vanish`, with the values that it had."""
        with self.gpus[gpu].changing() as card:
            card.condition, card.present = ReturnCode.SUCCESS, 1

    def vanish(self, gpu: int) -> None:
        """The card is not enumerated by the next nvmlInit, later cards move up. Who has initialised before keeps the count
        and gets GPU_IS_LOST for it, as with a card that fell off the bus."""
        with self.gpus[gpu].changing() as card:
            card.present = 0

    # ---- driver ---------------------------------------------------------------------------------------------------

    def fail_init(self, code: ReturnCode) -> None:
        """What nvmlInit answers from now on: DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, NO_PERMISSION …; SUCCESS ends it.
        Sessions that exist go on."""
        with self._file.writing() as state:
            state.init_error = code

    def unload_driver(self, code: ReturnCode = ReturnCode.DRIVER_NOT_LOADED) -> None:
        """Sessions that exist are dead (their calls answer UNKNOWN until nvmlShutdown and nvmlInit), and nvmlInit fails
        with `code`: DRIVER_NOT_LOADED, or LIB_RM_VERSION_MISMATCH after an upgrade under running processes."""
        with self._file.writing() as state:
            state.init_error = code
            state.driver_loads += 1

    def load_driver(self, version: str | None = None) -> None:
        """nvmlInit works again; counters since driver load (energy, volatile ECC) begin at 0. `version` changes the driver's
        number and what it knows, not the symbols of a library that a process has loaded already."""
        with self._file.writing() as state:
            if version is not None:
                nvml = f"{state.cuda_version // 1000}.{version}"
                write_driver(state, version, nvml, state.cuda_version)
            state.init_error = ReturnCode.SUCCESS
            state.driver_loads += 1
            for gpu in self.gpus:
                with gpu.changing() as card:
                    card.energy_mj = card.module_energy_mj = 0
                    gpu.clear_volatile_errors()

    # ---- events ---------------------------------------------------------------------------------------------------

    def raise_xid(self, gpu: int, xid: int, gpu_instance: int | None = None) -> None:
        """An XID of the card, delivered once to every event set that registered for it, if the card is lost as well; of a MIG instance when
        one is named."""
        self.raise_event(gpu, EventType.XID_CRITICAL_ERROR, xid, gpu_instance)

    def raise_event(self, gpu: int, kind: EventType, data: int = 0, gpu_instance: int | None = None) -> None:
        """An event of any type. `data` is the XID for XIDs and 0 otherwise (nvml.h)."""
        self._check_position(gpu)
        with self._file.writing() as state:
            event = state.events[state.events_written % MAX_EVENTS]
            event.type, event.data, event.at_us, event.card = kind.value, data, round(time.time() * MICRO), gpu
            event.gpu_instance = NO_INSTANCE if gpu_instance is None else gpu_instance
            event.compute_instance = NO_INSTANCE
            state.events_written += 1
