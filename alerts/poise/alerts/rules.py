"""Prometheus rule files as frozen values: read with every mistake named by file, line, group and rule, and written again.

A file is read once here and nowhere else; what it means is for others. What Prometheus refuses is refused (`model/rulefmt`): unknown
fields, two groups of one name, a rule without expression, a recording rule with `for`. Fields that came with Prometheus 3 (`query_offset`
and `labels` of a group) are read and written as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import yaml
from poise.alerts.durations import format_duration, parse_duration
from poise.alerts.expressions import ExpressionError, parse
from poise.exporter.settings import ordinary

#: Bytes of a rule file; five thousand rules are 2 MB.
LARGEST_FILE = 1 << 24

#: Prometheus keeps whole numbers in 64 bits and durations in nanoseconds of as many (Go's int and time.Duration); seconds.
_LARGEST_NUMBER = (1 << 63) - 1
_LONGEST_DURATION = _LARGEST_NUMBER / 1e9
#: Characters of a number or a duration.
_LONGEST_NUMBER = 60

#: Halves of the pairs in which UTF-16 writes some characters; an escape of YAML can name one.
_HALF = re.compile("[\ud800-\udfff]")
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")

_GROUP_FIELDS = frozenset({"name", "interval", "limit", "query_offset", "labels", "rules"})
_RULE_FIELDS = frozenset({"record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations"})
_ALERT_ONLY_FIELDS = ("for", "keep_firing_for", "annotations")


class RuleError(ValueError):
    """A rule file that Prometheus would refuse. `place` is "FILE:LINE", followed by group and rule where they are known."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(f"{place}: {message}")
        self.place = place
        self.message = message


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `alert` tells its kind; `name` is the alert's or the recorded series'. Durations in seconds; `line` from 1."""

    name: str
    alert: bool
    expr: str
    line: int = 0
    wait: float = 0.0  # `for`
    keep_firing_for: float = 0.0
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """How messages name it: `alert EngineDown`."""
        return f"{'alert' if self.alert else 'record'} {self.name}"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other. `interval` (seconds) and `query_offset` are None where the file leaves them out."""

    name: str
    rules: tuple[Rule, ...]
    line: int = 0
    interval: float | None = None
    limit: int = 0
    query_offset: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RuleFile:
    """One rule file; `name` is how messages call it."""

    name: str
    groups: tuple[Group, ...]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """All rules in file order."""
        return tuple(rule for group in self.groups for rule in group.rules)

    @property
    def alerts(self) -> tuple[Rule, ...]:
        """The alerting rules in file order; one alert may have several."""
        return tuple(rule for rule in self.rules if rule.alert)


