"""The routes about alerts that are on, silences and acknowledgements; with a real Alertmanager in tests/contract/test_silences.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi import FastAPI
from poise.alerts.evaluation.acknowledgements import Acknowledgements, identifier
from poise.alerts.evaluation.memory import Memory
from poise.alerts.notification.alertmanager import Place
from poise.alerts.notification.silencing import Silencing
from poise.dashboard import silences_api
from poise.dashboard.api_prometheus.sources import ActiveAlert, AlertingRule, Rule, RuleGroup
from poise.dashboard.changes import Gate
from poise.history.page_token import PageToken
from poise.history.promql.labels import labels
from starlette.testclient import TestClient

TOKEN = {"Authorization": f"Bearer {'t' * 43}"}
BUSY = {"alertname": "Busy", "gpu": "1", "severity": "warning"}
NOW = 1_800_000_000.0
ACKNOWLEDGE = {"labels": BUSY, "comment": "card is on its way", "by": "ann"}
#: Nothing listens on the discard port of this machine.
NOBODY = Place("http://127.0.0.1:9", timeout=5.0)


class Rules:
    """Rules of which one has the alerts that a test wants."""

    def __init__(self) -> None:
        self.alerts: list[ActiveAlert] = [ActiveAlert(BUSY, {"summary": "busy"}, "firing", NOW - 60, float("nan"))]

    def groups(self) -> Sequence[RuleGroup]:
        rule = Rule("Busy", "up > 1", {}, "ok", "", 0.0, NOW)
        return [RuleGroup("g", "f", 15.0, [rule, AlertingRule(rule, "firing", 0.0, 0.0, {}, self.alerts)])]


class World:
    def __init__(self, path: Path, *places: Place) -> None:
        self.now = NOW
        self.path = path
        self.places = places
        self.rules = Rules()
        self.begin()

    def begin(self) -> None:
        self.memory = Memory(self.path)
        known = Acknowledgements(self.memory.file, lambda: self.now)
        silencing = Silencing(self.places, clock=lambda: self.now)
        router = silences_api.create_router(
            self.rules,
            known,
            silencing,
            Gate(PageToken(None, "t" * 43)),
            mode="builtin",
            external_labels={"cluster": "c1"},
            now=lambda: self.now,
        )
        app = FastAPI()
        app.include_router(router)
        self.client = TestClient(app)

    def restart(self) -> None:
        self.memory.close()
        self.begin()

    @property
    def acknowledged(self) -> object:
        (alert,) = self.client.get("/api/poise/v1/alerts").json()["alerts"]
        return alert["acknowledged"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "alerts.db")


def test_every_alert_that_is_on_is_listed(world: World) -> None:
    assert world.client.get("/api/poise/v1/alerts").json() == {
        "time": NOW,
        "mode": "builtin",
        "alerts": [
            {
                "id": identifier(labels(BUSY)),
                "rule": "Busy",
                "state": "firing",
                "since": NOW - 60,
                "value": "NaN",
                "labels": BUSY,
                "annotations": {"summary": "busy"},
                "acknowledged": None,
                "silenced_by": [],
                "inhibited_by": [],
            }
        ],
        "alertmanagers": [],
    }


def test_an_acknowledgement_is_shown_as_local_over_a_restart_and_ends_by_hand(world: World) -> None:
    made = world.client.post("/api/poise/v1/acknowledgements", json=ACKNOWLEDGE, headers=TOKEN)
    wanted = {
        "by": "ann",
        "comment": "card is on its way",
        "until": NOW + 7200,
        "made": NOW,
        "local": "only on this page: it is evaluated and sent as before",
    }
    assert (made.status_code, made.json()) == (201, {"id": identifier(labels(BUSY)), "acknowledged": wanted, "kept_only": ""})
    assert world.acknowledged == wanted
    world.restart()
    assert world.acknowledged == wanted
    address = f"/api/poise/v1/acknowledgements/{made.json()['id']}"
    assert world.client.delete(address).status_code == 401
    assert world.client.delete(address, headers=TOKEN).status_code == 200
    assert world.acknowledged is None
    assert world.client.delete(address, headers=TOKEN).status_code == 404


def test_it_ends_at_its_moment_and_with_its_alert(world: World) -> None:
    world.client.post("/api/poise/v1/acknowledgements", json={**ACKNOWLEDGE, "duration": "1m"}, headers=TOKEN)
    world.now += 60
    assert world.acknowledged is None
    world.client.post("/api/poise/v1/acknowledgements", json=ACKNOWLEDGE, headers=TOKEN)
    kept, world.rules.alerts = world.rules.alerts, []
    assert world.client.get("/api/poise/v1/alerts").json()["alerts"] == []
    world.rules.alerts = kept
    assert world.acknowledged is None


def test_only_an_alert_that_is_on_can_be_acknowledged(world: World) -> None:
    answer = world.client.post("/api/poise/v1/acknowledgements", json={**ACKNOWLEDGE, "labels": {"alertname": "Busy"}}, headers=TOKEN)
    assert (answer.status_code, answer.json()["field"]) == (404, "labels")
    assert world.client.post("/api/poise/v1/acknowledgements", json={}, headers=TOKEN).status_code == 400


@pytest.mark.parametrize(
    ("method", "path"),
    [("POST", "silences"), ("DELETE", "silences/x"), ("POST", "acknowledgements"), ("DELETE", "acknowledgements/x")],
)
def test_every_change_needs_the_token_and_our_own_page(world: World, method: str, path: str) -> None:
    body = ACKNOWLEDGE if method == "POST" else None
    for headers, status in (({}, 401), ({**TOKEN, "Origin": "http://evil.example"}, 403), ({"Sec-Fetch-Site": "cross-site"}, 403)):
        answer = world.client.request(method, f"/api/poise/v1/{path}", json=body, headers=headers)
        assert answer.status_code == status
    assert world.acknowledged is None


def test_no_route_that_changes_something_answers_to_get(world: World) -> None:
    for path in ("acknowledgements", "acknowledgements/x", "silences/x"):
        assert world.client.get(f"/api/poise/v1/{path}", headers=TOKEN).status_code == 405


def test_without_an_alertmanager_the_local_acknowledgement_is_named(world: World) -> None:
    for answer in (
        world.client.post("/api/poise/v1/silences", json=ACKNOWLEDGE, headers=TOKEN),
        world.client.delete("/api/poise/v1/silences/x", headers=TOKEN),
    ):
        assert answer.status_code == 409
        assert "knows no Alertmanager" in answer.json()["error"]
        assert "acknowledge" in answer.json()["way_out"]
    assert world.client.get("/api/poise/v1/silences").json() == {"silences": [], "alertmanagers": []}


def test_an_alertmanager_that_is_down_is_said_with_everything_else_there(tmp_path: Path) -> None:
    world = World(tmp_path / "alerts.db", NOBODY)
    listed = world.client.get("/api/poise/v1/alerts").json()
    assert [alert["rule"] for alert in listed["alerts"]] == ["Busy"]
    ((problem),) = listed["alertmanagers"]
    assert (problem["url"], "connection refused" in problem["error"]) == (NOBODY.url, True)
    assert world.client.get("/api/poise/v1/silences").json()["alertmanagers"] == [problem]
    for answer in (
        world.client.post("/api/poise/v1/silences", json=ACKNOWLEDGE, headers=TOKEN),
        world.client.delete("/api/poise/v1/silences/x", headers=TOKEN),
    ):
        assert (answer.status_code, "connection refused" in answer.json()["error"]) == (502, True)


def test_what_may_write_a_file_is_not_done_on_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def watched(own: Acknowledgements) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            seen.append(True)
        else:
            seen.append(False)

    monkeypatch.setattr(Acknowledgements, "_expire", watched)
    made = world.client.post("/api/poise/v1/acknowledgements", json=ACKNOWLEDGE, headers=TOKEN)
    assert world.acknowledged is not None
    world.client.delete(f"/api/poise/v1/acknowledgements/{made.json()['id']}", headers=TOKEN)
    assert seen == [True, True, True]
