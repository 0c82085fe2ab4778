"""Who may change something: the token, what browsers say of where a request comes from, kind and size of what is sent."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.dashboard.changes import MOST_BYTES, Gate, Refusal, is_own, shown
from poise.history import page_token
from poise.history.page_token import PageToken
from starlette.datastructures import Headers
from starlette.testclient import TestClient

TOKEN = "t" * 43
RIGHT = {"Authorization": f"Bearer {TOKEN}"}


def client(token: PageToken) -> TestClient:
    gate, app = Gate(token), FastAPI()

    @app.post("/")
    async def change(request: Request) -> JSONResponse:
        try:
            return JSONResponse(await gate.document(request))
        except Refusal as refusal:
            return refusal.answer()

    return TestClient(app, base_url="http://127.0.0.1:9748")


@pytest.fixture(scope="module")
def page() -> TestClient:
    return client(PageToken(None, TOKEN))


def test_with_the_token_a_change_is_let_in(page: TestClient) -> None:
    assert page.post("/", json={"a": 1}, headers=RIGHT).json() == {"a": 1}
    assert page.post("/", json={}, headers={"Authorization": f"bearer  {TOKEN} "}).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, f"Bearer {TOKEN}x", f"Bearer {TOKEN[1:]}", f"Bearer {TOKEN} {TOKEN}", "Bearer \xff"],
)
def test_without_the_token_nothing_is_changed_and_nothing_of_it_is_told(page: TestClient, header: str) -> None:
    answer = page.post("/", json={}, headers={"Authorization": header.encode("latin-1")})  # type: ignore[dict-item]  # bytes are taken
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Bearer realm="poise"')
    assert "the log of this `poise up`" in answer.json()["way_out"]
    assert TOKEN not in answer.text


def test_a_cookie_or_a_parameter_is_no_token(page: TestClient) -> None:
    assert page.post(f"/?token={TOKEN}&access_token={TOKEN}", json={}, headers={"Cookie": f"token={TOKEN}"}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:8080"},
        {"Origin": "https://127.0.0.1:9748.evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://[::1"},
        {"Origin": "file://"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:9748"},
        {"Sec-Fetch-Site": ""},
    ],
)
def test_a_page_of_another_site_changes_nothing_even_with_the_token(page: TestClient, headers: dict[str, str]) -> None:
    answer = page.post("/", json={}, headers={**RIGHT, **headers})
    assert (answer.status_code, "another site" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    ("host", "headers"),
    [
        ("127.0.0.1:9748", {"Origin": "http://127.0.0.1:9748"}),
        ("Poise.example", {"Origin": "https://poise.example"}),
        ("poise.example", {"Origin": "https://poise.example:443"}),
        ("[::1]:9748", {"Origin": "http://[::1]:9748"}),
        # A proxy that names the page to us by another name; the browser says that it is its own all the same.
        ("127.0.0.1:9748", {"Origin": "https://poise.example", "Sec-Fetch-Site": "same-origin"}),
        ("127.0.0.1:9748", {}),
    ],
)
def test_our_own_page_and_no_page_at_all_are_let_in(host: str, headers: dict[str, str]) -> None:
    assert is_own(Headers({"host": host, **headers}))


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "application/jsonp"]
)
def test_what_a_form_could_send_is_refused(page: TestClient, kind: str) -> None:
    answer = page.post("/", content=b"{}", headers={**RIGHT, "Content-Type": kind})
    assert (answer.status_code, answer.json()["field"]) == (415, "Content-Type")


def test_a_request_that_is_too_long_is_refused_before_it_is_read_whole(page: TestClient) -> None:
    sent = 0

    def chunks() -> object:
        nonlocal sent
        for _ in range(1000):
            sent += 1
            yield b" " * 10_000

    headers = {**RIGHT, "Content-Type": "application/json"}
    assert page.post("/", content=chunks(), headers=headers).status_code == 413  # type: ignore[arg-type]  # an iterator of bytes
    assert page.post("/", content=b" " * (MOST_BYTES - 2) + b"{}", headers=headers).status_code == 200
    assert page.post("/", content=b" " * (MOST_BYTES - 1) + b"{}", headers=headers).status_code == 413


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"1", b"null", b"\xff", b"[" * 50_000, b'{"a":' * 10_000, b"9" * 10_000])
def test_what_is_no_json_object_is_refused(page: TestClient, body: bytes) -> None:
    answer = page.post("/", content=body, headers={**RIGHT, "Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["way_out"]) == (400, "send one JSON object")


def test_a_token_file_that_is_of_no_use_is_named_and_lets_nobody_in(tmp_path: Path) -> None:
    path = tmp_path / "token"
    page_token.make(path)
    assert "`poise token` prints" in client(page_token.opened(path)).post("/", json={}).json()["way_out"]
    path.write_text("")
    answer = client(page_token.opened(path)).post("/", json={}, headers={"Authorization": "Bearer x"})
    assert answer.status_code == 503
    assert f"{path} is empty" in answer.json()["error"]
    assert client(page_token.opened(path)).post("/", json={}).status_code == 401


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
@settings(max_examples=15, deadline=None)
def test_any_value_can_be_shown_in_a_message(value: object) -> None:
    text = shown(value)
    assert len(text) <= 102
    assert text.isprintable()
    assert Refusal(400, "e", "w", "field", value).answer().status_code == 400
