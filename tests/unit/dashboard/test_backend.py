"""History and alerts of `poise up`, opened together: what a scrape becomes, what is asked, what goes wrong at the start."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from poise.alerts.settings import AlertSettings
from poise.dashboard.app import create_app
from poise.dashboard.backend import Backend
from poise.dashboard.live import Live
from poise.exporter.settings import SettingsError
from poise.history.page_token import PageToken
from poise.history.promql.labels import labels
from poise.history.scrape import Scrape
from poise.history.settings import HistorySettings
from poise.history.targets import Target
from poise.history.text_format import series
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

RULES = "groups: [{name: g, rules: [{alert: Hot, expr: temperature > 80, for: 0s, labels: {severity: warning}, annotations: {summary: 'GPU {{ $labels.gpu }}'}}]}]"
LOCAL = Target("node:9747", "http://127.0.0.1:9747/metrics", labels({"job": "poise", "instance": "node:9747"}))
START = 1_800_000_000.0


class Opened:
    """A backend with rules of its own, its clock, and an application over it."""

    def __init__(
        self, folder: Path, path: Path | None, *, mode: str = "builtin", rules: str = RULES, starts_exporter: bool = False
    ) -> None:
        self.now = START
        self.rules = folder / "own.yml"
        self.rules.write_text(rules)
        self.settings = AlertSettings(mode=mode, rules=(str(self.rules),))
        self.backend = Backend(
            HistorySettings(),
            self.settings,
            local=LOCAL,
            path=path,
            page="http://page:9748",
            wall_clock=lambda: self.now,
            clock=lambda: self.now - START,
            starts_exporter=starts_exporter,
        )

    def scrape(self, value: float) -> None:
        self.backend.take(Scrape(self.now, 0.01, {series("temperature", {"gpu": "0"}): value}))
        assert self.backend._pending is not None
        self.backend._pending.result(30)

    def client(self) -> TestClient:
        async def nothing(url: str, *, timeout: float, limit: int, accept: str = "*/*") -> bytes:
            raise AssertionError(url)

        live = Live("http://127.0.0.1:9747", fetch=nothing, wall_clock=lambda: self.now, clock=lambda: self.now)
        return TestClient(create_app(live, routers=self.backend.routers(), alert_page=self.backend.alert_page))

    def evaluate(self) -> None:
        assert self.backend.evaluator is not None
        self.backend.evaluator.run_due()


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(tmp_path, tmp_path / "history.db")
    yield made
    asyncio.run(made.backend.querier.close())
    made.backend.close()


def test_a_scrape_is_kept_judged_and_asked_for(opened: Opened) -> None:
    for _ in range(8):
        opened.now += 5
        opened.scrape(90.0)
        opened.evaluate()
    client = opened.client()
    found = client.get("/api/v1/query", params={"query": "temperature"}).json()["data"]["result"]
    assert [(one["metric"]["instance"], one["value"][1]) for one in found] == [("node:9747", "90")]
    alerts = client.get("/api/v1/alerts").json()["data"]["alerts"]
    assert ("Hot", "firing", "GPU 0") in [(one["labels"]["alertname"], one["state"], one["annotations"].get("summary")) for one in alerts]
    explained = client.get("/api/poise/v1/alerts/explain/Hot", params={"gpu": "0"}).json()
    assert (explained["rules"][0]["state"], explained["rules"][0]["clause"]["rows"][0]["value"]) == ("firing", 90.0)
    assert client.get("/api/poise/v1/alerts/explain/Hot", params={"time": "soon"}).status_code == 400
    changes = client.get("/api/poise/v1/alerts/history", params={"name": "Hot"}).json()["changes"]
    assert [change["after"] for change in changes][-1] == "firing"
    assert client.get("/api/poise/v1/alerts/history", params={"start": "x"}).status_code == 400
    (target,) = client.get("/api/v1/targets").json()["data"]["activeTargets"]
    assert (target["labels"]["instance"], target["health"]) == ("node:9747", "up")


def test_how_all_of_it_does_is_on_the_page_of_the_process(opened: Opened) -> None:
    opened.now += 30
    opened.scrape(90.0)
    opened.evaluate()
    registry = CollectorRegistry()
    opened.backend.register(registry)
    page = generate_latest(registry).decode()
    assert 'poise_history_scrapes_total{instance="node:9747",job="poise",result="success"} 1.0' in page
    assert "poise_evaluator_rule_evaluations_total" in page
    assert 'poise_evaluator_alerts{state="firing"}' in page
    assert 'poise_evaluator_rules_lacking{lack="input_missing"}' in page
    assert "poise_notifier_alerts_waiting" in page


def test_a_second_process_keeps_its_history_in_memory_and_says_so(opened: Opened, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    second = Opened(tmp_path, tmp_path / "history.db")
    second.scrape(50.0)
    second.backend.close()
    assert "in use by process" in caplog.text
    assert "kept in memory only" in caplog.text


def test_rules_that_cannot_be_read_are_refused_at_the_start_and_files_are_given_free(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no `expr`"):
        Opened(tmp_path, tmp_path / "history.db", rules="groups: [{name: g, rules: [{alert: Hot}]}]")
    with pytest.raises(SettingsError, match=r"own\.yml"):
        Opened(tmp_path, tmp_path / "history.db", rules="groups: 3")
    made = Opened(tmp_path, tmp_path / "history.db")
    made.backend.close()


def test_a_reload_takes_new_rules_and_keeps_the_old_ones_when_they_are_wrong(opened: Opened) -> None:
    opened.rules.write_text(RULES.replace("Hot", "Warm"))
    assert asyncio.run(opened.backend.reload(HistorySettings(), opened.settings)) == ()
    assert opened.client().get("/api/poise/v1/alerts/explain/Warm").status_code == 200
    before = opened.backend._alerts
    for wrong in (b"groups: 3", b"\xff\xfe", b"[" * 3_000):
        opened.rules.write_bytes(wrong)
        with pytest.raises(SettingsError, match=r"own\.yml"):
            asyncio.run(opened.backend.reload(HistorySettings(), replace(opened.settings, without=("EngineDown",))))
        assert opened.backend._alerts == before
    assert opened.client().get("/api/poise/v1/alerts/explain/Warm").status_code == 200


def test_without_an_evaluator_the_history_is_kept_all_the_same(tmp_path: Path) -> None:
    made = Opened(tmp_path, None, mode="external")
    made.scrape(50.0)
    assert made.backend.evaluator is None
    assert made.client().get("/api/v1/rules").json()["data"]["groups"] == []
    assert made.client().get("/api/poise/v1/alerts/history").json()["changes"] == []
    made.backend.close()


def test_it_runs_and_ends_at_once_when_it_is_cancelled(opened: Opened) -> None:
    async def main() -> None:
        task = asyncio.create_task(opened.backend.run())
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, 10)

    asyncio.run(main())


def test_numbers_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    made = Opened(tmp_path, None, rules="groups: [{name: g, rules: [{alert: Odd, expr: 'temperature == Inf'}]}]")
    made.scrape(float("inf"))
    text = made.client().get("/api/poise/v1/alerts/explain/Odd").text
    assert '"+Inf"' in text
    json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    made.backend.close()


def test_the_page_that_notifications_link_to_says_why_and_shows_the_runbook(opened: Opened) -> None:
    opened.rules.write_text(RULES.replace("expr: temperature > 80", """expr: 'temperature{note!="<b>"} > 80'"""))
    assert asyncio.run(opened.backend.reload(HistorySettings(), opened.settings)) == ()
    for _ in range(8):
        opened.now += 5
        opened.scrape(90.0)
        opened.evaluate()
    client = opened.client()
    page = client.get("/alerts/Hot").text
    assert "firing, fires at once." in page
    assert "GPU 0" in page
    assert "90 &gt; 80" in page
    assert "It fires because `temperature{note!=&#34;&lt;b&gt;&#34;} &gt; 80` holds (instance=node:9747, gpu=0: 90)." in page
    assert "<b>" not in page
    ours = client.get("/alerts/EngineDown", params={"engine": "e"}).text
    assert "input missing" in ours
    assert "<h2>Meaning</h2>" in ours
    assert client.get("/alerts/NoSuch").status_code == 404


def test_a_history_that_cannot_be_used_does_not_cost_what_the_evaluator_remembers(tmp_path: Path) -> None:
    first = Opened(tmp_path, tmp_path / "history.db")
    for _ in range(8):
        first.now += 5
        first.scrape(90.0)
        first.evaluate()
    asyncio.run(first.backend.querier.close())
    first.backend.close()
    (tmp_path / "history.db").unlink()
    (tmp_path / "history.db").mkdir()  # nobody can open that as a file
    second = Opened(tmp_path, tmp_path / "history.db")
    assert [one["labels"]["alertname"] for one in second.client().get("/api/v1/alerts").json()["data"]["alerts"]].count("Hot") == 1
    second.backend.close()


def test_a_reload_says_what_needs_a_restart_and_takes_nothing_of_it(opened: Opened) -> None:
    wanted = replace(opened.settings, mode="off", external_labels={"cluster": "x"}, without=("EngineDown",), time_scale=0.5)
    left = asyncio.run(opened.backend.reload(HistorySettings(retention=7200.0), wanted))
    assert left == ("[alerts] mode", "[alerts] external_labels", "[alerts] time_scale", "[history] retention")
    assert opened.backend._alerts == replace(opened.settings, without=("EngineDown",))


def test_a_rule_file_that_is_a_pipe_holds_up_nothing(opened: Opened) -> None:
    opened.rules.unlink()
    os.mkfifo(opened.rules)
    with pytest.raises(SettingsError, match="not an ordinary file"):
        asyncio.run(opened.backend.reload(HistorySettings(), opened.settings))


def test_a_start_that_fails_leaves_no_token_and_names_flag_and_file(tmp_path: Path) -> None:
    def token() -> PageToken:
        raise AssertionError("a token was made")

    settings = AlertSettings(rules=("none.yml",))
    with pytest.raises(SettingsError, match=r"--rules=none\.yml: cannot be read: No such file"):
        Backend(HistorySettings(), settings, local=LOCAL, path=None, page="http://page:9748", token=token)
    with pytest.raises(SettingsError, match="EngineDwn: there is no such alert; did you mean 'EngineDown'"):
        Backend(HistorySettings(), AlertSettings(without=("EngineDwn",)), local=LOCAL, path=None, page="http://page:9748", token=token)


def test_every_series_of_evaluator_and_notifier_is_documented(opened: Opened) -> None:
    registry = CollectorRegistry()
    opened.backend.register(registry)
    page = (Path(__file__).resolve().parents[3] / "docs" / "alerting.md").read_text(encoding="utf-8")
    names = {line.split()[2] for line in generate_latest(registry).decode().splitlines() if line.startswith("# TYPE ")}
    ours = {name for name in names if name.startswith(("poise_evaluator_", "poise_notifier_"))}
    assert len(ours) == 14
    assert {name for name in ours if f"`{name}`" not in page} == set()


class Starting(Opened):
    """A backend whose exporter is started with it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, None, rules=RULES.replace("temperature > 80", "absent(temperature)"), starts_exporter=True)

    def look(self, scrape: Scrape) -> None:
        self.backend.take(scrape)
        assert self.backend._pending is not None
        self.backend._pending.result(30)

    def hot(self) -> list[str]:
        return [one["state"] for one in self.client().get("/api/v1/alerts").json()["data"]["alerts"] if one["labels"]["alertname"] == "Hot"]


