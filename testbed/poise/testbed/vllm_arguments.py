"""Arguments of `vllm serve` that a user may not give: those that carry a secret, and those that the plan decides.

Knows vLLM's flags (0.32, engine/arg_utils.py and entrypoints/openai/cli_args.py). Knows nothing of shapes.
"""

from __future__ import annotations

from collections.abc import Iterable

from poise.testbed.errors import TestbedError

# They would stand in files and process lists.
SECRET = ("--api-key", "--hf-token", "--ssl-keyfile-password")
# What the plan says already (it would say something else than what runs), and how to say it.
_SIZE = "set {} in a shape of your own"
PLANNED = {
    "--tensor-parallel-size": _SIZE.format("tensor_parallel_size"),
    "-tp": _SIZE.format("tensor_parallel_size"),
    "--pipeline-parallel-size": _SIZE.format("pipeline_parallel_size"),
    "-pp": _SIZE.format("pipeline_parallel_size"),
    "--data-parallel-size": "the testbed has no data parallelism: take several engines, as shape pair has",
    "-dp": "the testbed has no data parallelism: take several engines, as shape pair has",
    "--port": "give --port PART=PORT to `poise testbed up`",
    "--host": "everything listens on 127.0.0.1",
    "--uds": "everything listens on 127.0.0.1",
    "--model": "give --model to `poise testbed up`",
    "--served-model-name": "it follows from --model",
    "--kv-transfer-config": _SIZE.format("role and kv_connector"),
}


def check(arguments: Iterable[str]) -> None:
    """Raises TestbedError for an argument that is not the user's to give, without repeating what may be a secret."""
    for argument in arguments:
        name = argument.partition("=")[0].replace("_", "-") if argument.startswith("--") else argument.partition("=")[0]
        if name in SECRET:
            raise TestbedError(f"{name} would be written to files: set VLLM_API_KEY or HF_TOKEN in the environment instead")
        if name in PLANNED:
            raise TestbedError(f"{name} is decided by the plan of the deployment: {PLANNED[name]}")


def value_of(arguments: Iterable[str], name: str) -> str | None:
    """What a long flag was given, the last one where it stands more than once; None without."""
    found: str | None = None
    wanted = False
    for argument in arguments:
        if wanted:
            found, wanted = argument, False
            continue
        flag, equals, value = argument.partition("=")
        if flag.replace("_", "-") == name:
            found, wanted = (value, False) if equals else (found, True)
    return found
