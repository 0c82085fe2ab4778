"""docs/containers.md says what the code, the images and the units do: numbers, names and sentences."""

from __future__ import annotations

import re
from pathlib import Path

from poise.exporter.cgroups import SHORT_ID
from poise.exporter.checks import node_view
from poise.exporter.engines import locate, reach
from poise.exporter.engines.container import HOSTNAME_FILE, NAMESPACE_FILE
from poise.exporter.metrics import ENGINE_POD_INFO

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "containers.md").read_text()


def test_numbers_are_those_of_the_code() -> None:
    assert f"{reach.CONNECT_TIMEOUT:g} s each at most, and again every {locate.SOCKETS_INTERVAL:g} s" in TEXT
    assert f"first {SHORT_ID} digits of the id" in TEXT


def test_files_series_and_checks_exist_under_these_names() -> None:
    assert f"`/{HOSTNAME_FILE}`" in TEXT
    assert f"`/{NAMESPACE_FILE}`" in TEXT
    assert f"poise_engine_pod_info{{{', '.join(ENGINE_POD_INFO.labels)}}}" in TEXT
    assert f"checks/{node_view.NAME}.md" in TEXT
    for name in re.findall(r"`(?:packaging/systemd/)?(poise-[a-z]+\.service)`", TEXT):
        assert (ROOT / "packaging" / "systemd" / name).is_file()
    stages = re.findall(r"--target (\S+)", TEXT)
    assert len(stages) == 2
    assert all(f" AS {stage}\n" in (ROOT / "Dockerfile").read_text() for stage in stages)


def test_every_reason_why_a_container_is_not_asked_is_in_the_table() -> None:
    source = Path(reach.__file__).read_text()
    for words in (
        "does not listen there yet",
        "listens only on the loopback of its own network namespace",
        "has no address besides loopback",
    ):
        assert words in source
        assert words in TEXT
    assert "can be reached from here" in source
    assert "can be reached from here" in TEXT
