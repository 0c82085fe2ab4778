"""Every fault on the shape that fits it, on a real vLLM under load, with the real Prometheus and Alertmanager: `make faults`, `make soak`.

One deployment for each shape. Writes the table of docs/testbed.md. POISE_FAULTS=NAME,NAME runs these only, and leaves the rows of the others.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest
from poise.testbed.faults import FAULTS, Fault

from tests import fault_runs, fault_table
from tests.both_sides import Compared, compare, page_api, spans
from tests.fault_runs import Loaded, Row
from tests.fault_watch import watching
from tests.monitoring import monitoring
from tests.second_evaluator import evaluating, instance_of
from tests.soak_page import write_section
from tests.vllm.deploying import bring_up
from tests.vllm.watching import SATURATING_CLIENTS

PAGE, SOAK_PAGE = Path("docs/testbed.md"), Path("docs/soak.md")
#: Rules' times shortened so far that ten minutes become thirty seconds, which hold many polls of an engine.
FACTOR = 1 / 20
#: For all faults of both shapes: two minutes for each, which alerts with a window and a wait take at a twentieth. A fault of which something does not come waits for its share of what is left.
BUDGET_SECONDS = 4300.0
#: What a fault takes beside that waiting: calm before it, restarts, undoing.
BESIDE_SECONDS = 45.0
LEAST_SECONDS, MOST_SECONDS = 30.0, 120.0
#: Seconds for which an alert has to have fired on one side to be looked for on the other: a condition may hold between two evaluations.
LEAST_SPAN_SECONDS = 3.0
#: For the traces of the last fault of a shape.
LAST_SECONDS = 90.0

SHAPES = ("tp", "pd")

pytestmark = pytest.mark.soak


def shape_of(fault: Fault) -> str:
    """The smallest shape that can take it."""
    return "pd" if fault.needs.router or fault.needs.role in ("prefill", "decode") else "tp"


def wanted(shape: str) -> list[Fault]:
    """The faults of a shape in the order in which they are put on: neighbours raise different checks as far as possible, because
    the lines of a load verdict stay for a minute."""
    names = set(os.environ.get("POISE_FAULTS", "").split(",")) - {""}
    left = [fault for fault in FAULTS if shape_of(fault) == shape and (not names or fault.name in names)]
    ordered: list[Fault] = []
    while left:
        last = set(ordered[-1].raises.checks) if ordered else set()
        following = next((fault for fault in left if not last & set(fault.raises.checks)), left[0])
        left.remove(following)
        ordered.append(following)
    return ordered


@pytest.fixture(scope="module")
def rows() -> Iterator[list[Row]]:
    """Filled by the tests; written into the page, in which the rows of faults that were not run stay."""
    found: list[Row] = []
    yield found
    if found:
        where = f"a real vLLM under load, simulated cards, {os.cpu_count()} cores, Linux {platform.release()}; rules at {FACTOR:g} of their times"
        fault_table.write(PAGE, found, [fault.name for fault in FAULTS], where)


@pytest.fixture(scope="module")
def evaluated() -> Iterator[dict[str, tuple[int, Compared]]]:
    """Shape → how many faults and what Prometheus and Poise fired. A run of all faults of a shape is written into docs/soak.md."""
    found: dict[str, tuple[int, Compared]] = {}
    yield found
    if found and all(count == sum(shape_of(fault) == shape for fault in FAULTS) for shape, (count, _) in found.items()):
        write_section(SOAK_PAGE, "Prometheus and Poise through every fault", sides_page(found))


def sides_page(found: Mapping[str, tuple[int, Compared]]) -> list[str]:
    """The section: how far the alerts of the two lie apart."""
    lines = [
        f"Written by `make faults` (`tests/soak/test_faults.py`): a real vLLM under load, {os.cpu_count()} cores, Linux {platform.release()}. A",
        "Prometheus and a `poise up` scrape the same exporter and evaluate the same rules once a second, at "
        f"{FACTOR:g} of their times, each on its",
        "own clock: one evaluation and one scrape apart are two seconds. Both stores were asked for ALERTS once a second over the whole run;",
        f"alerts that fired for less than {LEAST_SPAN_SECONDS:g} s on both sides are left out.",
        "",
        "| shape | faults | alerts that fired on both | began and ended within 1 s | 2 s | 5 s | furthest, s | of Prometheus only | of Poise only |",
        "| - | -: | -: | -: | -: | -: | -: | -: | -: |",
    ]
    for shape, (count, sides) in found.items():
        within = [sides.within(seconds) for seconds in (1, 2, 5)]
        numbers = [count, len(sides.both), *within, f"{sides.most():.0f}", len(sides.only_there), len(sides.only_here)]
        lines.append("| " + " | ".join([shape, *map(str, numbers)]) + " |")
    far = sorted((one for _, sides in found.values() for one in sides.both), key=lambda one: -max(abs(one.began), abs(one.ended)))
    lines += ["", "The furthest: " + "; ".join(f"{one.name} began {one.began:+.0f} s, ended {one.ended:+.0f} s" for one in far[:5]) + "."]
    alone = [
        f"{dict(key)['alertname']} for {span[1] - span[0]:.0f} s, {where} only"
        for _, sides in found.values()
        for where, spans_of in (("Prometheus", sides.only_there), ("Poise", sides.only_here))
        for key, span in spans_of
    ]
    return [*lines, *(["", "On one side only: " + "; ".join(alone) + "."] if alone else [])]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_fault_is_seen_named_alerted_and_undone(
    shape: str, rows: list[Row], evaluated: dict[str, tuple[int, Compared]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    chosen = wanted(shape)
    if not chosen:
        pytest.skip("no fault of this shape was asked for")
    share = BUDGET_SECONDS * len(chosen) / sum(len(wanted(each)) for each in SHAPES)
    mine: list[Row] = []
    began = time.monotonic()
    with ExitStack() as stack:
        deployment = stack.enter_context(bring_up(shape, tmp_path_factory.mktemp(shape) / "state"))
        address = (deployment.plan.exporter_url or "").removeprefix("http://")
        folder, began_at = tmp_path_factory.mktemp("watch"), time.time()
        alerts = stack.enter_context(monitoring(folder, {instance_of(address): address}, factor=FACTOR))
        page, _ = stack.enter_context(evaluating(folder / "ours", address, factor=FACTOR))
        load = Loaded(deployment, SATURATING_CLIENTS)
        stack.callback(load.off)
        watch = stack.enter_context(watching(deployment, alerts))
        for place, fault in enumerate(chosen, start=1):
            left = share - (time.monotonic() - began)
            patience = min(MOST_SECONDS, max(LEAST_SECONDS, left / (len(chosen) - place + 1) - BESIDE_SECONDS))
            row = fault_runs.run(fault, deployment, watch, load, patience)
            for earlier in mine:
                if earlier.undone is None:
                    fault_runs.settle(earlier, watch)
            mine.append(row)
            rows.append(row)
            said = "; ".join(word for word in row.faulty if word != fault_runs.NOT_UNDONE) or "all seen"
            print(f"{time.monotonic() - began:5.0f} s  {place}/{len(chosen)} {shape} {fault.name}: {said}", file=sys.stderr, flush=True)
        fault_runs.settle(mine[-1], watch, LAST_SECONDS)
        assert alerts.rule_errors() == {}
        sides = [spans(ask, began_at, time.time()) for ask in (alerts.prometheus.get, page_api(page))]
        evaluated[shape] = (len(chosen), compare(*sides, LEAST_SPAN_SECONDS))
        print(f"{shape}: {evaluated[shape][1]}", file=sys.stderr, flush=True)
    assert {row.fault.name: row.faulty for row in mine if row.faulty} == {}
