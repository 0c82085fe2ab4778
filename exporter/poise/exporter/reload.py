"""What a SIGHUP changes: which settings take effect while the exporter runs, and which need a restart. Pure."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import NamedTuple

from poise.exporter.settings import ExporterSettings

#: What can change without losing a counter or an identity. The rest decides what threads and listeners there are.
WHILE_RUNNING = ("engines", "routers", "expected_gpus", "log_level", "log_format")


class Change(NamedTuple):
    """`settings`: those in force from now on. `taken` and `left`: the keys that changed and take effect, and those that need a restart."""

    settings: ExporterSettings
    taken: tuple[str, ...]
    left: tuple[str, ...]


def change(before: ExporterSettings, wanted: ExporterSettings) -> Change:
    """What becomes of `before` when `wanted` is what the file says now."""
    differing = [item.name for item in fields(ExporterSettings) if getattr(before, item.name) != getattr(wanted, item.name)]
    taken = tuple(key for key in differing if key in WHILE_RUNNING)
    left = tuple(key for key in differing if key not in WHILE_RUNNING)
    return Change(replace(before, **{key: getattr(wanted, key) for key in taken}), taken, left)
