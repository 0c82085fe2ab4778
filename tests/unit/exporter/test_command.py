"""`poise exporter` as a process: it serves with and without a driver, and leaves within two seconds whatever hangs."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.node import SimulatedNode

from tests.waiting import PATIENCE_SECONDS, wait_until

#: The contract for leaving, with room for a machine that is busy with other tests.
LEAVE_SECONDS = 2.0
SLOW_MACHINE_SECONDS = 8.0


class Process:
    """A running `poise exporter` and what it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def close(self) -> None:
        """Ends the reading once the process is gone."""
        self._reader.join(PATIENCE_SECONDS)
        assert self.process.stderr is not None
        self.process.stderr.close()

    @property
    def log(self) -> str:
        return "".join(self.lines)

    @property
    def port(self) -> int:
        wait_until(lambda: re.search(r":(\d+)/metrics", self.log) or self.process.poll() is not None, "it says where it listens")
        match = re.search(r":(\d+)/metrics", self.log)
        assert match, self.log
        return int(match[1])

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=PATIENCE_SECONDS) as answer:
            return str(answer.read().decode())

    def ready(self) -> bool:
        with contextlib.suppress(OSError):
            return "ready" in self.get("/readyz")
        return False

    def value(self, series: str) -> float | None:
        match = re.search(rf"^{re.escape(series)} (\S+)$", self.get("/metrics"), re.MULTILINE)
        return float(match[1]) if match else None

    def leave(self, number: int = signal.SIGTERM) -> tuple[int, float]:
        """Exit code and seconds until the process was gone."""
        began = time.monotonic()
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE_SECONDS)
        took = time.monotonic() - began
        self._reader.join(PATIENCE_SECONDS)
        return code, took


@contextlib.contextmanager
def exporter(folder: Path, *flags: str, environment: dict[str, str] | None = None) -> Iterator[Process]:
    command = [sys.executable, "-m", "poise.cli.main", "exporter", "--listen=127.0.0.1:0", "--no-discover", *flags]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("POISE_")}
    process = subprocess.Popen(command, cwd=folder, env={**inherited, **(environment or {})}, stderr=subprocess.PIPE, text=True)
    running = Process(process)
    try:
        yield running
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        running.close()


@pytest.fixture
def cards(tmp_path: Path) -> Iterator[SimulatedNode]:
    with SimulatedNode.create(tmp_path / "node", "h20x2") as node:
        yield node


def test_it_serves_cards_and_says_what_it_found(cards: SimulatedNode, tmp_path: Path) -> None:
    with exporter(tmp_path, "--expected-gpus=2", environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready")
        page = running.get("/metrics")
        for gpu in cards.gpus:
            assert f'uuid="{gpu.uuid}"}} 1\n' in page
        assert 'simulated="true"' in page
        assert running.value("poise_node_gpus_visible") == running.value("poise_node_gpus_expected") == 2
        assert json.loads(running.get("/checks"))["simulated"] is True
        code, took = running.leave()
        assert code == 0
        assert took < SLOW_MACHINE_SECONDS
        for words in ("poise exporter", "NVIDIA driver 5", "card 0: Simulated NVIDIA H20", "cards: 2 (expected 2)", "leaving"):
            assert words in running.log
        assert "Traceback" not in running.log


def test_it_leaves_in_time_with_a_card_that_hangs_and_a_client_that_holds_on(cards: SimulatedNode, tmp_path: Path) -> None:
    with exporter(tmp_path, environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready")
        cards.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0).wait_until_held()
        wait_until(lambda: running.value(f'poise_gpu_up{{gpu="0",uuid="{cards.gpus[0].uuid}"}}') == 0, "the card is down")
        assert running.value(f'poise_gpu_up{{gpu="1",uuid="{cards.gpus[1].uuid}"}}') == 1
        with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_SECONDS) as client:
            client.sendall(b"GET /metrics HTTP/1.1\r\n")
            code, took = running.leave()
        assert code == 0
        assert took < SLOW_MACHINE_SECONDS
        assert "leaving without it" in running.log


