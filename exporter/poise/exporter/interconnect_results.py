"""What all-reduces over cards were measured at, and the file that keeps it: `poise testbed interconnect` writes it, the exporter reads it.

Owns the format, its limits, and when a measurement still holds. Whoever can write the file can make it say anything, so nothing of it is believed
that has not been looked at. Knows no card, no series and no verdict. Bandwidths as NVIDIA's nccl-tests define them (doc/PERFORMANCE.md there).
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

FORMAT = "poise-interconnect"
VERSION = 1
FILE_NAME = "interconnect.json"

#: How often the exporter reads the file, in seconds: somebody who just measured wants to see it.
INTERVAL = 10.0
#: Bytes of the file; sixteen measurements of two runs with twenty sizes are 60 KB.
LARGEST_FILE = 256 * 1024
#: Groups of cards that are kept, the newest; a node of eight cards has some pairs, fours and the eight.
MOST_MEASUREMENTS = 16
MOST_SIZES = 64
MOST_RANKS = 1024
#: A measurement of longer ago says nothing of today's cables and firmware, even if nobody booted since (heuristic; seconds).
LONGEST_AGE = 30 * 86_400.0
#: Clocks of containers and nodes differ by less.
CLOCK_SLACK = 60.0
#: No all-reduce takes as long, in seconds; what does is no figure.
_LONGEST_SECONDS = 3600.0
_LARGEST_MESSAGE = 1 << 40

#: On: peer-to-peer as NCCL chooses. Off: NCCL was told to go through host memory. None: there are no cards (gloo).
P2P_WORDS = ("on", "off", "none")
_PATH = re.compile(r"NV[1-9][0-9]{0,2}|PIX|PXB|PHB|NODE|SYS|loopback|unknown")
_UUID = re.compile(r"[A-Z]{3}-[0-9A-Za-z-]{1,64}")
_VERSION_WORD = re.compile(r"[0-9A-Za-z.+_-]{0,64}")
_BOOT_ID = re.compile(r"[0-9a-f-]{36}")


class Size(NamedTuple):
    """One message size: bytes that each rank holds, and seconds of one all-reduce: median, least and most of all rounds."""

    size_bytes: int
    seconds: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Run:
    """All sizes, in one way. `p2p` is one of P2P_WORDS."""

    p2p: str
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Measurement:
    """An all-reduce over a group of cards, or with `backend` "gloo" over processes of the CPU, which says nothing of any card.

    `cards`: UUIDs in rank order, empty for gloo. `path`: the worst between two of them, as `nvidia-smi topo -m`. `nominal`: what the links of a card to the
    others carry in one direction, bytes per second; None without links or where the driver does not tell. `measured_at`: Unix seconds.
    """

    backend: str  # nccl, gloo
    ranks: int
    cards: tuple[str, ...]
    path: str
    nominal: float | None
    library: str  # version of NCCL, else of torch
    driver: str
    boot_id: str
    measured_at: float
    runs: tuple[Run, ...]

    def run(self, p2p: str) -> Run | None:
        """The run with this word, or None."""
        return next((run for run in self.runs if run.p2p == p2p), None)


@dataclass(frozen=True, slots=True)
class Kept:
    """The file as read: its measurements, or in words why there is none. No file is neither."""

    measurements: tuple[Measurement, ...] = ()
    problem: str = ""
    boot_id: str = ""  # of now


@dataclass(frozen=True, slots=True)
class Usable:
    """What holds for the node as it is. `refused` are sentences about measurements that do not, and about a file that cannot be used."""

    measurements: tuple[Measurement, ...] = ()
    refused: tuple[str, ...] = ()


# ------------------------------------------------------------------------------------------------------------------ figures
def bus_factor(ranks: int) -> float:
    """What each link carries of an all-reduce, as a share of the message: 2(n−1)/n (nccl-tests, doc/PERFORMANCE.md)."""
    return 2.0 * (ranks - 1) / ranks


def algorithm_bandwidth(size: Size) -> float:
    """Bytes of the message per second."""
    return size.size_bytes / size.seconds


def bus_bandwidth(size: Size, ranks: int) -> float:
    """Bytes per second that a link has to carry at least, which may be held against its nominal bandwidth whatever the number of ranks."""
    return algorithm_bandwidth(size) * bus_factor(ranks)


def peak(run: Run, ranks: int) -> tuple[float, int]:
    """The highest bus bandwidth over all sizes, and the size in bytes that had it."""
    best = max(run.sizes, key=algorithm_bandwidth)
    return bus_bandwidth(best, ranks), best.size_bytes


def latency(run: Run) -> float:
    """Seconds of an all-reduce of the smallest message."""
    return min(run.sizes).seconds


# --------------------------------------------------------------------------------------------------------------------- file
def standard_path(environment: Mapping[str, str]) -> Path:
    """$POISE_STATE_DIR/interconnect.json, else in ${XDG_STATE_HOME:-~/.local/state}/poise."""
    own = environment.get("POISE_STATE_DIR")
    if own:
        return Path(own).absolute() / FILE_NAME
    base = environment.get("XDG_STATE_HOME")
    state = Path(base) if base else Path(environment.get("HOME") or "/") / ".local" / "state"
    return state / "poise" / FILE_NAME


def read(path: Path) -> Kept:
    """The file at `path`. Never waits, as a pipe would let us, and never raises."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return Kept()
    except (OSError, ValueError) as error:
        return Kept(problem=f"{path} cannot be read: {getattr(error, 'strerror', None) or error}")
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return Kept(problem=f"{path} is no ordinary file")
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
        return Kept(parse(content))
    except OSError as error:
        return Kept(problem=f"{path} cannot be read: {error.strerror or error}")
    except ValueError as error:
        return Kept(problem=f"{path} is no measurement of Poise: {error}")


