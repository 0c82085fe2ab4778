"""Real servers of one rank and of two pipeline stages: up, asked, observed by the exporter, down.

Its name sorts before the other files: it starts deployments of its own, and there is to be one at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from poise.testbed import request, status
from poise.testbed.deployment import Deployment

from tests.vllm.deploying import bring_up
from tests.vllm.watching import PATIENCE, drive, exporter_page, ours, when
from tests.waiting import wait_until

REQUESTS = 8


@contextmanager
def up(shape: str, folder: Path) -> Iterator[Deployment]:
    """The deployment, and the certainty that nothing of it is left in shared memory."""
    before = set(os.listdir("/dev/shm"))
    with bring_up(shape, folder / "state") as deployment:
        yield deployment
    assert set(os.listdir("/dev/shm")) <= before
    assert not deployment.layout.records.exists()


def cards(deployment: Deployment) -> list[tuple[str, str, str, str]]:
    """(card, tensor rank, pipeline rank, use) of every card that the exporter ties to the engine."""
    page = exporter_page(deployment)
    return [(c["gpu"], c["tp_rank"], c["pp_rank"], c["use"]) for c, _ in ours(deployment, page, "poise_engine_gpu_info")]


def sizes(deployment: Deployment) -> dict[str, float]:
    return {labels["dimension"]: value for labels, value in ours(deployment, exporter_page(deployment), "poise_engine_parallel_size")}


@pytest.mark.parametrize(
    ("shape", "stages", "expected"),
    [("single", 1, [("0", "", "", "own")]), ("pp", 2, [("0", "", "0", "own"), ("1", "", "1", "own")])],
)
def test_a_server_of_one_rank_and_one_of_two_stages_are_observed_as_what_they_are(
    tmp_path: Path, shape: str, stages: int, expected: list[tuple[str, str, str, str]]
) -> None:
    with up(shape, tmp_path) as deployment:
        result = drive(deployment, REQUESTS)
        assert (result.finished, result.failed) == (REQUESTS, 0)
        assert status.look(deployment).ready
        (server,) = [part for part in status.look(deployment).parts if part.role == "engine"]
        ranks = [worker.pipeline_rank for worker in server.workers]
        assert (server.pipeline_parallel_size, ranks) == (stages, [None] if stages == 1 else list(range(stages)))
        wait_until(lambda: cards(deployment) == expected, "every rank on its card", PATIENCE)
        assert sizes(deployment) == {"tensor": 1, "pipeline": stages, "data": 1}
        page = exporter_page(deployment)
        assert [value for _, value in ours(deployment, page, "poise_engine_world_size")] == [stages]
        assert {labels["role"] for labels, _ in ours(deployment, page, "poise_engine_info")} == {"mixed"}
        port = str(deployment.engine().port)
        when(
            deployment,
            lambda page: not [line for line in page["checks"] if line["status"] == "fail" and line["engine"].endswith(port)],
            "no failing check",
        )
        answers = [
            request.complete(deployment.plan.url, deployment.plan.served_name, "server token queue", 16, 60, os.environ) for _ in "ab"
        ]
        texts = [answer["choices"][0]["text"] for answer in answers]  # type: ignore[index]  # as OpenAI's API has it
        assert texts[0] == texts[1] != "", "stages that did not hand on their activations would not repeat themselves"
