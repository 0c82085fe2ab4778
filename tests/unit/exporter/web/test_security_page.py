"""docs/security.md: its examples are taken as they stand, and it names every key of the file and every limit."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from poise.exporter import collect, http_checks, server
from poise.exporter.nvml import registry
from poise.exporter.web import config, passwords

yaml = pytest.importorskip("yaml")

PAGE = (Path(__file__).parents[4] / "docs" / "security.md").read_text(encoding="utf-8")
BLOCKS = [textwrap.dedent(block) for block in re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE, re.MULTILINE)]


def scrape_configs() -> list[dict[str, Any]]:
    return [job for block in BLOCKS if block.lstrip().startswith("scrape_configs:") for job in yaml.safe_load(block)["scrape_configs"]]


def test_the_example_is_a_web_configuration_that_is_taken() -> None:
    (text,) = [block for block in BLOCKS if "tls_server_config:" in block]
    taken = config.parse(text, Path("/etc/poise"))
    assert taken.tls is not None
    assert taken.tls.client_auth is config.ClientAuth.REQUIRE_AND_VERIFY
    assert taken.users
    assert taken.headers
    assert taken.rate_limit == config.RateLimit(0.1, 50)


def test_every_key_and_every_choice_is_named() -> None:
    for word in (*config._TLS_KEYS, *config.VERSIONS, *config.CURVES, *config.ClientAuth, *config._UNCHECKED[:2]):
        assert f"`{word}`" in PAGE or f".{word}`" in PAGE, word
    for word in ("http2", "headers", "basic_auth_users", "rate_limit", str(config.HIGHEST_COST)):
        assert word in PAGE


def test_every_limit_is_named_with_its_value() -> None:
    limits = PAGE.partition("## Limits")[2].partition("\n## ")[0]
    for words in (
        f"| connections | {server.MOST_CONNECTIONS} |",
        f"| {server.CONNECTION_SECONDS:g} s |",
        f"| request line | {http_checks.LONGEST_LINE >> 10} KiB |",
        f"| {http_checks.LARGEST_HEAD >> 10} KiB, 100 headers |",
        f"| {http_checks.LARGEST_BODY >> 10} KiB |",
        f"| {collect.MOST_PARAMETERS} |",
        f"| {passwords.MOST_WAITING} |",
    ):
        assert words in limits


def test_the_scrape_jobs_name_collectors_that_there_are() -> None:
    groups = collect.Groups(collect.groups_of({collector.name: collector.metrics for collector in registry.ALL}))
    chosen = [job["params"]["collect[]"] for job in scrape_configs() if "params" in job]
    assert chosen
    for names in chosen:
        assert groups.chosen("&".join(f"collect[]={name}" for name in names))
