"""The flags of `poise up`, and the command line of the exporter that it starts. Starts nothing and asks nobody."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from poise.alerts import settings as alert_settings
from poise.dashboard.security import is_loopback
from poise.exporter.settings import LOG_FORMATS, LOG_LEVELS
from poise.history.fetch import address
from poise.history.scrape import DEFAULT_INTERVAL

DEFAULT_LISTEN = "127.0.0.1:9748"
DEFAULT_EXPORTER = "http://127.0.0.1:9747"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `poise up`. Those of the exporter are passed on to the one that is started."""
    parser.add_argument(
        "--listen", default=DEFAULT_LISTEN, type=_listen, metavar="HOST:PORT", help=f"page address (default {DEFAULT_LISTEN})"
    )
    parser.add_argument(
        "--exporter",
        default=DEFAULT_EXPORTER,
        type=_url,
        metavar="URL",
        help=f"the exporter: used if one answers there, else started there (default {DEFAULT_EXPORTER})",
    )
    parser.add_argument("--no-exporter", action="store_true", help="start no exporter; wait for one at --exporter")
    parser.add_argument("--progress", type=Path, metavar="FILE", help="show the progress of long work from this JSON file")
    parser.add_argument("--root-path", default="", type=_prefix, metavar="/PREFIX", help="path under which a proxy shows the page")
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="NAME", help="answer to this Host name on a loopback address (for a proxy)"
    )
    parser.add_argument(
        "--scrape-interval",
        default=DEFAULT_INTERVAL,
        type=_seconds,
        metavar="SECONDS",
        help=f"how often to scrape (default {DEFAULT_INTERVAL:g})",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="least level to log, here and in the exporter (default info)")
    parser.add_argument(
        "--log-format", choices=LOG_FORMATS, help="text or one JSON object per line, here and in the exporter (default text)"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="configuration file of the history, the alerts and the exporter that is started (default: poise.toml here, if there is one)",
    )
    kept = parser.add_argument_group("history")
    kept.add_argument("--history", metavar="FILE", help="where the history is kept (default: history.db in Poise's state folder)")
    kept.add_argument("--no-history", action="store_true", help="keep it in memory only, for an hour")
    kept.add_argument("--history-retention", metavar="DURATION", help="how long samples are kept (default 7d)")
    kept.add_argument("--history-size", metavar="SIZE", help="how large the file may become (default 2GB)")
    kept.add_argument(
        "--target", action="append", default=[], metavar="NAME=URL[,job=…]", help="a further exporter whose series are kept (repeatable)"
    )
    alert_settings.add_arguments(parser)
    passed = parser.add_argument_group("passed on to the exporter that is started")
    passed.add_argument(
        "--engine", action="append", default=[], metavar="NAME=URL[,deployment=…,role=…,gpus=…]", help="an engine (repeatable)"
    )
    passed.add_argument(
        "--router", action="append", default=[], metavar="NAME=URL[,deployment=…,kind=…,metrics=…]", help="a router (repeatable)"
    )
    passed.add_argument("--expected-gpus", metavar="N", help="cards that should be here")
    passed.add_argument("--interval", metavar="DURATION", help="how often the exporter reads the cards (default 1s)")
    passed.add_argument("--no-discover", action="store_true", help="look for no engines and routers besides those that are named")


def exporter_command(arguments: argparse.Namespace) -> list[str]:
    """The command line of the exporter that `poise up` starts at --exporter."""
    # -P: a folder called "poise" in the working directory must not become the package.
    command = [sys.executable, "-P", "-m", "poise.cli", "exporter", "--listen", address(arguments.exporter).authority]
    for engine in arguments.engine:
        command += ["--engine", engine]
    for router in arguments.router:
        command += ["--router", router]
    if arguments.expected_gpus is not None:
        command += ["--expected-gpus", arguments.expected_gpus]
    if arguments.interval is not None:
        command += ["--interval", arguments.interval]
    if arguments.no_discover:
        command.append("--no-discover")
    if arguments.config is not None:
        command += ["--config", arguments.config]
    where = address(arguments.exporter)
    if where.scheme == "http" and is_loopback(where.host):
        # The child is read by this process alone, over loopback: what the configuration says of TLS and users is for exporters that others read.
        command.append("--web.config.file=")
    # Only what was said here: a flag would win over what the exporter's own file and environment say.
    if arguments.log_level is not None:
        command += ["--log-level", arguments.log_level]
    if arguments.log_format is not None:
        command += ["--log-format", arguments.log_format]
    return command


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isdecimal() and len(port) <= 5) or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, for example {DEFAULT_LISTEN}")
    try:
        host.encode("idna")
    except UnicodeError:
        raise argparse.ArgumentTypeError(f"{text!r} has no valid host name, for example {DEFAULT_LISTEN}") from None
    return host.strip("[]") or "0.0.0.0", int(port)  # noqa: S104 - ":PORT" asks for all addresses


def _url(text: str) -> str:
    try:
        address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.rstrip("/").removesuffix("/metrics")


def _prefix(text: str) -> str:
    stripped = text.strip("/")
    if any(character in stripped for character in "?#\"'<>& \\"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a path such as /poise")
    return f"/{stripped}" if stripped else ""


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 300:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.5 to 300")
    return value
