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

from poise.exporter import engine_specs, router_specs, setting_values
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.logs import visible
from poise.exporter.router_specs import RouterSpec

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
    """A setting that a person got wrong; the message names it, its value and the way out, on one line that no terminal acts on."""

    def __init__(self, message: str) -> None:
        super().__init__(visible(message))


@dataclass(frozen=True, slots=True)
class ExporterSettings:
    """Everything that can be set, with its defaults. Intervals in seconds.

    `collectors` holds only what the user switched; `web_config_file` is empty for plain HTTP that asks nobody who he is, `interconnect_file`
    for the place where `poise testbed interconnect` of the same user puts it.
    """

    listen: str = DEFAULT_LISTEN
    interval: float = DEFAULT_INTERVAL
    engine_interval: float = DEFAULT_ENGINE_INTERVAL
    engines: tuple[EngineSpec, ...] = ()
    routers: tuple[RouterSpec, ...] = ()
    discover: bool = True
    expected_gpus: int | None = None
    collectors: Mapping[str, bool] = field(default_factory=dict)
    disable_default_collectors: bool = False
    web_config_file: str = ""
    interconnect_file: str = ""
    log_level: str = "info"
    log_format: str = "text"


# --------------------------------------------------------------------------------------------------------------- collectors
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
    "engines": engine_specs.engines,
    "routers": router_specs.routers,
    "discover": setting_values.boolean,
    "expected_gpus": setting_values.expected_gpus,
    "collectors": _collectors,
    "disable_default_collectors": setting_values.boolean,
    "web_config_file": setting_values.path,
    "interconnect_file": setting_values.path,
    "log_level": setting_values.one_of(LOG_LEVELS),
    "log_format": setting_values.one_of(LOG_FORMATS),
}


#: Flags that are not called as their key is. `--web.config.file` and `--collector.disable-defaults` are what Prometheus' exporters call them.
_FLAGS = {
    "engines": "--engine",
    "routers": "--router",
    "disable_default_collectors": "--collector.disable-defaults",
    "web_config_file": "--web.config.file",
}


#: What a person may have taken for the place of a secret, in text or in a table that Python shows; not the keys that name its file.
_SECRET = re.compile(
    r"((?:token|password|passwd|secret|api[_-]?key|authorization)(?:_env)?['\"]?\s*[=:]\s*)(?:'[^']*'|\"[^\"]*\"|[^,;}]+)", re.IGNORECASE
)


# ------------------------------------------------------------------------------------------------------------------- layers
def _fail(place: str, value: object, problem: object) -> NoReturn:
    raise SettingsError(f"{place}={shown(value)}: {problem}")


def shown(value: object) -> str:
    """A value as an error shows it: short, without what stands before an @, which may be a password (with any character in it), and without
    what stands behind a word for a secret.
    """
    try:
        text = str(value) if isinstance(value, str | int | float) else repr(value)
    except ValueError:  # Python writes out no number of more than 4,300 digits
        return "a number of thousands of digits"
    text = re.sub(r"\A(.*?(?://|=))?.*@", r"\1…@", text, flags=re.DOTALL)
    text = _SECRET.sub(r"\1…", text)
    return text if len(text) <= 200 else text[:200] + "…"


def nearest(name: str, known: Iterable[str]) -> str:
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
            raise SettingsError(f"{source}: unknown key {key!r} in [exporter]; {nearest(key, _PARSERS)}")
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
                f"unknown environment variable {name}; {nearest(name, (ENVIRONMENT_PREFIX + known.upper() for known in _PARSERS))}"
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
        flag = _FLAGS.get(key, "--" + key.replace("_", "-"))
        try:
            changes[key] = parser(value)
        except ValueError as error:
            _fail(flag, value[-1] if isinstance(value, list) and len(value) == 1 else value, error)
    return _merged(base, changes)


def _merged(base: ExporterSettings, changes: dict[str, Any]) -> ExporterSettings:
    if "collectors" in changes:
        changes["collectors"] = {**base.collectors, **changes["collectors"]}
    return replace(base, **changes)