def test_nothing_is_judged_before_an_exporter_that_is_being_started_shows_what_there_is(tmp_path: Path) -> None:
    made = Starting(tmp_path)
    evaluator = made.backend.evaluator
    assert evaluator is not None
    for second in range(60):
        made.now += 1
        found = {series("temperature", {"gpu": "0"}): 50.0} if second >= 28 else {}  # its page comes after 20 s, its engines 8 s later
        made.look(Scrape(made.now, 0.01, found, error="" if second >= 20 else "connection refused"))
        made.evaluate()
        assert (evaluator.counts.evaluations == 0) or second >= 30
    assert evaluator.counts.evaluations > 0
    assert made.hot() == []
    made.backend.close()


def test_an_exporter_that_never_answers_holds_up_the_rules_for_its_time_only(tmp_path: Path) -> None:
    made = Starting(tmp_path)
    for _ in range(75):
        made.now += 1
        made.look(Scrape(made.now, 0.01, error="connection refused"))
        made.evaluate()
    assert made.hot() == ["firing"]
    made.backend.close()


def test_what_this_process_lacks_is_no_scrape_of_its_exporter(opened: Opened) -> None:
    opened.now += 5
    opened.scrape(90.0)
    opened.now += 5
    opened.backend.take(Scrape(opened.now, 0.01, error="no descriptors", ours=True))
    (status,) = opened.backend.status()
    assert (status.health, status.failures, status.not_kept, status.known_at) == ("unknown", 0, 1, opened.now - 5)
    found = opened.client().get("/api/v1/query", params={"query": "temperature"}).json()["data"]["result"]
    assert [one["value"][1] for one in found] == ["90"], "it is not stale"


