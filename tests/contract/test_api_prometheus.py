"""Our HTTP API beside the real Prometheus' over the same series: the same documents, the same errors; and the real promtool asks it."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from poise.dashboard.api_prometheus.router import create_router
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.querier.embedded import EmbeddedQuerier
from starlette.middleware.gzip import GZipMiddleware

from tests.needs import needs
from tests.promql_oracle import BASE, LENGTH, prometheus, series, store
from tests.waiting import wait_until

START, END = BASE / 1000 + 0.007, (BASE + LENGTH) / 1000 + 0.007
AT = f"{START + 1200:.3f}"
Parameters = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Both:
    """The addresses of ours and theirs."""

    ours: str
    theirs: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    stored = series()
    querier = EmbeddedQuerier(store(stored), clock=time.monotonic, settings=Settings(semantics=Semantics.PROMETHEUS_2))
    app = FastAPI()
    app.add_middleware(GZipMiddleware, minimum_size=1_000)
    app.include_router(create_router(querier, now=time.time))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.socket() as listener, prometheus(tmp_path_factory.mktemp("api"), stored) as theirs:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, "our server serves")
            yield Both(f"http://127.0.0.1:{listener.getsockname()[1]}", theirs)
        finally:
            server.should_exit = True
            thread.join()


def ask(url: str, path: str, parameters: Parameters, *, post: bool) -> tuple[int, dict[str, Any]]:
    """Status and document."""
    form = urllib.parse.urlencode(parameters)
    request = urllib.request.Request(f"{url}/api/v1/{path}" + ("" if post else f"?{form}"), data=form.encode() if post else None)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def in_order(document: dict[str, Any]) -> dict[str, Any]:
    """With the elements of a vector in order, which nobody promises."""
    data = document.get("data")
    if isinstance(data, dict) and isinstance(data.get("result"), list) and data["resultType"] in ("vector", "matrix"):
        data["result"].sort(key=lambda row: sorted(row["metric"].items()))
    return document


RANGE = (("start", f"{START:.3f}"), ("end", f"{END:.3f}"))
SAME: list[tuple[str, Parameters]] = [
    ("query", [("query", "depth"), ("time", AT)]),
    ("query", [("query", "odd"), ("time", AT)]),
    ("query", [("query", 'requests_total{job="api"}[5m]'), ("time", AT)]),
    ("query", [("query", "count by (job) ({__name__=~'.+'})"), ("time", "2023-11-14T22:33:20.007Z")]),
    ("query", [("query", "-12.5e-3"), ("time", AT), ("timeout", "10s")]),
    ("query", [("query", '"text\\n"'), ("time", AT)]),
    ("query", [("query", "no_such"), ("time", AT)]),
    *(
        ("query", [("query", f"vector({value})"), ("time", AT)])
        for value in ("1e20", "1e21", "123456789e15", "1e-6", "9.9e-7", "1e-300", "0.1", "-0", "NaN")
    ),
    ("query_range", [("query", "limit"), *RANGE, ("step", "60")]),
    ("query_range", [("query", "odd"), *RANGE, ("step", "1m30s")]),
    ("query_range", [("query", "time()"), ("start", "1.5"), ("end", "2.5"), ("step", "0.25")]),
    ("query_range", [("query", "1"), ("start", "2023-11-14T22:33:20Z"), ("end", "2023-11-14T23:33:20+00:00"), ("step", "5m")]),
    ("series", [("match[]", "depth"), ("match[]", 'info{version="1.3"}'), *RANGE]),
    ("series", [("match[]", "no_such")]),
    ("labels", RANGE),
    ("labels", [("match[]", "latency_bucket"), *RANGE]),
    ("metadata", []),
    ("rules", []),
    ("rules", [("type", "alert")]),
    ("alerts", []),
]
WRONG: list[tuple[str, Parameters]] = [
    ("query", []),
    ("query", [("query", "sum(")]),
    ("query", [("query", "depth * on (job) depth"), ("time", AT)]),
    ("query", [("query", "depth"), ("time", "yesterday")]),
    ("query", [("query", "depth"), ("timeout", "1.5h")]),
    ("query_range", [("query", "depth"), *RANGE]),
    ("query_range", [("query", "depth"), *RANGE, ("step", "0")]),
    ("query_range", [("query", "depth"), *RANGE, ("step", "-1")]),
    ("query_range", [("query", "depth"), *RANGE, ("step", "0.1")]),
    ("query_range", [("query", "depth"), ("start", "2"), ("end", "1"), ("step", "1")]),
    ("query_range", [("query", "depth[5m]"), *RANGE, ("step", "60")]),
    ("series", []),
    ("series", [("match[]", "{")]),
    ("series", [("match[]", '{job=~".*"}')]),
    ("labels", [("start", "x")]),
    ("rules", [("type", "nonsense")]),
    ("metadata", [("limit", "x")]),
]


@pytest.mark.parametrize(("path", "parameters"), SAME)
def test_answers_are_the_documents_of_prometheus(both: Both, path: str, parameters: Parameters) -> None:
    get_only = path in ("metadata", "rules", "alerts")
    for post in (False,) if get_only else (False, True):
        ours, theirs = (ask(url, path, parameters, post=post) for url in (both.ours, both.theirs))
        assert (ours[0], in_order(ours[1])) == (theirs[0], in_order(theirs[1]))


@pytest.mark.parametrize(("path", "parameters"), WRONG)
def test_errors_have_the_status_and_the_type_of_prometheus(both: Both, path: str, parameters: Parameters) -> None:
    ours, theirs = (ask(url, path, parameters, post=path not in ("metadata", "rules")) for url in (both.ours, both.theirs))
    assert ours[0] == theirs[0], theirs
    assert ours[1]["status"] == theirs[1]["status"] == "error"
    assert ours[1]["errorType"] == theirs[1]["errorType"]
    assert ours[1]["error"]
    if ours[1]["error"].startswith(("invalid parameter", "exceeded")) and "match" not in str(parameters) and "sum(" not in str(parameters):
        assert ours[1]["error"] == theirs[1]["error"]


def test_label_values(both: Both) -> None:
    for name in ("job", "le", "__name__", "nothing"):
        ours, theirs = (ask(url, f"label/{name}/values", RANGE, post=False) for url in (both.ours, both.theirs))
        assert ours == theirs
    ours, theirs = (ask(url, "label/1x/values", RANGE, post=False) for url in (both.ours, both.theirs))
    assert (ours[0], ours[1]["errorType"]) == (theirs[0], theirs[1]["errorType"]) == (400, "bad_data")


def test_an_answer_is_compressed_for_who_takes_that(both: Both) -> None:
    url = f"{both.ours}/api/v1/query?query=depth[30m]&time={AT}"
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept-Encoding": "gzip"}), timeout=30) as answer:
        assert answer.headers["Content-Encoding"] == "gzip"


def promtool(url: str, *words: str) -> str:
    """What the real promtool prints."""
    command = [needs("promtool"), "query", words[0], *words[1:-1], url, *([words[-1]] if words[-1] else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_promtool_asks_ours_and_theirs_and_prints_the_same(both: Both) -> None:
    start, end = f"--start={START:.0f}", f"--end={END:.0f}"
    questions: Mapping[str, tuple[str, ...]] = {
        "instant": ("instant", f"--time={AT}", "sort(limit)"),
        "range": ("range", start, end, "--step=5m", "sum by (job) (limit)"),
        "series": ("series", '--match=info{job="api"}', start, end, ""),
        "labels": ("labels", start, end, "job"),
    }
    for name, words in questions.items():
        ours, theirs = (sorted(promtool(url, *words).splitlines()) for url in (both.ours, both.theirs))
        assert ours == theirs, name
        assert ours, name
