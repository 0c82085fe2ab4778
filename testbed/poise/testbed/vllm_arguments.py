"""Arguments of `vllm serve` that a user may not give: those that carry a secret, and those that the plan decides.

Knows vLLM's flags and how vLLM reads them (0.32: engine/arg_utils.py, entrypoints/launchers/cli_args.py, utils/argparse_utils.py). Knows
nothing of shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from poise.testbed.errors import TestbedError

# They would stand in files and process lists.
SECRET = ("--api-key", "--hf-token", "--ssl-keyfile-password")
# What the plan says already (it would say something else than what runs), and how to say it.
_SIZE = "set {} in a shape of your own"
_NO_DATA_PARALLELISM = "the testbed has no data parallelism: take several engines, as shape pair has"
_ONE_NODE = "the testbed is one node"
PLANNED = {
    **dict.fromkeys(("--tensor-parallel-size", "-tp"), _SIZE.format("tensor_parallel_size")),
    **dict.fromkeys(("--pipeline-parallel-size", "-pp"), _SIZE.format("pipeline_parallel_size")),
    **dict.fromkeys(("--prefill-context-parallel-size", "-pcp"), "the testbed splits no prompt over GPUs: take tensor_parallel_size"),
    **dict.fromkeys(
        (
            *("--data-parallel-size", "-dp", "--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr"),
            *("--data-parallel-size-local", "-dpl", "--data-parallel-address", "-dpa", "--data-parallel-rpc-port", "-dpp"),
            *("--data-parallel-backend", "-dpb", "--data-parallel-hybrid-lb", "-dph", "--data-parallel-external-lb", "-dpe"),
            *("--data-parallel-multi-port-external-lb", "-dpm", "--data-parallel-supervisor-port"),
        ),
        _NO_DATA_PARALLELISM,
    ),
    **dict.fromkeys(("--nnodes", "-n", "--node-rank", "-r", "--master-addr", "--master-port", "--headless"), _ONE_NODE),
    "--device-ids": _SIZE.format("cuda_visible_devices"),
    "--port": "give --port PART=PORT to `poise testbed up`",
    **dict.fromkeys(("--host", "--uds"), "everything listens on 127.0.0.1"),
    "--model": "give --model to `poise testbed up`",
    "--served-model-name": "it follows from --model",
    "--kv-transfer-config": _SIZE.format("role and kv_connector"),
    "--config": "a file of vLLM's arguments may hold any of them: give each by itself",
}
# Flags that the plan reads: `placing` shares a GPU out by it. Two names of one.
MEMORY_SHARE = ("--gpu-memory-utilization", "--device-memory-utilization")
# What vLLM takes by its whole name although a flag above begins with it.
_WHOLE = ("--ssl-keyfile",)

# Words for a secret as keys of JSON, of dotted flags and of headers. Tokens of text are counted and named everywhere (eos_token,
# num_speculative_tokens), so that "token" alone, or behind a word of those who give access.
_ACCESS_WORD = (
    r"(?:(?:\w*[_-])?(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|secret\w*|passw(?:or)?d|passphrase|credentials?|authorization)"
    r"|(?:(?:\w*[_-])?(?:api|auth|access|bearer|hf|refresh|security|session)[_-]?)?token)"
)
_SECRET_KEY = re.compile(_ACCESS_WORD, re.IGNORECASE)
# What secrets look like: of OpenAI and its like, Hugging Face, GitHub, Slack, AWS; JSON web tokens; headers; keys in PEM; a password in a URL.
_SECRET_VALUE = re.compile(
    r"\bsk-[A-Za-z0-9_-]{8,}|\bhf_[A-Za-z0-9]{16,}|\bgh[pousr]_\w{16,}|\bgithub_pat_\w+|\bxox[abeprs]-[\w-]+|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\."
    r"|\bbearer\s+\S|\bbasic\s+[A-Za-z0-9+/]{8,}"
    r"|-----BEGIN |://[^/\s@\"']+@"
    rf"|(?<![\w-]){_ACCESS_WORD}[\"']?\s*[:=]\s*[\"']?(?!(?:true|false|null|none)\b)[^\s\"'{{}}\[\],:=]",
    re.IGNORECASE,
)


def check(arguments: Iterable[str]) -> None:
    """Raises TestbedError for an argument that is not the user's to give, without repeating what may be a secret.

    Abbreviations are what they are short for: vLLM takes the beginning of a flag for the flag.
    """
    for argument in arguments:
        name, keys = _flag(argument)
        for full in _meant(name, (*SECRET, *PLANNED, *MEMORY_SHARE)):
            words = full if name.startswith(full) else f"{name} (short for {full})"
            if full in SECRET:
                raise TestbedError(f"{words} would be written to files: set VLLM_API_KEY or HF_TOKEN in the environment instead")
            if full in PLANNED:
                raise TestbedError(f"{words} is decided by the plan of the deployment: {PLANNED[full]}")
            if full != name:
                raise TestbedError(f"{words} is read by the plan of the deployment: write it out")
        if _SECRET_VALUE.search(argument) or any(_SECRET_KEY.fullmatch(key) for key in keys):
            where = f"an argument ({name})" if name else "an argument"
            raise TestbedError(f"{where} holds what looks like a secret, which would be written to files: give vLLM a file or a variable")


def _flag(argument: str) -> tuple[str, list[str]]:
    """The flag as vLLM reads it, "" of what is none, and the keys behind its dots (--json-arg.key=value): `_` is `-` up to the first dot."""
    if not re.match(r"-{1,2}[A-Za-z]", argument):
        return "", []
    name, *keys = argument.partition("=")[0].split(".")
    return name.replace("_", "-") if name.startswith("--") else name, [key.rstrip("+") for key in keys]


def _meant(name: str, flags: Iterable[str]) -> list[str]:
    """Those of `flags` that argparse may take `name` for: itself, or else what it is the beginning of (also where vLLM has further flags that
    begin like this: it refuses the word then, or not, by its version)."""
    if not name or name in _WHOLE:
        return []
    known = tuple(flags)
    if not name.startswith("--") and name[:2] in known:  # -n4 is -n 4
        return [name[:2]]
    return [name] if name in known else [flag for flag in known if flag.startswith(name)]


def value_of(arguments: Iterable[str], *names: str) -> str | None:
    """What a long flag was given under any of its names, the last one where it stands more than once; None without."""
    found: str | None = None
    wanted = False
    for argument in arguments:
        if wanted:
            found, wanted = argument, False
            continue
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") in names:
            found, wanted = (value, False) if equals else (found, True)
    return found
