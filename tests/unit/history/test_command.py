"""`poise history`: what it prints of a history that is kept, was kept, or is none."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sqlite3
from pathlib import Path

import pytest
from poise.history import command
from poise.history.promql.labels import Labels, labels
from poise.history.store.store import Store

START = 1_700_000_000 // 3600 * 3600.0


def own(name: str, **more: str) -> Labels:
    return labels({"__name__": name, "job": "poise", **more})


def fill(store: Store, hours: float = 3) -> None:
    for step in range(int(hours * 60)):
        at = START + 60 * step
        store.append("n1", at, {own("up", instance="n1"): 1.0, own("a_total", instance="n1", x='q"\\\n'): float(step)})
        if step < 30:
            store.append("n2", at + 1, {own("up", instance="n2"): 0.0})


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A history of three hours whose process has ended."""
    path = tmp_path_factory.mktemp("kept") / "history.db"
    store = Store(path, wall=lambda: START)
    fill(store)
    store.close()
    return path


def run(path: Path, *words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([words[0], "--history", str(path), *words[1:]]))


def test_stats_of_a_history_in_words_and_as_json(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(kept, "stats") == 0
    text = capsys.readouterr().out
    assert "series     3\n" in text
    assert "target     poise/n1: 2 series, 360 samples, newest 2023-11-15T00:59:00Z" in text
    assert "target     poise/n2: 1 series, 30 samples, older than an hour" in text
    assert "kept       7d, at most 2 GB" in text
    assert run(kept, "stats", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["samples_in_chunks"] + document["samples_in_ticks"] == 390
    assert document["bytes_per_sample"] > 0
    assert document["oldest"] == START
    assert [target["instance"] for target in document["targets"]] == ["n1", "n2"]
    assert document["retention_seconds"] == 604_800


def test_stats_count_the_journal_and_say_what_is_not_packed_yet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.db"
    store = Store(path, wall=lambda: START)
    store.append("n1", START, {own("up", instance="n1"): 1.0})
    assert run(path, "stats") == 0
    text = capsys.readouterr().out
    assert "samples    1: 1 not packed yet, none in chunks before the first full hour\n" in text
    room = next(line for line in text.splitlines() if line.startswith("room"))
    assert float(room.split()[1]) > float(room.split("; ")[1].split()[0])  # both in kB: what is in use is in the file or its journal
    store.close()


def test_an_export_that_matches_nothing_says_so_beside_its_output(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (("--match", "nobody"), "# EOF\n"), (("--query", "nobody"), "time,value\n"):
        assert run(kept, "export", *words) == 0
        captured = capsys.readouterr()
        assert captured.out == told
        assert captured.err == "poise history: nothing in that range of time matches, so that no sample was written\n"


def test_a_history_that_is_being_kept_is_read_beside_its_process_and_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "history.db"
    store = Store(path, wall=lambda: START)
    fill(store, 2)
    assert run(path, "stats", "--json") == 0
    before = json.loads(capsys.readouterr().out)
    store.append("n1", START + 7200, {own("up", instance="n1"): 1.0})
    assert run(path, "stats", "--json") == 0
    after = json.loads(capsys.readouterr().out)
    assert after["newest"] == START + 7200
    assert after["samples_in_ticks"] == before["samples_in_ticks"] + 2  # a_total ended
    store.close()


def test_reading_writes_nothing(kept: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in kept.parent.iterdir()}
    assert run(kept, "export", "--output", str(tmp_path / "out")) == 0
    after = {path.name: path.read_bytes() for path in kept.parent.iterdir()}
    for files in (before, after):  # SQLite's own index of a journal that is empty
        files.pop("history.db-shm", None)
        assert files.pop("history.db-wal", b"") == b""
    assert after == before


def test_export_writes_open_metrics_of_a_time_range_and_of_matching_series(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(kept, "export", "--match", 'up{instance="n1"}', "--match", "a_total", "--start", str(START + 60), "--end", str(START + 120))
        == 0
    )
    assert capsys.readouterr().out == (
        f'a_total{{instance="n1",job="poise",x="q\\"\\\\\\n"}} 1.0 {START + 60:.3f}\n'
        f'a_total{{instance="n1",job="poise",x="q\\"\\\\\\n"}} 2.0 {START + 120:.3f}\n'
        f'up{{instance="n1",job="poise"}} 1.0 {START + 60:.3f}\n'
        f'up{{instance="n1",job="poise"}} 1.0 {START + 120:.3f}\n'
        "# EOF\n"
    )
    assert run(kept, "export", "--match", 'up{instance="n2"}') == 0
    assert len(capsys.readouterr().out.splitlines()) == 31


def test_export_writes_a_query_as_csv(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ("--query", "rate(a_total[5m])", "--start", "2023-11-14T23:00:00Z", "--end", "2023-11-14T23:10:00+00:00", "--step", "5m")
    assert run(kept, "export", *words, "--output", str(out)) == 0
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [float(row["time"]) for row in rows] == [START + 3600, START + 3900, START + 4200]
    assert {row["x"] for row in rows} == {'q"\\\n'}
    assert all(abs(float(row["value"]) - 1 / 60) < 1e-9 for row in rows)
    assert [one.name for one in tmp_path.iterdir()] == ["out.csv"]


@pytest.mark.parametrize(
    ("words", "minutes"),
    [
        (("--start=-3m",), (0, 3)),
        (("--start=-3m", "--end=-1m"), (1, 3)),
        (("--start=-3m", "--end", "2023-11-15T00:49:00Z"), (10, 13)),
        (("--start", "2023-11-15T00:49:00Z", "--end=-5m"), (5, 10)),
    ],
)
@pytest.mark.parametrize("query", [True, False])
def test_relative_times_count_from_the_end_of_a_history_that_nobody_writes(
    kept: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], minutes: tuple[int, int], query: bool
) -> None:
    newest = 1_700_009_940  # 2023-11-15T00:59:00Z
    what = ("--query", 'up{instance="n1"}', "--step", "1m") if query else ("--match", 'up{instance="n1"}')
    assert run(kept, "export", *what, *words) == 0
    lines = capsys.readouterr().out.splitlines()
    times = [float(row["time"]) for row in csv.DictReader(lines)] if query else [float(line.split()[-1]) for line in lines[:-1]]
    assert (times[-1], times[0]) == tuple(newest - 60 * minute for minute in minutes)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("export", "--match", "rate(up[5m])"), "match[] takes a selector"),
        (("export", "--query", "sum("), "unclosed left parenthesis"),
        (("export", "--query", "up", "--match", "up"), "give one of them"),
        (("export", "--step", "5m"), "--step is of a query"),
        (("export", "--start", "yesterday"), '--start=yesterday: cannot parse "yesterday"'),
        (("export", "--query", "up", "--step", "x"), '--step=x: cannot parse "x"'),
        (("export", "--start", "2033-01-01T00:00:00Z"), "is 2033-01-01T00:00:00Z, after the end, 2023-11-15T00:59:00Z (the newest sample)"),
        (("export", "--query", "up", "--start", "2033-01-01T00:00:00Z"), "after the end, 2023-11-15T00:59:00Z (the newest sample)"),
        (("export", "--start", "1e300"), "--start=1e300 is 1e+300, after the end"),
        (
            ("export", "--query", "up", "--start=-1m", "--end=-2m"),
            "is 2023-11-15T00:58:00Z, after the end, 2023-11-15T00:57:00Z (--end=-2m)",
        ),
        (("export", "--output", "/nowhere/x"), "--output=/nowhere/x: No such file or directory"),
    ],
)
def test_each_mistake_is_one_line(kept: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], told: str) -> None:
    assert run(kept, *words) == 2
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.err.count("\n") == 1


def test_what_is_no_history_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none.db", "stats") == 2
    assert "there is no history; name one with --history PATH" in capsys.readouterr().err
    (tmp_path / "text").write_bytes(b"this is no database at all " * 100)
    assert run(tmp_path / "text", "stats") == 2
    assert "cannot be read: file is not a database" in capsys.readouterr().err
    with sqlite3.connect(tmp_path / "newer.db") as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("CREATE TABLE x (a)")
    connection.close()
    assert run(tmp_path / "newer.db", "stats") == 2
    assert "was made by a newer Poise (schema 99" in capsys.readouterr().err
    store = Store(tmp_path / "empty.db")
    store.close()
    assert run(tmp_path / "empty.db", "stats") == 0
    assert run(tmp_path / "empty.db", "export") == 2
    assert "holds no sample yet" in capsys.readouterr().err
