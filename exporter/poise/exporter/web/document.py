"""A YAML text as plain mappings, lists and strings, each key once: what a file that says who may come in must be read as.

PyYAML does the reading. Scalars stay text, so that a user called `yes` or `0123` is that; keys that stand twice, which PyYAML would let the
last one win, are refused, as Prometheus' exporters do. Errors name line and key and never quote a value. Knows no key by name.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

#: Nodes of a document; a web configuration has some fifty. Aliases count each time, so that nested ones end here.
MOST_NODES = 10_000
#: How deep mappings and lists may lie in one another; a web configuration has three levels.
DEEPEST = 16


def library(name: str, distribution: str, what_for: str) -> ModuleType:
    """A module that the exporter alone does not bring: it is in the extra `web-config`.

    Raises:
        ValueError: it is not installed; says how to get it.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"{what_for} needs {distribution}, which is not installed: in a clone, pip install '.[web-config]'") from None


def read(text: str) -> object:
    """The document; None when the text is empty.

    Raises:
        ValueError: no YAML, more than one document, a key twice, or beyond all measure; or PyYAML is missing.
    """
    yaml: Any = library("yaml", "PyYAML", "a web configuration file")
    try:
        node = yaml.compose(text, Loader=yaml.BaseLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"{place}not YAML: {getattr(error, 'problem', None) or 'characters that no YAML may hold'}") from None
    except RecursionError:
        raise ValueError("not YAML that can be read: nested too deeply") from None
    return None if node is None else _Reader(yaml).value(node, 0)


class _Reader:
    def __init__(self, yaml: Any) -> None:
        self._yaml = yaml
        self._left = MOST_NODES

    def value(self, node: Any, depth: int) -> object:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            raise ValueError(f"line {node.start_mark.line + 1}: nested too deeply, or too large")
        if isinstance(node, self._yaml.ScalarNode):
            # A key without a value, or with ~ or null, is a key that was not given.
            plain_null = node.style is None and node.value in ("", "~", "null", "Null", "NULL")
            return None if plain_null else str(node.value)
        if isinstance(node, self._yaml.SequenceNode):
            return [self.value(item, depth + 1) for item in node.value]
        found: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, self._yaml.ScalarNode):
                raise ValueError(f"line {key.start_mark.line + 1}: a key must be a word")
            if key.value in found:
                raise ValueError(f"line {key.start_mark.line + 1}: the key {str(key.value)[:64]!r} stands twice")
            found[str(key.value)] = self.value(value, depth + 1)
        return found
