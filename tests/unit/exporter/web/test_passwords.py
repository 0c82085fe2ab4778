"""Basic auth: right is right, each password is hashed once, and neither time nor memory tells or takes more than it should."""

from __future__ import annotations

import base64
import threading
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.web import passwords
from poise.exporter.web.passwords import Busy, Passwords, credentials

from tests.waiting import PATIENCE_SECONDS, wait_until

bcrypt = pytest.importorskip("bcrypt")


def header(user: str, password: str | bytes) -> str:
    secret = password if isinstance(password, bytes) else password.encode()
    return "Basic " + base64.b64encode(user.encode() + b":" + secret).decode()


def hashed(password: bytes, cost: int = 4) -> str:
    return str(bcrypt.hashpw(password, bcrypt.gensalt(cost)).decode())


USERS = {"alice": hashed(b"open:sesame"), "björn": hashed("ünï".encode())}


class Counted:
    """bcrypt, counting what it is asked; `held` holds it until it is set."""

    def __init__(self) -> None:
        self.asked: list[tuple[bytes, bytes]] = []
        self.held = threading.Event()
        self.held.set()

    def checkpw(self, password: bytes, hashed_password: bytes) -> bool:
        self.asked.append((password, hashed_password))
        assert self.held.wait(PATIENCE_SECONDS)
        return bool(bcrypt.checkpw(password, hashed_password))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    module = ModuleType("bcrypt")
    module.checkpw = found.checkpw  # type: ignore[attr-defined]  # a module made for this test
    monkeypatch.setitem(__import__("sys").modules, "bcrypt", module)
    return found


def test_a_user_with_his_password_is_let_in_and_nobody_else() -> None:
    check = Passwords()
    assert check.right(USERS, header("alice", "open:sesame"))
    assert check.right(USERS, header("björn", "ünï"))
    for wrong in (header("alice", "open"), header("Alice", "open:sesame"), header("bob", "open:sesame"), header("björn", "open:sesame")):
        assert not check.right(USERS, wrong)


@pytest.mark.parametrize(
    "wrong", [None, "", "Basic", "Basic !", "Basic YWxpY2U=", "Bearer x", "Digest a=b", "Basic \xff", "Basic /w==", "Basic  "]
)
def test_what_is_no_basic_auth_is_nobody(wrong: str | None) -> None:
    assert not Passwords().right(USERS, wrong)


def test_each_password_is_hashed_once(counted: Counted) -> None:
    check = Passwords()
    for _ in range(3):
        assert check.right(USERS, header("alice", "open:sesame"))
        assert not check.right(USERS, header("alice", "wrong"))
        assert not check.right(USERS, header("nobody", "wrong"))
    assert len(counted.asked) == 3


def test_another_hash_of_the_same_user_is_checked_anew() -> None:
    check = Passwords()
    assert check.right({"alice": USERS["alice"]}, header("alice", "open:sesame"))
    assert not check.right({"alice": hashed(b"new")}, header("alice", "open:sesame"))
    assert check.right({"alice": hashed(b"new")}, header("alice", "new"))


def test_a_user_that_there_is_not_takes_as_long_as_the_slowest_that_there_is(counted: Counted) -> None:
    users = {"alice": USERS["alice"], "carol": hashed(b"pw", cost=5)}
    assert not Passwords().right(users, header("nobody", "fakepassword"))
    assert [entry[1][:7] for entry in counted.asked] == [b"$2b$05$"]


def test_a_flood_of_wrong_passwords_is_forgotten_and_right_ones_are_not(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords, "MOST_REMEMBERED", 5)
    check = Passwords()
    assert check.right(USERS, header("alice", "open:sesame"))
    for number in range(20):
        assert not check.right(USERS, header("alice", f"{number}"))
    assert len(check._wrong) == 5
    before = len(counted.asked)
    assert check.right(USERS, header("alice", "open:sesame"))
    assert len(counted.asked) == before


def test_few_wait_for_a_hash_and_whoever_is_remembered_waits_for_nobody(counted: Counted) -> None:
    check = Passwords(most_waiting=2)
    assert check.right(USERS, header("alice", "open:sesame"))
    counted.held.clear()
    threads = [threading.Thread(target=check.right, args=(USERS, header("alice", f"{number}"))) for number in range(2)]
    try:
        for thread in threads:
            thread.start()
        wait_until(lambda: check._places._value == 0, "both wait")
        with pytest.raises(Busy):
            check.right(USERS, header("alice", "a third"))
        assert check.right(USERS, header("alice", "open:sesame"))
        assert len(counted.asked) == 2, "one hash is computed at a time"
    finally:
        counted.held.set()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)


@pytest.mark.parametrize("password", [b"x" * 73, b"x" * 5000, b"a\0b", b"", b"\xff\xfe"])
def test_no_password_breaks_the_check(password: bytes) -> None:
    assert not Passwords().right(USERS, header("alice", password))


def test_the_first_72_bytes_count_as_everywhere_else() -> None:
    users = {"alice": hashed(b"x" * 72)}
    assert Passwords().right(users, header("alice", b"x" * 80))


@given(st.text(max_size=60) | st.binary(max_size=40).map(lambda data: "Basic " + base64.b64encode(data).decode()))
def test_no_header_breaks_the_reading(text: str) -> None:
    found = credentials(text)
    assert found is None or isinstance(found[1], bytes)
