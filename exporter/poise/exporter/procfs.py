"""Reads /proc: processes, allow-listed environment, command lines, sockets. The root is passed in, so tests read trees of their own.

Every read can meet a process that has just gone, or that we may not look at: such reads give None or nothing and never raise. This
file knows no engine. Formats: proc(5), Documentation/filesystems/proc.rst. Secrets: a command line is returned once, for the caller
to pick what it needs, and kept nowhere; an environment never leaves this file but for the names in `ENVIRONMENT`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from poise.exporter import procnet

#: How processes of an engine, and engines of a deployment, talk to each other (NCCL user guide; NIXL over UCX; vllm/envs.py).
COMMUNICATION = frozenset(
    {
        "NCCL_ALGO",
        "NCCL_CROSS_NIC",
        "NCCL_DEBUG",
        "NCCL_IB_DISABLE",
        "NCCL_IB_GID_INDEX",
        "NCCL_IB_HCA",
        "NCCL_MNNVL_ENABLE",
        "NCCL_NET",
        "NCCL_NET_GDR_LEVEL",
        "NCCL_NSOCKS_PERTHREAD",
        "NCCL_NVLS_ENABLE",
        "NCCL_P2P_DISABLE",
        "NCCL_P2P_LEVEL",
        "NCCL_PROTO",
        "NCCL_SHM_DISABLE",
        "NCCL_SOCKET_IFNAME",
        "NCCL_SOCKET_NTHREADS",
        "GLOO_SOCKET_IFNAME",
        "UCX_NET_DEVICES",
        "UCX_TLS",
        "VLLM_NIXL_ABORT_REQUEST_TIMEOUT",
        "VLLM_NIXL_SIDE_CHANNEL_HOST",
        "VLLM_NIXL_SIDE_CHANNEL_PORT",
        "VLLM_SKIP_P2P_CHECK",
    }
)
#: The only variables that are ever kept. Everything else (tokens, keys, paths) is dropped as it is read.
ENVIRONMENT = (
    frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME"})
    # Where the model's files are (huggingface_hub, constants.py).
    | {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"}
    | COMMUNICATION
    # What whoever started an engine says of it (engines/roles.py).
    | {"POISE_ENGINE_NAME", "POISE_ENGINE_DEPLOYMENT", "POISE_ENGINE_ROLE"}
)
#: A command line longer than this is cut (Linux allows 2 MiB by default); flags that decide anything stand far before.
COMMAND_LINE_LIMIT = 128 * 1024
#: An environment longer than this is cut; execve(2) allows a quarter of the stack limit, 2 MiB by default.
ENVIRONMENT_LIMIT = 2 * 1024 * 1024
#: A kept value longer than this is cut: CUDA_VISIBLE_DEVICES with 64 UUIDs has 2,624 characters.
VALUE_LIMIT = 4096
#: /proc/net/tcp is read up to this size (150 bytes a line: 100,000 connections).
SOCKETS_LIMIT = 16 * 1024 * 1024
#: So many open files of a process are looked at, the lowest numbers first: vLLM advises a limit of 65,535, and any process may have a million.
DESCRIPTORS_LIMIT = 65_536
#: Other files of a process or namespace are read up to this size: a mountinfo of 10,000 mounts, a fib_trie of as many addresses.
TEXT_LIMIT = 1024 * 1024

#: /proc/PID/maps is read up to this size: 100 bytes a line, and a process has at most 65,530 mappings by default (vm.max_map_count).
MAPS_LIMIT = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The first fields of /proc/PID/stat. `start_ticks` (clock ticks since boot) tells a process from a later one of the same number."""

    pid: int
    ppid: int
    start_ticks: int
    comm: str  # at most 15 bytes
    zombie: bool = False


@dataclass(frozen=True, slots=True)
class Sockets:
    """The TCP sockets of a network namespace: inode → port of listening ones, port → number of established connections, port → where it is
    listened on ("0.0.0.0" and "::" are all addresses).
    """

    listening: Mapping[int, int]
    established: Mapping[int, int]
    bound: Mapping[int, frozenset[procnet.Address]] = field(default_factory=dict)


