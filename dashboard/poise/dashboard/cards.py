"""Builds the cards of the overview: from the recent window's GPU series to `CardContext`.

Pure. Knows series of cards and who holds them; nothing of HTML.
"""

from __future__ import annotations

from zlib import crc32

from poise.dashboard.contexts import (
    BusyContext,
    CardContext,
    ClockEventContext,
    LinksContext,
    MemoryContext,
    ProcessContext,
    SegmentContext,
    SparkContext,
)
from poise.dashboard.numbers import SPACE, Number, both_directions, bytes_per_second, count, gibibytes, missing, percent, shortened
from poise.dashboard.observation import Observation
from poise.dashboard.sparkline import paths
from poise.dashboard.texts import Texts
from poise.exporter import metrics
from poise.exporter.checks import cards_present
from poise.exporter.checks.result import WORST_FIRST, State, Status
from poise.exporter.metrics import Metric
from poise.exporter.snapshot import Reason
from poise.history.recent import Point, RecentWindow
from poise.history.text_format import Series

#: Seconds. What the page calls the load of a card: a TP group alternates within seconds, and a minute shows the trend.
MEAN_WINDOW = 60.0
#: Seconds of the drawn history.
SPARK_WINDOW = 300.0
#: Reasons that cost speed; the others are a card at rest or clocks that somebody set (nvml.h, nvmlClocksEventReason…).
SLOWING_EVENTS = frozenset({"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"})
#: Bytes of used memory that no process accounts for and that are still nothing to show: page tables and contexts.
UNATTRIBUTED_FLOOR = 512 * 1024**2
MAX_PROCESSES = 8


def identifier(kind: str, text: str) -> str:
    """An id for an element: from untrusted text, the same at every refresh."""
    kept = "".join(character if character.isascii() and character.isalnum() else "-" for character in text[:60])
    return f"{kind}-{kept}-{crc32(text.encode()):08x}"


def card_order(series: Series) -> tuple[int, str]:
    """By NVML index, then UUID: never by a value that moves."""
    index = series.label("gpu")
    return (int(index) if index.isdecimal() else 1_000_000, series.label("uuid"))


def worst_state(observation: Observation, *, uuid: str = "", engine: str = "") -> str:
    """The worst state of the failing checks about a card or an engine, "" when none fails."""
    if observation.checks is None:
        return ""
    states = {
        result.state
        for result in (finding.result for finding in observation.checks.checks)
        if result.status is Status.FAIL and (result.uuid == uuid if uuid else (result.engine == engine and not result.uuid))
    }
    return next((state.value for state in WORST_FIRST if state in states and state is not State.OK), "")


def engine_cards(observation: Observation, engine: str, texts: Texts) -> tuple[CardContext, ...]:
    """The cards that hold a rank of the engine, in rank order."""
    window = observation.window
    placed = window.select(metrics.ENGINE_GPU_INFO.name, engine=engine, use="own")
    sizes = {
        dimension: window.one(metrics.ENGINE_PARALLEL_SIZE.name, engine=engine, dimension=dimension) or 1
        for dimension in ("data", "pipeline", "tensor")
    }

    def order(series: Series) -> tuple[tuple[int, ...], tuple[int, str]]:
        ranks = (series.label("dp_rank"), series.label("pp_rank"), series.label("tp_rank"))
        return tuple(int(rank) if rank.isdecimal() else -1 for rank in ranks), card_order(series)

    cards = []
    for series in sorted(placed, key=order):
        named = (
            (texts.data_parallel, "dp_rank", sizes["data"]),
            (texts.pipeline_parallel, "pp_rank", sizes["pipeline"]),
            (texts.tensor_parallel, "tp_rank", sizes["tensor"]),
        )
        rank = " · ".join(f"{name} {shortened(series.label(label))}" for name, label, size in named if size > 1 and series.label(label))
        cards.append(_card(observation, series, texts, engine=engine, rank=rank, cuda=shortened(series.label("cuda_index"))))
    return tuple(cards)


def unowned_cards(observation: Observation, texts: Texts) -> tuple[CardContext, ...]:
    """The cards on which no engine has a process, in index order."""
    window = observation.window
    owned = {series.label("uuid") for series in window.select(metrics.ENGINE_GPU_INFO.name, use="own")}
    cards = (series for series in window.select(metrics.GPU_UP.name) if series.label("uuid") not in owned)
    return tuple(_card(observation, series, texts) for series in sorted(cards, key=card_order))


