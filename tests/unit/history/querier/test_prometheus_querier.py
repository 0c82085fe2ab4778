"""The querier over HTTP against real sockets: what is sent, and what each wrong or hostile answer becomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import parse_qs

import pytest
from poise.exporter.access import Access
from poise.history.promql.engine import InstantVector, Matrix
from poise.history.promql.errors import BadQuery, ExecutionError, QueryError, QueryTimeout, Unavailable
from poise.history.querier.door import Answer
from poise.history.querier.prometheus import PrometheusQuerier
from poise.history.text_format import Metadata

T = TypeVar("T")
Reply = tuple[int, bytes]


def success(data: object, **more: object) -> Reply:
    return 200, json.dumps({"status": "success", "data": data, **more}).encode()


def failure(status: int, kind: str, words: str) -> Reply:
    return status, json.dumps({"status": "error", "errorType": kind, "error": words}).encode()


class Backend:
    """Answers in turn, and keeps what it was sent: head and form of each request."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.seen: list[tuple[str, dict[str, list[str]]]] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = next((int(line.split(":")[1]) for line in head.lower().split("\r\n") if line.startswith("content-length")), 0)
            body = (await reader.readexactly(length)).decode()
            query = head.split(" ")[1].partition("?")[2]
            self.seen.append((head, parse_qs(body or query)))
            status, answer = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n\r\n".encode() + answer)
            await writer.drain()
            writer.close()

        listener = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/select/0/prometheus/"
        finally:
            listener.close()


def ask(backend: Backend, question: Callable[[PrometheusQuerier], Awaitable[T]], **options: object) -> T:
    async def run() -> T:
        async with backend.serving() as url:
            return await question(PrometheusQuerier(url, **options))  # type: ignore[arg-type]

    return asyncio.run(run())


def instant(querier: PrometheusQuerier) -> Awaitable[Answer[object]]:
    return querier.instant("up", 1_700_000_000.25, timeout=5)


EMPTY = success({"resultType": "vector", "result": []})


def test_a_question_is_a_form_below_the_path_prefix_with_login_and_tenant() -> None:
    backend = Backend(EMPTY)
    access = Access(bearer_token_env="TOKEN")
    assert ask(backend, instant, access=access, environment={"TOKEN": "geheim"}, tenant="lab").data == InstantVector(0, ())
    head, form = backend.seen[0]
    assert head.startswith("POST /select/0/prometheus/api/v1/query HTTP/1.1\r\n")
    assert "Authorization: Bearer geheim" in head
    assert "X-Scope-OrgID: lab" in head
    assert form == {"query": ["up"], "time": ["1700000000.250"], "timeout": ["5s"]}


def test_where_no_post_is_taken_it_asks_with_get() -> None:
    backend = Backend((405, b"no"), EMPTY)
    ask(backend, instant)
    assert [head.split(" ")[0] for head, _ in backend.seen] == ["POST", "GET"]
    assert backend.seen[0][1] == backend.seen[1][1]


def test_odd_numbers_warnings_partial_answers_and_histograms() -> None:
    rows = [{"metric": {"a": value}, "value": [1.5, value]} for value in ("NaN", "+Inf", "-Inf", "1e-300")]
    data = {"resultType": "vector", "result": [*rows, {"metric": {}, "histogram": [1, {}]}]}
    answer = ask(Backend(success(data, warnings=["slow \x1b[31m store"], infos=["hm"], isPartial=True)), instant)
    assert isinstance(answer.data, InstantVector)
    assert answer.data.at == 1500
    assert [repr(sample.value) for sample in answer.data.samples] == ["nan", "inf", "-inf", "1e-300"]
    told = (r"slow \x1b[31m store", "hm", "the answer is partial: a part of the storage did not answer", "native histograms are left out")
    assert answer.warnings == told


def test_a_large_matrix_is_read_in_order_of_labels() -> None:
    points = [[1_700_000_000 + 0.001 * n, str(n)] for n in range(9_000)]
    data = {"resultType": "matrix", "result": [{"metric": {"a": name}, "values": points} for name in "ba"]}
    answer = ask(Backend(success(data)), lambda querier: querier.range("up", 0, 1, 1))
    assert isinstance(answer.data, Matrix)
    assert [row.labels for row in answer.data.series] == [(("a", "a"),), (("a", "b"),)]
    assert answer.data.series[0].times.tolist()[-1] == 1_700_000_008_999
    assert answer.data.series[0].values[-1] == 8_999.0


