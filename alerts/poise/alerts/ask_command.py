"""`poise alerts status` and `poise alerts explain`: asks a running `poise up` or a Prometheus, and writes what it says for a terminal.

The edge: arguments, clocks, output. What an explanation is stands in explain.py.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime

from poise.alerts import explain_text, rules_api
from poise.alerts.counting import counted
from poise.alerts.durations import format_duration
from poise.alerts.explain import LOOKED_BACK, Clause, explain
from poise.alerts.notification.alertmanager import Place
from poise.alerts.rule_set import unknown_alert
from poise.alerts.rules_api import RulesError, Standing, TellsAlert, TellsRule
from poise.alerts.settings import parse_place
from poise.exporter.engines.credentials import AccessError, Credentials
from poise.exporter.logs import visible
from poise.exporter.settings import nearest
from poise.history import moments
from poise.history.fetch import Fetcher
from poise.history.promql.errors import QueryError
from poise.history.querier.prometheus import PrometheusQuerier

DEFAULT_URL = "http://127.0.0.1:9748"
COULD_NOT = 2
ACTIONS = ("status", "explain")
#: The alert that always fires, so that its absence is noticed; it is no reason for exit code 1.
WATCHDOG = "Watchdog"
#: How the evaluator's word begins for a rule whose series are not there (evaluation/inputs.py); else its history is short.
_NO_INPUT, _WINDOW = "input missing", "window too short"
#: Values of a label that are listed where none fits.
_MOST_KNOWN = 12
#: Alerts that are shown of one rule.
_MOST_ALERTS = 10


class AskError(Exception):
    """What keeps the command from an answer; the text tells the person."""


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The two actions."""
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url",
        default=DEFAULT_URL,
        metavar="URL[,ca_file=…]",
        help=f"`poise up`, or a Prometheus that evaluates the rules; TLS and login as for --alertmanager (default {DEFAULT_URL})",
    )
    server.add_argument("--json", action="store_true", help="for machines; docs/alerting.md says what it holds")
    status = actions.add_parser(
        "status",
        parents=[server],
        help="what fires and what is pending",
        description="Lists every alert that is pending or firing and rules that fail, and counts rules that can say nothing here. Exit code 0: "
        "nothing fires but the Watchdog, which always does, 1: something fires, 2: could not look, or nothing is evaluated there.",
    )
    status.add_argument(
        "--all", action="store_true", help="also list the rules that have no input here or look further back than the history"
    )
    why = actions.add_parser(
        "explain",
        parents=[server],
        help="why an alert fires, or does not",
        description="Says in one sentence why an alert fires or does not, then takes its expression apart: each clause with its present values and "
        "threshold, whether it holds, since when, and what is missing.",
    )
    why.add_argument("alert", metavar="ALERT", help="name of the alert, as in `poise alerts rules`")
    why.add_argument("--engine", metavar="NAME", help="only for this engine (short for --where engine=NAME)")
    why.add_argument(
        "--where", action="append", default=[], metavar="LABEL=VALUE", help="only series that have this label, or lack it (repeatable)"
    )
    why.add_argument("--at", metavar="TIME", help="at this moment instead of the last evaluation: Unix seconds or 2026-11-30T14:00:00Z")
    why.add_argument("--deep", action="store_true", help="also explain what recorded series are made from, each once")


def run(arguments: argparse.Namespace) -> int:
    """Carries out the action; returns the exit code. What a person can mend is one line on stderr."""
    try:
        return asyncio.run(_status(arguments) if arguments.action == "status" else _explain(arguments))
    except (AskError, RulesError, AccessError) as error:
        print(f"poise: {visible(str(error))}", file=sys.stderr)
        return COULD_NOT
    except QueryError as error:
        print(f"poise: {visible(arguments.url.partition(',')[0])}: {visible(str(error))}", file=sys.stderr)
        return COULD_NOT


def _print(lines: Iterable[str]) -> None:
    """Writes lines for a terminal: what a label or a text holds can neither begin a line of its own nor act on the terminal."""
    for line in lines:
        print(visible(line))


async def _status(arguments: argparse.Namespace) -> int:
    url, fetcher, _ = server(arguments.url)
    found = [rule for rule in await rules_api.rules(url, fetcher) if rule.alert]
    known = await rules_api.standing(url, fetcher)
    check_evaluates(url, known.mode)
    if arguments.json:
        print(json.dumps([asdict(rule) for rule in found], indent=1))
    else:
        _print(status_lines(found, time.time(), known, everything=arguments.all))
    return 1 if _fires(found) else 0


