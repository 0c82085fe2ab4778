"""What counts as a GPU, and what is said when a driver does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.testbed import hardware
from poise.testbed.errors import TestbedError
from poise.testbed.hardware import Gpu, Hardware


@pytest.mark.parametrize("where", ["proc/driver/nvidia/version", "dev/nvidiactl"])
def test_a_driver_is_a_kernel_module_or_a_device_given_to_the_container(tmp_path: Path, where: str) -> None:
    assert not hardware.has_nvidia_driver(tmp_path / "proc", tmp_path / "dev")
    (tmp_path / where).parent.mkdir(parents=True)
    (tmp_path / where).touch()
    assert hardware.has_nvidia_driver(tmp_path / "proc", tmp_path / "dev")


def test_gpus_are_read_in_the_drivers_order_with_what_is_used_of_them_and_by_whom() -> None:
    cards = ["GPU-b, 97871, 40213", " GPU-a, 81559, 4", "GPU-c, 81559, [N/A]", ""]
    processes = ["GPU-b, 4711", "GPU-b, 815", "GPU-x, 9", "[N/A], [N/A]", ""]
    assert hardware.parse_gpus(cards, processes) == (
        Gpu(97871, "GPU-b", 40213, (815, 4711)),
        Gpu(81559, "GPU-a", 4),
        Gpu(81559, "GPU-c"),
    )
    assert hardware.parse_gpus(["GPU-a, [N/A], [N/A]"], []) == ()
    assert Hardware((Gpu(81559),)).has_gpus
    assert not Hardware().has_gpus


def pretend(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str | None) -> None:
    """A machine with a driver and this nvidia-smi."""
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: True)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin" if script is not None else str(folder))
    if script is not None:
        (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "nvidia-smi").chmod(0o755)


def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "has_nvidia_driver", lambda: False)
    assert hardware.detect() == Hardware()


def test_a_driver_that_answers_gives_its_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pretend(monkeypatch, tmp_path, 'case $1 in *apps*) echo "GPU-a, 7";; *) echo "GPU-a, 97871, 2048"; echo "GPU-b, 97871, 0";; esac')
    assert hardware.detect() == Hardware((Gpu(97871, "GPU-a", 2048, (7,)), Gpu(97871, "GPU-b")))
    assert hardware.detect().gpu_memory_mib == (97871, 97871)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "nvidia-smi is not on PATH"),
        ("echo 'Failed to initialize NVML: Driver/library version mismatch'; exit 18", r"nvidia-smi failed \(18\): Failed to init"),
        ("exec sleep 60", "did not answer within 0 s: the driver hangs"),
    ],
)
def test_a_driver_that_cannot_be_asked_is_a_fault_and_never_simulated(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str | None, said: str
) -> None:
    pretend(monkeypatch, tmp_path, script)
    if script and "sleep" in script:
        monkeypatch.setattr(hardware, "NVIDIA_SMI_SECONDS", 0.2)
    with pytest.raises(TestbedError, match=said):
        hardware.detect()
