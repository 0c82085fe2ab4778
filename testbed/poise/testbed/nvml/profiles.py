"""Profiles: what a simulated node is made of, as data in profiles/*.toml.

Owns reading and checking a profile. Knows nothing of the mapped state (provision.py writes a profile into one).
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from poise.testbed.errors import TestbedError
from poise.testbed.nvml.codes import Architecture, Brand, LinkVersion, P2PStatus, RemoteType, TopologyLevel
from poise.testbed.nvml.state import MAX_CARDS, MAX_LINKS, functions

PROFILES = Path(__file__).parent / "profiles"

_Part = TypeVar("_Part")


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions. The branch (first number) decides which functions and fields exist."""

    version: str
    nvml: str
    cuda: int  # 1000 x major + 10 x minor

    @property
    def branch(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])


@dataclass(frozen=True, slots=True)
class Product:
    """What is the same for all cards of one type."""

    name: str  # starts with "Simulated "
    architecture: str
    compute_capability: str  # "9.0"
    brand: str
    part_number: str
    vbios: str
    pci_device_id: int
    pci_subsystem_id: int
    cores: int
    memory_bus_bits: int
    fans: int
    ecc: bool
    gpm: bool
    mig_devices: int  # most MIG devices on one card; 0: no MIG


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes."""

    total_bytes: int
    reserved_bytes: int
    bar1_bytes: int


@dataclass(frozen=True, slots=True)
class Power:
    """Watts."""

    idle_watts: float
    default_limit_watts: float
    min_limit_watts: float
    max_limit_watts: float


@dataclass(frozen=True, slots=True)
class Temperature:
    """Degrees Celsius. A threshold of 0 is not supported; `limit_offsets` are fields 193 to 196, relative to T.Limit."""

    idle: int
    memory_idle: int  # 0: no memory sensor
    shutdown: int
    slowdown: int
    memory_max: int
    gpu_max: int
    limit_offsets: tuple[int, ...]  # empty before Ada


@dataclass(frozen=True, slots=True)
class Clocks:
    """MHz: graphics, SM, memory, video."""

    max_mhz: tuple[int, ...]
    idle_mhz: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pcie:
    """The link as it is under load; `idle_generation` is what it falls to without."""

    generation: int
    idle_generation: int
    generation_gpu: int
    width: int


@dataclass(frozen=True, slots=True)
class NvLink:
    """Links of every card; `remotes` are bus ids of switches in turn, or empty: then each link goes to a peer card."""

    links: int
    version: str
    speed_mbps: int
    remote: str
    remotes: tuple[str, ...]
    fabric: bool


@dataclass(frozen=True, slots=True)
class Card:
    """What tells one card from its neighbours. `socket` decides the path between two cards."""

    pci_bus: int
    numa_node: int
    socket: int


@dataclass(frozen=True, slots=True)
class Topology:
    """Levels (PIX, PXB, PHB, NODE, SYS) between cards of one socket and of two, and p2p status by capability."""

    same_socket: str
    other_socket: str
    p2p: str
    p2p_nvlink: str


@dataclass(frozen=True, slots=True)
class Mig:
    """One MIG device that every card is divided into."""

    gpu_instance: int
    compute_instance: int
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """A node. `not_supported` names functions and field ids that these cards refuse."""

    name: str
    title: str
    driver: Driver
    product: Product
    memory: Memory
    power: Power
    temperature: Temperature
    clocks: Clocks
    pcie: Pcie
    nvlink: NvLink
    topology: Topology
    cards: tuple[Card, ...]
    mig: tuple[Mig, ...]
    functions_not_supported: tuple[str, ...]
    fields_not_supported: tuple[int, ...]


def names() -> tuple[str, ...]:
    """Names of the profiles that come with Poise."""
    return tuple(sorted(path.stem for path in PROFILES.glob("*.toml")))


def load(name: str) -> Profile:
    """The profile called `name`, or the one in the file `name` when that ends in .toml.

    Raises TestbedError for an unknown name, an unknown or missing key, or a value that does not fit.
    """
    path = Path(name) if name.endswith(".toml") else PROFILES / f"{name}.toml"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise TestbedError(f"poise: no profile {name!r} for a simulated node ({error.strerror}); there are {', '.join(names())}") from error
    return parse(path.stem, text)


def parse(name: str, text: str) -> Profile:
    """The profile written in `text`. Raises TestbedError as `load` does."""
    try:
        table: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TestbedError(f"poise: profile {name}: {error}") from error
    table.setdefault("mig", [])
    profile = _part(Profile, {"name": name, **table}, f"profile {name}")
    _check(profile)
    return profile


def _part(kind: type[_Part], table: Mapping[str, Any], where: str) -> _Part:
    hints = get_type_hints(kind)
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]  # every kind here is a dataclass
    for key in table:
        if key not in known:
            raise TestbedError(f"poise: {where}: unknown key {key!r}; known are {', '.join(known)}")
    missing = [key for key in known if key not in table]
    if missing:
        raise TestbedError(f"poise: {where}: missing {', '.join(missing)}")
    return kind(**{key: _value(hints[key], table[key], f"{where}: {key}") for key in known})


def _value(hint: Any, value: Any, where: str) -> Any:
    if hint in (str, int, bool):
        if type(value) is not hint:
            raise TestbedError(f"poise: {where}: {value!r} is not of type {hint.__name__}")
        return value
    if hint is float:
        if type(value) not in (int, float):
            raise TestbedError(f"poise: {where}: {value!r} is not a number")
        return float(value)
    inner = get_args(hint)
    if inner:  # tuple[X, ...]
        if not isinstance(value, list):
            raise TestbedError(f"poise: {where}: {value!r} is not a list")
        return tuple(_value(inner[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if not isinstance(value, dict):
        raise TestbedError(f"poise: {where}: {value!r} is not a table")
    return _part(hint, value, where)


def _check(profile: Profile) -> None:
    def require(holds: bool, what: str) -> None:
        if not holds:
            raise TestbedError(f"poise: profile {profile.name}: {what}")

    def is_one_of(value: str, allowed: type, what: str) -> None:
        known = [str(member).lower() for member in allowed.__members__]  # type: ignore[attr-defined]  # an Enum class
        require(value.lower() in known, f"{what} {value!r} is not one of {', '.join(known)}")

    product = profile.product
    require(product.name.startswith("Simulated "), f"name {product.name!r} must start with 'Simulated '")
    require(0 < len(profile.cards) <= MAX_CARDS, f"{len(profile.cards)} cards, allowed are 1 to {MAX_CARDS}")
    require(profile.nvlink.links <= MAX_LINKS, f"{profile.nvlink.links} links, allowed are {MAX_LINKS}")
    require(len(profile.clocks.max_mhz) == len(profile.clocks.idle_mhz) == 4, "clocks need four values each")
    require(len(profile.temperature.limit_offsets) in (0, 4), "limit_offsets needs four values or none")
    require(len(profile.mig) <= product.mig_devices, "more MIG devices than the product can have")
    is_one_of(product.architecture, Architecture, "architecture")
    is_one_of(product.brand, Brand, "brand")
    is_one_of(profile.nvlink.remote, RemoteType, "nvlink remote")
    is_one_of("v" + profile.nvlink.version.replace(".", "_"), LinkVersion, "nvlink version")
    is_one_of(profile.topology.same_socket, TopologyLevel, "same_socket")
    is_one_of(profile.topology.other_socket, TopologyLevel, "other_socket")
    is_one_of(profile.topology.p2p, P2PStatus, "p2p")
    is_one_of(profile.topology.p2p_nvlink, P2PStatus, "p2p_nvlink")
    for function in profile.functions_not_supported:
        require(function in functions(), f"{function} is no NVML function")
