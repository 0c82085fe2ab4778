"""Tells what runs by its command line: a program, a Python module or a Python script; and whether that is a vLLM server.

An editor, a grep, or a shell around a server has such words among its arguments and runs none of them. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(-\w+)?")
_API_MODULE = "vllm.entrypoints.openai.api_server"
_CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main")
#: Options of the interpreter that take the next argument (python --help).
_PYTHON_VALUED = ("-X", "-W", "--check-hash-based-pycs")


class How(StrEnum):
    """What a command line runs."""

    PROGRAM = "program"
    MODULE = "module"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Running:
    """What runs: the base name of a program, the name of a module, the path of a script; and the arguments behind it."""

    how: How
    target: str
    arguments: Sequence[str]


def running(argv: Sequence[str]) -> Running | None:
    """What a command line runs; None when that is code on the command line, or nothing."""
    if not argv:
        return None
    program = base_name(argv[0])
    if not _PYTHON.fullmatch(program):
        return Running(How.PROGRAM, program, argv[1:])
    position = 1
    while position < len(argv):
        item = argv[position]
        if item == "-m":
            return Running(How.MODULE, argv[position + 1], argv[position + 2 :]) if position + 1 < len(argv) else None
        if item.startswith("-m") and len(item) > 2:
            return Running(How.MODULE, item[2:], argv[position + 1 :])
        if item.startswith("-c") or item == "-":
            return None
        if not item.startswith("-"):
            return Running(How.SCRIPT, item, argv[position + 1 :])
        position += 2 if item in _PYTHON_VALUED else 1
    return None


def server_arguments(argv: Sequence[str]) -> tuple[bool, Sequence[str]] | None:
    """What follows the server's name on a command line, with whether it was `vllm serve` (which takes the model as an argument).

    None when the program that runs is no vLLM server.
    """
    found = running(argv)
    if found is None:
        return None
    target, rest = found.target, found.arguments
    if target == _API_MODULE if found.how is How.MODULE else target.endswith("vllm/entrypoints/openai/api_server.py"):
        return False, rest
    if found.how is How.MODULE:
        is_cli = target in _CLI_MODULES
    else:
        is_cli = base_name(target) == "vllm" or target.endswith("vllm/entrypoints/cli/main.py")
    return (True, rest[1:]) if is_cli and rest and rest[0] == "serve" else None


def base_name(path: str) -> str:
    """The last part of a path."""
    return path.rpartition("/")[2]
