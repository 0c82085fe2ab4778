"""Builds /proc trees in a folder: by hand, or from process trees recorded from a real vLLM (tests/captures/info/*-proctree.txt)."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

BOOT_TIME = 1_700_000_000


@dataclass
class FakeProc:
    """A /proc below `root`. Ticks are hundredths of a second."""

    root: Path

    def __post_init__(self) -> None:
        (self.root / "net").mkdir(parents=True, exist_ok=True)
        (self.root / "stat").write_text(f"cpu  1 2 3 4\nbtime {BOOT_TIME}\nprocesses 5\n")
        self.sockets([])

    def add(
        self,
        pid: int,
        argv: list[str] | bytes,
        *,
        ppid: int = 1,
        comm: str | bytes | None = None,
        ticks: int | None = None,
        state: str = "S",
        environment: dict[str, str] | bytes | None = None,
        inodes: tuple[int, ...] = (),
    ) -> None:
        """A process, or the same pid again with other values. `environment` None: it cannot be read."""
        folder = self.root / str(pid)
        (folder / "fd").mkdir(parents=True, exist_ok=True)
        line = argv if isinstance(argv, bytes) else b"".join(item.encode() + b"\0" for item in argv)
        name = comm if comm is not None else (line.split(b"\0")[0].rsplit(b"/", 1)[-1][:15] or b"x")
        raw_name = name.encode() if isinstance(name, str) else name
        started = ticks if ticks is not None else pid * 10
        fields = b" ".join([state.encode(), str(ppid).encode(), *[b"0"] * 17, str(started).encode(), *[b"0"] * 30])
        (folder / "stat").write_bytes(b"%d (%s) %s\n" % (pid, raw_name, fields))
        (folder / "cmdline").write_bytes(line)
        if environment is not None:
            block = (
                environment
                if isinstance(environment, bytes)
                else b"PATH=/bin\0" + b"".join(f"{k}={v}".encode() + b"\0" for k, v in environment.items())
            )
            (folder / "environ").write_bytes(block)
        for number, inode in enumerate(inodes):
            (folder / "fd" / str(number + 3)).symlink_to(f"socket:[{inode}]")

    def remove(self, pid: int) -> None:
        """The process is gone."""
        folder = self.root / str(pid)
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        folder.rmdir()

    def sockets(self, rows: list[tuple[int, str, int]], *, ipv6: bool = False) -> None:
        """The node's TCP sockets: (local port, state such as "0A", inode)."""
        header = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        address = "00000000000000000000000001000000" if ipv6 else "0100007F"
        lines = [
            f"{number:4}: {address}:{port:04X} {address}:C350 {state} 00000000:00000000 00:00000000 00000000     0        0 {inode} 1 0\n"
            for number, (port, state, inode) in enumerate(rows)
        ]
        (self.root / "net" / ("tcp6" if ipv6 else "tcp")).write_text(header + "".join(lines))

    def replay(self, recording: Path) -> None:
        """The processes of a recorded tree."""
        for pid, ppid, comm, argv in recorded_processes(recording):
            self.add(pid, argv, ppid=ppid, comm=comm)


def recorded_processes(recording: Path) -> list[tuple[int, int, str, list[str]]]:
    """(pid, ppid, comm, argv) of a recorded tree, in either of its two formats.

    The recordings show a command line joined with blanks; the JSON of --kv-transfer-config has none, so that it can be split again.
    """
    found = []
    for line in recording.read_text().splitlines():
        compact = re.match(r"(\d+) ppid=(\d+) comm=(\S+) cmdline=(.*?)\s+sid=", line)
        table = re.match(r"\s*(\d+)\s+(\d+)\s+\d+\s+\d+\s+\d+\s+\d+\s+(?:[\\|_ ]*)(\S+)\s+(?:[\\|_ ]*)(\S.*)$", line)
        match = compact or table
        if match is not None:
            argv = match[4].split(" ")
            if match[4].startswith("/opt/vllm/bin/python /opt/vllm/bin/vllm se") and compact:
                # This recording is cut behind "vllm se"; the rest is the same as in the others.
                argv = shlex.split("/opt/vllm/bin/python /opt/vllm/bin/vllm serve /models/tiny-qwen2 --port 18000 --tensor-parallel-size 2")
            found.append((int(match[1]), int(match[2]), match[3], [item for item in argv if item]))
    return found
