"""`poise testbed compare`: words in, table out, files written. Decides nothing itself."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from poise.exporter.logs import visible
from poise.testbed import hardware, paths, shapes
from poise.testbed.bench import arguments as bench_arguments
from poise.testbed.bench import drive, run
from poise.testbed.comparison import campaign, plot, report, table
from poise.testbed.comparison.alike import Run
from poise.testbed.comparison.arguments import DEFAULT_PROFILE, DEFAULT_REPETITIONS
from poise.testbed.comparison.table import Comparison
from poise.testbed.environment import Build
from poise.testbed.errors import TestbedError
from poise.testbed.files import write_json
from poise.testbed.paths import StateLayout
from poise.testbed.planning import Request
from poise.testbed.progress import Progress

STEM = "comparison"


def compare(arguments: argparse.Namespace, progress: Progress, say: campaign.Say) -> int:
    """Measures the shapes, or reads the saved runs, prints the table and writes it with its picture."""
    layout = StateLayout(paths.state_directory(os.environ, arguments.state_dir))
    if bool(arguments.shapes) == bool(arguments.runs):
        raise TestbedError("give the shapes to measure, e.g. `compare single tp`, or saved runs with --runs, and not both")
    if not arguments.no_plot and importlib.util.find_spec("matplotlib") is None:
        raise TestbedError(plot.MISSING)
    if arguments.runs:
        given = [*bench_arguments.profile_options(arguments), *(["--profile"] if arguments.profile else [])]
        if given:
            raise TestbedError(f"{given[0]} makes no sense with --runs: what was sent is in the runs")
        return _show([run.read(_run_path(layout, name)) for name in arguments.runs], arguments, layout, say)
    done: list[drive.Outcome] = []
    try:
        return _show(_measured(arguments, layout, progress, say, done), arguments, layout, say)
    except BaseException:
        # Whatever ended it, Ctrl-C too: what was measured took minutes.
        for line in _kept(done, arguments):
            say(line)
        raise


def _show(contents: Sequence[Run], arguments: argparse.Namespace, layout: StateLayout, say: campaign.Say) -> int:
    comparison = table.compare(contents)
    print(json.dumps(report.as_dict(comparison), allow_nan=False) if arguments.json else report.plain(comparison), flush=True)
    for path in write(comparison, _folder(arguments, layout), plotted=not arguments.no_plot):
        say(f"wrote {visible(str(path))}")
    return 1 if any(row.failed for row in comparison.rows) else 0


def _folder(arguments: argparse.Namespace, layout: StateLayout) -> Path:
    folder: Path = arguments.write or layout.comparisons / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    return folder


def write(comparison: Comparison, folder: Path, plotted: bool) -> list[Path]:
    """comparison.md and .json in `folder`, the picture in its images/; returns the paths. Raises TestbedError.

    The picture comes first: the page shows it."""
    make_folder(folder)
    try:
        pictures = plot.draw(comparison, folder / "images" / STEM) if plotted else []
        page, data = folder / f"{STEM}.md", folder / f"{STEM}.json"
        page.write_text(report.page(comparison, f"images/{STEM}.svg" if plotted else None), encoding="utf-8")
        write_json(data, report.as_dict(comparison))
    except OSError as error:
        raise _unwritable(folder, error) from None
    return [page, data, *pictures]


def make_folder(folder: Path) -> None:
    """Makes the folder and tries it. Raises TestbedError when it takes no file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _unwritable(folder, error) from None


def _unwritable(folder: Path, error: OSError) -> TestbedError:
    return TestbedError(f"the comparison cannot be written to {visible(str(folder))}: {error.strerror or error}")


def _kept(done: Sequence[drive.Outcome], arguments: argparse.Namespace) -> list[str]:
    """What of a campaign that ended early is there, and how to go on with it."""
    if not done:
        return []
    lines = [f"{len(done)} finished repetitions are kept, `poise testbed runs` lists them"]
    repetitions = arguments.repeat or DEFAULT_REPETITIONS
    count = len(done) // repetitions
    whole, missing = arguments.shapes[:count], arguments.shapes[count:]
    if whole:
        options = () if arguments.state_dir is None else ("--state-dir", str(arguments.state_dir))
        names = [outcome.content["id"] for outcome in done[: count * repetitions]]
        lines.append(f"measured whole: {', '.join(whole)}; their table: {report.runs_command(names, *options)}")
    if missing:
        lines.append(f"not measured whole: {', '.join(missing)}; compare them in the same words later, then give --runs the runs of all")
    return [visible(line) for line in lines]


def _measured(
    arguments: argparse.Namespace, layout: StateLayout, progress: Progress, say: campaign.Say, done: list[drive.Outcome]
) -> list[dict[str, Any]]:
    """`done` is filled as repetitions are saved."""
    build: Build = "gpu" if hardware.detect().has_gpus else "cpu"
    arguments.profile = arguments.profile or DEFAULT_PROFILE
    profile = bench_arguments.chosen_profile(arguments, build)
    if len(set(arguments.shapes)) < len(arguments.shapes):
        raise TestbedError("a shape is given twice: --repeat N loads each N times")
    if len(arguments.shapes) == 1:
        raise TestbedError(
            f"there is nothing to compare {arguments.shapes[0]} with: name another shape (`poise testbed load --profile` measures one)"
        )
    requests = [
        Request(
            shape=shapes.load(name),
            state_directory=layout.root,
            cache_directory=paths.cache_directory(os.environ),
            model=arguments.model,
            any_ports=arguments.any_ports,
            indexes=tuple(arguments.index),
            arguments=tuple(arguments.engine_argument),
        )
        for name in arguments.shapes
    ]
    if arguments.write is not None:
        make_folder(arguments.write)  # before and not after a quarter of an hour
    return campaign.measure(requests, profile, arguments.repeat or DEFAULT_REPETITIONS, layout.runs, progress, os.environ, say, done)


def _run_path(layout: StateLayout, name: str) -> Path:
    """A file, or the name of a run in the state directory."""
    path = Path(name)
    try:
        return path if path.suffix == ".json" or path.exists() else layout.runs / f"{name}.json"
    except OSError:  # no name that a file can have: reading it says so
        return path
