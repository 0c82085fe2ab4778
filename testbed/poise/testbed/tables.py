"""Reads the values of a TOML table key by key, so that each error names where it stands, the key, the value and the way out.

Knows nothing of what the keys mean.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from poise.testbed import naming
from poise.testbed.errors import TestbedError

# What is shown of a wrong value.
SHOWN = 60


@dataclass(frozen=True, slots=True)
class Table:
    """One table; `where` begins the text of its errors."""

    where: str
    data: Mapping[str, object]

    def error(self, words: str) -> TestbedError:
        """The error with this text, to be raised."""
        return TestbedError(f"{self.where}: {words}")

    def wrong(self, key: str, wanted: str) -> TestbedError:
        """The error of a value that is not what it has to be, or is missing."""
        if key not in self.data:
            return self.error(f"{key} is missing: it has to be {wanted}")
        return self.error(f"{key} = {_shown(self.data[key])} has to be {wanted}")

    def only(self, *known: str) -> None:
        """Raises TestbedError for a key that is not one of `known`."""
        unknown = sorted(set(self.data) - set(known))
        if unknown:
            raise self.error(f"unknown key {unknown[0]!r}: known are {', '.join(sorted(known))}")

    def text(self, key: str, default: str) -> str:
        found = self.optional_text(key)
        return default if found is None else found

    def optional_text(self, key: str) -> str | None:
        """None where the key is missing."""
        value = self.data.get(key)
        if key in self.data and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, "a text")
        return value if isinstance(value, str) else None

    def identifier(self, key: str, default: str | None = None) -> str:
        """A name that can be a file's and a part of a command line. Without a default the key has to be there."""
        value = self.data.get(key, default)
        if not isinstance(value, str) or not value.isidentifier() or not value.isascii() or len(value) > naming.LONGEST:
            raise self.wrong(key, f"a name of letters, digits and _, {naming.LONGEST} at most (it becomes a file name)")
        return value

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(key, " or ".join(choices))
        return value

    def whole(self, key: str, default: int, most: int | None = None) -> int:
        """A whole number of 1 or more."""
        value = self.data.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
            raise self.wrong(key, "a whole number of 1 or more" if most is None else f"a whole number from 1 to {most}")
        return value

    def port(self, key: str, default: int) -> int:
        return self.whole(key, default, 65535)

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of texts. Its value is never shown: it may hold a secret."""
        value = self.data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(f'{key} has to be a list of texts, as ["--max-num-seqs=2"]')
        return tuple(value)

    def table(self, key: str) -> Table:
        value = self.data.get(key)
        if not isinstance(value, dict):
            raise self.wrong(key, f"a table, [{key}]")
        return Table(f"{self.where}: [{key}]", value)

    def tables(self, key: str) -> list[Table]:
        """One or more tables."""
        value = self.data.get(key)
        if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
            raise self.error(f"at least one [[{key}]] is needed, and each has to be a table")
        return [Table(f"{self.where}: [[{key}]] {number}", item) for number, item in enumerate(value, 1)]


def _shown(value: object) -> str:
    """A value as TOML writes it, cut short; of a table or list of tables only what it is."""
    if isinstance(value, dict):
        return "a table"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
