"""The notifier against an Alertmanager that can be down, slow, or refuse: what arrives, what waits, what is let go."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from poise.alerts.evaluation.active import Alert, State
from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.evaluation.prepared import prepare
from poise.alerts.notification import notifier as notifier_module
from poise.alerts.notification.alertmanager import Alertmanager, AlertmanagerError, Matcher, Place, Silence
from poise.alerts.notification.notifier import BATCH, Notifier
from poise.alerts.notification.payload import LONGEST_ANNOTATION, payload
from poise.alerts.rules import parse_rules
from poise.history.promql.labels import labels

START = 1_800_000_000_000
((GROUP,)) = prepare([parse_rules("groups: [{name: g, rules: [{alert: Busy, expr: up}]}]")], 15.0)


def firing(gpu: str = "1", *, fired: int = START, ends: int = START + 240_000) -> ToSend:
    own = labels({"alertname": "Busy", "gpu": gpu, "severity": "warning"})
    return ToSend(Alert(own, {"summary": "busy", "empty": ""}, 1.0, State.FIRING, fired - 60_000, fired), ends, GROUP.rules[0])


def resolved(gpu: str = "1", *, at: int = START + 60_000) -> ToSend:
    one = firing(gpu)
    return replace(one, alert=replace(one.alert, state=State.INACTIVE, resolved_at=at), ends_at=at)


class Server:
    """Takes what an Alertmanager takes. `answers` are the statuses to come, 200 when there are none left. `largest` is a proxy's limit in bytes (413);
    a request with an alert of a GPU in `unwanted` is refused as a whole (422)."""

    def __init__(self) -> None:
        self.largest: int | None = None
        self.unwanted: frozenset[str] = frozenset()
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: list[tuple[int, bytes]] = []
        self.taken: list[dict[str, Any]] = []
        self.arrived = threading.Condition()
        self.hold = threading.Event()
        self.hold.set()

    def handled(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        self.hold.wait(30)
        alerts = json.loads(body) if body and path.endswith("/alerts") else []
        with self.arrived:
            status, text = self.answers.pop(0) if self.answers else (200, b"")
            if self.largest is not None and len(body) > self.largest:
                status, text = 413, b"<html>413 Request Entity Too Large</html>"
            elif any(each["labels"]["gpu"] in self.unwanted for each in alerts):
                status, text = 422, b"no"
            if status == 200:
                self.taken += alerts
            self.requests.append((method, path, json.loads(body) if body else None))
            self.arrived.notify_all()
        return status, text

    @property
    def alerts(self) -> list[dict[str, Any]]:
        return [alert for _, path, body in self.requests if path.endswith("/alerts") for alert in body]


@contextmanager
def serving() -> Iterator[tuple[Server, str]]:
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, text = state.handled(self.command, self.path, body)
            with suppress(OSError):  # a client that did not wait
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield state, f"http://127.0.0.1:{server.server_port}"
        finally:
            state.hold.set()
            server.shutdown()
            thread.join()


@pytest.fixture
def server() -> Iterator[tuple[Server, str]]:
    with serving() as both:
        yield both


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "FIRST_PAUSE", 0.02)
    monkeypatch.setattr(notifier_module, "LONGEST_PAUSE", 0.05)


@asynccontextmanager
async def notifying(*urls: str, now: int = START, timeout: float = 5.0, most: int = 10_000) -> AsyncIterator[Notifier]:
    made = Notifier(
        [Alertmanager(Place(url, timeout)) for url in urls],
        external_labels={"cluster": "c1", "gpu": "never"},
        page="http://page:9748/",
        wall=lambda: now / 1000,
        most_waiting=most,
    )
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Any, what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"not within 10 s: {what}")


def test_an_alert_arrives_with_its_labels_words_moments_and_link(server: tuple[Server, str]) -> None:
    state, url = server

    async def main() -> None:
        async with notifying(f"{url}/prefix/") as made:
            made.take([firing()])
            await until(lambda: made.status()[0].sent == 1, "sent")
            assert made.status()[0].waiting == 0

    asyncio.run(main())
    ((method, path, _),) = state.requests
    assert (method, path) == ("POST", "/prefix/api/v2/alerts")
    assert state.alerts == [
        {
            "labels": {"alertname": "Busy", "gpu": "1", "severity": "warning", "cluster": "c1"},
            "annotations": {"summary": "busy"},
            "startsAt": "2027-01-15T08:00:00.000Z",
            "endsAt": "2027-01-15T08:04:00.000Z",
            "generatorURL": "http://page:9748/alerts/Busy",
        }
    ]


def test_what_was_not_taken_is_tried_again_and_arrives_once_in_its_newest_state(server: tuple[Server, str]) -> None:
    state, url = server
    state.answers = [(500, b""), (503, b"overloaded"), (200, b"")]

    async def main() -> None:
        async with notifying(url) as made:
            state.hold.clear()
            made.take([firing()])
            made.take([firing("2")])
            made.take([resolved()])
            await asyncio.sleep(0.05)
            state.hold.set()
            await until(lambda: made.status()[0].sent == 2, "both sent")
            assert made.status()[0].error == ""
            assert made.status()[0].failed > 0

    asyncio.run(main())
    taken = state.requests[-1][2]
    assert [(alert["labels"]["gpu"], alert["endsAt"]) for alert in taken] == [
        ("2", "2027-01-15T08:04:00.000Z"),
        ("1", "2027-01-15T08:01:00.000Z"),
    ]


def test_an_alert_that_changes_while_it_is_sent_is_sent_again(server: tuple[Server, str]) -> None:
    state, url = server

    async def main() -> None:
        async with notifying(url) as made:
            state.hold.clear()
            made.take([firing()])
            await asyncio.sleep(0.05)
            made.take([resolved()])
            await asyncio.sleep(0.05)
            state.hold.set()
            await until(lambda: made.status()[0].sent == 2, "both states sent")

    asyncio.run(main())
    assert [alert["endsAt"] for alert in state.alerts] == ["2027-01-15T08:04:00.000Z", "2027-01-15T08:01:00.000Z"]


def test_what_is_refused_is_let_go_and_said_with_the_reason(server: tuple[Server, str], caplog: pytest.LogCaptureFixture) -> None:
    state, url = server
    state.answers = [(400, b'{"code": 400, "message": "bad label"}')]

    async def main() -> None:
        async with notifying(url) as made:
            made.take([firing()])
            await until(lambda: made.status()[0].failed == 1, "refused")
            await until(lambda: made.status()[0].waiting == 0, "let go")
            made.take([firing("2")])
            await until(lambda: made.status()[0].sent == 1, "the next one goes")

    asyncio.run(main())
    assert "status 400: bad label; of alert {alertname=Busy, cluster=c1, gpu=1, severity=warning}, which is let go" in caplog.text


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (400, b"[" * 1_200),
        (500, b"[" * 1_200),
        (200, b"[" * 200_000),
        (200, b"1" * 5_000),
        (500, b"[" * 900 + b"]" * 900),
        (200, b"\xff\xfe"),
        (200, b'"\\ud800"'),
    ],
)
def test_whatever_an_alertmanager_answers_the_line_goes_on(server: tuple[Server, str], status: int, body: bytes) -> None:
    state, url = server
    state.answers = [(status, body)] * 2

    async def main() -> None:
        async with notifying(url) as made:
            for gpu in "123":
                made.take([firing(gpu)])
                await asyncio.sleep(0.02)
            await until(lambda: len(state.requests) > 2 and not made.status()[0].waiting, "all told")
            assert made.status()[0].error == ""

    asyncio.run(main())


def test_a_fault_of_one_line_ends_no_other_and_is_tried_again(
    server: tuple[Server, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, url = server
    right = Alertmanager.post_alerts
    broken = [True]

    async def post(one: Alertmanager, alerts: Any) -> None:
        if broken[0] and one.place.url.endswith("/broken"):
            raise TypeError("a fault")
        await right(one, alerts)

    monkeypatch.setattr(Alertmanager, "post_alerts", post)

    async def main() -> None:
        async with notifying(f"{url}/broken", url) as made:
            made.take([firing()])
            await until(lambda: made.status()[1].sent == 1 and made.status()[0].failed > 1, "the other sent")
            assert "TypeError: a fault" in made.status()[0].error
            broken[0] = False
            await until(lambda: made.status()[0].sent == 1, "sent in the end")

    asyncio.run(main())
    assert caplog.text.count("a fault of Poise") == 1


def test_one_that_is_down_or_slow_holds_up_no_other(server: tuple[Server, str]) -> None:
    state, url = server
    with serving() as (slow, slow_url):
        slow.hold.clear()

        async def main() -> None:
            async with notifying("http://127.0.0.1:9", slow_url, url, timeout=0.2) as made:
                made.take([firing()])
                await until(lambda: made.status()[2].sent == 1, "the one that is up has it")
                await until(lambda: all(line.error for line in made.status()[:2]), "the others are said")
                down, late, _ = made.status()
                assert "refused" in down.error
                assert "within 0.2 s" in late.error
                slow.hold.set()
                await until(lambda: made.status()[1].sent == 1, "the slow one has it in the end")

        asyncio.run(main())
    assert len(state.alerts) == 1


def test_what_waits_is_bounded_and_the_oldest_goes() -> None:
    async def main() -> None:
        async with notifying("http://127.0.0.1:9", most=3) as made:
            made.take([firing(str(number)) for number in range(5)])
            await until(lambda: made.status()[0].dropped == 2, "two dropped")
            made.take([firing("4")])
            await asyncio.sleep(0.02)
            assert (made.status()[0].waiting, made.status()[0].dropped) == (3, 2)

    asyncio.run(main())


def test_a_firing_alert_that_waited_past_its_end_is_not_told_as_resolved(server: tuple[Server, str]) -> None:
    state, url = server

    async def main() -> None:
        async with notifying(url, now=START + 300_000) as made:
            made.take([firing(), resolved("2", at=START)])
            await until(lambda: made.status()[0].sent == 1, "the resolved one")
            assert made.status()[0].dropped == 1

    asyncio.run(main())
    assert [alert["labels"]["gpu"] for alert in state.alerts] == ["2"]


def test_many_alerts_go_in_batches(server: tuple[Server, str]) -> None:
    state, url = server

    async def main() -> None:
        async with notifying(url) as made:
            made.take([firing(str(number)) for number in range(2 * BATCH + 1)])
            await until(lambda: made.status()[0].sent == 2 * BATCH + 1, "all")

    asyncio.run(main())
    assert [len(body) for _, _, body in state.requests] == [BATCH, BATCH, 1]


def worded(gpu: str, characters: int) -> ToSend:
    """With `characters` of annotations, in pieces that may stand each."""
    one = firing(gpu)
    words = {f"part_{number}": "x" * 10_000 for number in range(characters // 10_000)} | {"rest": "x" * (characters % 10_000)}
    return replace(one, alert=replace(one.alert, annotations=words))


def test_an_alert_that_is_too_large_for_a_proxy_costs_no_other_and_is_named(
    server: tuple[Server, str], caplog: pytest.LogCaptureFixture
) -> None:
    state, url = server
    state.largest = 1_000_000

    async def main() -> None:
        async with notifying(url) as made:
            made.take([firing("1"), worded("big", 1_050_000), firing("2")])
            await until(lambda: made.status()[0].dropped == 1 and not made.status()[0].waiting, "one let go")
            (line,) = made.status()
            assert (line.sent, line.failed, line.refused) == (2, 1, 1)
            assert "413" in line.refusal
            assert "gpu=big" in line.refusal
            assert line.refused_at == START / 1000
            made.take([firing("1")])
            await until(lambda: made.status()[0].sent == 3, "told again")
            assert made.status()[0].error == ""  # it takes what it gets; the refusal stays said
            assert "gpu=big" in made.status()[0].refusal

    asyncio.run(main())
    assert [each["labels"]["gpu"] for each in state.taken] == ["1", "2", "1"]
    assert "gpu=big" in caplog.text


@pytest.mark.parametrize("number", [1, 7, 100])
def test_what_is_refused_among_many_is_found_and_all_others_arrive_once(server: tuple[Server, str], number: int) -> None:
    state, url = server
    culprits = {str(each) for each in range(0, 3 * number, 5)}
    state.unwanted = frozenset(culprits)

    async def main() -> None:
        async with notifying(url) as made:
            made.take([firing(str(each)) for each in range(3 * number)])
            await until(lambda: made.status()[0].sent + made.status()[0].dropped == 3 * number, "each is taken or let go")
            (line,) = made.status()
            assert (line.sent, line.dropped, line.refused) == (3 * number - len(culprits), len(culprits), len(culprits))

    asyncio.run(main())
    assert sorted(each["labels"]["gpu"] for each in state.taken) == sorted({str(each) for each in range(3 * number)} - culprits)


def test_what_was_refused_goes_alone_the_next_time_and_is_logged_once(server: tuple[Server, str], caplog: pytest.LogCaptureFixture) -> None:
    state, url = server
    state.unwanted = frozenset("3")

    async def main() -> None:
        async with notifying(url) as made:

            async def told(gpus: str) -> int:
                """Tells them; how many requests that took."""
                requests, done = len(state.requests), made.status()[0].sent + made.status()[0].dropped
                made.take([firing(gpu) for gpu in gpus])
                await until(lambda: made.status()[0].sent + made.status()[0].dropped == done + len(gpus), "each is taken or let go")
                return len(state.requests) - requests

            assert await told("12345678") > 2
            assert [await told("12345678"), await told("12345678")] == [2, 2]
            assert (made.status()[0].sent, made.status()[0].refused) == (21, 3)
            state.unwanted = frozenset()
            assert [await told("345"), await told("345")] == [2, 1]

    asyncio.run(main())
    assert caplog.text.count("which is let go") == 1


def test_an_outage_in_the_midst_of_halves_loses_nothing(server: tuple[Server, str]) -> None:
    state, url = server
    state.answers = [(413, b""), (200, b""), (503, b"")]

    async def main() -> None:
        async with notifying(url) as made:
            made.take([firing(gpu) for gpu in "1234"])
            await until(lambda: made.status()[0].sent == 4, "all in the end")
            assert (made.status()[0].dropped, made.status()[0].refused) == (0, 0)

    asyncio.run(main())
    assert sorted(each["labels"]["gpu"] for each in state.taken) == list("1234")


def test_requests_are_bounded_in_bytes(server: tuple[Server, str]) -> None:
    state, url = server
    state.largest = 600_000

    async def main() -> None:
        async with notifying(url) as made:
            made.take([worded(str(number), 4_000) for number in range(BATCH)])
            await until(lambda: made.status()[0].sent == BATCH, "all")
            assert (made.status()[0].failed, made.status()[0].dropped) == (0, 0)

    asyncio.run(main())
    assert len(state.requests) == 3


@pytest.mark.parametrize("letter", ["x", "ß", "警", "🔥", "\ud800"])
def test_a_long_annotation_is_cut_with_a_mark_and_a_short_one_is_not(letter: str) -> None:
    def sent(text: str) -> str:
        one = firing()
        return payload(replace(one, alert=replace(one.alert, annotations={"summary": text})), {}, "").annotations["summary"]

    size = len(letter.encode("utf-8", "surrogatepass"))
    fits = letter * (LONGEST_ANNOTATION // size)
    assert sent(fits) == fits
    cut = sent(letter * 1_000_000)
    assert f"cut here by Poise: {1_000_000 * size:,} bytes" in cut
    assert len(cut.encode()) < LONGEST_ANNOTATION + 100


def test_before_it_runs_and_after_its_end_alerts_are_let_go() -> None:
    made = Notifier([Alertmanager(Place("http://127.0.0.1:9"))], external_labels={}, page="", wall=lambda: 0.0)
    made.take([firing()])

    async def main() -> None:
        async with notifying("http://127.0.0.1:9") as running:
            nonlocal made
            made = running

    asyncio.run(main())
    made.take([firing()])
    assert made.status()[0].waiting == 0


def test_without_a_page_there_is_no_link() -> None:
    assert payload(firing(), {}, "").generator_url == ""


def test_silences_are_made_read_and_ended(server: tuple[Server, str]) -> None:
    state, url = server
    known = {
        "id": "s1",
        "status": {"state": "active"},
        "matchers": [{"name": "alertname", "value": "Busy", "isRegex": False, "isEqual": True}],
        "startsAt": "2027-01-15T08:00:00.000Z",
        "endsAt": "2027-01-15T10:00:00.123456Z",
        "createdBy": "me",
        "comment": "why",
    }
    state.answers = [
        (200, b'{"silenceID": "s1"}'),
        (200, json.dumps([known, {**known, "id": "s0", "status": {"state": "expired"}}, "nonsense"]).encode()),
        (200, b""),
    ]

    async def main() -> None:
        one = Alertmanager(Place(url))
        wanted = Silence((Matcher("alertname", "Busy"),), START / 1000, START / 1000 + 7200, "me", "why")
        assert await one.silence(wanted) == "s1"
        (found,) = await one.silences()
        assert replace(found, identifier="", state="", ends_at=wanted.ends_at) == wanted
        await one.expire("s1/..")

    asyncio.run(main())
    assert state.requests[0][2] == {key: known[key] for key in ("matchers", "startsAt", "createdBy", "comment")} | {
        "endsAt": "2027-01-15T10:00:00.000Z"
    }
    assert state.requests[2][:2] == ("DELETE", "/api/v2/silence/s1%2F..")


@pytest.mark.parametrize(
    ("status", "body", "named"),
    [(404, b"not here", "status 404: not here"), (200, b"<html>", "no JSON"), (502, b"\xff\xfe", "status 502")],
)
def test_an_answer_of_something_else_is_named(server: tuple[Server, str], status: int, body: bytes, named: str) -> None:
    state, url = server
    state.answers = [(status, body)]
    with pytest.raises(AlertmanagerError, match=named) as raised:
        asyncio.run(Alertmanager(Place(url)).alerts())
    assert url in str(raised.value)
