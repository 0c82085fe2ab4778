"""A real `poise up` that tells three real Alertmanagers, two of them one cluster: silences made, seen and ended through its routes and
the command line, acknowledgements, and the token."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from poise.history.page_token import read

from tests.monitoring import Receiver, free_port, receiving, started
from tests.needs import needs
from tests.poise_up import get, up
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

RULES = {
    "groups": [
        {
            "name": "g",
            "interval": "1s",
            "rules": [
                {
                    "alert": "Busy",
                    "expr": f'label_replace(vector({gpu}), "gpu", "{gpu}", "", "") > 0',
                    "annotations": {"summary": f"GPU {gpu} is busy"},
                }
                for gpu in (1, 2)
            ],
        }
    ]
}
PATIENCE = 120.0


@contextlib.contextmanager
def alertmanager(folder: Path, receiver: Receiver, *cluster: str) -> Iterator[str]:
    """One that tells of each alert each second, at the last part of its folder's name."""
    folder.mkdir()
    route = {"receiver": "all", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1s"}
    configuration = {"route": route, "receivers": [{"name": "all", "webhook_configs": [{"url": f"{receiver.url}/{folder.name}"}]}]}
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        needs("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address={url.removeprefix('http://')}",
        *(cluster or ("--cluster.listen-address=",)),
    ]
    with started(folder.name, command, url, "/-/ready", folder / "log"):
        yield url


@dataclass(frozen=True)
class World:
    url: str
    state: Path
    receiver: Receiver
    lone: str
    cluster: tuple[str, str]

    def poise(self, *words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "poise.cli", *words],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
            env={**os.environ, "POISE_STATE_DIR": str(self.state), **(environment or {})},
        )

    def alerts(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.poise("alerts", *words, "--url", self.url)

    def listed(self) -> dict[str, dict[str, Any]]:
        """The alerts of these rules by card."""
        found = json.loads(get(f"{self.url}/api/poise/v1/alerts")[1] or "{}").get("alerts", [])
        return {one["labels"]["gpu"]: one for one in found if one["rule"] == "Busy"}

    def told(self, gpu: str) -> int:
        """How often the lone Alertmanager told of a card."""
        return sum(alert.receiver == "lone" for alert in self.receiver.alerts(gpu=gpu))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("silences")
    (folder / "rules.yml").write_text(yaml.safe_dump(RULES))
    with contextlib.ExitStack() as stack:
        receiver = stack.enter_context(receiving())
        places = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        members = [
            stack.enter_context(
                alertmanager(
                    folder / name,
                    receiver,
                    f"--cluster.listen-address={own}",
                    f"--cluster.peer={other}",
                    "--cluster.gossip-interval=50ms",
                    "--cluster.peer-timeout=1s",
                )
            )
            for name, own, other in (("first", places[0], places[1]), ("second", places[1], places[0]))
        ]
        lone = stack.enter_context(alertmanager(folder / "lone", receiver))
        words = [word for url in (*members, lone) for word in ("--alertmanager", url)]
        _, url = stack.enter_context(
            up(
                *("--no-exporter", "--rules", str(folder / "rules.yml"), "--external-label", "cluster=c1", *words),
                log=folder / "up.log",
            )
        )
        made = World(url, folder / f"state-{url.rpartition(':')[2]}", receiver, lone, (members[0], members[1]))
        wait_until(lambda: made.told("1") and made.told("2"), "both alerts are told", PATIENCE)
        yield made


def test_a_silence_holds_back_its_alert_and_no_other_until_it_is_ended(world: World) -> None:
    made = world.alerts("silence", "Busy", "--where", "gpu=1", "--comment", "card is on its way", "--for", "1h", "--by", "ann", "--json")
    assert made.returncode == 0, made.stderr
    answer = json.loads(made.stdout)
    where = [one["alertmanager"] for one in answer["made"]]
    assert len(where) == 2, "once in the cluster, once in the one beside it"
    assert world.lone in where
    names = {one["id"] for one in answer["made"]}
    assert {(one["name"], one["value"]) for one in answer["matchers"]} == {("alertname", "Busy"), ("gpu", "1"), ("cluster", "c1")}
    wait_until(lambda: set(world.listed()["1"]["silenced_by"]) == names, "listed as silenced", PATIENCE)
    assert world.listed()["2"]["silenced_by"] == []
    # One that was on its way may still come.
    quiet, loud = world.told("1") + 1, world.told("2")
    wait_until(lambda: world.told("2") >= loud + 4, "the other alert is told on", PATIENCE)
    assert world.told("1") <= quiet
    wait_until(lambda: _members_with(world, names) == set(world.cluster), "both members of the cluster have it", PATIENCE)

    listed = world.alerts("silences")
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines()[0] == "2 silences of 3 Alertmanagers"
    assert '{alertname="Busy", gpu="1", cluster="c1"} (ann: card is on its way)' in listed.stdout
    for name in names:
        ended = world.alerts("unsilence", name)
        assert (ended.returncode, f"silence {name} is ended at" in ended.stdout) == (0, True), ended.stderr
    wait_until(lambda: world.told("1") > quiet, "told again", PATIENCE)
    wait_until(lambda: world.listed()["1"]["silenced_by"] == [], "no longer listed as silenced", PATIENCE)
    assert world.alerts("silences").stdout == "0 silences of 3 Alertmanagers\n"
    gone = world.alerts("unsilence", names.pop())
    assert (gone.returncode, "no silence that is pending or active has this id" in gone.stderr) == (2, True)


def _members_with(world: World, names: set[str]) -> set[str]:
    """The members of the cluster that have one of these silences."""
    known = json.loads(get(f"{world.url}/api/poise/v1/silences")[1])["silences"]
    return {url for one in known if one["id"] in names for url in one["alertmanagers"]} & set(world.cluster)


def test_what_alertmanager_refuses_is_said_in_its_words(world: World) -> None:
    body = json.dumps({"matchers": [{"name": "gpu", "value": "(", "is_regex": True}], "comment": "c"}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {read(world.state / 'token')}"}
    request = urllib.request.Request(f"{world.url}/api/poise/v1/silences", body, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=PATIENCE)
    with refused.value:
        assert refused.value.code == 400
        assert "missing closing )" in json.load(refused.value)["error"]
    unknown = world.alerts("silence", "NoSuch", "--comment", "c")
    assert (unknown.returncode, "NoSuch: there is no such alert; " in unknown.stderr) == (2, True)
    for words, said in ((("--for", "1y"), "too long"), (("--comment", " "), "a comment is needed"), (("--where", "gpu"), "LABEL=VALUE")):
        wrong = world.alerts("silence", "Busy", "--comment", "c", *words)
        assert (wrong.returncode, said in wrong.stderr, wrong.stderr.count("\n")) == (2, True, 1), wrong.stderr


def test_an_acknowledged_alert_is_told_on_and_shown_as_acknowledged(world: World) -> None:
    before = world.told("2")
    made = world.alerts("acknowledge", "Busy", "--where", "gpu=2", "--comment", "seen", "--by", "ann")
    assert made.returncode == 0, made.stderr
    assert "only on this page" in made.stdout
    assert "Busy: GPU 2 is busy" in made.stdout
    listed = world.listed()
    assert (listed["1"]["acknowledged"], listed["2"]["acknowledged"]["by"]) == (None, "ann")
    wait_until(lambda: world.told("2") >= before + 3, "told on", PATIENCE)
    removed = world.alerts("acknowledge", "Busy", "--remove")
    assert (removed.returncode, removed.stdout) == (0, "no longer acknowledged: Busy: GPU 2 is busy\n"), removed.stderr
    assert world.listed()["2"]["acknowledged"] is None
    assert world.alerts("acknowledge", "Busy", "--remove").returncode == 2
    assert "--comment is empty" in world.alerts("acknowledge", "Busy").stderr


def test_the_token_is_shown_by_its_command_alone_and_another_holds_at_once(world: World) -> None:
    shown = world.poise("token")
    token = shown.stdout.strip()
    log = (world.state.parent / "up.log").read_text()
    assert (shown.returncode, token) == (0, read(world.state / "token"))
    assert (token in log, log.count("`poise token` shows it")) == (False, 1)
    another = world.poise("token", "--new").stdout.strip()
    words = ("alerts", "acknowledge", "Busy", "--comment", "c", "--url", world.url)
    old = world.poise(*words, environment={"POISE_TOKEN": token})
    assert (old.returncode, "this is not the token" in old.stderr, token in old.stderr) == (2, True, False)
    assert world.poise(*words, environment={"POISE_TOKEN": another}).returncode == 0
    (world.state / "other").write_text("")
    empty = world.poise(*words, "--token-file", str(world.state / "other"))
    assert (empty.returncode, f"{world.state / 'other'} is empty" in empty.stderr) == (2, True)
