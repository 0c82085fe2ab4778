"""The notifier and a real Alertmanager that goes away, comes back, refuses, or shows a certificate of somebody else; and what people ask a real
Prometheus about alerts."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from poise.alerts.evaluation.active import Alert as EvaluatedAlert
from poise.alerts.evaluation.active import State
from poise.alerts.evaluation.group_run import ToSend
from poise.alerts.evaluation.prepared import prepare
from poise.alerts.notification import notifier as notifier_module
from poise.alerts.notification.alertmanager import Alertmanager, AlertmanagerError, Matcher, Place, Silence
from poise.alerts.notification.notifier import Notifier
from poise.alerts.notification.payload import payload
from poise.alerts.rules import parse_rules
from poise.exporter.access import Access
from poise.history.promql.labels import labels

from tests.certificates import Authority
from tests.monitoring import Receiver, Server, free_port, receiving, started
from tests.needs import needs

pytestmark = pytest.mark.contract

((GROUP,)) = prepare([parse_rules("groups: [{name: g, rules: [{alert: Busy, expr: up}]}]")], 15.0)
PATIENCE = 60.0


@contextmanager
def alertmanager(folder: Path, receiver: Receiver, port: int, *, web: Path | None = None) -> Iterator[Server]:
    """A real one on a port that it comes back to, which tells of each alert alone and at once; its memory is lost with it."""
    folder.mkdir(exist_ok=True)
    configuration = {
        "route": {"receiver": "all", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s", "repeat_interval": "1h"},
        "receivers": [{"name": "all", "webhook_configs": [{"url": f"{receiver.url}/all", "send_resolved": True}]}],
    }
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(configuration))
    command = [
        needs("prometheus-alertmanager"),
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
        *([f"--web.config.file={web}"] if web else []),
    ]
    if web:
        process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            yield Server("alertmanager", f"https://127.0.0.1:{port}", folder / "log")
        finally:
            process.terminate()
            process.wait(20)
        return
    with started("alertmanager", command, f"http://127.0.0.1:{port}", "/-/ready", folder / "alertmanager.log") as server:
        yield server


def firing(gpu: str, *, seconds_ago: float = 0.0) -> ToSend:
    at = round((time.time() - seconds_ago) * 1000)
    own = labels({"alertname": "Busy", "gpu": gpu, "severity": "warning"})
    return ToSend(EvaluatedAlert(own, {"summary": f"GPU {gpu}"}, 1.0, State.FIRING, at, at), at + 240_000, GROUP.rules[0])


def resolved(one: ToSend) -> ToSend:
    at = round(time.time() * 1000)
    return replace(one, alert=replace(one.alert, state=State.INACTIVE, resolved_at=at), ends_at=at)


@asynccontextmanager
async def notifying(*places: Place) -> AsyncIterator[Notifier]:
    made = Notifier([Alertmanager(place) for place in places], external_labels={"cluster": "c1"}, page="http://page:9748", wall=time.time)
    task = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    try:
        yield made
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, f"not within {PATIENCE:.0f} s: {what}"
        await asyncio.sleep(0.02)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifier_module, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(notifier_module, "LONGEST_PAUSE", 0.2)


def test_alerts_of_an_outage_arrive_once_when_alertmanager_is_back(tmp_path: Path) -> None:
    """Twenty resends while it is away; one alert began and one ended meanwhile. Nothing is told twice, nothing grows."""
    port = free_port()
    with receiving() as receiver:

        async def main() -> None:
            async with notifying(Place(f"http://127.0.0.1:{port}", 2.0)) as made:
                before, during = firing("0"), firing("1")
                with ExitStack() as first:
                    first.enter_context(alertmanager(tmp_path / "one", receiver, port))
                    made.take([before])
                    await until(lambda: receiver.alerts(gpu="0"), "the alert before the outage")
                for _ in range(20):
                    made.take([before, during])
                    await asyncio.sleep(0.02)
                made.take([resolved(before)])
                await until(lambda: made.status()[0].error, "the outage is said")
                assert made.status()[0].waiting == 2
                with alertmanager(tmp_path / "one", receiver, port):
                    await until(lambda: made.status()[0].waiting == 0, "all taken")
                    made.take([during])
                    await until(lambda: receiver.alerts(gpu="1"), "the alert of the outage")
                    await until(lambda: [alert for alert in receiver.alerts(gpu="0") if not alert.firing], "the end of the first")
                    await asyncio.sleep(2.5)  # two group intervals, in which anything that comes twice would come

        asyncio.run(main())
        told = [(alert.labels["gpu"], alert.status) for alert in receiver.alerts()]
        assert sorted(told) == [("0", "firing"), ("0", "resolved"), ("1", "firing")]
        assert receiver.alerts(gpu="1")[0].labels["cluster"] == "c1"


def test_an_alert_that_alertmanager_refuses_is_said_and_holds_up_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with receiving() as receiver, alertmanager(tmp_path, receiver, port):

        async def main() -> None:
            async with notifying(Place(f"http://127.0.0.1:{port}")) as made:
                wrong = firing("0")
                wrong = replace(wrong, alert=replace(wrong.alert, fired_at=wrong.ends_at + 60_000))  # it ends before it begins
                made.take([wrong])
                await until(lambda: made.status()[0].failed, "refused")
                made.take([firing("1")])
                await until(lambda: receiver.alerts(gpu="1"), "the good one")
                assert made.status()[0].waiting == 0

        asyncio.run(main())
        assert receiver.alerts(gpu="0") == []
    assert "status 400" in caplog.text
    assert "gpu=0, severity=warning}, which is let go" in caplog.text


def test_alerts_that_alertmanager_refuses_among_others_are_named_and_the_others_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    with receiving() as receiver, alertmanager(tmp_path, receiver, port):

        async def main() -> None:
            async with notifying(Place(f"http://127.0.0.1:{port}")) as made:
                wrong = firing("0")
                wrong = replace(wrong, alert=replace(wrong.alert, fired_at=wrong.ends_at + 60_000))
                made.take([firing("1"), wrong, *(firing(str(number)) for number in range(2, 9))])
                await until(lambda: made.status()[0].sent == 8, "the good ones")
                (line,) = made.status()
                assert (line.failed, line.dropped, line.refused) == (1, 1, 1)
                assert "gpu=0" in line.refusal
                await until(lambda: len(receiver.alerts()) == 8, "all are told")
                await asyncio.sleep(2.5)  # two group intervals, in which anything that comes twice would come

        asyncio.run(main())
        assert sorted(alert.labels["gpu"] for alert in receiver.alerts()) == list("12345678")
    assert caplog.text.count("which is let go") == 1


def test_tls_with_login_and_a_certificate_of_somebody_else(tmp_path: Path) -> None:
    ours, theirs = Authority.create(tmp_path, "ours"), Authority.create(tmp_path, "theirs")
    pair = ours.issue("server")
    web = tmp_path / "web.yml"
    # The hash of "secret" (bcrypt, cost 4).
    user = subprocess.run(
        [sys.executable, "-c", "import bcrypt; print(bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode())"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    web.write_text(
        yaml.safe_dump(
            {"tls_server_config": {"cert_file": str(pair.certificate), "key_file": str(pair.key)}, "basic_auth_users": {"poise": user}}
        )
    )
    (tmp_path / "password").write_text("secret\n")
    port = free_port()
    access = Access(ca_file=str(ours.certificate), username="poise", password_file=str(tmp_path / "password"))
    url = f"https://127.0.0.1:{port}"
    with receiving() as receiver, alertmanager(tmp_path / "tls", receiver, port, web=web):

        async def main() -> None:
            wrong = replace(access, ca_file=str(theirs.certificate))
            async with notifying(
                Place(url, access=access), Place(url, access=wrong), Place(url, access=replace(access, username="", password_file=""))
            ) as made:
                made.take([firing("0")])
                await until(lambda: made.status()[0].sent == 1, "sent with the right authority and login")
                await until(lambda: "certificate" in made.status()[1].error, "the wrong authority is said")
                await until(lambda: "401" in made.status()[2].error, "the missing login is said")
                assert (made.status()[1].sent, made.status()[2].sent) == (0, 0)

        asyncio.run(main())
        receiver.wait_for(lambda alert: alert.labels.get("gpu") == "0", PATIENCE)


def test_a_silence_is_made_seen_and_ended(tmp_path: Path) -> None:
    port = free_port()
    with receiving() as receiver, alertmanager(tmp_path, receiver, port):

        async def main() -> None:
            one = Alertmanager(Place(f"http://127.0.0.1:{port}"))
            now = time.time()
            with pytest.raises(AlertmanagerError, match="status 4"):
                await one.silence(Silence((), now, now + 60, "me", "why"))
            wanted = Silence((Matcher("alertname", "Busy"), Matcher("gpu", "0|1", is_regex=True)), now, now + 3600, "me", "planned work")
            identifier = await one.silence(wanted)
            (found,) = await one.silences()
            assert (found.identifier, found.state, found.comment, found.created_by) == (identifier, "active", "planned work", "me")
            assert set(found.matchers) == set(wanted.matchers)
            await one.post_alerts([payload(firing("0"), {}, "")])

            async def suppressed() -> bool:
                return [(alert.state, alert.silenced_by) for alert in await one.alerts()] == [("suppressed", (identifier,))]

            end = time.monotonic() + PATIENCE
            while not await suppressed():
                assert time.monotonic() < end, "the alert is not silenced"
                await asyncio.sleep(0.05)
            await one.expire(identifier)
            assert await one.silences() == []
            assert [silence.state for silence in await one.silences(expired=True)] == ["expired"]

        asyncio.run(main())


def test_status_and_explain_ask_a_real_prometheus(tmp_path: Path) -> None:
    port = free_port()
    rules = {
        "groups": [
            {
                "name": "g",
                "interval": "1s",
                "rules": [
                    {"record": "level:up:max", "expr": "max by (job) (up)"},
                    {"alert": "Up", "expr": "level:up:max == 1 unless nothing > 0", "annotations": {"summary": "{{ $labels.job }} is up"}},
                    {"alert": "Slow", "expr": "up > 1", "for": "5m"},
                ],
            }
        ]
    }
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    scraping = [{"job_name": "self", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
    (tmp_path / "prometheus.yml").write_text(
        yaml.safe_dump({"global": {"scrape_interval": "1s"}, "rule_files": ["rules.yml"], "scrape_configs": scraping})
    )
    command = [
        needs("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]

    def poise(*words: str) -> subprocess.CompletedProcess[str]:
        whole = [sys.executable, "-m", "poise.cli", "alerts", *words, "--url", f"http://127.0.0.1:{port}"]
        return subprocess.run(whole, capture_output=True, text=True, timeout=PATIENCE, check=False)

    with started("prometheus", command, f"http://127.0.0.1:{port}", "/-/ready", tmp_path / "log"):
        end = time.monotonic() + PATIENCE
        while "Up: self is up" not in (status := poise("status")).stdout:
            assert time.monotonic() < end, status.stdout + status.stderr
        assert status.returncode == 1
        assert "2 alerting rules: 1 alert firing" in status.stdout
        explained = poise("explain", "Up", "--deep")
        assert explained.returncode == 0, explained.stderr
        assert "Up: firing, fires at once" in explained.stdout
        assert "✓ level:up:max == 1" in explained.stdout
        assert "no such series here: nothing" in explained.stdout
        assert "level:up:max is recorded from" in explained.stdout
        quiet = json.loads(poise("explain", "Slow", "--json").stdout)
        assert [(one["rule"]["wait"], one["clause"]["holds"]) for one in quiet] == [(300.0, False)]
        assert poise("explain", "Up", "--where", "job=self").stdout.splitlines()[0].startswith("Up: firing")
        other = poise("explain", "Up", "--where", "job=other")
        assert (other.returncode, other.stderr) == (
            2,
            f"poise: http://127.0.0.1:{port}: there was no series with job=other in the hour before; there was self\n",
        )
        absent = poise("explain", "NoSuch")
        assert (absent.returncode, absent.stderr) == (
            2,
            f"poise: http://127.0.0.1:{port}: NoSuch: there is no such alert; known are Slow, Up\n",
        )
    assert poise("status").returncode == 2
