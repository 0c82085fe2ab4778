"""Which NCCL and CUDA libraries a process has loaded, by its memory map: version by file name, by the package beside it, or by its bytes.

Needs ptrace rights. Files are looked at below the process's own root, so a container's libraries are found too. Knows no check. Formats:
`readelf -S` of NCCL 2.27.3 and file lists of NVIDIA's wheels, which were looked at.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from poise.exporter.inroot import names_inside, read_inside
from poise.exporter.procfs import ProcFs
from poise.exporter.snapshot import Libraries

_NCCL = re.compile(r"libnccl\.so(?:\.[\d.]+)?")
_CUDA_RUNTIME = re.compile(r"libcudart(?:-[0-9a-f]+)?\.so(?:\.[\d.]+)?")
_CUDA_DRIVER = re.compile(r"libcuda\.so\.(\d+\.\d+(?:\.\d+)?)")
#: "libnccl.so.2.27.3", "libcudart.so.12.8.90", and not the bare "libnccl.so.2", whose number is the interface's.
_IN_NAME = re.compile(r"\.so\.(\d+\.\d+[\d.]*)")
_INTERFACE = re.compile(r"\.so\.(\d+)")
#: NVIDIA's wheels: nvidia_nccl_cu12-2.27.3.dist-info, nvidia_cuda_runtime_cu12-12.9.79.dist-info, nvidia_cuda_runtime-13.0.48.dist-info.
_NCCL_PACKAGE = re.compile(r"nvidia_nccl(?:_cu\d+)?-(\d+[\d.]*)\.dist-info")
_RUNTIME_PACKAGE = re.compile(r"nvidia_cuda_runtime(?:_cu\d+)?-(\d+[\d.]*)\.dist-info")
#: What NCCL prints at its start (NCCL_DEBUG=VERSION): "NCCL version 2.27.3+cuda12.9".
_NCCL_BANNER = re.compile(rb"NCCL version (\d{1,3}\.\d{1,3}(?:\.\d{1,3})?)\+cuda(\d{1,3}\.\d{1,3})")

#: Read-only data of a library is searched up to this size: NCCL 2.27.3 has 170 KB of it in a file of 430 MB.
RODATA_LIMIT = 8 * 1024 * 1024
#: Section headers of an ELF file are read up to this size; a library has some 30 of 64 bytes.
_SECTIONS_LIMIT = 64 * 1024


@dataclass(frozen=True, slots=True)
class Files:
    """How files are looked at: `read(path, limit, offset)` and `names(folder)`, both None for what cannot be read."""

    read: Callable[[str, int, int], bytes | None]
    names: Callable[[str], list[str] | None]


def read_libraries(proc: ProcFs, pid: int) -> Libraries | None:
    """The libraries of a process, or None when its memory map cannot be read."""
    mapped = proc.mapped_files(pid)
    if mapped is None:
        return None
    root = proc.root_of(pid)
    return libraries_of(
        mapped,
        Files(lambda path, limit, offset: read_inside(root, path, limit, offset), lambda folder: names_inside(root, folder)),
    )


def libraries_of(mapped: Iterable[str], files: Files) -> Libraries:
    """The libraries among mapped files."""
    paths = sorted(mapped)
    nccl = _first(paths, _NCCL)
    runtime = _first(paths, _CUDA_RUNTIME)
    driver = next((match[1] for path in paths if (match := _CUDA_DRIVER.fullmatch(_name(path))) is not None), "")
    version, built_for = _nccl(nccl, files) if nccl else ("", "")
    return Libraries(version, _cuda_runtime(runtime, files) if runtime else "", built_for, driver)


def _nccl(path: str, files: Files) -> tuple[str, str]:
    """Version of NCCL and the CUDA version that it was built for; the bytes tell both, name and package the first."""
    match = _NCCL_BANNER.search(rodata(path, files))
    if match is not None:
        return match[1].decode(), match[2].decode()
    named = _IN_NAME.search(_name(path))
    return (named[1] if named else _packaged(path, _NCCL_PACKAGE, files)), ""


def _cuda_runtime(path: str, files: Files) -> str:
    """Version of the CUDA runtime as in "12.8"; of a library that tells only its interface that is "12"."""
    named = _IN_NAME.search(_name(path))
    found = named[1] if named else _packaged(path, _RUNTIME_PACKAGE, files)
    if not found:
        interface = _INTERFACE.search(_name(path))
        return interface[1] if interface else ""
    return ".".join(found.split(".")[:2])


def _packaged(path: str, package: re.Pattern[str], files: Files) -> str:
    """The version of the package that the library is part of: site-packages is some folders above the library."""
    folder = path
    for _ in range(4):
        folder = folder.rpartition("/")[0]
        for name in files.names(folder) or ():
            match = package.fullmatch(name)
            if match is not None:
                return match[1]
    return ""


def rodata(path: str, files: Files) -> bytes:
    """The read-only data of a 64-bit ELF file, cut at `RODATA_LIMIT`; empty when it is none, or cannot be read."""
    head = files.read(path, 64, 0) or b""
    try:
        if head[:6] != b"\x7fELF\x02\x01":
            return b""
        at, size, count, names_index = struct.unpack_from("<Q10x3H", head, 40)
        table = files.read(path, _SECTIONS_LIMIT, at) or b""
        sections = [struct.unpack_from("<II8x8xQQ", table, size * index) for index in range(count) if size >= 64]
        _, _, names_at, names_size = sections[names_index]
        names = files.read(path, min(names_size, _SECTIONS_LIMIT), names_at) or b""
        for name, _, offset, length in sections:
            if names[name : name + 8] == b".rodata\0":
                return files.read(path, min(length, RODATA_LIMIT), offset) or b""
    except (struct.error, IndexError, OverflowError, OSError):
        return b""
    return b""


def _first(paths: Iterable[str], name: re.Pattern[str]) -> str:
    return next((path for path in paths if name.fullmatch(_name(path)) is not None), "")


def _name(path: str) -> str:
    return path.rpartition("/")[2]
