"""Settings of alerting: which rules, evaluated by whom, told to which Alertmanagers. Defaults, then `poise.toml` (`[alerts]`, `[[alertmanager]]`,
`[alerts.thresholds]`), then the environment (``POISE_ALERTS_…``), then flags.

Owns the names and the errors. Reads no rule and asks nobody.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from poise.alerts.evaluation.evaluator import DEFAULT_INTERVAL
from poise.alerts.notification.alertmanager import TIMEOUT, Place
from poise.alerts.thresholds import table_settings
from poise.exporter import access, setting_values
from poise.exporter.named_specs import check_keys
from poise.history.layers import Layers

ENVIRONMENT_PREFIX = "POISE_ALERTS_"
#: Who evaluates the rules and speaks to Alertmanager: this process, a Prometheus that has the same files, or nobody.
MODES = ("builtin", "external", "off")
_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 1.0, 3_600.0
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_PLACE_KEYS = ("url", "timeout", *access.KEYS)


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Everything that can be set. `interval` in seconds; `rules` are files beside the shipped ones, `without` alerts of these that are left out;
    `thresholds` by name (`poise alerts thresholds`); `external_labels` go with every alert that is sent; `page` is the address under which people
    reach the dashboard, for links in notifications ("" is where it listens); `time_scale` multiplies all times of the rules, for test beds."""

    mode: str = "builtin"
    interval: float = DEFAULT_INTERVAL
    rules: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    thresholds: Mapping[str, str] = field(default_factory=dict)
    external_labels: Mapping[str, str] = field(default_factory=dict)
    page: str = ""
    time_scale: float = 1.0
    alertmanagers: tuple[Place, ...] = ()


def parse_place(text: str) -> Place:
    """An Alertmanager from ``URL[,timeout=…]`` and the keys of `access.KEYS`. Raises ValueError."""
    url, *options = text.split(",")
    values: dict[str, Any] = {"url": url.strip()}
    for option in options:
        key, equals, value = option.partition("=")
        if hint := access.secret_hint(key):
            raise ValueError(hint)
        if not equals or key.strip() not in _PLACE_KEYS[1:]:
            raise ValueError(f"unknown option {key.strip()!r}; known are {', '.join(f'{known}=' for known in _PLACE_KEYS[1:])}")
        values[key.strip()] = value.strip()
    return _place(values)


def _place(values: Mapping[str, Any]) -> Place:
    for key in values:
        if hint := access.secret_hint(key):
            raise ValueError(hint)
    check_keys(values, _PLACE_KEYS, no_text=("timeout", "insecure_skip_verify"))
    base = setting_values.base_url(values.get("url", ""))
    try:
        timeout = setting_values.interval(values["timeout"]) if "timeout" in values else TIMEOUT
    except ValueError as error:
        raise ValueError(f"timeout: {error}") from None
    return Place(base, timeout, access.from_values(values, base))


def alertmanagers(value: object) -> tuple[Place, ...]:
    """From a TOML list of tables or texts, or from text with places separated by blanks or semicolons. Raises ValueError."""
    items = re.split(r"[;\s]+", value) if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("expected a list of tables with url")
    places = tuple(_place(item) if isinstance(item, dict) else parse_place(str(item)) for item in items if item)
    twice = {place.url for place in places if sum(other.url == place.url for other in places) > 1}
    if twice:
        raise ValueError(f"{min(twice)} stands twice; name each Alertmanager of a cluster once, by its own address")
    return places


def mode(value: object) -> str:
    """One of MODES. Raises ValueError."""
    if value not in MODES:
        raise ValueError(f"expected one of {', '.join(MODES)}")
    return str(value)


def interval(value: object) -> float:
    """Seconds from a duration. Raises ValueError."""
    seconds = setting_values.interval(value)
    if not _SHORTEST_INTERVAL <= seconds <= _LONGEST_INTERVAL:
        raise ValueError("must lie between 1s and 1h")
    return seconds


