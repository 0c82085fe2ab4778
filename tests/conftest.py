"""Fixtures that tests of several components share."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from poise.testbed.nvml.node import SimulatedNode

from tests.simulated import Simulation, simulation

# An example may take as long as it takes: the machine may be slow or busy with other tests.
settings.register_profile("poise", deadline=None)
settings.load_profile("poise")


def pytest_configure() -> None:
    """A shell without job control starts what is to run in the background with SIGINT ignored, and all that tests start would inherit it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def simulate(tmp_path: Path) -> Iterator[Callable[[str], Simulation]]:
    """`simulate("h20x2")`: a simulated node and the real pynvml answering from it in this process. One node a test."""
    with ExitStack() as stack:
        yield lambda profile: stack.enter_context(simulation(tmp_path, profile))


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[str], SimulatedNode]]:
    """`make_node("h20x2")`: a simulated node for other processes, which start with `node.environment()`."""
    with ExitStack() as stack:

        def make(profile: str) -> SimulatedNode:
            node = stack.enter_context(SimulatedNode.create(tmp_path / "node.nvml", profile))
            stack.callback(node.release)  # nothing that a test left hanging stays so
            return node

        yield make
