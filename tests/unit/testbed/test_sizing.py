"""Shapes in other sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from poise.testbed import shapes
from poise.testbed.errors import TestbedError
from poise.testbed.sizing import Sizes, resize

PD = shapes.load("pd")


def test_without_sizes_a_shape_stays_as_it_is() -> None:
    assert resize(PD, Sizes()) is PD
    assert resize(shapes.load("tp"), Sizes()) == shapes.load("tp")


def test_several_servers_are_numbered_and_one_keeps_its_name() -> None:
    shape = resize(PD, Sizes(prefill=2, decode=1))
    assert [(engine.name, engine.port, engine.side_channel_port) for engine in shape.engines] == [
        ("prefill_1", 8100, 5600),
        ("prefill_2", 8101, 5601),
        ("decode", 8200, 5700),
    ]
    assert (shape.gpus, shape.name, shape.router) == (3, "pd", PD.router)
    assert shape.title == "2 prefill, 1 decode, KV cache over NIXL, behind vllm-router"


def test_sizes_of_a_server_and_their_number_multiply() -> None:
    shape = resize(shapes.load("hybrid"), Sizes(prefill=2, decode_tp=2))
    assert [(engine.name, engine.gpus) for engine in shape.engines] == [("prefill_1", 2), ("prefill_2", 2), ("decode", 2)]
    assert shape.gpus == 6
    assert "2 prefill of tensor parallel 2, 1 decode of tensor parallel 2" in shape.title
    assert resize(shape, Sizes(prefill=1)).engines[0].name == "prefill_1"


@pytest.mark.parametrize("sizes", [Sizes(prefill=2), Sizes(decode_tp=2)])
def test_a_shape_without_these_roles_is_refused(sizes: Sizes) -> None:
    with pytest.raises(TestbedError, match=r"--(prefill|decode-tp) is for shapes of prefill and decode and shape tp is none: use shape pd"):
        resize(shapes.load("tp"), sizes)


def test_servers_that_are_bound_to_cards_have_no_other_size() -> None:
    prefill, decode = PD.engines
    bound = replace(PD, engines=(replace(prefill, cuda_visible_devices="0"), decode))
    with pytest.raises(TestbedError, match="puts engine prefill on the GPUs 0, so that there can be no other size of it: leave cuda_vis"):
        resize(bound, Sizes(prefill=2))
    assert resize(bound, Sizes(decode=2)).gpus == 3
