"""What Poise costs the engine that it watches: TTFT of a loaded vLLM server with and without an exporter that polls it.

    python scripts/bench_engine.py [--pairs 8] [--seconds 20] [--write docs/benchmarks.md]

One server on one card (simulated where there is no GPU), one steady load, and an exporter as it ships, which is there in every other block:
with, without, without, with, … so that a drift of the machine meets both alike. Every request of a block counts, so the p99 holds
what a poll that falls into a prefill costs. The interval of the ratio comes from drawing the pairs of blocks anew (bootstrap).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import bench_page
from poise.testbed import load, lock, paths, shapes, teardown
from poise.testbed.deployment import Deployment
from poise.testbed.load import LoadResult, LoadSettings
from poise.testbed.planning import Request, step_names
from poise.testbed.progress import Progress, TerminalSink

SHAPE = "single"
CLIENTS = 8
PROMPT_WORDS = 64
#: Short answers: the more requests, the better is their p99 known.
ANSWER_TOKENS = 32
#: Unmeasured load after each change: an exporter that starts finds the engine, asks its version and polls for the first time.
SETTLE_SECONDS = 5.0
BOOTSTRAP_DRAWS = 2000


@dataclass(frozen=True)
class Block:
    """The times to first token, in seconds, of one stretch of load, and what else it came to."""

    polled: bool
    first_tokens: tuple[float, ...]
    tokens_per_second: float
    failed: int


@dataclass(frozen=True)
class Comparison:
    """A quantile over all requests with and without polling, in seconds, the ratio, and its 95 % interval."""

    share: int
    polled: float
    alone: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        return self.polled / self.alone


def order(pairs: int) -> list[bool]:
    """Whether the exporter is there, block by block: with, without, without, with, …"""
    return [polled for pair in range(pairs) for polled in ((True, False) if pair % 2 == 0 else (False, True))]


def quantile(values: Sequence[float], share: int) -> float:
    """By nearest rank, as the load generator does it; `share` in percent."""
    found = load.quantile(sorted(values), share)
    if found is None:
        raise SystemExit("bench: no request was answered: see the server's log")
    return found


def compare(blocks: Sequence[Block], share: int, seed: int = 1) -> Comparison:
    """Quantile `share` of both, and the ratio's interval from whole pairs of neighbouring blocks drawn with replacement."""
    pairs = [(blocks[place], blocks[place + 1]) for place in range(0, len(blocks), 2)]
    source = random.Random(seed)

    def both(chosen: Sequence[tuple[Block, Block]]) -> tuple[float, float]:
        arms: dict[bool, list[float]] = {True: [], False: []}
        for block in (block for pair in chosen for block in pair):
            arms[block.polled].extend(block.first_tokens)
        return quantile(arms[True], share), quantile(arms[False], share)

    polled, alone = both(pairs)
    drawn = sorted(with_it / without for with_it, without in (both(source.choices(pairs, k=len(pairs))) for _ in range(BOOTSTRAP_DRAWS)))
    return Comparison(share, polled, alone, drawn[len(drawn) * 25 // 1000], drawn[len(drawn) * 975 // 1000])


def measure(deployment: Deployment, polled: bool, seconds: float, seed: int) -> Block:
    """One block: the exporter brought or ended, some load to settle, then the load that counts."""
    if polled:
        deployment.start_exporter()
    else:
        with lock.held(deployment.layout.lock, "a block without exporter"):
            teardown.end_processes(deployment.layout, ["exporter"])
    drive(deployment, SETTLE_SECONDS, seed)
    result = drive(deployment, seconds, seed + 1)
    return Block(polled, tuple(result.time_to_first_token), result.output_tokens / result.seconds, result.failed)


def drive(deployment: Deployment, seconds: float, seed: int) -> LoadResult:
    plan = deployment.plan
    settings = LoadSettings(
        plan.url, plan.served_name, CLIENTS, seconds=seconds, prompt_words=PROMPT_WORDS, max_tokens=ANSWER_TOKENS, seed=seed
    )
    return asyncio.run(load.run_load(settings, LoadResult(), time.monotonic, asyncio.Event()))


def report(blocks: Sequence[Block], seconds: float, build: str) -> str:
    """The section of docs/benchmarks.md."""
    rows = "\n".join(
        f"| TTFT p{c.share} | {c.polled * 1e3:.1f} ms | {c.alone * 1e3:.1f} ms | {c.ratio:.3f} | {c.low:.3f} to {c.high:.3f} |"
        for c in (compare(blocks, 50), compare(blocks, 95), compare(blocks, 99))
    )
    arms = {polled: [block for block in blocks if block.polled == polled] for polled in (True, False)}
    requests = {polled: sum(len(block.first_tokens) for block in arm) for polled, arm in arms.items()}
    rate = {polled: sum(block.tokens_per_second for block in arm) / len(arm) for polled, arm in arms.items()}
    single = {polled: [quantile(block.first_tokens, 99) * 1e3 for block in arm] for polled, arm in arms.items()}
    spread = {polled: f"{min(values):.0f} to {max(values):.0f} ms" for polled, values in single.items()}
    where = "vLLM's CPU build with the tiny model on a simulated card" if build == "cpu" else "vLLM on a GPU"
    return f"""## A loaded engine, polled and not

Made by `make bench-engine` (`scripts/bench_engine.py`): {where}, {os.cpu_count()} cores, {CLIENTS} clients without pause, prompts of {PROMPT_WORDS}
tokens, answers of {ANSWER_TOKENS}. The exporter as it ships (all collectors, the engine's page every 5 s) runs in every other of {len(blocks)} blocks of
{seconds:.0f} s and is ended in the others. Python {platform.python_version()}, one run.

| | with the exporter | without | ratio | 95 % interval |
|-|-:|-:|-:|-:|
{rows}
| output tokens/s | {rate[True]:.0f} | {rate[False]:.0f} | {rate[True] / rate[False]:.3f} | |
| requests | {requests[True]} | {requests[False]} | | |
| p99 of single blocks | {spread[True]} | {spread[False]} | | |

The interval comes from drawing the {len(blocks) // 2} pairs of neighbouring blocks anew {BOOTSTRAP_DRAWS} times: a ratio of 1 inside it means that no difference was
seen. Client, engine, mirror and exporter share the cores here; on a GPU server the exporter has cores of its own, and what is left is the
rendering of the page in the engine's API server.
"""


def say(text: str) -> None:
    print(f"bench: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=8, help="pairs of blocks (default: 8)")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a block (default: 20)")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the section into this report as well")
    arguments = parser.parse_args()
    progress = Progress("bench", [], [TerminalSink(sys.stderr, lambda: 100, time.monotonic)], time.monotonic)
    with tempfile.TemporaryDirectory(prefix="poise-bench-") as folder:
        shape = shapes.load(SHAPE)
        wanted = Request(shape, Path(folder) / "state", paths.cache_directory(os.environ), any_ports=True)
        say(f"{shape.title}: {', '.join(step_names(wanted, simulated=True))}")
        with Deployment.up(wanted, progress, say=say) as deployment:
            blocks = []
            for number, polled in enumerate(order(arguments.pairs)):
                blocks.append(measure(deployment, polled, arguments.seconds, seed=2 * number))
                found = blocks[-1]
                figures = f"{len(found.first_tokens)} requests, p99 {quantile(found.first_tokens, 99) * 1e3:.1f} ms, {found.failed} failed"
                say(f"{number + 1} of {2 * arguments.pairs}, {'with' if polled else 'without'} exporter: {figures}")
            section = report(blocks, arguments.seconds, deployment.plan.build)
    print(section)
    if arguments.write:
        bench_page.put(arguments.write, Path(__file__), section)
    return 0


if __name__ == "__main__":
    sys.exit(main())
