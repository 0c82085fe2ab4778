"""Nodes as an exporter tells of them, made by hand from the contract: `/metrics` and `/checks` at a second of a node's life.

Only names of `poise.exporter.metrics` are used, so a series that the contract loses breaks here. For tests of pages and of whatever
reads an exporter; knows none of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from poise.exporter import metrics as m
from poise.exporter.metrics import Metric

GIB = float(1024**3)
BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Page:
    """Collects samples and renders them in text format."""

    def __init__(self) -> None:
        self._samples: dict[Metric, list[str]] = {}

    def add(self, metric: Metric, value: float, /, **labels: str) -> None:
        """One sample; labels that the metric declares and that are not given are empty."""
        assert set(labels) <= set(metric.label_names), (metric, labels)
        self._samples.setdefault(metric, []).append(f"{metric.name}{_labels(metric, labels)} {value!r}")

    def histogram(self, metric: Metric, observed: Mapping[float, float], total: float, /, **labels: str) -> None:
        """A histogram with BOUNDS; `observed` is the cumulative count by bound, `total` the count of all."""
        lines = self._samples.setdefault(metric, [])
        for bound in BOUNDS:
            lines.append(f"{metric.name}_bucket{_labels(metric, labels, le=repr(bound))} {observed.get(bound, 0.0)!r}")
        lines.append(f"{metric.name}_bucket{_labels(metric, labels, le='+Inf')} {total!r}")
        lines.append(f"{metric.name}_sum{_labels(metric, labels)} {total * 0.05!r}")
        lines.append(f"{metric.name}_count{_labels(metric, labels)} {total!r}")

    def render(self) -> bytes:
        """The page."""
        lines: list[str] = []
        for metric, samples in self._samples.items():
            lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *samples]
        return ("\n".join(lines) + "\n").encode()


def _labels(metric: Metric, labels: Mapping[str, str], /, **more: str) -> str:
    named = {**{name: labels.get(name, "") for name in metric.label_names}, **more}
    if not named:
        return ""
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"') for name, value in named.items()}
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


@dataclass(frozen=True)
class CardScene:
    """A card: `busy` is its share of time with a kernel, `owner` the engine with a process on it, memory in GiB, NVLink in bytes/s.

    `pulse` is by how much `busy` swings from second to second.
    """

    index: int
    busy: float = 0.0
    pulse: float = 0.0
    owner: str = ""
    tp_rank: str = ""
    memory: float = 1.0
    foreign: float = 0.0
    total: float = 96.0
    power: float = 75.0
    limit: float = 500.0
    temperature: float = 34.0
    clock: float = 1980.0
    links: int = 18
    links_down: int = 0
    link_rate: float = 0.0
    events: tuple[str, ...] = ()
    up: bool = True
    down_reason: str = ""
    name: str = "NVIDIA H20"
    process: str = ""
    without: frozenset[Metric] = frozenset()

    @property
    def uuid(self) -> str:
        """Made from the index."""
        return f"GPU-{self.index:08x}-1111-2222-3333-444444444444"

    def busy_seconds(self, second: float) -> float:
        """The counter after so many seconds; a triangle wave of 35 s swings around the mean."""
        phase = (second + 7 * self.index) % 35
        swing = self.pulse * (phase if phase < 17.5 else 35 - phase) * 0.5
        return 1_000 + self.busy * second + swing


@dataclass(frozen=True)
class EngineScene:
    """An engine: `rate` in requests/s, latencies by the bound below which all observations fall, `visible` cards in CUDA order.

    `up` None: it has no address, so nothing is published about its page.
    """

    engine: str
    deployment: str = ""
    role: str = "mixed"
    model: str = "Qwen/Qwen2.5-32B-Instruct"
    version: str = "0.32.0"
    tensor: int = 2
    visible: tuple[int, ...] = (0, 1)
    rate: float = 0.0
    ttft: float = 0.1
    itl: float = 0.025
    running: float = 0.0
    waiting: float = 0.0
    kv: float = 0.0
    up: bool | None = True
    process_up: bool | None = True
    without: frozenset[Metric] = frozenset()


@dataclass(frozen=True)
class NodeScene:
    """A node with its cards and engines, and what the checks say."""

    cards: tuple[CardScene, ...] = ()
    engines: tuple[EngineScene, ...] = ()
    node: str = "gpu-node-1"
    simulated: bool = False
    driver: str = "570.133.20"
    checks: tuple[Mapping[str, Any], ...] = ()
    verdict: str = "ok"
    snapshot_age: float = 0.4
    summary: str = "2 cards, 1 engine; every card that an engine owns does its share"

    def metrics(self, second: float) -> bytes:
        """The page of `/metrics` when the node has lived for `second` seconds."""
        page = Page()
        simulated = "true" if self.simulated else "false"
        page.add(m.BUILD_INFO, 1, version="0.1.0", python="3.11.2")
        page.add(m.NODE_INFO, 1, node=self.node, driver=self.driver, nvml="12.570.133", cuda="12.8", kernel="6.1.0", simulated=simulated)
        page.add(m.NODE_GPUS_VISIBLE, sum(card.up for card in self.cards))
        page.add(m.SNAPSHOT_AGE, self.snapshot_age)
        for card in self.cards:
            _card(page, card, second)
        for engine in self.engines:
            _engine(page, engine, self, second)
        return page.render()

    def checks_document(self, now: float) -> bytes:
        """The answer of `/checks` at `now` (Unix seconds)."""
        results = [{**_RESULT, "since": now - 47, **check} for check in self.checks]
        lines = [result for result in results if result["state"] != "ok"][:3]
        verdict = {"state": self.verdict, "summary": self.summary, "lines": lines}
        document = {"format": 1, "node": self.node, "time": now, "simulated": self.simulated, "verdict": verdict, "checks": results}
        return json.dumps(document).encode()


_RESULT: Mapping[str, Any] = {"engine": "", "gpu": "", "uuid": "", "cause": "", "fix": "", "evidence": {}, "subject": "", "line": ""}


def _card(page: Page, card: CardScene, second: float) -> None:
    gpu = {"gpu": str(card.index), "uuid": card.uuid}

    def add(metric: Metric, value: float, /, **labels: str) -> None:
        if metric not in card.without:
            page.add(metric, value, **gpu, **labels)

    page.add(m.GPU_INFO, 1, **gpu, name=card.name, pci_bus_id=f"0000:{card.index + 16:02x}:00.0", architecture="hopper")
    page.add(m.GPU_UP, float(card.up), **gpu)
    for metric in card.without:
        page.add(m.GPU_UNSUPPORTED_INFO, 1, **gpu, metric=metric.name, reason="not_supported")
    if not card.up:
        page.add(m.GPU_UNSUPPORTED_INFO, 1, **gpu, metric=m.GPU_POWER.name, reason=card.down_reason)
        return
    used = card.memory * GIB
    add(m.GPU_UTILIZATION, card.busy)
    add(m.GPU_BUSY_SECONDS, card.busy_seconds(second))
    add(m.GPU_MEMORY_TOTAL, card.total * GIB)
    add(m.GPU_MEMORY_USED, used)
    add(m.GPU_MEMORY_FREE, card.total * GIB - used)
    add(m.GPU_FOREIGN_MEMORY, card.foreign * GIB)
    if card.owner:
        title = card.process or f"VLLM::Worker_TP{card.tp_rank or 0}"
        held = used - card.foreign * GIB
        add(m.GPU_PROCESS_MEMORY, held, pid=str(4200 + card.index), process=title, engine=card.owner, rank=card.tp_rank)
    add(m.GPU_POWER, card.power)
    add(m.GPU_POWER_LIMIT, card.limit)
    add(m.GPU_TEMPERATURE, card.temperature, sensor="core")
    add(m.GPU_CLOCK, card.clock * 1e6, clock="sm")
    add(m.GPU_CLOCK_MAX, 1980e6, clock="sm")
    for reason in ("gpu_idle", "sw_power_cap", "hw_thermal_slowdown"):
        add(m.GPU_CLOCKS_EVENT, float(reason in card.events), reason=reason)
    for link in range(card.links):
        add(m.GPU_NVLINK_UP, float(link >= card.links_down), link=str(link))
        add(m.GPU_NVLINK_TX, card.link_rate / card.links * second, link=str(link))
        add(m.GPU_NVLINK_RX, card.link_rate / card.links * second, link=str(link))
    if card.links:
        add(m.GPU_NVLINK_TOTAL_TX, card.link_rate * second)
        add(m.GPU_NVLINK_TOTAL_RX, card.link_rate * 0.98 * second)


def _engine(page: Page, engine: EngineScene, node: NodeScene, second: float) -> None:
    server = {"engine": engine.engine, "deployment": engine.deployment or engine.engine, "role": engine.role}
    work = {**server, "model": engine.model, "dp_rank": "0"}
    cards = {card.index: card for card in node.cards}
    if engine.up is not None:
        page.add(m.ENGINE_UP, float(engine.up), **server)
    if engine.process_up is not None:
        page.add(m.ENGINE_PROCESS_UP, float(engine.process_up), **server)
    page.add(m.ENGINE_INFO, 1, **server, version=engine.version, model=engine.model, discovered="argv")
    page.add(m.ENGINE_PARALLEL_SIZE, engine.tensor, **server, dimension="tensor")
    page.add(m.ENGINE_WORLD_SIZE, engine.tensor, **server)
    page.add(m.ENGINE_LOCAL_WORLD_SIZE, engine.tensor, **server)
    page.add(m.ENGINE_GPUS_VISIBLE, len(engine.visible), **server)
    page.add(m.ENGINE_GPUS_USED, sum(cards[index].owner == engine.engine for index in engine.visible), **server)
    for ordinal, index in enumerate(engine.visible):
        card = cards[index]
        use = "own" if card.owner == engine.engine else "other" if card.owner else "free"
        rank = card.tp_rank if use == "own" else ""
        page.add(m.ENGINE_GPU_INFO, 1, **server, gpu=str(index), uuid=card.uuid, cuda_index=str(ordinal), tp_rank=rank, use=use)
    if not engine.up:
        return
    done = engine.rate * second
    page.add(m.ENGINE_SCRAPE_DURATION, 0.012, **server)
    page.add(m.ENGINE_REQUESTS_FINISHED, done, **work, reason="stop")
    page.add(m.ENGINE_PROMPT_TOKENS, done * 420, **work)
    page.add(m.ENGINE_GENERATION_TOKENS, done * 180, **work)
    page.add(m.ENGINE_REQUESTS_RUNNING, engine.running, **work)
    page.add(m.ENGINE_REQUESTS_WAITING, engine.waiting, **work)
    page.add(m.ENGINE_KV_CACHE_USAGE, engine.kv, **work)
    page.add(m.ENGINE_KV_CACHE_CAPACITY, 312_448, **work)
    page.add(m.ENGINE_PREEMPTIONS, 0, **work)
    latencies = ((m.ENGINE_TTFT, engine.ttft, done), (m.ENGINE_ITL, engine.itl, done * 180), (m.ENGINE_QUEUE_TIME, 0.01, done))
    for metric, bound, count in latencies:
        if metric not in engine.without:
            lower = BOUNDS[max(0, BOUNDS.index(bound) - 1)] if bound in BOUNDS else None
            observed = {at: (count if at >= bound else 0.4 * count if at == lower else 0.0) for at in BOUNDS}
            page.histogram(metric, observed, count, **work)


# ------------------------------------------------------------------------------------------------------------------ scenes
def tensor_parallel(busy: tuple[float, float] = (0.94, 0.93), **engine: Any) -> NodeScene:
    """Two cards, one engine TP=2 under load, as it should be; keyword arguments replace fields of the engine."""
    name = "gpu-node-1:8000"
    loaded: dict[str, Any] = {"rate": 3.2, "running": 12, "waiting": 1, "kv": 0.37}
    scene = EngineScene(name, **{**loaded, **engine})
    cards = tuple(
        CardScene(
            index,
            busy=busy[index],
            pulse=0.1 if busy[index] else 0.0,
            owner=name,
            tp_rank=str(index),
            memory=83.4,
            power=(388, 381)[index],
            temperature=(61, 59)[index],
            link_rate=12.4e9,
            events=("sw_power_cap",) if index == 0 else (),
        )
        for index in range(2)
    )
    return NodeScene(cards, (scene,), checks=_all_pass(name))


def idle() -> NodeScene:
    """The same deployment without a request."""
    scene = tensor_parallel((0.0, 0.0), rate=0.0, running=0, waiting=0, kv=0.0)
    cards = tuple(replace(card, power=76, link_rate=0.0, events=("gpu_idle",), clock=345) for card in scene.cards)
    return replace(scene, cards=cards, summary="2 cards, 1 engine; idle")


def one_visible() -> NodeScene:
    """CUDA_VISIBLE_DEVICES=0 on a node of two cards: the mistake that Poise was made for."""
    name = "gpu-node-1:8000"
    events = ("sw_power_cap",)
    busy = CardScene(
        0, busy=0.97, pulse=0.05, owner=name, memory=83.4, power=412, temperature=66, process="VLLM::EngineCore", events=events
    )
    unused = CardScene(1, power=74, clock=345, events=("gpu_idle",))
    engine = EngineScene(name, tensor=1, visible=(0,), rate=1.4, ttft=1.0, itl=0.05, running=24, waiting=9, kv=0.81)
    found = {
        "check": "idle_unowned_card",
        "title": "No card idles outside every engine while an engine is loaded",
        "status": "fail",
        "state": "problem",
        "subject": "Qwen2.5-32B-Instruct on gpu-node-1:8000 TP=1",
        "engine": name,
        "gpu": "1",
        "uuid": unused.uuid,
        "sentence": "GPU 1 idle (0 %) while GPU 0 is saturated (97 %), mean of 60 s",
        "cause": "CUDA_VISIBLE_DEVICES=0: the engine can see one of the two cards",
        "fix": "unset CUDA_VISIBLE_DEVICES or set it to 0,1 and start with --tensor-parallel-size 2",
        "evidence": {"GPU 0": "97 %, 412 W", "GPU 1": "0 %, 74 W", "window": "60 s"},
    }
    hidden = {
        "check": "visible_devices",
        "title": "CUDA_VISIBLE_DEVICES names all cards meant for the engine",
        "status": "fail",
        "state": "watch",
        "subject": "Qwen2.5-32B-Instruct on gpu-node-1:8000 TP=1",
        "engine": name,
        "sentence": "CUDA_VISIBLE_DEVICES=0 hides GPU 1, which no other engine holds",
        "cause": "the variable is set in the environment of the server",
        "fix": "set CUDA_VISIBLE_DEVICES=0,1 or leave it unset",
        "evidence": {"CUDA_VISIBLE_DEVICES": "0", "cards": "2"},
    }
    rest = tuple(check for check in _all_pass(name) if check["check"] not in ("idle_unowned_card", "visible_devices"))
    return NodeScene((busy, unused), (engine,), checks=(rest[0], found, hidden, *rest[1:]), verdict="problem", summary=found["sentence"])


def eight_cards() -> NodeScene:
    """Eight cards, four engines of which two form a deployment, one loading, one card lost: the page at its budget."""
    engines: list[EngineScene] = []
    cards: list[CardScene] = []
    name_of_card = "NVIDIA H100 80GB HBM3"
    for pair in range(3):
        name = f"gpu-node-1:{8000 + pair}"
        deployment, role = ("qwen-pd", ("prefill", "decode")[pair]) if pair < 2 else ("", "mixed")
        pair_of_cards = (2 * pair, 2 * pair + 1)
        engines.append(EngineScene(name, deployment, role, visible=pair_of_cards, rate=2.0 + pair, running=8 + pair, kv=0.2 * (pair + 1)))
        cards += [
            CardScene(
                index,
                busy=0.9 - 0.2 * pair + 0.02 * rank,
                pulse=0.15,
                owner=name,
                tp_rank=str(rank),
                memory=70.0 + pair,
                foreign=1.5 if pair == 2 else 0.0,
                power=500 - 40 * pair,
                limit=700,
                temperature=62 - pair,
                link_rate=8e9,
                name=name_of_card,
                total=80.0,
            )
            for rank, index in enumerate(pair_of_cards)
        ]
    engines.append(EngineScene("gpu-node-1:8003", tensor=1, visible=(6,), up=False))
    cards.append(CardScene(6, owner="gpu-node-1:8003", memory=12.0, name=name_of_card, total=80.0, process="VLLM::EngineCore"))
    cards.append(CardScene(7, up=False, down_reason="gpu_lost", name=name_of_card))
    lost = {
        "check": "cards",
        "title": "All cards answer",
        "status": "fail",
        "state": "problem",
        "subject": "gpu-node-1",
        "gpu": "7",
        "uuid": cards[-1].uuid,
        "sentence": "GPU 7 is lost",
        "cause": "the driver has lost it (gpu_lost)",
        "fix": "dmesg | grep -i xid, then reset the card or drain the node",
        "evidence": {"expected": "8", "answering": "7"},
    }
    return NodeScene(tuple(cards), tuple(engines), checks=(lost, *_all_pass(engines[0].engine)), verdict="problem", summary="GPU 7 is lost")


def hostile(scene: NodeScene, text: str) -> NodeScene:
    """The same node with `text` wherever a label can hold what somebody else chose."""
    engine = replace(scene.engines[0], engine=text, deployment=text, model=text, version=text)
    cards = tuple(replace(card, owner=text if card.owner else "", name=text, process=text) for card in scene.cards)
    words = dict.fromkeys(("check", "title", "subject", "sentence", "cause", "fix"), text)
    check = {**words, "status": "fail", "state": "problem", "evidence": {text: text}}
    return replace(scene, cards=cards, engines=(engine,), node=text, driver=text, checks=(check,), verdict="problem", summary=text)


def _all_pass(engine: str) -> tuple[dict[str, Any], ...]:
    subject = f"Qwen2.5-32B-Instruct on {engine} TP=2"
    lines = (
        ("cards", "All cards answer", "2 of 2 cards answer", ""),
        ("idle_unowned_card", "No card idles outside every engine while an engine is loaded", "every card is an engine's", ""),
        ("visible_devices", "CUDA_VISIBLE_DEVICES names all cards meant for the engine", "the engine can see both cards", engine),
        ("parallel_size", "Tensor-parallel size equals the cards in use", "2 ranks on 2 cards", engine),
        ("memory_balance", "Memory is balanced over the ranks", "87 % and 87 %", engine),
    )
    return tuple(
        {
            "check": check,
            "title": title,
            "status": "pass",
            "state": "ok",
            "subject": subject if about else "gpu-node-1",
            "engine": about,
            "sentence": sentence,
        }
        for check, title, sentence, about in lines
    )


@dataclass
class FakeExporter:
    """Answers like an exporter, for whatever takes a fetch function: the scene, at the second of a clock that the test moves."""

    scene: NodeScene
    now: float = 1_790_000_000.0
    born: float = 1_790_000_000.0
    error: Exception | None = None
    urls: list[str] = field(default_factory=list)

    async def __call__(self, url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
        """poise.history.fetch.fetch."""
        self.urls.append(url)
        if self.error is not None:
            raise self.error
        return self.scene.checks_document(self.now) if url.endswith("/checks") else self.scene.metrics(self.now - self.born)

    def clock(self) -> float:
        """Wall and monotonic clock at once."""
        return self.now
