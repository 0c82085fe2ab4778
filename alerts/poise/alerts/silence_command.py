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
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from poise.alerts import ask_command
from poise.alerts.ask_command import AskError
from poise.alerts.counting import counted
from poise.alerts.durations import format_duration
from poise.alerts.rule_set import unknown_alert
from poise.exporter.engines.credentials import AccessError
from poise.exporter.logs import visible
from poise.history import page_token
from poise.history.fetch import FetchError, Request
from poise.history.page_token import TokenError

DONE, NOT_ALL, COULD_NOT = 0, 1, 2
ACTIONS = ("silence", "silences", "unsilence", "acknowledge")
TOKEN_VARIABLE = "POISE_TOKEN"  # noqa: S105 - its name, not a token
#: Seconds: `poise up` itself waits up to ten for each Alertmanager.
_TIMEOUT = 30.0
_MOST_BYTES = 32_000_000
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
    except (KeyError, TypeError, AttributeError):
        print(f"poise: {visible(arguments.url.partition(',')[0])}: this is no answer of a `poise up` of this version", file=sys.stderr)
        return COULD_NOT


# -------------------------------------------------------------------------------------------------------------------- actions
async def _silence(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    page = _Page(arguments, environment)
    wanted = {"alertname": arguments.alert, **ask_command.where_labels(arguments.where)}
    known = _names(await page.ask("GET", "/api/v1/rules"))
    if known and arguments.alert not in known:
        raise AskError(f"{page.url}: {unknown_alert([arguments.alert], sorted(known))}")
    answer = await page.ask("POST", f"{_API}/silences", {"labels": wanted, **_why(arguments)})
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        for made in answer.get("made") or ():
            print(
                f"silence {visible(made['id'])} at {visible(made['alertmanager'])}: {_matchers(answer['matchers'])}, until {_clock(answer['ends_at'])}"
            )
    return _tell_problems(answer)


async def _silences(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    answer = await _Page(arguments, environment).ask("GET", f"{_API}/silences")
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        for line in silence_lines(answer, time.time()):
            print(line)
    broken = [{"error": one["error"]} for one in answer.get("alertmanagers") or () if one["error"]]
    return _tell_problems({"problems": broken})


async def _unsilence(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    answer = await _Page(arguments, environment).ask("DELETE", f"{_API}/silences/{quote(arguments.id, safe='')}")
    if arguments.json:
        print(json.dumps(answer, indent=1))
    else:
        for ended in answer.get("ended") or ():
            print(f"silence {visible(ended['id'])} is ended at {visible(ended['alertmanager'])}")
    return _tell_problems(answer)


async def _acknowledge(arguments: argparse.Namespace, environment: Mapping[str, str]) -> int:
    if not arguments.remove and not arguments.comment.strip():
        raise AskError("--comment is empty; say why in a few words: others will read it")
    page = _Page(arguments, environment)
    where = ask_command.where_labels(arguments.where)
    listed = (await page.ask("GET", f"{_API}/alerts")).get("alerts") or ()
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


# -------------------------------------------------------------------------------------------------------------------- asking
class _Page:
    """The `poise up` that is asked; its token is read when something is to be changed."""

    def __init__(self, arguments: argparse.Namespace, environment: Mapping[str, str]) -> None:
        self.url, self._fetcher, place = ask_command.server(arguments.url)
        self.url = self.url.rstrip("/")
        if place.access.has_secret:
            raise AskError(
                "--url: a login and the token cannot go in one request; ask `poise up` directly, not through a proxy with a login"
            )
        self._file: Path | None = getattr(arguments, "token_file", None)
        self._environment = environment

    async def ask(self, method: str, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """Its answer. Raises AskError, TokenError."""
        headers = {"Accept": "application/json"}
        if method != "GET":
            headers["Authorization"] = f"Bearer {token(self.url, self._file, self._environment)}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = Request(method, headers, b"" if body is None else json.dumps(body).encode())
        try:
            answer = await self._fetcher.exchange(f"{self.url}{path}", request, timeout=_TIMEOUT, limit=_MOST_BYTES)
        except FetchError as error:
            raise AskError(f"{self.url}: {error}") from None
        try:
            document = json.loads(answer.body)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict):
            raise AskError(f"{self.url}{path}: what answers is no `poise up` (HTTP status {answer.status}); give its address with --url")
        if answer.status >= 300:
            words = document.get("error") or f"HTTP status {answer.status} for {method} {path}; is it a `poise up` of this version?"
            raise AskError(f"{self.url}: {words}" + (f"; {document['way_out']}" if document.get("way_out") else ""))
        return document


def token(url: str, file: Path | None, environment: Mapping[str, str]) -> str:
    """The token for the `poise up` at a URL; that of this machine's state folder goes to this machine alone. Raises TokenError."""
    if file is not None:
        return page_token.read(file, "write into it what `poise token` prints on the machine of that `poise up`")
    if given := environment.get(TOKEN_VARIABLE):
        return page_token.checked(given, f"${TOKEN_VARIABLE}", "set it to what `poise token` prints on the machine of that `poise up`")
    if not _on_this_machine(url):
        raise TokenError(
            f"{url} is another machine: give its token with --token-file FILE or ${TOKEN_VARIABLE}; `poise token` prints it there"
        )
    way_out = f"start `poise up`, which makes one, or give the token with --token-file FILE or ${TOKEN_VARIABLE}"
    return page_token.read(page_token.token_path(environment), way_out)


def _on_this_machine(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _why(arguments: argparse.Namespace) -> dict[str, str]:
    return {"comment": arguments.comment, "duration": arguments.duration, "by": arguments.by or _user()}


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user number without a name, as in containers
        return f"user {os.getuid()}"


def _names(document: Mapping[str, Any]) -> set[str]:
    groups = (document.get("data") or {}).get("groups") or ()
    return {str(rule.get("name")) for group in groups for rule in group.get("rules") or () if rule.get("type") == "alerting"}


# ------------------------------------------------------------------------------------------------------------------- telling
def silence_lines(answer: Mapping[str, Any], now: float) -> Iterator[str]:
    """The silences, soonest end first."""
    silences, places = answer.get("silences") or (), answer.get("alertmanagers") or ()
    if not places:
        yield "this `poise up` knows no Alertmanager, so there are no silences; `poise alerts acknowledge` marks alerts on its page"
        return
    yield f"{counted(len(silences), 'silence')} of {counted(len(places), 'Alertmanager')}"
    for one in silences:
        left = format_duration(max(0, round(one["ends_at"] - now)))
        yield f"  {visible(one['id'])}  {visible(one['state'])}, {left} left: {_matchers(one['matchers'])} ({visible(one['by'])}: {visible(one['comment'])})"


def _matchers(matchers: Sequence[Mapping[str, Any]]) -> str:
    def sign(one: Mapping[str, Any]) -> str:
        return ("=~" if one["is_equal"] else "!~") if one["is_regex"] else "=" if one["is_equal"] else "!="

    return "{" + ", ".join(visible(f"{one['name']}{sign(one)}{json.dumps(one['value'], ensure_ascii=False)}") for one in matchers) + "}"


def _tell_problems(answer: Mapping[str, Any]) -> int:
    problems = answer.get("problems") or ()
    for problem in problems:
        print(f"poise: {visible(problem['error'])}", file=sys.stderr)
    return NOT_ALL if problems else DONE


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M}"
