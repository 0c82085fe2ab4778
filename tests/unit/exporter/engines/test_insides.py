"""What is read once of an engine's processes: when it is looked for again, and that a file system that hangs holds up nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from poise.exporter.engines import insides
from poise.exporter.engines.source import EngineSource
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import Libraries, ModelShape

from tests.fake_proc import FakeProc
from tests.waiting import wait_until

MODEL = {"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "bfloat16"}


def node(tmp_path: Path) -> tuple[FakeProc, EngineSource, list[float]]:
    """A server with two ranks, and a source over it whose clock the test moves."""
    proc = FakeProc(tmp_path / "proc")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL))
    proc.add(10, ["vllm", "serve", str(model), "--port", "8000", "-tp", "2"], environment={"NCCL_DEBUG": "INFO", "HF_TOKEN": "secret"})
    proc.add(11, b"VLLM::EngineCore\0", ppid=10)
    for rank in range(2):
        proc.add(12 + rank, f"VLLM::Worker_TP{rank}\0".encode(), ppid=11)
    for pid in (10, 12, 13):
        (tmp_path / "proc" / str(pid) / "root").symlink_to("/")
    clock = [100.0]
    return proc, EngineSource("n1", proc_root=tmp_path / "proc", scan_interval=0.05, clock=lambda: clock[0]), clock


def map_nccl(tmp_path: Path) -> None:
    (tmp_path / "proc" / "12" / "maps").write_text(
        "7f-80 r--p 0 fd:01 9  /usr/lib/libnccl.so.2.18.5\n81-82 r--p 0 fd:01 8  /lib/libcudart.so.12.1.105\n"
    )


def test_engine_gets_shape_libraries_and_environment_once_they_are_there(tmp_path: Path) -> None:
    proc, source, clock = node(tmp_path)
    source.scan_once()
    assert source.latest().engines[0].model_shape is None
    looking = source._insides
    looking.look()
    source.scan_once()
    observed = source.latest().engines[0]
    assert observed.model_shape == ModelShape(4, 2, "bfloat16")
    assert observed.libraries is None, "the map cannot be read yet"
    assert observed.config.communication == {"NCCL_DEBUG": "INFO"}

    map_nccl(tmp_path)
    looking.look()
    assert looking.of(source._scan.members[0].found.key).libraries is None, "not due yet"  # type: ignore[union-attr]  # it is found
    clock[0] += insides.FIRST_WAIT
    looking.look()
    source.scan_once()
    assert source.latest().engines[0].libraries == Libraries("2.18.5", "12.1")

    for pid in (13, 12, 11, 10):
        (tmp_path / "proc" / str(pid) / "root").unlink(missing_ok=True)
        proc.remove(pid)
    source.scan_once()
    gone = source.latest().engines[0]
    assert gone.process_up is False
    assert gone.model_shape == ModelShape(4, 2, "bfloat16"), "why it went may show in its heads"
    source.stop()


def test_thread_finds_it_without_being_called(tmp_path: Path) -> None:
    _, source, _ = node(tmp_path)
    map_nccl(tmp_path)
    source.start()
    try:
        wait_until(
            lambda: [engine for engine in source.latest().engines if engine.libraries is not None and engine.model_shape is not None],
            "libraries and shape",
        )
    finally:
        source.stop()


def test_folder_that_hangs_holds_up_neither_scans_nor_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, source, _ = node(tmp_path)
    reached, release = os.pipe(), os.pipe()

    def hang(*_: object) -> None:
        os.write(reached[1], b"x")
        os.read(release[0], 1)

    monkeypatch.setattr(insides, "read_model_shape", hang)
    source.start()
    try:
        assert os.read(reached[0], 1) == b"x"
        wait_until(lambda: source.latest().engines, "the engine")
        source.stop()
    finally:
        os.write(release[1], b"x")
        source._insides._thread.join(5)
        for descriptor in (*reached, *release):
            os.close(descriptor)


def test_file_that_breaks_the_reader_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, source, _ = node(tmp_path)

    def broken(*_: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(insides, "read_libraries", broken)
    source.start()
    try:
        wait_until(lambda: "boom" in caplog.text, "the log")
        source._insides.want(source._insides._wanted)
        wait_until(lambda: not source._insides._wake.is_set(), "the second look")
        assert source._insides._thread.is_alive()
    finally:
        source.stop()
    assert caplog.text.count("looking into the processes of engines failed") == 1


def test_reads_of_this_machine_never_raise() -> None:
    proc = ProcFs()
    for pid in proc.pids()[:50]:
        proc.mapped_files(pid)
