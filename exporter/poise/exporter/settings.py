"""Settings of the exporter: defaults, then `poise.toml`, then the environment, then flags; each layer replaces what the one before said.

This file owns the names, the units and the errors of settings. It opens no socket and starts nothing; the collectors' names are passed in.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from poise.exporter import setting_values
from poise.exporter.setting_values import parse_duration as parse_duration
from poise.exporter.setting_values import parse_listen as parse_listen
from poise.exporter.snapshot import Role

DEFAULT_LISTEN = "0.0.0.0:9747"  # an exporter is scraped from other machines, like every exporter
DEFAULT_INTERVAL = 1.0
#: vLLM renders its page in the API server, so it is asked rarely (shared contract: every 5 s).
DEFAULT_ENGINE_INTERVAL = 5.0
ENVIRONMENT_PREFIX = "POISE_EXPORTER_"
#: What Kubernetes sets for a service called "poise-exporter"; not ours, so no typing error of the user's.
_KUBERNETES_SERVICE = re.compile(r"^POISE_EXPORTER_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?)$")

#: Bytes of a configuration file; a hundred engines are 10 KB.
LARGEST_FILE = 1 << 20

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")


class SettingsError(Exception):
    """A setting that a person got wrong; the message names it, its value and the way out."""


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine that the user named: `url` is its base URL without path or query; deployment and role are empty when not given.

    `gpus`: how many cards of this node it is meant to use; None when that was not said.
    """

    name: str
    url: str
    deployment: str = ""
    role: Role | None = None
    gpus: int | None = None


#: What can be said of an engine, in `poise.toml` and behind `--engine NAME=URL`.
_ENGINE_KEYS = tuple(item.name for item in fields(EngineSpec))
_ENGINE_OPTIONS = tuple(key for key in _ENGINE_KEYS if key not in ("name", "url"))


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Everything that can be set, with its defaults. Intervals in seconds. `collectors` holds only what was switched by the user."""

    listen: str = DEFAULT_LISTEN
    interval: float = DEFAULT_INTERVAL
    engine_interval: float = DEFAULT_ENGINE_INTERVAL
    engines: tuple[EngineSpec, ...] = ()
    discover: bool = True
    expected_gpus: int | None = None
    collectors: Mapping[str, bool] = field(default_factory=dict)
    log_level: str = "info"
    log_format: str = "text"


# ------------------------------------------------------------------------------------------------- engines and collectors
def parse_engine(text: str) -> EngineSpec:
    """An engine from ``NAME=URL[,deployment=…][,role=mixed|prefill|decode][,gpus=N]``.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    head, *options = text.split(",")
    name, equals, url = head.partition("=")
    if not equals:
        raise ValueError("expected NAME=URL, for example qwen=http://10.0.0.5:8000")
    values = {"name": name.strip(), "url": url.strip()}
    for option in options:
        key, equals, value = option.partition("=")
        key = key.strip()
        if not equals or key not in _ENGINE_OPTIONS:
            raise ValueError(f"unknown option {key!r}; known are {', '.join(f'{known}=' for known in _ENGINE_OPTIONS)}")
        values[key] = value.strip()
    return _engine(values)


def _engine(values: Mapping[str, Any]) -> EngineSpec:
    """An engine from a table; raises ValueError naming the key."""
    unknown = set(values) - set(_ENGINE_KEYS)
    if unknown:
        raise ValueError(f"unknown key {min(unknown)!r}; known are {', '.join(_ENGINE_KEYS)}")
    for key, value in values.items():
        if key != "gpus" and not isinstance(value, str):
            raise ValueError(f"{key} must be text, not {value!r}")
    name = values.get("name", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}", name):
        raise ValueError(f"name {name!r} must be letters, digits and . _ : / - (at most 128), and start with a letter or digit")
    if setting_values.is_loopback(name.partition(":")[0]):
        # The name is the label `engine`, which all nodes of a fleet read: loopback is another machine to each of them.
        raise ValueError(f"name {name!r} is a loopback address; choose a name that tells the engine from those of other nodes")
    role = values.get("role", "")
    if role and role not in (Role.MIXED, Role.PREFILL, Role.DECODE):
        raise ValueError(f"role {role!r} is not one of mixed, prefill, decode")
    return EngineSpec(
        name,
        setting_values.base_url(values.get("url", "")),
        values.get("deployment", ""),
        Role(role) if role else None,
        _gpus(values["gpus"]) if "gpus" in values else None,
    )


def _gpus(value: object) -> int:
    """How many cards an engine is meant to use; raises ValueError naming the key."""
    try:
        gpus = setting_values.expected_gpus(value)
    except ValueError:
        gpus = 0
    if not gpus:
        raise ValueError(f"gpus {value!r} is not a number of cards from 1 to 1024")
    return gpus


