"""The tiny model that the testbed serves without GPUs, and which model it serves on GPUs.

Owns shape and files of the tiny model: a Qwen2 with random weights, the same bytes everywhere, written with the standard
library alone in a second. Knows nothing of vLLM's start.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import random
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

from poise.testbed.errors import TestbedError
from poise.testbed.files import read_json_object
from poise.testbed.hardware import Hardware

TINY = "tiny"
SERVED_TINY = "tiny-qwen2"
BIG_MODEL = "Qwen/Qwen2.5-32B-Instruct"
SMALL_MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
# 32.8 billion parameters in bfloat16 are 66 GB; a fifth on top for KV cache and activations.
BIG_MODEL_MIB = 80_000

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Words that get tokens of their own, so that prompts made of them have about one token a word.
WORDS = tuple((importlib.resources.files("poise.testbed") / "words.txt").read_text(encoding="utf-8").split())


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What decides sizes and the volume of tensor-parallel traffic. Field names as in a Hugging Face config.json."""

    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    element_bytes: int  # of an activation; bfloat16 is 2


def tiny_shape() -> ModelShape:
    """4 heads and 2 KV heads divide by the tensor-parallel sizes 1 and 2."""
    return ModelShape(256, 4, 4, 2, 768, len(_vocabulary()[0]), 8192, 2)


def read_shape(folder: Path) -> ModelShape | None:
    """The shape from config.json of a local model; None when there is none or a field is missing."""
    config = read_json_object(folder / "config.json")
    if config is None:
        return None
    names = (
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "vocab_size",
        "max_position_embeddings",
    )
    values = [config.get(name) for name in names]
    numbers = [value for value in values if isinstance(value, int)]
    if len(numbers) != len(names):
        return None
    kind = config.get("dtype", config.get("torch_dtype"))
    return ModelShape(**dict(zip(names, numbers, strict=True)), element_bytes=4 if kind == "float32" else 2)


def weight_bytes(folder: Path) -> int:
    """Bytes of the weights of a local model; 0 when none lie there."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def choose(wanted: str | None, hardware: Hardware, gpus: int) -> str:
    """The model to serve: as asked for, else tiny without GPUs, else the largest default that fits on `gpus` GPUs."""
    if wanted:
        return wanted
    if not hardware.has_gpus:
        return TINY
    return BIG_MODEL if sum(sorted(hardware.gpu_memory_mib)[:gpus]) >= BIG_MODEL_MIB else SMALL_MODEL


def check_parallel(shape: ModelShape | None, tensor_parallel_size: int, name: str, pipeline_parallel_size: int = 1) -> None:
    """Raises TestbedError when heads or layers cannot be shared out (vLLM refuses it only after half a minute, or fails at the first request)."""
    if shape is not None and shape.num_attention_heads % tensor_parallel_size:
        raise TestbedError(
            f"tensor_parallel_size={tensor_parallel_size} does not divide the {shape.num_attention_heads} attention heads "
            f"of {name}: choose a divisor of {shape.num_attention_heads}"
        )
    if shape is not None and pipeline_parallel_size > shape.num_hidden_layers:
        raise TestbedError(
            f"pipeline_parallel_size={pipeline_parallel_size} is more than the {shape.num_hidden_layers} layers of {name}: "
            f"choose {shape.num_hidden_layers} or less"
        )


def make_tiny(cache: Path, seed: int = 0) -> Path:
    """The folder of the tiny model under `cache`; written when it is missing, always with the same bytes for one seed."""
    shape = tiny_shape()
    text = json.dumps(_config(shape), sort_keys=True)
    key = hashlib.sha256(f"{seed}\n{text}\n{_tokenizer()}".encode()).hexdigest()[:12]
    folder = cache / f"tiny-qwen2-{key}"
    if (folder / "config.json").exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    partial = cache / f"{folder.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    (partial / "model.safetensors").write_bytes(_safetensors(shape, seed))
    tokens = {"bos_token_id": 0, "eos_token_id": 2}
    files = {
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": shape.max_position_embeddings,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "generation_config.json": {**tokens, "do_sample": True, "temperature": 0.8},
        "config.json": _config(shape),
    }
    for name, value in files.items():
        (partial / name).write_text(json.dumps(value, ensure_ascii=False, indent=1), encoding="utf-8")
    try:
        partial.rename(folder)
    except OSError:  # somebody else made it meanwhile
        shutil.rmtree(partial, ignore_errors=True)
        if not (folder / "config.json").exists():
            raise
    return folder


def _config(shape: ModelShape) -> dict[str, object]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.num_hidden_layers,
        "num_attention_heads": shape.num_attention_heads,
        "num_key_value_heads": shape.num_key_value_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-06,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "dtype": "bfloat16",
        "use_cache": True,
    }


def _alphabet() -> list[str]:
    """The printable stand-ins of the 256 bytes in byte-level BPE (GPT-2's bytes_to_unicode), in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + place) for place, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def _vocabulary() -> tuple[dict[str, int], list[list[str]]]:
    """Token → id, and the BPE merges: each word of WORDS is put together letter by letter behind its space."""
    space = _alphabet()[ord(" ")]
    vocabulary = {token: number for number, token in enumerate((*SPECIAL_TOKENS, *_alphabet()))}
    merges: list[list[str]] = []
    for word in WORDS:
        left = space
        for letter in word:
            if left + letter not in vocabulary:
                vocabulary[left + letter] = len(vocabulary)
                merges.append([left, letter])
            left += letter
    return vocabulary, merges


def _tokenizer() -> dict[str, object]:
    """tokenizer.json in the format of Hugging Face tokenizers."""
    vocabulary, merges = _vocabulary()
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": token, **flags} for number, token in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": vocabulary,
            "merges": merges,
        },
    }


