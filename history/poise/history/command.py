"""`poise history stats` and `export`: the edge where a history's file, arguments and output meet. Reads only, also while `poise up` runs."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from poise.exporter.settings import SettingsError
from poise.history import export, moments, settings
from poise.history.durations import format_duration
from poise.history.output import write
from poise.history.promql.engine import Engine
from poise.history.promql.errors import QueryError
from poise.history.querier.door import matchers
from poise.history.settings import HistorySettings
from poise.history.statistics import Statistics, statistics
from poise.history.store.read_only import ReadOnlyStore
from poise.history.store.sqlite_file import ReadFailed, StoreError

DONE, COULD_NOT = 0, 2
#: Seconds of a query whose range was not said.
_DEFAULT_RANGE = 3600.0
#: So many steps a query of which the step was not said.
_DEFAULT_STEPS = 360
#: Nobody waits for a page here (seconds).
_QUERY_TIMEOUT = 600.0


class CommandError(Exception):
    """What keeps the command from doing what it was asked; the text tells the person."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poise history`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    stats = actions.add_parser("stats", help="what the history holds: series, samples, room, times, targets")
    stats.add_argument("--json", action="store_true", help="print JSON for machines")
    out = actions.add_parser(
        "export",
        help="write series as OpenMetrics, or one query as CSV",
        description="Without --query: all samples, or those of --match, as OpenMetrics with timestamps, which `promtool tsdb create-blocks-from "
        "openmetrics` makes into blocks for a Prometheus. With --query: the result of a range query as CSV.",
    )
    out.add_argument(
        "--match", action="append", default=[], metavar="SELECTOR", help="series to write, as in 'up{job=\"poise\"}' (repeatable)"
    )
    out.add_argument("--query", metavar="EXPR", help="write the result of this expression as CSV instead")
    out.add_argument(
        "--start",
        metavar="TIME",
        help="from then on: 2026-11-30T08:00:00Z, Unix seconds, or --start=-24h, so long before the end (default: all; of a query 1h)",
    )
    out.add_argument(
        "--end", metavar="TIME", help="until then; --end=-1h, with any --start=-2h, counts from the newest sample (default: that)"
    )
    out.add_argument("--step", metavar="DURATION", help="of a query: time between two values (default: a 360th of the range)")
    out.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    for action in (stats, out):
        action.add_argument("--history", metavar="PATH", help="the history's file (default: that of `poise up`)")
        action.add_argument("--config", metavar="FILE", help="configuration file (default: poise.toml here, if there is one)")


def run(arguments: argparse.Namespace) -> int:
    """Carry out the command; returns the exit code. What a person can mend is one line on stderr."""
    try:
        found = settings.load(arguments, os.environ)
        store = ReadOnlyStore(Path(found.path) if found.path else settings.default_path(os.environ))
        try:
            if arguments.action == "stats":
                _stats(statistics(store), found, as_json=arguments.json)
            else:
                _export(store, arguments)
        finally:
            store.close()
    except (CommandError, SettingsError, StoreError, QueryError, ReadFailed) as error:
        print(f"poise history: {error}", file=sys.stderr)
        return COULD_NOT
    return DONE


