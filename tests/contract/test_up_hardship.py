"""A running `poise up` whose disk is full or read-only, whose process is killed, whose clock is set: it goes on, says what is the matter, and
what it had kept is there afterwards.
"""

from __future__ import annotations

import contextlib
import json
import math
import signal
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import poise_up
from tests.alert_nodes import tensor_parallel
from tests.contract_page import ContractPage, served
from tests.needs import needs, needs_namespaces
from tests.poise_up import get, up

pytestmark = pytest.mark.contract

#: A small disk: a history, its journal and the memory of alerts fit in.
DISK = "6m"
#: Scrapes every second; rules at a thirtieth of their times, every two seconds.
PACE = ("--no-exporter", "--scrape-interval", "1", "--alerts-time-scale", "0.0333", "--alerts-interval", "60s")
#: Seconds for what takes a few: other tests may want the cores.
PATIENCE = 120.0


@dataclass(frozen=True)
class Disk:
    """A file system in a mount namespace of its own, which is gone with its keeper. `inside` is where it lies there."""

    keeper: int
    inside: Path

    @property
    def outside(self) -> Path:
        """The same folder as seen from here."""
        return Path(f"/proc/{self.keeper}/root{self.inside}")

    @property
    def entered(self) -> tuple[str, ...]:
        """The command that runs another in there."""
        return ("nsenter", f"--mount=/proc/{self.keeper}/ns/mnt", "--")

    def mounted(self, option: str) -> None:
        """`rw` or `ro` from now on."""
        subprocess.run([*self.entered, "mount", "-o", f"remount,{option}", str(self.inside)], check=True, timeout=60)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    needs_namespaces()
    inside = tmp_path / "disk"
    inside.mkdir()
    script = f'mount -t tmpfs -o size={DISK} none "{inside}" && echo mounted && exec cat'
    with subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdout is not None
        try:
            assert keeper.stdout.readline() == "mounted\n"
            yield Disk(keeper.pid, inside)
        finally:
            keeper.kill()


@pytest.fixture
def page() -> Iterator[ContractPage]:
    with served(ContractPage()) as found:
        found.node("n1.example")
        tensor_parallel(found, busy=0.95, tokens=500)
        yield found


def wait_for(condition: Callable[[], object], what: str) -> None:
    poise_up.wait_for(condition, what, PATIENCE)


def ask(url: str, query: str, at: float | None = None) -> list[float]:
    """The values of an instant query; none while the page does not answer."""
    given = {"query": query} | ({} if at is None else {"time": f"{at}"})
    status, text = get(f"{url}/api/v1/query?{urllib.parse.urlencode(given)}", timeout=30)
    return [float(one["value"][1]) for one in json.loads(text)["data"]["result"]] if status == 200 else []


def kept(url: str, at: float | None = None) -> float:
    """How many scrapes of the node are known, of the hour before a moment."""
    return sum(ask(url, "count_over_time(up[1h])", at))


def writing_failed(url: str) -> bool:
    """Whether the history says of itself that its disk takes nothing."""
    return "\npoise_history_writing_failed 1.0" in get(f"{url}/metrics", timeout=30)[1]


def evaluations(url: str) -> float:
    """How many evaluations of rules the evaluator counts, over all groups."""
    lines = get(f"{url}/metrics", timeout=30)[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("poise_evaluator_rule_evaluations_total"))


