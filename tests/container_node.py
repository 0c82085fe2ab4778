"""A node with containers, made of real namespaces: network, mount and pid ones of its own, with veth pairs between them.

    with node(tmp_path) as made:
        container = made.start("pod", address="10.77.1.2", devices=[2, 3])
        made.exporter({...})
        page = made.get("/metrics")

This file as a program is the node's first process: it obeys lines of JSON and ends with its standard input, and with it the kernel ends every
process of the node, so that nothing is left whatever happens to the test. All addresses exist in these namespaces only.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.needs import needs_namespaces
from tests.waiting import PATIENCE_SECONDS, wait_until

TREE = Path(__file__).resolve().parents[1]
#: Shows $1 and $2 to every user, in a mount namespace of its own, where folders above them ($3) are closed to others; then becomes what follows.
OPEN = """
    hold=$(mktemp -d)
    mkdir "$hold/1" "$hold/2"
    mount --rbind "$1" "$hold/1"
    mount --rbind "$2" "$hold/2"
    for closed in $3; do mount -t tmpfs -o mode=755 tmpfs "$closed"; done
    mkdir -p "$1" "$2"
    mount --move "$hold/1" "$1"
    mount --move "$hold/2" "$2"
    rmdir "$hold/1" "$hold/2" "$hold"
    shift 3
    exec "$@"
"""


def as_nobody(*rights: str) -> tuple[str, ...]:
    """What stands in front of a command that a user without rights is to run, except these ("sys_ptrace"), from this tree and by this Python."""
    seen = (str(TREE), sys.base_prefix)
    closed = {str(above) for path in seen for above in Path(path).parents if not above.stat().st_mode & stat.S_IXOTH}
    topmost = sorted(path for path in closed if not any(str(above) in closed for above in Path(path).parents))
    sets = [f"--{kind}={','.join(['-all', *(f'+{right}' for right in rights)])}" for kind in ("inh-caps", "ambient-caps", "bounding-set")]
    opened = ("unshare", "--mount", "sh", "-euc", OPEN, "open", *seen, " ".join(topmost))
    return (*(opened if topmost else ()), "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *sets)


#: Ports of exporters on the node, where nobody else is.
EXPORTER_PORT = 8080

#: A process that looks like a vLLM server with two ranks; `--serve HOST PORT` may stand several times, `--decoy PORT` serves no vLLM.
VLLM = """
    import contextlib, subprocess, sys, threading
    from tests.recorded import CAPTURES, PageServer, serve
    arguments = sys.argv[1:]
    titles = ("VLLM::EngineCore", "VLLM::Worker_TP0", "VLLM::Worker_TP1")
    children = [subprocess.Popen([title], executable="/bin/cat", stdin=subprocess.PIPE) for title in titles]
    with contextlib.ExitStack() as stack:
        for place, page in SERVED:
            body = CAPTURES / "tp2-server-after.prom" if page else b"go_goroutines 1\\n"
            host, _, port = place.rpartition(":")
            stack.enter_context(serve(PageServer(body), int(port), host=host))
        print("serving", flush=True)
        threading.Event().wait()
"""

#: Makes a root directory of its own, as container engines do, and becomes the server. $1: the folder.
ROOT = """
    mount -t tmpfs tmpfs "$1"
    for folder in bin sbin lib lib32 lib64; do
        if [ -L "/$folder" ]; then cp -a "/$folder" "$1/$folder"; elif [ -d "/$folder" ]; then mkdir "$1/$folder"; mount --rbind "/$folder" "$1/$folder"; fi
    done
    for folder in /usr "$TREE" "$BASE"; do
        [ -e "$1$folder/." ] || { mkdir -p "$1$folder"; mount --rbind "$folder" "$1$folder"; }
    done
    mkdir -p "$1/dev" "$1/etc" "$1/proc" "$1/tmp" "$1/run/secrets" "$1/var" "$1/srv"
    ln -s /run "$1/var/run"
    [ ! -e /etc/ld.so.cache ] || cp /etc/ld.so.cache "$1/etc/"
    mount -t proc proc "$1/proc"
    mknod "$1/dev/null" c 1 3
    for minor in $DEVICES; do mknod "$1/dev/nvidia$minor" c 195 "$minor"; done
    mknod "$1/dev/nvidiactl" c 195 255
    [ -z "$HOST" ] || echo "$HOST" >"$1/etc/hostname"
    if [ -n "$NAMESPACE" ]; then
        account="$1/run/secrets/kubernetes.io/serviceaccount"
        mkdir -p "$account/..data"
        printf %s "$NAMESPACE" >"$account/..data/namespace"
        ln -s ..data/namespace "$account/namespace"
        echo planted-token >"$account/token"
    fi
    if [ -n "$TERMINATION" ]; then
        mkdir -p "$(dirname "$TERMINATION")"
        : >"$TERMINATION" >"$1/dev/termination-log"
        mount --bind "$TERMINATION" "$1/dev/termination-log"
    fi
    cp "$SCRIPT" "$1/srv/vllm"
    shift 1
