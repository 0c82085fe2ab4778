"""`poise testbed compare`: words in, table out, files written. Decides nothing itself."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from poise.testbed import hardware, paths, shapes
from poise.testbed.bench import arguments as bench_arguments
from poise.testbed.bench import drive, run
from poise.testbed.comparison import campaign, plot, report, table
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
        contents = [run.read(_run_path(layout, name)) for name in arguments.runs]
    else:
        contents = _measured(arguments, layout, progress, say)
    comparison = table.compare(contents)
    print(json.dumps(report.as_dict(comparison)) if arguments.json else report.plain(comparison), flush=True)
    folder = arguments.write or layout.comparisons / time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    for path in write(comparison, folder, plotted=not arguments.no_plot):
        say(f"wrote {path}")
    return 1 if any(row.failed for row in comparison.rows) else 0


def write(comparison: Comparison, folder: Path, plotted: bool) -> list[Path]:
    """comparison.md and .json in `folder`, the picture in its images/; returns the paths. Raises TestbedError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        pictures = plot.draw(comparison, folder / "images" / STEM) if plotted else []
        page, data = folder / f"{STEM}.md", folder / f"{STEM}.json"
        page.write_text(report.markdown(comparison, f"images/{STEM}.svg" if plotted else None), encoding="utf-8")
        write_json(data, report.as_dict(comparison))
    except OSError as error:
        raise TestbedError(f"the comparison cannot be written to {folder}: {error}") from None
    return [page, data, *pictures]


def _measured(arguments: argparse.Namespace, layout: StateLayout, progress: Progress, say: campaign.Say) -> list[dict[str, Any]]:
    build: Build = "gpu" if hardware.detect().has_gpus else "cpu"
    arguments.profile = arguments.profile or DEFAULT_PROFILE
    profile = bench_arguments.chosen_profile(arguments, build)
    if len(set(arguments.shapes)) < len(arguments.shapes):
        raise TestbedError("a shape is given twice: --repeat N loads each N times")
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
    done: list[drive.Outcome] = []
    try:
        return campaign.measure(requests, profile, arguments.repeat or DEFAULT_REPETITIONS, layout.runs, progress, os.environ, say, done)
    except (KeyboardInterrupt, TestbedError):
        if done:
            print(f"poise: {len(done)} finished repetitions are kept, `poise testbed runs` lists them", file=sys.stderr)
        raise


def _run_path(layout: StateLayout, name: str) -> Path:
    """A file, or the name of a run in the state directory."""
    path = Path(name)
    return path if path.suffix == ".json" or path.exists() else layout.runs / f"{name}.json"
