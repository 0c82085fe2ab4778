"""What the checklist says of engines in containers, and of a Poise that does not see the whole node."""

from __future__ import annotations

import dataclasses

import pytest
from poise.exporter.checks.result import State, Status
from poise.exporter.checks.runner import Runner
from poise.exporter.snapshot import ContainerCards, Engine, NodeSnapshot, Pod, ViewLimit
from poise.exporter.standing import NO_PTRACE, OWN_NAMESPACE

from tests.scenes import card, engine, failing, node, play

ONE = ContainerCards(frozenset({0}), "0")


def contained(held: Engine, pod: Pod | None) -> Engine:
    return dataclasses.replace(held, observed=dataclasses.replace(held.observed, pod=pod))


def one_card(second: float, pod: Pod | None = None, environment: str | None = None) -> NodeSnapshot:
    """The article in a container: two cards in the node, one in the container."""
    gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.0, power=90)]
    held = engine(cards=[0], environment=environment, tokens=500 * second, container=ONE)
    return node(gpus, [contained(held, pod)], expected=2)


def test_a_card_that_a_container_hides_is_named_at_once_with_what_the_container_needs() -> None:
    outcome = play(one_card, 0, Runner())
    hidden = failing(outcome)["visible_devices"]
    assert hidden.sentence == "a container with 1 card and CUDA_VISIBLE_DEVICES not set hides GPU 1, which no engine owns"
    assert "start its container with NVIDIA_VISIBLE_DEVICES=0,1 (docker run --gpus), without CUDA_VISIBLE_DEVICES" in hidden.fix
    assert outcome.verdict.state is State.WATCH
    idle = failing(play(one_card, 61, Runner()))["idle_unowned_card"]
    assert idle.cause == "no engine owns GPU 1: a container with 1 card and CUDA_VISIBLE_DEVICES not set hides it"


def test_a_pod_has_the_cards_that_it_asked_for_and_only_load_says_that_they_are_too_few() -> None:
    in_pod = Pod("serving", "chat-0", "vllm")
    outcome = play(lambda second: one_card(second, in_pod), 0, Runner())
    assert failing(outcome) == {}
    (seen,) = [result for result in outcome.results if result.check == "visible_devices"]
    assert seen.sentence.endswith("the engine sees the 1 card that its pod was given")
    idle = failing(play(lambda second: one_card(second, in_pod), 61, Runner()))["idle_unowned_card"]
    assert "let its pod ask for 2 cards (nvidia.com/gpu: 2), without CUDA_VISIBLE_DEVICES, and --tensor-parallel-size 2" in idle.fix
    # A variable in its specification hides cards that it was given: nobody asked for that.
    assert "visible_devices" in failing(play(lambda second: one_card(second, in_pod, "0"), 0, Runner()))


def test_the_other_engines_container_has_its_card_while_it_loads() -> None:
    def two(second: float) -> NodeSnapshot:
        gpus = [card(0, busy=0.97 * second, power=480), card(1, busy=0.0, power=90)]
        loading = engine("n1:8001", cards=[], visible=[1], tensor=1, page=False, container=ContainerCards(frozenset({1}), "1"))
        return node(gpus, [engine(cards=[0], tokens=500 * second, container=ONE), loading], expected=2)

    assert "visible_devices" not in failing(play(two, 0, Runner()))
    assert "idle_unowned_card" not in failing(play(two, 61, Runner()))


def test_cards_that_a_container_has_and_does_not_use_are_a_problem_and_its_own_are_named_by_uuid() -> None:
    given = ContainerCards(frozenset({0, 1}), "0,1")

    def unused(second: float) -> NodeSnapshot:
        return node([card(0, busy=0.97 * second), card(1, busy=0.0)], [engine(cards=[0], visible=[0, 1], container=given)], expected=2)

    result = failing(play(unused, 0, Runner()))["parallel_size"]
    assert result.state is State.PROBLEM
    assert "CUDA_VISIBLE_DEVICES=GPU-0" in result.fix


def test_cards_that_cannot_be_resolved_are_another_unknown_than_an_environment_that_cannot_be_read() -> None:
    for read, words in ((True, "MIG"), (False, "its environment cannot be read")):
        held = engine(environment="MIG-1")
        observed = dataclasses.replace(held.observed, config=dataclasses.replace(held.config, environment_read=read))
        scene = node([card(0), card(1)], [dataclasses.replace(held, observed=observed, visible=None)])
        (result,) = [result for result in Runner().observe(scene).results if result.check == "visible_devices"]
        assert result.status is Status.UNKNOWN
        assert words in result.cause


@pytest.mark.parametrize(
    ("limits", "running", "status", "sentence"),
    [
        ((), True, Status.PASS, "processes of all containers are seen and can be read"),
        ((), False, Status.PASS, "processes of all containers are seen and can be read"),
        ((OWN_NAMESPACE, NO_PTRACE), False, Status.UNKNOWN, "no engine process is found, and Poise does not see all processes"),
        ((OWN_NAMESPACE,), True, Status.PASS, f"engines are found, as far as Poise sees: {OWN_NAMESPACE.sentence}"),
        ((NO_PTRACE,), False, Status.PASS, f"as far as Poise sees: {NO_PTRACE.sentence}"),
    ],
)
def test_what_poise_does_not_see_of_the_node(limits: tuple[ViewLimit, ...], running: bool, status: Status, sentence: str) -> None:
    engines = [engine(process_up=True)] if running else []
    scene = dataclasses.replace(node([card(0), card(1)], engines), view_limits=limits)
    (result,) = [result for result in Runner().observe(scene).results if result.check == "node_view"]
    assert result.status is status
    assert sentence in result.sentence
    assert all(limit.fix in result.fix for limit in limits) or status is Status.PASS


def test_where_nobody_looks_for_processes_nothing_is_said_of_them() -> None:
    assert not [result for result in Runner().observe(node([card(0)], [])).results if result.check == "node_view"]
