"""Whatever stands in file, environment or flags: it is taken, or refused in one line that names where, what and the way out, without secrets."""

from __future__ import annotations

import argparse
import contextlib
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from poise.exporter import setting_flags, settings
from poise.exporter.nvml import registry
from poise.exporter.settings import ExporterSettings, SettingsError

from tests.complaints import complaint

KEYS = settings.field_names()
SECRET = "hunter2"
#: Values in whose insides something may be a secret: in a URL, behind a word for one, in a table that is wrong in another way.
WITH_SECRET = [
    f"a=http://user:{SECRET}@h:8000",
    f"a=http://h:8000,token={SECRET}",
    f"a=http://h:8000,password={SECRET},role=x",
    f"a=http://h:8000,api_key='{SECRET}'",
    [{"name": "a", "url": "http://h:1", "token": SECRET}],
    [{"name": "a", "url": f"http://u:{SECRET}@h:1"}],
    [{"name": "a", "url": "http://h:1", "password": SECRET, "role": 5}],
    {"password": SECRET, "nvlink": 5},
]

WORDS = st.text(max_size=12) | st.sampled_from(["1s", "true", "0", "-1", "1e999", ":9747", "a=http://h:1", "a=b", "info", "\0", "\udcff"])
VALUES = st.recursive(
    st.booleans() | st.integers() | st.floats() | WORDS | st.dates() | st.times(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "url", "role", "gpus", "nvlink"]) | st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=6,
)


def good(said: str, *names: str) -> None:
    """An empty message is one that was not needed."""
    if said:
        assert any(name in said for name in names), said
        assert len(said) < 1500
        assert len(said.splitlines()) == 1


@hypothesis_settings(max_examples=150)
@given(st.sampled_from(KEYS), VALUES)
def test_every_key_takes_or_refuses_every_kind_of_value(key: str, value: object) -> None:
    good(complaint(lambda: settings.from_table(ExporterSettings(), {key: value}, "poise.toml"), SettingsError), f"poise.toml: {key}=")


@hypothesis_settings(max_examples=100)
@given(st.sampled_from(KEYS), WORDS)
def test_every_variable_takes_or_refuses_every_text(key: str, text: str) -> None:
    name = f"POISE_EXPORTER_{key.upper()}"
    good(complaint(lambda: settings.from_environment(ExporterSettings(), {name: text}), SettingsError), f"{name}=")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="poise exporter")
    setting_flags.add_arguments(made, registry.SWITCHES)
    return made


PARSER = parser()
#: The flags that take a value: their names and their keys.
FLAGS = {
    action.option_strings[0]: action.dest
    for action in PARSER._actions
    if action.option_strings and action.nargs is None and action.dest not in ("help", "config")
}


@hypothesis_settings(max_examples=100)
@given(st.sampled_from(sorted(FLAGS)), WORDS)
def test_every_flag_takes_or_refuses_every_text(flag: str, text: str) -> None:
    refused = io.StringIO()
    arguments = None
    with contextlib.redirect_stderr(refused), contextlib.suppress(SystemExit):
        arguments = PARSER.parse_args([f"{flag}={text}"])
    if arguments is None:
        assert flag in refused.getvalue()
        return
    good(complaint(lambda: settings.from_flags(ExporterSettings(), arguments), SettingsError), f"{flag}=")


@pytest.mark.parametrize("value", WITH_SECRET, ids=lambda value: str(value)[:40])
def test_no_message_repeats_a_secret_wherever_it_was_put(value: object) -> None:
    for key in KEYS:
        said = complaint(lambda key=key: settings.from_table(ExporterSettings(), {key: value}, "poise.toml"), SettingsError)
        assert SECRET not in said
        if isinstance(value, str):
            variable = {f"POISE_EXPORTER_{key.upper()}": value}
            assert SECRET not in complaint(lambda variable=variable: settings.from_environment(ExporterSettings(), variable), SettingsError)
            arguments = argparse.Namespace(**{key: [value] if key in ("engines", "routers") else value})
            assert SECRET not in complaint(lambda arguments=arguments: settings.from_flags(ExporterSettings(), arguments), SettingsError)


@hypothesis_settings(max_examples=60)
@given(st.text(alphabet="[]=\"'\n #.exporterngisl123{},", max_size=60))
def test_no_toml_breaks_the_file(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.toml"
    path.write_text("[exporter]\n" + text, encoding="utf-8")
    good(complaint(lambda: settings.from_table(ExporterSettings(), settings.read_file(path), str(path)), SettingsError), str(path))


def test_a_file_that_names_a_file_means_one_beside_it(tmp_path: Path) -> None:
    (tmp_path / "poise.toml").write_text('[exporter]\nweb_config_file = "web.yml"\ninterconnect_file = "measured.json"\n')
    arguments = parser().parse_args([f"--config={tmp_path / 'poise.toml'}"])
    assert settings.load(arguments, {}, ()).web_config_file == str(tmp_path / "web.yml")
    assert settings.load(arguments, {}, ()).interconnect_file == str(tmp_path / "measured.json")
    arguments = parser().parse_args([f"--config={tmp_path / 'poise.toml'}", "--web.config.file="])
    assert settings.load(arguments, {}, ()).web_config_file == "", "an empty flag takes it back"
