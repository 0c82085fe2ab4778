"""What is found wrong with rule files before a Prometheus loads them."""

from __future__ import annotations

import pytest
from poise.alerts import check, shipped
from poise.alerts.check import check_files
from poise.alerts.rules import RuleFile, load, parse_rules

LINKED = "annotations: {summary: s, runbook_url: 'https://example.org/x'}"


def alert(name: str = "A", expr: str = "poise_gpu_up == 0", labels: str = "{severity: warning}", rest: str = LINKED) -> str:
    return f"  - alert: {name}\n    expr: '{expr}'\n    labels: {labels}\n    {rest}\n"


def file_of(*rules: str, name: str = "f.yml") -> RuleFile:
    return parse_rules("groups:\n- name: g\n  rules:\n" + "".join(rules), name)


def messages(*files: RuleFile) -> list[str]:
    return [problem.message for problem in check_files(files)]


def test_the_shipped_rules_have_no_problem() -> None:
    assert [str(problem) for problem in check_files([load(path) for path in shipped.rule_files()])] == []


def test_a_problem_says_where_it_is() -> None:
    (problem,) = check_files([file_of(alert(expr="poise_gpu_upp == 0"))])
    assert str(problem).startswith('f.yml:4, group "g", alert "A": no series is called "poise_gpu_upp"')


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (alert(labels="{severity: page}"), 'the label severity is "page"; it must be one of critical, warning, info, none'),
        (alert(labels="{}"), 'the label severity is ""'),
        (alert(rest="annotations: {summary: s}"), "it has no annotation runbook_url"),
        (alert(rest="annotations: {runbook_url: 'https://example.org'}"), "it has no annotation summary"),
        (alert(labels="{severity: info, load: '{{ $value }}'}"), "the label load carries $value"),
        (
            alert(rest="annotations: {summary: '{{ $labels.engine }}', runbook_url: 'https://example.org'}"),
            "the annotation summary uses $labels.engine, which no result of the expression has",
        ),
        (
            alert(rest="annotations: {summary: s, runbook_url: 'http://localhost:9748/runbooks/A'}"),
            "no runbook for A; there are CheckFailing",
        ),
        (
            alert(name="GPULost", rest="annotations: {summary: s, runbook_url: 'http://localhost:9748/runbooks/EngineDown'}"),
            "its runbook_url is that of another alert",
        ),
        ("  - {record: gpu_up, expr: poise_gpu_up}\n", "the name of a recording rule has the form level:metric:operations"),
    ],
)
def test_a_rule_that_says_too_little_or_something_wrong_is_named(rule: str, message: str) -> None:
    (said,) = messages(file_of(rule))
    assert message in said


def test_the_same_rule_twice_is_named_at_both_places() -> None:
    assert messages(file_of(alert()), file_of(alert(), name="other.yml")) == ["stands twice with the same labels"] * 2


def test_labels_pass_through_recording_rules_whatever_their_order() -> None:
    reader = file_of(alert(expr="poise_x:second:max > 0", rest=LINKED.replace("summary: s", 'summary: "{{ $labels.uuid }}"')))
    maker = file_of(
        "  - {record: 'poise_x:second:max', expr: 'poise_x:first:max'}\n",
        "  - {record: 'poise_x:first:max', expr: 'max by (uuid) (poise_gpu_up)'}\n",
        name="maker.yml",
    )
    assert messages(reader, maker) == []
    wrong = file_of(alert(expr="sum by (gpu) (poise_x:second:max) > 0"))
    assert messages(wrong, maker) == ['what sum aggregates has no label "gpu"; there are uuid']


def test_a_file_may_read_what_another_beside_it_records() -> None:
    shipped_files = [load(path) for path in shipped.rule_files()]
    own = file_of(alert(expr="poise_engine:gpu_imbalance:ratio > 0.5"))
    assert [problem.message for problem in check_files([own])] != []
    assert check_files([own], beside=shipped_files) == ()


