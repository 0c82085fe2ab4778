"""The service level objectives: what a deployment should hold, once for the rules and for whatever draws their bands.

They are thresholds (`SLO.…`, thresholds/recording_slo.toml), so a person changes both with one file or flag. This file knows no rule and no page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from poise.alerts.thresholds import shipped_thresholds


@dataclass(frozen=True, slots=True)
class Objectives:
    """Times in seconds; a budget is the share that may miss its objective (0.01 is a target of 99 %)."""

    ttft_seconds: float
    ttft_budget: float
    itl_seconds: float
    itl_budget: float
    error_budget: float


def objectives(settings: Mapping[str, str] | None = None) -> Objectives:
    """The objectives, as shipped or as a person's settings (`thresholds.read_settings`, name → text) have them.

    Raises ValueError when a setting is no number.
    """
    declared, own = shipped_thresholds(), settings or {}

    def value(key: str) -> float:
        name = f"SLO.{key}"
        return float(own[name]) if name in own else declared[name].value

    return Objectives(*(value(key) for key in Objectives.__dataclass_fields__))
