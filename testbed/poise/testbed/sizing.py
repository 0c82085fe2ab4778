"""How many prefill and decode servers a split deployment has, and over how many GPUs each: a shape in other sizes.

Pure. Knows nothing of what is free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from poise.testbed.errors import TestbedError
from poise.testbed.shapes import EngineRole, EngineShape, Shape, checked, gpus_needed


@dataclass(frozen=True, slots=True)
class Sizes:
    """What `up --prefill N --decode M --prefill-tp N --decode-tp M` asks for; None leaves what the shape says."""

    prefill: int | None = None
    decode: int | None = None
    prefill_tp: int | None = None
    decode_tp: int | None = None

    def of(self, role: EngineRole) -> tuple[int | None, int | None]:
        """Servers of a role, and the tensor-parallel size of each."""
        return {"prefill": (self.prefill, self.prefill_tp), "decode": (self.decode, self.decode_tp)}.get(role, (None, None))

    @property
    def asked(self) -> tuple[str, ...]:
        """The flags that were given."""
        given = {"--prefill": self.prefill, "--decode": self.decode, "--prefill-tp": self.prefill_tp, "--decode-tp": self.decode_tp}
        return tuple(flag for flag, value in given.items() if value is not None)


def resize(shape: Shape, sizes: Sizes) -> Shape:
    """The shape in the sizes asked for: several servers of a role are called prefill_1, prefill_2 … and are each as its first one.

    Raises TestbedError where the shape has no such role, binds its servers to GPUs so that there cannot be more of them, or becomes too large.
    """
    if not sizes.asked:
        return shape
    if shape.router is None:
        raise TestbedError(f"{sizes.asked[0]} is for shapes of prefill and decode and shape {shape.name} is none: use shape pd or hybrid")
    engines = (*_resized(shape, "prefill", sizes), *_resized(shape, "decode", sizes))
    counts = ", ".join(_words(engines, role) for role in ("prefill", "decode"))
    title = f"{counts}, KV cache over NIXL, behind {shape.router.kind}"
    return checked(
        replace(shape, title=title, gpus=gpus_needed(engines), engines=engines), f"shape {shape.name} with {' '.join(sizes.asked)}"
    )


def _resized(shape: Shape, role: EngineRole, sizes: Sizes) -> tuple[EngineShape, ...]:
    there = tuple(engine for engine in shape.engines if engine.role == role)
    count, ranks = sizes.of(role)
    if count is None and ranks is None:
        return there
    wanted = tuple(replace(engine, tensor_parallel_size=ranks or engine.tensor_parallel_size) for engine in there)
    if count is not None:
        wanted = wanted[:1] if count == 1 else tuple(_copy(wanted[0], role, number) for number in range(1, count + 1))
    fixed = next((engine for engine in there if engine.cuda_visible_devices is not None), None)
    if fixed is not None and wanted != there:
        raise TestbedError(
            f"shape {shape.name} puts engine {fixed.name} on the GPUs {fixed.cuda_visible_devices}, so that there can be no other size of it: "
            "leave cuda_visible_devices out of the shape"
        )
    return wanted


def _copy(engine: EngineShape, role: EngineRole, number: int) -> EngineShape:
    """One of several: the ports follow each other."""
    side_channel = None if engine.side_channel_port is None else engine.side_channel_port + number - 1
    return replace(engine, name=f"{role}_{number}", port=engine.port + number - 1, side_channel_port=side_channel)


def _words(engines: Sequence[EngineShape], role: EngineRole) -> str:
    some = [engine for engine in engines if engine.role == role]
    ranks = f" of tensor parallel {some[0].tensor_parallel_size}" if some[0].tensor_parallel_size > 1 else ""
    return f"{len(some)} {role}{ranks}"
