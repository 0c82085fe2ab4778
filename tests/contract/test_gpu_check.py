"""scripts/gpu_check.sh on a simulated node: every step comes to its end, a hang costs its step, nothing that names the machine is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import prometheus_client
import pynvml
import pytest
from poise.exporter import metrics as m
from poise.testbed.nvml.node import SimulatedNode

pytestmark = pytest.mark.contract

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 170
FLAGS = ("--no-discover", "--no-load", "--seconds", "1")


def check(
    node: SimulatedNode | None, output: Path, *flags: str, root: Path = ROOT, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs the script; the simulated library is named by its path, as one would a library that the loader does not find."""
    own = dict(os.environ) if environment is None else environment
    if node is not None:
        simulated = node.environment()
        library = Path(simulated.pop("LD_LIBRARY_PATH").split(os.pathsep)[0]) / "libnvidia-ml.so.1"
        own |= simulated
        flags = ("--library", str(library), *flags)
    command = ["sh", str(root / "scripts" / "gpu_check.sh"), "--output", str(output), *FLAGS, *flags]
    return subprocess.run(command, env=own, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


def test_every_question_is_answered_and_the_capture_is_whole(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> None:
    node = make_node("h100x8")
    done = check(node, tmp_path / "capture")
    assert done.returncode == 0, done.stdout + done.stderr
    written = {path.name: path.read_text() for path in (tmp_path / "capture").iterdir()}
    assert set(written) == {"report.txt", "versions.json", "nvml.json", "metrics.prom", "checks.json", "exporter.log"}

    answers = json.loads(written["nvml.json"])
    assert written["report.txt"].strip() in done.stdout
    assert written["report.txt"].endswith("## What went wrong\n\nnothing\n")
    assert "no answer" not in written["report.txt"]
    assert "used is without reserved" in answers["questions"]["Does `used` of nvmlMemory_v2 contain the reserved part?"]
    assert len(answers["questions"]) > 20
    cards = answers["cards"]
    assert len(cards) == 8
    assert cards[0]["fields"]["91"] == {"type": 1, "value": 18, "us": cards[0]["fields"]["91"]["us"]}
    assert set(cards[0]["link_fields"]["138"]) == {*map(str, range(18)), "all"}
    cost = answers["cost"]
    assert len(cost) > 30
    assert all(entry["calls"] >= 3 and 0 < entry["median_us"] <= entry["p99_us"] for entry in cost.values())
    assert answers["ticks"]["cards"] == 8
    assert answers["ticks"]["errors"] == {}

    names = {line.partition("{")[0].partition(" ")[0] for line in written["metrics.prom"].splitlines() if not line.startswith("#")}
    declared = {name for metric in m.ALL for name in metric.sample_names}
    assert {name for name in names if name.startswith("poise_")} <= declared
    assert m.GPU_POWER.name in names
    assert json.loads(written["checks.json"])["simulated"] is True
    assert json.loads(written["versions.json"])["driver"] == "570.172.08"
    for text in (*written.values(), done.stdout):
        for gpu in node.gpus:
            assert gpu.uuid not in text, "a UUID of the machine is masked"
            assert gpu.serial not in text
    assert 'uuid="GPU-00000000-0000-0000-0000-000000000007"' in written["metrics.prom"]


def test_a_hang_costs_its_step_alone_and_identities_are_kept_when_asked(make_node: Callable[[str], SimulatedNode], tmp_path: Path) -> None:
    node = make_node("pcie-x2")
    node.inject("nvmlSystemGetConfComputeState", hang=True)
    done = check(node, tmp_path / "capture", "--keep-identities", "--step-seconds", "15")
    assert done.returncode == 1
    report = (tmp_path / "capture" / "report.txt").read_text()
    assert "confidential_computing: no answer after 15 s" in report
    assert report.count("no answer, see below") == 1
    assert node.gpus[1].uuid in (tmp_path / "capture" / "metrics.prom").read_text()
    assert len(json.loads((tmp_path / "capture" / "nvml.json").read_text())["cards"]) == 2


def test_without_a_driver_it_says_so(tmp_path: Path) -> None:
    done = check(None, tmp_path / "capture", "--library", str(tmp_path / "libnvidia-ml.so.1"))
    assert done.returncode == 2
    assert "cannot be loaded" in done.stdout
    assert "poise_build_info" in (tmp_path / "capture" / "metrics.prom").read_text()


@pytest.fixture
def bare_tree(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A tree without .venv and a python3 that has no packages, and the environment that finds it."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("exporter", "cli", "scripts"):
        (tree / name).symlink_to(ROOT / name)
    programs = tmp_path / "bin"
    programs.mkdir()
    python = programs / "python3"
    # -S leaves out site-packages; PYTHONPATH stays.
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    return tree, {**os.environ, "PATH": f"{programs}:/usr/bin:/bin"}


def test_wheels_at_hand_make_up_for_a_python_that_lacks_packages(
    bare_tree: tuple[Path, dict[str, str]], make_node: Callable[[str], SimulatedNode], tmp_path: Path
) -> None:
    tree, environment = bare_tree
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "nvidia_ml_py-1-py3-none-any.whl", "w") as wheel:
        wheel.write(pynvml.__file__, "pynvml.py")
    package = Path(prometheus_client.__file__).parent
    with zipfile.ZipFile(wheels / "prometheus_client-1-py3-none-any.whl", "w") as wheel:
        for path in package.rglob("*.py"):
            wheel.write(path, path.relative_to(package.parent))
    done = check(make_node("h20x2"), tmp_path / "capture", "--wheels", str(wheels), root=tree, environment=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "poise_gpu_power_watts" in (tmp_path / "capture" / "metrics.prom").read_text()


def test_a_python_that_lacks_packages_is_told_where_to_get_them(bare_tree: tuple[Path, dict[str, str]], tmp_path: Path) -> None:
    tree, environment = bare_tree
    done = check(None, tmp_path / "capture", root=tree, environment=environment)
    assert (done.returncode, "--wheels" in done.stderr) == (1, True)
    done = check(None, tmp_path / "capture", f"--wheels={tmp_path}", root=tree, environment=environment)
    assert (done.returncode, "no prometheus_client-*.whl there" in done.stderr) == (1, True)
