"""A setting has one name in `poise.toml`, in the environment, on the command line and in docs/configuration.md, and means the same in all of them."""

from __future__ import annotations

import argparse
import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from poise.exporter import setting_flags, settings
from poise.exporter.access import Access
from poise.exporter.engine_specs import ENGINE_KEYS, EngineSpec
from poise.exporter.nvml import registry
from poise.exporter.router_specs import RouterSpec
from poise.exporter.settings import ExporterSettings
from poise.exporter.snapshot import Role, RouterKind

PAGE = (Path(__file__).parents[3] / "docs" / "configuration.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## poise exporter\n")[2].partition("\n## ")[0]


class Said(NamedTuple):
    """One setting, said in each way: the text after `key =` in TOML, that of the variable, the flags; and what it then is."""

    toml: str
    variable: str
    flags: list[str]
    value: object


ENGINE = EngineSpec("qwen", "http://10.0.0.5:8000", "chat", Role.DECODE, 2)
LOCKED = EngineSpec(
    "qwen",
    "https://10.0.0.5:8443/base",
    access=Access(insecure_skip_verify=True, cert_file="c.pem", key_file="k.pem", username="poise", password_file="secret"),
)
SAID = {
    "listen": Said('":9000"', ":9000", ["--listen=:9000"], ":9000"),
    "interval": Said('"500ms"', "500ms", ["--interval=500ms"], 0.5),
    "engine_interval": Said("20", "20s", ["--engine-interval=20s"], 20.0),
    "engines": Said(
        '[{name = "qwen", url = "http://10.0.0.5:8000", deployment = "chat", role = "decode", gpus = 2}]',
        "qwen=http://10.0.0.5:8000,deployment=chat,role=decode,gpus=2",
        ["--engine", "qwen=http://10.0.0.5:8000,deployment=chat,role=decode,gpus=2"],
        (ENGINE,),
    ),
    "routers": Said(
        '[{name = "front", url = "http://10.0.0.5:30000", deployment = "chat", kind = "vllm-router", metrics = "http://10.0.0.5:29000"}]',
        "front=http://10.0.0.5:30000,deployment=chat,kind=vllm-router,metrics=http://10.0.0.5:29000",
        ["--router", "front=http://10.0.0.5:30000,deployment=chat,kind=vllm-router,metrics=http://10.0.0.5:29000"],
        (RouterSpec("front", "http://10.0.0.5:30000", "chat", RouterKind.VLLM_ROUTER, "http://10.0.0.5:29000"),),
    ),
    "discover": Said("false", "no", ["--no-discover"], False),
    "expected_gpus": Said("8", "8", ["--expected-gpus=8"], 8),
    "collectors": Said("{codec = false}", "codec=off", ["--no-collector.codec"], {"codec": False}),
    "disable_default_collectors": Said("true", "yes", ["--collector.disable-defaults"], True),
    "web_config_file": Said('"web.yml"', "web.yml", ["--web.config.file=web.yml"], "web.yml"),
    "interconnect_file": Said('"measured.json"', "measured.json", ["--interconnect-file=measured.json"], "measured.json"),
    "log_level": Said('"debug"', "debug", ["--log-level=debug"], "debug"),
    "log_format": Said('"json"', "json", ["--log-format=json"], "json"),
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser()
    setting_flags.add_arguments(made, registry.SWITCHES)
    return made


def load(*flags: str, environment: dict[str, str] | None = None) -> ExporterSettings:
    return settings.load(parser().parse_args(list(flags)), environment or {}, registry.SWITCHES)


def test_every_setting_is_tried_here() -> None:
    assert set(SAID) == set(settings.field_names())


@pytest.mark.parametrize("key", SAID)
def test_a_setting_means_the_same_wherever_it_is_said(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = SAID[key]
    expected = dataclasses.replace(ExporterSettings(), **{key: said.value})
    assert load(*said.flags) == expected
    assert load(environment={f"POISE_EXPORTER_{key.upper()}": said.variable}) == expected
    (tmp_path / "poise.toml").write_text(f"[exporter]\n{key} = {said.toml}\n", encoding="utf-8")
    assert load() == expected


def test_what_is_said_of_tls_and_login_means_the_same_in_text_and_in_a_table() -> None:
    options = "insecure_skip_verify=yes,cert_file=c.pem,key_file=k.pem,username=poise,password_file=secret"
    assert load("--engine", f"qwen={LOCKED.url},{options}").engines == (LOCKED,)
    table = {
        "name": "qwen",
        "url": LOCKED.url,
        "insecure_skip_verify": True,
        "cert_file": "c.pem",
        "key_file": "k.pem",
        "username": "poise",
        "password_file": "secret",
    }
    assert settings.from_table(ExporterSettings(), {"engines": [table]}, "x").engines == (LOCKED,)


def test_the_page_names_the_key_of_every_setting_and_no_other() -> None:
    keys = set(re.findall(r"^\| `--[^|]*\| `(\w+)` \|", SECTION, re.MULTILINE))
    # Collectors are a table of their own, shown in the example, with a flag for each.
    assert keys | {"collectors"} == set(settings.field_names())


def test_the_page_names_every_flag_of_the_exporter() -> None:
    flags = {flag for action in parser()._actions for flag in action.option_strings} - {"-h", "--help"}
    assert flags <= set(re.findall(r"`(--[\w.-]+)`", SECTION))


def test_the_example_of_the_page_is_a_file_that_is_taken_and_shows_all_that_can_be_said_of_an_engine() -> None:
    text = "\n".join(line[4:] for line in PAGE.partition("\n## ")[0].splitlines() if line.startswith("    "))
    table: dict[str, Any] = tomllib.loads(text)["exporter"]
    taken = settings.from_table(ExporterSettings(), table, "the example")
    assert taken.engines
    assert len(taken.engines) > 1
    assert set(ENGINE_KEYS) <= set(re.findall(r"\w+", text))
    assert set(taken.collectors) <= set(registry.SWITCHES)
