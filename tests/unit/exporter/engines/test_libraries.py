"""Libraries of a process: by their real names and bytes, in a container, and whatever a hostile file holds."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.engines.libraries import Files, libraries_of, read_libraries, rodata
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import Libraries

from tests.fake_proc import FakeProc

SITE = "/usr/local/lib/python3.12/dist-packages"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
RUNTIME = f"{SITE}/nvidia/cuda_runtime/lib/libcudart.so.12"
BANNER = b"\0ncclGetVersion\0NCCL version 2.27.3+cuda12.9\0more"


def elf(section: bytes, name: bytes = b".rodata") -> bytes:
    """A 64-bit ELF file with one section of this name, and the table of names that every such file has."""
    names = b"\0.shstrtab\0" + name + b"\0"
    at_names = 64
    at_section = at_names + len(names)
    at_table = at_section + len(section)
    head = b"\x7fELF\x02\x01".ljust(40, b"\0") + struct.pack("<Q", at_table) + bytes(10) + struct.pack("<HHH", 64, 3, 1)

    def header(name_at: int, offset: int, size: int) -> bytes:
        return struct.pack("<IIQQQQ", name_at, 1, 0, 0, offset, size).ljust(64, b"\0")

    return head + names + section + header(0, 0, 0) + header(1, at_names, len(names)) + header(11, at_section, len(section))


def files(tree: Mapping[str, bytes]) -> Files:
    """Files from a dictionary; a folder is the start of a path."""

    def read(path: str, limit: int, offset: int) -> bytes | None:
        return tree[path][offset : offset + limit] if path in tree else None

    def names(folder: str) -> list[str] | None:
        below = [path[len(folder) + 1 :].split("/")[0] for path in tree if path.startswith(f"{folder}/")]
        return below or None

    return Files(read, names)


def test_wheels_of_nvidia_are_told_by_their_bytes_and_their_packages() -> None:
    tree = {
        NCCL: elf(BANNER),
        RUNTIME: b"\x7fELF",
        f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/METADATA": b"",
        f"{SITE}/nvidia_cuda_runtime_cu12-12.9.79.dist-info/METADATA": b"",
    }
    mapped = [NCCL, RUNTIME, "/usr/lib/x86_64-linux-gnu/libcuda.so.570.133.20", "/usr/bin/python3.12"]
    assert libraries_of(mapped, files(tree)) == Libraries("2.27.3", "12.9", "12.9", "570.133.20")


@pytest.mark.parametrize(
    ("path", "package", "expected"),
    [
        ("/opt/conda/lib/libcudart.so.12.8.90", "", Libraries("", "12.8")),
        (f"{SITE}/nvidia/cu13/lib/libcudart.so.13", "nvidia_cuda_runtime-13.0.48.dist-info", Libraries("", "13.0")),
        (f"{SITE}/torch/lib/libcudart-d0da41ae.so.11.0", "", Libraries("", "11.0")),
        ("/usr/local/cuda/lib64/libcudart.so.12", "", Libraries("", "12")),
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2.18.5", "", Libraries("2.18.5")),
        (NCCL, "nvidia_nccl_cu13-2.27.7.dist-info", Libraries("2.27.7")),
        (NCCL, "", Libraries()),
        ("/usr/local/cuda-12.9/compat/libcuda.so.575.57.08", "", Libraries(cuda_driver="575.57.08")),
        ("/usr/lib/libcuda.so.1", "", Libraries()),
    ],
)
def test_other_ways_to_install_them(path: str, package: str, expected: Libraries) -> None:
    assert libraries_of([path], files({f"{SITE}/{package}/RECORD": b""} if package else {})) == expected


def test_process_without_cuda_has_none_and_one_that_we_may_not_see_is_unknown(tmp_path: Path) -> None:
    proc = FakeProc(tmp_path)
    proc.add(10, ["VLLM::Worker"])
    assert read_libraries(ProcFs(tmp_path), 10) is None
    (tmp_path / "10" / "maps").write_text("55d0-55d1 r-xp 00000000 fd:01 42    /usr/bin/python3.12\n7ffc-7ffd rw-p 0 00:00 0 [stack]\n")
    assert read_libraries(ProcFs(tmp_path), 10) == Libraries()


def test_files_are_looked_at_below_the_process_s_own_root(tmp_path: Path) -> None:
    proc, container = FakeProc(tmp_path / "proc"), tmp_path / "container"
    proc.add(10, ["VLLM::Worker_TP0"])
    (tmp_path / "proc" / "10" / "root").symlink_to(container)
    library = container / NCCL[1:]
    library.parent.mkdir(parents=True)
    library.with_suffix(".2.27.3").write_bytes(elf(BANNER))
    library.symlink_to(library.with_suffix(".2.27.3").name)
    (tmp_path / "proc" / "10" / "maps").write_text(
        f"7f00-7f01 r--p 00000000 fd:01 42    {NCCL} (deleted)\n7f01-7f02 r-xp 00001000 fd:01 42  {NCCL}\n"
    )
    assert read_libraries(ProcFs(tmp_path / "proc"), 10) == Libraries("2.27.3", nccl_cuda="12.9")


@given(st.binary(max_size=400), st.integers(0, 120), st.binary(max_size=8))
def test_no_bytes_of_a_library_break_the_reader(tail: bytes, position: int, change: bytes) -> None:
    whole = elf(BANNER)
    for data in (tail, b"\x7fELF\x02\x01" + tail, whole[:position] + change + whole[position + len(change) :], whole[:position]):
        assert isinstance(rodata("/lib", files({"/lib": data})), bytes)
        libraries_of(["/libnccl.so.2"], files({"/libnccl.so.2": data}))


def test_this_process_has_loaded_no_nccl() -> None:
    own = read_libraries(ProcFs(), os.getpid())
    assert own is not None
    assert own.nccl == ""
