"""docs/engines.md names every flag and variable that is read, and no other; its numbers are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from poise.exporter.engines import identity, page, poll, source
from poise.exporter.engines.argv import flag_names
from poise.exporter.observed_role import ROLE_MIN_REQUESTS
from poise.exporter.ownership import FOREIGN_USE_BYTES
from poise.exporter.procfs import ENVIRONMENT
from poise.exporter.routers import command_line, roster

TEXT = (Path(__file__).parents[4] / "docs" / "engines.md").read_text()
READ = TEXT[TEXT.index("## What is read") : TEXT.index("## Names and roles")]


def test_every_flag_that_is_read_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"`(--?[a-z][a-z-]*)`", READ))
    assert documented == set(flag_names())


def test_every_variable_that_is_read_is_documented_and_no_other() -> None:
    assert set(re.findall(r"`([A-Z][A-Z0-9_]+)`", READ)) == ENVIRONMENT


def test_every_flag_that_is_read_of_a_router_is_documented_and_no_other() -> None:
    sentence = TEXT[TEXT.index("Of command lines these flags are read") : TEXT.index("vllm-router puts a title")]
    assert set(re.findall(r"`(--[a-z-]+)`", sentence)) == set(command_line.flag_names())


def test_numbers_of_routers_are_those_of_the_code() -> None:
    assert f"at most\n{command_line.BACKENDS_LIMIT} engines of one router are kept" in TEXT
    adr = (Path(__file__).parents[4] / "docs" / "adr" / "0013-who-belongs-together.md").read_text()
    assert f"at most {roster.ROUTER_GRACE:g} s" in adr
    assert f"{ROLE_MIN_REQUESTS} finished requests" in adr


def test_numbers_are_those_of_the_code() -> None:
    limits = page.Limits()
    assert f"Every {source.SCAN_INTERVAL:g} s" in TEXT
    assert f"more than {limits.size // 2**20} MB, {limits.series:,} series, a line of {limits.line_length // 1024} kB" in TEXT
    assert f"no answer within {5 * poll.SHARE_OF_INTERVAL:g} s" in TEXT
    assert f"waits {identity.CLASH_GRACE:g} s for the name" in TEXT
    assert identity.KEEP_GONE == 3600
    assert "for an hour" in TEXT
    assert FOREIGN_USE_BYTES == 2**30
    assert "1 GiB or more" in TEXT
