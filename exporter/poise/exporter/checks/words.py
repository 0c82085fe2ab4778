"""How checks name things and numbers, so that every sentence of the product reads alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from poise.exporter.snapshot import Engine


def percent(ratio: float) -> str:
    """A ratio in whole percent: 0.023 → "2 %"."""
    return f"{ratio * 100:.0f} %"


def gibibytes(value: float) -> str:
    """Bytes in GiB with one digit: "69.8 GiB"."""
    return f"{value / 2**30:.1f} GiB"


def cards(indices: Iterable[int]) -> str:
    """Cards by NVML index: "GPU 1", "GPUs 0 and 1", "GPUs 0, 1 and 2"."""
    names = [str(index) for index in sorted(indices)]
    return ("GPU " if len(names) == 1 else "GPUs ") + joined(names)


def joined(names: Sequence[str]) -> str:
    """An enumeration: "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1] if names else "none"


def count(number: int, singular: str) -> str:
    """ "1 card", "2 cards"."""
    return f"{number} {singular}" if number == 1 else f"{number} {singular}s"


def visible_devices(engine: Engine) -> str:
    """What the engine was told to see: "CUDA_VISIBLE_DEVICES=0,1", or that it was not told."""
    if not engine.config.environment_read:
        return "CUDA_VISIBLE_DEVICES unknown"
    told = engine.config.cuda_visible_devices
    said = "CUDA_VISIBLE_DEVICES not set" if told is None else f"CUDA_VISIBLE_DEVICES={told}"
    container = engine.config.container
    if container is None:
        return said
    if container.minors:
        return f"a container with {count(len(container.minors), 'card')} and {said}"
    asked = f"with NVIDIA_VISIBLE_DEVICES={container.asked}" if container.asked else "without cards"
    return f"a container {asked} and {said}"


def in_pod(engine: Engine) -> bool:
    """Whether the engine is known to run in Kubernetes, whose scheduler gave it the cards that it asked for."""
    pod = engine.observed.pod
    return pod is not None and bool(pod.name or pod.namespace)


def start_with(engine: Engine, indices: Iterable[int]) -> str:
    """How to give an engine these cards: "start it with CUDA_VISIBLE_DEVICES=0,1", or what its container needs."""
    numbers = [str(index) for index in sorted(indices)]
    if engine.config.container is None:
        return f"start it with CUDA_VISIBLE_DEVICES={','.join(numbers)}"
    if in_pod(engine):
        return f"let its pod ask for {count(len(numbers), 'card')} (nvidia.com/gpu: {len(numbers)}), without CUDA_VISIBLE_DEVICES,"
    return f"start its container with NVIDIA_VISIBLE_DEVICES={','.join(numbers)} (docker run --gpus), without CUDA_VISIBLE_DEVICES,"


def parallelism(engine: Engine) -> str:
    """The parallel sizes that are not 1, tensor always: "TP=2", "TP=2 PP=2"."""
    config = engine.config
    sizes = [("TP", config.tensor_parallel_size), ("PP", config.pipeline_parallel_size), ("DP", config.data_parallel_size)]
    return " ".join(f"{name}={size}" for name, size in sizes if size != 1 or name == "TP")
