"""The tiny model: the same bytes everywhere, in the formats that vLLM reads."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from pathlib import Path

import pytest
from poise.testbed import model
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu, Hardware

# Of model.safetensors for seed 0. It changes only when the model is changed on purpose.
WEIGHTS_SHA256 = "97fdf53260c199cd121edcaff82278b4f1e894320450ca90383cfb390394f3a5"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make_tiny(tmp_path_factory.mktemp("models"))


def tensors(folder: Path) -> tuple[dict[str, dict[str, object]], bytes]:
    data = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    return header, data[8 + length :]


def test_the_weights_are_the_same_bytes_everywhere(folder: Path, tmp_path: Path) -> None:
    assert hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest() == WEIGHTS_SHA256
    again = model.make_tiny(tmp_path)
    assert again.name == folder.name
    for path in folder.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_another_seed_is_another_model_beside_it(folder: Path, tmp_path: Path) -> None:
    other = model.make_tiny(tmp_path, seed=1)
    assert other.name != folder.name
    assert (other / "model.safetensors").read_bytes() != (folder / "model.safetensors").read_bytes()


def test_a_model_that_is_there_is_not_written_again(folder: Path) -> None:
    before = (folder / "config.json").stat().st_mtime_ns
    assert model.make_tiny(folder.parent) == folder
    assert (folder / "config.json").stat().st_mtime_ns == before


def test_what_an_interrupted_making_left_is_replaced(folder: Path, tmp_path: Path) -> None:
    partial = tmp_path / f"{folder.name}.partial"
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(b"half")
    assert (model.make_tiny(tmp_path) / "model.safetensors").stat().st_size > 1_000_000
    assert not partial.exists()


def test_the_tensors_lie_one_behind_the_other_and_have_the_shapes_of_the_config(folder: Path) -> None:
    header, data = tensors(folder)
    shape = model.read_shape(folder)
    assert shape == model.tiny_shape()
    offset = 0
    for entry in header.values():
        size = entry["shape"]
        assert isinstance(size, list)
        assert entry["data_offsets"] == [offset, offset + 2 * math.prod(size)]
        offset += 2 * math.prod(size)
    assert offset == len(data)
    assert header["model.embed_tokens.weight"]["shape"] == [shape.vocab_size, shape.hidden_size]
    assert header["model.layers.3.self_attn.k_proj.weight"]["shape"] == [128, 256]


def test_the_weights_are_normal_with_qwens_spread(folder: Path) -> None:
    header, data = tensors(folder)
    begin, end = header["model.layers.0.mlp.up_proj.weight"]["data_offsets"]  # type: ignore[misc]  # two numbers
    halves = struct.unpack(f"<{(end - begin) // 2}H", data[begin:end])
    values = [struct.unpack("<f", struct.pack("<I", half << 16))[0] for half in halves]
    mean = sum(values) / len(values)
    spread = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    assert abs(mean) < 0.001
    assert spread == pytest.approx(0.02, rel=0.05)


def test_every_id_of_the_vocabulary_is_used_once_and_every_merge_makes_a_token(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(model.tiny_shape().vocab_size))
    assert all(left + right in vocabulary for left, right in tokenizer["model"]["merges"])
    assert len({token for token in vocabulary if len(token) == 1}) == 256, "each byte has a token"


@pytest.mark.parametrize(
    ("wanted", "memory", "gpus", "chosen"),
    [
        (None, (), 2, model.TINY),
        (None, (97_871, 97_871), 2, model.BIG_MODEL),
        (None, (24_576, 24_576), 2, model.SMALL_MODEL),
        (None, (81_559, 81_559), 1, model.BIG_MODEL),
        ("Qwen/Qwen2.5-7B-Instruct", (24_576,), 1, "Qwen/Qwen2.5-7B-Instruct"),
    ],
)
def test_the_model_fits_the_gpus(wanted: str | None, memory: tuple[int, ...], gpus: int, chosen: str) -> None:
    assert model.choose(wanted, Hardware(tuple(Gpu(mib) for mib in memory)), gpus) == chosen


def test_heads_that_do_not_divide_are_refused_before_anything_starts() -> None:
    with pytest.raises(TestbedError, match="tensor_parallel_size=3 does not divide the 4 attention heads of tiny"):
        model.check_parallel(model.tiny_shape(), 3, "tiny")
    model.check_parallel(None, 3, "unknown/model")


def test_layers_that_are_fewer_than_stages_are_refused_before_anything_starts() -> None:
    with pytest.raises(TestbedError, match="pipeline_parallel_size=5 is more than the 4 layers of tiny: choose 4 or less"):
        model.check_parallel(model.tiny_shape(), 2, "tiny", 5)
    model.check_parallel(model.tiny_shape(), 2, "tiny", 3)


def test_the_weights_of_a_folder_are_counted_and_those_of_a_name_are_not_known(folder: Path) -> None:
    assert model.weight_bytes(folder) == (folder / "model.safetensors").stat().st_size
    assert model.weight_bytes(Path("Qwen/Qwen2.5-0.5B-Instruct")) == 0


@pytest.mark.parametrize("text", ["", "[]", '{"hidden_size": 5}'])
def test_a_folder_without_a_usable_config_has_no_shape(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    assert model.read_shape(tmp_path) is None
