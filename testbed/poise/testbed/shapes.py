"""The shapes of deployment that can be started: which engines, over how many GPUs. Those that ship lie in shapes/*.toml.

Owns reading and checking that data, from the package or from a file of the user. Knows nothing of processes, nor of what is free.
"""

from __future__ import annotations

import importlib.resources
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from poise.testbed import naming, vllm_arguments
from poise.testbed.errors import TestbedError
from poise.testbed.tables import Table

EngineRole = Literal["mixed", "prefill", "decode"]
RouterKind = Literal["vllm-router"]

# Preferred ports where a shape names none: vLLM's own, those of vllm-router's examples, and NIXL's default and a hundred above.
PORTS: Mapping[EngineRole, int] = {"mixed": 8000, "prefill": 8100, "decode": 8200}
SIDE_CHANNEL_PORTS: Mapping[EngineRole, int] = {"prefill": 5600, "decode": 5700}
ROUTER_PORT = 8000
ROUTER_METRICS_PORT = 29000
# The one that vllm-router 0.1.17 is started with (launch.py).
KV_CONNECTOR = "NixlConnector"
# No deployment of one node has more ranks along one dimension.
MOST_RANKS = 64
# Far more than any node has: the largest servers of NVIDIA have 16 (DGX-2).
MOST_GPUS = 64
# A GPU by its number, or as the driver writes its UUID ("GPU-" or "MIG-" and 36 characters, or the beginning of one).
GPU_WORDS = re.compile(r"[0-9]{1,4}|[A-Za-z][A-Za-z0-9/-]{1,63}")
# A shape is a page of text; what is larger is another file.
MOST_BYTES = 65536


@dataclass(frozen=True, slots=True)
class EngineShape:
    """One vLLM server. Ports are the preferred ones; `cuda_visible_devices` None leaves it open which GPUs it gets.

    A server that does prefill or decode alone has a `kv_connector` (vLLM's name) and a port of its side channel, over which
    decode asks prefill where the KV cache lies.
    """

    name: str
    port: int
    tensor_parallel_size: int
    cuda_visible_devices: str | None = None
    arguments: tuple[str, ...] = ()
    role: EngineRole = "mixed"
    kv_connector: str | None = None
    side_channel_port: int | None = None
    pipeline_parallel_size: int = 1

    @property
    def gpus(self) -> int:
        """How many GPUs it needs: one for each rank."""
        return self.tensor_parallel_size * self.pipeline_parallel_size


