"""Names of all that a deployment has: none stands for two things."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import demo, naming, planning, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.faults import on_cards, pace, requests
from poise.testbed.shapes import Shape
from poise.testbed.sizing import Sizes, resize

SPLIT = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]


@pytest.mark.parametrize("name", [*naming.OWN, requests.PROCESS, pace.PROCESS, on_cards.FOREIGN_PROCESS, "fault_of_mine"])
def test_a_part_does_not_take_the_name_of_one_of_the_testbeds_own(name: str) -> None:
    with pytest.raises(TestbedError, match=f"shape odd: engine {name} cannot be called '{name}': the testbed gives that name"):
        shapes.parse("odd", {"engine": [{"name": name}]})
    with pytest.raises(TestbedError, match=f"router {name} cannot be called '{name}'"):
        shapes.parse("odd", {"engine": SPLIT, "router": {"name": name}})


@pytest.mark.parametrize(
    ("engines", "router", "said"),
    [
        (["a", "a"], None, "two parts have the name 'a': give each"),
        (["p", "d"], "d", "two parts have the name 'd': give each"),
        (["p", "router_metrics"], "router", r"'router_metrics' \(engine router_metrics, the metrics of router\): give each"),
        (["p", "p_side_channel"], "router", r"'p_side_channel' \(the side channel of p, engine p_side_channel\): give each"),
        (["p", "d"], "d_side_channel", r"'d_side_channel' \(the side channel of d, router d_side_channel\): give each"),
    ],
)
def test_a_name_that_stands_for_two_things_is_refused(engines: list[str], router: str | None, said: str) -> None:
    roles = ("mixed", "mixed") if router is None else ("prefill", "decode")
    data: dict[str, object] = {"engine": [{"name": name, "role": role} for name, role in zip(engines, roles, strict=True)]}
    with pytest.raises(TestbedError, match=said):
        shapes.parse("odd", data if router is None else {**data, "router": {"name": router}})


def test_sizes_make_names_that_are_looked_at_as_well() -> None:
    shape = shapes.parse("odd", {"engine": SPLIT, "router": {"name": "prefill_2"}})
    with pytest.raises(TestbedError, match="shape odd with --prefill: two parts have the name 'prefill_2'"):
        resize(shape, Sizes(prefill=2))
    with pytest.raises(TestbedError, match="shape pd with --prefill --prefill-tp: 4097 GPUs are asked for: a deployment has at most 64"):
        resize(shapes.load("pd"), Sizes(prefill=64, prefill_tp=64))


@given(st.lists(st.sampled_from(["a", "b", "a_side_channel", "b_metrics", "mirror"]), min_size=3, max_size=3))
def test_whatever_the_names_each_port_and_each_step_is_one_things_only(drawn: list[str]) -> None:
    data = {"engine": [{**engine, "name": name} for engine, name in zip(SPLIT, drawn, strict=False)], "router": {"name": drawn[2]}}
    try:
        shape = shapes.parse("odd", data)
    except TestbedError:
        return
    assert len({*planning.part_ports(shape), *naming.OWN}) == 6 + len(naming.OWN)
    steps = demo.with_page(steps_of(shape))
    assert len(set(steps)) == len(steps)


def steps_of(shape: Shape) -> list[str]:
    return planning.step_names(planning.Request(shape, Path("/state"), Path("/cache")), simulated=True)


def test_a_name_is_short_enough_for_a_file() -> None:
    assert shapes.parse("odd", {"engine": [{"name": "a" * naming.LONGEST}]}).engines[0].name == "a" * 40
    with pytest.raises(TestbedError, match="has to be a name of letters, digits and _, 40 at most"):
        shapes.parse("odd", {"engine": [{"name": "a" * 41}]})
