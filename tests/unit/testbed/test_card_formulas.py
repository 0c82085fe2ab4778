"""docs/testbed.md says of simulated cards what the code does: every formula evaluated as it stands there, every constant."""

from __future__ import annotations

import math
import re
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import card_faults, mirroring, traffic
from poise.testbed.mirroring import CardLimits, ThreadTimes
from poise.testbed.model import ModelShape

MODULES: tuple[ModuleType, ...] = (mirroring, traffic, card_faults)
#: NVIDIA's numbers of XIDs decide nothing here.
OTHERS = re.compile(r"XID_\w+")
SECOND = 10**9
SECTION = Path("docs/testbed.md").read_text(encoding="utf-8").partition("\n## What a simulated card shows\n")[2].partition("\n## ")[0]
FORMULAS = dict(re.findall(r"^\| (\w+) \| `([^`]+)` \|", SECTION, re.MULTILINE))
CONSTANTS = {name: float(value) for name, value in re.findall(r"^\| ([A-Z][\w.]+) \| ([0-9.]+) \|", SECTION, re.MULTILINE)}


def constants_of_the_code() -> dict[str, float]:
    """Every number in capitals of the modules; those of a table by table and key."""
    found: dict[str, float] = {}
    for module in MODULES:
        for name, value in vars(module).items():
            if not re.fullmatch(r"[A-Z][A-Z_]+", name) or OTHERS.fullmatch(name):
                continue
            if isinstance(value, dict):
                found |= {f"{name}.{key.name if isinstance(key, Enum) else key}": number for key, number in value.items()}
            elif isinstance(value, int | float):
                found[name] = value
    return found


def evaluated(name: str, **values: Any) -> float:
    """The formula in the documentation, as Python reads it."""
    known = {"min": min, "max": max, "exp": math.exp, "__builtins__": {}, **CONSTANTS, **values}
    return float(eval(FORMULAS[name], known))


def test_every_constant_is_in_the_documentation_with_the_value_of_the_code() -> None:
    assert constants_of_the_code() == CONSTANTS


def test_every_formula_of_the_documentation_is_tested_here() -> None:
    assert set(FORMULAS) == {"utilization", "memory", "kv_bytes", "clock", "power", "temperature", "goal", "all_reduce", "stage", "gather"}


ratio = st.floats(0, 1)
seconds = st.floats(0, 5)
limits = st.builds(
    CardLimits, st.just(75.0), st.floats(200, 700), st.just(30.0), st.floats(70, 90), st.just(95.0), st.just(345.0), st.just(1980.0)
)
shapes = st.builds(
    ModelShape,
    st.sampled_from([256, 896, 5120]),
    st.integers(1, 64),
    st.just(8),
    st.integers(1, 8),
    st.just(1),
    st.just(1),
    st.just(1),
    st.sampled_from([2, 4]),
)
sizes = st.integers(1, 8)


@given(seconds, seconds, st.floats(0.1, 3))
def test_utilization(ran: float, waited: float, wall: float) -> None:
    times = ThreadTimes(round(ran * SECOND), round(waited * SECOND))
    told = evaluated("utilization", ran=times.ran / SECOND, waited=times.waited / SECOND, wall=wall)
    assert mirroring.busy_share({1: ThreadTimes(0, 0)}, {1: times}, wall) == pytest.approx(told)


@given(st.integers(0, 10**11), st.integers(0, 10**11), sizes, sizes, st.integers(0, 10**6), shapes, sizes)
def test_memory(resident: int, weights: int, tensor: int, pipeline: int, cache_tokens: int, shape: ModelShape, layers: int) -> None:
    values = {"hidden": shape.hidden_size, "heads": 8, "kv_heads": shape.num_key_value_heads, "element": shape.element_bytes}
    kv_bytes = traffic.kv_bytes_per_token(shape, tensor, layers, shape.element_bytes)
    assert kv_bytes == evaluated("kv_bytes", tensor=tensor, layers=layers, **values)
    told = evaluated(
        "memory", resident=resident, weights=weights, tensor=tensor, pipeline=pipeline, cache_tokens=cache_tokens, kv_bytes=kv_bytes
    )
    assert mirroring.memory_bytes(resident, weights // (tensor * pipeline), cache_tokens * kv_bytes) == told


@given(limits, ratio, st.floats(20, 95), seconds)
def test_clock_power_and_temperature(card: CardLimits, share: float, before: float, passed: float) -> None:
    clock = evaluated("clock", utilization=share, full_clock=card.full_megahertz, idle_clock=card.idle_megahertz)
    assert mirroring.clock_megahertz(card, share) == clock
    told = {"idle_watts": card.idle_watts, "limit_watts": card.limit_watts}
    watts = evaluated("power", utilization=share, clock=clock, full_clock=card.full_megahertz, **told)
    assert mirroring.power_watts(card, share, clock) == pytest.approx(watts)
    goal = evaluated("goal", watts=watts, idle_celsius=card.idle_celsius, highest_celsius=card.highest_celsius, **told)
    celsius = evaluated("temperature", goal=goal, before=before, seconds=passed)
    assert mirroring.temperature_celsius(card, before, watts, passed) == pytest.approx(celsius)


@given(shapes, sizes, sizes)
def test_bytes_of_a_token(shape: ModelShape, tensor: int, layers: int) -> None:
    values = {"tensor": tensor, "layers": layers, "hidden": shape.hidden_size, "element": shape.element_bytes}
    assert traffic.all_reduce_bytes_per_token(shape, tensor, layers, embeds=True) == pytest.approx(evaluated("all_reduce", **values))
    assert traffic.stage_bytes_per_token(shape, tensor) == pytest.approx(evaluated("stage", **values))
    assert traffic.gather_bytes_per_token(shape, tensor) == pytest.approx(evaluated("gather", **values))