def texts(value: object) -> tuple[str, ...]:
    """From a TOML list, or from text separated by commas. Raises ValueError."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError("expected a list of texts")
    return tuple(item.strip() for item in items if item.strip())


def labels(value: object) -> Mapping[str, str]:
    """From a TOML table, or from `name=value,…`. Raises ValueError."""
    pairs = _pairs(value)
    for name in pairs:
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__") or name == "alertname":
            raise ValueError(f"{name!r} is no name that a label of all alerts may have")
    return pairs


def threshold_values(value: object) -> Mapping[str, str]:
    """From a TOML table in the forms of `thresholds.table_settings`, as --thresholds FILE takes them, or from `NAME.key=value,…`. Raises ValueError."""
    return table_settings(value) if isinstance(value, dict) else _pairs(value)


def _pairs(value: object) -> Mapping[str, str]:
    if isinstance(value, dict):
        if not all(isinstance(item, str) for item in value.values()):
            raise ValueError("expected texts")
        return dict(value)
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        raise ValueError("expected a table, or NAME=VALUE separated by commas")
    found = {}
    for item in items:
        name, equals, text = str(item).partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{item!r} is not NAME=VALUE")
        found[name.strip()] = text.strip()
    return found


def page(value: object) -> str:
    """An address that people reach. Raises ValueError."""
    return setting_values.base_url(str(value)) if value else ""


def time_scale(value: object) -> float:
    """A factor above 0 and at most 1. Raises ValueError."""
    try:
        factor = float(str(value))
    except ValueError:
        raise ValueError("expected a number such as 0.05") from None
    if not 0 < factor <= 1:
        raise ValueError("must lie above 0 and at most at 1")
    return factor


def _beside(key: str, value: Any, folder: Path) -> Any:
    if key == "rules":
        return tuple(str(folder / path) for path in value)
    if key == "alertmanagers":
        return tuple(replace(place, access=place.access.beside(folder)) for place in value)
    return value


_LAYERS = Layers(
    "alerts",
    ENVIRONMENT_PREFIX,
    {
        "mode": mode,
        "interval": interval,
        "rules": texts,
        "without": texts,
        "thresholds": threshold_values,
        "external_labels": labels,
        "page": page,
        "time_scale": time_scale,
        "alertmanagers": alertmanagers,
    },
    {
        "mode": "--alerts",
        "interval": "--alerts-interval",
        "rules": "--rules",
        "external_labels": "--external-label",
        "page": "--page-url",
        "time_scale": "--alerts-time-scale",
        "alertmanagers": "--alertmanager",
    },
    lists={"alertmanagers": "alertmanager"},
    beside=_beside,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of whoever evaluates rules."""
    group = parser.add_argument_group("alerts")
    group.add_argument(
        "--alerts",
        choices=MODES,
        help="who evaluates the rules: this process (builtin, the default), a Prometheus (external), nobody (off)",
    )
    group.add_argument(
        "--alertmanager",
        action="append",
        default=[],
        metavar="URL[,ca_file=…]",
        help="an Alertmanager that is told of alerts (repeatable; name each of a cluster)",
    )
    group.add_argument("--rules", action="append", default=[], metavar="FILE", help="rules beside those that come with Poise (repeatable)")
    group.add_argument("--alerts-interval", metavar="DURATION", help=f"between evaluations of rules (default {DEFAULT_INTERVAL:g}s)")
    group.add_argument(
        "--external-label", action="append", default=[], metavar="NAME=VALUE", help="a label of every alert that is sent (repeatable)"
    )
    group.add_argument("--page-url", metavar="URL", help="where people reach this page, for links in notifications")
    group.add_argument(
        "--alerts-time-scale",
        metavar="FACTOR",
        help="multiply every time of the rules, for test beds: 0.05 makes ten minutes thirty seconds",
    )


def load(arguments: argparse.Namespace, environment: Mapping[str, str]) -> AlertSettings:
    """The settings in force; of the flags those that `arguments` has.

    Raises:
        SettingsError: anything wrong in file, environment or flags; the message names it.
    """
    return _LAYERS.load(AlertSettings(), arguments, environment)


def field_names() -> tuple[str, ...]:
    """Every key, for the documentation and its test."""
    return tuple(item.name for item in fields(AlertSettings))
