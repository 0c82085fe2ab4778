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
from poise.exporter.settings import SettingsError
from poise.history.durations import parse_duration
from poise.history.layers import Layers
from poise.history.targets import Target, check_distinct, targets

ENVIRONMENT_PREFIX = "POISE_HISTORY_"
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


def _beside(key: str, value: Any, folder: Path) -> Any:
    return tuple(target.beside(folder) for target in value) if key == "targets" else value


_LAYERS = Layers("history", ENVIRONMENT_PREFIX, _PARSERS, _FLAGS, lists={"targets": "target"}, paths=("path",), beside=_beside)


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> HistorySettings:
    """The settings in force; of the flags those that `arguments` has.

    Raises:
        SettingsError: anything wrong in file, environment or flags; the message names it.
    """
    return _LAYERS.load(HistorySettings(), arguments, environment)


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
