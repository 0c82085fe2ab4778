"""Parses a page in the Prometheus text format, fast and within limits.

It knows the format (Prometheus, exposition formats, text 0.0.4, and what OpenMetrics 1.0 writes otherwise) and no metric. A page is read whole or refused whole: a page with one
line that is no sample, or one that was cut off, is not to be trusted. What a series' name and labels mean is remembered between
pages by their text, so that a page seen before costs one look-up and one number a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]
#: Sample name → (labels, value) of each of its series, in page order.
Samples = Mapping[str, list[tuple[Labels, float]]]


class PageError(Exception):
    """A page that cannot be used; the message says why in a few words, without quoting the page."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a page may cost. vLLM 0.32 with two data-parallel ranks has 100 kB, 1,250 lines and 850 series."""

    size: int = 16 * 1024 * 1024
    lines: int = 200_000
    series: int = 50_000
    line_length: int = 64 * 1024
    label_length: int = 8 * 1024
    labels: int = 128


_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)[ \t]*(\{)?")
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"((?:[^"\\]|\\.)*)"[ \t]*(,|(?=\}))')
_END = re.compile(r"[ \t]*\}")
_ESCAPE = re.compile(r'\\([\\n"])')
#: A page is decoded and read in blocks of about this size: little memory for a large page, and a look at the clock between two (20 ms when
#: every series is new). Longer than the longest line.
_BLOCK = 128 * 1024


class PageParser:
    """Parses the pages of one engine. `keep` says which sample names are wanted; the others are checked and dropped."""

    def __init__(self, keep: Callable[[str], bool] = lambda _name: True, limits: Limits | None = None) -> None:
        self._keep = keep
        self.limits = limits or Limits()
        self._known: dict[str, tuple[str, Labels] | None] = {}

    def parse(self, data: bytes | bytearray, expired: Callable[[], bool] = lambda: False) -> Samples:
        """The wanted samples of a page. `expired` says when to give up.

        Raises:
            PageError: the page breaks the format or a limit, or `expired` said so.
        """
        limits = self.limits
        if len(data) > limits.size:
            raise PageError(f"the page is larger than {limits.size} bytes")
        if data.count(b"\n") > limits.lines:
            raise PageError(f"the page has more than {limits.lines} lines")
        if data and not data.endswith(b"\n"):
            raise PageError("the page is cut off")
        if len(self._known) > limits.series:
            self._known.clear()  # an engine that makes up new labels all the time must not fill memory
        samples: dict[str, list[tuple[Labels, float]]] = {}
        number = count = 0
        for block in _blocks(data, limits.line_length):
            if expired():
                raise PageError("the page takes too long to read")
            lines = block.split("\n")
            lines.pop()  # what follows the last line feed
            count += self._read_lines(lines, number, samples)
            if count > limits.series:
                raise PageError(f"the page has more than {limits.series} series")
            number += len(lines)
        return samples

    def _read_lines(self, lines: list[str], before: int, samples: dict[str, list[tuple[Labels, float]]]) -> int:
        """Adds the wanted samples of some lines, `before` which others stand; returns how many series there were."""
        known, count = self._known, 0
        for number, line in enumerate(lines, start=before + 1):
            if not line or line[0] == "#":
                continue
            series, _, value = line.rpartition(" ")
            if not series or series not in known:
                stripped = line.strip()
                if not stripped or stripped[0] == "#":
                    continue
                series, value = self._learn(stripped, number)
            count += 1
            try:
                reading = float(value)
            except ValueError:
                raise PageError(f"line {number} is no sample") from None
            if "_" in value:  # float() takes "1_000", the format does not
                raise PageError(f"line {number} is no sample")
            entry = known[series]
            if entry is not None:
                samples.setdefault(entry[0], []).append((entry[1], reading))
        return count

    def _learn(self, line: str, number: int) -> tuple[str, str]:
        """Parses a line whose series is new (or that has a timestamp) and remembers the series: (key, value text)."""
        limits = self.limits
        if len(line) > limits.line_length:
            raise PageError(f"line {number} is longer than {limits.line_length} characters")
        head = _SERIES.match(line)
        if head is None:
            raise PageError(f"line {number} is no sample")
        position, labels = head.end(), {}
        if head[2]:
            while (label := _LABEL.match(line, position)) is not None:
                if len(label[2]) > limits.label_length:
                    raise PageError(f"line {number} has a label of more than {limits.label_length} characters")
                labels[label[1]] = _ESCAPE.sub(_unescaped, label[2]) if "\\" in label[2] else label[2]
                position = label.end()
                if len(labels) > limits.labels:
                    raise PageError(f"line {number} has more than {limits.labels} labels")
            end = _END.match(line, position)
            if end is None:
                raise PageError(f"line {number} is no sample")
            position = end.end()
        rest, hash_sign, exemplar = line[position:].partition("#")
        if hash_sign and not (rest[-1:].isspace() and exemplar.lstrip().startswith("{")):
            raise PageError(f"line {number} is no sample")
        # OpenMetrics puts an example behind a sample (# {trace_id="…"} 0.5 1700000000.1); what it is of is not read.
        numbers = rest.split()
        if not 1 <= len(numbers) <= 2:
            raise PageError(f"line {number} is no sample")
        # Keyed by the text as it stands, so that the quick look-up finds it next time (unless a timestamp follows).
        key = line[:position].rstrip()
        self._known[key] = (head[1], labels) if self._keep(head[1]) else None
        return key, numbers[0]


def _blocks(data: bytes | bytearray, line_length: int) -> Iterator[str]:
    """The page in pieces of whole lines; raises PageError for a line without end and for what is no text."""
    position = 0
    while position < len(data):
        end = data.rfind(b"\n", position, position + max(_BLOCK, line_length + 1)) + 1
        if not end:
            raise PageError(f"a line is longer than {line_length} characters")
        try:
            yield data[position:end].decode()
        except UnicodeDecodeError:
            raise PageError("the page is not UTF-8 text") from None
        position = end


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
