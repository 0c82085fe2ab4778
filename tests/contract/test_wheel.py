"""The wheel in a fresh environment outside the tree: everything that runs is in it, and the base install is the exporter alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE = 60.0

pytestmark = pytest.mark.contract


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run to the end outside the tree, without what this test's own environment would lend."""
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )


def environment() -> dict[str, str]:
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH")}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    built = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("poise-*.whl")
    return path


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, "", tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def full(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, "[dashboard]", tmp_path_factory.mktemp("full"))


def install(wheel: Path, extra: str, folder: Path) -> Path:
    """A fresh environment with the wheel; returns its `poise`."""
    assert run(sys.executable, "-m", "venv", folder / "venv", cwd=folder).returncode == 0
    done = run(
        folder / "venv/bin/python", "-m", "pip", "install", "--quiet", "-c", ROOT / "requirements.lock", f"{wheel}{extra}", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin/poise"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(*command: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """A server outside the tree, ended by SIGTERM, which must leave in time."""
    with (cwd / "log").open("w+") as log:
        process = subprocess.Popen([str(word) for word in command], cwd=cwd, env=environment(), stdout=log, stderr=log, text=True)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def fetch(url: str, process: subprocess.Popen[str], log: Path) -> str:
    """The body once the server answers."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"{url} does not answer ({error}); log:\n{log.read_text()}") from error
            time.sleep(0.1)  # polling a port that another process opens: there is no event to await


def test_base_install_is_the_exporter_and_names_the_extra_for_the_rest(base: Path, tmp_path: Path) -> None:
    port = free_port()
    with running(base, "exporter", "--listen", f"127.0.0.1:{port}", cwd=tmp_path) as process:
        fetch(f"http://127.0.0.1:{port}/readyz", process, tmp_path / "log")
        page = fetch(f"http://127.0.0.1:{port}/metrics", process, tmp_path / "log")
    assert "poise_build_info{" in page
    assert process.returncode == 0
    refused = run(base, "up", cwd=tmp_path)
    assert refused.returncode == 2
    assert "pip install '.[dashboard]'" in refused.stderr
    assert "Traceback" not in refused.stderr
    freeze = run(base.parent / "python", "-m", "pip", "freeze", cwd=tmp_path).stdout.lower()
    assert "fastapi" not in freeze


def test_full_install_serves_the_page_with_an_exporter_of_its_own(full: Path, tmp_path: Path) -> None:
    exporter, page = free_port(), free_port()
    command = (full, "up", "--listen", f"127.0.0.1:{page}", "--exporter", f"http://127.0.0.1:{exporter}")
    with running(*command, cwd=tmp_path) as process:
        html = fetch(f"http://127.0.0.1:{page}/", process, tmp_path / "log")
        fetch(f"http://127.0.0.1:{exporter}/readyz", process, tmp_path / "log")
    assert 'role="status"' in html
    assert process.returncode == 0
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", exporter), 1).close()


def test_full_install_checks_the_rules_that_it_ships(full: Path, tmp_path: Path) -> None:
    checked = run(full, "alerts", "check", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_simulated_library_and_the_testbed_ship_their_data(full: Path, tmp_path: Path) -> None:
    code = "from pathlib import Path; from poise.testbed.nvml.library import build; print(build(Path('cache')))"
    built = run(full.parent / "python", "-c", code, cwd=tmp_path)
    assert built.returncode == 0, built.stderr
    assert run(full, "testbed", "--help", cwd=tmp_path).returncode == 0


def test_the_manifests_ship_and_the_base_install_names_the_extra_for_them(full: Path, base: Path, tmp_path: Path) -> None:
    for kind, entry in (("kubernetes", "base/kustomization.yaml"), ("compose", "compose.yaml")):
        written = run(full, "testbed", kind, "--output", tmp_path / kind, cwd=tmp_path)
        assert written.returncode == 0, written.stderr
        assert (tmp_path / kind / entry).is_file()
    refused = run(base, "testbed", "compose", "--output", tmp_path / "base", cwd=tmp_path)
    assert refused.returncode == 1
    assert "pip install '.[dashboard]'" in refused.stderr
    assert "Traceback" not in refused.stderr
