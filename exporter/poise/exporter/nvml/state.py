"""Modes of the card: persistence mode and MIG. That a card is divided is said; its instances are not measured."""

from __future__ import annotations

import ctypes
import logging

from poise.exporter.metrics import GPU_MIG_MODE, GPU_PERSISTENCE_MODE
from poise.exporter.nvml.card import Card, Collector, Read, Tick
from poise.exporter.nvml.fields import FieldBatch

logger = logging.getLogger(__name__)


def prepare(card: Card, fields: FieldBatch) -> Read:
    """0 or 1 each; the current MIG mode, not the pending one."""
    persistence = ctypes.c_int()
    current = ctypes.c_uint()
    pending = ctypes.c_uint()
    get_persistence = card.call("nvmlDeviceGetPersistenceMode", ctypes.byref(persistence))
    get_mig = card.call("nvmlDeviceGetMigMode", ctypes.byref(current), ctypes.byref(pending))
    told: dict[str, bool] = card.keep("divided by MIG", dict)

    def tell(divided: bool) -> None:
        if divided != told.get("divided", False):
            told["divided"] = divided
            if divided:
                logger.warning(
                    "card %d (%s) is divided by MIG: Poise shows what the driver tells of the whole card, and nothing of its instances; the "
                    "driver tells no utilization of it, so that imbalance cannot be judged",
                    card.index,
                    card.uuid,
                )
            else:
                logger.info("card %d (%s) is not divided by MIG any more", card.index, card.uuid)

    def read(tick: Tick) -> None:
        if tick.ask(get_persistence, GPU_PERSISTENCE_MODE):
            tick.set(GPU_PERSISTENCE_MODE, persistence.value)
        if tick.ask(get_mig, GPU_MIG_MODE):
            tick.set(GPU_MIG_MODE, current.value)
            tell(bool(current.value))

    return read


COLLECTOR = Collector(
    name="state",
    help="persistence and MIG mode of each card",
    metrics=(GPU_PERSISTENCE_MODE, GPU_MIG_MODE),
    prepare=prepare,
    interval=30.0,
)
