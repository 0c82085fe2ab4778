"""Check `heads`: the model's attention heads and KV heads divide over the tensor-parallel ranks.

vLLM refuses to start otherwise ("Total number of attention heads (…) must be divisible by tensor parallel size (…)", config/model.py), so a
living engine passes; the line is for one that ended soon after its start.
"""

from __future__ import annotations

from collections.abc import Iterator

from poise.exporter.checks import words
from poise.exporter.checks.engine_answers import is_loading
from poise.exporter.checks.result import CheckResult, Line, State, Status, Subject
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "heads"
TITLE = "Attention heads divide over the ranks"
_LINE = Line(NAME, TITLE)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per engine of this node with a tensor-parallel size above 1; of one that is gone only when it fails."""
    del window
    for engine in snapshot.engines:
        known = engine.observed.model_shape is not None
        settled = engine.observed.process_up and not is_loading(engine, snapshot.taken_at)
        if engine.config.tensor_parallel_size > 1 and (known or settled) and engine.observed.process_up is not None:
            result = _check(engine)
            if engine.observed.process_up or result.status is Status.FAIL:
                yield result


def sizes(heads: int) -> list[int]:
    """The tensor-parallel sizes above 1 that divide `heads`, up to the cards of a large node."""
    return [size for size in range(2, 17) if heads % size == 0]


def _check(engine: Engine) -> CheckResult:
    about, size, shape = Subject(engine=engine.identity.engine), engine.config.tensor_parallel_size, engine.observed.model_shape
    if shape is None or shape.attention_heads is None:
        return _LINE.unknown(
            "the model's config.json cannot be read or does not tell its heads",
            about,
            {"model": engine.config.model_path or "unknown"},
            fix="run the exporter as root, or with CAP_SYS_PTRACE, in the host's PID namespace",
        )
    evidence = {"attention heads": str(shape.attention_heads), "KV heads": str(shape.kv_heads or shape.attention_heads), "TP": str(size)}
    if shape.attention_heads % size:
        fitting = [str(fit) for fit in sizes(shape.attention_heads)]
        return _LINE.failed(
            State.PROBLEM,
            f"{words.count(shape.attention_heads, 'attention head')} do not divide by tensor_parallel_size={size}",
            about,
            evidence,
            cause="each rank computes as many whole heads as the others; vLLM ends at its start",
            fix=f"start it with --tensor-parallel-size {' or '.join(fitting)}"
            if fitting
            else "use pipeline parallelism: --pipeline-parallel-size",
        )
    return _kv(about, size, shape.attention_heads, shape.kv_heads, evidence)


def _kv(about: Subject, size: int, heads: int, kv: int | None, evidence: dict[str, str]) -> CheckResult:
    sentence = f"{heads // size} attention heads per rank"
    if kv is None:
        return _LINE.passed(sentence, about, evidence)
    if kv % size and size % kv:
        return _LINE.failed(
            State.PROBLEM,
            f"{words.count(kv, 'KV head')} neither divide by tensor_parallel_size={size} nor divide it",
            about,
            evidence,
            cause="KV heads are either split or copied evenly over the ranks; vLLM ends at its start",
            fix="choose a --tensor-parallel-size that divides the KV heads, or a multiple of them",
        )
    if size > kv:
        return _LINE.passed(f"{sentence}, each KV head on {size // kv} ranks: the KV cache is held {size // kv} times", about, evidence)
    return _LINE.passed(f"{sentence}, {words.count(kv // size, 'KV head')}", about, evidence)