def _engines(value: object) -> tuple[EngineSpec, ...]:
    """From a TOML list of tables, or from text with engines separated by blanks or semicolons."""
    if isinstance(value, str):
        return tuple(parse_engine(item) for item in re.split(r"[;\s]+", value) if item)
    if not isinstance(value, list):
        raise ValueError("expected a list of tables with name and url")
    engines = []
    for item in value:
        if isinstance(item, str):
            engines.append(parse_engine(item))
        elif isinstance(item, dict):
            engines.append(_engine(item))
        else:
            raise ValueError(f"expected a table with name and url, not {item!r}")
    return tuple(engines)


def _collectors(value: object) -> dict[str, bool]:
    """From a TOML table of booleans, or from text such as ``nvlink=off,bar1=on``."""
    if isinstance(value, str):
        pairs = [item.partition("=") for item in re.split(r"[,;\s]+", value) if item]
        value = {name: switch for name, _, switch in pairs}
    if not isinstance(value, dict):
        raise ValueError("expected a table of collector names and true or false")
    switches = {}
    for name, switch in value.items():
        try:
            switches[str(name)] = setting_values.boolean(switch)
        except ValueError as error:
            raise ValueError(f"collector {name!r}: {error}") from None
    return switches


#: Setting → parser from a TOML value or from the text of an environment variable.
_PARSERS: dict[str, Callable[[object], object]] = {
    "listen": setting_values.listen,
    "interval": setting_values.interval,
    "engine_interval": setting_values.interval,
    "engines": _engines,
    "discover": setting_values.boolean,
    "expected_gpus": setting_values.expected_gpus,
    "collectors": _collectors,
    "log_level": setting_values.one_of(LOG_LEVELS),
    "log_format": setting_values.one_of(LOG_FORMATS),
}


# ------------------------------------------------------------------------------------------------------------------- layers
def _fail(place: str, value: object, problem: object) -> NoReturn:
    raise SettingsError(f"{place}={_shown(value)}: {problem}")


def _shown(value: object) -> str:
    """A value as an error shows it: short, and without what stands before an @, which may be a password (with any character in it)."""
    try:
        text = str(value) if isinstance(value, str | int | float) else repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"
    text = re.sub(r"\A(.*?(?://|=))?.*@", r"\1…@", text, flags=re.DOTALL)
    return text if len(text) <= 200 else text[:200] + "…"


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(known))}"


def from_table(base: ExporterSettings, table: Mapping[str, object], source: str) -> ExporterSettings:
    """`base` with the values of the table ``[exporter]``.

    Raises:
        SettingsError: an unknown key or a value that cannot be.
    """
    changes: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _PARSERS:
            raise SettingsError(f"{source}: unknown key {key!r} in [exporter]; {_nearest(key, _PARSERS)}")
        try:
            changes[key] = _PARSERS[key](value)
        except ValueError as error:
            _fail(f"{source}: {key}", value, error)
    return _merged(base, changes)


def from_environment(base: ExporterSettings, environment: Mapping[str, str]) -> ExporterSettings:
    """`base` with the values of ``POISE_EXPORTER_…`` (and ``POISE_LOG_LEVEL``, ``POISE_LOG_FORMAT``).

    Raises:
        SettingsError: an unknown variable or a value that cannot be.
    """
    changes: dict[str, Any] = {}
    for name in sorted(environment):
        if name in ("POISE_LOG_LEVEL", "POISE_LOG_FORMAT"):
            key = name.removeprefix("POISE_").lower()
        elif name.startswith(ENVIRONMENT_PREFIX) and not _KUBERNETES_SERVICE.match(name):
            key = name.removeprefix(ENVIRONMENT_PREFIX).lower()
        else:
            continue
        if key not in _PARSERS:
            raise SettingsError(
                f"unknown environment variable {name}; {_nearest(name, (ENVIRONMENT_PREFIX + known.upper() for known in _PARSERS))}"
            )
        try:
            changes[key] = _PARSERS[key](environment[name])
        except ValueError as error:
            _fail(name, environment[name], error)
    return _merged(base, changes)


def from_flags(base: ExporterSettings, arguments: argparse.Namespace) -> ExporterSettings:
    """`base` with what stood on the command line; flags that were not given are None in `arguments`.

    Raises:
        SettingsError: a value that cannot be.
    """
    changes: dict[str, Any] = {}
    for key, parser in _PARSERS.items():
        value = getattr(arguments, key, None)
        if value is None:
            continue
        flag = "--engine" if key == "engines" else "--" + key.replace("_", "-")
        try:
            changes[key] = parser(value)
        except ValueError as error:
            _fail(flag, value[-1] if isinstance(value, list) and len(value) == 1 else value, error)
    return _merged(base, changes)


