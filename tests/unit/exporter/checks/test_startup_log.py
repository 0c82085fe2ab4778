"""What a start-up log is judged to show."""

from __future__ import annotations

import pytest
from poise.exporter.checks.result import State, Status
from poise.exporter.checks.startup_log import judge
from poise.exporter.engines.startup_log import StartupLog, parse

from tests.startup_logs import V0, V1


def start(*, tensor: int = 2, world: int | None = 2, ranks: tuple[int, ...] = (0, 1), ready: bool = True, **more: object) -> StartupLog:
    """A start with these sizes."""
    worlds = {world} if world is not None else set()
    return StartupLog("0.32.0", {"tensor": tensor}, worlds, set(ranks), ready=ready, **more)  # type: ignore[arg-type]  # as given


def test_complete_start_passes_with_its_world() -> None:
    found = judge(parse(V1), "n1:8000", "TP=2")
    assert (found.status, found.sentence, found.engine) == (Status.PASS, "TP=2, world size 2", "n1:8000")
    assert found.evidence["channels"] == "2 via P2P"
    assert judge(start(ready=False), "").sentence == "TP=2, world size 2; the start is not complete in this log"
    off = judge(start(all_reduce_off="the number of ranks"), "")
    assert (off.status, off.sentence) == (Status.PASS, "TP=2, world size 2; vLLM's own all-reduce is off for the number of ranks")


@pytest.mark.parametrize(
    ("log", "state", "sentence"),
    [
        (start(world=1, ranks=(0,)), State.PROBLEM, "ranks announced a world of 1, and TP=2 needs 2"),
        (start(ranks=(0,), ready=False), State.PROBLEM, "rank 1 of 2 has not announced itself"),
        (start(world=None, ranks=(), ready=False), State.PROBLEM, "TP=2 needs 2 ranks, and none has announced itself"),
        (
            start(world=None, ranks=(), ready=False, waiting=True),
            State.PROBLEM,
            "TP=2 needs 2 ranks, and none has announced itself: the server waits",
        ),
        (start(heads=(4, 3)), State.PROBLEM, "the start ended: 4 attention heads do not divide by tensor_parallel_size=3"),
        (start(ready=False, out_of_memory=True), State.PROBLEM, "the start ended for want of device memory"),
        (start(p2p_off=(0, 1)), State.WATCH, "peer-to-peer is disabled between GPUs 0 and 1"),
        (start(all_reduce_off="cards that do not reach each other's memory (P2P)"), State.WATCH, "peer-to-peer is disabled"),
        (start(transports={"NET/Socket": 4}), State.WATCH, "4 NCCL channels run over TCP sockets"),
    ],
)
def test_start_that_went_wrong_is_named(log: StartupLog, state: State, sentence: str) -> None:
    found = judge(log, "")
    assert (found.status, found.state, found.sentence) == (Status.FAIL, state, sentence)
    assert found.cause
    assert found.fix


def test_log_of_another_start_than_the_engine_s_is_said() -> None:
    found = judge(parse(V1), "n1:8000", "TP=4")
    assert (found.state, found.sentence) == (State.WATCH, "the log is of a start with TP=2, and the engine runs with TP=4")


def test_world_of_data_parallel_ranks_counts_one_or_all() -> None:
    for world in (2, 4):
        log = StartupLog("0.32.0", {"tensor": 2, "data": 2}, {world}, set(range(world)), ready=True)
        assert judge(log, "").status is Status.PASS


def test_what_the_log_does_not_show_is_unknown() -> None:
    assert judge(parse(["hello"]), "").status is Status.UNKNOWN
    assert judge(start(world=None, ranks=()), "").status is Status.UNKNOWN
    assert judge(parse(V0), "").state is State.PROBLEM, "broken off before its ranks came"
