"""`poise testbed …`: the command line of the testbed. Owns arguments, words and exit codes; decides nothing itself."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from poise.testbed import demo, environment, faults, hardware, load, paths, ports, shapes, status, teardown
from poise.testbed.deployment import STEP_INSTALL, Deployment, Request, step_names
from poise.testbed.errors import TestbedError
from poise.testbed.paths import StateLayout
from poise.testbed.progress import FileSink, Progress, Sink, TerminalSink
from poise.testbed.request import authorization

LOG_LINES = 100
DEFAULT_LOAD_SECONDS = 30.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Fills in the subcommands of `poise testbed`."""
    commands = parser.add_subparsers(dest="testbed_command", metavar="COMMAND", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--state-dir",
        metavar="DIR",
        help="folder of the deployment (default $POISE_STATE_DIR/testbed or ~/.local/state/poise/testbed)",
    )
    installing = argparse.ArgumentParser(add_help=False)
    installing.add_argument(
        "--index",
        metavar="URL",
        action="append",
        default=[],
        help="a further package index for pip, e.g. the one of PyTorch's CPU builds (also: PIP_EXTRA_INDEX_URL)",
    )

    def add(name: str, words: str, *parents: argparse.ArgumentParser) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=words, description=words[0].upper() + words[1:] + ".", parents=list(parents))

    add("install", "install vLLM into an environment of its own (GPU build with an NVIDIA driver, else the CPU build)", installing)
    up = add("up", "start a deployment and wait until it answers", common, installing)
    up.add_argument("shape", choices=shapes.names(), help="; ".join(f"{n}: {shapes.load(n).title}" for n in shapes.names()))
    _add_up_arguments(up)
    driving = add("load", "send requests and show throughput, time to first token and inter-token latency", common)
    _add_load_arguments(driving)
    breaking = add("fault", "put a fault on the deployment, or take it back", common)
    what = breaking.add_mutually_exclusive_group(required=True)
    what.add_argument("name", nargs="?", choices=[fault.name for fault in faults.FAULTS], help="see --list")
    what.add_argument("--undo", action="store_true", help="bring the healthy deployment back")
    what.add_argument("--list", action="store_true", help="the faults and the alerts that each should raise")
    look = add("status", "processes, roles, cards and readiness", common)
    look.add_argument("--json", action="store_true", help="for machines")
    logs = add("logs", "show the logs of the parts", common)
    logs.add_argument("part", nargs="?", help="one part (see `poise testbed status`); all without")
    logs.add_argument("-f", "--follow", action="store_true", help="go on showing what is added")
    logs.add_argument("-n", "--lines", type=_positive, default=LOG_LINES, help=f"last lines of each (default {LOG_LINES})")
    add("down", "end everything and remove what it left", common)
    show = add("demo", "page, deployment and endless light load in one; Ctrl-C ends all of it", common, installing)
    show.add_argument("shape", nargs="?", default="tp", choices=shapes.names(), help="default tp")
    show.add_argument("--page-port", type=int, default=demo.PAGE_PORT, help=f"of the page (default {demo.PAGE_PORT}, 0: any)")
    show.add_argument("--for", dest="seconds", type=float, metavar="SECONDS", help="end by itself")
    _add_up_arguments(show)


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="folder or Hugging Face name (default: tiny without GPUs, else the Qwen2.5 that fits)")
    parser.add_argument(
        "--port",
        action="append",
        default=[],
        type=_part_port,
        metavar="PART=PORT",
        help="fixed port of a part, e.g. server=8000 or exporter=9747; without, the usual one or the next that is free",
    )
    parser.add_argument("--any-ports", action="store_true", help="take any free ports instead of the usual ones")
    parser.add_argument(
        "--engine-argument",
        action="append",
        default=[],
        metavar="ARGUMENT",
        help="a further argument for `vllm serve`, e.g. --engine-argument=--max-num-seqs=2",
    )
    parser.add_argument("--progress", type=Path, metavar="FILE", help="also write the progress to a JSON file")


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", help="another server than the deployment's first engine")
    parser.add_argument("--engine", help="an engine of the deployment by name")
    parser.add_argument("--model", help="served model name (default: the deployment's)")
    parser.add_argument("-c", "--concurrency", type=_positive, default=4, help="clients (default 4)")
    ends = parser.add_mutually_exclusive_group()
    ends.add_argument("--requests", type=_positive, metavar="N", help="end after N requests")
    ends.add_argument(
        "--for", dest="seconds", type=float, metavar="SECONDS", help=f"end after SECONDS (default {DEFAULT_LOAD_SECONDS:.0f})"
    )
    ends.add_argument("--forever", action="store_true", help="go on until Ctrl-C; outlives restarts of the server")
    parser.add_argument("--prompt-words", type=_positive, default=48, help="words in a prompt (default 48)")
    parser.add_argument("--max-tokens", type=_positive, default=64, help="tokens in an answer (default 64)")
    parser.add_argument("--pause", type=float, default=0.0, metavar="SECONDS", help="between two requests of a client (default 0)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default 1)")
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Carries out one subcommand: 0 done, 1 it failed (one line on stderr says why), 130 Ctrl-C."""
    commands: dict[str, Callable[[argparse.Namespace], int]] = {
        "install": _install,
        "up": _up,
        "load": _load,
        "fault": _fault,
        "status": _status,
        "logs": _logs,
        "down": _down,
        "demo": _demo,
    }
    with _terminated_as_interrupt():
        try:
            return commands[arguments.testbed_command](arguments)
        except TestbedError as error:
            text = str(error)
            print(text if text.startswith("poise: ") else f"poise: {text}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("poise: interrupted, nothing is left running", file=sys.stderr)
            return 130


@contextmanager
def _terminated_as_interrupt() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does; once the cleaning has begun, a second one of either does not stop it."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _install(arguments: argparse.Namespace) -> int:
    build: environment.Build = "gpu" if hardware.has_nvidia_driver() else "cpu"
    progress = _progress("Installing vLLM", [STEP_INSTALL], None)
    with progress.step(STEP_INSTALL, f"{build} build") as note:
        made = environment.install(build, paths.cache_directory(os.environ), arguments.index, note, os.environ)
        note(f"{build} build in {made.folder}", fraction=1.0)
    return 0


def _request(arguments: argparse.Namespace, shape: shapes.Shape) -> Request:
    return Request(
        shape=shape,
        state_directory=paths.state_directory(os.environ, arguments.state_dir),
        cache_directory=paths.cache_directory(os.environ),
        model=arguments.model,
        fixed_ports=dict(arguments.port),
        any_ports=arguments.any_ports,
        indexes=tuple(arguments.index),
        arguments=tuple(arguments.engine_argument),
    )


def _up(arguments: argparse.Namespace) -> int:
    request = _request(arguments, shapes.load(arguments.shape))
    simulated = not hardware.has_nvidia_driver()
    progress = _progress(request.shape.title, step_names(request, simulated), arguments.progress)
    deployment = Deployment.up(request, progress, os.environ, _say)
    deployment.release()
    print(status.text(status.look(deployment)))
    return 0


def _demo(arguments: argparse.Namespace) -> int:
    request = _request(arguments, shapes.load(arguments.shape))
    layout = StateLayout(request.state_directory)
    layout.make()
    file = arguments.progress or layout.root / "progress.json"
    taken = {"page": demo.PAGE_PORT} if arguments.page_port == demo.PAGE_PORT else {"page": arguments.page_port}
    planned = ports.plan(taken, {} if arguments.page_port == demo.PAGE_PORT else taken)
    for remark in planned.remarks:
        _say(remark)
    settings = demo.DemoSettings(planned.ports["page"], str(file), arguments.seconds)
    names = step_names(request, simulated=not hardware.has_nvidia_driver())
    progress = _progress(f"Testbed: {request.shape.title}", demo.with_page(names), file)
    demo.run_demo(request, settings, progress, os.environ, _say)
    return 0


def _load(arguments: argparse.Namespace) -> int:
    url, model = arguments.url, arguments.model
    if url is None or model is None:
        deployment = Deployment.open(paths.state_directory(os.environ, arguments.state_dir))
        url = url or deployment.engine(arguments.engine).url
        model = model or deployment.plan.served_name
    endless = arguments.forever or arguments.requests is not None
    settings = load.LoadSettings(
        url=url,
        model=model,
        concurrency=arguments.concurrency,
        requests=arguments.requests,
        seconds=None if endless else (arguments.seconds or DEFAULT_LOAD_SECONDS),
        prompt_words=arguments.prompt_words,
        max_tokens=arguments.max_tokens,
        pause_seconds=arguments.pause,
        seed=arguments.seed,
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


async def _show_load(settings: load.LoadSettings, result: load.LoadResult) -> None:
    stop = asyncio.Event()
    task = asyncio.create_task(load.run_load(settings, result, time.monotonic, stop))
    live = sys.stderr.isatty()
    shown = time.monotonic()
    while not task.done():
        await asyncio.wait([task], timeout=1.0)
        if live:
            sys.stderr.write("\r\x1b[2K" + load.line_of(result)[: shutil.get_terminal_size().columns - 1])
            sys.stderr.flush()
        elif time.monotonic() - shown >= load.QUIET_LINE_SECONDS:
            shown = time.monotonic()
            print(load.line_of(result), file=sys.stderr, flush=True)
    if live:
        sys.stderr.write("\r\x1b[2K")
    await task


def _fault(arguments: argparse.Namespace) -> int:
    if arguments.list:
        for fault in faults.FAULTS:
            print(f"{fault.name:<12} {fault.what}\n{'':<12} should raise {', '.join(fault.alerts)}")
        return 0
    deployment = Deployment.open(paths.state_directory(os.environ, arguments.state_dir))
    if arguments.undo:
        restarted = faults.undo(deployment, _progress("Undoing the fault", [], None))
        print(f"healthy again{': restarted ' + ', '.join(restarted) if restarted else ''}")
        return 0
    fault = faults.find(arguments.name)
    faults.apply(deployment, fault, _progress(f"Fault {fault.name}", [], None))
    print(f"in force: {fault.what}; should raise {', '.join(fault.alerts)}; `poise testbed fault --undo` takes it back")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = status.look(Deployment.open(paths.state_directory(os.environ, arguments.state_dir)))
    print(json.dumps(found.as_dict(), indent=1) if arguments.json else status.text(found))
    return 0 if found.ready else 1


def _logs(arguments: argparse.Namespace) -> int:
    layout = StateLayout(paths.state_directory(os.environ, arguments.state_dir))
    found = sorted(layout.logs.glob("*.log")) if layout.logs.is_dir() else []
    chosen = [path for path in found if arguments.part in (None, path.stem)]
    if not chosen:
        there = ", ".join(path.stem for path in found) or "none"
        raise TestbedError(f"no log of {arguments.part or 'any part'} in {layout.logs}: there are {there}")
    follow = ["-F"] if arguments.follow else []
    return subprocess.run(["tail", "-n", str(arguments.lines), *follow, *map(str, chosen)], check=False).returncode


def _down(arguments: argparse.Namespace) -> int:
    layout = StateLayout(paths.state_directory(os.environ, arguments.state_dir))
    removed = teardown.take_down(layout, _say)
    if removed.pids or removed.segments:
        left = f", {len(removed.segments)} shared memory files" if removed.segments else ""
        print(f"ended {len(removed.pids)} processes{left}")
    else:
        print(f"nothing was running in {layout.root}")
    return 0


def _progress(title: str, steps: Sequence[str], file: Path | None) -> Progress:
    """Progress on stderr, and in `file` when it is given."""
    sinks: list[Sink] = [TerminalSink(sys.stderr, lambda: shutil.get_terminal_size().columns, time.monotonic)]
    if file is not None:
        sinks.append(FileSink(file))
    return Progress(title, steps, sinks, time.monotonic)


def _say(text: str) -> None:
    print(f"poise: {text}", file=sys.stderr, flush=True)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return number


def _part_port(text: str) -> tuple[str, int]:
    part, equals, port = text.partition("=")
    if not equals or not part or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not PART=PORT, e.g. server=8000")
    return part, int(port)
