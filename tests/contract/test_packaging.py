"""The build of the exporter's image carried out without Docker, and the units of systemd before systemd itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from poise.testbed.manifests.files import Links, contents

from tests.dockerfile import read_dockerfile
from tests.needs import needs
from tests.waiting import wait_until

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]
UNITS = ROOT / "packaging" / "systemd"
BUILD_SECONDS = 300


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)


def test_the_exporters_image_builds_from_what_is_copied_and_its_program_is_healthy(tmp_path: Path) -> None:
    stages = read_dockerfile(ROOT / "Dockerfile")
    context, prefix = tmp_path / "src", tmp_path / "poise"
    context.mkdir()
    for copy in stages["source"].all("COPY"):
        for source in copy.words[:-1]:
            if source.endswith("/"):
                shutil.copytree(ROOT / source, context / source, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(ROOT / source, context)
    for step in (*stages["source"].all("RUN"), *stages["build-exporter"].all("RUN")):
        done = run(
            ["sh", "-ec", step.rest.replace("/opt/poise", str(prefix)).replace("python -m venv", f"{sys.executable} -m venv")], context
        )
        assert done.returncode == 0, done.stdout + done.stderr
    image = stages["exporter"]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    health = [sys.executable, *(word.replace("9747", port) for word in image.command("HEALTHCHECK")[1:])]
    assert run(health, tmp_path).returncode != 0
    program = [
        str(prefix / "bin" / image.command("ENTRYPOINT")[0]),
        *image.command("CMD"),
        "--listen",
        f"127.0.0.1:{port}",
        "--no-discover",
    ]
    with subprocess.Popen(program, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, "the exporter answers")
            assert run(health, tmp_path).returncode == 0
        finally:
            process.terminate()
        assert process.wait(BUILD_SECONDS) == 0
    assert run([str(prefix / "bin" / "python"), "-c", "import yaml, bcrypt"], tmp_path).returncode == 0


def answers(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5):
            return True
    except OSError:  # refused, or no answer in time on a busy machine
        return False


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_systemd_takes_the_unit_and_finds_it_confined(unit: str, tmp_path: Path) -> None:
    analyze = needs("systemd-analyze")
    poise = Path(sys.executable).with_name("poise")
    text = (UNITS / unit).read_text().replace("/opt/poise/bin/poise", str(poise))
    (tmp_path / unit).write_text(text)
    verified = run([analyze, "verify", "--man=no", str(tmp_path / unit)], tmp_path)
    complaints = [line for line in verified.stderr.splitlines() if unit in line]
    assert (verified.returncode, complaints) == (0, []), verified.stderr
    # 0 is fully confined, 10 not at all; systemd calls up to 4 "OK", and an ordinary service has 9.
    judged = run([analyze, "security", "--offline=true", "--no-pager", "--threshold=40", str(tmp_path / unit)], tmp_path)
    assert judged.returncode == 0, judged.stdout


@pytest.mark.parametrize("unit", sorted(path.name for path in UNITS.glob("*.service")))
def test_a_unit_starts_a_command_that_exists(unit: str, tmp_path: Path) -> None:
    (start,) = re.findall(r"^ExecStart=/opt/poise/bin/poise (.*) \$ARGS$", (UNITS / unit).read_text(), re.MULTILINE)
    done = run([sys.executable, "-m", "poise.cli", *start.split(), "--help"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_exporters_unit_keeps_the_devices_and_processes_open_that_it_is_there_for() -> None:
    settings = set((UNITS / "poise-exporter.service").read_text().splitlines())
    for closes in (
        "PrivateDevices",
        "ProtectClock",
        "DevicePolicy",
        "DeviceAllow",
        "PrivateUsers",
        "ProtectProc",
        "ProcSubset",
        "ProtectKernelLogs",
    ):
        assert not any(line.startswith(f"{closes}=") for line in settings), closes
    assert "CapabilityBoundingSet=CAP_SYS_PTRACE CAP_DAC_READ_SEARCH CAP_SYSLOG" in settings
    assert "ExecReload=/bin/kill -HUP $MAINPID" in settings


def test_the_dashboards_unit_has_no_rights_over_the_node() -> None:
    settings = (UNITS / "poise-dashboard.service").read_text().splitlines()
    assert {"CapabilityBoundingSet=", "AmbientCapabilities=", "PrivateDevices=yes", "ProtectProc=invisible"} <= set(settings)
    assert "ExecReload=/bin/kill -HUP $MAINPID" in settings


def test_the_dashboards_unit_has_a_state_folder_of_its_own_and_says_so_to_the_program() -> None:
    """systemd gives a state folder and all in it to the service's user: it must not be the one from which the exporter reads."""
    dashboard, exporter = ((UNITS / f"poise-{name}.service").read_text() for name in ("dashboard", "exporter"))
    (folder,) = re.findall(r"^StateDirectory=(\S+)$", dashboard, re.MULTILINE)
    assert f"Environment=POISE_STATE_DIR=/var/lib/{folder}\n" in dashboard
    assert "StateDirectoryMode=0700\n" in dashboard
    (measured,) = re.findall(r"^Environment=POISE_EXPORTER_INTERCONNECT_FILE=(\S+)$", exporter, re.MULTILINE)
    assert not measured.startswith(f"/var/lib/{folder}/")


def shipped_command(kind: str) -> list[str]:
    """The words of `poise` for the page, as the unit or the compose folder has them, without addresses."""
    if kind == "unit":
        (start,) = re.findall(
            r"^ExecStart=/opt/poise/bin/poise (.*) \$ARGS$", (UNITS / "poise-dashboard.service").read_text(), re.MULTILINE
        )
        return start.split()
    words = yaml.safe_load(contents("compose", Links())["compose.yaml"])["services"]["dashboard"]["command"]
    return [word for word in words if not word.startswith(("--listen=", "--exporter="))]


@pytest.mark.parametrize("kind", ["unit", "compose"])
def test_the_page_as_it_ships_keeps_history_and_token_in_its_state_folder(kind: str, tmp_path: Path) -> None:
    """With a home that nobody can write in, as DynamicUser= and the image have it, and read again on the signal of ExecReload=."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    addresses = ["--listen", f"127.0.0.1:{port}", "--exporter", "http://127.0.0.1:1"]
    environment = {**os.environ, "HOME": "/proc/no-home", "POISE_STATE_DIR": str(tmp_path / "state")}
    command, log = [sys.executable, "-m", "poise.cli", *shipped_command(kind), *addresses], tmp_path / "log"
    with log.open("wb") as output, subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=output, stderr=output) as process:
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, "the page answers")
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "read anew" in log.read_text() or process.poll() is not None, "it read its settings again")
        finally:
            process.terminate()
        assert process.wait(BUILD_SECONDS) == 0, log.read_text()
    assert {"history.db", "token"} <= {path.name for path in (tmp_path / "state").iterdir()}
    assert "in memory" not in log.read_text()
