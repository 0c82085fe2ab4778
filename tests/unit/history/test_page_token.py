"""The token that changes need: made once for its owner alone, read with every use, and every fault of its file named with the way out."""

from __future__ import annotations

import argparse
import logging
import os
import stat
from pathlib import Path

import pytest
from poise.history import page_token, token_command
from poise.history.page_token import PageToken, TokenError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return page_token.token_path({"POISE_STATE_DIR": str(tmp_path / "state")})


def test_it_is_made_at_the_first_start_for_its_owner_alone_and_the_log_says_only_how_to_see_it(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    before = os.umask(0)
    try:
        first = page_token.opened(path)
    finally:
        os.umask(before)
    token = page_token.read(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["token"]
    assert len(token) == 43
    assert [record.message for record in caplog.records] == [
        f"silences and acknowledgements need a token: `poise token` shows it (kept in {path})"
    ]
    caplog.clear()
    assert page_token.opened(path).matches(token)
    assert first.matches(token)
    assert not first.matches("")
    assert not first.matches(token[:-1])
    assert not first.matches("ÿ" + token)
    assert caplog.records == []


def test_another_one_holds_at_once(path: Path) -> None:
    known = page_token.opened(path)
    old = page_token.read(path)
    new = page_token.make(path, anew=True)
    assert new != old
    assert (known.matches(new), known.matches(old)) == (True, False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_one_that_another_process_made_meanwhile_stays(path: Path) -> None:
    token = page_token.make(path)
    assert page_token.make(path) == token


def test_without_a_folder_it_is_of_this_process_alone_and_shown_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    known = page_token.opened(None)
    (line,) = [record.message for record in caplog.records]
    assert "shown only here" in line
    assert known.matches(line.rpartition(" ")[2])
    assert not page_token.opened(None).matches(line.rpartition(" ")[2])


def test_where_no_file_can_be_made_that_is_said_and_changes_are_possible_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "state").write_text("a file where the folder should be")
    known = page_token.opened(tmp_path / "state" / "token")
    assert "POISE_STATE_DIR" in caplog.text
    assert known.matches(caplog.records[-1].message.rpartition(" ")[2])


@pytest.mark.parametrize(
    ("content", "words"), [(b"", "is empty"), (b" \n", "is empty"), (b"short", "holds no token"), (b"\xff\x00" * 40, "holds no token")]
)
def test_a_damaged_file_is_named_with_the_way_out_and_never_quoted(
    path: Path, content: bytes, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    known = page_token.opened(path)
    assert words in caplog.text
    with pytest.raises(TokenError, match=r"poise token --new") as error:
        known.matches("x" * 40)
    assert str(path) in str(error.value)
    assert "short" not in str(error.value)
    assert path.read_bytes() == content
    token = page_token.make(path, anew=True)
    assert known.matches(token)


def test_what_is_no_ordinary_file_holds_nothing_up(path: Path) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(TokenError, match="no ordinary file"):
        page_token.read(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(TokenError, match="no ordinary file"):
        page_token.read(path)
    with pytest.raises(TokenError, match="cannot be made"):
        page_token.make(path, anew=True)


def test_a_file_that_others_can_read_is_said(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = page_token.make(path)
    path.chmod(0o644)
    assert page_token.opened(path).matches(token)
    assert "chmod 600" in caplog.text
    assert token not in caplog.text


def test_a_token_is_never_empty() -> None:
    assert not PageToken(None).matches("")


def test_the_command_prints_it_makes_another_and_says_what_is_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser()
        token_command.add_arguments(parser)
        code = token_command.run(parser.parse_args(words))
        said = capsys.readouterr()
        return code, said.out, said.err

    monkeypatch.setenv("POISE_STATE_DIR", str(path.parent))
    code, out, err = run()
    assert (code, out) == (2, "")
    assert err.startswith(f"poise: there is no {path}; `poise up` makes one")
    code, first, _ = run("--new")
    assert (code, first) == (0, page_token.read(path) + "\n")
    assert run() == (0, first, "")
    assert run("--new")[1] != first
