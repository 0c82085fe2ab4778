"""The table that `make faults` writes into docs/testbed.md."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from poise.testbed import faults
from poise.testbed.faults.signs import Seen

from tests import fault_table
from tests.fault_runs import Row
from tests.soak.test_faults import SHAPES, wanted
from tests.unit.testbed.test_plan import PLAN, SPLIT


def test_a_row_says_what_came_and_in_bold_what_did_not() -> None:
    fault = faults.find("decode-direct")
    counted, slowed = fault.raises.series
    row = Row(fault, "pd", seen={counted: Seen(counted, "0/s", "260/s", True), slowed: Seen(slowed, "1/s", "1/s", False)})
    row.lines["kv_transfer"] = ("decode computed 98 % | itself", 9.4)
    row.alerts = {"PDKVTransferAbsent": 31.0}
    row.unexpected = frozenset({"GPULost"})
    row.undone = 41.5
    line = fault_table.line_of(row)
    assert line.startswith(
        "| `decode-direct`: clients go to decode, past the router: it computes their prompts itself | pd | `poise_engine_prompt"
    )
    assert '{source="local_compute", decode} 0/s → 260/s`<br>`poise_engine_requests_finished_total{prefill} 1/s → 1/s` **not seen**' in line
    assert "| **pd_routing did not fail**<br>decode computed 98 % \\| itself | <br>9 |" in line
    assert "PDKVTransferAbsent 31, **PDPoolStarved did not fire**" in line
    assert line.endswith("**GPULost** unexpected | 42 |")
    assert row.faulty == [
        f"missing: series {slowed}",
        "missing: check pd_routing",
        "missing: alert PDPoolStarved",
        "missing: alert PDDecodeComputesPrompts",
        "unexpected: GPULost",
    ]


def test_a_row_of_a_fault_that_could_not_be_put_on_says_so() -> None:
    row = Row(faults.find("kill-router"), "pd", troubles=["could not be put on: no\nlog"])
    assert "**could not be put on: no**" in fault_table.line_of(row)
    assert fault_table.line_of(row).endswith("| **no** |")
    assert "could not be put on: no\nlog" in row.faulty


def test_the_table_stands_between_its_markers_and_the_rest_of_the_page_stays() -> None:
    page = f"before\n\n{fault_table.BEGIN}\nold\n{fault_table.END}\n\nafter\n"
    changed = fault_table.with_table(page, ["new"])
    assert changed == f"before\n\n{fault_table.BEGIN}\n\nnew\n\n{fault_table.END}\n\nafter\n"
    assert fault_table.with_table(changed, ["new"]) == changed
    with pytest.raises(ValueError, match="no place for the table"):
        fault_table.with_table("before", [])


def test_the_long_run_has_every_fault_once_on_a_shape_that_can_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("POISE_FAULTS", raising=False)
    ran = {shape: wanted(shape) for shape in SHAPES}
    assert sorted(fault.name for chosen in ran.values() for fault in chosen) == sorted(fault.name for fault in faults.FAULTS)
    for shape, plan in (("tp", replace(PLAN, healthy=PLAN.engines[:1])), ("pd", SPLIT)):
        assert [fault.name for fault in ran[shape] if fault.refusal(plan)] == []


def test_the_page_of_the_testbed_has_a_place_for_the_table() -> None:
    fault_table.with_table(Path("docs/testbed.md").read_text(encoding="utf-8"), [])


def test_rows_of_faults_that_were_not_run_stay_in_their_order() -> None:
    old = "\n".join(["", *fault_table.HEAD, "| `one`: words | tp | a | b | 1 | c | 2 |", "| `three`: words | tp | a | b | 1 | c | 2 |", ""])
    page = f"before\n{fault_table.BEGIN}{old}{fault_table.END}\nafter\n"
    changed = fault_table.with_rows(page, [], ["three", "two", "one"], "this machine")
    rows = [line for line in changed.splitlines() if line.startswith("| `")]
    assert [row.partition(":")[0] for row in rows] == ["| `three`", "| `one`"]
    assert "Measured by `make faults` on this machine." in changed
    assert fault_table.kept_rows("nothing") == {}
