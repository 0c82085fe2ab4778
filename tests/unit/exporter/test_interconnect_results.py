"""The file of measured all-reduces: what is written comes back, what is stale or foreign is said and not used, and a hostile file harms nothing."""

from __future__ import annotations

import copy
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import interconnect_results as results
from poise.exporter import metrics as m
from poise.exporter.command import Exporter
from poise.exporter.exposition import Build, Exposition
from poise.exporter.interconnect_readings import interconnect_readings
from poise.exporter.interconnect_results import Kept, Measurement, Run, Size, Usable
from poise.exporter.procfs import ProcFs
from poise.exporter.settings import ExporterSettings

from tests.scenes import START, card, node
from tests.waiting import wait_until

BOOT = "3e2b3db8-218e-470f-b39e-acedc16d669b"
MIB = 1 << 20
PAIR = Measurement(
    backend="nccl",
    ranks=2,
    cards=("GPU-1", "GPU-0"),
    path="NV18",
    nominal=478e9,
    library="2.27.3",
    driver="570.1",
    boot_id=BOOT,
    measured_at=START - 7200,
    runs=(
        Run("on", (Size(1024, 20e-6, 19e-6, 30e-6), Size(256 * MIB, 730e-6, 700e-6, 800e-6))),
        Run("off", (Size(1024, 45e-6, 40e-6, 60e-6), Size(256 * MIB, 15e-3, 14e-3, 17e-3))),
    ),
)
LOOPBACK = replace(
    PAIR, backend="gloo", cards=(), path="loopback", nominal=None, driver="", runs=(Run("none", (Size(1024, 1e-4, 1e-4, 1e-4),)),)
)


def written(*measurements: Measurement) -> dict[str, Any]:
    return json.loads(json.dumps(results.as_json(measurements)))  # type: ignore[no-any-return]  # json gives Any


def usable(kept: Kept, now: float = START, driver: str = "570.1", cards: tuple[str, ...] = ("GPU-0", "GPU-1")) -> Usable:
    return results.usable(replace(kept, boot_id=kept.boot_id or BOOT), now=now, driver=driver, cards=cards)


def test_bandwidths_are_those_of_nccl_tests() -> None:
    size = Size(1_000_000_000, 0.01, 0.01, 0.01)
    assert results.algorithm_bandwidth(size) == 1e11
    assert [results.bus_bandwidth(size, ranks) for ranks in (2, 4, 8)] == [1e11, 1.5e11, 1.75e11]
    assert results.peak(PAIR.runs[0], 2) == (256 * MIB / 730e-6, 256 * MIB)
    assert results.latency(PAIR.runs[0]) == 20e-6


def test_what_is_written_comes_back_the_newest_of_each_group_only() -> None:
    newer = replace(PAIR, cards=("GPU-0", "GPU-1"), measured_at=START - 60)
    assert results.parse(json.dumps(results.as_json([PAIR, LOOPBACK, newer])).encode()) == (newer, LOOPBACK)


def test_only_so_many_groups_are_kept() -> None:
    many = [replace(PAIR, cards=("GPU-0", f"GPU-{number}"), measured_at=START + number) for number in range(1, 40)]
    kept = results.parse(json.dumps(results.as_json(many)).encode())
    assert [each.measured_at for each in kept] == [START + number for number in range(39, 39 - results.MOST_MEASUREMENTS, -1)]


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOME": "/home/ann"}, "/home/ann/.local/state/poise/interconnect.json"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "/s"}, "/s/poise/interconnect.json"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "/s", "POISE_STATE_DIR": "/p"}, "/p/interconnect.json"),
        ({}, "/.local/state/poise/interconnect.json"),
    ],
)
def test_where_the_file_is(environment: dict[str, str], place: str) -> None:
    assert str(results.standard_path(environment)) == place


# ---------------------------------------------------------------------------------------------------------------- validity
@pytest.mark.parametrize(
    ("change", "given", "reason"),
    [
        ({}, {}, ""),
        ({"boot_id": BOOT.replace("3", "4")}, {}, "this machine was booted since, or it is of another machine"),
        ({"measured_at": START + 3600}, {}, "it is from the future"),
        ({"measured_at": START - 40 * 86_400}, {}, "it is older than 30 days"),
        ({}, {"driver": "580.2"}, "the driver was 570.1 and is 580.2"),
        ({}, {"driver": ""}, "the driver was 570.1 and is unknown"),
        ({}, {"cards": ("GPU-0",)}, "GPU-1 does not answer here"),
    ],
)
def test_a_measurement_of_other_times_and_machines_is_said_and_not_used(change: dict[str, Any], given: dict[str, Any], reason: str) -> None:
    found = usable(Kept((replace(PAIR, **change),)), **given)
    assert len(found.measurements) == (0 if reason else 1)
    assert [text.rpartition("does not count: ")[2] for text in found.refused] == ([reason] if reason else [])


def test_a_measurement_without_cards_needs_neither_driver_nor_cards() -> None:
    assert usable(Kept((LOOPBACK,)), driver="", cards=()).measurements == (LOOPBACK,)


