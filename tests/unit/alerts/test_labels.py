"""Which labels a result carries, and where an expression names what cannot be there."""

from __future__ import annotations

import pytest
from poise.alerts.labels import check_expression
from poise.alerts.names import declared

GPU = {"instance", "job", "gpu", "uuid"}
ENGINE = {"instance", "job", "engine", "deployment", "role"}


def labels_of(text: str) -> set[str] | None:
    labels, problems = check_expression(text, declared())
    assert problems == ()
    return None if labels is None else set(labels)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("poise_gpu_up", GPU),
        ('{__name__="poise_gpu_up"}', GPU),
        ("rate(poise_gpu_busy_seconds_total[5m])", GPU),
        ("max by (instance, uuid) (poise_gpu_up)", {"instance", "uuid"}),
        ("sum(poise_gpu_up)", set()),
        ("max without (job) (poise_gpu_up)", GPU - {"job"}),
        ("topk by (instance) (1, poise_gpu_up)", GPU),
        ('count_values by (instance) ("version", poise_gpu_up)', {"instance", "version"}),
        ("poise_gpu_up == 0", GPU),
        ("1 - poise_gpu_up", GPU),
        ("-poise_gpu_up", GPU),
        ("time() - poise_engine_start_time_seconds", ENGINE),
        ("poise_gpu_up * on (instance) group_left (node) max by (instance, node) (poise_node_info)", GPU | {"node"}),
        ("max by (instance, node) (poise_node_info) * on (instance) group_right (node) poise_gpu_up", GPU | {"node"}),
        ("poise_gpu_up * on (uuid) poise_gpu_power_watts", {"uuid"}),
        ("poise_gpu_up and on (instance) poise_engine_up", GPU),
        ("max by (instance) (poise_gpu_up) or max by (uuid) (poise_gpu_up)", {"instance", "uuid"}),
        ('label_replace(poise_gpu_up, "card", "$1", "gpu", "(.*)")', GPU | {"card"}),
        ("histogram_quantile(0.9, sum by (le, engine) (rate(poise_engine_queue_time_seconds_bucket[5m])))", {"engine"}),
        ("clamp_max(1 - poise_gpu_up, 1)", GPU),
        ("max_over_time(poise_gpu_up[1h:1m])", GPU),
        ("up", {"instance", "job"}),
        ("vector(1)", set()),
        ("ALERTS", None),
        ("absent(poise_gpu_up)", None),
        ("process_cpu_seconds_total", None),
    ],
)
def test_labels_of_a_result_follow_prometheus(text: str, labels: set[str] | None) -> None:
    assert labels_of(text) == labels


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "poise_gpu_bussy_seconds_total",
            'no series is called "poise_gpu_bussy_seconds_total" (did you mean "poise_gpu_busy_seconds_total"?)',
        ),
        ("node_load1", 'no series is called "node_load1"'),
        ('poise_gpu_up{engine="x"}', 'poise_gpu_up has no label "engine"; there are gpu, instance, job, uuid'),
        ("sum by (node) (poise_gpu_up)", 'what sum aggregates has no label "node"'),
        ("poise_gpu_up * on (uuid) group_left () poise_node_info", 'the right side of `* on` has no label "uuid"'),
        ("poise_gpu_up * on (instance) group_left (name) poise_node_info", 'the one side of group_left or group_right has no label "name"'),
        ("poise_gpu_up * poise_engine_up", "the sides of `*` never match: only one of them has deployment, engine, gpu, role, uuid"),
        ('{instance="a"}', "names no series"),
    ],
)
def test_what_cannot_be_there_is_named(text: str, problem: str) -> None:
    _, problems = check_expression(text, declared())
    assert any(problem in said for said in problems), problems


def test_series_of_others_are_accepted_on_request_and_misspelt_ones_of_ours_never() -> None:
    assert check_expression("node_load1 > 5", declared(), allow_other_series=True) == (None, ())
    _, problems = check_expression("poise_gpu_upp", declared(), allow_other_series=True)
    assert len(problems) == 1
