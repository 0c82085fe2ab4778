"""Registration of the card with the NVLink fabric, which the fabric manager does on machines with NVSwitches. Hopper and newer.

A card that is not `completed` cannot reach the others over the switches: jobs on several cards hang or fail at start.
"""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import pynvml
from poise.exporter.metrics import GPU_FABRIC_STATE
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.library import FUNCTION_NOT_FOUND, REFUSALS, SUCCESS, Call, words_of

logger = logging.getLogger(__name__)

#: NVML_GPU_FABRIC_STATE_* (nvml.h) → label. Completed with a status other than success is `failed`, a state of ours: nvml.h has the
#: status looked at once the state is complete.
STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
FAILED = "failed"
_COMPLETED = 3
_ALL = (*STATES.values(), FAILED)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """The newest version of the struct that the driver takes: 3, 2, else the call that came before versions."""
    # pynvml's name without a version stands for version 2 (nvml.h: for 3).
    versions: list[tuple[Call, Any]] = []
    for name, struct in (
        ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v3_t()),
        ("nvmlDeviceGetGpuFabricInfoV", pynvml.c_nvmlGpuFabricInfo_v2_t()),
        ("nvmlDeviceGetGpuFabricInfo", pynvml.c_nvmlGpuFabricInfo_t()),
    ):
        versions.append((card.call(name, ctypes.byref(struct)), struct))
    told: dict[str, int] = card.keep("fabric status", dict)

    def tell(status: int) -> None:
        if told.get("status", SUCCESS) != status:
            if status != SUCCESS:
                logger.warning(
                    "card %d (%s): registration with the NVLink fabric failed, %s; look at the fabric manager (`systemctl status "
                    "nvidia-fabricmanager`) and at `nvidia-smi -q -d FABRIC`",
                    card.index,
                    card.uuid,
                    words_of(status),
                )
            else:
                logger.info("card %d (%s): registration with the NVLink fabric is in order again", card.index, card.uuid)
            told["status"] = status

    def read(tick: Tick) -> None:
        code, name = FUNCTION_NOT_FOUND, versions[0][0].name
        for call, struct in versions:
            code, name = call.run(), call.name
            if code == SUCCESS:
                tick.answered = True
                state = STATES.get(struct.state, "")
                if struct.state == _COMPLETED:
                    tell(struct.status)
                    state = FAILED if struct.status != SUCCESS else state
                tick.put(GPU_FABRIC_STATE, {(label,): float(label == state) for label in _ALL})
                return
            if code not in (pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_INVALID_ARGUMENT, FUNCTION_NOT_FOUND):
                break
        tick.answered = tick.answered or code in REFUSALS
        tick.refuse(code, name, GPU_FABRIC_STATE)

    return read


COLLECTOR = Collector(
    name="fabric", help="registration of each card with the NVLink fabric", metrics=(GPU_FABRIC_STATE,), prepare=prepare, interval=10.0
)