def _tensors(shape: ModelShape) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes as Qwen2ForCausalLM saves them (transformers), rows before columns."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    key_value = hidden // shape.num_attention_heads * shape.num_key_value_heads
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (shape.vocab_size, hidden))]
    for layer in range(shape.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        found += [(f"{prefix}.input_layernorm.weight", (hidden,)), (f"{prefix}.post_attention_layernorm.weight", (hidden,))]
        for name, rows in (("q", hidden), ("k", key_value), ("v", key_value)):
            found += [
                (f"{prefix}.self_attn.{name}_proj.weight", (rows, hidden)),
                (f"{prefix}.self_attn.{name}_proj.bias", (rows,)),
            ]
        found += [
            (f"{prefix}.self_attn.o_proj.weight", (hidden, hidden)),
            (f"{prefix}.mlp.gate_proj.weight", (inner, hidden)),
            (f"{prefix}.mlp.up_proj.weight", (inner, hidden)),
            (f"{prefix}.mlp.down_proj.weight", (hidden, inner)),
        ]
    return [*found, ("model.norm.weight", (hidden,))]


def _safetensors(shape: ModelShape, seed: int) -> bytes:
    """The file model.safetensors: length of the header (8 bytes, little endian), header in JSON, tensors one after another."""
    source = random.Random(seed)
    low, high = _normal_tables()
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    parts: list[bytes] = []
    offset = 0
    for name, size in _tensors(shape):
        count = size[0] * (size[1] if len(size) == 2 else 1)
        data = _bfloat16(1.0) * count if len(size) == 1 and "norm" in name else b"\0\0" * count
        if len(size) == 2:
            noise = source.randbytes(count)
            weights = bytearray(2 * count)
            weights[0::2], weights[1::2] = noise.translate(low), noise.translate(high)
            data = bytes(weights)
        header[name] = {"dtype": "BF16", "shape": list(size), "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + b"".join(parts)


def _normal_tables() -> tuple[bytes, bytes]:
    """For each of 256 random byte values the low and the high byte of a bfloat16 from a normal distribution with standard
    deviation 0.02 (Qwen2's initializer_range)."""
    normal = NormalDist(0.0, 0.02)
    values = [_bfloat16(normal.inv_cdf((number + 0.5) / 256)) for number in range(256)]
    return bytes(value[0] for value in values), bytes(value[1] for value in values)


def _bfloat16(value: float) -> bytes:
    """The upper half of the float32, little endian."""
    return struct.pack("<f", value)[2:]
