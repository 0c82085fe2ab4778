"""What a model's config.json says that serving depends on: heads and dtype. From the model's folder, or the Hugging Face cache of the process.

Files are looked at below the process's own root, so a container's model is found too; four values are kept, nothing else of the file. Layout of
the cache: huggingface_hub, file_download.py (models--ORG--NAME/refs, snapshots).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from poise.exporter.inroot import read_inside
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import EngineConfig, ModelShape

#: Longest config.json that is read; one of a large multimodal model has 20 KB, or 500 KB where it lists each layer's quantization.
CONFIG_LIMIT = 1024 * 1024
#: More heads than any model has: a larger number is an error, not a head count.
HEADS_LIMIT = 65_536

#: Where multimodal models keep the language model's part.
_NESTED = ("text_config", "llm_config", "language_config")
_HUB_NAME = re.compile(r"[\w.-]{1,96}(?:/[\w.-]{1,96})?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_DTYPE = re.compile(r"(?:torch\.)?([a-z][a-z0-9_]{1,31})")

Read = Callable[[str, int], bytes | None]


def read_model_shape(proc: ProcFs, pid: int, config: EngineConfig) -> ModelShape | None:
    """The shape of the model that a server process serves, or None when its config.json cannot be found or read."""
    if not config.model_path or "://" in config.model_path:
        return None
    root = proc.root_of(pid)
    for path in paths(config.model_path, config.revision, proc.link(pid, "cwd"), proc.environment(pid) or {}, read := _reader(root)):
        data = read(path, CONFIG_LIMIT + 1)
        if data is not None:
            return shape_of(data)
    return None


def _reader(root: str) -> Read:
    return lambda path, limit: read_inside(root, path, limit)


def paths(model: str, revision: str | None, folder: str | None, environment: Mapping[str, str], read: Read) -> Iterator[str]:
    """Where the config.json of `model` may be, likeliest first: vLLM takes what exists as a path for one, else asks the cache.

    `folder` is the process's working directory; `read(path, limit)` gives a file's bytes or None.
    """
    if model.startswith("/"):
        yield f"{model}/config.json"
        return
    if folder is not None and folder.startswith("/"):
        yield f"{folder}/{model}/config.json"
    if _HUB_NAME.fullmatch(model) is None:
        return
    cache = hub_cache(environment)
    if cache is None:
        return
    place = f"{cache}/models--{model.replace('/', '--')}"
    wanted = revision or "main"
    named = (read(f"{place}/refs/{wanted}", 128) or b"").decode(errors="replace").strip() if _plain(wanted) else ""
    for commit in (named, wanted):
        if _COMMIT.fullmatch(commit):
            yield f"{place}/snapshots/{commit}/config.json"


def hub_cache(environment: Mapping[str, str]) -> str | None:
    """The folder of the Hugging Face cache by a process's environment (huggingface_hub, constants.py); None when that names none."""
    home = environment.get("HOME", "")
    for name, below in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "/hub"),
        ("XDG_CACHE_HOME", "/huggingface/hub"),
        ("HOME", "/.cache/huggingface/hub"),
    ):
        value = environment.get(name, "")
        if value == "~" or value.startswith("~/"):
            value = home + value[1:]
        if value.startswith("/"):
            return value.rstrip("/") + below
    return None


def shape_of(data: bytes) -> ModelShape | None:
    """The shape that a config.json tells; None when it is none, or too long."""
    if len(data) > CONFIG_LIMIT:
        return None
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    inner: dict[str, object] = next((document[key] for key in _NESTED if isinstance(document.get(key), dict)), {})
    parts = (inner, document)
    return ModelShape(_heads(parts, "num_attention_heads"), _heads(parts, "num_key_value_heads"), _dtype(parts))


def _heads(parts: tuple[Mapping[str, object], ...], key: str) -> int | None:
    for part in parts:
        value = part.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= HEADS_LIMIT:
            return value
    return None


def _dtype(parts: tuple[Mapping[str, object], ...]) -> str | None:
    for part in parts:
        for key in ("dtype", "torch_dtype"):
            value = part.get(key)
            match = _DTYPE.fullmatch(value) if isinstance(value, str) else None
            if match is not None:
                return match[1]
    return None


def _plain(revision: str) -> bool:
    """Whether a revision is a name of a file in refs: a branch may hold slashes, a step upwards is none."""
    return re.fullmatch(r"[\w.-]+(?:/[\w.-]+)*", revision, re.ASCII) is not None and ".." not in revision.split("/")
