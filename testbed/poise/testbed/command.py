"""`poise testbed …`: the command line of the testbed. Owns arguments, words and exit codes; decides nothing itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from poise.cli import process
from poise.exporter.logs import visible
from poise.testbed import claim, demo, environment, faults, hardware, interrupts, load, paths, plan, ports, shapes, sizing, status, teardown
from poise.testbed.arguments import (
    DEFAULT_CLIENTS,
    DEFAULT_LOAD_SECONDS,
    DEFAULT_MAX_TOKENS,
    DEFAULT_PROMPT_WORDS,
    DEFAULT_SEED,
    add_arguments,
)
from poise.testbed.bench import command as bench
from poise.testbed.bench.arguments import profile_options
from poise.testbed.comparison import command as comparison
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError, file_problem
from poise.testbed.faults import listing
from poise.testbed.interconnect import command as interconnect
from poise.testbed.manifests import command as manifests
from poise.testbed.paths import StateLayout
from poise.testbed.planning import STEP_INSTALL, Request, step_names
from poise.testbed.progress import FileSink, Progress, Sink, TerminalSink
from poise.testbed.request import authorization

__all__ = ["add_arguments", "run"]

# What an interrupt leaves of a command that takes down what it had started. A deployment that was up before stays.
NOTHING_LEFT = "nothing that it started is left running"


def run(arguments: argparse.Namespace) -> int:
    """Carries out one subcommand: 0 done, 1 it failed (one line on stderr says why), 130 Ctrl-C."""
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "install": _install,
        "up": _up,
        "load": _load,
        "runs": bench.list_runs,
        "compare": _compare,
        "fault": _fault,
        "interconnect": _interconnect,
        "kubernetes": _manifests,
        "compose": _manifests,
        "status": _status,
        "logs": _logs,
        "down": _down,
        "demo": _demo,
    }
    with interrupts.as_exceptions():
        try:
            return commands[arguments.testbed_command](arguments)
        except TestbedError as error:
            text = str(error)
            process.tell(_harmless(text if text.startswith("poise: ") else f"poise: {text}"))
            return 1
        except OSError as error:
            if process.is_write_error(error):
                raise
            process.tell(_harmless(f"poise: {file_problem(error, _options(arguments))}"))
            return 1
        except KeyboardInterrupt as interrupted:
            left = interrupts.left_by(interrupted)
            process.tell(f"poise: interrupted{'' if left is None else f', {left}'}")
            return 130


def _options(arguments: argparse.Namespace) -> dict[str, Path]:
    """The flags that name files and folders, with what each names now: those that were given, and where the deployment is."""
    given = {f"--{name.replace('_', '-')}": value for name, value in vars(arguments).items() if isinstance(value, Path)}
    state = {"--state-dir": _layout(arguments).root} if "state_dir" in arguments else {}
    return given | state


def _layout(arguments: argparse.Namespace) -> StateLayout:
    return StateLayout(paths.state_directory(os.environ, arguments.state_dir))


def _install(arguments: argparse.Namespace) -> int:
    build: environment.Build = "gpu" if hardware.detect().has_gpus else "cpu"
    progress = _progress("Installing vLLM", [STEP_INSTALL], None)
    again = "the next `poise testbed install` or `up` begins it again"
    with interrupts.leaves(again), progress.step(STEP_INSTALL, f"{build} build") as note:
        made = environment.install(build, paths.cache_directory(os.environ), arguments.index, note, os.environ)
        note(f"{build} build in {made.folder}", fraction=1.0)
    return 0


def _request(arguments: argparse.Namespace) -> Request:
    sizes = sizing.Sizes(arguments.prefill, arguments.decode, arguments.prefill_tp, arguments.decode_tp)
    return Request(
        shape=sizing.resize(shapes.load(arguments.shape), sizes),
        state_directory=paths.state_directory(os.environ, arguments.state_dir),
        cache_directory=paths.cache_directory(os.environ),
        model=arguments.model,
        fixed_ports=dict(arguments.port),
        any_ports=arguments.any_ports,
        indexes=tuple(arguments.index),
        arguments=tuple(arguments.engine_argument),
    )


def _up(arguments: argparse.Namespace) -> int:
    request = _request(arguments)
    simulated = not hardware.detect().has_gpus
    progress = _progress(request.shape.title, step_names(request, simulated), arguments.progress)
    with interrupts.leaves(NOTHING_LEFT):
        deployment = Deployment.up(request, progress, os.environ, _say)
        deployment.release()
    with interrupts.leaves("the deployment stays: `poise testbed status`"):
        print(status.text(status.look(deployment)))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    request = _request(arguments)
    layout = StateLayout(request.state_directory)
    claim.claim(layout)
    file = arguments.progress or layout.progress
    taken = {"page": demo.PAGE_PORT} if arguments.page_port == demo.PAGE_PORT else {"page": arguments.page_port}
    planned = ports.plan(taken, {} if arguments.page_port == demo.PAGE_PORT else taken)
    for remark in planned.remarks:
        _say(remark)
    settings = demo.DemoSettings(planned.ports["page"], str(file), arguments.seconds)
    names = step_names(request, simulated=not hardware.detect().has_gpus)
    progress = _progress(f"Testbed: {request.shape.title}", demo.with_page(names), file)
    with interrupts.leaves(NOTHING_LEFT):
        demo.run_demo(request, settings, progress, os.environ, _say)
    return 0


def _load(arguments: argparse.Namespace) -> int:
    with interrupts.leaves("the load has ended"):
        return _send_load(arguments)


def _send_load(arguments: argparse.Namespace) -> int:
    if arguments.profile is not None:
        return bench.load_profile(arguments, _progress(f"Load {arguments.profile}", [], None), _say)
    measured = profile_options(arguments)
    if measured:
        raise TestbedError(f"{measured[0]} belongs to measured load: give --profile as well, e.g. --profile chat")
    url, model = arguments.url, arguments.model
    if url is None or model is None:
        deployment = Deployment.open(paths.state_directory(os.environ, arguments.state_dir))
        url = url or (deployment.engine(arguments.engine).url if arguments.engine else deployment.plan.url)
        model = model or deployment.plan.served_name
    endless = arguments.forever or arguments.requests is not None
    settings = load.LoadSettings(
        url=url,
        model=model,
        concurrency=arguments.concurrency or DEFAULT_CLIENTS,
        requests=arguments.requests,
        seconds=None if endless else (arguments.seconds or DEFAULT_LOAD_SECONDS),
        prompt_words=arguments.prompt_words or DEFAULT_PROMPT_WORDS,
        max_tokens=arguments.max_tokens or DEFAULT_MAX_TOKENS,
        pause_seconds=arguments.pause or 0.0,
        seed=DEFAULT_SEED if arguments.seed is None else arguments.seed,
        headers=authorization(os.environ),
    )
    result = load.LoadResult()
    try:
        asyncio.run(_show_load(settings, result))
    finally:
        if arguments.json:
            print(json.dumps(result.as_dict()))
        else:
            print(load.summary(result))
    return 1 if result.finished == 0 else 0


def _compare(arguments: argparse.Namespace) -> int:
    with interrupts.leaves(NOTHING_LEFT):
        return comparison.compare(arguments, _progress("Comparison", [], None), _say)


def _interconnect(arguments: argparse.Namespace) -> int:
    with interrupts.leaves(NOTHING_LEFT):
        return interconnect.run(arguments, _progress, _say)


async def _show_load(settings: load.LoadSettings, result: load.LoadResult) -> None:
    """Raises KeyboardInterrupt after Ctrl-C or SIGTERM, once the clients have ended."""
    stop = asyncio.Event()
    # An exception thrown into whatever the event loop just does could get lost in it.
    for number in interrupts.heeded():
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    task = asyncio.create_task(load.run_load(settings, result, time.monotonic, stop))
    live = sys.stderr.isatty()
    shown = time.monotonic()
    while not task.done():
        await asyncio.wait([task], timeout=1.0)
        if live:
            process.tell("\r\x1b[2K" + load.line_of(result)[: shutil.get_terminal_size().columns - 1], end="")
        elif time.monotonic() - shown >= load.QUIET_LINE_SECONDS:
            shown = time.monotonic()
            process.tell(load.line_of(result))
    if live:
        process.tell("\r\x1b[2K", end="")
    await task
    if stop.is_set():
        raise KeyboardInterrupt


def _fault(arguments: argparse.Namespace) -> int:
    if arguments.json and not arguments.list:
        raise TestbedError("--json goes with --list")
    if arguments.list:
        layout = _layout(arguments)
        current = plan.read(layout.plan) if layout.plan.exists() else None
        table = faults.FAULTS
        print(json.dumps(listing.as_dict(table, current), indent=1) if arguments.json else listing.text(table, current))
        return 0
    deployment = Deployment.open(paths.state_directory(os.environ, arguments.state_dir))
    if arguments.undo:
        with interrupts.leaves("the deployment may be mended in part: `poise testbed fault --undo` goes on from there"):
            restarted = faults.undo(deployment, _progress("Undoing the fault", [], None))
        again = f": restarted {', '.join(restarted)}" if restarted else ""
        gone = [f"{part.name} is {part.state}" for part in status.look(deployment).parts if part.state in ("dead", "absent")]
        if gone:  # a page or a load that somebody killed: whoever started them has to do it again
            raise TestbedError(f"the fault is undone{again}, but {', '.join(gone)}: `poise testbed down`, then up again")
        print(f"healthy again{again}")
        return 0
    fault = faults.find(arguments.name)
    with interrupts.leaves(f"the fault {fault.name} may be in force or half applied: `poise testbed fault --undo` takes it back"):
        faults.apply(deployment, fault, _progress(f"Fault {fault.name}", [], None))
    print(f"in force: {fault.what}; {fault.expected}; `poise testbed fault --undo` takes it back")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = status.look(Deployment.open(paths.state_directory(os.environ, arguments.state_dir)))
    print(json.dumps(found.as_dict(), indent=1) if arguments.json else status.text(found))
    return 0 if found.ready else 1


def _logs(arguments: argparse.Namespace) -> int:
    layout = _layout(arguments)
    found = sorted(layout.logs.glob("*.log")) if layout.logs.is_dir() else []
    chosen = [path for path in found if arguments.part in (None, path.stem)]
    if not chosen:
        there = ", ".join(path.stem for path in found) or "none"
        raise TestbedError(f"no log of {arguments.part or 'any part'} in {layout.logs}: there are {there}")
    follow = ["-F"] if arguments.follow else []
    return subprocess.run(["tail", "-n", str(arguments.lines), *follow, *map(str, chosen)], check=False).returncode


def _down(arguments: argparse.Namespace) -> int:
    layout = _layout(arguments)
    with interrupts.leaves("what has not ended goes on running: `poise testbed down` ends it"):
        removed = teardown.take_down(layout, _say)
    if removed.pids or removed.segments:
        left = f", {len(removed.segments)} shared memory files" if removed.segments else ""
        print(f"ended {len(removed.pids)} processes{left}")
    else:
        print(f"nothing was running in {layout.root}")
    return 0


def _manifests(arguments: argparse.Namespace) -> int:
    with interrupts.leaves("files may be missing: the same command with --force writes them all"):
        return (manifests.kubernetes if arguments.testbed_command == "kubernetes" else manifests.compose)(arguments)


def _progress(title: str, steps: Sequence[str], file: Path | None) -> Progress:
    """Progress on stderr, and in `file` when it is given."""
    sinks: list[Sink] = [TerminalSink(sys.stderr, lambda: shutil.get_terminal_size().columns, time.monotonic)]
    if file is not None:
        sinks.append(FileSink(file))
    return Progress(title, steps, sinks, time.monotonic)


def _say(text: str) -> None:
    process.tell(_harmless(f"poise: {text}"))


def _harmless(text: str) -> str:
    """Lines that quote names and logs of others, without what a terminal acts on."""
    return "\n".join(visible(line) for line in text.split("\n"))