def _fires(rules: Sequence[TellsRule]) -> bool:
    """Whether anything fires that says something."""
    return any(alert.state == "firing" and rule.name != WATCHDOG for rule in rules for alert in rule.alerts)


def check_evaluates(url: str, mode: str, way_out: str = "ask the Prometheus that evaluates the rules with --url") -> None:
    """Raises AskError where nothing is evaluated: its empty list says nothing. `mode` is "" where nobody says it, as of a Prometheus."""
    if mode not in ("", "builtin"):
        raise AskError(f"{url}: this process evaluates nothing (mode {mode}); {way_out}")


def status_lines(rules: Sequence[TellsRule], now: float, known: Standing | None = None, *, everything: bool = False) -> Iterator[str]:
    """The alerts that are on, worst first, rules that fail, then how many rules can say nothing here, or with `everything` which."""
    known = known or Standing()
    on = {state: sum(alert.state == state for rule in rules for alert in rule.alerts) for state in ("firing", "pending")}
    only = f" (the {WATCHDOG}, which always does)" if on["firing"] and not _fires(rules) else ""
    yield f"{counted(len(rules), 'alerting rule')}: {counted(on['firing'], 'alert')} firing{only}, {on['pending']} pending"
    several = len({alert.labels.get("instance") for rule in rules for alert in rule.alerts if "instance" in alert.labels}) > 1
    for state in ("firing", "pending"):
        for rule in rules:
            alerts = [alert for alert in rule.alerts if alert.state == state]
            for alert in alerts[:_MOST_ALERTS]:
                yield f"  {state:<8} {_alert_line(rule, alert, now, known, several)}"
            if len(alerts) > _MOST_ALERTS:
                yield f"  {state:<8} {rule.name}: … and {len(alerts) - _MOST_ALERTS} more"
    yield from (f"  fails    {_title(rule)}: {rule.error}" for rule in rules if rule.error)
    quiet = [rule for rule in rules if rule.lacks and not rule.alerts]
    without = [rule for rule in quiet if rule.lacks.startswith(_NO_INPUT)]
    window = [rule for rule in quiet if rule.lacks.startswith(_WINDOW)]
    short = [rule for rule in quiet if not rule.lacks.startswith((_NO_INPUT, _WINDOW))]
    yield from (f"  window   {_title(rule)}: {_lack(rule)}" for rule in window)
    if everything:
        yield from (f"  no input {_title(rule)}: {_lack(rule)}" for rule in without)
        yield from (f"  short    {_title(rule)}: {_lack(rule)}" for rule in short)
    elif without or short:
        words = [f"{counted(len(without), 'rule')} {'has' if len(without) == 1 else 'have'} no input here"] if without else []
        words += [f"{len(short)} {'looks' if len(short) == 1 else 'look'} further back than the history"] if short else []
        yield f"{', '.join(words)}: --all lists them"


def _alert_line(rule: TellsRule, alert: TellsAlert, now: float, known: Standing, several: bool) -> str:
    own = {name: value for name, value in alert.labels.items() if name != "alertname"}
    text = alert.annotations.get("summary") or ", ".join(f"{name}={value}" for name, value in sorted(own.items()))
    where = f", instance {own['instance']}" if several and own.get("instance", "") not in text else ""
    quiet = known.quiet.get(frozenset(alert.labels.items()), "")
    since = f" (for {_age(alert, now)})" if alert.active_at else ""
    return f"{_title(rule, alert.labels)}: {text}{where}{since}{f' [{quiet}]' if quiet else ''}"


def _age(alert: TellsAlert, now: float) -> str:
    """How long it is on; its beginning is known."""
    return format_duration(max(0, round(now - alert.active_at)))


def _lack(rule: TellsRule) -> str:
    """Why the rule can say nothing here: neither is a fault by itself."""
    rest = rule.lacks.partition(": ")[2]
    if rule.lacks.startswith(_NO_INPUT):
        return f"no such series here: {rest.removeprefix('no series ')}"
    if rule.lacks.startswith(_WINDOW):
        return f"a window too short to say anything: {rest}"
    return f"the history reaches {rest}; it is evaluated all the same"


def _title(rule: TellsRule, own: Mapping[str, str] | None = None) -> str:
    """Its name with the severity, for an alert may stand once for each."""
    severity = {**(rule.labels or {}), **(own or {})}.get("severity", "")
    return f"{rule.name} ({severity})" if severity not in ("", "none") else rule.name


