"""Check `memory_settings`: dtype and --gpu-memory-utilization fit the model, the cards, and the other engines on them."""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter import metrics as m
from poise.exporter.checks import thresholds as t
from poise.exporter.checks import words
from poise.exporter.checks.pd_match import effective_dtype
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.checks.window import Window
from poise.exporter.ownership import in_foreign_use
from poise.exporter.snapshot import Engine, EngineGpu, Libraries, NodeSnapshot, value_of

NAME = "memory_settings"
TITLE = "dtype and gpu-memory-utilization are sensible"
_LINE = Line(NAME, TITLE)

#: Cards without bfloat16 arithmetic (compute capability below 8.0), for which float16 is right.
_WITHOUT_BFLOAT16 = ("pascal", "volta", "turing")


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine of this node that has answered."""
    del window
    for engine in snapshot.engines:
        if engine.observed.process_up and engine.up:
            yield _check(snapshot, engine)


def share_of(engine: Engine) -> float | None:
    """The share of each card's memory that an engine may take: its flag's, else what its page tells."""
    told = engine.config.gpu_memory_utilization
    return told if told is not None else value_of(engine.readings, m.ENGINE_GPU_MEMORY_UTILIZATION)


def _check(snapshot: NodeSnapshot, engine: Engine) -> CheckResult:
    about, share, dtype = Subject(engine=engine.identity.engine), share_of(engine), effective_dtype(engine)
    model = engine.observed.model_shape
    evidence = {"gpu-memory-utilization": "vLLM's default" if share is None else f"{share:g}", "dtype": dtype or "unknown"}
    if model is not None and model.dtype:
        evidence["model's dtype"] = model.dtype
    failed = _shared(snapshot, engine, share, about, evidence) or _taken(snapshot, engine, share, about, evidence)
    failed = failed or _computed(snapshot, engine, dtype, about, evidence)
    if failed is not None:
        return failed
    if share is None and dtype is None:
        return _LINE.unknown("neither its flags nor its page nor the model's config.json tell them", about, evidence)
    return _LINE.passed(f"{evidence['gpu-memory-utilization']} of each card, {dtype or 'dtype unknown'}", about, evidence)


def _shared(snapshot: NodeSnapshot, engine: Engine, share: float | None, about: Subject, evidence: dict[str, str]) -> CheckResult | None:
    """Fails when engines that share a card may together take more than all of it."""
    for card in engine.own:
        others = [other for other in snapshot.engines if other is not engine and card.uuid in (other.used or ())]
        shares = [share, *(share_of(other) for other in others)]
        known = [value for value in shares if value is not None]
        if others and len(known) == len(shares) and sum(known) > 1.0:
            names = words.joined([other.identity.engine for other in others])
            return _LINE.failed(
                State.PROBLEM,
                f"GPU {card.index} is promised {sum(known):g} times: to this engine and to {names}",
                about,
                evidence | {f"GPU {card.index}": " + ".join(f"{value:g}" for value in known)},
                cause="each engine may take its --gpu-memory-utilization of the whole card, whatever others have",
                fix="lower it on each so that the sum stays below 1, or give each engine its own cards",
            )
    return None


def _taken(snapshot: NodeSnapshot, engine: Engine, share: float | None, about: Subject, evidence: dict[str, str]) -> CheckResult | None:
    if share is None:
        return None
    if share > t.MEMORY_SHARE_MOST:
        return _LINE.failed(
            State.WATCH,
            f"gpu-memory-utilization={share:g} leaves next to nothing of the cards",
            about,
            evidence,
            cause="what NCCL, CUDA graphs and peaks of activations need above vLLM's profile does not fit: out of memory under load",
            fix="set --gpu-memory-utilization to 0.9 to 0.95",
        )
    if share < t.MEMORY_SHARE_LEAST and engine.own and all(_alone_on(snapshot, engine, card) for card in engine.own):
        return _LINE.failed(
            State.WATCH,
            f"gpu-memory-utilization={share:g} leaves most of the cards unused, and nobody else is on them",
            about,
            evidence,
            cause="the KV cache gets what the share leaves over the weights: fewer requests fit, more wait",
            fix="set --gpu-memory-utilization to 0.9",
        )
    return None


def _alone_on(snapshot: NodeSnapshot, engine: Engine, card: EngineGpu) -> bool:
    gpu = snapshot.gpu(card.uuid)
    held = value_of(snapshot.gpu_process_readings.get(card.uuid, {}), m.GPU_FOREIGN_MEMORY)
    shared = any(other is not engine and card.uuid in (other.used or ()) for other in snapshot.engines)
    return gpu is not None and not shared and not in_foreign_use(gpu, held)


def _computed(snapshot: NodeSnapshot, engine: Engine, dtype: str | None, about: Subject, evidence: dict[str, str]) -> CheckResult | None:
    if engine.observed.libraries == Libraries():
        return None  # a build without CUDA
    if dtype == "float32":
        return _LINE.failed(
            State.WATCH,
            "the engine computes in float32",
            about,
            evidence,
            cause="--dtype float32: weights and KV cache are twice as large, and tensor cores do a fraction of their 16-bit speed",
            fix="start it with --dtype auto or bfloat16",
        )
    model = engine.observed.model_shape
    kinds = {gpu.identity.architecture for gpu in snapshot.gpus if gpu.uuid in (engine.used or ())}
    if dtype == "float16" and model is not None and model.dtype == "bfloat16" and not kinds & set(_WITHOUT_BFLOAT16):
        return _LINE.failed(
            State.WATCH,
            "a bfloat16 model is computed in float16",
            about,
            evidence,
            cause="float16 has a smaller range: activations of such models can overflow, which shows as NaN or broken text",
            fix="start it with --dtype auto or bfloat16, which these cards compute as fast",
        )
    return None