def test_every_alert_carries_the_identity_labels_of_its_subject() -> None:
    """Grouping and inhibition work on labels: all alerts about one subject must carry the same."""
    files = [load(path) for path in shipped.rule_files()]
    labels = check.result_labels(files)
    node = {"instance", "node", "simulated"}
    card, engine = node | {"gpu", "uuid"}, node | {"engine", "deployment", "role"}
    # A deployment and its pools may span nodes: they have none.
    deployment, pool, router = {"deployment", "simulated"}, {"deployment", "role", "simulated"}, node | {"router", "deployment"}
    allowed: dict[str, list[set[str]]] = {
        "NodeGPUUnowned": [card | engine],
        "EngineSaturatedAndIdle": [card | engine],
        "EngineGPUsUnused": [card | engine],
        "EngineRankStraggler": [card | engine],
        "EngineRankMissing": [engine],
        "EngineDown": [engine],
        "GPULost": [card, node],
        "NVLinkLinkDown": [card],
        "EngineImbalanceHigh": [engine],
        "EngineMemoryImbalance": [engine],
        "EngineForeignProcess": [card | engine],
        "NodeGPUsSaturatedAndIdle": [node],
        "EngineStalled": [engine | {"dp_rank"}],
        "EngineHungInCollective": [engine],
        "EngineQueueTimeHigh": [engine],
        "EngineKVCacheSaturated": [engine],
        "EngineRequestErrors": [engine],
        "NVLinkErrors": [card],
        "TPTrafficOnPCIe": [engine],
        "NVLinkSilent": [engine],
        "NVLinkPerLinkSkew": [card],
        "NVLinkFabricNotReady": [card],
        "GPUXidFatal": [card | {"xid"}],
        "GPUXidApplication": [card | {"xid"}],
        "GPUEccUncorrected": [card],
        "GPURowRemapPending": [card],
        "GPURowRemapFailed": [card],
        "GPUHwThermalSlowdown": [card],
        "GPUPowerBrake": [card],
        "GPUSwThermalSlowdown": [card],
        "GPUTemperatureMarginLow": [card],
        "GPUPcieLinkDegraded": [card],
        "GPUPcieReplays": [card],
        "GPUPersistenceOff": [card],
        "PDRoleMissing": [pool],
        "PDPoolStarved": [pool],
        "PDPrefillBottleneck": [pool],
        "PDDecodeBottleneck": [pool],
        "PDKVTransferFailing": [deployment],
        "PDKVTransferAbsent": [pool],
        "PDDecodeComputesPrompts": [engine],
        "PDPrefillGenerates": [engine],
        "PDKVExpired": [engine],
        "PDKVLateNotifications": [engine],
        "PDVersionMismatch": [deployment],
        "PDModelMismatch": [deployment],
        "ReplicaLoadSkew": [pool],
        "DPRankSkew": [engine],
        "PrefixCacheHitSkew": [pool],
        "RouterDown": [router],
        "RouterErrors": [router | {"role"}],
        "RouterWrongRole": [router | {"engine", "role"}],
        "RouterEnginesUnseen": [router],
        "TTFTBudgetBurnFast": [pool],
        "TTFTBudgetBurnSlow": [pool],
        "ITLBudgetBurnFast": [pool],
        "ITLBudgetBurnSlow": [pool],
        "ErrorBudgetBurnFast": [pool],
        "ErrorBudgetBurnSlow": [pool],
        "ExporterDown": [node | {"job"}],
        "CollectorStale": [node | {"collector"}],
        "TargetFlapping": [node, engine],
        "RuleInputMissing": [node | {"input"}],
        "CheckFailing": [node | {"check", "engine", "uuid"}],
        "EngineOnFaultyNode": [engine],
        "Watchdog": [set()],
    }
    for file in files:
        for rule in file.alerts:
            assert set(labels[id(rule)] or ()) in allowed[rule.name], rule.name


def test_what_the_built_in_evaluator_cannot_do_is_a_problem_of_its_own_kind() -> None:
    wanted = "the built-in evaluator of `poise up` cannot evaluate it, whatever a Prometheus does: "
    (label,) = messages(file_of(alert("A", rest="annotations: {summary: '{{ graphLink }}', runbook_url: x}")))
    assert wanted in label
    (expression,) = [one for one in messages(file_of(alert("A", "poise_gpu_up atan2 poise_gpu_up > 0"))) if wanted in one]
    assert "the operator atan2 is not supported" in expression
