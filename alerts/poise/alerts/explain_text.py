"""An explanation of an alert's expression as text for a terminal. Values in, lines out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from poise.alerts.evaluation.templates import go_float
from poise.alerts.explain import Clause, Kind, Row
from poise.history.promql.labels import Labels

#: Rows that are shown of a clause.
MOST_ROWS = 6
_MARKS = {True: "✓", False: "✗"}
_HEADS = {
    Kind.AND: "all of",
    Kind.OR: "at least one of",
    Kind.UNLESS: "the first without the second",
    Kind.JOIN: "joined by labels",
    Kind.WITHIN: "taken together",
}


def lines(clause: Clause, moment: Callable[[float], str], *, recordings: bool = True) -> Iterator[str]:
    """The clauses as an indented tree. `moment` writes a Unix time; `recordings` also shows what recorded series are made from."""
    yield from _lines(clause, moment, recordings, "", frozenset())


def _lines(clause: Clause, moment: Callable[[float], str], recordings: bool, indent: str, shown: frozenset[str]) -> Iterator[str]:
    mark = "?" if clause.error else _MARKS[clause.holds]
    head = _HEADS.get(clause.kind, _one_line(clause.text))
    yield f"{indent}{mark} {head}{_since(clause, moment)}"
    inside = indent + "    "
    if clause.error:
        yield f"{inside}cannot be evaluated: {clause.error}"
    if clause.missing:
        yield f"{inside}input missing: no series {', '.join(clause.missing)}"
    if clause.kind in (Kind.COMPARISON, Kind.VALUE):
        yield from (f"{inside}{text}" for text in _rows(clause))
    for child in clause.children:
        yield from _lines(child, moment, recordings, inside, shown)
    for name, recorded in (clause.recorded or {}).items() if recordings else ():
        if name in shown:
            continue
        yield f"{inside}{name} is recorded from"
        yield from _lines(recorded, moment, recordings, inside + "  ", shown | {name})
        shown |= {name}


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
        yield f"{_MARKS[row.holds] if clause.kind is Kind.COMPARISON else '·'} {_labels(row.labels, clause.rows)} {_value(row, clause)}".replace(
            "  ", " "
        )
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
