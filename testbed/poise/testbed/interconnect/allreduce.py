"""Times all-reduces over ranks of one machine. Run by vLLM's own Python, which has torch; imports nothing of Poise.

`python allreduce.py JSON`: {"backend": nccl|gloo, "ranks", "sizes": bytes each, "rounds", "seconds": most for one size}. Rank n sits on the nth device of
CUDA_VISIBLE_DEVICES. Rank 0 is this process; it forks the others before torch is loaded, they die with it, and it ends when one of them does.
Each line that begins with MARK is a JSON object: {"library"} once, then for each size {"size_bytes", "times": seconds of one all-reduce in each round, of the
slowest rank}; or {"error"}. Everything else is what NCCL and torch print.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
from typing import Any

MARK = "poise-allreduce "
LOOPBACK = "127.0.0.1"
PR_SET_PDEATHSIG = 1  # linux/prctl.h

# Ops before the first that counts: NCCL connects its channels and CUDA compiles its kernels in the first ones.
WARM_UP = 5
# A round is at least this long, so that its two synchronisations do not show in it: several all-reduces in a row, as nccl-tests do.
ROUND_SECONDS = 0.002
MOST_IN_A_ROUND = 1000
FEWEST_ROUNDS = 3
# For a rank to come, and for an operation that a dead rank holds up; after that torch ends the process.
TIMEOUT = datetime.timedelta(seconds=90)
# The sum is checked on values that tell a wrong place from a right one and stay exact in float32.
PATTERN = 17


def say(value: dict[str, Any]) -> None:
    print(MARK + json.dumps(value), flush=True)


def die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0 or os.getppid() != parent:
        os._exit(1)


def watch(pids: dict[int, int]) -> None:
    """Ends this process as soon as a rank ends badly: what waits for it in an all-reduce would wait long."""
    while pids:
        pid, status = os.waitpid(-1, 0)
        rank = pids.pop(pid, None)
        if rank is not None and status != 0:
            say({"error": f"rank {rank} ended with status {os.waitstatus_to_exitcode(status)}"})
            os._exit(1)


def main(wanted: dict[str, Any]) -> None:
    me = os.getpid()
    pids: dict[int, int] = {}
    writing_ends = []
    for rank in range(1, wanted["ranks"]):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            die_with(me)
            os.close(writing)
            with os.fdopen(reading) as stream:
                port = int(stream.readline())
            run(wanted, rank, port)
        os.close(reading)
        pids[pid] = rank
        writing_ends.append(writing)
    watcher = threading.Thread(target=watch, args=(pids,), daemon=True)
    watcher.start()
    run(wanted, 0, 0, writing_ends)


def run(wanted: dict[str, Any], rank: int, port: int, writing_ends: list[int] | None = None) -> None:
    """Does this rank's part and ends the process."""
    try:
        work(wanted, rank, port, writing_ends or [])
    except Exception as error:
        say({"error": f"rank {rank}: {type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"})
        sys.stdout.flush()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


def work(wanted: dict[str, Any], rank: int, port: int, writing_ends: list[int]) -> None:
    # After the fork, and by name: it is in vLLM's environment only, not where this file is checked.
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    ranks, cuda = wanted["ranks"], wanted["backend"] == "nccl"
    store = dist.TCPStore(LOOPBACK, port, ranks, is_master=rank == 0, timeout=TIMEOUT, wait_for_workers=False)
    for end in writing_ends:
        os.write(end, f"{store.port}\n".encode())
        os.close(end)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group(
        wanted["backend"], store=store, rank=rank, world_size=ranks, timeout=TIMEOUT, device_id=device if cuda else None
    )
    if rank == 0:
        say({"library": ".".join(map(str, torch.cuda.nccl.version())) if cuda else torch.__version__})
    for size in wanted["sizes"]:
        check_sum(torch, dist, size // 4, rank, ranks, device)
        times = measure(torch, dist, size // 4, wanted, device)
        if rank == 0:
            say({"size_bytes": size, "times": times})
    dist.destroy_process_group()


def check_sum(torch: Any, dist: Any, count: int, rank: int, ranks: int, device: Any) -> None:
    """Raises ArithmeticError unless each element is the sum over the ranks."""
    pattern = (torch.arange(count, device=device, dtype=torch.int32) % PATTERN).to(torch.float32)
    summed = pattern + rank
    dist.all_reduce(summed)
    wrong = int((summed != pattern * ranks + ranks * (ranks - 1) / 2).sum())
    if wrong:
        raise ArithmeticError(f"{wrong} of {count} elements of the sum are wrong")


def measure(torch: Any, dist: Any, count: int, wanted: dict[str, Any], device: Any) -> list[float]:
    """Seconds of one all-reduce in each round, of the slowest rank. Zeros, because their sum stays what it is however often it is taken."""
    buffer = torch.zeros(count, device=device, dtype=torch.float32)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)
    for _ in range(WARM_UP):
        dist.all_reduce(buffer)
    synchronize()
    began = time.perf_counter()
    dist.all_reduce(buffer)
    synchronize()
    once = max(time.perf_counter() - began, 1e-7)
    in_a_round = min(MOST_IN_A_ROUND, math.ceil(ROUND_SECONDS / once))
    rounds = max(FEWEST_ROUNDS, min(wanted["rounds"], int(wanted["seconds"] / (once * in_a_round))))
    # Rank 0 decides for all.
    decided = torch.tensor([in_a_round, rounds], device=device)
    dist.broadcast(decided, src=0)
    in_a_round, rounds = (int(value) for value in decided)
    times = torch.zeros(rounds, device=device, dtype=torch.float64)
    for position in range(rounds):
        dist.barrier()
        synchronize()
        began = time.perf_counter()
        for _ in range(in_a_round):
            dist.all_reduce(buffer)
        synchronize()
        times[position] = (time.perf_counter() - began) / in_a_round
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return [float(value) for value in times]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