# ----------------------------------------------------------------------------------------------------------------------- stats
def _stats(found: Statistics, configured: HistorySettings, *, as_json: bool) -> None:
    if as_json:
        document = {**dataclasses.asdict(found), "retention_seconds": configured.retention, "retention_bytes": configured.retention_size}
        print(json.dumps(document, indent=2))
        return
    per_sample = "" if found.bytes_per_sample is None else f", {found.bytes_per_sample:.2f} bytes each"
    packed = (
        f"{found.samples_in_chunks:,} in {found.chunks:,} chunks{per_sample}"
        if found.chunks
        else "none in chunks before the first full hour"
    )
    print(f"history    {found.path}")
    print(
        f"room       {_size(found.file_bytes + found.journal_bytes)} (journal {_size(found.journal_bytes)}); {_size(found.used_bytes)} in use"
    )
    print(f"kept       {format_duration(configured.retention)}, at most {_size(configured.retention_size)}")
    print(f"series     {found.series:,}")
    print(f"samples    {found.samples_in_chunks + found.samples_in_ticks:,}: {found.samples_in_ticks:,} not packed yet, {packed}")
    if found.oldest is not None and found.newest is not None:
        span = format_duration(round(found.newest - found.oldest))
        print(f"times      {moments.written(found.oldest)} to {moments.written(found.newest)} ({span})")
    for target in found.targets:
        newest = "older than an hour" if target.newest is None else f"newest {moments.written(target.newest)}"
        name = f"{target.job}/{target.instance}" if target.job else " of ".join(filter(None, ("rules", target.instance)))
        print(f"target     {name}: {target.series:,} series, {target.samples:,} samples, {newest}")


def _size(count: int) -> str:
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


# ---------------------------------------------------------------------------------------------------------------------- export
def _export(store: ReadOnlyStore, arguments: argparse.Namespace) -> None:
    if arguments.query and arguments.match:
        raise CommandError("--match names series and --query an expression; give one of them")
    if arguments.step and not arguments.query:
        raise CommandError("--step is of a query; series are written with their own samples")
    newest = store.head.newest
    edges = store.reader.edges(shelved=False)
    last = max((at for at in (newest, edges[1] if edges else None) if at is not None), default=None)
    if last is None:
        raise CommandError(f"{store.path} holds no sample yet")
    start, end = _span(arguments, last / 1000)
    if arguments.query:
        step = _step(arguments.step) if arguments.step else max((end - start) / _DEFAULT_STEPS, 1.0)
        _write(export.comma_separated(Engine(store, timeout=_QUERY_TIMEOUT).range(arguments.query, start, end, step)), arguments.output)
        return
    selectors = [matchers(match) for match in arguments.match] or [()]
    _write(export.open_metrics(store, selectors, round(start * 1000), round(end * 1000)), arguments.output)


def _span(arguments: argparse.Namespace, newest: float) -> tuple[float, float]:
    """From when until when, in Unix seconds. "-3m" is three minutes before the end where that is said as a moment, else before the newest sample: a
    history that nobody writes any more has nothing of the three minutes before now."""
    end = _moment(arguments.end, "--end", newest) if arguments.end else newest
    anchor = newest if arguments.end and arguments.end.startswith("-") else end
    begin = end - _DEFAULT_RANGE if arguments.query else min(0.0, end)
    start = _moment(arguments.start, "--start", anchor) if arguments.start else begin
    if start > end:
        whose = f"--end={arguments.end}" if arguments.end else "the newest sample"
        raise CommandError(f"--start={arguments.start} is {moments.written(start)}, after the end, {moments.written(end)} ({whose})")
    return start, end


def _moment(text: str, flag: str, anchor: float) -> float:
    try:
        return moments.moment(text, anchor)
    except ValueError as error:
        raise CommandError(f"{flag}={text}: {error}; write 2026-11-30T08:00:00Z, Unix seconds, or -24h") from None


def _step(text: str) -> float:
    try:
        return moments.length(text)
    except ValueError as error:
        raise CommandError(f"--step={text}: {error}; write 30s or 5m") from None


def _write(lines: Iterable[str], output: Path | None) -> None:
    """The lines, of which one is the frame that every output has."""
    try:
        count = write(lines, output)
    except BrokenPipeError:
        if output is None:  # whoever read it has enough: the whole command's matter
            raise
        raise CommandError(f"--output={output}: its reader left before everything was written") from None
    except OSError as error:
        if output is None:
            raise
        raise CommandError(f"--output={output}: {error.strerror or error}") from None
    if count <= 1:
        print("poise history: nothing in that range of time matches, so that no sample was written", file=sys.stderr)
