"""Which cards a process sees, by its container, CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER. Pure.

Rules (CUDA programming guide, "CUDA environment variables"): not set means all cards, an empty list none; a list of ordinals or UUIDs, UUIDs may be
cut as long as they stay unique; the list ends at the first entry that is no card. Ordinals count in CUDA_DEVICE_ORDER: PCI_BUS_ID is NVML's
order, the default FASTEST_FIRST equals it only when all cards are alike.

In a container of its own all of this counts the container's cards only. Which those are, its device nodes say, or where there are none
NVIDIA_VISIBLE_DEVICES (NVIDIA Container Toolkit, "Specialized Configurations"): all, numbers as nvidia-smi on the node counts, UUIDs; none, void
and the empty word are no cards.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from poise.exporter.snapshot import ContainerCards, EngineConfig, Gpu

_ORDINAL = re.compile(r"\+?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class VisibleCard:
    """A card and the number under which the process knows it; None where the order is unknown."""

    gpu: Gpu
    cuda_index: int | None


def visible_cards(gpus: Sequence[Gpu], config: EngineConfig) -> tuple[VisibleCard, ...] | None:
    """The cards that the process can see, in its own order; None when that is unknown.

    Unknown: the environment could not be read, ordinals on a node with unlike cards in CUDA's default order, parts of a card (MIG), and
    ordinals in a container whose cards are not all known here.
    """
    if not config.environment_read or not gpus:
        return None
    text = config.cuda_visible_devices
    cards = sorted(gpus, key=lambda gpu: gpu.index)
    if config.container is not None:
        given = container_cards(cards, config.container)
        if given is None and not _only_uuids(text):
            return None
        cards = cards if given is None else given
    ordered = config.cuda_device_order == "PCI_BUS_ID" or len({gpu.identity.name for gpu in cards}) <= 1
    if text is None:
        return tuple(VisibleCard(gpu, number if ordered else None) for number, gpu in enumerate(cards))
    by_number = {gpu.index: gpu for gpu in cards} if config.container is None else dict(enumerate(cards))
    found: list[Gpu] = []
    for entry in (item.strip() for item in text.split(",")):
        if entry.upper().startswith("MIG-"):
            return None
        if _ORDINAL.fullmatch(entry):
            if not ordered:
                return None
            gpu = by_number.get(int(entry))
        else:
            gpu = _by_uuid(cards, entry)
        if gpu is None:
            break
        if gpu in found:
            return ()  # CUDA finds no device at all when one is named twice
        found.append(gpu)
    return tuple(VisibleCard(gpu, number) for number, gpu in enumerate(found))


def container_cards(gpus: Sequence[Gpu], container: ContainerCards) -> list[Gpu] | None:
    """The cards of the node that a container has, in the order of `gpus`; None when that is unknown.

    A device node without a card here (lost, or hidden from Poise itself) makes it unknown: the others' ordinals would be counted wrongly.
    """
    if container.minors:
        found = [gpu for gpu in gpus if gpu.identity.minor in {str(minor) for minor in container.minors}]
        return found if len(found) == len(container.minors) else None
    asked = (container.asked or "").strip()
    if asked == "all":
        return list(gpus)
    if asked in ("", "none", "void"):
        return [] if container.minors is not None else None
    by_index = {str(gpu.index): gpu for gpu in gpus}
    named = [by_index.get(entry) or _by_uuid(gpus, entry) for entry in (item.strip() for item in asked.split(","))]
    return [gpu for gpu in gpus if gpu in named] if None not in named else None


def _only_uuids(text: str | None) -> bool:
    """Whether a list names cards in a way that means the same in every container."""
    return bool(text) and all(item.strip().upper().startswith("GPU-") for item in (text or "").split(","))


def _by_uuid(cards: Sequence[Gpu], entry: str) -> Gpu | None:
    """The card whose UUID begins with `entry`, if it is exactly one. "GPU-" must be part of it."""
    if len(entry) <= len("GPU-") or not entry.upper().startswith("GPU-"):
        return None
    matching = [gpu for gpu in cards if gpu.uuid.lower().startswith(entry.lower())]
    return matching[0] if len(matching) == 1 else None
