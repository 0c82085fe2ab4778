"""Durations in rule files and in Alertmanager's configuration are Prometheus' own; this names where they are read and written."""

from __future__ import annotations

from poise.history.durations import format_duration, parse_duration

__all__ = ["format_duration", "parse_duration"]
