"""Where the rule files, their thresholds and promtool tests, the runbooks and the Alertmanager configuration lie that come with Poise.

They are package data: a wheel has them beside this file. This file opens none of them.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent
RUNBOOKS = FOLDER / "runbooks"
ALERTMANAGER = FOLDER / "alertmanager" / "alertmanager.yml"


def receiver_examples() -> tuple[Path, ...]:
    """Receivers to copy into the Alertmanager configuration, one file per way of being told, in order of their names."""
    return tuple(sorted((ALERTMANAGER.parent / "receivers").glob("*.yml")))


def rule_files() -> tuple[Path, ...]:
    """The rule files, in order of their names."""
    return tuple(sorted((FOLDER / "rules").glob("*.yml")))


def rule_test_files() -> tuple[Path, ...]:
    """The promtool tests, in order of their names."""
    return tuple(sorted((FOLDER / "rule_tests").glob("*.yml")))


def threshold_files() -> tuple[Path, ...]:
    """The declarations of the numbers in the rules, one file for each file of rules that has any, in order of their names."""
    return tuple(sorted((FOLDER / "thresholds").glob("*.toml")))
