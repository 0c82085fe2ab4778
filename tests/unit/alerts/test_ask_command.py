"""`poise alerts status` and `explain`: what is said of rules, and that no label can act on a terminal or forge a line."""

from __future__ import annotations

import argparse
import http.server
import json
import threading
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.alerts import command, rules_api
from poise.alerts.ask_command import status_lines
from poise.alerts.rules_api import Standing, TellsAlert, TellsRule

NOW = 1_000.0
EVIL = "a\n  firing   Forged\x1b[2J\u202e"


def alert(state: str = "firing", summary: str = "it is down", **own: str) -> TellsAlert:
    return TellsAlert({"alertname": "Down", **own}, {"summary": summary}, state, NOW - 60, "1")


def rule(name: str, *alerts: TellsAlert, lacks: str = "", error: str = "", severity: str = "warning") -> TellsRule:
    return TellsRule(name, True, "up == 0", "g", "ok", error, lacks=lacks, alerts=alerts, labels={"severity": severity})


QUIET = (
    rule("Xid", lacks="input missing: no series poise_xid, poise_more"),
    rule("Slow", lacks="insufficient history: 1 min of 6 h"),
)


def test_what_is_on_comes_first_and_the_rest_is_one_line() -> None:
    down = rule("Down", alert(severity="critical"), severity="critical")
    waits = rule("Down", alert("pending", "it waits", severity="warning"))
    assert list(status_lines([*QUIET, waits, down, rule("Odd", error="no vector")], NOW)) == [
        "5 alerting rules: 1 alert firing, 1 pending",
        "  firing   Down (critical): it is down (for 1m)",
        "  pending  Down (warning): it waits (for 1m)",
        "  fails    Odd (warning): no vector",
        "1 rule has no input here, 1 looks further back than the history: --all lists them",
    ]


def test_all_lists_what_can_say_nothing_here() -> None:
    assert list(status_lines(QUIET, NOW, everything=True))[1:] == [
        "  no input Xid (warning): no such series here: poise_xid, poise_more",
        "  short    Slow (warning): the history reaches 1 min of 6 h; it is evaluated all the same",
    ]


def test_who_took_note_is_said_and_the_instance_where_there_are_several() -> None:
    one, two = alert(instance="n1"), alert(instance="n2", summary="n2 is down")
    known = Standing("builtin", {frozenset(one.labels.items()): "acknowledged by ann, silenced"})
    assert list(status_lines([rule("Down", one, two)], NOW, known))[1:] == [
        "  firing   Down (warning): it is down, instance n1 (for 1m) [acknowledged by ann, silenced]",
        "  firing   Down (warning): n2 is down (for 1m)",
    ]


class Server:
    """Answers from a table; what it does not have is 404, as Prometheus says of our routes."""

    def __init__(self, answers: Mapping[str, object]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = answers.get(self.path.partition("?")[0])
                body = json.dumps(found).encode()
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})


def document(*rules: Mapping[str, object]) -> dict[str, object]:
    return {"status": "success", "data": {"groups": [{"name": "g", "rules": list(rules)}]}}


DOWN = {
    "type": "alerting",
    "name": "Down",
    "query": "up == 0",
    "labels": {"severity": "critical"},
    "alerts": [
        {
            "labels": {"alertname": "Down", "who": EVIL},
            "annotations": {"summary": EVIL},
            "state": "firing",
            "activeAt": "2026-01-01T00:00:00Z",
        }
    ],
}


@pytest.fixture
def answers() -> dict[str, object]:
    vector = {"resultType": "vector", "result": [{"metric": {"instance": EVIL, "gpu": "1"}, "value": [NOW, "0"]}]}
    matrix = {"resultType": "matrix", "result": []}
    return {
        "/api/v1/rules": document(DOWN),
        "/api/v1/query": {"status": "success", "data": vector},
        "/api/v1/query_range": {"status": "success", "data": matrix},
        "/api/v1/series": {"status": "success", "data": []},
    }


@pytest.fixture
def url(answers: dict[str, object]) -> Iterator[str]:
    server = Server(answers)
    server.thread.start()
    yield server.url
    server.server.shutdown()
    server.server.server_close()
    server.thread.join()