def as_json(measurements: Iterable[Measurement]) -> dict[str, object]:
    """The object that the file holds: of each group of cards and backend the newest, of all groups the newest MOST_MEASUREMENTS."""
    return {"format": FORMAT, "version": VERSION, "measurements": [one_as_json(each) for each in _newest(measurements)]}


def one_as_json(each: Measurement) -> dict[str, object]:
    """One measurement as it stands in the file."""
    fields: dict[str, object] = {name: getattr(each, name) for name in Measurement.__slots__ if name not in ("runs", "cards")}
    runs = [{"p2p": run.p2p, "sizes": [size._asdict() for size in run.sizes]} for run in each.runs]
    return {**fields, "cards": list(each.cards), "runs": runs}


def _newest(measurements: Iterable[Measurement]) -> list[Measurement]:
    found: dict[tuple[str, frozenset[str]], Measurement] = {}
    for each in sorted(measurements, key=lambda one: one.measured_at):
        found[each.backend, frozenset(each.cards)] = each
    return sorted(found.values(), key=lambda one: -one.measured_at)[:MOST_MEASUREMENTS]


def parse(content: bytes) -> tuple[Measurement, ...]:
    """The measurements in the file's bytes, the newest first. Raises ValueError, in words, for anything that this version would not write."""
    if len(content) > LARGEST_FILE:
        raise ValueError(f"it has more than {LARGEST_FILE} bytes")
    try:
        document = json.loads(content)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError:
        raise ValueError("it is not JSON") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError(f'"format" is not "{FORMAT}"')
    if document.get("version") != VERSION:
        raise ValueError(f'"version" is not {VERSION}: another version of Poise wrote it; measure again')
    listed = _listed(document, "measurements", MOST_MEASUREMENTS)
    return tuple(_newest(_measurement(each) for each in listed))