def _merged(base: ExporterSettings, changes: dict[str, Any]) -> ExporterSettings:
    if "collectors" in changes:
        changes["collectors"] = {**base.collectors, **changes["collectors"]}
    return replace(base, **changes)


def read_file(path: Path) -> dict[str, object]:
    """The table ``[exporter]`` of a configuration file; empty when it has none. Other tables belong to other components.

    Raises:
        SettingsError: the file cannot be read or is no TOML.
    """
    try:
        document = tomllib.loads(_content(path).decode())
    except OSError as error:
        raise SettingsError(f"--config={path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # besides TOMLDecodeError and UnicodeDecodeError a number of too many digits
        raise SettingsError(f"{path} is not TOML: {error}") from None
    for name in document:
        if name != "exporter" and difflib.SequenceMatcher(None, name, "exporter").ratio() > 0.8:
            raise SettingsError(f"{path}: unknown table [{name}]; did you mean [exporter]?")
    table = document.get("exporter", {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: exporter must be a table, [exporter]")
    return table


def _content(path: Path) -> bytes:
    """The bytes of an ordinary file of a sensible size; never waits, as a pipe would let us. Raises OSError, SettingsError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise SettingsError(f"--config={path}: not an ordinary file")
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise SettingsError(f"--config={path}: larger than {LARGEST_FILE} bytes; is that a configuration file?")
    return content


def _is_there(path: Path) -> bool:
    """Whether the file that nobody named is there. One that we may not look at counts as absent, as it does in a folder that we may not enter."""
    try:
        return path.is_file()
    except OSError:
        return False


def load(arguments: argparse.Namespace, environment: Mapping[str, str], collectors: Iterable[str]) -> ExporterSettings:
    """The settings in force. The file is `--config`, else ``POISE_CONFIG``, else ``poise.toml`` here if there is one.

    Raises:
        SettingsError: anything wrong in file, environment or flags.
    """
    settings = ExporterSettings()
    named = getattr(arguments, "config", None) or environment.get("POISE_CONFIG")
    path = Path(named or "poise.toml")
    if named or _is_there(path):
        settings = from_table(settings, read_file(path), str(path))
    settings = from_flags(from_environment(settings, environment), arguments)
    known = tuple(collectors)
    for name in settings.collectors:
        if name not in known:
            raise SettingsError(f"unknown collector {name!r}; {_nearest(name, known)}")
    names = [engine.name for engine in settings.engines]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"--engine={name}: two engines have this name; give each its own")
    return settings


# -------------------------------------------------------------------------------------------------------------------- flags
class _SwitchCollector(argparse.Action):
    """Stores ``--collector.NAME`` and ``--no-collector.NAME`` in one dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        switches = dict(getattr(namespace, "collectors", None) or {})
        option = option_string or ""
        switches[option.rpartition("collector.")[2]] = not option.startswith("--no-")
        namespace.collectors = switches


def add_arguments(parser: argparse.ArgumentParser, collectors: Mapping[str, str]) -> None:
    """Adds every flag of the exporter. `collectors`: name → help of each collector that can be switched."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: poise.toml here, if there is one)")
    parser.add_argument("--listen", metavar="HOST:PORT", help=f"where to serve; :PORT for IPv4 and IPv6 (default: {DEFAULT_LISTEN})")
    parser.add_argument("--interval", metavar="DURATION", help=f"how often each card is read (default: {DEFAULT_INTERVAL:g}s)")
    parser.add_argument(
        "--engine-interval", metavar="DURATION", help=f"how often each engine is asked (default: {DEFAULT_ENGINE_INTERVAL:g}s)"
    )
    parser.add_argument(
        "--engine",
        dest="engines",
        action="append",
        metavar="NAME=URL[,deployment=D][,role=R][,gpus=N]",
        help="an engine to watch besides those found on this node; role: mixed, prefill, decode; gpus: how many cards of this node it is "
        "meant to use; repeatable",
    )
    parser.add_argument("--no-discover", dest="discover", action="store_const", const=False, help="do not look for engines in /proc")
    parser.add_argument("--expected-gpus", metavar="N", help="cards that should be here (default: NVIDIA display controllers on PCI)")
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="least level to log (default: info)")
    parser.add_argument("--log-format", choices=LOG_FORMATS, help="text or one JSON object per line (default: text)")
    group = parser.add_argument_group("collectors", "all are on; switch one off with --no-collector.NAME")
    for name, text in collectors.items():
        group.add_argument(
            f"--collector.{name}", f"--no-collector.{name}", dest="collectors", action=_SwitchCollector, nargs=0, default=None, help=text
        )


def field_names() -> tuple[str, ...]:
    """Every key of ``[exporter]``, for the documentation and its test."""
    return tuple(item.name for item in fields(ExporterSettings))
