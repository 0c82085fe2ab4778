"""`poise testbed interconnect`: measures, shows, and keeps what was measured where the exporter looks for it."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from poise.cli import process
from poise.exporter import interconnect_results as results
from poise.exporter.interconnect_results import Measurement
from poise.exporter.procfs import ProcFs
from poise.testbed import environment, hardware, lock, paths
from poise.testbed.errors import TestbedError
from poise.testbed.files import write_json
from poise.testbed.interconnect import cards, measuring, report
from poise.testbed.interconnect.arguments import CPU_SIZES, GPU_SIZES
from poise.testbed.interconnect.sizes import parse_sizes
from poise.testbed.planning import STEP_INSTALL
from poise.testbed.progress import Progress

#: Another measurement that ends just now.
LOCK_SECONDS = 10.0
STEPS = {"on": "With peer-to-peer", "off": "Without peer-to-peer", "none": "Through loopback"}


def run(arguments: argparse.Namespace, progress_of: Callable[..., Progress], say: Callable[[str], None]) -> int:
    """Measures; 0, or 1 when the figures condemn the links. Raises TestbedError.

    `progress_of(title, steps, file)` makes the progress, `say` prints a remark.
    """
    has_gpus = hardware.detect().has_gpus
    if not has_gpus and arguments.gpus is not None:
        raise TestbedError("--gpus: there is no NVIDIA driver here; without --gpus two processes of the CPU are measured")
    group = cards.look(arguments.gpus) if has_gpus else None
    if group is not None and group.busy and not arguments.busy:
        raise TestbedError(f"{'; '.join(group.busy)}: that would spoil the figures, and they would be spoilt; end it, or give --busy")
    left_out = [name for name in measuring.LEFT_OUT if name in os.environ]
    if group is not None and left_out:
        say(f"{', '.join(left_out)} of your environment {'is' if len(left_out) == 1 else 'are'} left out: the node is measured")
    boot_id = ProcFs().boot_id()
    measured = _measure(arguments, group, boot_id, progress_of, process.tell)
    name = group.name if group is not None else ""
    print(json.dumps(report.as_object(measured, name), indent=1) if arguments.json else report.text(measured, name))
    if not arguments.no_keep and not (group is not None and group.busy):
        if not boot_id:
            say("it is not kept: this kernel does not tell which boot this is (/proc/sys/kernel/random/boot_id)")
        else:
            path = arguments.keep or results.standard_path(os.environ)
            keep(path, measured)
            say(
                f"kept in {path}: an exporter of this user on this node shows it within {results.INTERVAL:.0f} s, others with --interconnect-file"
            )
    return 1 if report.failed(measured) else 0


def _measure(
    arguments: argparse.Namespace,
    group: cards.Group | None,
    boot_id: str,
    progress_of: Callable[..., Progress],
    echo: Callable[[str], None],
) -> Measurement:
    ways = ("on", "off") if group is not None else ("none",)
    build: environment.Build = "gpu" if group is not None else "cpu"
    over = group.name if group is not None else f"{measuring.CPU_RANKS} processes, loopback: no GPU is measured"
    progress = progress_of(f"All-reduce over {over}", [STEP_INSTALL, *(STEPS[way] for way in ways)], None)
    with progress.step(STEP_INSTALL, f"{build} build") as note:
        made = environment.install(build, paths.cache_directory(os.environ), (), note, os.environ)
    runs, library = [], ""
    for way in ways:
        wanted = measuring.Wanted(
            python=made.python,
            cards=group.uuids if group is not None else (),
            sizes=arguments.sizes or parse_sizes(GPU_SIZES if group is not None else CPU_SIZES),
            rounds=arguments.iterations,
            p2p=way,
        )
        with progress.step(STEPS[way], "starting") as note:
            measured, library = measuring.measure(wanted, os.environ, note, echo)
        runs.append(measured)
    return Measurement(
        backend="nccl" if group is not None else "gloo",
        ranks=len(group.uuids) if group is not None else measuring.CPU_RANKS,
        cards=group.uuids if group is not None else (),
        path=group.path if group is not None else "loopback",
        nominal=group.nominal if group is not None else None,
        library=library,
        driver=group.driver if group is not None else "",
        boot_id=boot_id,
        measured_at=time.time(),
        runs=tuple(runs),
    )


def keep(path: Path, measured: Measurement) -> None:
    """Adds the measurement to the file; what was measured before this boot goes. Raises TestbedError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with lock.held(path.with_name(f"{path.name}.lock"), "keeping a measurement", timeout=LOCK_SECONDS):
            before = [each for each in results.read(path).measurements if each.boot_id == measured.boot_id]
            write_json(path, results.as_json([*before, measured]))
            # The exporter may run as another user, and nothing in it is a secret.
            path.chmod(0o644)
    except OSError as error:
        raise TestbedError(f"the result cannot be kept in {path}: {error.strerror}; name another file with --keep") from None
