"""Every series that any file of the tree names is declared, and every name that the checks and pages use has a paragraph."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from poise.alerts import shipped
from poise.alerts.rules import load
from poise.exporter import metrics
from poise.exporter.checks import startup_log
from poise.exporter.checks.runner import CHECKS

ROOT = Path(__file__).resolve().parents[2]
READ = {".py", ".yml", ".yaml", ".md", ".html", ".json", ".toml", ".js", ".sh"}
SERIES = re.compile(r"(?<![\w/.-])poise_(?:node|gpu|engine|collector|check|router|snapshot|build|interconnect)_[a-z0-9_]+(?![\w(/*…-])")

#: Names of the same form that are no series: recording rules have colons and are matched without what follows the first one.
RECORDED = {rule.name.partition(":")[0] for path in shipped.rule_files() for rule in load(path).rules if not rule.alert}


def tracked_files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [ROOT / name for name in listed if Path(name).suffix in READ and not name.startswith(("tests/captures/", "tests/unit/"))]


def test_every_series_that_the_tree_names_is_declared() -> None:
    declared = set(metrics.by_name()) | {metric.name for metric in metrics.ALL} | RECORDED
    unknown = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in tracked_files()
        if path.exists()
        for name in SERIES.findall(path.read_text(encoding="utf-8"))
        if name not in declared
    }
    assert unknown == set()


def test_every_metric_is_declared_once_with_a_sane_name() -> None:
    names = [metric.name for metric in metrics.ALL]
    assert len(names) == len(set(names))
    for metric in metrics.ALL:
        assert re.fullmatch(r"poise_[a-z0-9_]+", metric.name), metric.name
        assert metric.name.endswith("_total") == (metric.kind is metrics.Kind.COUNTER), metric.name
        assert metric.help, metric.name
        forbidden = {"service", "pod", "namespace", "container", "endpoint", "job", "instance", "hostname", "le"}
        assert not forbidden & set(metric.label_names), metric.name


CHECK_PAGES = ROOT / "docs" / "checks"


def test_every_check_has_its_page_with_all_parts() -> None:
    for name, title in [*((name, title) for name, title, _ in CHECKS), (startup_log.NAME, startup_log.TITLE)]:
        text = (CHECK_PAGES / f"{name}.md").read_text(encoding="utf-8")
        assert text.startswith(f"# {title}\n\nCheck `{name}` "), name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Meaning", "Evidence", "Cause", "Fix", "False positives"], name


def test_every_page_of_a_check_is_in_the_index_under_its_title() -> None:
    index = (ROOT / "docs" / "checks.md").read_text(encoding="utf-8")
    pages = sorted(CHECK_PAGES.glob("*.md"))
    for page in pages:
        title = page.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"| [{page.stem}](checks/{page.stem}.md) | {title} |\n" in index, page.stem
    assert len(pages) == index.count("](checks/")
