"""Which runs may stand side by side: each difference that makes a figure of one say nothing about the other is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from poise.testbed.bench import run
from poise.testbed.comparison import alike, table
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import RECORDED, Content, document, shapes_three_times, three_times


def spoil(*path: str | int, value: object) -> Callable[[Content], None]:
    def change(content: Content) -> None:
        holder: Any = content
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (spoil("workload", "requests", value=[65]), r"workload requests is \[192\] in one and \[65\] in the other"),
        (spoil("workload", "prompts", "input_tokens", value=1), "workload prompts is"),
        (
            spoil("workload", "generator_version", value="0.33.0"),
            "workload generator_version is '0.32.0.cpu' in one and '0.33.0' in the other",
        ),
        (spoil("workload", "tokenizer", value="x"), "workload tokenizer"),
        (spoil("deployment", "model", value="big"), "model is 'tiny-qwen2' in one and 'big' in the other"),
        (spoil("deployment", "build", value="gpu"), "build is 'cpu' in one and 'gpu'"),
        (
            spoil("cards", value=[{"gpu": 0, "uuid": "a", "name": "H200"}]),
            "cards is 'Simulated NVIDIA H20-3e' in one and 'H200' in the other",
        ),
        (spoil("machine", "cores", value=64), "machine is"),
        (spoil("simulated", value=False), "simulated is True in one and False in the other"),
        (spoil("versions", "vllm", value="0.1"), "version of vllm is '0.32.0.cpu' in one and '0.1' in the other"),
        (spoil("versions", "torch", value="2.13.0"), "version of torch is None in one and '2.13.0' in the other"),
        (spoil("versions", "driver", value="580.95.05"), "version of driver is 'simulated' in one and '580.95.05' in the other"),
        (spoil("deployment", "gpus", value=4), "gpus is 2 in one and 4 in the other"),
        (spoil("deployment", "asked", value="router"), "asked is 'server' in one and 'router' in the other"),
        (spoil("deployment", "engines", value=[]), r"servers is \['server'\] in one and \[\] in the other"),
        (
            spoil("deployment", "engines", 0, "arguments", value={"--max-num-seqs": "2"}),
            "arguments of server server is .* in one and {'--max-num-seqs': '2'} in the other",
        ),
        (spoil("interrupted", value=True), "was interrupted: it lacks steps"),
        (spoil("workload", "seed", value=9), "seeds 1, 2, 3 and pd with 1, 2, 9"),
    ],
)
def test_runs_that_are_not_alike_are_refused_by_their_difference(change: Callable[[Content], None], said: str) -> None:
    entries = shapes_three_times()
    change(entries[-1])
    with pytest.raises(TestbedError, match=said):
        alike.check(entries)


def test_one_measurement_that_is_given_thrice_is_no_three_repetitions() -> None:
    single, pd = run.read(RECORDED / "run-single-1.json"), run.read(RECORDED / "run-pd-1.json")
    with pytest.raises(TestbedError, match="run 20261130-124321-single-chat is given 3 times: one measurement is one repetition"):
        table.compare([single, single, single, pd, pd, pd])
    copied = [{**single, "id": f"copy-{number}"} for number in range(3)]
    with pytest.raises(
        TestbedError, match="runs copy-0 and copy-1 of shape single both have the seed 1: the same prompts are no repetition"
    ):
        table.compare([*copied, pd])


def test_versions_count_where_they_are_used_and_those_of_poise_are_all_told() -> None:
    entries = shapes_three_times()
    for number, entry in enumerate(entries):
        entry["versions"] |= {"vllm_router": f"0.1.{number}", "nixl": f"1.{number}", "poise": "0.1.0" if number else "0.2.0"}
    assert table.compare(entries).versions["poise"] == "0.2.0 and 0.1.0", "no router and no connector in any of them"
    for entry in entries[-3:]:
        entry["deployment"]["router"] = "vllm-router"
    with pytest.raises(TestbedError, match=r"version of vllm_router is '0\.1\.6' in one and '0\.1\.7' in the other"):
        alike.check(entries)
    for entry in entries:
        entry["versions"]["vllm_router"] = "0.1.17"
        entry["deployment"]["engines"] = [{**entry["deployment"]["engines"][0], "kv_connector": "NixlConnector"}]
    with pytest.raises(TestbedError, match=r"version of nixl is '1\.0' in one and '1\.1' in the other"):
        alike.check(entries)


def test_other_cards_of_the_same_kind_are_no_difference() -> None:
    entries = three_times("tp", 60.0, 2)
    entries[1]["deployment"]["engines"] = [{**entries[1]["deployment"]["engines"][0], "cuda_visible_devices": "2,3"}]
    alike.check(entries)


def test_names_of_others_are_harmless_in_a_refusal() -> None:
    entries = [document("tp"), document("tp", seed=2)]
    entries[1] |= {"id": "b\n\x1b[31m"}
    entries[1]["deployment"]["model"] = "\x1b[2J"
    with pytest.raises(TestbedError) as raised:
        alike.check(entries)
    assert str(raised.value).isprintable()
    assert r"b\n\x1b[31m" in str(raised.value)
