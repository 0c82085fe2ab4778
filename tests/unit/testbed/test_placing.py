"""Which cards a server gets, and what share of their memory."""

from __future__ import annotations

import pytest
from poise.testbed import placing, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu
from poise.testbed.shapes import Shape

FREE = tuple(Gpu(80_000, f"GPU-{number}") for number in range(4))


def own(*engines: dict[str, object]) -> Shape:
    return shapes.parse("own", {"engine": [{"name": f"e{place}", **engine} for place, engine in enumerate(engines)]})


def placed(shape: Shape, gpus: tuple[Gpu, ...] = FREE, user: str | None = None) -> list[str | None]:
    places = placing.place(shape, gpus, user)
    return [places[engine.name].cuda_visible_devices for engine in shape.engines]


def test_open_servers_get_what_named_ones_leave() -> None:
    assert placed(own({}, {"cuda_visible_devices": "1"}, {"tensor_parallel_size": 2})) == ["0", "1", "2,3"]
    assert placed(own({"cuda_visible_devices": "GPU-2"}, {"pipeline_parallel_size": 3})) == ["GPU-2", "0,1,3"]


def test_one_server_over_the_whole_machine_has_nothing_hidden_from_it() -> None:
    assert placed(own({"tensor_parallel_size": 4})) == [None]
    assert placed(own({"tensor_parallel_size": 2})) == ["0,1"]
    assert placed(own({"tensor_parallel_size": 4}), FREE, "3,2,1,0") == [None]


def test_a_named_card_that_is_not_there_or_in_use_is_said() -> None:
    with pytest.raises(
        TestbedError, match="shape own puts engine e0 on the GPUs 7 and this machine has 0 to 3: change cuda_visible_devices"
    ):
        placed(own({"cuda_visible_devices": "7"}))
    busy = (*FREE[:3], Gpu(80_000, "GPU-3", 1024))
    with pytest.raises(TestbedError, match="GPU 3 has 1024 MiB in use, and shape own puts engine e0 on it: end that, or leave"):
        placed(own({"cuda_visible_devices": "3"}), busy)
    assert placed(own({"cuda_visible_devices": "0,3"}), busy) == ["0,3"], "more visible than needed: rank 0 is on the first"
    assert placed(own({}, {}), (Gpu(80_000, "GPU-0", 1023), *FREE[1:])) == ["0", "1"], "a context alone is no use"


def test_too_few_cards_and_too_few_free_ones_are_told_apart() -> None:
    with pytest.raises(TestbedError, match="shape own needs 5 GPUs and this machine has 4: use shape single"):
        placed(own({"cuda_visible_devices": "0"}, {"tensor_parallel_size": 4}))
    with pytest.raises(TestbedError, match="shape own needs 5 GPUs and this machine has 4: use shape single"):
        placed(shapes.parse("own", {"gpus": 5, "engine": [{"name": "server"}]}))
    busy = (Gpu(80_000, "GPU-0", 5000, (1, 2)), *FREE[1:])
    with pytest.raises(TestbedError, match=r"needs 4 free GPUs and 3 of 4 are \(GPU 0 has 5000 MiB in use by process 1, 2\)"):
        placed(own({"tensor_parallel_size": 4}), busy)


def shares(*engines: dict[str, object]) -> dict[str, tuple[str, ...]]:
    return {name: place.arguments for name, place in placing.place(own(*engines), FREE).items()}


def test_servers_on_one_card_share_its_memory() -> None:
    on_zero: dict[str, object] = {"cuda_visible_devices": "0"}
    assert shares(on_zero) == {"e0": ()}
    assert shares(on_zero, on_zero) == {"e0": ("--gpu-memory-utilization=0.46",), "e1": ("--gpu-memory-utilization=0.46",)}
    asked: dict[str, object] = {**on_zero, "arguments": ["--gpu-memory-utilization", "0.7"]}
    assert shares(asked, on_zero) == {"e0": (), "e1": ("--gpu-memory-utilization=0.22",)}
    wide: dict[str, object] = {"cuda_visible_devices": "0,1", "tensor_parallel_size": 2}
    assert shares(on_zero, wide, {"cuda_visible_devices": "1"}, {"cuda_visible_devices": "1"}) == {
        "e0": ("--gpu-memory-utilization=0.46",),
        "e1": ("--gpu-memory-utilization=0.30",),
        "e2": ("--gpu-memory-utilization=0.30",),
        "e3": ("--gpu-memory-utilization=0.30",),
    }


@pytest.mark.parametrize("asked", [("0.7", "0.4"), ("0.95", None)])
def test_shares_that_do_not_fit_on_a_card_are_said(asked: tuple[str, str | None]) -> None:
    engines: list[dict[str, object]] = [
        {"cuda_visible_devices": "0", "arguments": [] if share is None else [f"--gpu-memory-utilization={share}"]} for share in asked
    ]
    with pytest.raises(TestbedError, match="shape own: e0, e1 share GPU 0 and their --gpu-memory-utilization leaves nothing for all"):
        shares(*engines)


def test_a_share_that_is_none_is_said() -> None:
    one: dict[str, object] = {"cuda_visible_devices": "0", "arguments": ["--gpu-memory-utilization=lots"]}
    with pytest.raises(TestbedError, match="engine e0 has --gpu-memory-utilization lots: it has to be above 0 and at most 1"):
        shares(one, one)
