"""Load for a vLLM server: streamed completions from a few clients, and what they saw (throughput, TTFT, ITL).

Owns the client and its statistics. Speaks HTTP/1.1 through asyncio alone; knows nothing of deployments.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from poise.testbed.model import WORDS

# How many of the newest latencies are kept: an endless load must not grow.
KEPT_LATENCIES = 10_000
# A server that is down is asked again this soon.
RETRY_SECONDS = 1.0
LONGEST_LINE = 1 << 20
# Without a terminal, a line this often.
QUIET_LINE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """`concurrency` clients; it ends after `requests` requests or `seconds`, whichever is set and comes first.

    Each request has `prompt_words` words (about a token each) and gets `max_tokens` tokens; each client pauses
    `pause_seconds` between two. `request_timeout` in seconds. With `leave_after` a client hangs up after so many outputs, as
    people do who close the page.
    """

    url: str
    model: str
    concurrency: int = 4
    requests: int | None = None
    seconds: float | None = None
    prompt_words: int = 48
    max_tokens: int = 64
    pause_seconds: float = 0.0
    seed: int = 1
    request_timeout: float = 120.0
    leave_after: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class LoadResult:
    """Counts since the start; the newest latencies in seconds; `errors` by text."""

    seconds: float = 0.0
    finished: int = 0
    failed: int = 0
    left: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    time_to_first_token: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    inter_token_latency: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    end_to_end: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_LATENCIES))
    errors: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """For --json: counts, rates per second and quantiles in seconds (None without a sample)."""
        elapsed = self.seconds or None
        return {
            "seconds": self.seconds,
            "requests_finished": self.finished,
            "requests_failed": self.failed,
            "requests_left": self.left,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "output_tokens_per_second": self.output_tokens / elapsed if elapsed else None,
            "requests_per_second": self.finished / elapsed if elapsed else None,
            "time_to_first_token_seconds": quantiles(self.time_to_first_token),
            "inter_token_latency_seconds": quantiles(self.inter_token_latency),
            "end_to_end_seconds": quantiles(self.end_to_end),
            "errors": self.errors,
        }


def quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """p50, p95 and p99 by nearest rank; None without a value."""
    ordered = sorted(values)
    return {f"p{share}": quantile(ordered, share) for share in (50, 95, 99)}


def quantile(ordered: Sequence[float], share: int) -> float | None:
    """Of values in ascending order, by nearest rank; `share` in percent. None without a value."""
    return ordered[min(len(ordered) - 1, len(ordered) * share // 100)] if ordered else None


async def run_load(settings: LoadSettings, result: LoadResult, clock: Callable[[], float], stop: asyncio.Event) -> LoadResult:
    """Drives the load until its end or until `stop` is set; `result` is filled while it runs, for a live display.

    A request that fails is counted with its reason and the client goes on: load outlives a server that is restarted.
    """
    source = random.Random(settings.seed)
    began = clock()
    left = settings.requests

    def more() -> bool:
        nonlocal left
        result.seconds = clock() - began
        if stop.is_set() or (settings.seconds is not None and result.seconds >= settings.seconds):
            return False
        if left is None:
            return True
        left -= 1
        return left >= 0

    async def client() -> None:
        while more():
            prompt = " ".join(source.choices(WORDS, k=settings.prompt_words))
            pause = settings.pause_seconds
            try:
                await asyncio.wait_for(_request(settings, prompt, result, clock), settings.request_timeout)
            except (OSError, ValueError, TimeoutError, asyncio.IncompleteReadError) as error:
                result.failed += 1
                reason = str(error) or type(error).__name__
                result.errors[reason] = result.errors.get(reason, 0) + 1
                pause = max(pause, RETRY_SECONDS)
            if pause:
                await _pause(stop, pause)

    async def stopped() -> None:
        await stop.wait()

    clients = [asyncio.create_task(client()) for _ in range(settings.concurrency)]
    stopper = asyncio.create_task(stopped())
    waiting = set(clients)
    try:
        while waiting and not stop.is_set():
            done, _ = await asyncio.wait({*waiting, stopper}, return_when=asyncio.FIRST_COMPLETED)
            waiting -= done
            for task in done:
                task.result()
    finally:
        for task in (*clients, stopper):
            task.cancel()
        await asyncio.gather(*clients, stopper, return_exceptions=True)
    result.seconds = clock() - began
    return result


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


async def _request(settings: LoadSettings, prompt: str, result: LoadResult, clock: Callable[[], float]) -> None:
    """One streamed completion. Raises OSError, ValueError, IncompleteReadError when it does not end well."""
    target = urlsplit(settings.url)
    body = json.dumps(
        {
            "model": settings.model,
            "prompt": prompt,
            "max_tokens": settings.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()
    headers = {
        "Host": target.netloc,
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **settings.headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    began = clock()
    reader, writer = await asyncio.open_connection(target.hostname, target.port or http.client.HTTP_PORT, limit=LONGEST_LINE)
    try:
        writer.write(f"POST /v1/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
        await writer.drain()
        status = (await reader.readuntil(b"\r\n")).split()
        while (await reader.readuntil(b"\r\n")) != b"\r\n":
            pass
        if len(status) < 2 or status[1] != b"200":
            text = await reader.read(300)
            raise ValueError(f"status {status[1].decode() if len(status) > 1 else '?'}: {text.decode('utf-8', 'replace')!r}")
        if not await _read_stream(reader, result, clock, began, settings.leave_after):
            result.left += 1
            return
    finally:
        writer.close()
    result.finished += 1
    result.end_to_end.append(clock() - began)


async def _read_stream(
    reader: asyncio.StreamReader, result: LoadResult, clock: Callable[[], float], began: float, leave_after: int | None
) -> bool:
    """Server-sent events: `data: {json}` lines up to `data: [DONE]`. The lengths of HTTP's chunks stand between them in lines
    of their own and are passed over. False when it stopped before the end, after `leave_after` outputs."""
    last = None
    outputs = 0
    while line := await reader.readline():
        if not line.startswith(b"data: "):
            continue
        text = line[6:].strip()
        if text == b"[DONE]":
            return True
        event = json.loads(text)
        if event.get("error"):
            raise ValueError(f"error in the stream: {event['error']}")
        if any(choice.get("text") for choice in event.get("choices", ())):
            now = clock()
            (result.time_to_first_token if last is None else result.inter_token_latency).append(now - (last or began))
            last = now
            outputs += 1
            if leave_after is not None and outputs >= leave_after:
                return False
        usage = event.get("usage")
        if usage:
            result.prompt_tokens += int(usage["prompt_tokens"])
            result.output_tokens += int(usage["completion_tokens"])
    raise ValueError("the stream ended early (the server closed the connection)")


def line_of(result: LoadResult) -> str:
    """One line for a person."""
    seconds = result.seconds or 1e-9
    first, between = quantiles(result.time_to_first_token)["p50"], quantiles(result.inter_token_latency)["p50"]
    parts = [
        f"{result.seconds:.0f} s",
        f"{result.finished} requests",
        f"{result.output_tokens / seconds:.0f} output tokens/s",
        "TTFT p50 " + (f"{first * 1000:.0f} ms" if first is not None else "n/a"),
        "ITL p50 " + (f"{between * 1000:.1f} ms" if between is not None else "n/a"),
    ]
    if result.failed:
        newest = list(result.errors)[-1]
        parts.append(f"{result.failed} failed ({newest[:80]})")
    return ", ".join(parts)


def summary(result: LoadResult) -> str:
    """Several lines for a person, at the end."""
    seconds = result.seconds or 1e-9
    lines = [
        f"{result.finished} requests in {result.seconds:.1f} s, {result.failed} failed",
        f"throughput   {result.output_tokens / seconds:.1f} output tokens/s, {result.prompt_tokens / seconds:.1f} prompt "
        f"tokens/s, {result.finished / seconds:.2f} requests/s",
    ]
    for name, values in (
        ("TTFT", result.time_to_first_token),
        ("ITL", result.inter_token_latency),
        ("end to end", result.end_to_end),
    ):
        shares = ", ".join(f"{share} {value * 1000:.1f} ms" for share, value in quantiles(values).items() if value is not None)
        lines.append(f"{name:<12} {shares or 'n/a'}")
    lines += [f"failed       {count} × {reason}" for reason, count in result.errors.items()]
    return "\n".join(lines)
