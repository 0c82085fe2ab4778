"""`poise doctor`: the checklist in a terminal, from an exporter that runs already, else from a look of its own.

Both ways give the same document (`checks/document.py`); rendering is in doctor_text.py.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from poise.exporter import access, doctor_text, logs, named_specs, setting_flags, setting_values, settings
from poise.exporter.access import Access
from poise.exporter.checks.document import FORMAT, document
from poise.exporter.command import Exporter
from poise.exporter.doctor_logs import LogError, read_log, with_logs
from poise.exporter.engines.credentials import Credentials
from poise.exporter.engines.fetch import Fetcher, FetchError
from poise.exporter.nvml import registry
from poise.exporter.settings import SettingsError

DEFAULT_EXPORTER = "http://127.0.0.1:9747"
#: Long enough for a load verdict (watch), short enough to wait for.
DEFAULT_WINDOW = "10s"
#: One engine poll and one tick on top of the window, so that the newest page is in it.
SETTLING_SECONDS = 2.0
FETCH_TIMEOUT = 5.0
#: A checklist of 8 cards and 4 engines is 20 KB.
LARGEST_DOCUMENT = 4 << 20
COULD_NOT_LOOK = 2


class CouldNotLook(Exception):
    """There is no checklist to show; the message says why and what to do."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `poise doctor`."""
    parser.description = (
        "Runs the checklist on this machine: each line passes, fails or is unknown, with evidence, cause and fix. "
        "Exit code 0 when all pass, 1 when something fails, 2 when nothing fails and something could not be looked at."
    )
    parser.add_argument(
        "--exporter",
        metavar="URL",
        help=f"ask this exporter; default: the one on {DEFAULT_EXPORTER} if it answers, else look without one",
    )
    parser.add_argument(
        "--exporter-access",
        metavar="KEY=VALUE[,…]",
        help=f"how that exporter lets itself be asked: {', '.join(f'{key}=' for key in access.KEYS)}",
    )
    parser.add_argument("--here", action="store_true", help="look without an exporter, even if one runs")
    parser.add_argument(
        "--window", metavar="DURATION", default=DEFAULT_WINDOW, help=f"how long to look without an exporter (default {DEFAULT_WINDOW})"
    )
    parser.add_argument(
        "--engine-log",
        dest="engine_logs",
        action="append",
        metavar="[NAME=]FILE",
        help="what `vllm serve` wrote at its start: the ranks and the paths between them are checked too; NAME is the engine's; repeatable",
    )
    parser.add_argument("--json", action="store_true", help="print JSON for machines")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto", help="colour (default auto: in a terminal only)")
    setting_flags.add_arguments(parser, registry.SWITCHES, serves=False)
    parser.set_defaults(log_level="error")


def run(arguments: argparse.Namespace) -> int:
    """Prints the checklist; 0 all pass, 1 something fails, 2 could not look."""
    try:
        given = [read_log(text) for text in arguments.engine_logs or ()]
        page, source, stuck = _look(arguments)
        page = with_logs(page, given)
    except (CouldNotLook, LogError, SettingsError) as error:
        print(f"poise: {error}", file=sys.stderr)
        return COULD_NOT_LOOK
    if arguments.json:
        print(json.dumps(page, indent=2, ensure_ascii=False))
    else:
        colour = arguments.color == "always" or (arguments.color == "auto" and sys.stdout.isatty() and "NO_COLOR" not in os.environ)
        width = min(shutil.get_terminal_size((100, 24)).columns, 140)
        sys.stdout.write(doctor_text.render(page, source=source, width=width, colour=colour))
    code = doctor_text.exit_code(page)
    if stuck:
        # A thread is stuck in the driver, and the C library's exit handlers may wait for it (see command.py).
        sys.stdout.flush()
        os._exit(code)
    return code


def _look(arguments: argparse.Namespace) -> tuple[dict[str, Any], str, bool]:
    """The document, where it is from, and whether a thread of ours hangs in the driver."""
    if arguments.here and arguments.exporter:
        raise CouldNotLook(f"--here and --exporter={arguments.exporter} exclude each other; give one of them")
    if arguments.exporter_access and not arguments.exporter:
        raise CouldNotLook("--exporter-access says how an exporter lets itself be asked; say which with --exporter URL")
    if not arguments.here:
        url = arguments.exporter or DEFAULT_EXPORTER
        try:
            return fetch(url, _access(arguments.exporter_access, url)), f"exporter {url}", False
        except CouldNotLook:
            if arguments.exporter:
                raise
    return _look_here(arguments)


