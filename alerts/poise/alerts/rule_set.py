"""The rules in force: those that come with Poise and the user's own, with thresholds, time scale and links as they are set.

Reads files each time it is asked, so that a reload sees what was changed. Evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from poise.alerts import shipped, thresholds
from poise.alerts.rules import RuleError, RuleFile, load
from poise.alerts.scale import rebase, scale_file, without
from poise.alerts.settings import AlertSettings
from poise.exporter.settings import nearest

#: So many names of alerts are listed where none is near; more are a flood.
_MOST_LISTED = 12


def rule_files(settings: AlertSettings, page: str) -> tuple[RuleFile, ...]:
    """The files; `page` is the dashboard's address for links.

    Raises:
        RuleError: a file that cannot be read or that Prometheus would refuse, or `without` names an alert that is not there.
        ThresholdError: a threshold that is not there or cannot have its value.
    """
    shipped_files = [load(path) for path in shipped.rule_files()]
    if problem := unknown_alert(settings.without, alert_names(shipped_files)):
        raise RuleError("without", problem)
    ours = [rebase(without(file, settings.without), runbooks=f"{page}/runbooks", dashboard=page) for file in shipped_files]
    files = thresholds.change([*ours, *(_own(path) for path in settings.rules)], settings.thresholds)
    return files if settings.time_scale == 1.0 else tuple(scale_file(file, settings.time_scale) for file in files)


def alert_names(files: Iterable[RuleFile]) -> tuple[str, ...]:
    """The names of all alerts, sorted."""
    return tuple(sorted({rule.name for file in files for rule in file.alerts}))


def unknown_alert(wanted: Iterable[str], known: Sequence[str]) -> str:
    """What is wrong with the first name that is no alert; "" when all are."""
    name = next((one for one in wanted if one not in known), None)
    if name is None:
        return ""
    near = nearest(name, known) if known else "there are none"
    ours = "`poise alerts rules` lists ours"
    if near.startswith("did"):
        near = f"{near} {ours}"
    elif len(known) > _MOST_LISTED:
        near = ours
    return f"{name}: there is no such alert; {near}"


def _own(path: str) -> RuleFile:
    """A file that --rules or the configuration names."""
    try:
        return load(Path(path))
    except OSError as error:
        raise RuleError(f"--rules={path}", f"cannot be read: {error.strerror or error}") from None
