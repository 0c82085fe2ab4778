"""One real vLLM server, tensor parallel over two simulated cards, for all tests of this stage: a start takes half a minute."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from poise.testbed import faults, records
from poise.testbed.deployment import Deployment

from tests.vllm.deploying import bring_up, progress_of


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def _shared(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Deployment]:
    """Brought up once. If pytest is killed, the deployment's keeper takes it down."""
    before = set(os.listdir("/dev/shm"))
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled() if capture else nullcontext():  # an install of minutes is to be seen
        deployment = bring_up("tp", tmp_path_factory.mktemp("tp") / "state")
    try:
        yield deployment
    finally:
        removed = deployment.down()
    left = [name for name in sorted(set(os.listdir("/dev/shm")) - before) if name.startswith(("psm_", "vllm_dist_", "sem.mp-"))]
    assert left == [], f"shared memory left behind by {removed}"
    assert not deployment.layout.records.exists()


@pytest.fixture
def tp(_shared: Deployment) -> Deployment:
    """The healthy deployment of TP=2. What an earlier test left broken is mended first."""
    faults.undo(_shared, progress_of("mending", []))
    assert all(record.lives for record in records.read_all(_shared.layout.records))
    return _shared
