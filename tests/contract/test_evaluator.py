"""The built-in evaluator against promtool: drawn histories of alerts, templates, and every shipped rule test through both.

POISE_REPLAY_ALL=1 (`make soak`) replays all cases of each shipped file and draws 400 histories; without, some of each.
"""

from __future__ import annotations

import itertools
import math
import os
import random
import subprocess
from pathlib import Path

import pytest
import yaml
from poise.alerts import shipped
from poise.alerts.evaluation.group_run import GroupRun
from poise.alerts.evaluation.prepared import prepare
from poise.alerts.rules import parse_rules
from poise.history.promql.engine import Engine, InstantVector
from poise.history.promql.evaluate import Semantics, Settings
from poise.history.promql.labels import NAME, labels

from tests.needs import needs
from tests.rule_replay import ReplayStore, expand, replay, series_of

pytestmark = pytest.mark.contract

ALL = bool(os.environ.get("POISE_REPLAY_ALL"))
#: Debian's promtool is of Prometheus 2.
AS_PROMTOOL = Settings(semantics=Semantics.PROMETHEUS_2)
HISTORIES = 400 if ALL else 60
STEPS = 30
MINUTE = 60_000


def drawn_values(source: random.Random) -> str:
    """A series of STEPS minutes that comes and goes, in promtool's notation."""
    words: list[str] = []
    while len(expand(" ".join(words))) < STEPS:
        kind = source.choice(["high", "high", "low", "missing", "stale"])
        length = source.randint(1, 7)
        words.append({"high": f"1x{length}", "low": f"0x{length}", "missing": f"_x{length}", "stale": "stale"}[kind])
    return " ".join(words)


def test_drawn_histories_give_the_same_alerts_at_every_moment(tmp_path: Path) -> None:
    """Wait, keep_firing_for, gaps, stale markers, two alerts at once: ALERTS and ALERTS_FOR_STATE are the same at every minute."""
    promtool = needs("promtool")
    source = random.Random(4)
    rules, tests = [], []
    for number in range(HISTORIES):
        wait, keep = source.choice([0, 1, 2, 5]), source.choice([0, 0, 1, 3])
        alert: dict[str, object] = {"alert": f"Alert{number}", "expr": f"load{number} > 0.5", "labels": {"severity": "warning"}}
        rules.append({**alert, **({"for": f"{wait}m"} if wait else {}), **({"keep_firing_for": f"{keep}m"} if keep else {})})
    document = {"groups": [{"name": "g", "rules": rules}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document))
    (group,) = prepare([parse_rules(yaml.safe_dump(document))], 60.0)
    store = ReplayStore()
    inputs = []
    for number in range(HISTORIES):
        for gpu in range(source.choice([1, 2])):
            series, values = f'load{number}{{gpu="{gpu}"}}', drawn_values(source)
            inputs.append({"series": series, "values": values})
            pairs = [(place * MINUTE, value) for place, value in enumerate(expand(values)) if value is not None]
            store.add(series_of(series), [at for at, _ in pairs], [value for _, value in pairs])
    run, engine = GroupRun(group, {}, lambda: 0.0), Engine(store, AS_PROMTOOL)
    asked, count = [], 0
    for minute in range(STEPS):
        run.run(minute * MINUTE, engine.instant, store.append)
        for name in ("ALERTS", "ALERTS_FOR_STATE"):
            result = engine.instant(name, minute * 60.0)
            assert isinstance(result, InstantVector)
            samples = [
                {"labels": name + "{" + ",".join(f'{key}="{text}"' for key, text in one.labels if key != NAME) + "}", "value": one.value}
                for one in result.samples
            ]
            count += len(samples)
            asked.append({"expr": name, "eval_time": f"{minute}m", "exp_samples": samples})
    tests.append({"interval": "1m", "input_series": inputs, "promql_expr_test": asked})
    check = {"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(check))
    assert count > HISTORIES * 5
    done = subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]


TEMPLATES = (
    "{{ $value }}",
    "{{ .Value }} of {{ $labels.gpu }} and [{{ $labels.absent }}]",
    "{{ $value | humanize }}",
    "{{ $value | humanize1024 }}",
    "{{ $value | humanizeDuration }}",
    "{{ $value | humanizePercentage }}",
    "{{ humanize $value }}",
    '{{ $value | printf "%.2f" }}',
    '{{ printf "%8.1f|" $value }}',
    '{{ printf "%g and %%" $value }}',
    '{{ $value | printf "%.3e" }}',
    '{{ $value | humanize | printf "%s!" }}',
    "a  {{- $value -}}  b",
)
VALUES = (
    "0.97",
    "1e6",
    "123456",
    "1234567",
    "0.0000123",
    "86400",
    "3661.5",
    "59.95",
    "0.5",
    "1e15",
    "-2.5",
    "-7200",
    "1023",
    "1024",
    "999.96",
    "0.00012345",
)


def test_templates_give_the_same_texts(tmp_path: Path) -> None:
    promtool = needs("promtool")
    annotations = {f"a{place}": text for place, text in enumerate(TEMPLATES)}
    document = {"groups": [{"name": "g", "rules": [{"alert": "A", "expr": "load != 0", "annotations": annotations}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document))
    (group,) = prepare([parse_rules(yaml.safe_dump(document))], 60.0)
    rule = group.rules[0].alert
    assert rule is not None, group.rules[0].error
    tests = []
    for value in VALUES:
        own = {"gpu": "1"}
        texts = {name: template.expand(own, float(value), {}) for name, template in rule.annotations.items()}
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": 'load{gpu="1"}', "values": value}],
                "alert_rule_test": [{"eval_time": "0m", "alertname": "A", "exp_alerts": [{"exp_labels": own, "exp_annotations": texts}]}],
            }
        )
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": ["rules.yml"], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", tmp_path / "test.yml"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:4000]


@pytest.mark.parametrize("path", shipped.rule_test_files(), ids=lambda path: path.stem)
def test_shipped_rule_tests_come_out_the_same_in_the_built_in_evaluator(path: Path) -> None:
    differences = list(itertools.islice(replay(path, AS_PROMTOOL, most_tests=None if ALL else 1), 3))
    assert differences == []


def test_a_difference_would_be_seen(tmp_path: Path) -> None:
    """The replay is no sieve: a wrong expectation and a wrong value are both found."""
    (tmp_path / "rules.yml").write_text("groups: [{name: g, rules: [{alert: A, expr: load > 0.5}]}]")
    wrong = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": "load", "values": "1x5"}],
                "alert_rule_test": [{"eval_time": "3m", "alertname": "A", "exp_alerts": []}],
                "promql_expr_test": [{"expr": "load", "eval_time": "3m", "exp_samples": [{"labels": "load", "value": 2}]}],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(wrong))
    assert [difference.what for difference in replay(tmp_path / "test.yml")] == ["A", "load"]
    assert labels({NAME: "load"}) == series_of("load")
    assert math.isnan(expand("stale")[0] or 0.0)
