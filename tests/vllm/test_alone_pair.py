"""Two servers on a card each, one of them under load: nothing to warn of. And what of their secrets can be seen: nothing.

Its name sorts before the other files: it starts a deployment of its own, and there is to be one at a time.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed import shapes
from poise.testbed.deployment import Deployment, step_names

from tests.monitoring import monitoring
from tests.poise_up import get, up, wait_for
from tests.vllm.deploying import progress_of, read, request_for, samples
from tests.vllm.watching import PATIENCE, exporter_page, loaded, when

FACTOR = 1 / 20
API_KEY = "sk-planted-0123456789abcdef"
HF_TOKEN = "hf_PlantedInEnvironment"
HF_TOKEN_ARGUMENT = "hf_PlantedInArguments"
SECRETS = (API_KEY, HF_TOKEN, HF_TOKEN_ARGUMENT)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    shape = shapes.load("pair")
    first, second = shape.engines
    planted = dataclasses.replace(first, arguments=("--hf-token", HF_TOKEN_ARGUMENT))
    wanted = dataclasses.replace(
        request_for("pair", tmp_path_factory.mktemp("pair") / "state"), shape=dataclasses.replace(shape, engines=(planted, second))
    )
    environ = dict(os.environ) | {"VLLM_API_KEY": API_KEY, "HF_TOKEN": HF_TOKEN}
    deployment = Deployment.up(wanted, progress_of(shape.title, step_names(wanted, simulated=True)), environ=environ)
    try:
        yield deployment
    finally:
        deployment.down()


def test_unequal_load_on_two_servers_of_a_card_each_raises_nothing(pair: Deployment, tmp_path: Path) -> None:
    address = (pair.plan.exporter_url or "").removeprefix("http://")
    with monitoring(tmp_path, {"node1": address}, factor=FACTOR) as watch, loaded(pair, engine="first", key=API_KEY):

        def unequal() -> bool:
            busy = {labels["gpu"]: value for labels, value in watch.query("rate(poise_gpu_busy_seconds_total[15s])")}
            return busy.get("0", 0.0) > 0.8 and busy.get("1", 1.0) < 0.1

        watch.wait_until(unequal, PATIENCE, "the first card busy, the second idle")
        # Ten scaled minutes of `for`, and the window before them, have to pass before silence means anything.
        began, _ = when(pair, lambda page: page["time"], "a checklist")
        page, _ = when(pair, lambda page: page if page["time"] > began + 45 else None, "45 s of unequal load")
        assert watch.ever_fired() == {"Watchdog"}
        assert page["verdict"]["state"] == "ok"
        assert [line["line"] for line in page["checks"] if line["status"] == "fail"] == []
        assert watch.rule_errors() == {}
    engines = {labels["gpu"]: labels["use"] for labels, _ in samples(exporter_page(pair), "poise_engine_gpu_info")}
    assert engines == {"0": "own", "1": "own"}


def test_planted_secrets_are_in_no_series_page_log_or_file(pair: Deployment, tmp_path: Path) -> None:
    server = pair.record(pair.engine("first").name)
    assert server is not None
    assert HF_TOKEN_ARGUMENT in Path(f"/proc/{server.pid}/cmdline").read_text()
    assert API_KEY in Path(f"/proc/{server.pid}/environ").read_text(), "planted, or this test looks for nothing"
    url = pair.plan.exporter_url
    exposed: dict[str, str] = {path: read(f"{url}{path}") for path in ("/metrics", "/checks", "/")}
    with up("--no-exporter", "--exporter", url or "", "--scrape-interval", "1", log=tmp_path / "up.log") as (_process, page):
        ports = [f":{pair.engine(name).port}" for name in ("first", "second")]
        wait_for(lambda: all(port in get(f"{page}/")[1] for port in ports), "both engines on the page")
        exposed |= {f"page {path}": get(f"{page}{path}")[1] for path in ("/", "/fragment", "/api/poise/v1/overview", "/metrics")}
    exposed["page log"] = (tmp_path / "up.log").read_text()
    # What vLLM writes into its own log is vLLM's. The plan holds arguments; the command line refuses keys among them, this test does not.
    for path in pair.layout.root.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 4 << 20 and path not in _not_ours(pair):
            exposed[str(path)] = path.read_text(errors="replace")
    found = {(name, secret) for name, text in exposed.items() for secret in SECRETS if secret in text}
    assert found == set()
    plan = pair.layout.plan.read_text()
    assert [secret for secret in SECRETS if secret in plan] == [HF_TOKEN_ARGUMENT]


def _not_ours(pair: Deployment) -> set[Path]:
    return {pair.layout.plan, *(pair.layout.log(engine.name) for engine in pair.plan.engines)}
