"""The shapes that ship, and what is said of a wrong one."""

from __future__ import annotations

import pytest
from poise.testbed import cards, model, shapes
from poise.testbed.errors import TestbedError

ENGINE = {"name": "server", "port": 8000, "tensor_parallel_size": 2}


@pytest.mark.parametrize("name", shapes.names())
def test_a_shape_that_ships_can_be_started(name: str) -> None:
    shape = shapes.load(name)
    assert len(cards.profile(shape.gpus).cards) == shape.gpus
    for engine in shape.engines:
        model.check_parallel(model.tiny_shape(), engine.tensor_parallel_size, "tiny")
        assert engine.tensor_parallel_size <= shape.gpus


def test_tp_splits_one_server_over_two_cards_and_hides_none() -> None:
    (engine,) = shapes.load("tp").engines
    assert (engine.tensor_parallel_size, engine.cuda_visible_devices) == (2, None)


def test_an_unknown_shape_names_those_that_are_there() -> None:
    with pytest.raises(TestbedError, match="there is no shape 'octopus': choose from pair, single, tp"):
        shapes.load("octopus")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"title": "x", "gpus": 1, "engine": [ENGINE], "color": 1}, "unknown key 'color'"),
        ({"title": "x", "gpus": 0, "engine": [ENGINE]}, "gpus"),
        ({"title": "x", "gpus": 1, "engine": []}, "at least one"),
        ({"title": "x", "gpus": 1, "engine": ["server"]}, "has to be a table"),
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "name": "a/b"}]}, "needs a name"),
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "port": "80"}]}, "needs port"),
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "cuda_visible_devices": 0}]}, "has to be a text"),
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "arguments": "--x"}]}, "have to be a list of texts"),
        ({"title": "x", "gpus": 1, "engine": [ENGINE, ENGINE]}, "same name"),
    ],
)
def test_a_wrong_shape_is_named_with_what_is_wrong(data: dict[str, object], said: str) -> None:
    with pytest.raises(TestbedError, match=f"shape odd: .*{said}"):
        shapes.parse("odd", data)
