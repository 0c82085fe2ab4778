"""Check `startup_log`: a vLLM start-up log shows the world size that was configured, and that its ranks reach each other.

Not in the runner's list: only `poise doctor --engine-log` has a log to look at.
"""

from __future__ import annotations

from poise.exporter.checks import words
from poise.exporter.checks.result import CheckResult, Line, State, Subject
from poise.exporter.engines.startup_log import StartupLog

NAME = "startup_log"
TITLE = "Start-up log shows the expected world size"
_LINE = Line(NAME, TITLE)


def judge(log: StartupLog, engine: str, running: str = "") -> CheckResult:
    """One result. `engine` names whose log it is, "" when unknown; `running` is the parallelism of that engine now ("TP=2"), "" when unknown."""
    about = Subject(engine=engine)
    if not log.said_anything:
        return _LINE.unknown(
            "no line of it is about an engine's start", about, fix="give the file that `vllm serve` wrote from its start on"
        )
    return _ended(log, about) or _of_another_start(log, about, running) or _world(log, about) or _joined(log, about)


def evidence_of(log: StartupLog) -> dict[str, str]:
    """What the log shows, as text."""
    told = {
        "vLLM": log.version,
        "parallel size": parallelism(log),
        "world size": ", ".join(str(size) for size in sorted(log.worlds)),
        "ranks announced": ", ".join(str(rank) for rank in sorted(log.ranks)[:64]),
        "NCCL": log.nccl,
        "channels": ", ".join(f"{count} via {name}" for name, count in sorted(log.transports.items())),
    }
    return {name: text for name, text in told.items() if text}


def parallelism(log: StartupLog) -> str:
    """As `words.parallelism` says it of an engine: "TP=2", "TP=2 PP=2"."""
    sizes = (("TP", log.size("tensor")), ("PP", log.size("pipeline")), ("DP", log.size("data")))
    return " ".join(f"{name}={size}" for name, size in sizes if size != 1 or name == "TP")


def _ended(log: StartupLog, about: Subject) -> CheckResult | None:
    if log.heads is not None:
        heads, size = log.heads
        return _LINE.failed(
            State.PROBLEM,
            f"the start ended: {heads} attention heads do not divide by tensor_parallel_size={size}",
            about,
            evidence_of(log),
            cause="each rank computes as many whole heads as the others",
            fix=f"choose a --tensor-parallel-size that divides {heads}",
        )
    if log.out_of_memory and not log.ready:
        return _LINE.failed(
            State.PROBLEM,
            "the start ended for want of device memory",
            about,
            evidence_of(log),
            cause="weights and KV cache do not fit beside what else is on the cards",
            fix="look at `nvidia-smi` for other processes; use more cards, a smaller --max-model-len, or another --gpu-memory-utilization",
        )
    return None


def _of_another_start(log: StartupLog, about: Subject, running: str) -> CheckResult | None:
    if running and log.sizes and running != parallelism(log):
        return _LINE.failed(
            State.WATCH,
            f"the log is of a start with {parallelism(log)}, and the engine runs with {running}",
            about,
            evidence_of(log) | {"running": running},
            cause="the engine was started again with other flags, or the log is another engine's",
            fix="give the log of the running engine",
        )
    return None


def _world(log: StartupLog, about: Subject) -> CheckResult | None:
    group = log.size("tensor") * log.size("pipeline") * log.size("prefill_context")
    expected = {group, group * log.size("data")}  # with data parallelism vLLM counts either one rank's world or all of them
    if log.sizes and log.worlds and not log.worlds & expected:
        return _LINE.failed(
            State.PROBLEM,
            f"ranks announced a world of {words.joined([str(size) for size in sorted(log.worlds)])}, and {parallelism(log)} needs {group}",
            about,
            evidence_of(log),
            cause="the flag did not reach the server, or ranks of another server joined",
            fix="compare the command line in the log with the one that was meant; start it again",
        )
    if not log.worlds and group > 1:
        if not log.ready:
            return _LINE.failed(
                State.PROBLEM,
                f"{parallelism(log)} needs {group} ranks, and none has announced itself" + (": the server waits" if log.waiting else ""),
                about,
                evidence_of(log),
                cause="workers did not start, or cannot reach the first one (other nodes: address, port, firewall)",
                fix="read the last lines of the log; start it with NCCL_DEBUG=INFO and VLLM_LOGGING_LEVEL=DEBUG",
            )
        return _LINE.unknown("the ranks' lines are not in the log", about, evidence_of(log), fix="log at level INFO")
    missing = sorted(set(range(max(log.worlds, default=1))) - log.ranks)
    if missing and not log.ready:
        return _LINE.failed(
            State.PROBLEM,
            f"rank {words.joined([str(rank) for rank in missing[:8]])} of {max(log.worlds)} has not announced itself",
            about,
            evidence_of(log),
            cause="it did not start, or is another node's",
            fix="look for its error in this log, and in those of the other nodes",
        )
    return None


def _joined(log: StartupLog, about: Subject) -> CheckResult:
    evidence = evidence_of(log)
    sentence = f"{parallelism(log)}, world size {max(log.worlds, default=1)}"
    if log.p2p_off is not None or log.all_reduce_off.startswith("cards that"):
        which = f" between {words.cards(log.p2p_off)}" if log.p2p_off is not None else ""
        return _LINE.failed(
            State.WATCH,
            f"peer-to-peer is disabled{which}",
            about,
            evidence | ({"vLLM's all-reduce": f"off: {log.all_reduce_off}"} if log.all_reduce_off else {}),
            cause="the cards do not reach each other's memory: ACS or IOMMU, a virtual machine, or a variable (NCCL_P2P_DISABLE)",
            fix="`nvidia-smi topo -p2p r`; switch ACS off, share IPC between containers (--ipc=host), unset the variable",
        )
    if log.transports.get("NET/Socket"):
        return _LINE.failed(
            State.WATCH,
            f"{words.count(log.transports['NET/Socket'], 'NCCL channel')} run over TCP sockets",
            about,
            evidence,
            cause="NCCL found neither peer-to-peer nor shared memory, nor RDMA between nodes",
            fix="see the checks nccl_environment and rdma; give containers shared memory (--shm-size, --ipc=host)",
        )
    if log.all_reduce_off:
        return _LINE.passed(f"{sentence}; vLLM's own all-reduce is off for {log.all_reduce_off}", about, evidence)
    return _LINE.passed(sentence if log.ready else f"{sentence}; the start is not complete in this log", about, evidence)