def read_document(path: Path) -> dict[str, object]:
    """The whole of a configuration file.

    Raises:
        SettingsError: the file cannot be read or is no TOML.
    """
    try:
        return tomllib.loads(content(path, "--config").decode())
    except OSError as error:
        raise SettingsError(f"--config={path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # besides TOMLDecodeError and UnicodeDecodeError a number of too many digits
        raise SettingsError(f"{path} is not TOML: {error}") from None


def read_file(path: Path, name: str = "exporter") -> dict[str, object]:
    """The table ``[exporter]`` (or another) of a configuration file; empty when it has none. Other tables belong to other components.

    Raises:
        SettingsError: the file cannot be read or is no TOML, or a table has nearly this name.
    """
    document = read_document(path)
    for found in document:
        if found != name and difflib.SequenceMatcher(None, found, name).ratio() > 0.8:
            raise SettingsError(f"{path}: unknown table [{found}]; did you mean [{name}]?")
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {name} must be a table, [{name}]")
    return table


def file_of(arguments: argparse.Namespace, environment: Mapping[str, str]) -> Path | None:
    """The configuration file in force: `--config`, else ``POISE_CONFIG``, else ``poise.toml`` here if there is one."""
    named = getattr(arguments, "config", None) or environment.get("POISE_CONFIG")
    path = Path(named or "poise.toml")
    return path if named or _is_there(path) else None


def content(path: Path, flag: str) -> bytes:
    """The bytes of an ordinary file of a sensible size that `flag` named; never waits, as a pipe would let us. Raises OSError, SettingsError."""
    try:
        return ordinary(path, LARGEST_FILE)
    except ValueError as error:
        raise SettingsError(f"{flag}={path}: {error}") from None


def ordinary(path: Path, largest: int) -> bytes:
    """The bytes of an ordinary file of at most `largest` bytes; never waits. Raises OSError, ValueError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("not an ordinary file")
        found = file.read(largest + 1)
    if len(found) > largest:
        raise ValueError(f"larger than {largest} bytes; is that a configuration file?")
    return found


def _is_there(path: Path) -> bool:
    """Whether the file that nobody named is there. One that we may not look at counts as absent, as it does in a folder that we may not enter;
    one that is no ordinary file, or a link that leads nowhere, is there and wrong: taken for absent it would drop what was configured.
    """
    try:
        path.lstat()
    except OSError:
        return False
    return True


def load(arguments: argparse.Namespace, environment: Mapping[str, str], collectors: Iterable[str]) -> ExporterSettings:
    """The settings in force. The file is `--config`, else ``POISE_CONFIG``, else ``poise.toml`` here if there is one.

    Raises:
        SettingsError: anything wrong in file, environment or flags.
    """
    settings = ExporterSettings()
    path = file_of(arguments, environment)
    if path is not None:
        settings = from_table(settings, read_file(path), str(path))
        # A file that a file names is looked for beside it; one that a flag or a variable names, in the working directory.
        engines = tuple(replace(engine, access=engine.access.beside(path.parent)) for engine in settings.engines)
        settings = replace(settings, engines=engines)
        beside = {key: str(path.parent / file) for key in ("web_config_file", "interconnect_file") if (file := getattr(settings, key))}
        settings = _merged(settings, dict(beside))
    settings = from_flags(from_environment(settings, environment), arguments)
    known = tuple(collectors)
    for name in settings.collectors:
        if name not in known:
            raise SettingsError(f"unknown collector {name!r}; {nearest(name, known)}")
    for flag, what, names in (
        ("--engine", "engines", [engine.name for engine in settings.engines]),
        ("--router", "routers", [router.name for router in settings.routers]),
    ):
        for name in names:
            if names.count(name) > 1:
                raise SettingsError(f"{flag}={name}: two {what} have this name; give each its own")
    return settings


def field_names() -> tuple[str, ...]:
    """Every key of ``[exporter]``, for the documentation and its test."""
    return tuple(item.name for item in fields(ExporterSettings))
