"""A `poise up` that evaluates the shipped rules at the same pace as the Prometheus of `monitoring`, with an Alertmanager of its own."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

from poise.alerts import shipped
from poise.alerts.durations import format_duration
from poise.alerts.rules import load

from tests.monitoring import KEPT_SECONDS, Receiver, alertmanager, receiving
from tests.poise_up import up

#: Seconds between evaluations, as Prometheus has them in `monitoring`.
INTERVAL = 1.0


def instance_of(address: str) -> str:
    """What the page calls the exporter of its own node, which it scrapes at HOST:PORT: the name of the host and the port."""
    return f"{socket.gethostname()}:{address.rpartition(':')[2]}"


@contextlib.contextmanager
def evaluating(folder: Path, address: str, *, factor: float, more: Sequence[str] = ()) -> Iterator[tuple[str, Receiver]]:
    """The page's URL, and what its Alertmanager tells, until the block ends. `address`: the exporter of the node; `more`: further words."""
    folder.mkdir()
    settings = folder / "poise.toml"
    long = {rule.name for path in shipped.rule_files() for rule in load(path).alerts if rule.keep_firing_for > KEPT_SECONDS}
    kept = [f'"{name}.keep_firing_for" = "{format_duration(KEPT_SECONDS)}"' for name in sorted(long)]
    settings.write_text("\n".join(["[alerts.thresholds]", *kept, ""]))
    pace = ("--alerts-time-scale", f"{factor}", "--alerts-interval", f"{INTERVAL / factor:.0f}s", "--scrape-interval", "1")
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(receiving())
        routed = stack.enter_context(alertmanager(folder, told))
        where = ("--no-exporter", "--exporter", f"http://{address}", "--config", str(settings), "--alertmanager", routed.url)
        _, url = stack.enter_context(up(*where, *pace, *more, log=folder / "up.log"))
        yield url, told