def test_a_store_that_fails_costs_the_scrape_and_is_told(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("odd")

    with monkeypatch.context() as patched:
        patched.setattr(opened.backend.store, "append", broken)
        opened.backend.take(Scrape(opened.now, 0.01, {}))
        assert opened.backend._pending is not None
        assert isinstance(opened.backend._pending.exception(30), KeyError)
    opened.now += 5
    opened.scrape(50.0)
    assert "could not be kept" in caplog.text
    (status,) = opened.backend.status()
    assert (status.successes, status.not_kept) == (2, 1)


def test_it_ends_without_a_new_thread_and_each_step_of_the_end_is_taken(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def no_thread(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    async def broken() -> None:
        ended.append("querier")
        raise RuntimeError("broken")

    async def main() -> None:
        monkeypatch.setattr(opened.backend.querier, "close", broken)
        monkeypatch.setattr(opened.backend, "close", lambda: ended.append("files"))
        task = asyncio.create_task(opened.backend.run())
        await asyncio.sleep(0.05)
        monkeypatch.setattr(threading, "_start_new_thread", no_thread)
        task.cancel()
        await asyncio.wait([task], timeout=20)
        assert isinstance(task.exception(), RuntimeError)

    asyncio.run(main())
    monkeypatch.undo()
    assert ended == ["querier", "files"]
    assert not [thread for thread in threading.enumerate() if thread.name == "poise-evaluator"]
