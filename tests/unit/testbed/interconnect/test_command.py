"""`poise testbed interconnect`: what it shows and keeps, and what it refuses."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path

import pytest
from poise.cli.main import main
from poise.exporter import interconnect_results as results
from poise.exporter.interconnect_results import Measurement, Run, Size
from poise.testbed.errors import TestbedError
from poise.testbed.interconnect import report
from poise.testbed.interconnect.command import keep

BOOT = "3e2b3db8-218e-470f-b39e-acedc16d669b"
MIB = 1 << 20
PAIR = Measurement(
    backend="nccl",
    ranks=2,
    cards=("GPU-0", "GPU-1"),
    path="NV18",
    nominal=450e9,
    library="2.27.3",
    driver="570.1",
    boot_id=BOOT,
    measured_at=1_790_000_000.0,
    runs=(
        Run("on", (Size(1024, 20e-6, 19e-6, 30e-6), Size(256 * MIB, 730e-6, 700e-6, 800e-6))),
        Run("off", (Size(1024, 45e-6, 40e-6, 60e-6), Size(256 * MIB, 15e-3, 14e-3, 17e-3))),
    ),
)

SHOWN = """\
All-reduce over GPUs 0 and 1, joined by NV18 (nccl 2.27.3, 2 ranks, float32, sums checked)
The links of a card to the others carry 450 GB/s in one direction.

with peer-to-peer
  message      median       least        most    algorithm          bus
    1 KiB       20 µs       19 µs       30 µs    51.2 MB/s    51.2 MB/s
  256 MiB      730 µs      700 µs      800 µs   367.7 GB/s   367.7 GB/s

without peer-to-peer (NCCL_P2P_DISABLE=1)
  message      median       least        most    algorithm          bus
    1 KiB       45 µs       40 µs       60 µs    22.8 MB/s    22.8 MB/s
  256 MiB    15000 µs    14000 µs    17000 µs    17.9 GB/s    17.9 GB/s

pass: all-reduce over GPUs 0 and 1 (NV18) reaches 368 GB/s, 82 % of the 450 GB/s that the links carry"""


def test_tables_and_verdict() -> None:
    assert report.text(PAIR, "GPUs 0 and 1") == SHOWN
    assert not report.failed(PAIR)


def test_a_bad_verdict_has_cause_and_fix_and_fails() -> None:
    bad = replace(PAIR, runs=(replace(PAIR.runs[1], p2p="on"), PAIR.runs[1]))
    assert report.failed(bad)
    *_, verdict, cause, fix = report.text(bad, "GPUs 0 and 1").splitlines()
    assert verdict.startswith("fail: ")
    assert verdict.endswith("NVLink is not used")
    assert cause.startswith("cause: NCCL found no peer-to-peer path")
    assert fix.startswith("fix: NCCL_DEBUG=INFO poise testbed interconnect")


def test_json_has_bandwidths_and_verdict() -> None:
    found = json.loads(json.dumps(report.as_object(PAIR, "GPUs 0 and 1")))
    assert found["verdict"]["status"] == "pass"
    assert found["cards"] == ["GPU-0", "GPU-1"]
    assert [round(run["peak_bus_bandwidth"] / 1e9, 1) for run in found["runs"]] == [367.7, 17.9]
    assert found["runs"][0]["sizes"][0]["bus_bandwidth"] == 1024 / 20e-6


def test_results_of_other_groups_stay_and_those_of_before_the_boot_go(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "interconnect.json"
    old = replace(PAIR, boot_id=BOOT.replace("3", "5"), cards=("GPU-4", "GPU-5"))
    other = replace(PAIR, cards=("GPU-2", "GPU-3"), measured_at=PAIR.measured_at + 1)
    for each in (old, PAIR, other):
        keep(path, each)
    assert results.read(path).measurements == (other, PAIR)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "an exporter of another user reads it"


def test_a_file_that_cannot_be_understood_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "interconnect.json"
    path.write_text("hello")
    keep(path, PAIR)
    assert results.read(path).measurements == (PAIR,)


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TestbedError, match=r"cannot be kept in .*; name another file with --keep"):
        keep(tmp_path / "file" / "interconnect.json", PAIR)


def test_cards_cannot_be_chosen_without_a_driver(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.testbed.hardware.has_nvidia_driver", lambda: False)
    assert main(["testbed", "interconnect", "--gpus", "0,1"]) == 1
    assert capsys.readouterr().err == (
        "poise: --gpus: there is no NVIDIA driver here; without --gpus two processes of the CPU are measured\n"
    )


@pytest.mark.parametrize("words", [["--gpus", "0-1"], ["--sizes", "1T"], ["--iterations", "0"], ["--iterations", "x"]])
def test_words_that_cannot_be_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["testbed", "interconnect", *words])
    assert ended.value.code == 2
    assert words[1] in capsys.readouterr().err
