"""Writes the generated pages of docs/, or with --check says which of them no longer tell the truth."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from poise.alerts import docs as alert_docs
from poise.exporter import metrics
from poise.exporter.checks.runner import CHECKS
from poise.exporter.metrics import LEADING_LABELS, Kind, Metric, Owner

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEADINGS = {
    Owner.NODE: "Node and self",
    Owner.GPU: "Cards",
    Owner.ENGINE: "Engines, server level",
    Owner.WORK: "Engines, work level",
}

METRICS_INTRO = """\
# Metrics

Generated from `exporter/poise/exporter/metrics.py` by `make docs`; do not edit.

Base units (bytes, seconds, joules, watts, hertz, celsius, ratio 0..1). A value that the driver or the engine did not give is an absent
series, never 0 and never NaN; `poise_gpu_unsupported_info` says why. No series carries the host's name: the scraper adds `instance`,
and `poise_node_info` names the node. Work level means vLLM's own figures per data-parallel rank; `dp_rank` is vLLM's label `engine`,
`"0"` for a server without data parallelism.

Each histogram stands as `_bucket`, `_sum` and `_count`, its bounds exactly as the engine gives them.
"""


def metrics_page() -> str:
    """docs/metrics.md."""
    return METRICS_INTRO + "".join(_section(owner) for owner in Owner)


def _section(owner: Owner) -> str:
    leading = LEADING_LABELS[owner]
    labels = f"Labels: {', '.join(f'`{label}`' for label in leading)}, and those in the table.\n\n" if leading else ""
    rows = "".join(_row(metric) for metric in metrics.ALL if metric.owner is owner)
    return f"\n## {HEADINGS[owner]}\n\n{labels}| series | type | labels | meaning |\n| - | - | - | - |\n{rows}"


def _row(metric: Metric) -> str:
    kind = "info" if metric.name.endswith("_info") else str(metric.kind) if metric.kind is not Kind.HISTOGRAM else "histogram"
    return f"| `{metric.name}` | {kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help.replace('|', '/')} |\n"


def pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and maker of every generated page."""
    yield "metrics.md", metrics_page
    yield "alerts.md", alert_docs.page


def missing_checks() -> list[str]:
    """Checks without a heading of their own in docs/checks.md, which is written by hand."""
    text = (DOCS / "checks.md").read_text(encoding="utf-8")
    return [name for name, _title, _function in CHECKS if f"## {name}\n" not in text]


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    check = "--check" in arguments
    stale = []
    for name, make in pages():
        path, text = DOCS / name, make()
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{name}")
    if stale:
        print(f"docs: {', '.join(stale)} differ from the code; run `make docs` and commit the result", file=sys.stderr)
    missing = missing_checks()
    if missing:
        print(f"docs/checks.md has no heading for: {', '.join(missing)}", file=sys.stderr)
    return 1 if stale or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
