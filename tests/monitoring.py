"""A real Prometheus and a real Alertmanager on free ports, and a webhook receiver that a test can wait on.

    with monitoring(tmp_path, {"n1": "127.0.0.1:9747"}, factor=1 / 30) as watch:
        alert = watch.receiver.wait_for(lambda alert: alert.name == "EngineDown", timeout=60)

Rules are the shipped ones with their time scaled, the Alertmanager configuration the shipped one with its receivers at the webhook. Knows
how to start, ask and end these programs, and nothing of what the alerts mean.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml
from poise.alerts import routing, shipped, thresholds
from poise.alerts.durations import format_duration
from poise.alerts.rules import RuleFile, load, render
from poise.alerts.scale import scale_file

from tests.http_handler import answering
from tests.needs import needs

#: Seconds that a program may take until it answers, on a machine that is out of breath; it takes half a second.
START_DEADLINE = 60.0
#: Seconds that a program may take to leave after SIGTERM before it is killed.
STOP_DEADLINE = 20.0
#: The longest `keep_firing_for`, before it is scaled.
KEPT_SECONDS = 600.0
#: Alertmanager's times are shortened so far that what it adds to the rules' times is a second or two.
ROUTING_FACTOR = 1 / 300


# ---------------------------------------------------------------------------------------------------------------- receiver
@dataclass(frozen=True)
class Alert:
    """One alert of one notification. `receiver` is the last part of the URL that it came to, `grouped_by` the group's labels."""

    receiver: str
    status: str  # firing, resolved
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    grouped_by: Mapping[str, str]

    @property
    def name(self) -> str:
        """Which alert it is."""
        return self.labels["alertname"]

    @property
    def firing(self) -> bool:
        """Whether it fires or has ended."""
        return self.status == "firing"


@dataclass
class Receiver:
    """Takes Alertmanager's webhooks and keeps every alert in the order of arrival."""

    port: int = 0
    _alerts: list[Alert] = field(default_factory=list)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    @property
    def url(self) -> str:
        """Where webhooks go; one path per receiver below it."""
        return f"http://127.0.0.1:{self.port}"

    def alerts(self, **labels: str) -> list[Alert]:
        """What has come so far and carries these labels."""
        with self._arrived:
            return [alert for alert in self._alerts if labels.items() <= alert.labels.items()]

    def wait_for(self, predicate: Callable[[Alert], bool], timeout: float) -> Alert:
        """The first alert for which the predicate holds, come or still to come. Fails with what did come when there is none in time."""
        deadline, looked_at = time.monotonic() + timeout, 0
        with self._arrived:
            while True:
                for alert in self._alerts[looked_at:]:
                    if predicate(alert):
                        return alert
                looked_at = len(self._alerts)
                if not self._arrived.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                    raise AssertionError(f"no such alert within {timeout:.0f} s; came: {self._summary()}")

    def take(self, receiver: str, notification: Mapping[str, Any]) -> None:
        """Keep the alerts of one notification (Alertmanager's webhook, version 4)."""
        with self._arrived:
            for alert in notification["alerts"]:
                self._alerts.append(Alert(receiver, alert["status"], alert["labels"], alert["annotations"], notification["groupLabels"]))
            self._arrived.notify_all()

    def _summary(self) -> str:
        seen = dict.fromkeys(f"{a.name}[{a.labels.get('instance', '')}] {a.status} at {a.receiver}" for a in self._alerts)
        return "; ".join(seen) or "nothing"


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port until the block ends."""
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(self.path.rsplit("/", 1)[-1], json.loads(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the Watchdog comes every second."""

    with answering(Handler) as receiver.port:
        yield receiver


