"""Rules as an object of the Prometheus operator: `PrometheusRule`, monitoring.coreos.com/v1. Pure.

Its spec is a rule file (prometheus-operator, Documentation/api-reference/api.md), so what Prometheus takes as a file it takes here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import chain

from poise.alerts.rules import RuleFile, render

#: `kubectl apply` keeps the whole object in an annotation, and annotations have at most so many bytes (apimachinery, TotalAnnotationSizeLimitB).
LARGEST_APPLIED = 256 * 1024


def prometheus_rule(files: Sequence[RuleFile], *, name: str, namespace: str, comment: str = "") -> str:
    """The text of one object with the groups of all `files`. Names of groups must differ, as in one file."""
    lines = [f"# {line}".rstrip() for line in comment.splitlines()]
    lines += [
        "apiVersion: monitoring.coreos.com/v1",
        "kind: PrometheusRule",
        "metadata:",
        f"  name: {name}",
        f"  namespace: {namespace}",
        "spec:",
    ]
    groups = tuple(chain.from_iterable(file.groups for file in files))
    return "\n".join(lines) + "\n" + textwrap.indent(render(RuleFile(name, groups)), "  ")
