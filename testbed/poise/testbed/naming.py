"""The names of everything in a deployment: parts, ports, records, logs, steps. Owns which there are, and that none stands for two things.

Pure. Knows nothing of what a part does; a name is a file's (NAME.json, NAME.log) and a word of the command line (--port NAME=PORT).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

# What the testbed starts beside the parts of a shape, under these names, and the step of `up` that an engine's would be taken for.
EXPORTER, MIRROR, KEEPER, PAGE, LOAD = "exporter", "mirror", "keeper", "page", "load"
INSTALLED = "installed"
OWN = (EXPORTER, MIRROR, KEEPER, PAGE, LOAD, INSTALLED)
# Processes of faults (faults/): each is called this and more.
FAULT_PREFIX = "fault_"
# A name is the stem of file names, of which Linux takes 255 bytes, and stands in lines of a terminal.
LONGEST = 40


class Engine(Protocol):
    """Of an engine's shape or plan."""

    @property
    def name(self) -> str: ...
    @property
    def side_channel_port(self) -> int | None: ...


class Router(Protocol):
    """Of a router's shape or plan."""

    @property
    def name(self) -> str: ...


def side_channel(engine: str) -> str:
    """The name of the port of an engine's side channel."""
    return f"{engine}_side_channel"


def metrics(router: str) -> str:
    """The name of the port of a router's metrics."""
    return f"{router}_metrics"


def of(engines: Iterable[Engine], router: Router | None) -> Iterator[tuple[str, str]]:
    """Every name that a shape brings with it, and what it is the name of."""
    for engine in engines:
        yield engine.name, f"engine {engine.name}"
        if engine.side_channel_port is not None:
            yield side_channel(engine.name), f"the side channel of {engine.name}"
    if router is not None:
        yield router.name, f"router {router.name}"
        yield metrics(router.name), f"the metrics of {router.name}"


def problem(engines: Iterable[Engine], router: Router | None) -> str | None:
    """What is wrong with the names of a shape, and the way out; None where nothing is."""
    given: dict[str, str] = {}
    for name, what in of(engines, router):
        if name in OWN or name.startswith(FAULT_PREFIX):
            return f"{what} cannot be called {name!r}: the testbed gives that name to a part of its own; give another name"
        if name in given:
            whose = "" if given[name].endswith(name) and what.endswith(name) else f" ({given[name]}, {what})"
            return f"two parts have the name {name!r}{whose}: give each a name of its own"
        given[name] = what
    return None
