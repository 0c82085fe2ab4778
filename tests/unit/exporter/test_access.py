"""What can be said of an engine's TLS and login: contradictions and secrets in the wrong place are refused, in words that show no secret."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from poise.exporter import setting_flags
from poise.exporter.access import KEYS, PLAIN, Access
from poise.exporter.engine_specs import EngineSpec, parse_engine
from poise.exporter.settings import ExporterSettings, SettingsError, from_table, load

SECRET = "hunter2-planted"


def access_of(options: str, url: str = "https://10.0.0.5:8443") -> Access:
    return parse_engine(f"qwen={url},{options}").access


def test_nothing_said_is_nothing_asked() -> None:
    assert parse_engine("qwen=https://10.0.0.5:8443") == EngineSpec("qwen", "https://10.0.0.5:8443", access=PLAIN)
    assert not PLAIN.has_secret


@pytest.mark.parametrize(
    ("options", "access"),
    [
        ("ca_file=/ca.pem,server_name=qwen", Access(ca_file="/ca.pem", server_name="qwen")),
        ("cert_file=c.pem,key_file=k.pem", Access(cert_file="c.pem", key_file="k.pem")),
        ("cert_file=both.pem", Access(cert_file="both.pem")),
        ("insecure_skip_verify=true", Access(insecure_skip_verify=True)),
        ("insecure_skip_verify=off,ca_file=c", Access(ca_file="c")),
        ("bearer_token_file=/t", Access(bearer_token_file="/t")),
        ("bearer_token_env=QWEN_TOKEN", Access(bearer_token_env="QWEN_TOKEN")),
        ("username=poise,password_file=/p", Access(username="poise", password_file="/p")),
        ("username=poise,password_env=LAB", Access(username="poise", password_env="LAB")),
    ],
)
def test_what_is_said_is_taken(options: str, access: Access) -> None:
    assert access_of(options) == access


@pytest.mark.parametrize(
    ("options", "url", "problem"),
    [
        ("ca_file=/ca.pem", "http://h:1", "ca_file is about TLS, and the url is http"),
        ("insecure_skip_verify=true", "http://h:1", "insecure_skip_verify is about TLS"),
        ("key_file=k", "https://h:1", "key_file needs cert_file"),
        ("server_name=.a b", "https://h:1", "server_name '.a b' is no host name"),
        ("insecure_skip_verify=true,ca_file=c", "https://h:1", "ca_file would say nothing"),
        ("insecure_skip_verify=true,server_name=n", "https://h:1", "server_name would say nothing"),
        ("insecure_skip_verify=perhaps", "https://h:1", "insecure_skip_verify: expected true or false"),
        ("bearer_token_file=a,bearer_token_env=B", "https://h:1", "two places for one secret"),
        ("username=u,password_file=a,password_env=B", "https://h:1", "two places for one secret"),
        ("bearer_token_file=a,username=u,password_file=p", "https://h:1", "two ways to log in"),
        ("username=u", "https://h:1", "username needs password_file or password_env"),
        ("password_file=p", "https://h:1", "password_file needs username"),
        ("username=a:b,password_file=p", "https://h:1", "username holds a colon"),
        ("bearer_token_env=not a name", "https://h:1", "not the name of an environment variable"),
        ("ca_file=a\0b", "https://h:1", "expected the path of a file"),
    ],
)
def test_contradictions_are_refused_with_the_way_out(options: str, url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        access_of(options, url)


def parsed(*flags: str) -> ExporterSettings:
    parser = argparse.ArgumentParser()
    setting_flags.add_arguments(parser, {})
    return load(parser.parse_args(list(flags)), {}, ())


@pytest.mark.parametrize("key", ["bearer_token", "token", "api_key", "api-key", "password", "Password", "authorization"])
def test_a_secret_itself_is_refused_and_never_shown(key: str) -> None:
    with pytest.raises(SettingsError) as text:
        parsed("--engine", f"qwen=https://h:1,{key}={SECRET},role=decode")
    with pytest.raises(SettingsError) as table:
        from_table(ExporterSettings(), {"engines": [{"name": "q", "url": "https://h:1", key: SECRET, "role": "decode"}]}, "poise.toml")
    for error in (text, table):
        assert SECRET not in str(error.value)
        assert "_file=FILE" in str(error.value)


@pytest.mark.parametrize("option", [f"bearer_token_env={SECRET}", f"x_password={SECRET}"])
def test_a_secret_in_the_wrong_place_is_not_shown_where_a_word_for_it_stands(option: str) -> None:
    with pytest.raises(SettingsError) as error:
        parsed("--engine", f"qwen=https://h:1,{option}")
    assert SECRET not in str(error.value)


def test_paths_of_secrets_are_shown() -> None:
    with pytest.raises(SettingsError, match="bearer_token_file=/run/token"):
        parsed("--engine", "qwen=https://h:1,bearer_token_file=/run/token,role=nonsense")


def test_a_file_that_the_configuration_names_is_looked_for_beside_it(tmp_path: Path) -> None:
    (tmp_path / "poise.toml").write_text(
        '[[exporter.engines]]\nname = "q"\nurl = "https://h:1"\nca_file = "a.pem"\nbearer_token_file = "/run/token"\n'
    )
    (spec,) = parsed("--config", str(tmp_path / "poise.toml")).engines
    assert spec.access == Access(ca_file=str(tmp_path / "a.pem"), bearer_token_file="/run/token")
    (spec,) = parsed("--engine", "q=https://h:1,ca_file=a.pem").engines
    assert spec.access == Access(ca_file="a.pem")


KEY = st.sampled_from([*KEYS, "gpus", "role", "token", "x", ""])
VALUE = st.text(max_size=8) | st.sampled_from(["true", "off", "/f", "A_B"])


@given(st.lists(st.tuples(KEY, VALUE), max_size=5), st.sampled_from(["http://h:1", "https://h:1/base", "https://h"]))
@settings(max_examples=50)
def test_any_options_are_an_engine_or_an_error_in_words(options: list[tuple[str, str]], url: str) -> None:
    with contextlib.suppress(ValueError):
        spec = parse_engine(f"qwen={url}" + "".join(f",{key}={value}" for key, value in options))
        assert spec.access == PLAIN or {key.strip() for key, _ in options} & set(KEYS)


@given(
    st.dictionaries(
        st.sampled_from(KEYS), st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.lists(st.text()), max_size=4
    )
)
@settings(max_examples=50)
def test_any_table_is_an_engine_or_an_error_in_words(table: dict[str, object]) -> None:
    with contextlib.suppress(SettingsError):
        from_table(ExporterSettings(), {"engines": [{"name": "q", "url": "https://h", **table}]}, "poise.toml")


def test_every_key_is_among_those_that_the_error_names() -> None:
    with pytest.raises(ValueError, match=", ".join(f"{key}=" for key in KEYS)):
        parse_engine("qwen=https://h:1,nonsense=1")