def _measurement(value: object) -> Measurement:
    if not isinstance(value, dict):
        raise ValueError("a measurement is no object")
    backend = _word(value, "backend", re.compile("nccl|gloo"))
    listed = _listed(value, "cards", MOST_RANKS)
    cards = tuple(card for card in listed if isinstance(card, str) and _UUID.fullmatch(card))
    if len(cards) < len(listed) or len(set(cards)) < len(cards):
        raise ValueError('"cards" are not the UUIDs of different cards')
    ranks = _number(value, "ranks", 2, MOST_RANKS)
    if ranks != int(ranks) or len(cards) != (ranks if backend == "nccl" else 0):
        raise ValueError('"ranks" and "cards" do not fit')
    runs = tuple(_run(run, backend) for run in _listed(value, "runs", len(P2P_WORDS)))
    if not runs or len({run.p2p for run in runs}) < len(runs):
        raise ValueError('"runs" are none, or two have the same "p2p"')
    return Measurement(
        backend=backend,
        ranks=int(ranks),
        cards=cards,
        path=_word(value, "path", _PATH),
        nominal=None if value.get("nominal") is None else _number(value, "nominal", 1.0, 1e15),
        library=_word(value, "library", _VERSION_WORD),
        driver=_word(value, "driver", _VERSION_WORD),
        boot_id=_word(value, "boot_id", _BOOT_ID),
        measured_at=_number(value, "measured_at", 1.0, 1e11),
        runs=runs,
    )


def _run(value: object, backend: str) -> Run:
    if not isinstance(value, dict):
        raise ValueError("a run is no object")
    p2p = _word(value, "p2p", re.compile("on|off" if backend == "nccl" else "none"))
    sizes = tuple(_size(each) for each in _listed(value, "sizes", MOST_SIZES))
    if not sizes or len({size.size_bytes for size in sizes}) < len(sizes):
        raise ValueError('"sizes" are none, or one stands twice')
    return Run(p2p, sizes)


def _size(value: object) -> Size:
    if not isinstance(value, dict):
        raise ValueError("a size is no object")
    size = _number(value, "size_bytes", 1, _LARGEST_MESSAGE)
    median, least, most = (_number(value, name, 1e-9, _LONGEST_SECONDS) for name in ("seconds", "least", "most"))
    if size != int(size) or not least <= median <= most:
        raise ValueError("the figures of a size do not fit")
    return Size(int(size), median, least, most)


def _listed(value: Mapping[str, object], name: str, most: int) -> list[object]:
    found = value.get(name)
    if not isinstance(found, list) or len(found) > most:
        raise ValueError(f'"{name}" is no list of at most {most}')
    return found


def _word(value: Mapping[str, object], name: str, pattern: re.Pattern[str]) -> str:
    found = value.get(name)
    if not isinstance(found, str) or pattern.fullmatch(found) is None:
        raise ValueError(f'"{name}" is not what it should be')
    return found


def _number(value: Mapping[str, object], name: str, least: float, most: float) -> float:
    found = value.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not least <= found <= most or not math.isfinite(found):
        raise ValueError(f'"{name}" is no number from {least:g} to {most:g}')
    return float(found)


# ------------------------------------------------------------------------------------------------------------------ validity
def usable(kept: Kept, *, now: float, driver: str, cards: Collection[str]) -> Usable:
    """What of the file holds for this node: measured since it booted, not too long ago, with this driver and cards that answer.

    `now` is Unix seconds, `cards` are the UUIDs of the cards that answer the driver.
    """
    if kept.problem:
        return Usable(refused=(kept.problem,))
    good, refused = [], []
    for each in kept.measurements:
        reason = _outdated(each, now, driver, kept.boot_id, cards)
        if reason:
            refused.append(f"the measurement of {_day(each, now)} does not count: {reason}")
        else:
            good.append(each)
    return Usable(tuple(good), tuple(refused))


def _outdated(each: Measurement, now: float, driver: str, boot_id: str, cards: Collection[str]) -> str:
    if each.boot_id != boot_id:
        return "this machine was booted since, or it is of another machine"
    if each.measured_at > now + CLOCK_SLACK:
        return "it is from the future"
    if now - each.measured_at > LONGEST_AGE:
        return f"it is older than {LONGEST_AGE / 86_400:.0f} days"
    if each.backend == "gloo":
        return ""
    if each.driver != driver:
        return f"the driver was {each.driver or 'unknown'} and is {driver or 'unknown'}"
    missing = [card for card in each.cards if card not in cards]
    return f"{missing[0]} does not answer here" if missing else ""


def _day(each: Measurement, now: float) -> str:
    days = (now - each.measured_at) / 86_400
    return "the last 24 hours" if -1 < days < 1 else f"{abs(days):.0f} days {'ago' if days > 0 else 'ahead'}"
