"""The table of docs/testbed.md that says what each fault raised: rows into Markdown, and Markdown into the page. Starts nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from tests.fault_runs import Row

BEGIN = "<!-- written by `make faults` -->"
END = "<!-- end of what `make faults` writes -->"
_ROW = re.compile(r"^\| `([a-z0-9-]+)`: .*\|$", re.MULTILINE)
HEAD = (
    "| fault | shape | series, before → during | the checklist's line | s | alerts, after s | undone, s |",
    "| - | - | - | - | -: | - | -: |",
)


def line_of(row: Row) -> str:
    """One row. What was declared and did not come is said in bold, as is what came and was not declared."""
    raises = row.fault.raises
    series = [str(row.seen[sign]) if sign in row.seen else sign.subject for sign in raises.series]
    series = [
        f"`{words}`" if row.seen.get(sign) and row.seen[sign].moved else f"`{words}` **not seen**"
        for words, sign in zip(series, raises.series, strict=True)
    ]
    lines = [row.lines[name][0].replace("|", "\\|") if name in row.lines else f"**{name} did not fail**" for name in raises.checks]
    seconds = [f"{row.lines[name][1]:.0f}" if name in row.lines else "" for name in raises.checks]
    alerts = [f"{name} {row.alerts[name]:.0f}" for name in raises.alerts if name in row.alerts]
    alerts += [f"**{name} did not fire**" for name in raises.alerts if name not in row.alerts]
    alerts += [f"({name})" for name in sorted(set(row.alerts) - set(raises.alerts))]
    alerts += [f"**{name}** unexpected" for name in sorted(row.unexpected)]
    undone = "**no**" if row.undone is None else f"{row.undone:.0f}"
    cells = [
        f"`{row.fault.name}`: {row.fault.what}",
        row.shape,
        "<br>".join([*series, *(f"**{trouble.splitlines()[0]}**" for trouble in row.troubles)]),
        "<br>".join(lines) or "none is made for it",
        "<br>".join(seconds),
        ", ".join(alerts) or "none",
        undone,
    ]
    return "| " + " | ".join(cells) + " |"


def kept_rows(page: str) -> dict[str, str]:
    """The rows that a page has, by the name of the fault; of a table with other columns none."""
    inside = page.partition(BEGIN)[2].partition(END)[0]
    if HEAD[0] not in inside:
        return {}
    return {match[1]: match[0] for match in _ROW.finditer(inside)}


def with_rows(page: str, rows: Sequence[Row], names: Sequence[str], where: str) -> str:
    """The page with these rows, and with those it has of faults that were not run, in the order of `names`."""
    lines = kept_rows(page) | {row.fault.name: line_of(row) for row in rows}
    return with_table(page, [f"Measured by `make faults` on {where}.", "", *HEAD, *(lines[name] for name in names if name in lines)])


def with_table(page: str, lines: Sequence[str]) -> str:
    """The page with these lines between its markers. Raises ValueError when it has none."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return "\n".join([before + BEGIN, "", *lines, "", END + after])


def write(path: Path, rows: Sequence[Row], names: Sequence[str], where: str) -> None:
    """`with_rows` of a file."""
    path.write_text(with_rows(path.read_text(encoding="utf-8"), rows, names, where), encoding="utf-8")
