"""Rule files for a test deployment that lives minutes instead of days: the shipped ones with every time shortened by one factor.

Also what else a copy may change: where runbooks and pages are, and which alerts are left out. Rules go in, rules come out; recording rules
keep their names, because alerts, pages and panels ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import replace
from urllib.parse import urlsplit

from poise.alerts import expressions
from poise.alerts.rules import Group, Rule, RuleFile, parse_rules, render

#: Where the dashboard listens unless told otherwise; the shipped files point there.
DEFAULT_BASE = "http://localhost:9748"
#: Stands for the alert's name in a runbook base, for hosts that want an ending: https://git.example/runbooks/{alert}.md
ALERT_PLACEHOLDER = "{alert}"

#: The characters of an address (RFC 3986), which holds no space, quote, brace or backslash.
_ADDRESS = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&()*+,;=%]+")

HEADER = "Written by `poise alerts rules` from the rules that come with Poise: change those, not this copy."


def scale_rules(text: str, factor: float) -> str:
    """The text of a rule file with its time multiplied by `factor` (0.05 makes ten minutes thirty seconds).

    Scaled are `for`, `keep_firing_for`, range selectors, offsets, subqueries, and numbers that an age (`time() - …`) is compared with.
    What real time rules stays real: loading a model takes as long as it takes, so a factor must leave 20 minutes (EngineDown) long
    enough for it. Raises RuleError when the file is not valid and ValueError when the factor is not above 0 and at most 1.
    """
    return render(scale_file(parse_rules(text), factor), f"{HEADER}\nEvery time in it is multiplied by {factor:g}.")


def scale_file(file: RuleFile, factor: float) -> RuleFile:
    """`scale_rules` on values."""
    if not 0 < factor <= 1:
        raise ValueError(f"the factor must be above 0 and at most 1, not {factor:g}")
    return change_rules(file, lambda rule: _scaled(rule, factor))


def _scaled(rule: Rule, factor: float) -> Rule:
    # The texts speak of the original's minutes; whoever reads the notification of a copy must know.
    note = {"time_scale": f"Times in this text are the original's; the copy multiplies them by {factor:g}."} if rule.alert else {}
    return replace(
        rule,
        expr=expressions.scale(rule.expr, factor),
        wait=rule.wait * factor,
        keep_firing_for=rule.keep_firing_for * factor,
        annotations={**rule.annotations, **note},
    )


def change_rules(file: RuleFile, change: Callable[[Rule], Rule | None]) -> RuleFile:
    """The file with every rule replaced by what `change` makes of it; None drops it. A group without rules goes too."""

    def changed(group: Group) -> Group:
        rules = (change(rule) for rule in group.rules)
        return replace(group, rules=tuple(rule for rule in rules if rule is not None))

    return replace(file, groups=tuple(group for group in map(changed, file.groups) if group.rules))


def without(file: RuleFile, alerts: Collection[str]) -> RuleFile:
    """The file without the alerts of these names."""
    return change_rules(file, lambda rule: None if rule.alert and rule.name in alerts else rule)


def rebase(file: RuleFile, *, runbooks: str | None = None, dashboard: str | None = None) -> RuleFile:
    """The file with its links pointing elsewhere.

    `runbooks` replaces http://localhost:9748/runbooks and gets the alert's name appended, or put where it says {alert}. `dashboard`
    replaces http://localhost:9748 in front of the page's path. Raises ValueError for what is no address of a page.
    """
    for option, base in (("--runbook-base", runbooks), ("--dashboard-base", dashboard)):
        if base is not None:
            _check_base(option, base)

    def changed(rule: Rule) -> Rule:
        annotations = dict(rule.annotations)
        if runbooks is not None and "runbook_url" in annotations:
            annotations["runbook_url"] = runbook_url(runbooks, rule.name)
        link = annotations.get("dashboard_url", "")
        if dashboard is not None and link.startswith(DEFAULT_BASE):
            annotations["dashboard_url"] = dashboard.rstrip("/") + link.removeprefix(DEFAULT_BASE)
        return replace(rule, annotations=annotations)

    return change_rules(file, changed)


def _check_base(option: str, base: str) -> None:
    """Links are clicked, in mails and chats too, and Prometheus reads {{ }} in annotations as a template."""
    words = base.replace(ALERT_PLACEHOLDER, "alert") if option == "--runbook-base" else base
    try:
        parts = urlsplit(words)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        fits = False
    else:
        if "@" in parts.netloc:
            raise ValueError(f"{option} holds a user or password, which every alert would carry: leave it out")
    if not fits or not _ADDRESS.fullmatch(words):
        raise ValueError(f"{option} {base!a} is no address of a page: give one such as https://poise.example (no spaces, quotes or braces)")


def runbook_url(base: str, alert: str) -> str:
    """The address of an alert's runbook under a base."""
    return base.replace(ALERT_PLACEHOLDER, alert) if ALERT_PLACEHOLDER in base else f"{base.rstrip('/')}/{alert}"