"""


# ------------------------------------------------------------------------------------------------------------ inside the node
def main() -> None:
    """Obeys until standard input ends."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    running: dict[int, subprocess.Popen[str]] = {}
    obey = {"run": _run, "background": _background, "await": _await, "inner": _inner, "get": _get}
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": obey[order.pop("do")](running, **order)}
        except Exception as problem:  # the test shall read it
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        print(json.dumps(answer), flush=True)


def _run(_running: dict[int, subprocess.Popen[str]], command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS).stdout


def _background(running: dict[int, subprocess.Popen[str]], command: list[str], environment: Mapping[str, str], log: str) -> int:
    with open(log, "w") as output:
        process = subprocess.Popen(command, env=dict(environment), stdout=output, stderr=output, stdin=subprocess.DEVNULL, text=True)
    running[process.pid] = process
    return process.pid


def _await(running: dict[int, subprocess.Popen[str]], pid: int, log: str, words: str) -> None:
    """Returns once the process has written these words."""
    end = time.monotonic() + PATIENCE_SECONDS
    while words not in (text := Path(log).read_text()):
        if running[pid].poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"{log} does not say {words!r}: {text[-2000:]}")
        time.sleep(0.01)


def _inner(running: dict[int, subprocess.Popen[str]], pid: int) -> int:
    """The first process in the pid namespace that `unshare` made: its child."""
    children = Path(f"/proc/{pid}/task/{pid}/children")
    end = time.monotonic() + PATIENCE_SECONDS
    while not (found := children.read_text().split()):
        if running[pid].poll() is not None or time.monotonic() > end:
            raise RuntimeError("unshare has no child")
        time.sleep(0.01)
    return int(found[0])


def _get(_running: dict[int, subprocess.Popen[str]], path: str, port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=PATIENCE_SECONDS) as answer:
        return str(answer.read().decode())