def _card(observation: Observation, series: Series, texts: Texts, *, engine: str = "", rank: str = "", cuda: str = "") -> CardContext:
    window, uuid, index = observation.window, series.label("uuid"), shortened(series.label("gpu"), 8)
    reader = _Reader(window, uuid, texts)
    info = window.select(metrics.GPU_INFO.name, uuid=uuid)
    state = _state(observation, uuid)
    check_state = worst_state(observation, uuid=uuid)
    events = [one.label("reason") for one in window.select(metrics.GPU_CLOCKS_EVENT.name, uuid=uuid) if window.value(one) == 1.0]
    return CardContext(
        key=identifier("gpu", f"{uuid} {engine}" if engine else uuid),
        uuid=shortened(uuid),
        index=index,
        label=texts.gpu.format(index=index),
        cuda=texts.cuda.format(index=cuda) if cuda else "",
        model=shortened(info[0].label("name")).removeprefix("NVIDIA ") if info else "",
        rank=rank,
        state=state,
        word=texts.card_states[state],
        explanation=texts.card_down.get(state, ""),
        check_state=check_state,
        check_word=texts.states[check_state] if check_state else "",
        busy=_busy(observation, reader, index),
        memory=_memory(reader, engine),
        power=reader.number(metrics.GPU_POWER, lambda watts: f"{watts:.0f}{SPACE}W"),
        power_limit=reader.number(metrics.GPU_POWER_LIMIT, lambda watts: f"{watts:.0f}{SPACE}W"),
        temperature=reader.number(metrics.GPU_TEMPERATURE, lambda degrees: f"{degrees:.0f}{SPACE}°C", sensor="core"),
        clock=reader.number(metrics.GPU_CLOCK, _megahertz, clock="sm"),
        clock_max=reader.number(metrics.GPU_CLOCK_MAX, _megahertz, clock="sm"),
        clock_events=tuple(
            ClockEventContext(reason, texts.clock_events.get(reason, shortened(reason, 30)), reason in SLOWING_EVENTS)
            for reason in (shortened(event, 40) for event in events[:12])
        ),
        links=_links(reader),
        processes=_processes(window, uuid, engine),
    )


class _Reader:
    """The series of one card, with the reason for what is absent."""

    def __init__(self, window: RecentWindow, uuid: str, texts: Texts) -> None:
        self.window = window
        self.uuid = uuid
        self.texts = texts

    def why(self, metric: Metric) -> str:
        """Why the card has no such series."""
        found = self.window.select(metrics.GPU_UNSUPPORTED_INFO.name, uuid=self.uuid, metric=metric.name)
        reason = found[0].label("reason") if found else ""
        return self.texts.reasons.get(reason, self.texts.why_no_scrape)

    def absent(self, metric: Metric) -> Number:
        return missing(self.texts.not_available, self.why(metric))

    def raw(self, metric: Metric, **labels: str) -> float | None:
        return self.window.one(metric.name, uuid=self.uuid, **labels)

    def number(self, metric: Metric, write: object, **labels: str) -> Number:
        value = self.raw(metric, **labels)
        assert callable(write)
        return self.absent(metric) if value is None else Number(write(value), value)


def _megahertz(hertz: float) -> str:
    return f"{count(hertz / 1e6)}{SPACE}MHz"


def _state(observation: Observation, uuid: str) -> str:
    """up, or how the card fails: by the reason that its series give, else by the evidence of the checks about it."""
    window = observation.window
    if window.one(metrics.GPU_UP.name, uuid=uuid) != 0.0:
        return "up"
    reasons = {series.label("reason") for series in window.select(metrics.GPU_UNSUPPORTED_INFO.name, uuid=uuid)}
    if observation.checks is not None:
        about = (finding.result for finding in observation.checks.checks if finding.result.uuid == uuid)
        reasons |= {result.evidence.get("reason", "") for result in about if result.check == cards_present.NAME}
    if Reason.GPU_LOST in reasons:
        return "lost"
    return "hangs" if Reason.TIMEOUT in reasons else "failed"


def _busy(observation: Observation, reader: _Reader, index: str) -> BusyContext:
    """From the counter of busy seconds, whose slope between two scrapes is the true mean of that time; else from the sampled gauge."""
    window, texts = observation.window, reader.texts
    counters = window.select(metrics.GPU_BUSY_SECONDS.name, uuid=reader.uuid)
    gauges = window.select(metrics.GPU_UTILIZATION.name, uuid=reader.uuid)
    points: list[Point] = []
    mean: float | None = None
    if counters:
        points = window.slopes(counters[0], SPARK_WINDOW)
        mean = window.rate(counters[0], MEAN_WINDOW)
    if mean is None and gauges:
        points = window.points(gauges[0], SPARK_WINDOW)
        recent = [point.value for point in window.points(gauges[0], MEAN_WINDOW)]
        mean = sum(recent) / len(recent) if recent else None
    points = [Point(point.at, min(1.0, max(0.0, point.value))) for point in points]
    spark = _spark(observation, points, texts, index)
    if mean is None:
        absent = reader.absent(metrics.GPU_BUSY_SECONDS)
        return BusyContext(absent, absent, absent, "", spark)
    end = window.newest.at if window.newest else observation.now
    values = [point.value for point in points if point.at > end - MEAN_WINDOW] or [mean]
    mean = min(1.0, max(0.0, mean))
    low, high = min(*values, mean), max(*values, mean)
    return BusyContext(
        Number(percent(mean), mean, texts.mean_60_seconds),
        Number(percent(low), low),
        Number(percent(high), high),
        "" if percent(low) == percent(high) else f"{low * 100:.0f}–{percent(high)}",
        spark,
    )


