"""The rules in force: those that come with Poise and the user's own, with thresholds, time scale and links as they are set.

Reads files each time it is asked, so that a reload sees what was changed. Evaluates nothing.
"""

from __future__ import annotations

from pathlib import Path

from poise.alerts import shipped, thresholds
from poise.alerts.rules import RuleFile, load
from poise.alerts.scale import rebase, scale_file, without
from poise.alerts.settings import AlertSettings


def rule_files(settings: AlertSettings, page: str) -> tuple[RuleFile, ...]:
    """The files; `page` is the dashboard's address for links.

    Raises:
        RuleError: a file that Prometheus would refuse.
        ThresholdError: a threshold that is not there or cannot have its value.
        OSError: a file that cannot be read.
    """
    ours = [rebase(without(load(path), settings.without), runbooks=f"{page}/runbooks", dashboard=page) for path in shipped.rule_files()]
    files = thresholds.change([*ours, *(load(Path(path)) for path in settings.rules)], settings.thresholds)
    return files if settings.time_scale == 1.0 else tuple(scale_file(file, settings.time_scale) for file in files)
