"""Tells a vLLM server's command line from one that only has such words in it: an editor, a grep, a shell around the server. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PYTHON = re.compile(r"(python|pypy)[0-9.]*(-\w+)?")
_API_MODULE = "vllm.entrypoints.openai.api_server"
_CLI_MODULES = ("vllm", "vllm.entrypoints.cli.main")
#: Options of the interpreter that take the next argument (python --help).
_PYTHON_VALUED = ("-X", "-W", "--check-hash-based-pycs")


def server_arguments(argv: Sequence[str]) -> tuple[bool, Sequence[str]] | None:
    """What follows the server's name on a command line, with whether it was `vllm serve` (which takes the model as an argument).

    None when the program that runs is no vLLM server: an editor, a grep, or a shell that has such words among its arguments.
    """
    if not argv:
        return None
    program = _base(argv[0])
    if program == "vllm":
        return (True, argv[2:]) if len(argv) > 1 and argv[1] == "serve" else None
    if not _PYTHON.fullmatch(program):
        return None
    position = 1
    while position < len(argv):
        item = argv[position]
        if item == "-m":
            module, rest = argv[position + 1] if position + 1 < len(argv) else "", argv[position + 2 :]
            return _module(module, rest)
        if item.startswith("-m") and len(item) > 2:
            return _module(item[2:], argv[position + 1 :])
        if item.startswith("-c") or item == "-":
            return None
        if not item.startswith("-"):
            return _script(item, argv[position + 1 :])
        position += 2 if item in _PYTHON_VALUED else 1
    return None


def _module(module: str, rest: Sequence[str]) -> tuple[bool, Sequence[str]] | None:
    if module == _API_MODULE:
        return False, rest
    return (True, rest[1:]) if module in _CLI_MODULES and rest and rest[0] == "serve" else None


def _script(path: str, rest: Sequence[str]) -> tuple[bool, Sequence[str]] | None:
    if path.endswith("vllm/entrypoints/openai/api_server.py"):
        return False, rest
    is_cli = _base(path) == "vllm" or path.endswith("vllm/entrypoints/cli/main.py")
    return (True, rest[1:]) if is_cli and rest and rest[0] == "serve" else None


def _base(path: str) -> str:
    return path.rpartition("/")[2]