# ----------------------------------------------------------------------------------------------------------- outside, in tests
@dataclass
class Node:
    """The node, as a test drives it. `outer` is the process that holds it."""

    folder: Path
    outer: subprocess.Popen[str]
    links: int = 0
    cgroups: list[Path] = field(default_factory=list)
    starting: list[tuple[int, str]] = field(default_factory=list)

    def ask(self, do: str, **order: Any) -> Any:
        """Has the node do something."""
        given, taken = self.outer.stdin, self.outer.stdout
        assert given is not None
        assert taken is not None
        given.write(json.dumps({"do": do, **order}) + "\n")
        given.flush()
        line = taken.readline()
        assert line, f"the node is gone ({self.outer.poll()})"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def ip(self, *arguments: str) -> str:
        """`ip` in the node's network namespace."""
        return str(self.ask("run", command=["ip", *arguments]))

    def start(
        self,
        name: str,
        *arguments: str,
        serve: tuple[str, ...] = ("0.0.0.0:8000",),
        decoys: tuple[str, ...] = (),
        devices: tuple[int, ...] = (),
        hostname: str = "",
        namespace: str = "",
        termination: str = "",
        own_network: bool = True,
        **environment: str,
    ) -> int:
        """A container that will serve a recorded vLLM page; the pid of its server. `arguments` are those of `vllm serve`."""
        script = self.folder / f"{name}.py"
        served = [(place, True) for place in serve] + [(place, False) for place in decoys]
        script.write_text(f"SERVED = {served!r}\n" + textwrap.dedent(VLLM))
        (self.folder / name).mkdir()
        making = {"DEVICES": " ".join(map(str, devices)), "HOST": hostname, "NAMESPACE": namespace, "TERMINATION": termination}
        making |= {"SCRIPT": str(script), "TREE": str(TREE), "BASE": sys.base_prefix, "PATH": os.environ["PATH"]}
        given = [f"{key}={value}" for key, value in environment.items()]
        become = f'exec chroot "{self.folder / name}" /usr/bin/env -i PYTHONPATH="{TREE}" "$@"'
        server = [*given, sys.executable, "/srv/vllm", "serve", "m", "-tp", "2", *arguments]
        namespaces = ["--mount", "--pid", "--fork", "--kill-child", *(["--net"] if own_network else [])]
        command = ["unshare", *namespaces, "sh", "-eu", "-c", f"{textwrap.dedent(ROOT)}\n{become}", "container", str(self.folder / name)]
        log = str(self.folder / f"{name}.log")
        outer = self.ask("background", command=[*command, *server], environment=making, log=log)
        self.starting.append((outer, log))
        return int(self.ask("inner", pid=outer))

    def settle(self) -> None:
        """Returns once every container serves: they start side by side."""
        for outer, log in self.starting:
            self.ask("await", pid=outer, log=log, words="serving")
        self.starting.clear()

    def put_in_cgroup(self, pid: int, path: str) -> None:
        """Moves a process into a cgroup of its own, which `node` removes at the end."""
        hierarchy = cgroup_hierarchy()
        self.cgroups.append(hierarchy / path.strip("/"))
        self.ask("run", command=["sh", "-eu", "-c", 'mkdir -p "$1"; echo "$2" >"$1/cgroup.procs"', "sh", str(self.cgroups[-1]), str(pid)])

    def connect(self, pid: int, *addresses: str, node_side: tuple[str, ...] = ()) -> None:
        """A veth pair between the node and a container: `addresses` are the container's end, with their prefix."""
        self.links += 1
        ours = f"veth{self.links}"
        self.ip("link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        inside = ["nsenter", "-t", str(pid), "--net", "ip"]
        for address in addresses:
            self.ask("run", command=[*inside, "address", "add", address, "dev", "eth0", *_at_once(address)])
        self.ask("run", command=[*inside, "link", "set", "eth0", "up"])
        self.ask("run", command=[*inside, "link", "set", "lo", "up"])
        for address in node_side:
            self.ip("address", "add", address, "dev", ours, *_at_once(address))
        self.ip("link", "set", ours, "up")

    def exporter(self, environment: Mapping[str, str], *arguments: str, port: int = EXPORTER_PORT, within: tuple[str, ...] = ()) -> int:
        """`poise exporter` of this tree on the node. `within` is a command in front, which changes its rights."""
        listen = ["--listen", f"127.0.0.1:{port}", "--engine-interval", "1s"]
        command = [*within, sys.executable, "-m", "poise.cli", "exporter", *listen, *arguments]
        log = str(self.folder / f"exporter-{port}.log")
        pid = int(self.ask("background", command=command, environment=dict(environment), log=log))
        self.ask("await", pid=pid, log=log, words="cards: ")
        return pid

    def get(self, path: str, port: int = EXPORTER_PORT) -> str:
        """A page of an exporter."""
        return str(self.ask("get", path=path, port=port))

    def log(self, port: int = EXPORTER_PORT) -> str:
        """What an exporter has logged."""
        return (self.folder / f"exporter-{port}.log").read_text()


def _at_once(address: str) -> list[str]:
    """An IPv6 address is good for use at once only if nobody is asked whether it is taken."""
    return ["nodad"] if ":" in address else []


@contextlib.contextmanager
def node(folder: Path) -> Iterator[Node]:
    """A node without containers, until the block ends."""
    needs_namespaces()
    command = [
        "unshare",
        "--net",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-m",
        "tests.container_node",
    ]
    with (folder / "node.log").open("w") as log:
        outer = subprocess.Popen(command, cwd=TREE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    made = Node(folder, outer)
    try:
        yield made
    finally:
        for pipe in (outer.stdin, outer.stdout):
            _close(pipe)
        try:
            outer.wait(PATIENCE_SECONDS)
        finally:
            outer.kill()
            outer.wait(PATIENCE_SECONDS)
            for cgroup in made.cgroups:
                _remove(cgroup)


def cgroup_hierarchy() -> Path:
    """Where cgroups that only name processes can be made: cgroup v2, else systemd's hierarchy of v1."""
    root = Path("/sys/fs/cgroup")
    return root if (root / "cgroup.procs").exists() else root / "systemd"


def _remove(cgroup: Path) -> None:
    """Removes a cgroup and those above it that are empty then. The kernel lets go of the last process a moment after its end."""
    hierarchy = cgroup_hierarchy()
    wait_until(lambda: not (cgroup / "cgroup.procs").read_text(), f"{cgroup} is empty")
    while cgroup != hierarchy:
        try:
            cgroup.rmdir()
        except OSError:
            return  # others are in it
        cgroup = cgroup.parent


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        pipe.close()


if __name__ == "__main__":
    main()
