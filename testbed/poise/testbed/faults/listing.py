"""The table of faults as text for a terminal of 100 columns and as JSON. Knows no fault by name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

from poise.testbed.faults.fault import Fault
from poise.testbed.plan import DeploymentPlan

WIDTH = 100
INDENT = " " * 21


def text(faults: Iterable[Fault], plan: DeploymentPlan | None) -> str:
    """Faults by group: what each is, what it should raise, and why the deployment of `plan` cannot take it, if it cannot."""
    lines: list[str] = []
    group = None
    for fault in faults:
        if fault.group != group:
            group = fault.group
            lines += ([""] if lines else []) + [group.capitalize()]
        lines += _wrapped(fault.what, f"  {fault.name:<18} ", INDENT)
        for title, values in (
            ("series", [str(sign) for sign in fault.raises.series]),
            ("checks", list(fault.raises.checks)),
            ("alerts", list(fault.raises.alerts) or ["none is made for it"]),
        ):
            if values:
                lines += _wrapped(f"{title}: {', '.join(values)}", INDENT, INDENT + "  ")
        refused = None if plan is None else fault.refusal(plan)
        if refused is not None:
            lines += _wrapped(f"not here: {refused}", INDENT, INDENT + "  ")
    if plan is not None and plan.fault is not None:
        lines += ["", f"in force: {plan.fault} (`poise testbed fault --undo`)"]
    return "\n".join(lines)


def _wrapped(words: str, first: str, following: str) -> list[str]:
    return textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=following, break_on_hyphens=False)


def as_dict(faults: Iterable[Fault], plan: DeploymentPlan | None) -> dict[str, object]:
    """{"shape", "in_force", "faults": [{name, group, what, series, checks, alerts, refusal}]}; refusal is null where the
    deployment can take it, and without a deployment."""
    return {
        "shape": None if plan is None else plan.shape,
        "in_force": None if plan is None else plan.fault,
        "faults": [
            {
                "name": fault.name,
                "group": fault.group,
                "what": fault.what,
                "series": [str(sign) for sign in fault.raises.series],
                "checks": list(fault.raises.checks),
                "alerts": list(fault.raises.alerts),
                "refusal": None if plan is None else fault.refusal(plan),
            }
            for fault in faults
        ],
    }