def load(path: Path) -> RuleFile:
    """Read a rule file. Raises as `read_text`, and RuleError when Prometheus would refuse what it holds."""
    return parse_rules(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a rule file; never waits, as a pipe would let us. Raises OSError when it cannot be read and RuleError when it holds no text."""
    try:
        return ordinary(path, LARGEST_FILE).decode("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise RuleError(f"{path}:{line}", f"no UTF-8 text: {error.reason} at byte {error.start}") from None
    except ValueError as error:
        raise RuleError(str(path), str(error)) from None


def parse_rules(text: str, name: str = "rules") -> RuleFile:
    """Read the text of a rule file. Raises RuleError when Prometheus would refuse it."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise RuleError(f"{name}:{line}", f"no valid YAML: {error.problem or error}") from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RuleError(f"{name}:{line}", f"no valid YAML: the character {text[error.position]!a} may not stand in it") from None
    except yaml.YAMLError as error:
        raise RuleError(name, f"no valid YAML: {error}") from None
    except RecursionError:
        raise RuleError(name, "no valid YAML: nested too deeply") from None
    except (ValueError, OverflowError):  # PyYAML passes the number of an escape on as it is
        raise RuleError(name, "no valid YAML: an escape in it (\\U…) is no character") from None
    if root is None:
        return RuleFile(name, ())
    reader = _Reader(name)
    fields = reader.fields(root, frozenset({"groups"}), ())
    groups = tuple(reader.group(node) for node in reader.sequence(fields.get("groups"), ()))
    seen: set[str] = set()
    for group in groups:
        if group.name in seen:
            raise RuleError(f"{name}:{group.line}", f'two groups are called "{group.name}"')
        seen.add(group.name)
    return RuleFile(name, groups)


Place = tuple[str, ...]
_Node = TypeVar("_Node", yaml.MappingNode, yaml.SequenceNode, yaml.ScalarNode)


class _Reader:
    """Turns YAML nodes into values; `place` is the group and rule that the node belongs to."""

    def __init__(self, name: str) -> None:
        self.name = name

    def error(self, node: yaml.Node, place: Place, message: str) -> RuleError:
        return RuleError(", ".join((f"{self.name}:{node.start_mark.line + 1}", *place)), message)

    def expect(self, node: yaml.Node, kind: type[_Node], place: Place, what: str) -> _Node:
        if not isinstance(node, kind):
            raise self.error(node, place, f"expected {what}")
        return node

    def fields(self, node: yaml.Node, known: frozenset[str] | None, place: Place) -> dict[str, yaml.Node]:
        mapping = self.expect(node, yaml.MappingNode, place, "a mapping")
        result: dict[str, yaml.Node] = {}
        for key_node, value in mapping.value:
            key = self.scalar(key_node, place, "a plain key")
            if known is not None and key not in known:
                raise self.error(key_node, place, f'unknown field "{key}"; there are {", ".join(sorted(known))}')
            if key in result:
                raise self.error(key_node, place, f'the field "{key}" stands twice')
            result[key] = value
        return result

    def sequence(self, node: yaml.Node | None, place: Place) -> list[yaml.Node]:
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return []
        return list(self.expect(node, yaml.SequenceNode, place, "a list").value)

    def text(self, node: yaml.Node | None, place: Place, what: str) -> str:
        return "" if node is None else self.scalar(node, place, f"text for {what}")

    def scalar(self, node: yaml.Node, place: Place, what: str) -> str:
        """Its text, which is Unicode: as Prometheus' reader we take no halves of characters, which nothing else could write down."""
        text = str(self.expect(node, yaml.ScalarNode, place, what).value)
        if half := _HALF.search(text):
            raise self.error(node, place, f"{half[0]!a} is half a character: write the character itself, or \\U and its eight digits")
        return text

    def duration(self, node: yaml.Node | None, place: Place, what: str) -> float | None:
        if node is None:
            return None
        text = self.text(node, place, what)
        try:
            if len(text) > _LONGEST_NUMBER:
                raise ValueError(f'"{text[:_LONGEST_NUMBER]}…" is too long')
            seconds = parse_duration(text)
            if seconds > _LONGEST_DURATION:
                raise ValueError(f'"{text}" is more than Prometheus takes, about 292 years')
        except ValueError as error:
            raise self.error(node, place, f"{what}: {error}") from None
        return seconds

    def integer(self, node: yaml.Node | None, place: Place, what: str) -> int:
        text = self.text(node, place, what)
        if node is None:
            return 0
        if not (text.isascii() and text.isdecimal()):
            raise self.error(node, place, f'{what}: "{text[:_LONGEST_NUMBER]}" is no whole number')
        if len(text) > _LONGEST_NUMBER or int(text) > _LARGEST_NUMBER:
            raise self.error(node, place, f'{what}: "{text[:_LONGEST_NUMBER]}" is more than Prometheus takes, {_LARGEST_NUMBER}')
        return int(text)

    def texts(self, node: yaml.Node | None, place: Place, what: str) -> dict[str, str]:
        if node is None or node.tag == "tag:yaml.org,2002:null":
            return {}
        result = {}
        for key, value in self.fields(node, None, place).items():
            if not _LABEL_NAME.fullmatch(key):
                raise self.error(node, place, f'"{key}" in {what} is no label name (letters, digits, _)')
            result[key] = self.text(value, place, f"{key} in {what}")
        return result

    def group(self, node: yaml.Node) -> Group:
        fields = self.fields(node, _GROUP_FIELDS, ())
        name = self.text(fields.get("name"), (), "name of the group")
        if not name:
            raise self.error(node, (), "a group has no name")
        place = (f'group "{name}"',)
        return Group(
            name=name,
            rules=tuple(self.rule(rule, place) for rule in self.sequence(fields.get("rules"), place)),
            line=node.start_mark.line + 1,
            interval=self.duration(fields.get("interval"), place, "interval"),
            limit=self.integer(fields.get("limit"), place, "limit"),
            query_offset=self.duration(fields.get("query_offset"), place, "query_offset"),
            labels=self.texts(fields.get("labels"), place, "labels"),
        )

    def rule(self, node: yaml.Node, place: Place) -> Rule:
        fields = self.fields(node, _RULE_FIELDS, place)
        names = {kind: self.text(fields[kind], place, kind) for kind in ("record", "alert") if kind in fields}
        if len(names) != 1 or not all(names.values()):
            raise self.error(node, place, "a rule has either `record` or `alert`, with a name")
        ((kind, name),) = names.items()
        place = (*place, f'{kind} "{name}"')
        if kind == "record":
            if not _METRIC_NAME.fullmatch(name):
                raise self.error(fields[kind], place, "not the name of a series")
            for wrong in _ALERT_ONLY_FIELDS:
                if wrong in fields:
                    raise self.error(fields[wrong], place, f"`{wrong}` is for alerts only")
        return Rule(
            name=name,
            alert=kind == "alert",
            expr=self.expression(fields.get("expr"), node, place),
            line=node.start_mark.line + 1,
            wait=self.duration(fields.get("for"), place, "for") or 0.0,
            keep_firing_for=self.duration(fields.get("keep_firing_for"), place, "keep_firing_for") or 0.0,
            labels=self.texts(fields.get("labels"), place, "labels"),
            annotations=self.texts(fields.get("annotations"), place, "annotations"),
        )

    def expression(self, node: yaml.Node | None, rule: yaml.Node, place: Place) -> str:
        text = self.text(node, place, "expr").strip()
        if node is None or not text:
            raise self.error(node or rule, place, "it has no `expr`")
        try:
            parse(text)
        except ExpressionError as error:
            raise self.error(node, place, f"expr: {error}") from None
        return text


# ------------------------------------------------------------------------------------------------------------------ writing
class _Dumper(yaml.SafeDumper):
    """Writes text of several lines as a block."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def render(file: RuleFile, header: str = "") -> str:
    """The text of a rule file with the same meaning; comments of the file that it was read from are gone. `header` becomes a comment."""
    document = {"groups": [_group_document(group) for group in file.groups]}
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    return comment + yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True)


def _group_document(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        **({"interval": format_duration(group.interval)} if group.interval is not None else {}),
        **({"limit": group.limit} if group.limit else {}),
        **({"query_offset": format_duration(group.query_offset)} if group.query_offset is not None else {}),
        **({"labels": dict(group.labels)} if group.labels else {}),
        "rules": [_rule_document(rule) for rule in group.rules],
    }


def _rule_document(rule: Rule) -> dict[str, object]:
    return {
        ("alert" if rule.alert else "record"): rule.name,
        "expr": rule.expr,
        **({"for": format_duration(rule.wait)} if rule.wait else {}),
        **({"keep_firing_for": format_duration(rule.keep_firing_for)} if rule.keep_firing_for else {}),
        **({"labels": dict(rule.labels)} if rule.labels else {}),
        **({"annotations": dict(rule.annotations)} if rule.annotations else {}),
    }
