"""Hours of constructed series from a description of nodes: cards, engines, loads that change, noise, restarts, lost scrapes.

    scene = Scene(minutes=60)
    node = scene.node("n1:9747", cards=2)
    node.card(1, busy=steps((0, 0.95), (1200, 0.02)))
    node.engine("qwen", cards=(0, 1), tokens=500)
    scene.lose("n1:9747", at=900)
    scene.series()         # for our engine: tests/rule_outcomes.py
    scene.input_series()   # for promtool

Everything is a function of seconds since the scene's beginning, which is Unix time 0, so that both judges see the same clock. It knows the
contract (names, labels) and no rule. A node is healthy unless told otherwise.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from poise.exporter import metrics as m
from poise.exporter.metrics import Kind, Metric
from poise.history.promql.labels import labels as label_set
from poise.history.promql.series import STALE, StoredSeries

from tests.promtool_notation import notation, written

#: A value, or a function of seconds that gives one, or None where the series is not on the page.
Over = float | Callable[[float], float | None]

#: An engine that is older than any start gate; and what a busy card is like (H20: 500 W, 1980 MHz).
OLD = -86_400.0
POWER_LIMIT, POWER_IDLE, SM_CLOCK = 500.0, 75.0, 1.98e9
MEMORY, GIB = 96 * 2**30, 2**30
LINKS = 4
#: What a tensor-parallel group of a 7B model moves over NVLink for a token (28 layers × 3584 × 2 bytes × 2 sums).
NVLINK_BYTES_PER_TOKEN = 401_408.0

_MEASURED = frozenset({m.GPU_POWER, m.GPU_CLOCK, m.GPU_TEMPERATURE_MARGIN, m.GPU_TENSOR_ACTIVE, m.GPU_PCIE_TX, m.GPU_MEMORY_USED})


def steps(*changes: tuple[float, float | None]) -> Callable[[float], float | None]:
    """A function that has each value from its second on, and none before the first: steps((0, 1), (600, 0), (900, None))."""

    def at(t: float) -> float | None:
        value = None
        for since, then in changes:
            if t >= since:
                value = then
        return value

    return at


def at(value: Over, t: float) -> float | None:
    """The value at a second."""
    return value(t) if callable(value) else value


@dataclass
class _Line:
    """One series: labels, and its value at each scrape; None where it is not on the page."""

    labels: dict[str, str]
    values: list[float | None]


@dataclass
class Scene:
    """Series of one or more nodes. `interval` and `jitter` in seconds: each node is scraped at its own time within `jitter` of the grid."""

    minutes: float = 60.0
    interval: float = 15.0
    jitter: float = 0.0
    noise: float = 0.0
    seed: int = 20261130
    _lines: list[_Line] = field(default_factory=list)
    _lost: dict[str, set[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.count = int(self.minutes * 60 / self.interval) + 1
        self.times = [index * self.interval for index in range(self.count)]

    # ------------------------------------------------------------------------------------------------------------ any series
    def gauge(self, metric: Metric | str, value: Over, instance: str, **labels: str) -> None:
        """A series with this value over time, with the scene's noise where it is measured (power, clocks, shares), not counted or a state."""
        values = [at(value, t) for t in self.times]
        if metric in _MEASURED:
            values = [None if one is None else one * self._noisy() for one in values]
        self._lines.append(_Line(_labels(metric, instance, labels), values))

    def counter(
        self, metric: Metric | str, rate: Over, instance: str, *, start: float = 1000.0, resets: Sequence[float] = (), **labels: str
    ) -> None:
        """A series that grows by `rate` per second. It begins at `start`, begins at 0 again at each of `resets`, and is gone where `rate` is None."""
        values: list[float | None] = []
        total, before, left = start, 0.0, sorted(resets)
        for t in self.times:
            if left and t >= left[0]:
                total = 0.0
                left = [moment for moment in left if moment > t]
            gained = at(rate, t)
            if gained is not None:
                total += max(0.0, gained * self._noisy()) * (t - before)
            before = t
            values.append(None if gained is None else total)
        self._lines.append(_Line(_labels(metric, instance, labels), values))

    def drop(self, instance: str, *metrics: Metric, since: float = 0.0, until: float = float("inf"), **labels: str) -> None:
        """Take series (of these metrics, else all) with these labels off the page for a while."""
        names = {metric.name for metric in metrics}
        wanted = {"instance": instance, **labels}
        for line in self._lines:
            if (not names or line.labels["__name__"] in names) and wanted.items() <= line.labels.items():
                line.values = [None if since <= t < until else value for t, value in zip(self.times, line.values, strict=True)]

    def replace(self, instance: str, metric: Metric, value: Over, **labels: str) -> None:
        """Another value for a series that stands already, or for all with these labels. Fails when there is none."""
        wanted = {"__name__": metric.name, "instance": instance, **labels}
        found = [line for line in self._lines if wanted.items() <= line.labels.items()]
        assert found, f"no series {wanted}"
        for line in found:
            line.values = [at(value, t) for t in self.times]

    def lose(self, instance: str, *moments: float) -> None:
        """The scrapes of this node next to these seconds fail: all its series are marked stale there."""
        self._lost.setdefault(instance, set()).update(round(moment / self.interval) for moment in moments)

    def node(self, instance: str = "n1:9747", cards: int = 2, *, simulated: bool = False, job: str = "") -> Node:
        """A node with healthy, idle cards; `job` when two jobs scrape the same exporter."""
        return Node(self, instance, cards, simulated, job)

    def _noisy(self) -> float:
        return 1.0 + self.random.gauss(0.0, self.noise) if self.noise else 1.0

    # ---------------------------------------------------------------------------------------------------------------- output
    def series(self) -> list[StoredSeries]:
        """For our engine, with stale markers where a series leaves the page."""
        shift = {instance: self.random.uniform(0, self.jitter) for instance in sorted({line.labels["instance"] for line in self._lines})}
        made = []
        for line in self._lines:
            times, values = [], []
            for index, value in enumerate(self._scraped(line)):
                if value is not None:
                    times.append(round((self.times[index] + shift[line.labels["instance"]]) * 1000))
                    values.append(value)
            if times:
                made.append(StoredSeries(label_set(line.labels), np.array(times, dtype=np.int64), np.array(values)))
        return made

    def input_series(self) -> list[dict[str, str]]:
        """For promtool, in its notation: constant stretches and steady growth are written short."""
        return [{"series": written(line.labels), "values": notation(self._scraped(line))} for line in self._lines]

    def _scraped(self, line: _Line) -> list[float | None]:
        """What the store gets at each scrape: a value, STALE where the series has just gone, None where there is nothing."""
        lost = self._lost.get(line.labels["instance"], set())
        seen = [None if index in lost else value for index, value in enumerate(line.values)]
        return [STALE if value is None and index and seen[index - 1] is not None else value for index, value in enumerate(seen)]