def run(*words: str) -> int:
    parser = argparse.ArgumentParser(prog="poise alerts")
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


@pytest.mark.parametrize("words", [("status",), ("explain", "Down"), ("explain", EVIL)])
def test_nothing_that_a_label_holds_acts_on_the_terminal(words: tuple[str, ...], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(*words, "--url", url)
    said = "".join(capsys.readouterr())
    assert "\\n  firing   Forged\\x1b[2J\\u202e" in said
    assert not any(line.startswith("  firing   Forged") for line in said.splitlines())
    assert all(line.isprintable() for line in said.splitlines())


@pytest.mark.parametrize("mode", ["external", "off"])
def test_a_process_that_evaluates_nothing_is_not_taken_for_a_healthy_one(
    mode: str, url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/api/v1/rules"] = document()
    answers["/api/poise/v1/alerts"] = {"mode": mode, "alerts": []}
    for words in (("status",), ("status", "--json"), ("explain", "Down")):
        assert run(*words, "--url", url) == 2
        assert f"this process evaluates nothing (mode {mode})" in capsys.readouterr().err


def test_a_prometheus_has_no_such_route_and_is_listed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--url", url) == 1
    assert "1 alerting rule: 1 alert firing, 0 pending" in capsys.readouterr().out


def test_what_our_page_knows_besides_is_shown(url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    own = {"labels": {"alertname": "Down", "who": EVIL}, "acknowledged": {"by": "ann"}, "silenced_by": ["x"], "inhibited_by": []}
    answers["/api/poise/v1/alerts"] = {"mode": "builtin", "alerts": [own]}
    assert run("status", "--url", url) == 1
    assert "[acknowledged by ann, silenced]" in capsys.readouterr().out


def test_an_unknown_alert_is_answered_with_the_nearest(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "Dwn", "--url", url) == 2
    assert "Dwn: there is no such alert; did you mean 'Down'?" in capsys.readouterr().err


def test_the_watchdog_alone_is_nothing_that_fires(url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    watchdog = {**DOWN, "name": "Watchdog", "alerts": [{"labels": {"alertname": "Watchdog"}, "state": "firing"}]}
    answers["/api/v1/rules"] = document(watchdog)
    assert run("status", "--url", url) == 0
    assert capsys.readouterr().out.startswith("1 alerting rule: 1 alert firing (the Watchdog, which always does), 0 pending\n")
    answers["/api/v1/rules"] = document(watchdog, DOWN)
    assert run("status", "--url", url) == 1
    assert capsys.readouterr().out.startswith("2 alerting rules: 2 alerts firing, 0 pending\n")


@pytest.mark.parametrize("began", ["0001-01-01T00:00:00Z", None])
def test_an_alert_whose_beginning_is_not_said_is_listed_without_an_age(
    began: str | None, url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    alert = {"labels": {"alertname": "Down"}, "annotations": {"summary": "it is down"}, "state": "firing"}
    answers["/api/v1/rules"] = document({**DOWN, "alerts": [alert if began is None else {**alert, "activeAt": began}]})
    assert run("status", "--url", url) == 1
    assert capsys.readouterr().out.splitlines()[1] == "  firing   Down (critical): it is down"
    assert run("explain", "Down", "--url", url) == 0
    assert "  firing: it is down" in capsys.readouterr().out.splitlines()


ALERT = {"labels": {"alertname": "Down"}, "annotations": {}, "state": "firing", "activeAt": "2026-01-01T00:00:00Z", "value": "1"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"alerts": [{**ALERT, "state": 3}]}, "state is 3"),
        ({"alerts": [{**ALERT, "state": "Alerting"}]}, 'the state of an alert is "Alerting"'),
        ({"alerts": [{**ALERT, "state": None}]}, "the state of an alert is"),
        ({"alerts": [{**ALERT, "activeAt": "zzz"}]}, 'activeAt is "zzz"'),
        ({"alerts": [{**ALERT, "labels": 7}]}, "labels is 7"),
        ({"alerts": [{**ALERT, "labels": {"a": 1}}]}, "a is 1"),
        ({"alerts": [{**ALERT, "value": []}]}, "value is a list"),
        ({"alerts": [7]}, "an alert is 7"),
        ({"alerts": "abc"}, 'alerts is "abc"'),
        ({"name": None}, "a rule has no name"),
        ({"name": 5}, "name is 5"),
        ({"type": "odd"}, 'the type of a rule is "odd"'),
        ({"query": 5}, "query is 5"),
        ({"duration": "x"}, 'duration is "x"'),
        ({"duration": float("inf")}, "duration is Infinity"),
        ({"duration": float("nan")}, "duration is NaN"),
        ({"duration": True}, "duration is true"),
        ({"labels": [1]}, "labels is a list"),
        ({"lastEvaluation": 5}, "lastEvaluation is 5"),
    ],
)
def test_an_answer_of_other_kinds_is_told_and_never_taken_for_health(
    changed: dict[str, object], why: str, url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/api/v1/rules"] = document({**DOWN, **changed})
    for words in (("status",), ("status", "--json"), ("explain", "Down")):
        assert run(*words, "--url", url) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert f"/api/v1/rules: what answers is no Prometheus API ({why}" in printed.err
        assert printed.err.count("\n") == 1


@pytest.mark.parametrize("alerts", [5, [5], [{"labels": {"a": 1}}], [{"acknowledged": 3}], [{"silenced_by": "x"}]])
def test_a_poise_up_that_says_it_in_another_way_is_told(
    alerts: object, url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    answers["/api/poise/v1/alerts"] = {"mode": "builtin", "alerts": alerts}
    assert run("status", "--url", url) == 2
    assert "no answer of a `poise up` of this version" in capsys.readouterr().err


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["firing", "alerting", "success"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["status", "data", "groups", "rules", "name", "type", "alerts", "labels", "state", "activeAt"]), inner
        )
    ),
    max_leaves=12,
)


@given(
    JSON, st.sampled_from(["groups", "rules", "alerts", "labels", "annotations", "state", "activeAt", "value", "duration", "name", "type"])
)
def test_whatever_stands_in_an_answer_it_is_read_or_refused_in_words(odd: object, key: str) -> None:
    def changed(value: object) -> object:
        if isinstance(value, dict):
            return {name: odd if name == key else changed(inner) for name, inner in value.items()}
        return [changed(inner) for inner in value] if isinstance(value, list) else value

    for answer in (odd, changed(document({**DOWN, "duration": 5.0}))):
        try:
            rules = rules_api.read(answer)
        except ValueError:
            continue
        list(status_lines(rules, NOW))


def test_a_server_that_is_not_there_is_told_with_the_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("status", "--url", "http://127.0.0.1:9") == 2
    said = capsys.readouterr().err
    assert said.endswith("nothing listens there; start `poise up`, or name the one that runs with --url\n")


@pytest.mark.parametrize(
    ("words", "known", "said"),
    [
        (("--engine", "nosuch"), ["a:1", "b:1"], "there was no engine nosuch in the hour before; there were a:1, b:1"),
        (("--engine", "nosuch"), [], "there was no engine nosuch in the hour before; no series has a label engine"),
        (("--where", "gpu=9"), ["1"], "there was no series with gpu=9 in the hour before; there was 1"),
        (("--engine", "host1"), [f"host{n}0" for n in range(50)], "there was no engine host1 in the hour before; did you mean 'host10'?"),
        (("--engine", "xyz"), [f"host{n}" for n in range(50)], "there was no engine xyz in the hour before; there were 50 others"),
    ],
)
def test_a_label_that_no_series_has_is_told_instead_of_explained(
    words: tuple[str, ...], known: list[str], said: str, url: str, answers: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("engine", "gpu"):
        answers[f"/api/v1/label/{name}/values"] = {"status": "success", "data": known}
    assert run("explain", "Down", *words, "--url", url) == 2
    assert capsys.readouterr().err == f"poise: {url}: {said}\n"


def test_labels_that_series_or_the_rule_have_are_explained(url: str, answers: dict[str, object]) -> None:
    answers["/api/v1/label/gpu/values"] = {"status": "success", "data": ["1"]}
    assert run("explain", "Down", "--where", "gpu=1", "--where", "severity=critical", "--url", url) == 0


def test_explaining_begins_with_one_sentence(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("explain", "Down", "--url", url) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Down (critical): firing, fires at once"
    assert lines[1].startswith("  fires because `up == 0` holds (instance=")
