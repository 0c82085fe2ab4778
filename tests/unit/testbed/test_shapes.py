"""The shapes that ship, and what is said of a wrong one."""

from __future__ import annotations

import pytest
from poise.testbed import cards, model, shapes
from poise.testbed.errors import TestbedError

ENGINE = {"name": "server", "port": 8000, "tensor_parallel_size": 2}
PREFILL = {"name": "p", "role": "prefill", "port": 8100, "kv_connector": "NixlConnector", "side_channel_port": 5600}
DECODE = {**PREFILL, "name": "d", "role": "decode"}
ROUTER = {"name": "router", "kind": "vllm-router", "port": 8000, "metrics_port": 29000}


def split(*engines: dict[str, object], router: object = ROUTER) -> dict[str, object]:
    return {"title": "x", "gpus": 2, "engine": list(engines), "router": router}


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


@pytest.mark.parametrize(("name", "prefill_size"), [("pd", 1), ("hybrid", 2)])
def test_prefill_and_decode_lie_on_cards_of_their_own_behind_a_router(name: str, prefill_size: int) -> None:
    shape = shapes.load(name)
    prefill, decode = shape.engines
    assert shape.router is not None
    assert (prefill.role, prefill.tensor_parallel_size, decode.role, decode.tensor_parallel_size) == ("prefill", prefill_size, "decode", 1)
    cards_of = [str(engine.cuda_visible_devices).split(",") for engine in shape.engines]
    assert [len(found) for found in cards_of] == [prefill_size, 1]
    assert sorted(card for found in cards_of for card in found) == [str(card) for card in range(shape.gpus)]
    assert prefill.side_channel_port != decode.side_channel_port
    assert shape.gpus_of_smallest_engine == 1


def test_an_unknown_shape_names_those_that_are_there() -> None:
    with pytest.raises(TestbedError, match="there is no shape 'octopus': choose from hybrid, pair, pd, single, tp"):
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
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "role": "both"}]}, "role of engine server has to be"),
        ({"title": "x", "gpus": 1, "engine": [{**ENGINE, "kv_connector": "NixlConnector"}]}, "but no role prefill or decode"),
        (split(PREFILL), "come together or not at all"),
        (split({**PREFILL, "side_channel_port": None}, DECODE), "needs kv_connector"),
        (split(PREFILL, DECODE, router={**ROUTER, "name": "p"}), "same name"),
        (split(PREFILL, DECODE, router={**ROUTER, "kind": "nginx"}), 'needs kind = "vllm-router"'),
        (split(PREFILL, DECODE, router={**ROUTER, "name": "a/b"}), "a router needs a name"),
        (split(PREFILL, DECODE, router={**ROUTER, "speed": 1}), "unknown key 'speed'"),
        (split(PREFILL, DECODE, router="yes"), "has to be a table"),
        ({"title": "x", "gpus": 2, "engine": [PREFILL, DECODE]}, "come together or not at all"),
    ],
)
def test_a_wrong_shape_is_named_with_what_is_wrong(data: dict[str, object], said: str) -> None:
    with pytest.raises(TestbedError, match=f"shape odd: .*{said}"):
        shapes.parse("odd", data)
