"""Reads the command line of a vLLM server: what do its allow-listed flags say.

Only flags named in `_VALUES` and `_SWITCHES` are looked at; the value of any other flag (api keys, tokens, paths) is skipped and exists in
no result. A value that cannot be read leaves its field at the default and is remembered as a problem in words. Pure; never raises.
Flags and their short forms: vLLM 0.11 to 0.33, engine/arg_utils.py and entrypoints/openai/cli_args.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from poise.exporter.engines.kv_transfer import kv_transfer
from poise.exporter.engines.program import server_arguments
from poise.exporter.snapshot import EngineConfig

#: What vLLM listens on when nothing is said (entrypoints/openai/cli_args.py).
DEFAULT_PORT = 8000
#: Longest value that is kept; longer ones are cut. Model paths are far shorter.
VALUE_LIMIT = 256


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """A vLLM server's command line as far as Poise reads it.

    `config.port` is None where no flag names it. `reads_file`: `--config FILE` was given, which may set what no flag does. `problems` are
    sentences about values that could not be read. `api_on_each_node`: of an engine over several nodes each has an API server for its own ranks
    (balanced from outside), so that each is an engine by itself.
    """

    config: EngineConfig
    problems: tuple[str, ...] = ()
    reads_file: bool = False
    tls: bool = False
    unix_socket: bool = False
    master_address: str | None = None
    api_on_each_node: bool = False


# ------------------------------------------------------------------------------------------------------------------- flags
#: With one of these the command prints something and ends.
_ASKS_ONLY = frozenset({"-h", "--help", "-v", "--version"})
#: Allow-listed flags that take a value → the name under which they are kept.
_VALUES = {
    "--model": "model",
    "--served-model-name": "served_model_name",
    "--revision": "revision",
    "--dtype": "dtype",
    "--quantization": "quantization",
    "-q": "quantization",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--block-size": "block_size",
    "--max-model-len": "max_model_len",
    "--max-num-seqs": "max_num_seqs",
    "--max-num-batched-tokens": "max_num_batched_tokens",
    "--gpu-memory-utilization": "gpu_memory_utilization",
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
    "--data-parallel-size": "data_parallel_size",
    "-dp": "data_parallel_size",
    "--data-parallel-size-local": "data_parallel_size_local",
    "-dpl": "data_parallel_size_local",
    "--data-parallel-rank": "data_parallel_rank",
    "-dpn": "data_parallel_rank",
    "--data-parallel-start-rank": "data_parallel_start_rank",
    "-dpr": "data_parallel_start_rank",
    "--data-parallel-address": "data_parallel_address",
    "-dpa": "data_parallel_address",
    "--data-parallel-backend": "data_parallel_backend",
    "-dpb": "data_parallel_backend",
    "--distributed-executor-backend": "distributed_executor_backend",
    "--nnodes": "nnodes",
    "-n": "nnodes",
    "--node-rank": "node_rank",
    "-r": "node_rank",
    "--master-addr": "master_address",
    "--host": "host",
    "--port": "port",
    "--kv-transfer-config": "kv_transfer_config",
    # Only that these are given is kept, never their value.
    "--config": "reads_file",
    "--ssl-certfile": "tls",
    "--uds": "unix_socket",
}
#: Flags without a value: those that matter, and common ones, so that a model behind them is still told from a flag's value.
_SWITCHES = {
    "--headless": "headless",
    "--data-parallel-hybrid-lb": "api_on_each_node",
    "-dph": "api_on_each_node",
    "--data-parallel-external-lb": "api_on_each_node",
    "-dpe": "api_on_each_node",
    "--trust-remote-code": "",
    "--enforce-eager": "",
    "--enable-prefix-caching": "",
    "--no-enable-prefix-caching": "",
    "--enable-expert-parallel": "",
    "-ep": "",
    "--enable-auto-tool-choice": "",
}
_PRESENCE_ONLY = frozenset({"reads_file", "tls", "unix_socket"})
#: Shortest beginning of a long flag that is taken for it: argparse allows any that is unambiguous, and a server that runs had one.
_ABBREVIATION = 7


@dataclass(slots=True)
class _Collected:
    """Texts of allow-listed flags; the last of a repeated flag holds, as in argparse."""

    values: dict[str, str] = field(default_factory=dict)
    dotted: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def parse_server(argv: Sequence[str]) -> ServerCommand | None:
    """The server that a command line starts, or None when it starts none."""
    found = server_arguments(argv)
    if found is None:
        return None
    takes_model, arguments = found
    if not _ASKS_ONLY.isdisjoint(arguments):
        return None
    collected = _collect(arguments, takes_model)
    return _command(collected)


def _collect(arguments: Sequence[str], takes_model: bool) -> _Collected:
    collected = _Collected()
    # A word that no flag claims is the model only where no unknown flag may have claimed it: it could be that flag's secret.
    free = takes_model
    position = 0
    while position < len(arguments):
        item = arguments[position]
        position += 1
        if not _is_flag(item):
            if free and "model" not in collected.values:
                collected.values["model"] = item
            free = False
            continue
        name, equals, inline = item.partition("=")
        flag = _known(name)
        if flag is None:
            free = False
            continue
        if flag in _SWITCHES:
            if _SWITCHES[flag]:
                collected.values[_SWITCHES[flag]] = "true"
            free = takes_model
            continue
        if equals:
            value: str | None = inline
        elif position < len(arguments) and not _is_flag(arguments[position]):
            value = arguments[position]
            position += 1
        else:
            value = None
        _keep(collected, flag, value)
        # --served-model-name takes several values, so what follows it is no model.
        free = takes_model and flag != "--served-model-name"
    return collected


def _keep(collected: _Collected, flag: str, value: str | None) -> None:
    base, dot, path = flag.partition(".")
    name = _VALUES[base]
    if value is None:
        collected.problems.append(f"{base} is given without a value")
    elif dot:
        if path in ("kv_connector", "kv_role"):
            collected.dotted[path] = value
    else:
        collected.values[name] = "true" if name in _PRESENCE_ONLY else value


def _is_flag(item: str) -> bool:
    """Whether argparse takes it for a flag: a dash and no number ("-1" is a value)."""
    return len(item) > 1 and item[0] == "-" and not re.fullmatch(r"-\d+(\.\d*)?|-\.\d+", item)


def _known(name: str) -> str | None:
    """The allow-listed flag that `name` is or abbreviates, dotted part kept; None for every other flag."""
    base, dot, path = name.partition(".")
    if base.startswith("--"):
        base = base.replace("_", "-")
    if base not in _VALUES and base not in _SWITCHES:
        if not base.startswith("--") or len(base) < _ABBREVIATION:
            return None
        candidates = [flag for flag in (*_VALUES, *_SWITCHES) if flag.startswith(base)]
        if len(candidates) != 1:
            return None
        base = candidates[0]
    if dot:
        return f"{base}.{path.replace('-', '_')}" if base == "--kv-transfer-config" else None
    return base


# ------------------------------------------------------------------------------------------------------------------ values
def _command(collected: _Collected) -> ServerCommand:
    values, problems = collected.values, list(collected.problems)

    def text(name: str) -> str | None:
        return clean(values[name]) if values.get(name) else None

    def number(name: str, least: int = 0) -> int | None:
        if name not in values:
            return None
        parsed = human_integer(values[name])
        if parsed is None or parsed < least:
            problems.append(f"--{name.replace('_', '-')}={shown(values[name])} is not a number from {least} up")
            return None
        return parsed

    def memory_share() -> float | None:
        if "gpu_memory_utilization" not in values:
            return None
        share = _float(values["gpu_memory_utilization"])
        if share is None or not 0 < share <= 1:
            problems.append(f"--gpu-memory-utilization={shown(values['gpu_memory_utilization'])} is not a share between 0 and 1")
            return None
        return share

    transfer = kv_transfer(values.get("kv_transfer_config"), collected.dotted)
    if transfer is None:
        # The document may hold anything, so it is not shown.
        problems.append("--kv-transfer-config is not a JSON object: connector and role are unknown")
    connector, role = transfer or kv_transfer(None, collected.dotted) or (None, None)
    reads_file = "reads_file" in values
    if reads_file:
        problems.append("--config names a file, which Poise does not read: what only it sets is unknown")
    local = number("data_parallel_size_local")
    if local is None and "data_parallel_rank" in values:
        local = 1  # one server per data-parallel rank, balanced from outside
    port = number("port", least=1)
    if port is not None and port > 65535:
        problems.append(f"--port={port} is not a port")
        port = None
    # -1 and "auto" mean that vLLM chooses.
    length = None if values.get("max_model_len", "").strip().lower() in ("-1", "auto") else number("max_model_len", least=1)
    path = text("model")
    config = EngineConfig(
        model=text("served_model_name") or path,
        model_path=path,
        revision=text("revision"),
        dtype=text("dtype"),
        quantization=text("quantization"),
        kv_cache_dtype=text("kv_cache_dtype"),
        block_size=number("block_size", least=1),
        max_model_len=length,
        max_num_seqs=number("max_num_seqs", least=1),
        max_num_batched_tokens=number("max_num_batched_tokens", least=1),
        gpu_memory_utilization=memory_share(),
        tensor_parallel_size=number("tensor_parallel_size", least=1) or 1,
        pipeline_parallel_size=number("pipeline_parallel_size", least=1) or 1,
        data_parallel_size=number("data_parallel_size", least=1) or 1,
        data_parallel_size_local=local,
        # Ray places ranks on nodes as it likes, whichever of the two it was asked for.
        distributed_executor_backend="ray" if values.get("data_parallel_backend") == "ray" else text("distributed_executor_backend"),
        nnodes=number("nnodes", least=1) or 1,
        node_rank=number("node_rank") or 0,
        headless="headless" in values,
        host=text("host"),
        port=port,
        kv_connector=clean(connector) if connector else None,
        kv_role=clean(role) if role else None,
    )
    return ServerCommand(
        config,
        tuple(problems),
        reads_file,
        tls="tls" in values,
        unix_socket="unix_socket" in values,
        master_address=text("master_address") or text("data_parallel_address"),
        api_on_each_node="api_on_each_node" in values or "data_parallel_rank" in values or bool(number("data_parallel_start_rank")),
    )


_HUMAN = re.compile(r"(-?\d{1,18}(?:\.\d{1,9})?)([kKmMgGtT]?)", re.ASCII)
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def human_integer(text: str) -> int | None:
    """An integer as vLLM reads it: "8192", "8k" (8,000), "8K" (8,192), "25.6k"; None for anything else."""
    match = _HUMAN.fullmatch(text.strip())
    if match is None:
        return None
    digits, unit = match.groups()
    if not unit:
        return int(digits) if "." not in digits else None
    if unit in _BINARY:
        return int(digits) * _BINARY[unit] if "." not in digits else None
    return round(float(digits) * _DECIMAL[unit])


_SHARE = re.compile(r"\d{0,9}\.?\d{0,18}([eE]-?\d{1,2})?", re.ASCII)


def _float(text: str) -> float | None:
    try:
        return float(text) if _SHARE.fullmatch(text.strip()) else None
    except ValueError:
        return None


_USER = re.compile(r"(?<=://)[^/\s]*@")


def clean(value: str) -> str:
    """A value fit for a label: without user, password or query of a URL, on one line, cut."""
    plain = _USER.sub("", "".join(character if character.isprintable() else " " for character in value))
    if "://" in plain:
        plain = plain.partition("?")[0].partition("#")[0]
    return plain.strip()[:VALUE_LIMIT]


def shown(value: str) -> str:
    """A value for a sentence: cleaned and short."""
    plain = clean(value)
    return plain if len(plain) <= 40 else plain[:40] + "…"


def flag_names() -> Iterator[str]:
    """Every flag that leaves a trace, for the tests that no secret's flag is among them and that each is documented."""
    yield from _VALUES
    yield from (flag for flag, name in _SWITCHES.items() if name)
