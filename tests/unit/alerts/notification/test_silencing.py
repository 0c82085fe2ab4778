"""Several Alertmanagers at once: which are one cluster, who is asked how often, and what is left of it when one is down."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from poise.alerts.notification.alertmanager import Alertmanager, Matcher, Place
from poise.alerts.notification.silencing import FRESH, Silencing, Suppression
from poise.history.promql.labels import labels

BUSY = {"alertname": "Busy"}


class Fake:
    """Answers as an Alertmanager of a cluster with these peers; `asked` is every call."""

    def __init__(self, peers: tuple[str, ...] = (), *, refuses: int = 0, status: int = 200) -> None:
        self.peers = peers
        self.refuses = refuses
        self.status = status
        self.asked: list[str] = []
        self.silences: list[str] = []
        self.silenced_by: list[str] = []
        self.url = ""

    def answer(self, method: str, path: str) -> tuple[int, object]:
        self.asked.append(f"{method} {path.removeprefix('/api/v2')}")
        match method, path.removeprefix("/api/v2"):
            case _ if self.status != 200:
                return self.status, "out of order"
            case "GET", "/status":
                return 200, {"cluster": {"status": "ready", "peers": [{"name": name, "address": "x"} for name in self.peers]}}
            case "GET", "/silences":
                return 200, [{"id": name, "status": {"state": "active"}, "endsAt": "2027-01-01T00:00:00Z"} for name in self.silences]
            case "GET", "/alerts":
                return 200, [{"labels": BUSY, "status": {"state": "suppressed", "silencedBy": self.silenced_by, "inhibitedBy": ["f"]}}]
            case "POST", "/silences" if not self.refuses:
                return 200, {"silenceID": f"of {self.peers}"}
            case "DELETE", _:
                return 200, None
            case _:
                return self.refuses, {"message": "bad matcher"}


@contextlib.contextmanager
def serving(*fakes: Fake) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for fake in fakes:
            stack.enter_context(_serving(fake))
        yield


@contextlib.contextmanager
def _serving(fake: Fake) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, value = fake.answer(self.command, self.path)
            text = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_DELETE = _any

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        fake.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def run(fakes: tuple[Fake, ...], scenario: Callable[[Silencing], Awaitable[Any]], clock: Callable[[], float] = lambda: 0.0) -> Any:
    async def main() -> Any:
        return await scenario(Silencing([Place(fake.url) for fake in fakes], clock=clock))

    with serving(*fakes):
        return asyncio.run(main())


async def make(silencing: Silencing) -> Any:
    return await silencing.silence([Matcher("a", "b")], starts_at=0.0, ends_at=60.0, by="me", comment="why")


def test_a_silence_is_made_once_in_a_cluster_and_once_in_each_alertmanager_that_gossips_with_nobody() -> None:
    fakes = (Fake(("p", "q")), Fake(("q", "p")), Fake(()), Fake(("z",)), Fake(()))
    made = run(fakes, make)
    assert made.done == ((fakes[0].url, "of ('p', 'q')"), (fakes[2].url, "of ()"), (fakes[3].url, "of ('z',)"), (fakes[4].url, "of ()"))
    assert made.problems == ()
    assert "POST /silences" not in fakes[1].asked


def test_the_next_member_of_a_cluster_is_asked_where_the_first_fails_but_not_where_it_refuses() -> None:
    down, refusing = Fake(("p", "q"), refuses=500), Fake(("r", "s"), refuses=400)
    second, spared = Fake(("p", "q")), Fake(("r", "s"))
    made = run((down, second, refusing, spared), make)
    assert [url for url, _ in made.done] == [second.url]
    assert [(problem.url, problem.refused) for problem in made.problems] == [(refusing.url, True)]
    assert "bad matcher" in made.problems[0].error
    assert "POST /silences" not in spared.asked


def test_one_that_is_down_is_named_and_costs_the_others_nothing() -> None:
    broken, good = Fake(status=503), Fake()
    made = run((broken, good), make)
    assert [url for url, _ in made.done] == [good.url]
    assert [(problem.url, "503" in problem.error) for problem in made.problems] == [(broken.url, True)]


def test_a_fault_with_one_is_named_and_costs_the_others_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    odd, right = Fake(("odd",)), Fake(("right",))
    plain, change = Alertmanager.silences, Alertmanager.silence

    async def silences(one: Alertmanager, **_: Any) -> Any:
        if one.place.url == odd.url:
            raise RecursionError("a fault")
        return await plain(one)

    async def silence(one: Alertmanager, wanted: Any) -> str:
        if one.place.url == odd.url:
            raise TypeError("a fault")
        return await change(one, wanted)

    monkeypatch.setattr(Alertmanager, "silences", silences)
    monkeypatch.setattr(Alertmanager, "silence", silence)

    async def use(silencing: Silencing) -> None:
        _, problems = await silencing.silences()
        assert [(problem.url, "RecursionError: a fault" in problem.error) for problem in problems] == [(odd.url, True)]
        made = await make(silencing)
        assert [url for url, _ in made.done] == [right.url]
        assert ["TypeError: a fault" in problem.error for problem in made.problems] == [True]

    run((odd, right), use)


def test_a_silence_is_ended_wherever_it_is_known() -> None:
    fakes = (Fake(("p", "q")), Fake(("p", "q")), Fake())
    fakes[0].silences = fakes[1].silences = ["s1"]
    made = run(fakes, lambda silencing: silencing.expire("s1"))
    assert made.done == ((fakes[0].url, "s1"),)
    assert not any(call.startswith("DELETE") for fake in fakes[1:] for call in fake.asked)
    assert run(fakes, lambda silencing: silencing.expire("other")) is None
    broken = Fake(status=500)
    assert [problem.url for problem in run((broken,), lambda silencing: silencing.expire("s1")).problems] == [broken.url]


def test_silences_of_several_are_listed_once_with_all_who_have_them() -> None:
    fakes = (Fake(), Fake())
    fakes[0].silences, fakes[1].silences = ["both", "one"], ["both"]
    known, problems = run(fakes, lambda silencing: silencing.silences())
    assert {one.silence.identifier: one.urls for one in known} == {"both": (fakes[0].url, fakes[1].url), "one": (fakes[0].url,)}
    assert problems == ()


def test_what_suppresses_an_alert_is_joined_and_asked_for_once_in_seconds_however_many_look() -> None:
    first, second, broken = Fake(), Fake(), Fake(status=500)
    first.silenced_by, second.silenced_by = ["a"], ["a", "b"]
    now = [0.0]

    async def scenario(silencing: Silencing) -> None:
        seen = await asyncio.gather(*(silencing.suppressions() for _ in range(20)))
        for found, problems in seen:
            assert found == {labels(BUSY): Suppression(("a", "b"), ("f",))}
            assert [problem.url for problem in problems] == [broken.url]
        assert first.asked == second.asked == broken.asked == ["GET /alerts"]
        now[0] = FRESH
        await silencing.suppressions()
        assert len(first.asked) == 2
        await make(silencing)
        await silencing.suppressions()
        assert first.asked.count("GET /alerts") == 3

    run((first, second, broken), scenario, lambda: now[0])


def test_an_alertmanager_that_says_nothing_holds_a_page_up_for_moments_only() -> None:
    async def main() -> Mapping[str, str]:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        place = Place(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", timeout=600.0)
        _, problems = await Silencing([place], clock=lambda: 0.0, look_timeout=0.05).suppressions()
        server.close()
        return {problem.url: problem.error for problem in problems}

    (error,) = asyncio.run(main()).values()
    assert "no complete answer" in error


def test_silences_are_asked_for_once_in_seconds_and_anew_after_a_change() -> None:
    fake = Fake()

    async def scenario(silencing: Silencing) -> None:
        await asyncio.gather(*(silencing.silences() for _ in range(20)))
        assert fake.asked == ["GET /silences"]
        fake.silences = ["s1"]
        assert await silencing.expire("s1")
        fake.silences = []
        assert await silencing.silences() == ([], ())

    run((fake,), scenario)


@pytest.mark.parametrize("call", ["suppressions", "silences"])
def test_without_alertmanagers_there_is_nothing_and_nobody_to_blame(call: str) -> None:
    found, problems = asyncio.run(getattr(Silencing([], clock=lambda: 0.0), call)())
    assert (len(found), len(problems)) == (0, 0)
