"""Settings of the history: where it is kept, how long, and whom to scrape. Defaults, then `poise.toml` (`[history]`, `[[target]]`), then the
environment (``POISE_HISTORY_…``), then flags; each layer replaces what the one before said.

Owns the names and the errors. Opens no store and asks nobody.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from poise.exporter import setting_values
from poise.exporter.settings import SettingsError, file_of, nearest, read_document, read_file, shown
from poise.history.durations import parse_duration
from poise.history.targets import Target, check_distinct, targets

ENVIRONMENT_PREFIX = "POISE_HISTORY_"
#: What Kubernetes sets for a service called "poise-history"; not ours, so no typing error of the user's.
_KUBERNETES_SERVICE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?")
#: Seconds and bytes that are kept (shared design: raw for seven days).
DEFAULT_RETENTION = 7 * 86_400.0
DEFAULT_RETENTION_SIZE = 2_000_000_000
#: Below an hour nothing would ever reach a chunk; a hundred years is "for ever".
_SHORTEST_RETENTION, _LONGEST_RETENTION = 3_600.0, 100 * 365 * 86_400.0
#: A store of less could not hold an hour of one node.
_SMALLEST_SIZE = 10_000_000
_SIZE = re.compile(r"(\d{1,12})\s*(B|KB|MB|GB|TB)?", re.IGNORECASE)
_SIZE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_FILE = "history.db"


@dataclass(frozen=True, slots=True)
class HistorySettings:
    """Everything that can be set. `path` "" is the default place, see `default_path`; `retention` in seconds, `retention_size` in bytes."""

    path: str = ""
    retention: float = DEFAULT_RETENTION
    retention_size: int = DEFAULT_RETENTION_SIZE
    targets: tuple[Target, ...] = ()


def default_path(environment: Mapping[str, str]) -> Path:
    """${POISE_STATE_DIR:-${XDG_STATE_HOME:-~/.local/state}/poise}/history.db."""
    own = environment.get("POISE_STATE_DIR")
    if own:
        return Path(own).absolute() / _FILE
    home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    base = environment.get("XDG_STATE_HOME")
    return (Path(base) if base else home / ".local" / "state") / "poise" / _FILE


def retention(value: object) -> float:
    """Seconds from a duration such as 7d. Raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 7d or 36h")
    seconds = parse_duration(value.strip())
    if not _SHORTEST_RETENTION <= seconds <= _LONGEST_RETENTION:
        raise ValueError("must lie between 1h and 100y")
    return seconds


def retention_size(value: object) -> int:
    """Bytes from a number, or from text such as 2GB. Raises ValueError."""
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str | int) and not isinstance(value, bool) else None
    if match is None:
        raise ValueError("expected a size such as 500MB or 2GB")
    size = int(match[1]) * _SIZE_UNITS[(match[2] or "B").upper()]
    if size < _SMALLEST_SIZE:
        raise ValueError(f"must be at least {_SMALLEST_SIZE // 10**6}MB")
    return size


_PARSERS: dict[str, Callable[[object], object]] = {
    "path": setting_values.path,
    "retention": retention,
    "retention_size": retention_size,
    "targets": targets,
}
_FLAGS = {"path": "--history", "retention": "--history-retention", "retention_size": "--history-size", "targets": "--target"}


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> HistorySettings:
    """The settings in force; of the flags those that `arguments` has.

    Raises:
        SettingsError: anything wrong in file, environment or flags; the message names it.
    """
    settings = HistorySettings()
    path = file_of(arguments, environment)
    if path is not None:
        settings = _from_file(settings, path)
    changes: dict[str, Any] = {}
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and not _KUBERNETES_SERVICE.fullmatch(name.removeprefix(ENVIRONMENT_PREFIX)):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            if key not in _PARSERS:
                known = nearest(name, (ENVIRONMENT_PREFIX + known.upper() for known in _PARSERS))
                raise SettingsError(f"unknown environment variable {name}; {known}")
            changes[key] = _parsed(key, name, environment[name])
    settings = replace(settings, **changes)
    given = {
        key: value for key, flag in _FLAGS.items() if (value := getattr(arguments, flag[2:].replace("-", "_"), None)) not in (None, [])
    }
    return replace(settings, **{key: _parsed(key, _FLAGS[key], value) for key, value in given.items()})


def _from_file(settings: HistorySettings, path: Path) -> HistorySettings:
    table = read_file(path, "history")
    for key in table:
        if key not in _PARSERS or key == "targets":
            way = "write [[target]]" if key in ("target", "targets") else nearest(key, (known for known in _PARSERS if known != "targets"))
            raise SettingsError(f"{path}: unknown key {key!r} in [history]; {way}")
    changes = {key: _parsed(key, f"{path}: {key}", value) for key, value in table.items()}
    document = read_document(path)
    if "targets" in document:
        raise SettingsError(f"{path}: unknown table [targets]; write [[target]] for each of them")
    if "target" in document:
        found = _parsed("targets", f"{path}: target", document["target"])
        changes["targets"] = tuple(target.beside(path.parent) for target in found)
    if changes.get("path"):
        changes["path"] = str(path.parent / changes["path"])
    return replace(settings, **changes)


def _parsed(key: str, place: str, value: object) -> Any:
    try:
        return _PARSERS[key](value)
    except ValueError as error:
        told = value[-1] if isinstance(value, list) and len(value) == 1 else value
        raise SettingsError(f"{place}={shown(told)}: {error}") from None


def with_local(settings: HistorySettings, local: Target) -> HistorySettings:
    """The settings with a target that nobody had to name, such as this machine's own exporter, put first.

    Raises:
        SettingsError: a target that was named has its labels.
    """
    together = (local, *settings.targets)
    try:
        check_distinct(together)
    except ValueError as error:
        raise SettingsError(f"--target: {error}") from None
    return replace(settings, targets=together)


def field_names() -> tuple[str, ...]:
    """Every key, for the documentation and its test."""
    return tuple(item.name for item in fields(HistorySettings))