@dataclass(frozen=True, slots=True)
class RouterShape:
    """The one address of a deployment that is split into prefill and decode. Ports are the preferred ones."""

    name: str
    kind: RouterKind
    port: int
    metrics_port: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A deployment. `gpus` is the number of GPUs it needs, and of cards that are simulated where there are none."""

    name: str
    title: str
    gpus: int
    engines: tuple[EngineShape, ...]
    router: RouterShape | None = None

    @property
    def gpus_of_smallest_engine(self) -> int:
        """Over how many GPUs the weights are spread at least: each server holds all of them."""
        return min(engine.gpus for engine in self.engines)


def names() -> list[str]:
    """The shapes that ship."""
    folder = importlib.resources.files("poise.testbed") / "shapes"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def is_path(word: str) -> bool:
    """Whether a word is the path of a file rather than the name of a shape that ships."""
    return "/" in word or word.endswith(".toml")


def load(word: str) -> Shape:
    """A shape that ships by its name, or one of the user by the path of its file.

    Raises TestbedError for a name that is not there, and for a file that cannot be read or is wrong, naming file, key and value.
    """
    if is_path(word):
        return _load_file(Path(word))
    if word not in names():
        raise TestbedError(f"there is no shape {word!r}: choose from {', '.join(names())}, or give the path of a TOML file of your own")
    text = (importlib.resources.files("poise.testbed") / "shapes" / f"{word}.toml").read_text(encoding="utf-8")
    return parse(word, tomllib.loads(text))


def _load_file(path: Path) -> Shape:
    if path.exists() and not path.is_file():
        raise TestbedError(f"{path} is no file: give the path of a TOML file that describes a shape (docs/testbed.md)")
    try:
        with path.open("rb") as stream:
            raw = stream.read(MOST_BYTES + 1)
    except OSError as error:
        raise TestbedError(f"{path} cannot be read ({error.strerror}): give the path of a TOML file that describes a shape") from None
    if len(raw) > MOST_BYTES:
        raise TestbedError(f"{path} is larger than {MOST_BYTES} bytes: it does not describe a shape")
    try:
        data = tomllib.loads(raw.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TestbedError(f"{path} is not TOML: {error}") from None
    except RecursionError:
        raise TestbedError(f"{path} is nested too deeply: it does not describe a shape (docs/testbed.md)") from None
    return parse(path.name.removesuffix(".toml"), data, str(path))


def parse(name: str, data: Mapping[str, object], where: str | None = None) -> Shape:
    """The shape in `data`; `where` begins what is said of errors. Raises TestbedError naming the key that is missing, unknown or wrong."""
    table = Table(where or f"shape {name}", data)
    table.only("title", "gpus", "engine", "router")
    title = table.text("title", name)
    engines: tuple[EngineShape, ...] = ()
    for part in table.tables("engine"):
        engines += (_engine(part, table.where, engines),)
    router = _router(table.table("router")) if "router" in data else None
    roles = {engine.role for engine in engines}
    if roles != ({"prefill", "decode"} if router else {"mixed"}):
        raise table.error("engines of role prefill, engines of role decode and a [router] come together or not at all")
    least = gpus_needed(engines)
    gpus = table.whole("gpus", least) if "gpus" in data else least
    if gpus < least:
        raise table.error(f"gpus = {gpus} but the engines need {least}: raise it, or leave it out")
    return checked(Shape(name, title, gpus, engines, router), table.where)


def checked(shape: Shape, where: str) -> Shape:
    """The shape, of which the parts are right each by itself. Raises TestbedError for what is wrong with them together: names that stand for
    two things, more GPUs than any node has."""
    wrong = naming.problem(shape.engines, shape.router)
    if wrong is None and shape.gpus > MOST_GPUS:
        wrong = f"{shape.gpus} GPUs are asked for: a deployment has at most {MOST_GPUS}"
    if wrong is not None:
        raise TestbedError(f"{where}: {wrong}")
    return shape


def gpus_needed(engines: Iterable[EngineShape]) -> int:
    """How many GPUs a node has to have for these engines: those that they name by number, and one for each rank that is open."""
    named: set[str] = set()
    open_ranks = 0
    for engine in engines:
        if engine.cuda_visible_devices is None:
            open_ranks += engine.gpus
        else:
            named |= {entry.strip() for entry in engine.cuda_visible_devices.split(",")}
    return max(len(named) + open_ranks, max((int(entry) + 1 for entry in named if entry.isdecimal()), default=0))


def _engine(numbered: Table, where: str, before: Sequence[EngineShape]) -> EngineShape:
    """One server; its preferred ports follow those of the servers of its role `before` it."""
    name = numbered.identifier("name")
    table = Table(f"{where}: engine {name}", numbered.data)
    table.only(*EngineShape.__dataclass_fields__)
    role = table.choice("role", ("mixed", "prefill", "decode"), "mixed")
    known: EngineRole = "prefill" if role == "prefill" else "decode" if role == "decode" else "mixed"
    place = sum(1 for engine in before if engine.role == known)
    visible = table.optional_text("cuda_visible_devices")
    arguments = table.texts("arguments")
    try:
        vllm_arguments.check(arguments)
    except TestbedError as error:
        raise table.error(f"arguments: {error}") from None
    connector: str | None = None
    side_channel: int | None = None
    if known == "mixed":
        for key in ("kv_connector", "side_channel_port"):
            if key in table.data:
                raise table.error(f"{key} is for engines of role prefill or decode: give it such a role, or leave the key out")
    else:
        connector = table.choice("kv_connector", (KV_CONNECTOR,), KV_CONNECTOR)
        side_channel = table.port("side_channel_port", SIDE_CHANNEL_PORTS[known] + place)
    engine = EngineShape(
        name=name,
        port=table.port("port", PORTS[known] + place),
        tensor_parallel_size=table.whole("tensor_parallel_size", 1, MOST_RANKS),
        cuda_visible_devices=visible,
        arguments=arguments,
        role=known,
        kv_connector=connector,
        side_channel_port=side_channel,
        pipeline_parallel_size=table.whole("pipeline_parallel_size", 1, MOST_RANKS),
    )
    if known != "mixed" and engine.pipeline_parallel_size > 1:
        # vllm/distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py, 0.32: a decode server of several stages is refused, and with a
        # prefill server of several every transfer fails ("Number of KV layers must match between prefill and decode").
        raise table.error(
            f"pipeline_parallel_size has to be 1 for an engine of role {known}: vLLM's NIXL connector moves no KV cache of stages"
        )
    entries = [] if visible is None else [entry.strip() for entry in visible.split(",")]
    if len(set(entries)) != len(entries) or not all(GPU_WORDS.fullmatch(entry) for entry in entries):
        raise table.wrong("cuda_visible_devices", 'different GPUs by number or UUID with commas between, as "0,1"')
    if visible is not None and len(entries) < engine.gpus:
        raise table.error(f"cuda_visible_devices = {visible!r} names {len(entries)} GPUs and its ranks need {engine.gpus}: name more")
    return engine


def _router(table: Table) -> RouterShape:
    table.only(*RouterShape.__dataclass_fields__)
    table.choice("kind", ("vllm-router",), "vllm-router")
    return RouterShape(
        name=table.identifier("name", "router"),
        kind="vllm-router",
        port=table.port("port", ROUTER_PORT),
        metrics_port=table.port("metrics_port", ROUTER_METRICS_PORT),
    )
