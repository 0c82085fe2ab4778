"""JSON schemas of the Prometheus operator's PodMonitor and PrometheusRule (monitoring.coreos.com/v1), as far as ours use them.

Written from the operator's public API reference (Documentation/api-reference/api.md), not copied from its CRDs: fields that ours do not use are left out, and
unknown ones are refused, so that a mistyped field is found.
"""

from __future__ import annotations

from typing import Any

_DURATION = {"type": "string", "pattern": r"^(0|(([0-9]+)y)?(([0-9]+)w)?(([0-9]+)d)?(([0-9]+)h)?(([0-9]+)m)?(([0-9]+)s)?(([0-9]+)ms)?)$"}
_NAME = {"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "maxLength": 253}
_WORDS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


_METADATA = _object(["name", "namespace"], name=_NAME, namespace=_NAME, labels=_WORDS, annotations=_WORDS)
_RELABELING = _object(
    [],
    action={
        "enum": [
            "replace",
            "keep",
            "drop",
            "hashmod",
            "labelmap",
            "labeldrop",
            "labelkeep",
            "lowercase",
            "uppercase",
            "keepequal",
            "dropequal",
        ]
    },
    sourceLabels={"type": "array", "items": {"type": "string", "pattern": "^[a-zA-Z_][a-zA-Z0-9_]*$"}},
    targetLabel={"type": "string"},
    regex={"type": "string"},
    separator={"type": "string"},
    replacement={"type": "string"},
    modulus={"type": "integer", "minimum": 0},
)
_ENDPOINT = _object(
    [],
    port={"type": "string"},
    path={"type": "string"},
    scheme={"enum": ["http", "https"]},
    interval=_DURATION,
    scrapeTimeout=_DURATION,
    honorLabels={"type": "boolean"},
    honorTimestamps={"type": "boolean"},
    relabelings={"type": "array", "items": _RELABELING},
    metricRelabelings={"type": "array", "items": _RELABELING},
)
POD_MONITOR = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PodMonitor"},
    metadata=_METADATA,
    spec=_object(
        ["selector", "podMetricsEndpoints"],
        jobLabel={"type": "string"},
        podTargetLabels={"type": "array", "items": {"type": "string"}},
        selector=_object([], matchLabels=_WORDS),
        namespaceSelector=_object([], any={"type": "boolean"}, matchNames={"type": "array", "items": {"type": "string"}}),
        sampleLimit={"type": "integer", "minimum": 0},
        podMetricsEndpoints={"type": "array", "items": _ENDPOINT},
    ),
)
_RULE = _object(
    ["expr"],
    record={"type": "string"},
    alert={"type": "string"},
    expr={"type": ["string", "integer"]},
    **{"for": _DURATION},
    keep_firing_for={**_DURATION, "minLength": 1},
    labels=_WORDS,
    annotations=_WORDS,
)
PROMETHEUS_RULE = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "monitoring.coreos.com/v1"},
    kind={"const": "PrometheusRule"},
    metadata=_METADATA,
    spec=_object(
        [],
        groups={
            "type": "array",
            "items": _object(
                ["name"],
                name={"type": "string", "minLength": 1},
                interval=_DURATION,
                limit={"type": "integer"},
                query_offset=_DURATION,
                labels=_WORDS,
                rules={"type": "array", "items": _RULE},
            ),
        },
    ),
)
BY_KIND = {"PodMonitor": POD_MONITOR, "PrometheusRule": PROMETHEUS_RULE}