def test_metadata_is_kept_whole_and_asked_with_get() -> None:
    backend = Backend(success({"up": [{"type": "gauge", "help": "Up.", "unit": ""}, {"type": "", "help": ""}]}))
    answer = ask(backend, lambda querier: querier.metadata("up", limit=3))
    assert answer.data == {"up": (Metadata("gauge", "Up."), Metadata("unknown", ""))}
    assert backend.seen[0][0].startswith("GET /select/0/prometheus/api/v1/metadata?metric=up&limit=3 ")


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (failure(400, "bad_data", "parse error"), BadQuery, "parse error"),
        (failure(422, "execution", "many-to-many"), ExecutionError, "many-to-many"),
        (failure(503, "timeout", "query timed out"), QueryTimeout, "query timed out"),
        (failure(503, "canceled", "query was canceled"), QueryTimeout, "canceled"),
        (failure(500, "internal", "boom"), Unavailable, "boom"),
        (failure(422, "422", "VictoriaMetrics says"), ExecutionError, "VictoriaMetrics says"),
        (failure(429, "too_many_requests", "slow down"), Unavailable, "slow down"),
        ((401, b"<html>Login</html>"), Unavailable, "401: it wants a login; give bearer_token_file"),
        ((404, b"404 page not found"), Unavailable, "no Prometheus API is there; give the URL with the path"),
        ((302, b""), Unavailable, "redirects are not followed"),
        ((504, b"gateway timeout"), QueryTimeout, "504"),
        ((502, b"bad \x1b[31m gateway"), Unavailable, r"502: bad \x1b[31m gateway"),
        ((200, b"<html>hello</html>"), Unavailable, "what answers is no Prometheus API: <html>hello</html>"),
        ((200, b"[" * 100_000), Unavailable, "no Prometheus API"),
        ((200, b"\xff\xfe"), Unavailable, "no Prometheus API"),
        (success(None), Unavailable, "not of the form of Prometheus' API"),
        (success({"resultType": "vector", "result": [{"metric": {}, "value": [1]}]}), Unavailable, "not of the form"),
        (success({"resultType": "vector", "result": [{"metric": {}, "value": [1, "x"]}]}), Unavailable, "not of the form"),
        (success({"resultType": "vector", "result": [{"metric": [], "value": [1, "1"]}]}), Unavailable, "not of the form"),
        (success({"resultType": "vector", "result": [{"metric": {}, "value": [1e400, "1"]}]}), Unavailable, "not of the form"),
        (success({"resultType": "streams", "result": []}), Unavailable, "resultType 'streams'"),
    ],
)
def test_each_wrong_answer_is_an_error_of_its_kind_in_words(reply: Reply, kind: type[QueryError], words: str) -> None:
    with pytest.raises(QueryError) as caught:
        ask(Backend(reply), instant)
    assert type(caught.value) is kind
    assert words in str(caught.value)


def test_nobody_there_a_silent_server_and_an_endless_answer() -> None:
    async def gone() -> None:
        async with Backend(EMPTY).serving() as url:
            pass
        await PrometheusQuerier(url).instant("up", 0)

    with pytest.raises(Unavailable, match="connection refused"):
        asyncio.run(gone())
    with pytest.raises(Unavailable, match=r"larger than 0\.001 MB"):
        ask(Backend((200, b"x" * 5_000)), instant, limit=1_000)


def test_a_closed_querier_and_a_wrong_url_are_told() -> None:
    async def closed() -> None:
        querier = PrometheusQuerier("http://127.0.0.1:1")
        await querier.close()
        await querier.instant("up", 0)

    with pytest.raises(Unavailable, match="closed"):
        asyncio.run(closed())
    with pytest.raises(ValueError, match="user or password") as caught:
        PrometheusQuerier("http://me:geheim@h:9090")
    assert "geheim" not in str(caught.value)
    with pytest.raises(BadQuery, match="invalid label name"):
        ask(Backend(EMPTY), lambda querier: querier.label_values("a/b", [], 0, 1))
