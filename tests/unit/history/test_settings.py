"""Settings of the history: layers, places, and what each mistake is told."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from poise.exporter.settings import SettingsError
from poise.history.settings import HistorySettings, default_path, field_names, load, retention_size, with_local
from poise.history.targets import parse_target


def read(tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, **flags: object) -> HistorySettings:
    file = tmp_path / "poise.toml"
    file.write_text(text)
    return load(argparse.Namespace(config=str(file), **flags), environment or {})


def test_without_a_word_it_is_seven_days_and_nobody_is_scraped(tmp_path: Path) -> None:
    assert read(tmp_path) == HistorySettings("", 604_800.0, 2_000_000_000, ())


def test_file_then_environment_then_flags(tmp_path: Path) -> None:
    text = """
[history]
path = "kept/h.db"
retention = "2d"
retention_size = "500MB"
[[target]]
name = "gpu-1"
url = "https://gpu-1:9747"
ca_file = "ca.pem"
[[target]]
name = "gpu-2"
url = "http://gpu-2:9747"
"""
    found = read(tmp_path, text)
    assert (found.path, found.retention, found.retention_size) == (str(tmp_path / "kept/h.db"), 172_800.0, 500_000_000)
    assert [target.name for target in found.targets] == ["gpu-1", "gpu-2"]
    assert found.targets[0].access.ca_file == str(tmp_path / "ca.pem")
    variables = {"POISE_HISTORY_RETENTION": "36h", "POISE_HISTORY_TARGETS": "a=http://a;b=http://b", "POISE_HISTORY_SERVICE_HOST": "1"}
    found = read(tmp_path, text, variables, history="/x.db")
    assert (found.path, found.retention, [target.name for target in found.targets]) == ("/x.db", 129_600.0, ["a", "b"])
    found = read(tmp_path, text, variables, target=["c=http://c", "d=http://d"], history_retention="1h", history_size="10MB")
    assert ([target.name for target in found.targets], found.retention, found.retention_size) == (["c", "d"], 3600.0, 10_000_000)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[history]\nretention = "7 days"', 'retention=7 days: "7 days" is no duration'),
        ("[history]\nretention = 7", "expected a duration such as 7d"),
        ('[history]\nretention = "10m"', "must lie between 1h and 100y"),
        ('[history]\nretention_size = "2 GiB"', "expected a size such as 500MB or 2GB"),
        ("[history]\nretention_size = 5", "must be at least 10MB"),
        ('[history]\nretension = "7d"', "unknown key 'retension' in [history]; did you mean 'retention'?"),
        ("[history]\ntargets = []", "write [[target]]"),
        ('[histroy]\npath = ""', "unknown table [histroy]; did you mean [history]?"),
        ("[[targets]]\nname = 'a'", "unknown table [targets]; write [[target]] for each of them"),
        ("[target]\nname = 'a'", "expected a list of tables with name and url"),
        ("[[target]]\nname = 'a'\nurl = 'http://a'\npassword = 'geheim'", "password would hold a secret"),
        ("history = 3", "history must be a table, [history]"),
    ],
)
def test_each_mistake_is_named_with_its_file(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, text)
    assert words in str(caught.value)
    assert "poise.toml" in str(caught.value)
    assert "geheim" not in str(caught.value)


def test_mistakes_in_environment_and_flags_name_the_variable_and_the_flag(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="unknown environment variable POISE_HISTORY_RETENTON; did you mean 'POISE_HISTORY_RETENTION'"):
        read(tmp_path, "", {"POISE_HISTORY_RETENTON": "7d"})
    with pytest.raises(SettingsError, match="--target=a: expected NAME=URL"):
        read(tmp_path, target=["a"])
    local = parse_target("a=http://127.0.0.1:9747")
    with pytest.raises(SettingsError, match="target 'a' stands twice"):
        with_local(read(tmp_path, target=["a=http://b"]), local)
    assert with_local(read(tmp_path, target=["b=http://b"]), local).targets[0] == local


def test_the_default_place_follows_the_environment() -> None:
    assert default_path({"HOME": "/h"}) == Path("/h/.local/state/poise/history.db")
    assert default_path({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/poise/history.db")
    assert default_path({"HOME": "/h", "POISE_STATE_DIR": "/p"}) == Path("/p/history.db")


def test_sizes_and_keys() -> None:
    assert [retention_size(text) for text in ("10mb", "2GB", "1 TB", 12_345_678)] == [10**7, 2 * 10**9, 10**12, 12_345_678]
    assert field_names() == ("path", "retention", "retention_size", "targets")
