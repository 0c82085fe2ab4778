"""`poise alerts silence`, `silences`, `unsilence` and `acknowledge`: ask a running `poise up` to keep alerts quiet, and write what it says.

The edge: arguments, environment, output. What is allowed and what is wrong is decided by `poise up` (dashboard: silences_api.py).
"""

from __future__ import annotations

import argparse
import asyncio
import getpass
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from poise.alerts import ask_command, rules_api
from poise.alerts.ask_command import AskError
from poise.alerts.counting import counted
from poise.alerts.durations import format_duration
from poise.alerts.page_client import TOKEN_VARIABLE, PageClient
from poise.alerts.rule_set import unknown_alert
from poise.exporter.engines.credentials import AccessError
from poise.exporter.logs import visible
from poise.history.page_token import TokenError

DONE, NOT_ALL, COULD_NOT = 0, 1, 2
ACTIONS = ("silence", "silences", "unsilence", "acknowledge")
#: Seconds that a silence is said to last: a thousand years.
_LONGEST = 31_536_000_000
_API = "/api/poise/v1"


def add_arguments(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The four actions."""
    server = argparse.ArgumentParser(add_help=False)
    server.add_argument(
        "--url",
        default=ask_command.DEFAULT_URL,
        metavar="URL[,ca_file=…]",
        help=f"the `poise up` to ask; TLS as for --alertmanager (default {ask_command.DEFAULT_URL})",
    )
    server.add_argument("--json", action="store_true", help="print its answers for machines")
    token = argparse.ArgumentParser(add_help=False)
    token.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        help=f"the token of that `poise up` (default: ${TOKEN_VARIABLE}, else for one on this machine the one of Poise's state folder)",
    )
    why = argparse.ArgumentParser(add_help=False)
    why.add_argument("--for", dest="duration", default="2h", metavar="DURATION", help="how long, from 1m to 30d (default 2h)")
    why.add_argument("--by", metavar="NAME", help="who does it (default: you, as the system knows you)")
    which = argparse.ArgumentParser(add_help=False)
    which.add_argument("alert", metavar="ALERT", help="name of the alert, as in `poise alerts rules`")
    which.add_argument("--where", action="append", default=[], metavar="LABEL=VALUE", help="only alerts with this label (repeatable)")

    silence = actions.add_parser(
        "silence",
        parents=[which, why, server, token],
        help="hold back an alert's notifications, through Alertmanager",
        description="Makes a silence in every Alertmanager that `poise up` sends to: for ALERT with all the labels of --where, also where it is not "
        "on yet. Exit code 0: made, 1: not by every Alertmanager, 2: not made.",
    )
    silence.add_argument("--comment", required=True, metavar="TEXT", help="why; others will read it")
    actions.add_parser(
        "silences", parents=[server], help="the silences that Alertmanager has", description="Lists pending and active silences."
    )
    unsilence = actions.add_parser(
        "unsilence", parents=[server, token], help="end a silence", description="Ends a silence now. Exit codes as of `silence`."
    )
    unsilence.add_argument("id", metavar="ID", help="as `poise alerts silences` lists it")
    acknowledge = actions.add_parser(
        "acknowledge",
        parents=[which, why, server, token],
        help="take note of an alert, on this page only",
        description="Marks every alert called ALERT that is on, and has the labels of --where, as acknowledged on the page of `poise up`. It is "
        "evaluated and sent as before; to hold back notifications use `silence`. Ends with the alert, after --for, or with --remove.",
    )
    acknowledge.add_argument("--comment", default="", metavar="TEXT", help="why; others will read it (needed unless --remove)")
    acknowledge.add_argument("--remove", action="store_true", help="take it back")


def run(arguments: argparse.Namespace) -> int:
    """Carries out the action; returns the exit code. What a person can mend is one line on stderr."""
    actions = {"silence": _silence, "silences": _silences, "unsilence": _unsilence, "acknowledge": _acknowledge}
    try:
        return asyncio.run(actions[arguments.action](arguments, os.environ))
    except (AskError, AccessError, TokenError) as error:
        print(f"poise: {visible(str(error))}", file=sys.stderr)
        return COULD_NOT
    except (KeyError, TypeError, AttributeError, ValueError):
        print(f"poise: {visible(arguments.url.partition(',')[0])}: this is no answer of a `poise up` of this version", file=sys.stderr)
        return COULD_NOT


# -------------------------------------------------------------------------------------------------------------------- actions
async def _silence(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    page = _page(arguments, environment)
    wanted = {"alertname": arguments.alert, **ask_command.where_labels(arguments.where)}
    known = {rule.name for rule in rules_api.read(await page.ask("GET", "/api/v1/rules")) if rule.alert}
    if known and arguments.alert not in known:
        raise AskError(f"{page.url}: {unknown_alert([arguments.alert], sorted(known))}")
    answer = await page.ask("POST", f"{_API}/silences", {"labels": wanted, **_why(arguments)})
    of, until = _matchers(answer["matchers"]), _clock(answer["ends_at"])
    lines = [f"silence {visible(made['id'])} at {visible(made['alertmanager'])}: {of}, until {until}" for made in answer["made"]]
    return _tell(answer, lines, _errors(answer["problems"]), arguments)


async def _silences(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    answer = await _page(arguments, environment).ask("GET", f"{_API}/silences")
    return _tell(answer, list(silence_lines(answer, time.time())), _errors(answer["alertmanagers"]), arguments)


async def _unsilence(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    answer = await _page(arguments, environment).ask("DELETE", f"{_API}/silences/{quote(arguments.id, safe='')}")
    lines = [f"silence {visible(ended['id'])} is ended at {visible(ended['alertmanager'])}" for ended in answer["ended"]]
    return _tell(answer, lines, _errors(answer["problems"]), arguments)


async def _acknowledge(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if not arguments.remove and not arguments.comment.strip():
        raise AskError("--comment is empty; say why in a few words: others will read it")
    page = _page(arguments, environment)
    where = ask_command.where_labels(arguments.where)
    standing = await page.ask("GET", f"{_API}/alerts")
    ask_command.check_evaluates(
        page.url,
        standing["mode"],
        "its page marks no alerts; silence them in Alertmanager (`poise alerts silence`, where this process knows it)",
    )
    listed = standing["alerts"]
    found = [
        one for one in listed if one["rule"] == arguments.alert and all(one["labels"].get(name) == text for name, text in where.items())
    ]
    if arguments.remove:
        found = [one for one in found if one["acknowledged"]]
    if not found:
        such = " ".join([arguments.alert, *arguments.where])
        state = "acknowledged" if arguments.remove else "pending or firing"
        names = sorted({one["rule"] for one in listed if one["acknowledged"] or not arguments.remove})
        raise AskError(f"no alert {such} is {state} at {page.url}; there are {', '.join(names) or 'none'}")
    answers = []
    for one in found:
        if arguments.remove:
            answers.append(await page.ask("DELETE", f"{_API}/acknowledgements/{one['id']}"))
        else:
            answers.append(await page.ask("POST", f"{_API}/acknowledgements", {"labels": one["labels"], **_why(arguments)}))
    if arguments.json:
        print(json.dumps(answers, indent=1))
        return DONE
    for one, answer in zip(found, answers, strict=True):
        said = visible(one["annotations"].get("summary") or ", ".join(f"{k}={v}" for k, v in sorted(one["labels"].items())))
        if arguments.remove:
            print(f"no longer acknowledged: {arguments.alert}: {said}")
        else:
            print(
                f"acknowledged until {_clock(answer['acknowledged']['until'])}, {answer['acknowledged']['local']}: {arguments.alert}: {said}"
            )
            if answer.get("kept_only"):
                print(f"poise: kept only {visible(answer['kept_only'])}", file=sys.stderr)
    return DONE


# ------------------------------------------------------------------------------------------------------------------ request
def _page(arguments: argparse.Namespace, environment: Mapping[str, str]) -> PageClient:
    return PageClient(arguments.url, environment, token_file=getattr(arguments, "token_file", None))


def _why(arguments: argparse.Namespace) -> dict[str, str]:
    return {"comment": arguments.comment, "duration": arguments.duration, "by": arguments.by or _user()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user number without a name, as in containers
        return f"user {os.getuid()}"


# ------------------------------------------------------------------------------------------------------------------- telling
def silence_lines(answer: Mapping[str, Any], now: float) -> Iterator[str]:
    """The silences, soonest end first. Raises KeyError, TypeError or ValueError for what is no such answer."""
    silences, places = answer["silences"], answer["alertmanagers"]
    if not isinstance(silences, list) or not isinstance(places, list):
        raise TypeError("two lists are expected")
    if not places:
        yield "this `poise up` knows no Alertmanager, so there are no silences; `poise alerts acknowledge` marks alerts on its page"
        return
    yield f"{counted(len(silences), 'silence')} of {counted(len(places), 'Alertmanager')}"
    for one in silences:
        left = format_duration(max(0, round(min(one["ends_at"] - now, _LONGEST))))
        yield f"  {visible(one['id'])}  {visible(one['state'])}, {left} left: {_matchers(one['matchers'])} ({visible(one['by'])}: {visible(one['comment'])})"


def _matchers(matchers: Sequence[Mapping[str, Any]]) -> str:
    def sign(one: Mapping[str, Any]) -> str:
        return ("=~" if one["is_equal"] else "!~") if one["is_regex"] else "=" if one["is_equal"] else "!="

    return "{" + ", ".join(visible(f"{one['name']}{sign(one)}{json.dumps(one['value'], ensure_ascii=False)}") for one in matchers) + "}"


def _tell(answer: Mapping[str, Any], lines: Sequence[str], errors: Sequence[str], arguments: argparse.Namespace) -> int:
    """What was answered, for machines or people, and who did not do it; the exit code. Lines and errors are made before anything is written, so that
    what is no such answer is told as that either way."""
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        for line in lines:
            print(line)
    for error in errors:
        print(f"poise: {error}", file=sys.stderr)
    return NOT_ALL if errors else DONE


def _errors(places: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is wrong, in words, with those with which something is."""
    return [visible(one["error"]) for one in places if one["error"]]


def _clock(at: float) -> str:
    """A moment on this machine's clock, to the second and with the zone."""
    try:
        return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M:%S %Z}"
    except (OverflowError, OSError):
        raise ValueError(f"{at} is no moment of a calendar") from None
