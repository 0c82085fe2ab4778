"""Builds the engines of the overview: identity, freshness, figures of the last minute, and their cards, grouped by deployment.

Pure. Knows series of engines; nothing of HTML.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from poise.dashboard.cards import MEAN_WINDOW, engine_cards, identifier, worst_state
from poise.dashboard.contexts import DeploymentContext, EngineContext, FigureContext, SourceContext
from poise.dashboard.freshness import engine_source
from poise.dashboard.numbers import Number, count, missing, per_second, percent, quantile_text, shortened
from poise.dashboard.observation import Observation
from poise.dashboard.texts import Texts
from poise.exporter import metrics
from poise.exporter.metrics import Metric
from poise.history.recent import WINDOW
from poise.history.text_format import Series

#: A request's way through a deployment.
ROLE_ORDER = ("mixed", "prefill", "decode", "unknown")


def deployments(observation: Observation, exporter: SourceContext, texts: Texts) -> tuple[DeploymentContext, ...]:
    """All engines of the node by deployment, then role, then name."""

    def order(series: Series) -> tuple[str, int, str]:
        role = series.label("role")
        return (series.label("deployment"), ROLE_ORDER.index(role) if role in ROLE_ORDER else len(ROLE_ORDER), series.label("engine"))

    # Every engine has its info; nothing says up or down of one that cannot be asked, and its cards must not vanish with it.
    found = sorted(observation.window.select(metrics.ENGINE_INFO.name), key=order)
    groups = []
    for name, members in groupby(found, key=lambda series: series.label("deployment")):
        built = tuple(_engine(observation, series, exporter, texts) for series in members)
        named = len(built) > 1 or any(engine.engine != shortened(name) for engine in built)
        groups.append(DeploymentContext(shortened(name), named, built))
    return tuple(groups)


def _engine(observation: Observation, series: Series, exporter: SourceContext, texts: Texts) -> EngineContext:
    window, engine = observation.window, series.label("engine")
    info = next(iter(window.select(metrics.ENGINE_INFO.name, engine=engine)), None)
    role = series.label("role")
    role = role if role in ROLE_ORDER else "unknown"
    sizes = (
        (texts.tensor_parallel, window.one(metrics.ENGINE_PARALLEL_SIZE.name, engine=engine, dimension="tensor")),
        (texts.pipeline_parallel, window.one(metrics.ENGINE_PARALLEL_SIZE.name, engine=engine, dimension="pipeline")),
        (texts.data_parallel, window.one(metrics.ENGINE_PARALLEL_SIZE.name, engine=engine, dimension="data")),
    )
    seen = {
        (one.label("dp_rank"), one.label("pp_rank"), one.label("tp_rank"), one.label("uuid"))
        for one in window.select(metrics.ENGINE_GPU_INFO.name, engine=engine, use="own")
    }
    expected = window.one(metrics.ENGINE_LOCAL_WORLD_SIZE.name, engine=engine)
    if expected is None:
        expected = window.one(metrics.ENGINE_WORLD_SIZE.name, engine=engine)
    visible = window.one(metrics.ENGINE_GPUS_VISIBLE.name, engine=engine)
    used = window.one(metrics.ENGINE_GPUS_USED.name, engine=engine)
    check_state = worst_state(observation, engine=engine)
    source = engine_source(observation, engine, exporter, texts)
    settled = source.state not in ("loading", "down", "unknown")  # before and after its life an engine has no ranks, and that is no finding
    return EngineContext(
        key=identifier("engine", engine),
        engine=shortened(engine),
        deployment=shortened(series.label("deployment")),
        model=shortened(info.label("model")) if info else "",
        role=role,
        role_word=texts.roles[role],
        version=texts.vllm.format(version=shortened(info.label("version"), 30)) if info and info.label("version") else "",
        parallel=tuple(f"{name}={size:.0f}" for name, size in sizes if size is not None and (size > 1 or name == texts.tensor_parallel)),
        ranks_seen=Number(count(len(seen)), float(len(seen))),
        ranks_expected=Number(count(expected), expected) if expected is not None else missing("?", texts.why_no_scrape),
        ranks_missing=settled and expected is not None and len(seen) < expected,
        visible_used=texts.visible_used.format(used=count(used), visible=count(visible))
        if settled and used is not None and visible is not None and used < visible
        else "",
        source=source,
        check_state=check_state,
        check_word=texts.states[check_state] if check_state else "",
        figures=_Figures(observation, engine, source, texts).all(),
        cards=engine_cards(observation, engine, texts),
    )


class _Figures:
    """The figures of one engine over the last minute, all its models and data-parallel ranks together."""

    def __init__(self, observation: Observation, engine: str, source: SourceContext, texts: Texts) -> None:
        self._window = observation.window
        self._engine = engine
        self._source = source
        self._texts = texts

    def all(self) -> tuple[FigureContext, ...]:
        """In the order of a request's way: arrival, queue, prefill, decode, and what limits them."""
        texts = self._texts
        running, waiting = self._gauge(metrics.ENGINE_REQUESTS_RUNNING), self._gauge(metrics.ENGINE_REQUESTS_WAITING)
        usage = self._kv_usage()
        return (
            FigureContext(
                "requests",
                texts.requests,
                texts.per_second,
                self._rate(metrics.ENGINE_REQUESTS_FINISHED),
                below=texts.running_waiting.format(running=running.text, waiting=waiting.text),
            ),
            self._latency("ttft", texts.ttft, metrics.ENGINE_TTFT),
            self._latency("itl", texts.itl, metrics.ENGINE_ITL),
            self._latency("queue", texts.queue, metrics.ENGINE_QUEUE_TIME),
            FigureContext("prefill", texts.prefill, texts.tokens_per_second, self._rate(metrics.ENGINE_PROMPT_TOKENS)),
            FigureContext("decode", texts.decode, texts.tokens_per_second, self._rate(metrics.ENGINE_GENERATION_TOKENS)),
            FigureContext(
                "kv_cache",
                texts.kv_cache,
                "",
                usage,
                fraction=usage.value,
            ),
            FigureContext("preemptions", texts.preemptions, "", self._preemptions(), below=texts.in_15_minutes),
        )

    def _absent(self, metric: Metric) -> Number:
        if self._source.state == "loading":
            return missing(self._texts.not_available, self._texts.why_engine_loading)
        if self._source.state == "unknown":
            return missing(self._texts.not_available, self._source.detail)
        if self._source.state == "down":
            return missing(self._texts.not_available, self._texts.why_engine_down)
        gaps = {series.label("family") for series in self._window.select(metrics.ENGINE_MISSING_INFO.name, engine=self._engine)}
        why = self._texts.why_version if metric.name in gaps else self._texts.why_no_scrape
        return missing(self._texts.not_available, why)

    def _gauge(self, metric: Metric) -> Number:
        value = self._window.total(metric.name, engine=self._engine)
        return self._absent(metric) if value is None else Number(count(value), value)

    def _rate(self, metric: Metric, write: Callable[[float], str] = per_second) -> Number:
        if not self._window.select(metric.name, engine=self._engine):
            return self._absent(metric)
        value = self._window.total_rate(metric.name, MEAN_WINDOW, engine=self._engine)
        if value is None:
            return missing(self._texts.not_available, self._texts.why_too_early)
        return Number(write(value), value, self._texts.mean_60_seconds)

    def _latency(self, key: str, label: str, metric: Metric) -> FigureContext:
        texts = self._texts
        return FigureContext(key, label, "", self._quantile(0.5, metric), texts.p50, self._quantile(0.95, metric), texts.p95)

    def _quantile(self, q: float, metric: Metric) -> Number:
        buckets = self._window.select(f"{metric.name}_bucket", engine=self._engine)
        if not buckets:
            return self._absent(metric)
        found = self._window.quantile(q, metric.name, MEAN_WINDOW, engine=self._engine)
        if found is not None:
            return Number(quantile_text(found), found.value, self._texts.observed.format(count=count(found.count)))
        if self._window.increase(buckets[0], MEAN_WINDOW) is None:
            return missing(self._texts.not_available, self._texts.why_too_early)
        why = self._texts.why_no_load if metric is metrics.ENGINE_ITL else self._texts.why_no_requests
        return missing(self._texts.idle, why)

    def _kv_usage(self) -> Number:
        """The fullest data-parallel rank: the one that preempts first."""
        values = [
            value
            for series in self._window.select(metrics.ENGINE_KV_CACHE_USAGE.name, engine=self._engine)
            if (value := self._window.value(series)) is not None
        ]
        if not values:
            return self._absent(metrics.ENGINE_KV_CACHE_USAGE)
        capacity = self._window.total(metrics.ENGINE_KV_CACHE_CAPACITY.name, engine=self._engine)
        note = "" if capacity is None else self._texts.kv_capacity.format(tokens=count(capacity))
        return Number(percent(max(values)), max(values), note)

    def _preemptions(self) -> Number:
        if not self._window.select(metrics.ENGINE_PREEMPTIONS.name, engine=self._engine):
            return self._absent(metrics.ENGINE_PREEMPTIONS)
        value = self._window.total_increase(metrics.ENGINE_PREEMPTIONS.name, WINDOW, engine=self._engine)
        return missing(self._texts.not_available, self._texts.why_too_early) if value is None else Number(count(value), value)
