"""docs/alerts.md: one section per alert, made from the rules and their runbooks.

`python -m poise.alerts.docs` prints the page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from poise.alerts import runbooks, shipped
from poise.alerts.durations import format_duration
from poise.alerts.rules import Rule, RuleFile, load
from poise.alerts.runbooks import SECTIONS
from poise.alerts.scale import DEFAULT_BASE
from poise.alerts.thresholds import shipped_thresholds, written

INTRO = f"""\
# Alerts

Generated from `alerts/poise/alerts/rules/` and `alerts/poise/alerts/runbooks/` by `make docs`; do not edit.

The rules are ordinary Prometheus rule files, valid on Prometheus 2.42 and 3. `poise alerts rules` lists them,
`poise alerts rules --output DIR` writes them for a Prometheus to load, `poise alerts check FILES` checks your own.

```yaml
# prometheus.yml
rule_files: [DIR/*.yml]
scrape_configs:
  - job_name: poise
    static_configs: [{{targets: ["node1:9747"]}}]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["localhost:9093"]}}]
```

## What a notification carries

| labels | on |
| - | - |
| `instance` `engine` `deployment` `role` | alerts about an engine |
| `instance` `gpu` `uuid` | alerts about a card; alerts about a card of an engine carry both sets |
| `instance` `router` `deployment` | alerts about a router |
| `deployment` `role` | alerts about a pool: the engines of one deployment and role, which may be on several nodes |
| `deployment` | alerts about a deployment |
| `node` | all with an `instance`: the host's name |
| `simulated` | all of these: whether the cards are simulated; "false" as soon as one node of a deployment is real |
| `severity` | all: `critical`, `warning`, `info` or `none` |
| `component` | all: `engine`, `gpu`, `imbalance`, `interconnect`, `meta`, `pd`, `replica`, `router` or `slo` |

Annotations: `summary`, `description` (with the numbers), `action`, `runbook_url`, `dashboard_url`. The links point to the dashboard at
`{DEFAULT_BASE}`, which is where `poise up` listens on the node. For links that open elsewhere, write the rules with
`--runbook-base URL` (the alert's name is appended, or put where the URL says `{{alert}}`) and `--dashboard-base URL`.

## Alertmanager

`alerts/poise/alerts/alertmanager/alertmanager.yml` is a working configuration (Alertmanager 0.25 and newer): it groups by instance and
deployment, sends critical alerts to the receiver `page`, others to `ticket`, everything with `simulated="true"` to `simulated`, and the
Watchdog to `deadman`; what follows from another alert is muted, so that one cause sends one loud alert. Its receivers are webhooks on
localhost. [notifications.md](notifications.md) has examples for Slack, e-mail, PagerDuty, WeCom, DingTalk and Feishu, and what mutes what.

## Rules that a lost scrape does not disturb

A failed scrape marks every series stale at once, and a rule that reads one would start its `for` anew. So joins and gates read the last two
minutes, loads the last five, and an alert needs its condition for longer than that.
"""


def page() -> str:
    """The text of docs/alerts.md."""
    files = [load(path) for path in shipped.rule_files()]
    alerts = [rule for file in files for rule in file.alerts]
    names = list(dict.fromkeys(rule.name for rule in alerts))
    table = "".join(_row(name, [rule for rule in alerts if rule.name == name]) for name in names)
    sections = "".join(_section(name, [rule for rule in alerts if rule.name == name]) for name in names)
    return (
        f"{INTRO}\n## The alerts\n\n| alert | severity | component | waits | kept firing for |\n| - | - | - | - | - |\n{table}{sections}"
        f"\n{_thresholds()}\n{_recording(files)}"
    )


def _row(name: str, rules: Sequence[Rule]) -> str:
    columns = (
        f"[{name}](#{name.lower()})",
        _joined(rule.labels.get("severity", "") for rule in rules),
        _joined(rule.labels.get("component", "") for rule in rules),
        _joined(format_duration(rule.wait) for rule in rules),
        _joined(format_duration(rule.keep_firing_for) for rule in rules),
    )
    return f"| {' | '.join(columns)} |\n"


def _joined(words: Iterable[str]) -> str:
    return " or ".join(dict.fromkeys(words))


def _section(name: str, rules: Sequence[Rule]) -> str:
    runbook = runbooks.read(name)
    body = "".join(f"\n#### {title}\n\n{runbook.sections[title]}\n" for title in SECTIONS)
    expressions = "".join(f"\n```promql\n{rule.expr}\n```\n" for rule in rules)
    return f"\n### {name}\n{body}\n#### Expression\n{expressions}"


THRESHOLDS = """\
## Thresholds

The numbers that decide, each with its source; *heuristic* means that nobody has published one. Each stands in the rule files at the line that
ends in its name. Besides these, the durations of every alert can be changed as `ALERT.for` and `ALERT.keep_firing_for`.

```sh
poise alerts rules --output DIR --set EngineQueueTimeHigh.seconds=10 --set EngineDown.for=5m
poise alerts rules --output DIR --thresholds mine.toml
```

```toml
# mine.toml
[EngineQueueTimeHigh]
seconds = 10
for = "5m"
```

A changed alert says in its annotation `changed` what was changed, because its texts speak of the numbers below. Where one engine needs a number
of its own, leave the alert out (`--without ALERT`) and load two rules of your own beside the files.

| threshold | value | unit | meaning | source |
| - | -: | - | - | - |
"""


def _thresholds() -> str:
    rows = (
        f"| `{one.name}` | {written(one.value)} | {one.unit} | {one.meaning} | {one.source} |\n" for one in shipped_thresholds().values()
    )
    return THRESHOLDS + "".join(rows)


def _recording(files: Sequence[RuleFile]) -> str:
    recorded = [rule for file in files for rule in file.rules if not rule.alert]
    parts = "".join(f"\n### {rule.name}\n\n```promql\n{rule.expr}\n```\n" for rule in recorded)
    return f"## Recording rules\n{parts}"


if __name__ == "__main__":
    sys.stdout.write(page())
