"""The model's config.json: where it is looked for, what is kept of it, and that nothing in it breaks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.model_config import CONFIG_LIMIT, hub_cache, paths, read_model_shape, shape_of
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import EngineConfig, ModelShape

from tests.fake_proc import FakeProc

QWEN = {"num_attention_heads": 40, "num_key_value_heads": 8, "torch_dtype": "bfloat16", "architectures": ["Qwen2ForCausalLM"]}
COMMIT = "5ede1c97bbab6ce5cda5812749b4c0bdf79b18dd"


def found(
    model: str, environment: dict[str, str], tree: dict[str, str], revision: str | None = None, folder: str | None = "/srv"
) -> list[str]:
    return list(paths(model, revision, folder, environment, lambda path, limit: tree[path].encode()[:limit] if path in tree else None))


def test_local_folder_is_taken_as_it_stands_and_a_name_is_looked_up_in_the_cache() -> None:
    assert found("/models/qwen", {}, {}) == ["/models/qwen/config.json"]
    place = "/hub/models--Qwen--Qwen2.5-32B-Instruct"
    assert found("Qwen/Qwen2.5-32B-Instruct", {"HF_HUB_CACHE": "/hub"}, {f"{place}/refs/main": COMMIT}) == [
        "/srv/Qwen/Qwen2.5-32B-Instruct/config.json",
        f"{place}/snapshots/{COMMIT}/config.json",
    ]
    assert found("gpt2", {"HF_HUB_CACHE": "/hub"}, {}, revision=COMMIT, folder=None) == [
        f"/hub/models--gpt2/snapshots/{COMMIT}/config.json"
    ]


@pytest.mark.parametrize("hostile", ["../../etc", "..", "a/../../b", "/abs", "x" * 200])
def test_hostile_names_lead_to_no_other_place(hostile: str) -> None:
    tree = {f"/hub/models--m/refs/{hostile}": COMMIT}
    assert found("m", {"HF_HUB_CACHE": "/hub"}, {**tree, "/hub/models--m/refs/main": hostile}, folder=None) == []
    assert all(".." not in path for path in found("m", {"HF_HUB_CACHE": "/hub"}, tree, revision=hostile, folder=None))


@pytest.mark.parametrize(
    ("environment", "cache"),
    [
        ({}, None),
        ({"HOME": "/root"}, "/root/.cache/huggingface/hub"),
        ({"HOME": "/root", "XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/hub"),
        ({"HOME": "/root", "HF_HOME": "~/hf"}, "/root/hf/hub"),
        ({"HOME": "/root", "HF_HOME": "/hf", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old"),
        ({"HF_HUB_CACHE": "/new/", "HUGGINGFACE_HUB_CACHE": "/old"}, "/new"),
        ({"HF_HUB_CACHE": "relative"}, None),
    ],
)
def test_cache_is_where_hugging_face_looks(environment: dict[str, str], cache: str | None) -> None:
    assert hub_cache(environment) == cache


@pytest.mark.parametrize(
    ("document", "shape"),
    [
        (QWEN, ModelShape(40, 8, "bfloat16")),
        ({"text_config": QWEN, "torch_dtype": "float32", "vision_config": {"num_attention_heads": 16}}, ModelShape(40, 8, "bfloat16")),
        ({"text_config": {"num_attention_heads": 8}, "dtype": "torch.float16"}, ModelShape(8, None, "float16")),
        ({"num_attention_heads": True, "num_key_value_heads": -1, "dtype": 5}, ModelShape()),
        ({"num_attention_heads": 10**9, "dtype": "a b\n"}, ModelShape()),
        ({"text_config": []}, ModelShape()),
    ],
)
def test_only_heads_and_dtype_are_kept(document: dict[str, object], shape: ModelShape) -> None:
    assert shape_of(json.dumps(document).encode()) == shape


@pytest.mark.parametrize("data", [b"", b"[]", b"5", b"{", b"[" * 100_000, b"\xff", b" " * (CONFIG_LIMIT + 1)])
def test_what_is_no_configuration_has_no_shape(data: bytes) -> None:
    assert shape_of(data) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["text_config", "num_attention_heads", "num_key_value_heads", "dtype", "torch_dtype", "x"]), inner
            )
        ),
        max_leaves=12,
    )
)
def test_no_document_breaks_the_reader(document: object) -> None:
    shape = shape_of(json.dumps(document).encode())
    assert (shape is not None) == isinstance(document, dict)


def server(tmp_path: Path, environment: dict[str, str]) -> tuple[ProcFs, Path]:
    """A server process with pid 10 in a container, its root directory and its working directory /srv."""
    proc, root = FakeProc(tmp_path / "proc"), tmp_path / "container"
    proc.add(10, ["vllm", "serve"], environment=environment)
    (tmp_path / "proc" / "10" / "root").symlink_to(root)
    (tmp_path / "proc" / "10" / "cwd").symlink_to("/srv")
    root.mkdir()
    return ProcFs(tmp_path / "proc"), root


def test_model_of_a_container_is_read_below_its_root_through_the_cache_s_links(tmp_path: Path) -> None:
    proc, root = server(tmp_path, {"HF_HOME": "/data", "HF_TOKEN": "secret"})
    place = root / "data" / "hub" / "models--Qwen--Qwen2.5"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text(COMMIT)
    (place / "blobs").mkdir()
    (place / "blobs" / "abc").write_text(json.dumps(QWEN))
    (place / "snapshots" / COMMIT).mkdir(parents=True)
    (place / "snapshots" / COMMIT / "config.json").symlink_to("../../blobs/abc")
    assert read_model_shape(proc, 10, EngineConfig(model_path="Qwen/Qwen2.5")) == ModelShape(40, 8, "bfloat16")
    assert read_model_shape(proc, 10, EngineConfig(model_path="Qwen/Other")) is None
    assert read_model_shape(proc, 10, EngineConfig(model_path="s3://bucket/model")) is None
    assert read_model_shape(proc, 10, EngineConfig()) is None


def test_absolute_link_of_a_container_stays_inside_it(tmp_path: Path) -> None:
    proc, root = server(tmp_path, {})
    outside = tmp_path / "secret.json"
    outside.write_text(json.dumps(QWEN))
    (root / "model").mkdir()
    (root / "model" / "config.json").symlink_to(outside)
    assert read_model_shape(proc, 10, EngineConfig(model_path="/model")) is None
    (root / "srv" / "local").mkdir(parents=True)
    (root / "srv" / "local" / "config.json").write_text(json.dumps({"num_attention_heads": 4}))
    assert read_model_shape(proc, 10, EngineConfig(model_path="local")) == ModelShape(4)