def _labels(metric: Metric | str, instance: str, labels: dict[str, str]) -> dict[str, str]:
    """All labels of a series: those of the declaration that are not given are empty, as on the page."""
    name = metric if isinstance(metric, str) else metric.name
    declared = m.by_name().get(name)
    if declared is not None:
        allowed = {*declared.label_names, "job"} | ({"le"} if declared.kind is Kind.HISTOGRAM else set())
        assert set(labels) <= allowed, f"{name} has the labels {declared.label_names}, not {sorted(labels)}"
        labels = dict.fromkeys(declared.label_names, "") | labels
    return {"__name__": name, "instance": instance, **{key: value for key, value in labels.items() if value}}


# ------------------------------------------------------------------------------------------------------------------- a node
@dataclass
class Node:
    """One exporter's page. Methods add series; what is not said is healthy."""

    scene: Scene
    instance: str
    cards: int
    simulated: bool
    job: str

    def __post_init__(self) -> None:
        name = self.instance.partition(":")[0]
        self.gauge(
            m.NODE_INFO, 1, node=name, driver="550.54", nvml="12.550", cuda="12.4", kernel="6.1", simulated=str(self.simulated).lower()
        )
        self.gauge(m.NODE_GPUS_EXPECTED, self.cards)
        self.gauge(m.NODE_GPUS_VISIBLE, self.cards)

    def gauge(self, metric: Metric | str, value: Over, **labels: str) -> None:
        """Any gauge of this node."""
        self.scene.gauge(metric, value, self.instance, **labels, **self._job)

    def counter(self, metric: Metric | str, rate: Over, *, start: float = 1000.0, resets: Sequence[float] = (), **labels: str) -> None:
        """Any counter of this node."""
        self.scene.counter(metric, rate, self.instance, start=start, resets=resets, **labels, **self._job)

    def replace(self, metric: Metric, value: Over, **labels: str) -> None:
        """Another value for what stands already."""
        self.scene.replace(self.instance, metric, value, **labels)

    def drop(self, *metrics: Metric, since: float = 0.0, until: float = float("inf"), **labels: str) -> None:
        """Off the page for a while."""
        self.scene.drop(self.instance, *metrics, since=since, until=until, **labels)

    @property
    def _job(self) -> dict[str, str]:
        return {"job": self.job} if self.job else {}

    def card(
        self,
        index: int,
        busy: Over = 0.0,
        *,
        power: Over | None = None,
        clock: Over = SM_CLOCK,
        memory: Over = 0.9 * MEMORY,
        foreign: Over | None = 0.0,
        links: int = LINKS,
        tensor: Over | None = None,
        nvlink: Over = 0.0,
        pcie: Over | None = None,
    ) -> dict[str, str]:
        """A card; returns its labels. `busy` as share of time, `power` in watts (else it follows `busy`), `nvlink` bytes/s sent over all links,
        `pcie` bytes/s sent where the card tells them, `tensor` the activity of its tensor pipes where it tells it.
        """
        own = {"gpu": str(index), "uuid": f"{self.instance.partition(':')[0]}-GPU-{index}"}
        self.gauge(m.GPU_UP, 1, **own)
        self.counter(m.GPU_BUSY_SECONDS, busy, **own)
        self.gauge(m.GPU_LAST_SAMPLE, lambda t: t, **own)
        self.gauge(m.GPU_POWER, power if power is not None else _power(busy), **own)
        self.gauge(m.GPU_POWER_LIMIT, POWER_LIMIT, **own)
        self.gauge(m.GPU_CLOCK, clock, **own, clock="sm")
        self.gauge(m.GPU_MEMORY_TOTAL, MEMORY, **own)
        self.gauge(m.GPU_MEMORY_USED, memory, **own)
        self.gauge(m.GPU_TEMPERATURE_MARGIN, 30, **own)
        self.gauge(m.GPU_PERSISTENCE_MODE, 1, **own)
        self.gauge(m.GPU_REMAP_PENDING, 0, **own)
        self.gauge(m.GPU_REMAP_FAILED, 0, **own)
        self.gauge(m.GPU_PCIE_LINK_GENERATION, lambda t: 5 if (at(busy, t) or 0) > 0.05 else 1, **own)
        self.gauge(m.GPU_PCIE_LINK_GENERATION_MAX, 5, **own)
        self.gauge(m.GPU_PCIE_LINK_WIDTH, 16, **own)
        self.gauge(m.GPU_PCIE_LINK_WIDTH_MAX, 16, **own)
        self.counter(m.GPU_PCIE_REPLAYS, 0, start=3, **own)
        self.counter(m.GPU_ECC_ERRORS, 0, start=2, **own, type="uncorrected")
        for reason in ("hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake", "sw_power_cap"):
            self.counter(m.GPU_CLOCKS_EVENT_SECONDS, 0, start=5, **own, reason=reason)
        if foreign is not None:
            self.gauge(m.GPU_FOREIGN_MEMORY, foreign, **own)
        if tensor is not None:
            self.gauge(m.GPU_TENSOR_ACTIVE, tensor, **own)
        if pcie is not None:
            self.gauge(m.GPU_PCIE_TX, pcie, **own)
        if links:
            self.counter(m.GPU_NVLINK_TOTAL_TX, nvlink, start=0, **own)
        for link in range(links):
            self.gauge(m.GPU_NVLINK_UP, 1, **own, link=str(link))
            self.counter(m.GPU_NVLINK_TX, _share(nvlink, links), start=0, **own, link=str(link))
            self.gauge(m.GPU_NVLINK_PEER_INFO, 1, **own, link=str(link), peer_type="switch", peer_uuid="", peer_pci_bus_id="0000:c5:00.0")
            self.counter(m.GPU_NVLINK_ERRORS, 0, start=1, **own, link=str(link), type="crc_flit")
            self.counter(m.GPU_NVLINK_ERRORS, 0, start=0, **own, link=str(link), type="recovery")
        return own

    def engine(
        self,
        name: str,
        *,
        cards: Sequence[int] = (0, 1),
        free: Sequence[int] = (),
        other: Sequence[int] = (),
        tokens: Over = 500.0,
        running: Over = 8.0,
        waiting: Over = 0.0,
        kv: Over = 0.4,
        up: Over = 1.0,
        process: Over | None = 1.0,
        start: Over = OLD,
        resets: Sequence[float] = (),
        deployment: str = "",
        role: str = "mixed",
        discovered: str = "argv",
        data_parallel: int = 1,
        pipeline_parallel: int = 1,
        cuda: bool = True,
    ) -> dict[str, str]:
        """An engine with its ranks on `cards` (spread over data-parallel ranks, then stages, then tensor-parallel ranks); returns its labels.

        It sees `free` and `other` cards too. `tokens` generated per second, the same of prompt; the page's series are gone where `up` is not 1.
        """
        own = {"engine": name, "deployment": deployment or name, "role": role}
        self.gauge(m.ENGINE_INFO, 1, **own, version="0.11.0", model="qwen", dtype="bfloat16", discovered=discovered)
        self.gauge(m.ENGINE_UP, up, **own)
        if process is not None:
            self.gauge(m.ENGINE_PROCESS_UP, process, **own)
        self.gauge(m.ENGINE_START_TIME, start, **own)
        self.gauge(m.ENGINE_LOCAL_WORLD_SIZE, len(cards), **own)
        self.gauge(m.ENGINE_WORLD_SIZE, len(cards), **own)
        self.gauge(m.ENGINE_GPUS_USED, len(cards), **own)
        self.gauge(m.ENGINE_GPUS_VISIBLE, len(cards) + len(free) + len(other), **own)
        if cuda:
            self.gauge(m.ENGINE_NCCL_INFO, 1, **own, nccl="2.27.3", cuda_runtime="12.8")
        tensor = len(cards) // (data_parallel * pipeline_parallel)
        for place, index in enumerate(cards):
            stage, tp_rank = divmod(place, max(1, tensor))
            dp_rank, pp_rank = divmod(stage, pipeline_parallel)
            ranks = {"tp_rank": str(tp_rank) if tensor > 1 else "", "pp_rank": str(pp_rank) if pipeline_parallel > 1 else ""}
            self.sees(own, index, "own", **ranks, dp_rank=str(dp_rank) if data_parallel > 1 else "")
        for use, indexes in (("free", free), ("other", other)):
            for index in indexes:
                self.sees(own, index, use)
        for dp_rank in range(data_parallel):
            self.work(
                own, str(dp_rank), tokens=_share(tokens, data_parallel), running=running, waiting=waiting, kv=kv, up=up, resets=resets
            )
        return own

    def sees(self, engine: dict[str, str], index: int, use: str, **ranks: str) -> None:
        """The engine sees a card."""
        uuid = f"{self.instance.partition(':')[0]}-GPU-{index}"
        self.gauge(m.ENGINE_GPU_INFO, 1, **engine, gpu=str(index), uuid=uuid, cuda_index=str(index), use=use, **ranks)

    def work(
        self,
        engine: dict[str, str],
        dp_rank: str = "0",
        *,
        tokens: Over = 500.0,
        running: Over = 8.0,
        waiting: Over = 0.0,
        kv: Over = 0.4,
        up: Over = 1.0,
        resets: Sequence[float] = (),
    ) -> dict[str, str]:
        """vLLM's own page for one data-parallel rank; returns its labels."""
        own = {**engine, "model": "qwen", "dp_rank": dp_rank}

        def while_up(value: Over) -> Over:
            return lambda t: at(value, t) if at(up, t) == 1 else None

        for metric in (m.ENGINE_PROMPT_TOKENS, m.ENGINE_GENERATION_TOKENS):
            self.counter(metric, while_up(tokens), resets=resets, **own)
        self.gauge(m.ENGINE_REQUESTS_RUNNING, while_up(running), **own)
        self.gauge(m.ENGINE_REQUESTS_WAITING, while_up(waiting), **own)
        self.gauge(m.ENGINE_KV_CACHE_USAGE, while_up(kv), **own)
        self.counter(m.ENGINE_PREEMPTIONS, while_up(0.0), start=0, resets=resets, **own)
        # A request of a hundred tokens: queued 0.1 s each.
        for name, rate in (("_sum", 0.001), ("_count", 0.01)):
            self.counter(f"{m.ENGINE_QUEUE_TIME.name}{name}", while_up(_times(tokens, rate)), resets=resets, **own)
        for reason, share in (("stop", 0.01), ("error", 0.0)):
            self.counter(m.ENGINE_REQUESTS_FINISHED, while_up(_times(tokens, share)), resets=resets, **own, reason=reason)
        return own

    def pair(self, *, busy: Over = 0.95, tokens: Over = 500.0, **engine: object) -> dict[str, str]:
        """A healthy tensor-parallel pair under load: both cards and the engine on them."""
        for index in (0, 1):
            self.card(index, busy, nvlink=_times(tokens, NVLINK_BYTES_PER_TOKEN))
        return self.engine("qwen", cards=(0, 1), tokens=tokens, **engine)  # type: ignore[arg-type]  # passed on as they are


def _power(busy: Over) -> Over:
    return lambda t: POWER_IDLE + (POWER_LIMIT - POWER_IDLE) * 0.9 * (at(busy, t) or 0.0)


def _share(value: Over, parts: int) -> Over:
    return _times(value, 1 / parts)


def _times(value: Over, factor: float) -> Over:
    def scaled(t: float) -> float | None:
        now = at(value, t)
        return None if now is None else now * factor

    return scaled
