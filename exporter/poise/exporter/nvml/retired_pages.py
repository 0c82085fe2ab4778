"""Pages of device memory that were taken out of use after errors, as cards before Ampere do it."""

from __future__ import annotations

import pynvml
from poise.exporter.metrics import GPU_RETIRED_PAGES
from poise.exporter.nvml.card import Card, Collector, Labels, Read, Tick
from poise.exporter.nvml.fields import FieldBatch


def prepare(card: Card, fields: FieldBatch) -> Read:
    """Counts in the card's life, by cause (nvml.h, NVML_FI_DEV_RETIRED_SBE and _DBE)."""
    keys: list[Labels] = [("single_bit",), ("double_bit",)]
    first = min([fields.add(field_id) for field_id in (pynvml.NVML_FI_DEV_RETIRED_SBE, pynvml.NVML_FI_DEV_RETIRED_DBE)])

    def read(tick: Tick) -> None:
        tick.put_fields(fields, GPU_RETIRED_PAGES, keys, first)

    return read


COLLECTOR = Collector(
    name="retired_pages",
    help="retired pages of device memory (before Ampere)",
    metrics=(GPU_RETIRED_PAGES,),
    prepare=prepare,
    interval=10.0,
)
