"""A metrics page in the contract's words whose values a test changes while it is scraped: counters grow by the clock, gauges are set.

    with served(ContractPage()) as page:
        page.gauge(m.GPU_UP, 1, gpu="0", uuid="GPU-a")
        page.counter(m.GPU_BUSY_SECONDS, 0.97, gpu="0", uuid="GPU-a")   # 0.97 s per second from now on
        … page.address …

It can lose scrapes (`page.lose(n)`), as networks do. It knows no rule.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from poise.exporter import metrics as m
from poise.exporter.metrics import Metric

from tests.http_handler import answering

Key = tuple[str, tuple[tuple[str, str], ...]]


@dataclass
class _Growing:
    """A counter: `value` at `since` (monotonic seconds), and what it gains per second."""

    value: float
    per_second: float
    since: float

    def now(self, moment: float) -> float:
        return self.value + self.per_second * (moment - self.since)


@dataclass
class ContractPage:
    """The page of one node. Methods may be called from any thread."""

    port: int = 0
    _gauges: dict[Key, float] = field(default_factory=dict)
    _counters: dict[Key, _Growing] = field(default_factory=dict)
    _losing: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        """host:port while it is served."""
        return f"127.0.0.1:{self.port}"

    def gauge(self, metric: Metric, value: float, **labels: str) -> None:
        """Set a series."""
        with self._lock:
            self._gauges[_key(metric, labels)] = value

    def counter(self, metric: Metric, per_second: float, **labels: str) -> None:
        """Let a series grow at this rate from now on, from where it is."""
        key, moment = _key(metric, labels), time.monotonic()
        with self._lock:
            grown = self._counters[key].now(moment) if key in self._counters else 0.0
            self._counters[key] = _Growing(grown, per_second, moment)

    def clock(self, metric: Metric, **labels: str) -> None:
        """Let a series tell Unix time."""
        with self._lock:
            self._counters[_key(metric, labels)] = _Growing(time.time(), 1.0, time.monotonic())

    def drop(self, *metrics: Metric, **labels: str) -> None:
        """Take away the series of these metrics (all metrics when none is named) that carry these labels."""
        names, wanted = {metric.name for metric in metrics}, set(labels.items())

        def stays(key: Key) -> bool:
            return bool(names and key[0] not in names) or not wanted <= set(key[1])

        with self._lock:
            self._gauges = {key: value for key, value in self._gauges.items() if stays(key)}
            self._counters = {key: value for key, value in self._counters.items() if stays(key)}

    def lose(self, scrapes: int) -> None:
        """Answer the next scrapes with an error."""
        with self._lock:
            self._losing = scrapes

    def render(self) -> str | None:
        """The page now; None for a scrape that is lost."""
        moment = time.monotonic()
        with self._lock:
            if self._losing:
                self._losing -= 1
                return None
            values = self._gauges | {key: counter.now(moment) for key, counter in self._counters.items()}
        return "".join(_line(name, labels, value) for (name, labels), value in values.items())

    # --------------------------------------------------------------------------------------------------------- whole things
    def node(self, name: str, *, simulated: bool = False, cards: int = 2) -> None:
        """The node's own series, with all its cards there."""
        self.gauge(m.NODE_INFO, 1, node=name, driver="550.54", nvml="12.550", cuda="12.4", kernel="6.1", simulated=str(simulated).lower())
        self.gauge(m.NODE_GPUS_EXPECTED, cards)
        self.gauge(m.NODE_GPUS_VISIBLE, cards)

    def card(self, index: int, busy: float, *, links: int = 0) -> None:
        """A card that answers, busy this share of the time, with links that are up."""
        labels = {"gpu": str(index), "uuid": f"GPU-{index}"}
        self.gauge(m.GPU_UP, 1, **labels)
        self.counter(m.GPU_BUSY_SECONDS, busy, **labels)
        self.clock(m.GPU_LAST_SAMPLE, **labels)
        self.gauge(m.GPU_CLOCK, 1.98e9, **labels, clock="sm")
        for link in range(links):
            self.gauge(m.GPU_NVLINK_UP, 1, **labels, link=str(link))

    def engine(self, name: str, *, tokens: float, age: float, ranks: int, deployment: str = "", discovered: str = "argv") -> None:
        """An engine that answers. `tokens` per second, `age` in seconds, `ranks` on this node, each with its card."""
        labels = {"engine": name, "deployment": deployment or name, "role": "mixed"}
        nothing = dict.fromkeys(m.ENGINE_INFO.labels, "")
        self.gauge(m.ENGINE_INFO, 1, **labels, **(nothing | {"model": "qwen", "discovered": discovered}))
        self.gauge(m.ENGINE_UP, 1, **labels)
        self.gauge(m.ENGINE_PROCESS_UP, 1, **labels)
        self.gauge(m.ENGINE_START_TIME, time.time() - age, **labels)
        self.gauge(m.ENGINE_LOCAL_WORLD_SIZE, ranks, **labels)
        self.gauge(m.ENGINE_GPUS_USED, ranks, **labels)
        work = {"model": "qwen", "dp_rank": "0"}
        self.counter(m.ENGINE_PROMPT_TOKENS, tokens, **labels, **work)
        self.counter(m.ENGINE_GENERATION_TOKENS, 0, **labels, **work)
        self.gauge(m.ENGINE_REQUESTS_RUNNING, 4 if tokens else 0, **labels, **work)
        self.gauge(m.ENGINE_REQUESTS_WAITING, 0, **labels, **work)

    def sees(self, engine: str, index: int, use: str, *, tp_rank: str = "", deployment: str = "") -> None:
        """A card that the engine can see, in place of what it was to the engine before."""
        labels = {"engine": engine, "gpu": str(index)}
        self.drop(m.ENGINE_GPU_INFO, **labels)
        ranks = {"tp_rank": tp_rank, "pp_rank": "", "dp_rank": ""}
        identity = {"deployment": deployment or engine, "role": "mixed", "uuid": f"GPU-{index}", "cuda_index": str(index)}
        self.gauge(m.ENGINE_GPU_INFO, 1, **labels, **identity, **ranks, use=use)


def _key(metric: Metric, labels: dict[str, str]) -> Key:
    assert set(labels) == set(metric.label_names), f"{metric.name} has the labels {metric.label_names}, not {tuple(labels)}"
    return metric.name, tuple(labels.items())


def _line(name: str, labels: tuple[tuple[str, str], ...], value: float) -> str:
    written = ",".join(f'{label}="{text}"' for label, text in labels)
    return f"{name}{{{written}}} {value!r}\n"


@contextlib.contextmanager
def served(page: ContractPage) -> Iterator[ContractPage]:
    """Serve the page on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = page.render()
            body = (text or "lost").encode()
            self.send_response(200 if text is not None else 503)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: every scrape would be a line."""

    with answering(Handler) as page.port:
        yield page