def _access(text: str | None, url: str) -> Access | None:
    """What --exporter-access says; raises CouldNotLook when that cannot be."""
    if not text:
        return None
    try:
        for option in text.split(","):
            if hint := access.secret_hint(option.partition("=")[0]):
                raise ValueError(hint)
        return access.from_values(named_specs.table_from_text(f"exporter={url},{text}", access.KEYS, ""), url)
    except ValueError as error:
        # The value itself may hold a secret that was put where none belongs.
        raise CouldNotLook(f"--exporter-access: {error}") from None


def fetch(url: str, allowed: Access | None = None) -> dict[str, Any]:
    """The checklist of a running exporter. `allowed`: how it lets itself be asked.

    Raises:
        CouldNotLook: no exporter answers there, it has no checklist yet, or it is not one of ours.
    """
    if "@" in url:
        raise CouldNotLook("--exporter: the URL holds a user or password; give --exporter-access username=NAME,password_file=FILE instead")
    try:
        parts = urlsplit(url)
        host = parts.hostname
        port_valid = parts.port is None or parts.port > 0
    except ValueError as error:
        raise CouldNotLook(f"--exporter={url}: {error}; expected http://HOST:9747") from None
    if parts.scheme not in ("http", "https") or not host or not port_valid:
        raise CouldNotLook(f"--exporter={url}: expected http://HOST:9747")
    try:
        # An exporter that a person named has to prove that it is the one, on this machine too.
        answer = Fetcher(url, time.monotonic, Credentials(allowed or access.PLAIN)).get(
            "/checks", {"Accept": "application/json"}, FETCH_TIMEOUT, LARGEST_DOCUMENT
        )
    except FetchError as error:
        if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
            raise CouldNotLook(f"the exporter at {url} has no snapshot yet; try again in a moment") from None
        if error.status == HTTPStatus.UNAUTHORIZED:
            way = "--exporter-access username=NAME,password_file=FILE"
            another = allowed is not None and allowed.has_secret
            raise CouldNotLook(f"the exporter at {url} asks for {'another' if another else 'a'} user and password; give {way}") from None
        if error.status == HTTPStatus.BAD_REQUEST and parts.scheme == "http":
            raise CouldNotLook(f"{url} does not answer http; if that exporter has TLS, ask with https:// and --exporter-access") from None
        if error.status is not None:
            raise CouldNotLook(f"{url}/checks is no checklist of this version of Poise ({error}); is that a Poise exporter?") from None
        if error.way_out:
            raise CouldNotLook(f"the exporter at {url}: {error}; {error.way_out} in --exporter-access") from None
        raise CouldNotLook(f"no exporter answers at {url}: {error}; start one with `poise exporter`, or use --here") from None
    try:
        page = json.loads(answer.body)
        if page["format"] != FORMAT:
            raise ValueError("another format")
        # What cannot be shown is no checklist, whichever part of it is missing or of another kind.
        doctor_text.render(page, source="", width=100, colour=False)
        doctor_text.exit_code(page)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, OSError, RecursionError):
        raise CouldNotLook(f"{url}/checks is no checklist of this version of Poise; is that a Poise exporter?") from None
    return dict(page)


def _look_here(arguments: argparse.Namespace) -> tuple[dict[str, Any], str, bool]:
    chosen = settings.load(arguments, os.environ, registry.SWITCHES)
    try:
        window = setting_values.parse_duration(arguments.window)
    except ValueError as error:
        raise CouldNotLook(f"--window={arguments.window}: {error}") from None
    logs.set_up(chosen.log_level, chosen.log_format)
    exporter = Exporter(chosen)
    try:
        exporter.start()
    except RuntimeError as error:  # what threading says of it
        raise CouldNotLook(f"{error}: raise the limit of processes (ulimit -u)") from None
    try:
        _wait(window + SETTLING_SECONDS)
        published = exporter.latest()
    finally:
        clean = exporter.stop()
    if published is None or published.outcome is None:
        raise CouldNotLook(f"no snapshot within {window:g} s; try a longer --window, and --log-level=debug for the reason")
    return document(published.snapshot, published.outcome), f"own look of {window:g} s", not clean


def _wait(seconds: float) -> None:
    """The window has to pass; in a terminal the time left is shown."""
    end = time.monotonic() + seconds
    shown = sys.stderr.isatty()
    while (left := end - time.monotonic()) > 0:
        if shown:
            print(f"\rlooking, {left:.0f} s left ", end="", file=sys.stderr, flush=True)
        time.sleep(min(1.0, left))
    if shown:
        print("\r" + " " * 24 + "\r", end="", file=sys.stderr, flush=True)