def _spark(observation: Observation, points: list[Point], texts: Texts, index: str) -> SparkContext:
    line, area, gaps = paths(points, end=observation.now, seconds=SPARK_WINDOW, interval=observation.interval)
    if points:
        values = [point.value for point in points]
        summary = texts.spark_range.format(mean=percent(sum(values) / len(values)), low=percent(min(values)), high=percent(max(values)))
    else:
        summary = texts.spark_none
    return SparkContext(line, area, gaps, texts.spark_label.format(index=index, summary=summary))


def _memory(reader: _Reader, engine: str) -> MemoryContext:
    window, texts = reader.window, reader.texts
    used = reader.raw(metrics.GPU_MEMORY_USED)
    total = reader.raw(metrics.GPU_MEMORY_TOTAL)
    free = reader.raw(metrics.GPU_MEMORY_FREE)
    held = {"own": 0.0, "others": 0.0}
    for series in window.select(metrics.GPU_PROCESS_MEMORY.name, uuid=reader.uuid):
        holder = series.label("engine")
        if holder:
            held["own" if holder == engine else "others"] += window.value(series) or 0.0
    foreign = reader.raw(metrics.GPU_FOREIGN_MEMORY)
    known = held["own"] + held["others"] + (foreign or 0.0)
    unattributed = max(0.0, (used or 0.0) - known)
    if unattributed < UNATTRIBUTED_FLOOR:
        unattributed = 0.0
    parts = (
        ("own", held["own"], texts.own),
        ("others", held["others"], texts.others),
        ("foreign", foreign or 0.0, texts.foreign),
        ("unattributed", unattributed, texts.unattributed),
    )
    segments, start = [], 0.0
    for kind, size, word in parts:
        if total and size > 0:
            width = min(1.0 - start, size / total)
            segments.append(SegmentContext(kind, round(start, 4), round(width, 4), f"{word} {gibibytes(size)}"))
            start += width
    return MemoryContext(
        used=reader.number(metrics.GPU_MEMORY_USED, gibibytes),
        total=Number(gibibytes(total), total) if total is not None else reader.absent(metrics.GPU_MEMORY_TOTAL),
        own=_part(held["own"]),
        others=_part(held["others"]),
        foreign=_part(foreign) if foreign is not None else reader.absent(metrics.GPU_FOREIGN_MEMORY),
        unattributed=_part(unattributed),
        free=_part(free) if free is not None else reader.absent(metrics.GPU_MEMORY_FREE),
        segments=tuple(segments),
    )


def _part(size: float) -> Number:
    """A part of a card's memory, in the unit of the whole beside it."""
    return Number(gibibytes(size, unit=False), size, gibibytes(size))


def _links(reader: _Reader) -> LinksContext:
    window, texts = reader.window, reader.texts
    links = window.select(metrics.GPU_NVLINK_UP.name, uuid=reader.uuid)
    up = sum(1 for series in links if window.value(series) == 1.0)
    send = _throughput(reader, metrics.GPU_NVLINK_TOTAL_TX, metrics.GPU_NVLINK_TX)
    receive = _throughput(reader, metrics.GPU_NVLINK_TOTAL_RX, metrics.GPU_NVLINK_RX)
    both = send if send.value is None else receive
    if send.value is not None and receive.value is not None:
        both = Number(both_directions(send.value, receive.value), send.value + receive.value, send.note)
    return LinksContext(
        has_links=bool(links),
        both=both,
        send=send,
        receive=receive,
        up=Number(count(up), float(up)) if links else missing(texts.not_available, reader.why(metrics.GPU_NVLINK_UP)),
        total=Number(count(len(links)), float(len(links))) if links else missing(texts.not_available, reader.why(metrics.GPU_NVLINK_UP)),
        some_down=up < len(links),
    )


def _throughput(reader: _Reader, total: Metric, per_link: Metric) -> Number:
    """From the card's own sum where it has one, else over its links."""
    for metric in (total, per_link):
        if not reader.window.select(metric.name, uuid=reader.uuid):
            continue
        rate = reader.window.total_rate(metric.name, MEAN_WINDOW, uuid=reader.uuid)
        if rate is None:
            return missing(reader.texts.not_available, reader.texts.why_too_early)
        return Number(bytes_per_second(rate), rate, reader.texts.mean_60_seconds)
    return reader.absent(per_link)


def _processes(window: RecentWindow, uuid: str, engine: str) -> tuple[ProcessContext, ...]:
    """The card's processes, this engine's first, then by pid."""

    def order(series: Series) -> tuple[bool, int]:
        pid = series.label("pid")
        return (series.label("engine") != engine, int(pid) if pid.isdecimal() else 0)

    found = sorted(window.select(metrics.GPU_PROCESS_MEMORY.name, uuid=uuid), key=order)
    return tuple(
        ProcessContext(shortened(series.label("pid"), 12), shortened(series.label("process"), 64), Number(gibibytes(value), value))
        for series in found[:MAX_PROCESSES]
        if (value := window.value(series)) is not None
    )
