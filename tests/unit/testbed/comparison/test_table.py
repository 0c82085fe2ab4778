"""The rows of a comparison, its page, its JSON and its picture."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from poise.testbed.bench import run
from poise.testbed.comparison import command, plot, report, table
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import RECORDED, Content
from tests.unit.testbed.bench.runs import shapes_three_times as runs
from tests.unit.testbed.bench.runs import three_times as three


def test_a_row_for_each_shape_over_its_repetitions() -> None:
    made = table.compare(runs())
    assert [(row.shape, row.gpus, len(row.runs)) for row in made.rows] == [("single", 1, 3), ("tp", 2, 3), ("pd", 2, 3)]
    single, tp, pd = made.rows
    assert single.output_tokens_per_second.mean == 100
    assert tp.tokens_per_second_per_gpu.mean == 30
    assert [row.verdict.faster for row in made.rows if row.verdict] == [None, False, True]
    assert pd.verdict is not None
    assert pd.verdict.words == "1.50× one card, 0.75× per GPU"
    assert [card.rank for card in tp.cards] == ["TP0", "TP1"]
    assert tp.roles.keys() == {"mixed"}
    assert made.seeds == (1, 2, 3)


def test_real_runs_of_single_and_pd_side_by_side() -> None:
    """Recorded on a machine that was very busy: intervals so wide that nothing can be said, which the verdict says."""
    names = ("run-single-1.json", "run-single-2.json", "run-pd-1.json", "run-pd-2.json")
    made = table.compare([run.read(RECORDED / name) for name in names])
    single, pd = made.rows
    assert (single.gpus, pd.gpus, made.seeds) == (1, 2, (1, 2))
    assert pd.verdict is not None
    assert pd.verdict.words == "no faster than one card: 0.40×, within the spread, 0.20× per GPU"
    assert [(card.engine, card.role) for card in pd.cards] == [("prefill", "prefill"), ("decode", "decode")]
    assert {role: round(share or 0, 2) for role, share in pd.roles.items()} == {"prefill": 0.64, "decode": 0.4}
    assert pd.skew is None
    assert "0.009 ms" in report.page(made), "0 would mean that it was measured as none"
    assert report.command(made) == "poise testbed compare single pd --profile chat --repeat 2 --requests 16 --warmup 4"


def test_without_single_there_is_no_verdict_and_it_is_said() -> None:
    made = table.compare(three("tp", 60.0, 2))
    assert [row.verdict for row in made.rows] == [None]
    assert "`single` is not among the runs" in report.page(made)


def test_with_a_given_rate_the_verdict_is_about_latency() -> None:
    entries = runs()
    for entry in entries:
        entry["workload"]["arrival"] = {"concurrency": None, "rates": [3.0], "burstiness": 1.0}
    made = table.compare(entries)
    assert made.measure == "e2e_p50"
    assert all(row.verdict is not None and not row.verdict.faster for row in made.rows), "the latencies are the same"


def test_a_deployment_with_a_fault_is_a_row_of_its_own() -> None:
    entries = [*three("single", 100.0, 1), *three("tp", 60.0, 2), *three("tp", 50.0, 2)]
    for entry in entries[-3:]:
        entry["deployment"]["fault"] = "one-card"
        entry["id"] += "-2"
    made = table.compare(entries)
    assert [row.shape for row in made.rows] == ["single", "tp", "tp (one-card)"]
    assert report.command(made).startswith("poise testbed compare --runs 20261130-000000-single-chat-1 ")


def test_the_command_that_measures_it_again_stands_in_the_page() -> None:
    made = table.compare(runs())
    assert report.command(made) == "poise testbed compare single tp pd --profile chat --repeat 3"
    assert f"    {report.command(made)}\n" in report.page(made)
    entries = runs()
    for entry in entries:
        entry["workload"]["prompts"]["output_tokens"] = 9
        entry["workload"]["requests"] = [12]
        entry["workload"]["arrival"]["concurrency"] = 3
    assert report.command(table.compare(entries)).endswith("--repeat 3 --output-tokens 9 -c 3 --requests 12")
    for entry in entries:
        entry["profile"]["name"] = "mine"
    assert report.command(table.compare(entries)).endswith("--profile mine.toml --repeat 3")


def test_simulated_cards_are_said_in_table_page_and_json() -> None:
    made = table.compare(runs())
    said = "the figures show shape, not speed"
    assert said in report.page(made)
    assert said in report.plain(made)
    assert said in report.as_dict(made)["note"]
    entries = runs()
    for entry in entries:
        entry["simulated"] = False
    assert report.note(table.compare(entries)) is None


def test_the_page_has_every_column_of_the_article() -> None:
    page = report.page(table.compare(runs()), "images/comparison.svg")
    for column in ("req/s", "output tok/s", "tok/s per GPU", "TTFT p50", "TTFT p99", "ITL p50", "ITL p99", "E2E p50", "E2E p99", "verdict"):
        assert f" {column} |" in page
    for column in ("utilization per card", "per role", "skew", "NVLink bytes per token", "J per output token", "failed"):
        assert f" {column} |" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len(rows) == 2 * (2 + 3)
    assert len({line.count("|") for line in rows[:5]}) == 1
    assert "![Output tokens per second by shape: single 100, tp 60, pd 150](images/comparison.svg)" in page
    assert "no faster than one card: 0.60×, 0.30× per GPU" in page
    assert "GPU 0 (server TP0" in page


def test_the_json_has_every_figure_of_the_page() -> None:
    value = json.loads(json.dumps(report.as_dict(table.compare(runs()))))
    assert value["schema_version"] == report.SCHEMA_VERSION
    row = value["rows"][1]
    assert row["output_tokens_per_second"]["mean"] == 60
    assert row["output_tokens_per_second"]["spread"] == pytest.approx(2 / 60)
    assert row["latency"]["ttft"]["p99"]["mean"] == pytest.approx(0.70079, abs=1e-5)
    assert row["verdict"]["faster"] is False


def ramp() -> list[Content]:
    entries = runs()
    for entry in entries:
        entry["workload"]["arrival"] = {"concurrency": None, "rates": [1.0, 2.0, 4.0], "burstiness": 1.0}
        entry["workload"]["requests"] = [8, 16, 32]
        step = entry["steps"][0]
        entry["steps"] = [{**step, "rate": rate, "saturated": rate == 4.0} for rate in (1.0, 2.0, 4.0)]
        entry["headline"] = 2
    entries[-1]["steps"] = entries[-1]["steps"][:2]
    entries[-1]["headline"] = 1
    return entries


def test_a_ramp_has_its_curve_as_far_as_every_repetition_came() -> None:
    made = table.compare(ramp())
    assert [[point.rate for point in row.curve] for row in made.rows] == [[1, 2, 4], [1, 2, 4], [1, 2]]
    assert "| tp | 4 | 60 |" in report.page(made)
    assert made.rows[0].curve[-1].saturated


def test_page_json_and_pictures_are_written_together(tmp_path: Path) -> None:
    """One test for all that needs a picture: drawing one takes seconds."""
    entries = ramp()
    for entry in entries[-3:]:
        entry["deployment"]["shape"] = "$x^$\x1b[31m<b>&中"
    made = table.compare(entries)
    written = command.write(made, tmp_path / "out", plotted=True)
    assert [path.relative_to(tmp_path / "out").as_posix() for path in written] == [
        "comparison.md",
        "comparison.json",
        "images/comparison.svg",
        "images/comparison.png",
    ]
    assert written[3].read_bytes().startswith(b"\x89PNG")
    words = " ".join(" ".join(ElementTree.parse(written[2]).getroot().itertext()).split())
    titles = (
        "Output tokens per second",
        "Time to first token",
        "Inter-token latency",
        "Utilization of each card",
        "end-to-end latency p50, ms",
    )
    for title in (*titles, "the figures show shape, not speed"):
        assert title in words
    assert "mathdefault" not in words, "numbers of the axes are read as formulas"
    assert "$x^$\\x1b[31 m<b>&中 2 GPUs" in words, "a name is no formula, and breaks no picture"
    again = plot.draw(made, tmp_path / "again" / "comparison", ("svg",))[0]
    assert again.read_bytes() == written[2].read_bytes(), "the same runs make the same picture"


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TestbedError, match="the comparison cannot be written to"):
        command.write(table.compare(runs()), tmp_path / "file", plotted=False)


def test_no_run_is_no_comparison() -> None:
    with pytest.raises(TestbedError, match="there is no run"):
        table.compare([])
