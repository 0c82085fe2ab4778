"""Check `pd_match`: prefill and decode run the same model, revision, dtype, block size, KV dtype, connector and vLLM version.

NIXL refuses the handshake, or other connectors hand over blocks that mean something else, when these differ
(vllm-project/vllm PR #29503: versions must match exactly; #42895: hashes agree and requests fail).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from poise.exporter.checks import words
from poise.exporter.checks.pools import SPLIT_ROLES, Split, splits
from poise.exporter.checks.result import CheckResult, Line, State
from poise.exporter.checks.window import Window
from poise.exporter.snapshot import Engine, NodeSnapshot

NAME = "pd_match"
TITLE = "Prefill and decode are alike"
_LINE = Line(NAME, TITLE)

#: What the model's own dtype becomes with --dtype auto; for others (float32) vLLM chooses by card.
_KEPT_DTYPES = ("bfloat16", "float16")
_DTYPE_ALIASES = {"half": "float16", "float": "float32"}

#: Connectors that refuse a peer whose model argument is another text, even when both lead to the same weights.
_HASH_PATH = ("NixlConnector", "NixlPullConnector", "NixlPushConnector")


def effective_dtype(engine: Engine) -> str | None:
    """The dtype in which an engine computes, None when it is not known: --dtype, else the model's own."""
    told = engine.config.dtype
    if told and told != "auto":
        return _DTYPE_ALIASES.get(told, told)
    shape = engine.observed.model_shape
    return shape.dtype if shape is not None and shape.dtype in _KEPT_DTYPES and engine.observed.process_up else None


def _model(engine: Engine) -> str | None:
    page = engine.observed.page
    return engine.config.model or (page.work[0].model if page is not None and page.work else None)


def _revision(engine: Engine) -> str | None:
    return engine.config.revision or ("main" if engine.observed.process_up else None)  # vLLM's default


def _cached(label: str) -> Callable[[Engine], str | None]:
    def read(engine: Engine) -> str | None:
        page = engine.observed.page
        return (page.cache_config.get(label) if page is not None else None) or None

    return read


def _kv_dtype(engine: Engine) -> str | None:
    told = engine.config.kv_cache_dtype or _cached("cache_dtype")(engine)
    return effective_dtype(engine) if told == "auto" else told


def _block_size(engine: Engine) -> str | None:
    return str(engine.config.block_size) if engine.config.block_size is not None else _cached("block_size")(engine)


def _version(engine: Engine) -> str | None:
    page = engine.observed.page
    return (page.version or None) if page is not None else None


def _model_path(engine: Engine) -> str | None:
    """What it loads its weights from, where that is compared: vLLM's NIXL connectors hash it as it was given (0.32, nixl/metadata.py)."""
    connector = engine.config.kv_connector or ""
    return engine.config.model_path if any(name in connector for name in _HASH_PATH) else None


_FACTS: tuple[tuple[str, Callable[[Engine], str | None]], ...] = (
    ("model", _model),
    ("model path", _model_path),
    ("revision", _revision),
    ("dtype", effective_dtype),
    ("block size", _block_size),
    ("KV dtype", _kv_dtype),
    ("KV connector", lambda engine: engine.config.kv_connector),
    ("vLLM version", _version),
)


def check(snapshot: NodeSnapshot, window: Window) -> Iterator[CheckResult]:
    """One result per deployment of which engines of both roles are known here."""
    del window
    for split in splits(snapshot):
        if all(split.pool(role) for role in SPLIT_ROLES):
            yield _check(split)


def _check(split: Split) -> CheckResult:
    engines = [engine for role in SPLIT_ROLES for engine in split.pool(role)]
    evidence: dict[str, str] = {}
    different: list[str] = []
    unknown: list[str] = []
    for fact, read in _FACTS:
        values = {engine.identity.engine: read(engine) for engine in engines}
        known = sorted({value for value in values.values() if value is not None})
        holders = {value: words.joined([name for name, own in values.items() if own == value]) for value in known}
        evidence[fact] = (
            "; ".join(f"{value} on {holders[value]}" for value in known) if len(known) > 1 else known[0] if known else "unknown"
        )
        if len(known) > 1:
            different.append(fact)
        elif None in values.values():
            unknown.append(fact)
    if different:
        first = different[0]
        return _LINE.failed(
            State.PROBLEM,
            f"prefill and decode differ in {words.joined(different)} ({first}: {evidence[first]})",
            split.about,
            evidence,
            cause="KV blocks of one are not KV blocks of the other: handshakes fail, or answers are wrong without an error",
            fix="start all engines of the deployment from one image with the same model, revision, --dtype, --kv-cache-dtype and --block-size",
        )
    unknown = [fact for fact in unknown if fact != "model path"]
    alike = [fact for fact, _ in _FACTS if fact not in unknown and evidence[fact] != "unknown"]
    if "model" in unknown or "vLLM version" in unknown:
        return _LINE.unknown(
            f"not known of every engine: {words.joined(unknown)}", split.about, evidence, fix="wait until all of them answer"
        )
    rest = f"; not known of every engine: {words.joined(unknown)}" if unknown else ""
    return _LINE.passed(f"alike in {words.joined(alike)}{rest}", split.about, evidence)
