"""The `poise` command: finds the subcommand, imports its component only then, and turns what goes wrong into one line.

Knows the names of the components and nothing of what they do. A component offers `add_arguments(parser)` and `run(arguments) -> int`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from poise.cli import process
from poise.exporter.version import installed_version

if TYPE_CHECKING:
    import argparse

#: Exit codes: 0 done, 1 a check or action failed, 2 the request could not be carried out (shell convention for usage errors).
COULD_NOT = 2


class Subcommand(NamedTuple):
    """A subcommand: the module that carries it out, one line of help, and the extra that it needs besides the exporter's.

    `serves`: it runs until it is told to leave, so that SIGTERM and Ctrl-C are its ordinary end, with exit code 0, at any moment.
    """

    module: str
    help: str
    extra: str = ""
    serves: bool = False


SUBCOMMANDS: dict[str, Subcommand] = {
    "up": Subcommand("poise.dashboard.command", "watch this machine: node exporter and web page on 127.0.0.1:9748", "dashboard", True),
    "exporter": Subcommand("poise.exporter.command", "the node exporter alone: Prometheus metrics on :9747", serves=True),
    "doctor": Subcommand("poise.exporter.doctor", "run the checklist on this machine and say what is wrong and how to mend it"),
    "alerts": Subcommand(
        "poise.alerts.command", "alerts: what is on and why, silences; and the rules: list, check, write for a Prometheus", "dashboard"
    ),
    "history": Subcommand("poise.history.command", "the history: what it holds, and series written for other programs", "dashboard"),
    "token": Subcommand(
        "poise.history.token_command", "show the token that silences and acknowledgements through `poise up` need", "dashboard"
    ),
    "testbed": Subcommand("poise.testbed.command", "start a real vLLM deployment, load it, break it, watch it"),
}


def build_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser with all subcommands listed and the arguments of `chosen` alone filled in.

    Raises ModuleNotFoundError when the chosen component's dependencies are not installed.
    """
    import argparse  # here and not above: `main` is reached sooner, see process.py

    parser = argparse.ArgumentParser(
        prog="poise",
        description="Shows whether all the GPUs that a vLLM deployment pays for do their share, and if not, why.",
        epilog="`poise COMMAND --help` tells more of a command.",
    )
    parser.add_argument("--version", action="version", version=f"poise {installed_version()}")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, subcommand in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, help=subcommand.help, description=_sentence(subcommand.help))
        if name == chosen:
            importlib.import_module(subcommand.module).add_arguments(subparser)
    return parser


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code; a missing extra or an error that a person can mend is one line on stderr.

    `argv` None: this is the process's own command line, and its end is the end of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in words if not word.startswith("-")), None)
    serves = chosen in SUBCOMMANDS and SUBCOMMANDS[chosen].serves
    let_through = process.keep_back_hangups() if serves else None
    restore = process.leave_on_signals(0 if serves else None)
    process.open_streams()
    try:
        code = _run(words, chosen)
    except KeyboardInterrupt:
        code = 130
    except SystemExit as leaving:  # argparse: --help, --version, a wrong flag
        code = leaving.code if isinstance(leaving.code, int) else COULD_NOT
        if process.flush(code) != code:
            return COULD_NOT
        raise
    except OSError as error:
        if not process.is_write_error(error):
            raise
        return process.write_failed(error)
    finally:
        if argv is not None:
            restore()
            if let_through is not None:
                let_through()
    return process.flush(code)


def _run(words: list[str], chosen: str | None) -> int:
    try:
        parser = build_parser(chosen if chosen in SUBCOMMANDS else None)
    except ModuleNotFoundError as error:
        needed = SUBCOMMANDS[chosen].extra if chosen else ""
        if not needed:
            raise
        process.tell(f"poise: `poise {chosen}` needs {error.name}, which is not installed: in a clone, pip install '.[{needed}]'")
        return COULD_NOT
    arguments = parser.parse_args(words)
    return int(importlib.import_module(SUBCOMMANDS[arguments.subcommand].module).run(arguments))


if __name__ == "__main__":
    sys.exit(main())