def fill(path: Path) -> None:
    """A file over all that is free."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass


def test_a_full_disk_stops_nothing_is_said_once_and_a_kill_afterwards_loses_nothing_that_was_written(
    page: ContractPage, disk: Disk, tmp_path: Path
) -> None:
    words = (*PACE, "--exporter", f"http://{page.address}")
    state = {"POISE_STATE_DIR": str(disk.inside / "state")}
    with up(*words, log=tmp_path / "log", environment=state, within=disk.entered) as (process, url):
        wait_for(lambda: kept(url) >= 6, "six scrapes are kept")
        assert not writing_failed(url)
        filler = disk.outside / "filler"
        fill(filler)
        full_at = time.time()
        wait_for(lambda: writing_failed(url), "the history says that its disk is full")
        known = kept(url)
        wait_for(lambda: kept(url) >= known + 4, "observation goes on in memory")
        wait_for(lambda: ask(url, 'ALERTS{alertname="Watchdog",alertstate="firing"}') == [1.0], "and rules are evaluated")
        assert get(f"{url}/")[0] == 200
        filler.unlink()
        wait_for(lambda: not writing_failed(url), "it is written again")
        room_at, before = time.time(), kept(url, full_at)
        wait_for(lambda: kept(url, time.time()) - kept(url, room_at) >= 4, "and again")
        killed_at = time.time()
        after = kept(url, killed_at) - kept(url, room_at)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert log.count("nothing can be written") <= 2, "of the history and of the memory of alerts, once each"
    assert "disk is full" in log
    assert "written again" in log
    with up(*words, log=tmp_path / "log2", environment=state, within=disk.entered) as (_, url):
        wait_for(lambda: kept(url, full_at) >= before, "what was written before the disk was full is there")
        assert kept(url, killed_at) - kept(url, room_at) >= after - 1, "and what was written after that, but for the last scrape"
    assert "Traceback" not in (tmp_path / "log2").read_text()


def test_a_read_only_disk_is_named_with_the_way_out_and_costs_only_what_a_restart_would_have_kept(
    page: ContractPage, disk: Disk, tmp_path: Path
) -> None:
    (disk.outside / "state").mkdir()
    disk.mounted("ro")
    state = {"POISE_STATE_DIR": str(disk.inside / "state")}
    with up(*PACE, "--exporter", f"http://{page.address}", log=tmp_path / "log", environment=state, within=disk.entered) as (_, url):
        wait_for(lambda: kept(url) >= 4, "scrapes are kept in memory")
        wait_for(lambda: ask(url, 'ALERTS{alertname="Watchdog",alertstate="firing"}') == [1.0], "rules are evaluated")
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert str(disk.inside / "state") in log
    assert "--history" in log


@pytest.mark.parametrize("steps", [(-3600.0, 3600.0), (3600.0, -3600.0)], ids=["back-and-forward", "forward-and-back"])
def test_a_clock_that_is_set_and_set_right_loses_no_scrape_and_ends_no_alert(
    page: ContractPage, tmp_path: Path, steps: tuple[float, float]
) -> None:
    found = subprocess.run(
        [needs("faketime"), "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True, timeout=60
    )
    setting = tmp_path / "clock"
    offset = 0.0

    def set_by(seconds: float) -> None:
        nonlocal offset
        offset += seconds
        written = tmp_path / "next"
        written.write_text(f"{offset:+.0f}")
        written.rename(setting)

    def firing(url: str) -> set[str]:
        alerts = json.loads(get(f"{url}/api/v1/alerts", timeout=30)[1] or '{"data": {"alerts": []}}')["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    set_by(0)
    environment = {
        "LD_PRELOAD": found.stdout.strip(),
        "FAKETIME_TIMESTAMP_FILE": str(setting),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    words = (*PACE, "--exporter", f"http://{page.address}")
    with up(*words, log=tmp_path / "log", environment=environment) as (_, url):
        wait_for(lambda: kept(url) >= 6, "six scrapes are kept")
        wait_for(lambda: "Watchdog" in firing(url), "the rules are evaluated")
        before_at, before = time.time(), kept(url, time.time())
        for step in steps:
            set_by(step)
            began = time.time()

            def goes_on(began: float = began) -> bool:
                now = time.time()
                return sum(ask(url, f"count_over_time(up[{math.ceil(now - began)}s])", now + offset)) >= 5

            wait_for(goes_on, f"scrapes come after the clock was set by {step:+.0f} s")
            slots = evaluations(url)
            wait_for(lambda slots=slots: evaluations(url) > slots, f"rules are evaluated after the clock was set by {step:+.0f} s")
            assert "Watchdog" in firing(url)
        assert kept(url, before_at) >= before, "what was kept before is there"
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "clock was set back" in log
