"""Routes of the web application through Starlette's test client."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator

import pytest
from poise.dashboard.api_prometheus.router import create_router
from poise.dashboard.app import HEARTBEAT, create_app
from poise.dashboard.live import Live
from poise.dashboard.security import HEADERS
from poise.history.fetch import FetchError
from poise.history.querier.embedded import EmbeddedQuerier
from poise.history.store.store import Store
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.node_scenes import FakeExporter, one_visible


def live_of(exporter: FakeExporter, scrapes: int = 3) -> Live:
    live = Live("http://127.0.0.1:9", fetch=exporter, wall_clock=exporter.clock, clock=exporter.clock)

    async def scrape() -> None:
        for _ in range(scrapes):
            exporter.now += 5
            await live.scrape_once()

    asyncio.run(scrape())
    return live


@pytest.fixture
def client() -> Iterator[TestClient]:
    app = create_app(live_of(FakeExporter(one_visible())), allowed_hosts=frozenset({"localhost"}))
    with TestClient(app, base_url="http://localhost:9748") as made:
        yield made


def test_the_page_its_twin_and_its_fragment(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-store"
    assert "GPU 1 idle" in page.text
    assert "GPU 1 idle" in client.get("/fragment").text
    twin = client.get("/api/poise/v1/overview")
    assert twin.headers["content-type"] == "application/json"
    assert twin.json()["verdict"]["lines"][0]["check"] == "idle_unowned_card"


@pytest.mark.parametrize("path", ["/", "/fragment", "/api/poise/v1/overview", "/metrics", "/healthz", "/static/poise.js", "/nowhere"])
def test_every_answer_carries_the_security_headers(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert {name: headers.get(name) for name in HEADERS} == HEADERS


def test_a_foreign_host_name_is_refused_with_the_way_out(client: TestClient) -> None:
    refused = client.get("/", headers={"Host": "evil.example"})
    assert refused.status_code == 421
    assert "--allow-host" in refused.text
    assert client.get("/metrics", headers={"Host": "evil.example"}).status_code == 421


def test_own_metrics_are_in_text_format_and_no_mount(client: TestClient) -> None:
    client.get("/")
    answer = client.get("/metrics", follow_redirects=False)
    assert answer.status_code == 200
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert {"process_resident_memory_bytes", "poise_dashboard_scrapes", "poise_dashboard_page_seconds"} <= set(families)
    assert {sample.labels["result"]: sample.value for sample in families["poise_dashboard_scrapes"].samples if "result" in sample.labels}[
        "success"
    ] == 3
    assert not any(name.startswith(("poise_gpu", "poise_engine")) for name in families)


def test_health_and_readiness() -> None:
    waiting = FakeExporter(one_visible(), error=FetchError("connection refused"))
    with TestClient(create_app(live_of(waiting))) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503
        assert client.get("/").status_code == 200
    with TestClient(create_app(live_of(FakeExporter(one_visible())))) as client:
        assert client.get("/readyz").status_code == 200


def test_static_files_are_cached_by_content_and_nothing_else_is_served(client: TestClient) -> None:
    script = client.get("/static/htmx.js?v=1", headers={"Accept-Encoding": "gzip"})
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert "immutable" in script.headers["cache-control"]
    assert script.headers["content-encoding"] == "gzip"
    assert "htmx" in script.text
    assert client.get("/static/htmx.js").headers["cache-control"] == "no-cache"
    assert client.get("/static/htmx.js", headers={"If-None-Match": script.headers["etag"]}).status_code == 304
    assert client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"
    for path in (
        "/static/nothing.js",
        "/static/../command.py",
        "/static/%2e%2e/command.py",
        "/static/vendor/htmx.LICENSE",
        "/docs",
        "/openapi.json",
    ):
        assert client.get(path).status_code == 404, path


def test_only_reading_is_possible(client: TestClient) -> None:
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        assert client.request(method, "/").status_code == 405


@pytest.mark.parametrize("strips", [True, False])
def test_under_a_prefix_every_link_carries_it(strips: bool) -> None:
    app = create_app(live_of(FakeExporter(one_visible())), root_path="/poise/")
    prefix = "" if strips else "/poise"
    with TestClient(app, base_url="http://localhost") as client:
        page = client.get(f"{prefix}/").text
        assert 'href="/poise/static/poise.css?v=' in page
        assert 'hx-sse:connect="/poise/events?seen=' in page
        assert 'href="/"' not in page
        assert client.get(f"{prefix}/api/poise/v1/overview").status_code == 200
        assert client.get(f"{prefix}/static/poise.css").status_code == 200


# ------------------------------------------------------------------------------------------------------------------ stream
async def events(live: Live, seen: str, *, last_event_id: str = "", while_open: object = None) -> list[dict[str, str]]:
    """The events of one stream, until `live` closes; `while_open` is a coroutine function that runs beside it and closes it."""
    app = create_app(live)
    sent: list[bytes] = []
    headers = [(b"host", b"localhost"), *([(b"last-event-id", last_event_id.encode())] if last_event_id else [])]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/events",
        "raw_path": b"/events",
        "query_string": f"seen={seen}".encode(),
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
        "root_path": "",
    }

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    async def send(message: dict[str, object]) -> None:
        if message["type"] == "http.response.body":
            body = message.get("body", b"")
            assert isinstance(body, bytes)
            sent.append(body)

    assert callable(while_open)
    stream = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]  # a scope and callables written by hand
    await while_open(lambda: b"".join(sent).decode())
    async with asyncio.timeout(5):
        await stream
    found = []
    for block in b"".join(sent).decode().split("\n\n"):
        fields: dict[str, str] = {}
        for line in block.split("\n"):
            name, _, value = line.partition(":")
            fields[name] = fields[name] + "\n" + value.removeprefix(" ") if name in fields else value.removeprefix(" ")
        found.append(fields)
    return [fields for fields in found if "data" in fields]


async def until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.01)


def test_a_new_scrape_is_pushed_with_its_version_and_what_was_seen_is_not_sent_again() -> None:
    exporter = FakeExporter(one_visible())
    live = live_of(exporter)

    async def run() -> None:
        async def scrape_and_close(text: object) -> None:
            assert callable(text)
            await until(lambda: "retry" in text())
            assert "id:" not in text()
            exporter.now += 5
            await live.scrape_once()
            await until(lambda: "id:" in text())
            await live.close()

        found = await events(live, live.version, while_open=scrape_and_close)
        assert [event["id"] for event in found] == [live.version]
        assert found[0]["data"].startswith("<title>Problem")
        assert "GPU 1 idle" in found[0]["data"]

    asyncio.run(run())


def test_a_reader_with_an_old_version_is_brought_up_to_date_at_once() -> None:
    live = live_of(FakeExporter(one_visible()))

    async def run() -> None:
        async def close(text: object) -> None:
            assert callable(text)
            await until(lambda: "id:" in text())
            await live.close()

        assert len(await events(live, "another-process-7", while_open=close)) == 1
        assert live.metrics.registry.get_sample_value("poise_dashboard_event_streams") == 0

    asyncio.run(run())


def test_the_last_event_id_counts_more_than_the_url() -> None:
    live = live_of(FakeExporter(one_visible()))

    async def run() -> None:
        async def close(text: object) -> None:
            assert callable(text)
            await until(lambda: "retry" in text())
            await live.close()

        assert await events(live, "old", last_event_id=live.version, while_open=close) == []

    asyncio.run(run())


def test_silence_is_broken_by_heartbeats() -> None:
    live = live_of(FakeExporter(one_visible()))

    async def run() -> list[str]:
        found = []
        async for version in live.versions(live.version, heartbeat=0.01):
            found.append(version)
            if len(found) == 2:
                await live.close()
        return found

    assert asyncio.run(run()) == ["", ""]
    assert HEARTBEAT < 30


def test_a_carriage_return_in_a_label_does_not_break_the_stream() -> None:
    from poise.dashboard.app import _message

    assert _message("v", "a\rid: 7\r\nb\nc") == "id: v\ndata: a\ndata: id: 7\ndata: b\ndata: c\n\n"


def test_the_twin_has_no_values_that_json_lacks(client: TestClient) -> None:
    json.loads(client.get("/api/poise/v1/overview").text, parse_constant=lambda constant: pytest.fail(constant))


def test_prometheus_api_is_served_within_the_same_walls() -> None:
    querier = EmbeddedQuerier(Store(None), clock=time.monotonic)
    router = create_router(querier, now=time.time)
    app = create_app(live_of(FakeExporter(one_visible())), root_path="/poise", allowed_hosts=frozenset({"localhost"}), routers=(router,))
    with TestClient(app, base_url="http://localhost:9748") as made:
        for path in ("/api/v1/query", "/poise/api/v1/query"):
            answer = made.get(path, params={"query": "1+1"})
            assert answer.json()["data"]["result"][1] == "2"
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
        assert made.get("/api/v1/query", params={"query": "1"}, headers={"Host": "evil.example"}).status_code == 421
        assert made.get("/api/poise/v1/overview").status_code == 200
    asyncio.run(querier.close())