class ProcFs:
    """A view of one /proc. `ticks_per_second` is USER_HZ, by which /proc counts start times."""

    def __init__(self, root: Path = Path("/proc"), ticks_per_second: int | None = None) -> None:
        self._root = str(root)
        self._ticks = ticks_per_second or os.sysconf("SC_CLK_TCK")
        # Read once: the kernel derives it from the wall clock, and a start time must not wander when the clock is set.
        self._boot_time = self._read_boot_time()

    def boot_id(self) -> str:
        """What the kernel calls this boot (random(4)), alike in all containers; empty where it does not tell."""
        return _text(self._read("sys/kernel/random/boot_id", 64) or b"").strip()

    def pids(self) -> list[int]:
        """Numbers of all processes; empty when there is no /proc."""
        try:
            return [int(name) for name in os.listdir(self._root) if name.isdecimal()]
        except OSError:
            return []

    def stat(self, pid: int) -> ProcessStat | None:
        """Parent, start and name of a process, or None when it is gone."""
        data = self._read(f"{pid}/stat", 4096, once=True)
        if data is None:
            return None
        # The name stands in parentheses and may hold any byte, parentheses and line feeds included.
        head, _, tail = data.rpartition(b")")
        name = head.partition(b"(")[2]
        fields = tail.split()
        try:
            return ProcessStat(pid, int(fields[1]), int(fields[19]), _text(name), fields[0] in (b"Z", b"X"))
        except (IndexError, ValueError):
            return None

    def start_time(self, stat: ProcessStat) -> float:
        """When the process started, Unix seconds."""
        return self._boot_time + stat.start_ticks / self._ticks

    def command_line(self, pid: int) -> tuple[str, ...]:
        """The arguments of a process; empty for a kernel thread, a zombie, and one that is gone.

        May hold secrets: take what is needed and drop it. A process that set its own title has it as the only argument.
        """
        data = self._read(f"{pid}/cmdline", COMMAND_LINE_LIMIT)
        if not data:
            return ()
        if len(data) >= COMMAND_LINE_LIMIT:
            data = data[: data.rfind(b"\0")] if b"\0" in data else b""  # the last argument is cut, so unknown
        # setproctitle pads the rest of the old command line with NULs.
        return tuple(_text(item) for item in data.rstrip(b"\0").split(b"\0")) if data.strip(b"\0") else ()

    def environment(self, pid: int) -> Mapping[str, str] | None:
        """The allow-listed variables that the process was started with, or None when they cannot be read.

        setproctitle overwrites the block of a retitled process with NULs: that is None too, not "nothing set". So is an empty block, which every
        process has for a moment while execve(2) sets it up.
        """
        data = self._read(f"{pid}/environ", ENVIRONMENT_LIMIT)
        if data is None or not data.strip(b"\0"):
            return None
        kept: dict[str, str] = {}
        for item in data.split(b"\0"):
            name, equals, value = item.partition(b"=")
            key = _text(name) if len(name) < 64 else ""
            if equals and key in ENVIRONMENT and key not in kept:  # getenv(3) finds the first
                kept[key] = _text(value[:VALUE_LIMIT])
        return kept

    def program(self, pid: int) -> str:
        """The base name of the program that runs, else the process's own name; empty when it is gone."""
        target = self._link(f"{pid}/exe")
        if target is None:
            stat = self.stat(pid)
            return stat.comm if stat is not None else ""
        return _text(os.path.basename(os.fsencode(target.removesuffix(" (deleted)"))))

    def same_namespace(self, pid: int, kind: str, of: int | None = None) -> bool:
        """Whether the process has the namespace `kind` ("net") of the process `of` (None: this one); True when that cannot be told.

        The link needs ptrace rights. A network namespace also tells itself without: each has its own file net/tcp.
        """
        names = (str(pid), "self" if of is None else str(of))
        theirs, ours = (self._link(f"{name}/ns/{kind}") for name in names)
        if kind == "net" and (theirs is None or ours is None):
            theirs, ours = (self._number(f"{name}/net/tcp") for name in names)
        return theirs is None or ours is None or theirs == ours

    def same_root(self, pid: int) -> bool:
        """Whether the process has the root directory of this process or of the node's first one: whether it is in no container of its own.

        A mount namespace tells less: services of systemd have their own. True when it cannot be told.
        """
        theirs = self._root_directory(str(pid))
        ours = [self._root_directory(name) for name in ("self", "1")]
        return theirs is None or ours[0] is None or theirs in ours

    def root_of(self, pid: int) -> str:
        """The path of a process's root directory, for `inroot`."""
        return f"{self._root}/{pid}/root"

    def mapped_files(self, pid: int) -> frozenset[str] | None:
        """Paths of the files that a process has mapped, as it sees them; None when we may not know. Costs milliseconds for 10,000 mappings."""
        data = self._read(f"{pid}/maps", MAPS_LIMIT)
        if data is None:
            return None
        paths = {line[slash:] for line in data.splitlines() if (slash := line.find(b"/")) >= 0}
        return frozenset(_text(path).removesuffix(" (deleted)") for path in paths)

    def text(self, pid: int | str, name: str) -> str:
        """A small file of a process ("cgroup", "mountinfo", "net/route"; pid "self" is this one), empty when it cannot be read."""
        return _text(self._read(f"{pid}/{name}", TEXT_LIMIT) or b"")

    def link(self, pid: int | str, name: str) -> str | None:
        """Where a link of a process leads ("ns/pid"), or None when we may not know."""
        return self._link(f"{pid}/{name}")

    def addresses(self, pid: int) -> tuple[procnet.Address, ...]:
        """The addresses of a process's network namespace by which others may reach it, likeliest first."""
        return procnet.addresses(*(self.text(pid, f"net/{name}") for name in ("fib_trie", "if_inet6", "route")))

    def first_is_ours(self) -> bool:
        """Whether the first process has our root directory, as in a container of its own; True when it cannot be told."""
        ours, first = self._root_directory("self"), self._root_directory("1")
        return ours is None or first is None or ours == first

    def has_way_to(self, address: procnet.Address) -> bool:
        """Whether an address can be on this node, by the routes of our network namespace.

        In the node's first namespace the default route leads off the node: what only it leads to is somebody else's, who is not to be troubled.
        In a namespace of our own it may lead to the other containers of the node.
        """
        if address.is_loopback or not self.same_namespace(1, "net"):
            return True
        return procnet.is_routed(address, self.text("self", "net/route"), self.text("self", "net/ipv6_route"))

    def sockets(self, pid: int | None = None) -> Sockets:
        """All TCP sockets of our network namespace or of that of a process, IPv4 and IPv6."""
        listening: dict[int, int] = {}
        established: dict[int, int] = {}
        bound: dict[int, set[procnet.Address]] = {}
        for row in self._tcp_rows(pid):
            if row.state == procnet.LISTEN:
                listening[row.inode] = row.local_port
                address = row.address
                if address is not None:
                    bound.setdefault(row.local_port, set()).add(address)
            elif row.state == procnet.ESTABLISHED:
                established[row.local_port] = established.get(row.local_port, 0) + 1
        return Sockets(listening, established, {port: frozenset(found) for port, found in bound.items()})

    def callers(self, pid: int, address: procnet.Address, port: int) -> frozenset[int]:
        """The remote ports of the connections to an address and port of a process's network namespace."""
        return frozenset(
            row.remote_port
            for row in self._tcp_rows(pid)
            if row.local_port == port and row.state not in (procnet.LISTEN, procnet.TIME_WAIT) and row.address == address
        )

    def listening_ports(self, pids: Iterable[int], sockets: Sockets) -> frozenset[int] | None:
        """Ports on which any of the processes listens, or None when none of their descriptors can be read."""
        ports: set[int] = set()
        readable = False
        for pid in pids:
            inodes = self._socket_inodes(pid)
            readable = readable or inodes is not None
            ports.update(sockets.listening[inode] for inode in inodes or () if inode in sockets.listening)
        return frozenset(ports) if readable else None

    def _socket_inodes(self, pid: int) -> set[int] | None:
        folder = f"{self._root}/{pid}/fd"
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in islice(entries, DESCRIPTORS_LIMIT)]
        except OSError:
            return None
        inodes = set()
        for name in names:
            try:
                target = os.readlink(f"{folder}/{name}")
            except OSError:
                continue  # closed since the listing
            if target.startswith("socket:[") and target[8:-1].isdecimal():
                inodes.add(int(target[8:-1]))
        return inodes

    def _tcp_rows(self, pid: int | None) -> Iterable[procnet.TcpRow]:
        folder = "net" if pid is None else f"{pid}/net"
        for name in ("tcp", "tcp6"):
            yield from procnet.tcp_rows(self._read(f"{folder}/{name}", SOCKETS_LIMIT) or b"")

    def _number(self, name: str) -> str | None:
        try:
            return str(os.stat(f"{self._root}/{name}").st_ino)
        except OSError:
            return None

    def _link(self, name: str) -> str | None:
        try:
            return os.readlink(f"{self._root}/{name}")
        except OSError:
            return None

    def _root_directory(self, pid: str) -> tuple[int, int] | None:
        try:
            found = os.stat(f"{self._root}/{pid}/root")
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _read_boot_time(self) -> float:
        for line in (self._read("stat", 1024 * 1024) or b"").splitlines():
            if line.startswith(b"btime ") and line[6:].strip().isdigit():
                return float(line[6:])
        return 0.0

    def _read(self, name: str, limit: int, *, once: bool = False) -> bytes | None:
        """Up to `limit` bytes of a file, or None when it is gone or we may not read it. `once`: a single read has all of it.

        Plain descriptors, for they cost a third of what open() does.
        """
        try:
            descriptor = os.open(f"{self._root}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            parts = [os.read(descriptor, min(limit, 65536))]
            if once:
                return parts[0]
            size = len(parts[0])
            # A short read is not the end: files like net/tcp give whole records only.
            while size < limit and (part := os.read(descriptor, min(limit - size, 65536))):
                parts.append(part)
                size += len(part)
            return b"".join(parts)
        except OSError:
            return None
        finally:
            os.close(descriptor)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