def test_it_leaves_in_time_while_the_driver_hangs_in_its_start(cards: SimulatedNode, tmp_path: Path) -> None:
    cards.inject("nvmlInitWithFlags", hang=True)
    with exporter(tmp_path, environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready without the driver")
        assert running.value("poise_node_gpus_visible") == 0
        code, took = running.leave(signal.SIGINT)
        assert (code, took < SLOW_MACHINE_SECONDS) == (0, True)


def test_without_a_driver_it_serves_the_node_and_picks_the_driver_up(cards: SimulatedNode, tmp_path: Path) -> None:
    cards.fail_init(ReturnCode.DRIVER_NOT_LOADED)
    with exporter(tmp_path, "--expected-gpus=2", environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready")
        assert running.value("poise_node_gpus_visible") == 0
        assert running.value("poise_node_gpus_expected") == 2
        assert running.value('poise_collector_success{collector="driver"}') == 0
        cards.load_driver()
        wait_until(lambda: running.value("poise_node_gpus_visible") == 2, "the cards are there")
        assert running.log.count("no NVIDIA driver") == 1, "a state is logged once, not each time"


def test_on_a_machine_without_nvidia_it_serves_all_the_same(tmp_path: Path) -> None:
    with exporter(tmp_path, "--expected-gpus=0") as running:
        wait_until(running.ready, "it is ready")
        assert running.value("poise_node_gpus_visible") == 0
        assert running.leave()[0] == 0


def test_a_wrong_setting_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "poise.toml").write_text("[exporter]\nintervall = 1\n")
    with exporter(tmp_path) as running:
        assert running.process.wait(PATIENCE_SECONDS) == 2
        wait_until(lambda: running.lines, "it said why")
        assert running.log == "poise: poise.toml: unknown key 'intervall' in [exporter]; did you mean 'interval'?\n"


def test_a_taken_port_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with exporter(tmp_path, f"--listen={address}") as running:
            assert running.process.wait(PATIENCE_SECONDS) == 2
            wait_until(lambda: running.lines, "it said why")
            assert running.log.startswith(f"poise: cannot listen on {address}: the port is taken")
            assert len(running.log.splitlines()) == 1


def test_log_lines_can_be_json(cards: SimulatedNode, tmp_path: Path) -> None:
    with exporter(tmp_path, "--log-format=json", environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready")
        running.leave()
        entries = [json.loads(line) for line in running.lines]
        assert {"time", "level", "logger", "message"} <= set(entries[0])
        assert any("leaving" in entry["message"] for entry in entries)


# ------------------------------------------------------------------------------------------------------- read again on SIGHUP
def hang_up(running: Process, words: str) -> None:
    """Sends SIGHUP and waits for what is logged of it."""
    before = running.log.count(words)
    running.process.send_signal(signal.SIGHUP)
    wait_until(lambda: running.log.count(words) > before, f"{words!r} is logged")


def test_settings_are_read_again_without_losing_anything(cards: SimulatedNode, tmp_path: Path) -> None:
    file = tmp_path / "poise.toml"
    file.write_text('[exporter]\nexpected_gpus = 2\n[[exporter.engines]]\nname = "one"\nurl = "http://127.0.0.1:1"\n')
    with exporter(tmp_path, environment=cards.environment()) as running:
        wait_until(running.ready, "it is ready")
        busy = running.value(f'poise_gpu_energy_joules_total{{gpu="0",uuid="{cards.gpus[0].uuid}"}}') or 0.0
        file.write_text(
            '[exporter]\ninterval = "5s"\nexpected_gpus = 8\nlog_level = "debug"\nlog_format = "json"\n'
            '[[exporter.engines]]\nname = "two"\nurl = "http://127.0.0.1:1"\n'
        )
        hang_up(running, "not in force before a restart: interval")
        assert "settings were read again: new engines, expected_gpus, log_level, log_format" in running.log
        wait_until(lambda: 'engine="two"' in running.get("/metrics"), "the new engine is there")
        assert 'engine="one"' not in running.get("/metrics")
        assert (running.value(f'poise_gpu_energy_joules_total{{gpu="0",uuid="{cards.gpus[0].uuid}"}}') or 0.0) >= busy
        assert json.loads(running.lines[-1])["level"]
        hang_up(running, "nothing new that can change now")
        file.write_text("[exporter]\nexpected_gpus = 'many'\n")
        hang_up(running, "expected_gpus=many: expected a number of cards from 0 to 1024; the settings from before stay in force")
        assert 'engine="two"' in running.get("/metrics")
        assert "Traceback" not in running.log
        assert running.leave()[0] == 0


def test_a_web_configuration_is_in_force_and_read_again(tmp_path: Path) -> None:
    file = tmp_path / "web.yml"
    (tmp_path / "poise.toml").write_text('[exporter]\nweb_config_file = "web.yml"\nexpected_gpus = 0\n')
    file.write_text("rate_limit: {interval: 1ms, burst: 1000}\nhttp_server_config: {headers: {X-Frame-Options: deny}}\n")
    with exporter(tmp_path) as running:
        wait_until(running.ready, "it is ready")
        with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/", timeout=PATIENCE_SECONDS) as answer:
            assert answer.headers["X-Frame-Options"] == "deny"
        file.write_text("basic_auth_users: {alice: hunter2}\n")
        hang_up(running, "user 1 has no bcrypt hash")
        assert running.ready()
        file.write_text("")
        hang_up(running, "was read again")
        assert "hunter2" not in running.log
        assert running.leave()[0] == 0


def test_a_wrong_web_configuration_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    (tmp_path / "web.yml").write_text("tls_server_config: {cert_file: a.pem}\n")
    with exporter(tmp_path, "--web.config.file=web.yml") as running:
        assert running.process.wait(PATIENCE_SECONDS) == 2
        wait_until(lambda: running.lines, "it said why")
        assert running.log == (
            "poise: --web.config.file=web.yml: tls_server_config.key_file is missing: TLS needs cert_file and key_file\n"
        )


#: An exporter that is told to read its settings again while it still starts, and whose settings are on a disk that hangs the second time.
SLOW_DISK = """
import os, signal, sys, threading
from poise.cli.main import main
from poise.exporter import settings
load, reads = settings.load, []
def slow(*arguments):
    reads.append(1)
    if len(reads) == 1:
        os.kill(os.getpid(), signal.SIGHUP)
    elif len(reads) == 2:
        print("reading", file=sys.stderr, flush=True)
        threading.Event().wait()
    return load(*arguments)
settings.load = slow
sys.exit(main(["exporter", "--listen=127.0.0.1:0", "--no-discover", "--expected-gpus=0"]))
"""


def test_it_starts_and_leaves_while_the_disk_of_its_settings_hangs(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW_DISK], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    running = Process(process)
    try:
        wait_until(running.ready, "it is ready")
        wait_until(lambda: "reading" in running.log, "the SIGHUP of its start was taken")
        for _ in range(100):
            process.send_signal(signal.SIGHUP)
        assert running.ready()
        code, took = running.leave()
        assert (code, took < SLOW_MACHINE_SECONDS) == (0, True)
        assert "Traceback" not in running.log
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        running.close()


def test_it_serves_and_leaves_while_nobody_reads_what_it_logs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    command = [sys.executable, "-m", "poise.cli.main", "exporter", f"--listen=127.0.0.1:{port}", "--no-discover", "--expected-gpus=0"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=writer)

    def answers() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE_SECONDS) as answer:
            return b"ready" in answer.read()
        return False

    try:
        wait_until(answers, "it is ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        os.close(reader)
        os.close(writer)


#: A system without a thread left.
NO_THREAD = """
import sys, threading
from poise.cli.main import main
def refused(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refused
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [["exporter", "--listen=127.0.0.1:0"], ["doctor", "--here", "--window=1s"]])
def test_no_thread_left_at_the_start_is_one_line_with_the_way_out(command: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_THREAD, *command, "--no-discover"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode != 0
    assert "can't start new thread: raise the limit of processes (ulimit -u" in done.stderr
    assert "Traceback" not in done.stderr
