"""`poise testbed load --profile` and `poise testbed runs`: words in, lines out. Decides nothing itself."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable

from poise.cli import process
from poise.exporter.logs import visible
from poise.testbed import paths
from poise.testbed.bench import drive, profile, run, summary
from poise.testbed.bench.arguments import chosen_profile, light_options
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.progress import Progress


def load_profile(arguments: argparse.Namespace, progress: Progress, say: Callable[[str], None]) -> int:
    """Drives the profile that was asked for, prints its summary (JSON with --json) and where it was saved. 1 when a request failed."""
    foreign = light_options(arguments)
    if foreign:
        raise TestbedError(f"{foreign[0]} belongs to the light client: leave out --profile, or {foreign[0]}")
    # Before the deployment, which decides the size only: a wrong name is wrong whatever runs, and to start one takes minutes.
    profile.content(arguments.profile)
    layout = StateLayout(paths.state_directory(os.environ, arguments.state_dir))
    deployment = Deployment.open(layout.root)
    chosen = chosen_profile(arguments, deployment.plan.build)
    outcome = drive.run_profile(deployment, chosen, arguments.save or layout.runs, progress, os.environ, arguments.engine, say)
    print(json.dumps(outcome.content) if arguments.json else summary.summary(outcome.content), flush=True)
    say(f"saved as {outcome.path}")
    return 1 if any(step["client"]["failed"] for step in outcome.content["steps"]) else 0


def list_runs(arguments: argparse.Namespace) -> int:
    """Lists the saved runs, oldest first."""
    folder = arguments.folder or StateLayout(paths.state_directory(os.environ, arguments.state_dir)).runs
    found = run.saved(folder, lambda reason: process.tell(f"poise: passed over: {reason}"))
    if arguments.json:
        print(json.dumps([{**content, "path": str(path)} for path, content in found], allow_nan=False))
    elif found:
        print(summary.listing(found))
    else:
        print(f"no run in {visible(str(folder))}: `poise testbed load --profile chat` saves one")
    return 0
