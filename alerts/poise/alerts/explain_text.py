"""An explanation of an alert's expression as text for a terminal. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from poise.alerts.evaluation.templates import go_float
from poise.alerts.explain import Clause, Kind, Row
from poise.history.promql.labels import Labels

#: Rows that are shown of a clause.
MOST_ROWS = 6
#: Clauses that a sentence names, and characters of each.
_MOST_NAMED = 2
_NAMED_CHARACTERS = 120
_MARKS = {True: "✓", False: "✗"}
_HEADS = {
    Kind.AND: "all of",
    Kind.OR: "at least one of",
    Kind.UNLESS: "the first, unless the second is there too",
    Kind.JOIN: "both sides, for the same labels",
    Kind.WITHIN: "a value made from series for which",
}
_STATES = {"firing": "fires", "pending": "is pending"}


# -------------------------------------------------------------------------------------------------------------- one sentence
def sentence(state: str, clause: Clause) -> str:
    """Why an alert in this state (firing, pending, inactive) stands so, by the clauses that decide."""
    if clause.error:
        return f"cannot be explained: {clause.error}"
    word = _STATES.get(state)
    if clause.holds:
        return f"{word or 'is not on yet, but its condition holds:'}{' because' if word else ''} {_named(_held(clause), ' and ')}"
    because = _named(_lost(clause), "; ")
    return f"does not fire: {because}" if word is None else f"{word} on, although its condition does not hold now: {because}"


def _named(reasons: Sequence[str], between: str) -> str:
    distinct = list(dict.fromkeys(reasons))
    more = len(distinct) - _MOST_NAMED
    return between.join(distinct[:_MOST_NAMED]) + (f"{between}{more} more of {len(distinct)} clauses" if more > 0 else "")


def _held(clause: Clause) -> list[str]:
    """What holds, in words."""
    match clause.kind:
        case Kind.AND | Kind.OR | Kind.JOIN:
            return [reason for child in clause.children if child.holds for reason in _held(child)]
        case Kind.UNLESS:
            return _held(clause.children[0])
    row = next((row for row in clause.rows if row.holds), None)
    if clause.kind is Kind.COMPARISON and row is not None:
        return [f"{_quoted(clause.text)} holds ({_subject(row, clause)})"]
    return [f"{_quoted(clause.text)} is there"]


def _lost(clause: Clause) -> list[str]:
    """What does not hold, in words; first what is missing."""
    if clause.error:
        return [f"{_quoted(clause.text)} cannot be evaluated: {clause.error}"]
    if clause.kind is Kind.COMPARISON and clause.rows:
        return [f"{_quoted(clause.text)} does not hold ({_subject(clause.rows[0], clause)})"]
    if clause.missing:
        return [f"no such series here: {', '.join(clause.missing)}"]
    failing = [reason for child in clause.children if not child.holds for reason in _lost(child)]
    match clause.kind:
        case Kind.AND | Kind.JOIN:
            return failing or [f"its parts hold, but for different labels: {_quoted(clause.text)}"]
        case Kind.UNLESS:
            first, second = clause.children
            return [f"{_quoted(second.text)} holds, which excepts it"] if first.holds else _lost(first)
    if failing:
        return failing
    return [f"{_quoted(clause.text)} gives no series now"]


def _subject(row: Row, clause: Clause) -> str:
    """The row that stands for the clause: "gpu=0: 0.97"."""
    who = _labels(row.labels, clause.rows)
    others = f" and {clause.rows_in_all - 1} more" if clause.rows_in_all > 1 else ""
    return f"{who}: {go_float(row.value)}{others}".removeprefix(": ")


def _quoted(text: str) -> str:
    line = _one_line(text)
    return f"`{line if len(line) <= _NAMED_CHARACTERS else line[: _NAMED_CHARACTERS - 1] + '…'}`"


# ------------------------------------------------------------------------------------------------------------------ the tree
def lines(clause: Clause, moment: Callable[[float], str]) -> Iterator[str]:
    """The clauses as an indented tree. `moment` writes a Unix time; what a recorded series is made from stands once, where it is met first."""
    yield from _lines(clause, moment, "", set())


def _lines(clause: Clause, moment: Callable[[float], str], indent: str, shown: set[str]) -> Iterator[str]:
    mark = "?" if clause.error else _MARKS[clause.holds]
    head = _HEADS.get(clause.kind, _one_line(clause.text))
    yield f"{indent}{mark} {head}{_since(clause, moment)}"
    inside = indent + "    "
    if clause.error:
        yield f"{inside}cannot be evaluated: {clause.error}"
    if clause.missing:
        yield f"{inside}no such series here: {', '.join(clause.missing)}"
    if clause.kind in (Kind.COMPARISON, Kind.VALUE):
        yield from (f"{inside}{text}" for text in _rows(clause))
    for child in clause.children:
        yield from _lines(child, moment, inside, shown)
    for name, recorded in (clause.recorded or {}).items():
        if name in shown:
            continue
        shown.add(name)
        yield f"{inside}{name} is recorded from"
        yield from _lines(recorded, moment, inside + "  ", shown)


def _since(clause: Clause, moment: Callable[[float], str]) -> str:
    if clause.error:
        return ""
    return f"  ({'holds' if clause.holds else 'does not hold'} since {moment(clause.since)})" if clause.since is not None else ""


def _rows(clause: Clause) -> Iterator[str]:
    if not clause.rows:
        if not clause.missing and not clause.error:
            yield "no such series now"
        return
    for row in clause.rows[:MOST_ROWS]:
        mark = _MARKS[row.holds] if clause.kind is Kind.COMPARISON else "·"
        yield " ".join(part for part in (mark, _labels(row.labels, clause.rows), _value(row, clause)) if part)
    if clause.rows_in_all > MOST_ROWS:
        yield f"… and {clause.rows_in_all - MOST_ROWS} more"


def _value(row: Row, clause: Clause) -> str:
    if clause.kind is not Kind.COMPARISON:
        return go_float(row.value)
    threshold = go_float(row.threshold) if row.threshold is not None else _one_line(clause.threshold)
    return f"{go_float(row.value)} {'' if row.holds else 'not '}{clause.operator} {threshold}"


def _labels(own: Labels, rows: tuple[Row, ...]) -> str:
    """The labels that tell the rows apart; of a single row those that name its subject."""
    mine: Mapping[str, str] = dict(own)
    differing = [name for name in mine if len({dict(row.labels).get(name) for row in rows}) > 1]
    chosen = differing or [name for name in ("instance", "engine", "gpu", "deployment", "role") if name in mine]
    return ", ".join(f"{name}={mine[name]}" for name in chosen)


def _one_line(text: str) -> str:
    return " ".join(text.split())