# ---------------------------------------------------------------------------------------------------------------- programs
@dataclass(frozen=True)
class Server:
    """A program that answers HTTP at `url` and writes what it has to say to `log`."""

    name: str
    url: str
    log: Path

    def get(self, path: str, **parameters: str) -> Any:
        """The JSON that it answers. Raises AssertionError with its words when it refuses."""
        query = f"?{urllib.parse.urlencode(parameters)}" if parameters else ""
        try:
            with urllib.request.urlopen(f"{self.url}{path}{query}", timeout=START_DEADLINE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{self.name} refuses {path}{query}: {error.read().decode()}") from error


def free_port() -> int:
    """A port of this host that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def started(name: str, command: Sequence[str], url: str, ready: str, log: Path) -> Iterator[Server]:
    """Run a server until the block ends. Fails with the end of its log when it leaves or does not answer `ready` in time."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=log.parent)
    try:
        _wait_ready(name, process, f"{url}{ready}", log)
        yield Server(name, url, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_ready(name: str, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_DEADLINE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if process.poll() is not None:
                raise AssertionError(f"{name} left with code {process.returncode}; {_tail(log)}") from error
            if time.monotonic() > deadline:
                raise AssertionError(f"{name} does not answer {url} within {START_DEADLINE:.0f} s ({error}); {_tail(log)}") from error
            time.sleep(0.05)  # polling a port that another process opens: there is no event to await


def _tail(log: Path, lines: int = 20) -> str:
    return "its log ends:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


@contextlib.contextmanager
def alertmanager(folder: Path, receiver: Receiver, routing_factor: float = ROUTING_FACTOR) -> Iterator[Server]:
    """An Alertmanager with the shipped configuration whose webhooks go to the receiver."""
    program = needs("alertmanager")
    configuration = folder / "alertmanager.yml"
    configuration.write_text(routing.adapt(routing.shipped_configuration(), webhook_base=receiver.url, factor=routing_factor))
    port = free_port()
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.path={folder / 'alertmanager'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with started("alertmanager", command, f"http://127.0.0.1:{port}", "/-/ready", folder / "alertmanager.log") as server:
        yield server


def shortly_kept(files: Iterable[RuleFile]) -> Sequence[RuleFile]:
    """The rules without alerts that are kept for longer than KEPT_SECONDS: an XID that is told for an hour would be there in all later cases."""
    found = tuple(files)
    long = {rule.name for file in found for rule in file.alerts if rule.keep_firing_for > KEPT_SECONDS}
    return thresholds.change(found, {f"{name}.keep_firing_for": format_duration(KEPT_SECONDS) for name in long})


@contextlib.contextmanager
def prometheus(folder: Path, targets: Mapping[str, str], *, factor: float, alertmanager_url: str | None = None) -> Iterator[Server]:
    """A Prometheus that scrapes the targets (instance → host:port) every second and evaluates the shipped rules, scaled."""
    program = needs("prometheus")
    rules = folder / "rules"
    rules.mkdir()
    for path, file in zip(shipped.rule_files(), shortly_kept(map(load, shipped.rule_files())), strict=True):
        (rules / path.name).write_text(render(scale_file(file, factor)), encoding="utf-8")
    configuration = folder / "prometheus.yml"
    configuration.write_text(yaml.safe_dump(_prometheus_configuration(rules, targets, alertmanager_url)))
    port = free_port()
    command = [
        program,
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with started("prometheus", command, f"http://127.0.0.1:{port}", "/-/ready", folder / "prometheus.log") as server:
        yield server


def _prometheus_configuration(rules: Path, targets: Mapping[str, str], alertmanager_url: str | None) -> dict[str, object]:
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [f"{rules}/*.yml"],
        "scrape_configs": [
            {
                "job_name": "poise",
                "static_configs": [{"targets": [address], "labels": {"instance": name}} for name, address in targets.items()],
            }
        ],
        "alerting": {
            "alertmanagers": [{"static_configs": [{"targets": [alertmanager_url.removeprefix("http://")]}]}] if alertmanager_url else []
        },
    }


# ------------------------------------------------------------------------------------------------------------------ the path
@dataclass(frozen=True)
class Monitoring:
    """The whole way of an alert: scraped, evaluated, routed, received."""

    prometheus: Server
    alertmanager: Server
    receiver: Receiver

    def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """The labels and values of an instant query."""
        result = self.prometheus.get("/api/v1/query", query=expression)["data"]["result"]
        return [(sample["metric"], float(sample["value"][1])) for sample in result]

    def ever_fired(self, **labels: str) -> set[str]:
        """The alerts with these labels that have fired at any time since the start."""
        matchers = ",".join(f"{name}={json.dumps(value)}" for name, value in {**labels, "alertstate": "firing"}.items())
        return {sample["alertname"] for sample, _ in self.query(f"count_over_time(ALERTS{{{matchers}}}[1d])")}

    def rule_errors(self) -> dict[str, str]:
        """Rules whose last evaluation failed, with Prometheus' words."""
        groups = self.prometheus.get("/api/v1/rules")["data"]["groups"]
        return {rule["name"]: rule["lastError"] for group in groups for rule in group["rules"] if rule.get("lastError")}

    def wait_until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Ask again until the condition holds. Fails with `what` was awaited when it does not in time."""
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:.0f} s: {what}")
            time.sleep(0.2)  # the state of another process, which offers no event

    def inhibited(self, **labels: str) -> set[str]:
        """The alerts with these labels that Alertmanager holds back because another explains them."""
        alerts = self.alertmanager.get("/api/v2/alerts", active="true", inhibited="true")
        return {
            alert["labels"]["alertname"] for alert in alerts if alert["status"]["inhibitedBy"] and labels.items() <= alert["labels"].items()
        }


@contextlib.contextmanager
def monitoring(folder: Path, targets: Mapping[str, str], *, factor: float) -> Iterator[Monitoring]:
    """All of it, until the block ends. `targets`: instance → host:port; `factor`: what rules' times are multiplied by."""
    with (
        receiving() as receiver,
        alertmanager(folder, receiver) as routed,
        prometheus(folder, targets, factor=factor, alertmanager_url=routed.url) as evaluated,
    ):
        yield Monitoring(evaluated, routed, receiver)