# ------------------------------------------------------------------------------------------------------------ hostile files
def test_no_file_is_no_problem_and_a_strange_one_is_said(tmp_path: Path) -> None:
    assert results.read(tmp_path / "none" / "x.json") == Kept()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "huge").write_bytes(b" " * (results.LARGEST_FILE + 1))
    (tmp_path / "text").write_text("hello")
    (tmp_path / "deep").write_text("[" * 100_000)
    (tmp_path / "digits").write_text('{"format": ' + "9" * 5000 + "}")
    (tmp_path / "newer").write_text(json.dumps({"format": results.FORMAT, "version": 2}))
    problems = {path.name: results.read(path).problem for path in tmp_path.iterdir()}
    assert {name: problem.rpartition(": ")[2] for name, problem in problems.items()} == {
        "pipe": f"{tmp_path}/pipe is no ordinary file",
        "huge": f"it has more than {results.LARGEST_FILE} bytes",
        "text": "it is not JSON",
        "deep": "it is nested too deeply",
        "digits": "it is not JSON",
        "newer": "another version of Poise wrote it; measure again",
    }
    assert "cannot be read: " in results.read(tmp_path / ("x" * 300)).problem
    assert results.read(tmp_path).problem == f"{tmp_path} is no ordinary file"


WRONG = [
    ("backend", "mpi"),
    ("ranks", 3),
    ("ranks", True),
    ("ranks", 2.5),
    ("cards", ["GPU-0", "GPU-0"]),
    ("cards", ["GPU-0", 'GPU-"}']),
    ("cards", ["GPU-0", 5]),
    ("cards", "GPU-0"),
    ("path", 'NV18"} 1\nup 1'),
    ("nominal", -1),
    ("nominal", float("nan")),
    ("library", "x" * 65),
    ("library", "2 27"),
    ("driver", None),
    ("boot_id", ""),
    ("measured_at", float("inf")),
    ("measured_at", 10**400),
    ("runs", []),
    ("runs", [1]),
    ("runs", [{"p2p": "none", "sizes": []}]),
    ("runs", [{"p2p": "on", "sizes": []}]),
    ("runs", [{"p2p": "on", "sizes": [{"size_bytes": 1, "seconds": 0, "least": 0, "most": 0}]}]),
    ("runs", [{"p2p": "on", "sizes": [{"size_bytes": 1, "seconds": 2.0, "least": 3.0, "most": 4.0}]}]),
    ("runs", [{"p2p": "on", "sizes": [{"size_bytes": 4, "seconds": 1.0, "least": 1.0, "most": 1.0}] * 2}]),
    ("runs", [{"p2p": "on", "sizes": [{"size_bytes": 4, "seconds": 1.0, "least": 1.0, "most": 1.0}]}] * 2),
]


@pytest.mark.parametrize(("name", "value"), WRONG, ids=[f"{name}-{position}" for position, (name, _) in enumerate(WRONG)])
def test_a_value_that_cannot_be_refuses_the_file_in_words(name: str, value: object) -> None:
    document = written(PAIR)
    document["measurements"][0][name] = value
    with pytest.raises(ValueError, match=r"."):
        results.parse(json.dumps(document).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
def test_whatever_stands_where_it_is_taken_whole_or_refused_and_the_page_stays_well_formed(data: st.DataObject) -> None:
    document = copy.deepcopy(written(PAIR, LOOPBACK))
    place: Any = document
    while isinstance(place, dict | list) and place:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        if data.draw(st.booleans()) or not isinstance(place[key], dict | list):
            place[key] = data.draw(JSON)
            break
        place = place[key]
    try:
        kept = Kept(results.parse(json.dumps(document).encode()))
    except ValueError:
        return
    scene = replace(node([card(0), card(1)]), interconnect=usable(kept))
    for values in interconnect_readings(scene).values():
        assert all(value > 0 for value in values.values())
        assert all(label.isprintable() and '"' not in label for labels in values for label in labels)


# ------------------------------------------------------------------------------------------------------------------ series
def test_series_are_one_of_each_group_and_way() -> None:
    scene = replace(node([card(0), card(1)]), interconnect=Usable((PAIR, LOOPBACK)))
    readings = interconnect_readings(scene)
    assert readings[m.INTERCONNECT_BUS_BANDWIDTH] == {
        ("nccl", "0,1", "on", "NV18"): 256 * MIB / 730e-6,
        ("nccl", "0,1", "off", "NV18"): 256 * MIB / 15e-3,
        ("gloo", "", "none", "loopback"): 1024 / 1e-4,
    }
    assert readings[m.INTERCONNECT_LATENCY]["nccl", "0,1", "on", "NV18"] == 20e-6
    assert readings[m.INTERCONNECT_MEASURED] == {("nccl", "0,1"): START - 7200, ("gloo", ""): START - 7200}
    page = Exposition(Build("1", "3")).render(scene, (), START).decode()
    assert 'poise_interconnect_latency_seconds{backend="nccl",gpus="0,1",p2p="on",path="NV18"} 2e-05\n' in page


def test_without_a_measurement_there_is_no_series() -> None:
    assert "poise_interconnect" not in Exposition(Build("1", "3")).render(node([card(0)]), (), START).decode()


def test_a_running_exporter_shows_what_was_kept(tmp_path: Path) -> None:
    boot_id = ProcFs().boot_id()
    assert boot_id, "the kernel tells which boot this is"
    path = tmp_path / "measured.json"
    path.write_text(json.dumps(results.as_json([replace(LOOPBACK, boot_id=boot_id, measured_at=time.time())])))
    exporter = Exporter(replace(ExporterSettings(), discover=False, interconnect_file=str(path)))
    exporter.start()
    try:
        wait_until(lambda: (published := exporter.latest()) is not None and interconnect_readings(published.snapshot), "the measurement")
    finally:
        exporter.stop()
