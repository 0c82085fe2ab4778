"""Errors of each NVLink, as the driver has counted them since it was loaded or the card was reset.

To Hopper three of five counters are field values with the link as scope and all five are calls of their own; from Blackwell on there are other
counters, field values all (nvml.h: fields 161 to 163 are not supported there). A link that is down tells no errors.
"""

from __future__ import annotations

import ctypes

import pynvml
from poise.exporter.metrics import GPU_NVLINK_ERRORS
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch
from poise.exporter.nvml.identity import architecture_of
from poise.exporter.nvml.library import REFUSALS, SUCCESS
from poise.exporter.nvml.nvlink import BLACKWELL, Links

#: Type → (field, nvmlNvLinkErrorCounter_t) to Hopper; None: no field tells it.
TO_HOPPER: dict[str, tuple[int | None, int]] = {
    "replay": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, pynvml.NVML_NVLINK_ERROR_DL_REPLAY),
    "recovery": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, pynvml.NVML_NVLINK_ERROR_DL_RECOVERY),
    "crc_flit": (pynvml.NVML_FI_DEV_NVLINK_ERROR_DL_CRC, pynvml.NVML_NVLINK_ERROR_DL_CRC_FLIT),
    "crc_data": (None, pynvml.NVML_NVLINK_ERROR_DL_CRC_DATA),
    "ecc": (None, pynvml.NVML_NVLINK_ERROR_DL_ECC_DATA),
}
#: Type → field from Blackwell on. Field 215 is the sum of 213 and 214; 205 and 216 to 218 are not to be used (nvml.h).
FROM_BLACKWELL: dict[str, int] = {
    "malformed": pynvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    "buffer_overrun": pynvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    "receive": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    "receive_remote": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
    "receive_general": pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS,
    "local_link_integrity": pynvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    "transmit_discard": pynvml.NVML_FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
    "link_recovery_successful": pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS,
    "link_recovery_failed": pynvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    "effective": pynvml.NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS,
    "symbol": pynvml.NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS,
}

_CALL = "nvmlDeviceGetNvLinkErrorCounter"


def prepare(card: Card, fields: FieldBatch) -> Read:
    """One figure for each link and type."""
    links = Links(card)
    blackwell = architecture_of(card) >= BLACKWELL
    wanted = FROM_BLACKWELL if blackwell else {kind: field for kind, (field, _) in TO_HOPPER.items() if field is not None}
    get_counter = card.library.function(_CALL)
    number = ctypes.c_ulonglong()
    keys: list[Labels] = []
    #: Places of the fields: one type after the other, each with all links.
    places: list[int] = []
    called = () if blackwell else tuple((kind, counter) for kind, (_, counter) in TO_HOPPER.items())

    def find() -> bool:
        if not links.find():
            return False
        if not places:
            for kind, field in wanted.items():
                for link in range(links.count):
                    keys.append((str(link), kind))
                    places.append(fields.add(field, link))
        return True

    def ask(kind: str, counter: int, found: dict[Labels, float]) -> int:
        """Adds what the call tells of one type; the nvmlReturn_t of the last link that gave none, SUCCESS when each did."""
        refusal = SUCCESS
        for link in range(links.count):
            code = get_counter(card.handle, ctypes.c_uint(link), ctypes.c_int(counter), ctypes.byref(number))
            if code == SUCCESS:
                found[str(link), kind] = number.value
            else:
                refusal = code
        return refusal

    def read(tick: Tick) -> None:
        if not find():
            tick.refuse(links.code, "NVML_FI_DEV_NVLINK_LINK_COUNT", GPU_NVLINK_ERRORS)
            return
        found, refusal = fields.gather(keys, places[0], 1)
        by_field = {kind for _, kind in found}
        for kind, counter in called:
            if kind not in by_field:
                refusal = ask(kind, counter, found) or refusal
        if found:
            tick.answered = True
            tick.put(GPU_NVLINK_ERRORS, found)
        if refusal and (not found or refusal not in REFUSALS):
            tick.refuse(refusal, _CALL, *(() if found else (GPU_NVLINK_ERRORS,)))

    find()
    return read


COLLECTOR = Collector(
    name="nvlink_errors",
    help="errors of each NVLink",
    metrics=(GPU_NVLINK_ERRORS,),
    prepare=prepare,
    interval=10.0,
)