async def _explain(arguments: argparse.Namespace) -> int:
    url, fetcher, place = server(arguments.url)
    asked = _moment(arguments.at) if arguments.at else None
    where = where_labels(arguments.where, arguments.engine)
    rules = await rules_api.rules(url, fetcher)
    check_evaluates(url, (await rules_api.standing(url, fetcher)).mode)
    wanted = [rule for rule in rules if rule.alert and rule.name == arguments.alert]
    if not wanted:
        raise AskError(f"{url}: {unknown_alert([arguments.alert], sorted({rule.name for rule in rules if rule.alert}))}")
    recordings = {rule.name: rule.query for rule in rules if not rule.alert}
    # As of its last evaluation, whose samples have all come: so the clauses belong to the state.
    moments = [asked or rule.evaluated_at or time.time() for rule in wanted]
    querier = PrometheusQuerier(url, access=place.access)
    try:
        await _check_labels(querier, where, wanted, max(moments))
        clauses = [
            await explain(rule.query, querier, at, recordings=recordings, where=where, deep=arguments.deep)
            for rule, at in zip(wanted, moments, strict=True)
        ]
    finally:
        await querier.close()
    if arguments.json:
        print(
            json.dumps([{"rule": asdict(rule), "clause": asdict(clause)} for rule, clause in zip(wanted, clauses, strict=True)], indent=1)
        )
        return 0
    for rule, clause, at in zip(wanted, clauses, moments, strict=True):
        _print(rule_lines(rule, clause, where, at))
        _print(explain_text.lines(clause, _clock))
    return 0


async def _check_labels(querier: PrometheusQuerier, where: Mapping[str, str], rules: Sequence[TellsRule], at: float) -> None:
    """Raises AskError for a label that no series had in the hour before, which an explanation would take for a clause that does not hold."""
    for name, value in where.items():
        if any((rule.labels or {}).get(name) == value for rule in rules):
            continue
        known = (await querier.label_values(name, (), at - LOOKED_BACK, at)).data
        if value in known:
            continue
        such = f"engine {value}" if name == "engine" else f"series with {name}={value}"
        raise AskError(f"{querier.url}: there was no {such} in the hour before; {_others(name, value, known)}")


def _others(name: str, value: str, known: Sequence[str]) -> str:
    """Which values a label has, where this is none of them."""
    if not known:
        return f"no series has a label {name}"
    if len(known) <= _MOST_KNOWN:
        return f"there {'was' if len(known) == 1 else 'were'} {', '.join(known)}"
    near = nearest(value, known)
    return near if near.startswith("did") else f"there were {len(known)} others"


def rule_lines(rule: TellsRule, clause: Clause, where: Mapping[str, str], now: float) -> Iterator[str]:
    """How the rule stands and why, before its clauses."""
    alerts = [alert for alert in rule.alerts if all(alert.labels.get(name, value) == value for name, value in where.items())]
    states = {alert.state for alert in alerts}
    state = next((word for word in ("firing", "pending") if word in states), "inactive")
    yield f"{_title(rule)}: {state}" + (f", holds for {format_duration(rule.wait)} before it fires" if rule.wait else ", fires at once")
    yield f"  {explain_text.sentence(state, clause)}"
    for alert in alerts[:_MOST_ALERTS]:
        since, left = "", ""
        if alert.active_at:
            since = f" for {_age(alert, now)}"
            left = f", fires in {format_duration(max(0, round(rule.wait - (now - alert.active_at))))}" if alert.state == "pending" else ""
        yield f"  {alert.state}{since}{left}: {alert.annotations.get('summary', '')}".rstrip(": ")
    if rule.error:
        yield f"  the rule fails: {rule.error}"
    if rule.lacks:
        yield f"  {_lack(rule)}"


def server(text: str) -> tuple[str, Fetcher, Place]:
    """What --url names, and who asks it. Raises AskError."""
    try:
        place = parse_place(text)
    except ValueError as error:
        raise AskError(f"--url={text.partition(',')[0]}: {error}") from None
    return place.url, Fetcher(Credentials(place.access)), place


def _moment(text: str) -> float:
    try:
        return moments.unix_seconds(text)
    except ValueError as error:
        raise AskError(f"--at: {error}; write Unix seconds or a time such as 2026-11-30T14:00:00Z") from None


def where_labels(pairs: Sequence[str], engine: str | None = None) -> dict[str, str]:
    """The labels that --where and --engine name. Raises AskError."""
    where = {"engine": engine} if engine else {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise AskError(f"--where={pair}: write LABEL=VALUE, as in gpu=1")
        where[name] = value
    return where


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
