"""The load client against a small server that streams as vLLM does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from poise.testbed import load
from poise.testbed.load import LoadResult, LoadSettings


@dataclass
class Server:
    """Answers each completion with `tokens` events in HTTP chunks, unless `answer` says something else."""

    tokens: int = 3
    answer: Callable[[int], bytes | None] = lambda number: None
    seen: list[tuple[dict[str, str], dict[str, object]]] = field(default_factory=list)
    port: int = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        body = json.loads(await reader.readexactly(int(headers["Content-Length"])))
        self.seen.append((headers, body))
        other = self.answer(len(self.seen))
        if other is not None:
            writer.write(other)
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(self.tokens):
                self.event(writer, {"choices": [{"text": " token"}], "usage": None})
                await writer.drain()
            words = len(str(body["prompt"]).split())
            self.event(writer, {"choices": [], "usage": {"prompt_tokens": words, "completion_tokens": self.tokens}})
            self.chunk(writer, b"data: [DONE]\n\n")
            writer.write(b"0\r\n\r\n")
        writer.close()

    def event(self, writer: asyncio.StreamWriter, value: object) -> None:
        self.chunk(writer, b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[str]:
    listener = await asyncio.start_server(server.handle, "127.0.0.1", 0)
    async with listener:
        server.port = listener.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{server.port}"


def drive(server: Server, stop_after: float | None = None, **settings: object) -> LoadResult:
    async def main() -> LoadResult:
        stop = asyncio.Event()
        clock = asyncio.get_running_loop().time
        async with serving(server) as url:
            if stop_after is not None:
                asyncio.get_running_loop().call_later(stop_after, stop.set)
            wanted = LoadSettings(url, "tiny", **settings)  # type: ignore[arg-type]  # each test gives fields of it
            return await load.run_load(wanted, LoadResult(), clock, stop)

    return asyncio.run(main())


def test_a_number_of_requests_is_sent_exactly_and_counted() -> None:
    server = Server(tokens=3)
    result = drive(server, requests=10, concurrency=4, prompt_words=5, max_tokens=3)
    assert len(server.seen) == result.finished == 10
    assert (result.failed, result.prompt_tokens, result.output_tokens) == (0, 50, 30)
    assert len(result.time_to_first_token) == len(result.end_to_end) == 10
    assert len(result.inter_token_latency) == 20
    assert all(value >= 0 for value in (*result.time_to_first_token, *result.inter_token_latency))


def test_requests_ask_for_what_was_set_and_carry_the_headers() -> None:
    server = Server()
    drive(server, requests=1, max_tokens=7, headers={"Authorization": "Bearer planted"})
    headers, body = server.seen[0]
    assert headers["Authorization"] == "Bearer planted"
    assert (body["model"], body["max_tokens"], body["ignore_eos"], body["stream"]) == ("tiny", 7, True, True)


def test_the_same_seed_sends_the_same_prompts() -> None:
    first, second, other = Server(), Server(), Server()
    for server, seed in ((first, 1), (second, 1), (other, 2)):
        drive(server, requests=3, concurrency=1, seed=seed)
    prompts = [[body["prompt"] for _, body in server.seen] for server in (first, second, other)]
    assert prompts[0] == prompts[1] != prompts[2]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\ntoo long", "status 400: 'too long'"),
        (b"HTTP/1.1 500 Internal\r\n\r\n", "status 500: ''"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": "engine dead"}\n\n', "error in the stream: engine dead"),
        (b"HTTP/1.1 200 OK\r\n\r\ndata: {}\n\n", "the stream ended early (the server closed the connection)"),
    ],
)
def test_a_request_that_fails_is_counted_with_its_reason(answer: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "RETRY_SECONDS", 0.0)
    result = drive(Server(answer=lambda number: answer if number == 1 else None), requests=2, concurrency=1)
    assert (result.finished, result.failed) == (1, 1)
    assert result.errors == {reason: 1}


def test_load_outlives_a_server_that_is_away_and_ends_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "RETRY_SECONDS", 0.01)
    result = drive(Server(answer=lambda number: b""), stop_after=0.2)
    assert result.finished == 0
    assert result.failed > 1


def test_load_ends_after_its_seconds() -> None:
    result = drive(Server(), seconds=0.2, concurrency=2)
    assert result.finished > 0
    assert result.seconds >= 0.2


def test_quantiles_are_of_what_is_there() -> None:
    assert load.quantiles([]) == {"p50": None, "p95": None, "p99": None}
    assert load.quantiles([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0}
    assert load.quantiles(list(range(1, 101))) == {"p50": 51, "p95": 96, "p99": 100}


def test_the_words_for_a_person_and_for_machines() -> None:
    result = LoadResult(seconds=2.0, finished=4, failed=1, prompt_tokens=40, output_tokens=20, errors={"status 500": 1})
    result.time_to_first_token.append(0.25)
    assert load.line_of(result) == "2 s, 4 requests, 10 output tokens/s, TTFT p50 250 ms, ITL p50 n/a, 1 failed (status 500)"
    assert "TTFT         p50 250.0 ms" in load.summary(result)
    assert "failed       1 × status 500" in load.summary(result)
    value = json.loads(json.dumps(result.as_dict()))
    assert value["output_tokens_per_second"] == 10.0
    assert value["inter_token_latency_seconds"] == {"p50": None, "p95": None, "p99": None}
