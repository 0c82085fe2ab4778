"""Reads a page in Prometheus' text format 0.0.4 into series and values, fast enough to do it every few seconds.

Owns the grammar, the limits on a page, and the memory of label sets between two pages of one target. Knows no HTTP and no clock.
Timestamps are skipped: a sample has the time of its scrape (Prometheus' `honor_timestamps: false`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

#: Prometheus calls these sample_limit and label_value_length_limit. 8 cards × 18 links + 4 engines are under 4,000 series; the exporter takes
#: up to 20,000 from one engine (dialects.SAMPLES_LIMIT), and two such engines must not cost the page all others.
MAX_SERIES = 50_000
MAX_LABELS = 64
MAX_LABEL_VALUE_CHARACTERS = 4_096
#: Of all labels of a series together. vLLM's longest, the configuration of its cache, has under 2,000.
MAX_LABELS_CHARACTERS = 16_384

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|$)', re.DOTALL)
_VALUE = re.compile(r"[-+]?(?:\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?|[Ii]nf|[Nn]a[Nn])")
_TOLD = ("# HELP ", "# TYPE ")
_TYPES = frozenset({"counter", "gauge", "histogram", "summary", "untyped", "unknown", "info", "stateset", "gaugehistogram"})
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}


class PageError(ValueError):
    """A page that is not in the text format or goes over a limit; the message names the line and the reason."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series. `key` is its canonical text (labels sorted by name); two series are equal when their keys are."""

    key: str
    name: str = field(compare=False)
    labels: Mapping[str, str] = field(compare=False)

    def label(self, name: str) -> str:
        """A label's value, "" when the series has no such label (which Prometheus treats alike)."""
        return self.labels.get(name, "")


def series(name: str, labels: Mapping[str, str]) -> Series:
    """The series of this name and these labels. An empty label value is no label, as in Prometheus."""
    kept = {label: labels[label] for label in sorted(labels) if labels[label] != ""}
    return Series(name + "{" + ",".join(f"{label}={value!r}" for label, value in kept.items()) + "}", name, kept)


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a page says of a metric family: `type` in the words of the format ("unknown" where it says none), `help` unescaped."""

    type: str = "unknown"
    help: str = ""


class PageReader:
    """Reads the pages of one target; a label set that the page before had is not parsed again.

    The memory holds the newest page's label sets and nothing else, so a target that changes its labels all the time costs time, not
    memory.
    """

    def __init__(self, max_series: int = MAX_SERIES) -> None:
        self._max_series = max_series
        self._known: dict[str, Series] = {}
        self._comments: list[str] = []
        self._metadata: Mapping[str, Metadata] | None = None

    @property
    def metadata(self) -> Mapping[str, Metadata]:
        """Type and help of each family of the newest page."""
        if self._metadata is None:
            self._metadata = _metadata(self._comments)
        return self._metadata

    def read(self, page: bytes) -> dict[Series, float]:
        """Every sample of the page; of a series that stands there twice, the first. Raises PageError."""
        try:
            text = page.decode("utf-8")
        except UnicodeDecodeError as error:
            raise PageError(f"the page is not UTF-8 (byte {error.start})") from None
        known: dict[str, Series] = {}
        samples: dict[Series, float] = {}
        comments: list[str] = []
        # Not splitlines(): label values may hold characters that it takes for line ends.
        for number, line in enumerate(text.split("\n"), start=1):
            if not line or line[0] == "#" or line.isspace():
                if line.startswith(_TOLD):
                    comments.append(line)
                continue
            try:
                written, value = _split(line)
                one = known.get(written) or self._known.get(written) or _series(written)
            except PageError as error:
                raise PageError(f"line {number}: {error}") from None
            known[written] = one
            samples.setdefault(one, value)
            if len(known) > self._max_series:
                raise PageError(f"line {number}: more than {self._max_series} series")
        self._known = known
        if comments != self._comments:
            self._comments, self._metadata = comments, None
        return samples


def _metadata(comments: Iterable[str]) -> dict[str, Metadata]:
    """From lines `# TYPE name type` and `# HELP name text`; lines that say nothing are left out, as in Prometheus."""
    types: dict[str, str] = {}
    helps: dict[str, str] = {}
    for comment in comments:
        _, kind, *rest = comment.split(None, 3)
        if len(rest) == 2 and _NAME.fullmatch(rest[0]):
            if kind == "TYPE" and rest[1].strip() in _TYPES:
                types[rest[0]] = rest[1].strip().replace("untyped", "unknown")
            elif kind == "HELP":
                helps[rest[0]] = _ESCAPE.sub(lambda match: _ESCAPED.get(match.group(1), match.group()), rest[1])[
                    :MAX_LABEL_VALUE_CHARACTERS
                ]
    return {name: Metadata(types.get(name, "unknown"), helps.get(name, "")) for name in {**types, **helps}}


def _split(line: str) -> tuple[str, float]:
    """The text of the series and the value of a sample line."""
    end = line.rfind("}") + 1
    if end:
        written, rest = line[:end], line[end:].split()
    else:
        written, *rest = line.split()
    if len(rest) not in (1, 2):  # value, value and timestamp
        raise PageError(f"expected a value: {_shortened(line)}")
    if not _VALUE.fullmatch(rest[0]):
        raise PageError(f"not a number: {_shortened(rest[0])}")
    return written, float(rest[0])


def _series(written: str) -> Series:
    """Parse `name{label="value",…}`."""
    name = _NAME.match(written.strip())
    if name is None:
        raise PageError(f"not a metric name: {_shortened(written)}")
    rest = written.strip()[name.end() :].strip()
    if not rest:
        return series(name.group(), {})
    if rest[0] != "{" or rest[-1] != "}":
        raise PageError(f"expected labels in braces: {_shortened(written)}")
    labels: dict[str, str] = {}
    inside, position, characters = rest[1:-1].strip(), 0, 0
    while position < len(inside):
        label = _LABEL.match(inside, position)
        if label is None:
            raise PageError(f"cannot read the labels of {name.group()}: {_shortened(inside[position:])}")
        if label.group(1) in labels:
            raise PageError(f"label {label.group(1)} stands twice on {name.group()}")
        value = label.group(2)
        if "\\" in value:
            value = _ESCAPE.sub(lambda match: _ESCAPED.get(match.group(1), match.group()), value)
        if len(value) > MAX_LABEL_VALUE_CHARACTERS:
            raise PageError(f"label {label.group(1)} of {name.group()} is longer than {MAX_LABEL_VALUE_CHARACTERS} characters")
        labels[label.group(1)] = value
        characters += len(label.group(1)) + len(value)
        if characters > MAX_LABELS_CHARACTERS:
            raise PageError(f"the labels of {name.group()} are longer than {MAX_LABELS_CHARACTERS} characters together")
        if len(labels) > MAX_LABELS:
            raise PageError(f"more than {MAX_LABELS} labels on {name.group()}")
        position = label.end()
    return series(name.group(), labels)


def _shortened(text: str, characters: int = 80) -> str:
    return repr(text if len(text) <= characters else text[:characters] + "…")
