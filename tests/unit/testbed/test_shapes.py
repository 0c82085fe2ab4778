"""The shapes that ship, shapes of the user's own, and what is said of a wrong one."""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.testbed import cards, model, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.shapes import EngineShape, RouterShape, Shape

ENGINE = {"name": "server", "port": 8000, "tensor_parallel_size": 2}
PREFILL = {"name": "p", "role": "prefill", "port": 8100, "kv_connector": "NixlConnector", "side_channel_port": 5600}
DECODE = {**PREFILL, "name": "d", "role": "decode"}
ROUTER = {"name": "router", "kind": "vllm-router", "port": 8000, "metrics_port": 29000}

OWN = """
title = "two servers on one card"

[[engine]]
name = "small"
cuda_visible_devices = "0"
arguments = ["--max-num-seqs=2"]

[[engine]]
name = "large"
port = 8042
cuda_visible_devices = "0,2"
tensor_parallel_size = 2
"""


def split(*engines: dict[str, object], router: object = ROUTER) -> dict[str, object]:
    return {"title": "x", "gpus": 2, "engine": list(engines), "router": router}


@pytest.mark.parametrize("name", shapes.names())
def test_a_shape_that_ships_can_be_started(name: str) -> None:
    shape = shapes.load(name)
    assert len(cards.profile(shape.gpus).cards) == shape.gpus == shapes.gpus_needed(shape.engines)
    for engine in shape.engines:
        model.check_parallel(model.tiny_shape(), engine.tensor_parallel_size, "tiny", engine.pipeline_parallel_size)
    preferred = [engine.port for engine in shape.engines] + [engine.side_channel_port for engine in shape.engines if engine.kv_connector]
    assert len(set(preferred)) == len(preferred)


def test_one_server_over_two_cards_in_ranks_and_in_stages() -> None:
    (ranks,), (stages,) = shapes.load("tp").engines, shapes.load("pp").engines
    assert (ranks.tensor_parallel_size, ranks.pipeline_parallel_size, ranks.gpus) == (2, 1, 2)
    assert (stages.tensor_parallel_size, stages.pipeline_parallel_size, stages.gpus) == (1, 2, 2)


@pytest.mark.parametrize(("name", "prefill_size"), [("pd", 1), ("hybrid", 2)])
def test_prefill_and_decode_lie_behind_a_router(name: str, prefill_size: int) -> None:
    shape = shapes.load(name)
    prefill, decode = shape.engines
    assert shape.router is not None
    assert (prefill.role, prefill.tensor_parallel_size, decode.role, decode.tensor_parallel_size) == ("prefill", prefill_size, "decode", 1)
    assert prefill.side_channel_port != decode.side_channel_port
    assert shape.gpus_of_smallest_engine == 1


def test_an_unknown_shape_names_those_that_are_there() -> None:
    with pytest.raises(TestbedError, match="there is no shape 'octopus': choose from hybrid, pair, pd, pp, single, tp, or give the path"):
        shapes.load("octopus")


