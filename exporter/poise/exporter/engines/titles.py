"""Reads the titles that vLLM gives its processes (`VLLM::Worker_DP0_PP1_TP3_EP1`) as kind and rank numbers.

vLLM since 0.10.2 retitles its children with setproctitle as ``{VLLM_PROCESS_NAME_PREFIX or "VLLM"}::{name}``; each `_XXn` stands there only
when that world size is above 1 (vllm/utils/system_utils.py, v1/executor/multiproc_executor.py). The kernel's own name of a process
(`comm`) is the title cut to 15 bytes. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

#: TASK_COMM_LEN - 1 (include/linux/sched.h): what `comm` holds of a title.
COMM_BYTES = 15
#: Longest title that any series carries (metric contract).
TITLE_LIMIT = 64


class Kind(StrEnum):
    """What a process of an engine does."""

    WORKER = "worker"
    ENGINE_CORE = "engine_core"
    API_SERVER = "api_server"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Title:
    """A title and what it says. A rank is None where the title does not name it."""

    text: str
    kind: Kind
    tp_rank: int | None = None
    pp_rank: int | None = None
    dp_rank: int | None = None


# Up to 0.10 the core was `EngineCore_0` or `DPEngineCore_0`, and a worker `Worker_TP0_DP0` in that order.
_NAME = re.compile(
    r"(?P<worker>Worker(?:Proc)?)(?P<ranks>(?:_[A-Z]{2,4}\d{1,6})*)"
    r"|(?P<core>(?:DP)?EngineCore(?:Proc)?)(?:_(?:DP)?(?P<core_dp>\d{1,6}))?"
    r"|(?P<api>APIServer|ApiServer)(?:_\d{1,6})?"
    r"|(?P<coordinator>DPCoordinator|DP_?Coordinator)"
)
_RANK = re.compile(r"_([A-Z]+)(\d+)")
_PREFIX = re.compile(r"[^:\s/\\]{1,63}")
#: Names that a cut title may be the beginning of, or may itself begin with.
_CUT = (
    ("Worker", Kind.WORKER),
    ("EngineCore", Kind.ENGINE_CORE),
    ("APIServer", Kind.API_SERVER),
    ("DPCoordinator", Kind.COORDINATOR),
)


def parse_title(text: str) -> Title | None:
    """What a whole title says, or None when it is not one of vLLM's."""
    prefix, separator, name = text.strip().partition("::")
    match = _NAME.fullmatch(name)
    if not separator or not _PREFIX.fullmatch(prefix) or match is None:
        return None
    shown = text.strip()[:TITLE_LIMIT]
    if match["worker"]:
        ranks = {dimension: int(number) for dimension, number in _RANK.findall(match["ranks"])}
        return Title(shown, Kind.WORKER, ranks.get("TP"), ranks.get("PP"), ranks.get("DP"))
    if match["core"]:
        return Title(shown, Kind.ENGINE_CORE, dp_rank=int(match["core_dp"]) if match["core_dp"] else None)
    return Title(shown, Kind.API_SERVER if match["api"] else Kind.COORDINATOR)


def parse_comm(comm: str) -> Title | None:
    """What a title cut to `COMM_BYTES` still says: the kind, and ranks only if nothing was cut."""
    if len(comm.encode()) < COMM_BYTES:
        return parse_title(comm)
    prefix, separator, name = comm.partition("::")
    if not separator or len(name) < 3 or not _PREFIX.fullmatch(prefix):
        return None
    for whole, kind in _CUT:
        if whole.startswith(name) or re.fullmatch(whole + r"(_[A-Z0-9]*)*", name):
            return Title(comm, kind)
    return None
