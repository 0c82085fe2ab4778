"""Settings of one table of `poise.toml`, in layers: defaults, the file, the environment, flags; each replaces what the one before said.

Owns the order and the errors of places. What can be set, and what a value has to look like, is said by whoever uses it.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from poise.exporter.settings import SettingsError, file_of, nearest, read_document, read_file, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")
Parser = Callable[[object], object]

#: What Kubernetes sets for a service called "poise-history" and the like; not ours, so no typing error of the user's.
_KUBERNETES_SERVICE = re.compile(r"SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_.*)?")


@dataclass(frozen=True, slots=True)
class Layers:
    """The keys of one table. `parsers` turn a value of any layer into the setting, raising ValueError; `flags` name the command line's.

    `lists` are keys that the file has as an array of tables of its own ([[target]] for "targets"); `paths` are keys whose relative paths in a file
    start beside it. `beside` does that for values that hold paths inside.
    """

    table: str
    environment_prefix: str
    parsers: Mapping[str, Parser]
    flags: Mapping[str, str]
    lists: Mapping[str, str] = field(default_factory=dict)
    paths: Collection[str] = ()
    beside: Callable[[str, Any, Path], Any] = lambda key, value, folder: value

    def load(self, settings: Settings, arguments: argparse.Namespace, environment: Mapping[str, str]) -> Settings:
        """The settings in force over these defaults; of the flags those that `arguments` has.

        Raises:
            SettingsError: anything wrong in file, environment or flags; the message names it.
        """
        path = file_of(arguments, environment)
        changes: dict[str, Any] = {} if path is None else self._of_file(path)
        for name in sorted(environment):
            rest = name.removeprefix(self.environment_prefix)
            if rest == name or _KUBERNETES_SERVICE.fullmatch(rest):
                continue
            if rest.lower() not in self.parsers:
                known = nearest(name, (self.environment_prefix + known.upper() for known in self.parsers))
                raise SettingsError(f"unknown environment variable {name}; {known}")
            changes[rest.lower()] = self._parsed(rest.lower(), name, environment[name])
        for key, flag in self.flags.items():
            value = getattr(arguments, flag[2:].replace("-", "_"), None)
            if value not in (None, [], False):
                changes[key] = self._parsed(key, flag, value)
        return replace(settings, **changes)

    def _of_file(self, path: Path) -> dict[str, Any]:
        table = read_file(path, self.table)
        plain = [key for key in self.parsers if key not in self.lists]
        for key in table:
            if key not in plain:
                own = next((name for known, name in self.lists.items() if key in (known, name)), None)
                way = nearest(key, plain) if own is None else f"write [[{own}]]"
                raise SettingsError(f"{path}: unknown key {key!r} in [{self.table}]; {way}")
        changes = {key: self._parsed(key, f"{path}: {key}", value) for key, value in table.items()}
        document = read_document(path)
        for key, name in self.lists.items():
            if key in document and key != name:
                raise SettingsError(f"{path}: unknown table [{key}]; write [[{name}]] for each of them")
            if name in document:
                changes[key] = self._parsed(key, f"{path}: {name}", document[name])
        for key in changes:
            if key in self.paths and changes[key]:
                changes[key] = str(path.parent / str(changes[key]))
            changes[key] = self.beside(key, changes[key], path.parent)
        return changes

    def _parsed(self, key: str, place: str, value: object) -> Any:
        try:
            return self.parsers[key](value)
        except ValueError as error:
            told = value[-1] if isinstance(value, list) and len(value) == 1 else value
            raise SettingsError(f"{place}={shown(told)}: {error}") from None
