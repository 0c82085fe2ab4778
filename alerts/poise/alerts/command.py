"""`poise alerts check`, `rules` and `thresholds` (what asks a running `poise up` is in ask_command.py and silence_command.py): the edge where rule
files, arguments and output meet.

What is right or wrong is decided in `check.py`, what a copy looks like in `scale.py` and `thresholds.py`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from poise.alerts import ask_command, promtool, runbooks, shipped, silence_command, thresholds
from poise.alerts.check import Problem, check_files
from poise.alerts.counting import counted
from poise.alerts.durations import format_duration
from poise.alerts.kubernetes import prometheus_rule
from poise.alerts.rule_set import alert_names, unknown_alert
from poise.alerts.rules import RuleError, RuleFile, load, parse_rules, read_text, render
from poise.alerts.scale import HEADER, rebase, scale_file, without
from poise.alerts.thresholds import ThresholdError

#: Exit codes: nothing to mend, something to mend, could not look.
FINE, PROBLEMS, COULD_NOT = 0, 1, 2
_TEMPLATE = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_TEMPLATE_NAME = re.compile(r"\$labels\.(\w+)|\$(value)\b")


class CommandError(Exception):
    """What keeps the command from doing what it was asked; the text tells the person."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poise alerts`."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    check = actions.add_parser(
        "check",
        help="find what is wrong with rule files",
        description="Parses rule files and checks that every series and label in them exists, that every alert has its texts and runbook, that "
        "the built-in evaluator of `poise up` can evaluate it. Asks promtool too where it is installed. Exit code 0: nothing to mend, 1: something to mend, 2: could not look.",
    )
    check.add_argument("files", nargs="*", type=Path, metavar="FILE", help="rule files (default: those that come with Poise)")
    check.add_argument("--allow-other-series", action="store_true", help="accept series that are not Poise's, unchecked")

    rules = actions.add_parser(
        "rules",
        help="list the rules, or write them for a Prometheus",
        description="Lists the rules that come with Poise. With --output, writes the files for a Prometheus to load, changed as asked. What `poise "
        "up` itself evaluates is changed in its configuration: [alerts] and [alerts.thresholds].",
    )
    rules.add_argument("--print", action="store_true", dest="print_files", help="print the files instead of a list")
    rules.add_argument("--output", type=Path, metavar="DIR", help="write the files into this folder")
    rules.add_argument("--kubernetes", action="store_true", help="print one PrometheusRule for the Prometheus operator instead of a list")
    rules.add_argument("--namespace", default="poise", metavar="NAME", help="that object's namespace (default poise)")
    rules.add_argument("--scale", type=float, metavar="FACTOR", help="multiply every time by this: 0.05 makes ten minutes thirty seconds")
    rules.add_argument(
        "--runbook-base", metavar="URL", help="where the runbooks are: the alert's name is appended, or put where URL says {alert}"
    )
    rules.add_argument("--dashboard-base", metavar="URL", help="where the dashboard is, in place of http://localhost:9748")
    rules.add_argument("--without", action="append", default=[], metavar="ALERT", help="leave this alert out (repeatable)")
    rules.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="NAME=VALUE",
        help="change a threshold, as in EngineQueueTimeHigh.seconds=10 or EngineDown.for=5m (repeatable)",
    )
    rules.add_argument("--thresholds", type=Path, metavar="FILE", help="change the thresholds that this TOML file names; --set comes after")

    ask_command.add_arguments(actions)
    silence_command.add_arguments(actions)
    actions.add_parser(
        "thresholds",
        help="list the numbers that decide in the rules",
        description="Lists every threshold with its value, unit and meaning. Besides them, ALERT.for and ALERT.keep_firing_for of every alert "
        "can be changed with `poise alerts rules --set NAME=VALUE --output DIR`.",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out the command; returns the exit code. What a person can mend is one line on stderr."""
    try:
        if arguments.action in ask_command.ACTIONS:
            return ask_command.run(arguments)
        if arguments.action in silence_command.ACTIONS:
            return silence_command.run(arguments)
        if arguments.action == "check":
            return _check(arguments.files, arguments.allow_other_series)
        if arguments.action == "thresholds":
            return _thresholds()
        return _rules(arguments)
    except CommandError as error:
        print(f"poise: {error}", file=sys.stderr)
        return COULD_NOT


# ------------------------------------------------------------------------------------------------------------------- check
def _check(paths: Sequence[Path], allow_other_series: bool) -> int:
    ours = not paths
    paths = paths or shipped.rule_files()
    texts, files, problems = _load(paths)
    beside = () if ours else _shipped_files()
    problems += check_files(files, beside=beside, allow_other_series=allow_other_series)
    if ours:
        problems += _orphaned_runbooks(files)
        problems += [Problem("thresholds", message) for message in thresholds.disagreements(files)]
    for problem in problems:
        print(problem)
    try:
        opinion = promtool.check_rules(texts)
    except OSError as error:
        raise CommandError(f"cannot ask promtool: {error}") from None
    if opinion is not None and not opinion.accepted:
        print(f"promtool says:\n{opinion.text.strip()}")
    rules = sum(len(file.rules) for file in files)
    alerts = len({rule.name for file in files for rule in file.alerts})
    unasked = "promtool is not installed and was not asked" if texts else "promtool was not asked"
    second = {None: unasked, True: "promtool accepts the syntax", False: "promtool refuses it"}
    print(
        f"{counted(len(paths), 'file')}, {counted(rules, 'rule')}, {counted(alerts, 'alert')}: {counted(len(problems), 'problem')}; "
        f"{second[None if opinion is None else opinion.accepted]}"
    )
    return PROBLEMS if problems or (opinion is not None and not opinion.accepted) else FINE


def _load(paths: Sequence[Path]) -> tuple[list[tuple[Path, str]], list[RuleFile], list[Problem]]:
    """The texts that could be read, the files that parse, and a problem for each that does not."""
    texts: list[tuple[Path, str]] = []
    files: list[RuleFile] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            text = read_text(path)
            texts.append((path, text))
            files.append(parse_rules(text, str(path)))
        except RuleError as error:
            problems.append(Problem(error.place, error.message))
        except OSError as error:
            raise CommandError(f"cannot read {path}: {error.strerror}") from None
    return texts, files, problems


def _shipped_files() -> list[RuleFile]:
    return [load(path) for path in shipped.rule_files()]


def _orphaned_runbooks(files: Sequence[RuleFile]) -> list[Problem]:
    alerts = {rule.name for file in files for rule in file.alerts}
    return [Problem(str(runbooks.path_of(name)), "a runbook without an alert") for name in runbooks.names() if name not in alerts]


# ------------------------------------------------------------------------------------------------------------------- rules
def _rules(arguments: argparse.Namespace) -> int:
    files = {path: load(path) for path in shipped.rule_files()}
    if problem := unknown_alert(arguments.without, alert_names(files.values())):
        raise CommandError(f"--without {problem}")
    changed = _changed(list(files.values()), arguments)
    texts = {path.name: _text(path, file, copy, arguments) for (path, file), copy in zip(files.items(), changed, strict=True)}
    if arguments.output is not None:
        _write(arguments.output, texts)
    elif arguments.kubernetes:
        print(prometheus_rule(changed, name="poise", namespace=arguments.namespace, comment=HEADER), end="")
    elif arguments.print_files:
        print("\n".join(f"# {name}\n{text}" for name, text in texts.items()), end="")
    else:
        print(_listing(changed))
        if changed != list(files.values()):
            print("poise: nothing is changed by a list: --output DIR writes the changed files, --print shows them", file=sys.stderr)
    return FINE


def _changed(files: Sequence[RuleFile], arguments: argparse.Namespace) -> list[RuleFile]:
    """The files as asked for. Thresholds come first: scaling writes expressions anew, without the marks."""
    try:
        files = thresholds.change(files, _settings(arguments))
    except ThresholdError as error:
        raise CommandError(str(error)) from None
    try:
        files = [
            rebase(without(file, arguments.without), runbooks=arguments.runbook_base, dashboard=arguments.dashboard_base) for file in files
        ]
    except ValueError as error:
        raise CommandError(str(error)) from None
    if arguments.scale is None:
        return files
    try:
        return [scale_file(file, arguments.scale) for file in files]
    except ValueError as error:
        raise CommandError(f"--scale: {error}") from None


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    wanted: dict[str, str] = {}
    if arguments.thresholds is not None:
        try:
            wanted = thresholds.read_settings(arguments.thresholds)
        except OSError as error:
            raise CommandError(f"cannot read {arguments.thresholds}: {error.strerror}") from None
    for word in arguments.settings:
        name, sign, value = word.partition("=")
        if not sign:
            raise CommandError(f"--set {word}: write NAME=VALUE, as in EngineQueueTimeHigh.seconds=10")
        wanted[name] = value
    return wanted


def _text(path: Path, file: RuleFile, changed: RuleFile, arguments: argparse.Namespace) -> str:
    """The file as it is, with its comments, when nothing is to be changed in it."""
    if changed == file:
        return path.read_text(encoding="utf-8")
    scaled = f"\nEvery time in it is multiplied by {arguments.scale:g}." if arguments.scale is not None else ""
    return render(changed, HEADER + scaled)


def _write(folder: Path, texts: dict[str, str]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror}") from None
    print(f"{counted(len(texts), 'file')} in {folder}; load them with `rule_files: [{folder.resolve()}/*.yml]`")


def _placeholder(template: re.Match[str]) -> str:
    """`{{ $labels.engine }}` as a list shows it: <engine>."""
    named = _TEMPLATE_NAME.search(template[0])
    return f"<{named[1] or named[2]}>" if named else "<…>"


def _listing(files: Sequence[RuleFile]) -> str:
    rows = [("ALERT", "SEVERITY", "FOR", "SUMMARY")]
    for file in files:
        for rule in file.alerts:
            severity, summary = rule.labels.get("severity", ""), rule.annotations.get("summary", "")
            rows.append((rule.name, severity, format_duration(rule.wait), _TEMPLATE.sub(_placeholder, summary)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])) for row in rows]
    recorded = [rule.name for file in files for rule in file.rules if not rule.alert]
    return "\n".join([*lines, "", "RECORDED", *recorded])


# -------------------------------------------------------------------------------------------------------------- thresholds
def _thresholds() -> int:
    rows = [("THRESHOLD", "VALUE", "UNIT", "MEANING")]
    rows += [(one.name, thresholds.written(one.value), one.unit, one.meaning) for one in thresholds.shipped_thresholds().values()]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        print("  ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])))
    return FINE
