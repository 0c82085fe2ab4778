"""Runs that are damaged: a readable refusal naming file and field, or a correct answer; no traceback, no NaN, nothing that acts on a terminal."""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from poise.testbed import command

from tests.unit.testbed.bench.damage import Place, damaged, text_of
from tests.unit.testbed.bench.runs import RECORDED, document


@functools.cache
def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="poise testbed")
    command.add_arguments(made)
    return made


def asked(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `poise testbed …`."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = command.run(parser().parse_args(list(words)))
    return code, out.getvalue(), err.getvalue()


def no_number(text: str) -> NoReturn:
    raise AssertionError(f"{text} is no JSON")


def assert_harmless(text: str) -> None:
    assert all(line.isprintable() for line in text.split("\n"))
    assert "Traceback" not in text


def assert_json(text: str) -> Any:
    text.encode()
    return json.loads(text, parse_constant=no_number)


@settings(max_examples=60, deadline=None)
@given(damaged())
def test_any_json_in_the_place_of_any_part_is_refused_by_file_and_field_or_compared(found: tuple[Place, object]) -> None:
    place, content = found
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "spoiled.json", Path(folder) / "out"
        path.write_text(text_of(content), encoding="utf-8")
        words = ("--runs", str(RECORDED / "run-single-1.json"), str(path), "--no-plot", "--write", str(out))
        code, told, errors = asked("compare", *words)
        assert_harmless(told)
        assert_harmless(errors)
        if (out / "comparison.json").exists():
            value = assert_json((out / "comparison.json").read_text(encoding="utf-8"))
            assert "nan" not in told
            assert code == (1 if any(row["failed"] for row in value["rows"]) else 0)
            assert_harmless((out / "comparison.md").read_text(encoding="utf-8"))
        else:
            assert code == 1
            assert errors.count("\n") == 1
            damage = f"{path} is damaged or was edited: " in errors
            assert damage or f"{path} " in errors or "cannot be compared" in errors or "was interrupted" in errors or "the seeds" in errors
            if damage and place and "sha256" not in errors:
                assert str(place[0]) in errors or "a key of the whole" in errors
        # Wherever else it is read.
        code, told, errors = asked("runs", "--folder", folder)
        assert code == 0
        assert_harmless(told + errors)
        code, told, errors = asked("runs", "--folder", folder, "--json")
        assert code == 0
        listed = assert_json(told) if told.startswith("[") else []
        assert len(listed) + errors.count("passed over: ") == 1


def spoiled(folder: Path, name: str, **fields: object) -> str:
    content = document()
    content["steps"][0]["client"] |= fields
    (folder / f"{name}.json").write_text(text_of(content))
    return str(folder / f"{name}.json")


def test_the_list_shows_what_is_whole_and_says_what_is_not(tmp_path: Path) -> None:
    spoiled(tmp_path, "nan", output_tokens_per_second=float("nan"))
    spoiled(tmp_path, "whole")
    code, told, errors = asked("runs", "--folder", str(tmp_path))
    assert code == 0
    assert told.count("20261130-000000-tp-chat-1") == 1
    field = "steps[0].client.output_tokens_per_second"
    assert errors == f"poise: passed over: {tmp_path}/nan.json is damaged or was edited: {field} is NaN and has to be a finite number\n"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"headline": 99}, "headline is 99 and steps has 1 entries"),
        ({"steps": []}, "is no saved run: it has no steps"),
        ({"schema_version": "\x1b[2J"}, 'has schema_version "\\u001b[2J", and this version of Poise reads 1'),
    ],
)
def test_fields_that_do_not_fit_together_are_named(tmp_path: Path, change: dict[str, object], said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text_of(document() | change))
    code, _, errors = asked("compare", "--runs", str(path), str(path), "--no-plot")
    assert code == 1
    assert said in errors
    assert str(path) in errors


def test_an_edited_workload_and_a_step_of_another_rate_are_found(tmp_path: Path) -> None:
    edited, other, silent = document(), document(), document()
    edited["workload"]["prompts"]["input_tokens"] = 1
    other["steps"][0]["rate"] = 3.0
    silent["steps"][0] |= {"observed": None, "unobserved": None}
    for content, said in (
        (edited, "workload.sha256 is not that of the workload"),
        (other, "steps[0].rate is 3.0 and workload.arrival.rates says null"),
        (silent, "steps[0].observed is null and steps[0].unobserved does not say why"),
    ):
        (tmp_path / "a.json").write_text(text_of(content))
        assert said in asked("compare", "--runs", str(tmp_path / "a.json"), "--no-plot")[2]


def test_what_is_no_file_or_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "deep.json").write_text("[" * 100_000)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name, said in (
        (str(tmp_path / "folder.json"), "is no file"),
        (str(tmp_path / "deep.json"), "is no saved run"),
        (str(tmp_path / "bytes.json"), "is no saved run"),
        ("n" * 300, "cannot be read: File name too long"),
        ("", "is no file"),
    ):
        code, _, errors = asked("compare", "--runs", name, "--no-plot")
        assert code == 1
        assert said in errors
        assert errors.count("\n") == 1
    assert asked("runs", "--folder", str(tmp_path))[0] == 0