def test_a_shape_of_ones_own_is_a_file_and_what_it_leaves_out_is_filled_in(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(OWN)
    shape = shapes.load(str(tmp_path / "mine.toml"))
    assert shape == Shape(
        "mine",
        "two servers on one card",
        3,
        (
            EngineShape("small", 8000, 1, "0", ("--max-num-seqs=2",)),
            EngineShape("large", 8042, 2, "0,2"),
        ),
    )
    least = shapes.parse("least", {"engine": [{"name": "a"}, {"name": "b"}]})
    assert (least.title, least.gpus, [engine.port for engine in least.engines]) == ("least", 2, [8000, 8001])


def test_a_word_is_a_path_where_it_could_be_no_name() -> None:
    assert [word for word in ("tp", "tp.toml", "./tp", "a/b") if shapes.is_path(word)] == ["tp.toml", "./tp", "a/b"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("title = ", r"mine.toml is not TOML: Invalid value"),
        ('title = "\xff"', r"mine.toml is not TOML: .*utf-8"),
        ("#" * 70000, "is larger than 65536 bytes"),
        ("x = " + "[" * 30000, "mine.toml is nested too deeply: it does not describe a shape"),
        ("gpus = 1000000000\n[[engine]]\nname = 'a'", "mine.toml: 1000000000 GPUs are asked for: a deployment has at most 64"),
        ("[[engine]]\nname = 'a'\ncuda_visible_devices = '63,64'", "mine.toml: 65 GPUs are asked for: a deployment has at most 64"),
        ("gpus = 2", r"mine.toml: at least one \[\[engine\]\] is needed"),
        ("[[engine]]\nname = 'a'\nport = '80'", r'mine.toml: engine a: port = "80" has to be a whole number from 1 to 65535'),
        ("[[engine]]\nname = 'a'\n[[engine]]", r"mine.toml: \[\[engine\]\] 2: name is missing: it has to be a name of letters"),
    ],
)
def test_a_file_that_is_wrong_is_named_with_key_and_value(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "mine.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(TestbedError, match=said):
        shapes.load(str(tmp_path / "mine.toml"))


def test_what_is_no_file_is_said_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path, tmp_path / "pipe.toml"):
        with pytest.raises(TestbedError, match="is no file: give the path of a TOML file"):
            shapes.load(f"{path}/" if path.is_dir() else str(path))
    with pytest.raises(TestbedError, match=r"gone.toml cannot be read \(No such file or directory\)"):
        shapes.load(str(tmp_path / "gone.toml"))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"title": "x", "gpus": 1, "engine": [ENGINE], "color": 1}, "unknown key 'color'"),
        ({"title": 5, "engine": [ENGINE]}, "title = 5 has to be a text"),
        ({"title": "x", "gpus": 0, "engine": [ENGINE]}, "gpus = 0 has to be a whole number of 1 or more"),
        ({"title": "x", "gpus": True, "engine": [ENGINE]}, "gpus = true has to be a whole number"),
        ({"title": "x", "gpus": 1, "engine": [ENGINE]}, "gpus = 1 but the engines need 2: raise it, or leave it out"),
        ({"title": "x", "gpus": 1, "engine": []}, "at least one"),
        ({"title": "x", "gpus": 1, "engine": ["server"]}, "has to be a table"),
        ({"engine": [{**ENGINE, "name": "a/b"}]}, 'name = "a/b" has to be a name of letters'),
        ({"engine": [{**ENGINE, "speed": 1}]}, "engine server: unknown key 'speed': known are arguments, cuda_visible_devices"),
        ({"engine": [{**ENGINE, "port": "80"}]}, 'engine server: port = "80" has to be a whole number from 1 to 65535'),
        ({"engine": [{**ENGINE, "port": 65536}]}, "port = 65536 has to be"),
        ({"engine": [{**ENGINE, "pipeline_parallel_size": 0}]}, "pipeline_parallel_size = 0 has to be a whole number from 1 to 64"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": 0}]}, "cuda_visible_devices = 0 has to be a text"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": "0,,1"}]}, "has to be different GPUs"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": "1,1"}]}, "has to be different GPUs"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": f"0,{'9' * 5000}"}]}, "has to be different GPUs"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": "0,\N{ARABIC-INDIC DIGIT ONE}"}]}, "has to be different GPUs"),
        ({"engine": [{"name": f"e{number}"} for number in range(65)]}, "65 GPUs are asked for"),
        ({"engine": [{**ENGINE, "cuda_visible_devices": "0"}]}, "names 1 GPUs and its ranks need 2"),
        ({"engine": [{**ENGINE, "arguments": "--x"}]}, "arguments has to be a list of texts"),
        ({"engine": [{**ENGINE, "arguments": ["--dtype", 5]}]}, "arguments has to be a list of texts"),
        ({"engine": [{**ENGINE, "arguments": ["--port=1"]}]}, "engine server: arguments: --port is decided by the plan"),
        ({"engine": [ENGINE, ENGINE]}, "two parts have the name 'server'"),
        ({"engine": [{**ENGINE, "role": "both"}]}, 'role = "both" has to be mixed or prefill or decode'),
        ({"engine": [{**ENGINE, "kv_connector": "NixlConnector"}]}, "kv_connector is for engines of role prefill or decode"),
        ({"engine": [{**ENGINE, "side_channel_port": 5600}]}, "side_channel_port is for engines of role prefill or decode"),
        (split(PREFILL), "come together or not at all"),
        (split(PREFILL, {**DECODE, "pipeline_parallel_size": 2}), "pipeline_parallel_size has to be 1 for an engine of role decode"),
        (split({**PREFILL, "pipeline_parallel_size": 2}, DECODE), "pipeline_parallel_size has to be 1 for an engine of role prefill"),
        (split({**PREFILL, "kv_connector": "LMCacheConnectorV1"}, DECODE), "has to be NixlConnector"),
        (split(PREFILL, DECODE, router={**ROUTER, "name": "p"}), "two parts have the name 'p'"),
        (split(PREFILL, DECODE, router={**ROUTER, "kind": "nginx"}), r'\[router\]: kind = "nginx" has to be vllm-router'),
        (split(PREFILL, DECODE, router={**ROUTER, "name": "a/b"}), "name of letters"),
        (split(PREFILL, DECODE, router={**ROUTER, "speed": 1}), "unknown key 'speed'"),
        (split(PREFILL, DECODE, router="yes"), 'router = "yes" has to be a table'),
        ({"title": "x", "gpus": 2, "engine": [PREFILL, DECODE]}, "come together or not at all"),
    ],
)
def test_a_wrong_shape_is_named_with_what_is_wrong(data: dict[str, object], said: str) -> None:
    with pytest.raises(TestbedError, match=f"shape odd: .*{said}"):
        shapes.parse("odd", data)


def test_a_secret_in_the_arguments_of_a_shape_is_refused_and_never_shown() -> None:
    for arguments in (["--api-key", "sk-planted"], ["--hf-token=sk-planted"], "--api-key sk-planted", [{"key": "sk-planted"}]):
        with pytest.raises(TestbedError) as caught:
            shapes.parse("odd", {"engine": [{**ENGINE, "arguments": arguments}]})
        assert "planted" not in str(caught.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(EngineShape)]), VALUES))
def test_no_value_of_an_engine_does_more_than_be_refused(table: dict[str, object]) -> None:
    with contextlib.suppress(TestbedError):
        shapes.parse("odd", {"engine": [{"name": "server", **table}]})


def test_every_key_of_a_shape_has_its_line_in_the_documentation() -> None:
    text = Path("docs/testbed.md").read_text(encoding="utf-8")
    for prefix, kind in (("", Shape), ("engine.", EngineShape), ("router.", RouterShape)):
        for field in fields(kind):
            if kind is not Shape or field.name in ("title", "gpus"):
                assert re.search(rf"^\| `{prefix}{field.name}` \|", text, re.MULTILINE), f"{prefix}{field.name}"


def test_the_shape_in_the_documentation_is_one() -> None:
    section = Path("docs/testbed.md").read_text(encoding="utf-8").split("## A shape of your own")[1].split("\n## ")[0]
    shape = shapes.parse("example", tomllib.loads("\n".join(line[4:] for line in section.splitlines() if line.startswith("    "))))
    assert [(engine.name, engine.gpus) for engine in shape.engines] == [("large", 4), ("small", 1)]
    assert shape.gpus == 5
