"""Shows each vLLM worker of a deployment on the simulated card on which CUDA would have put it: `python -m poise.testbed.mirror DIR`.

Owns the loop: find workers, measure them, write to the cards. The arithmetic is in mirroring.py and traffic.py, faults of cards
are in card_faults.py. The only writer of the cards after they were made; survives servers that come and go, and its own restart.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poise.exporter.engines.argv import parse_server
from poise.testbed import card_faults, cards, mirroring, model, plan, processes, records, traffic, workers
from poise.testbed.card_faults import CardFaults
from poise.testbed.engine_page import PAGE_SECONDS, Pages, PageThread, Reading
from poise.testbed.errors import TestbedError
from poise.testbed.meter import Meter
from poise.testbed.mirroring import CardLimits
from poise.testbed.model import ModelShape
from poise.testbed.nvml.codes import Gpm
from poise.testbed.nvml.gpu import Process, SimulatedGPU
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.profiles import Profile
from poise.testbed.nvml.state import MAX_GPM_METRICS
from poise.testbed.paths import StateLayout
from poise.testbed.plan import EnginePlan
from poise.testbed.processes import PROC, ProcessIdentity
from poise.testbed.records import Record
from poise.testbed.traffic import Flow, Grid
from poise.testbed.wiring import Carrier
from poise.testbed.workers import Worker

# NVIDIA's driver takes a sample every 1/6 s; five a second is close to it. Three servers with four workers cost 3 to 4 % of a core in
# all (measured), a third of it for looking at /proc.
TICK_SECONDS = 0.2
# Processes come and go in seconds; reading all of /proc costs more than reading two workers.
LOOK_SECONDS = 1.0
# A page tells what went since the one before; one that is late must not make a rate fall and rise.
RATE_SECONDS = 2 * PAGE_SECONDS


@dataclass(slots=True)
class Engine:
    """What is known of one server. Sizes, model and cards are what its own command line and environment say, not the plan, which
    may already want another."""

    planned: EnginePlan
    tensor: int
    pipeline: int
    data: int
    shape: ModelShape | None
    weights: int  # bytes of the whole model
    by_card: dict[int, Worker] = field(default_factory=dict)
    page: Reading | None = None
    # Prompt tokens of each prefill server when this one's transfers were last counted, by its name.
    prompts: dict[str, float] = field(default_factory=dict)

    @property
    def grid(self) -> Grid:
        return Grid(self.tensor, self.pipeline, self.data, {worker.local_rank: card for card, worker in self.by_card.items()})

    @property
    def moves_bytes(self) -> bool:
        """Whether its ranks send anything to others."""
        return self.tensor * self.pipeline > 1 or self.planned.kv_connector is not None

    def least_memory(self, rank: int) -> tuple[int, int]:
        """The rank's part of the weights and its KV cache, in bytes; 0 for what is not there yet or not known."""
        counts = None if self.page is None else self.page.counts
        if self.shape is None or counts is None or not counts.cache_tokens:
            return 0, 0
        layers = traffic.stage_layers(self.shape.num_hidden_layers, self.pipeline)[rank // self.tensor % self.pipeline]
        element = counts.cache_element_bytes or self.shape.element_bytes
        token = traffic.kv_bytes_per_token(self.shape, self.tensor, layers, element)
        return self.weights // (self.tensor * self.pipeline), token * counts.cache_tokens


class Mirror:
    """The state of the loop. `pages`, `proc` and clocks are passed in; one call of `tick` does one round."""

    def __init__(self, layout: StateLayout, node: SimulatedNode, profile: Profile, pages: Pages, proc: Path = PROC) -> None:
        self._layout = layout
        self._node = node
        self._limits = limits_of(profile)
        self._memory_warmer = profile.temperature.memory_idle - profile.temperature.idle if profile.temperature.memory_idle else None
        self._pages = pages
        self._proc = proc
        self._engines: dict[ProcessIdentity, Engine] = {}
        self._foreign: list[tuple[int, Process]] = []
        self._meters: dict[int, Meter] = {}
        self._shown: tuple[dict[int, int], tuple[str, ...]] | None = None
        self._temperature = [self._limits.idle_celsius] * len(node.gpus)
        self._faults = CardFaults(node)
        self._carrier = Carrier(node.gpus, RATE_SECONDS)
        self._looked = float("-inf")
        self._ticked: float | None = None
        for gpu in node.gpus:
            for metric in range(1, MAX_GPM_METRICS):
                if metric not in (Gpm.GRAPHICS_UTIL, Gpm.SM_UTIL):
                    gpu.set_gpm(metric, None)  # what a process on a CPU cannot tell is not there, rather than 0

    def tick(self, now: float, wall: float) -> None:
        """One round at `now` (monotonic seconds) and `wall` (unix seconds)."""
        if now - self._looked >= LOOK_SECONDS:
            self._look()
            self._looked = now
        self._faults.switch(cards.wanted_faults(self._layout))
        gone = {gpu.position for gpu in self._node.gpus if card_faults.RANK_GONE in self._faults.on(gpu)}
        on_cards: dict[int, list[tuple[Engine, Worker]]] = {}
        for engine in self._engines.values():
            for card, worker in engine.by_card.items():
                if card not in gone:
                    on_cards.setdefault(card, []).append((engine, worker))  # servers of a user's own shape may share a card
        seconds = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        self._faults.advance(seconds)
        for gpu in self._node.gpus:
            self._show_card(gpu, on_cards.get(gpu.position, ()), now, wall, seconds)
        for flow in self._flows():
            if flow.source not in gone and flow.target not in gone:
                self._carrier.carry(flow, now)
        for gpu in self._node.gpus:
            self._carrier.show_rates(gpu, now)
        shown = {worker.pid: card for card, here in on_cards.items() for _, worker in here}, self._faults.names
        if shown != self._shown:
            cards.show(self._layout, *shown)
            self._shown = shown

    def _look(self) -> None:
        """Which servers there are, which worker sits on which card, and who else holds memory."""
        try:
            planned = {engine.name: engine for engine in plan.read(self._layout.plan).engines}
        except TestbedError:  # it is being taken down, and so are we
            planned = {}
        stats = processes.all_stats(self._proc)
        found: dict[ProcessIdentity, Engine] = {}
        self._foreign = []
        for record in records.read_all(self._layout.records):
            if not processes.is_alive(record.identity, self._proc):
                continue
            if record.role == "engine" and record.name in planned:
                engine = self._engines.get(record.identity) or self._engine(record, planned[record.name])
                if engine is not None:
                    ranks = workers.workers_of(record.pid, engine.tensor, stats, self._proc, engine.pipeline)
                    engine.by_card = workers.cards_of(ranks, self._visible(record.pid))
                    found[record.identity] = engine
            elif card_faults.FOREIGN_MEMORY in record.facts:
                self._foreign.append(
                    (int(record.facts[card_faults.FOREIGN_CARD]), Process(record.pid, int(record.facts[card_faults.FOREIGN_MEMORY])))
                )
        self._engines = found
        self._pages.want([e.planned.port for e in found.values() if e.moves_bytes or e.page is None or not e.page.counts.cache_tokens])
        there = {worker.identity for engine in found.values() for worker in engine.by_card.values()}
        for pid in [pid for pid, meter in self._meters.items() if meter.identity not in there]:
            self._meters.pop(pid).close()

    def _engine(self, record: Record, planned: EnginePlan) -> Engine | None:
        """None while the process has not yet turned into a vLLM server."""
        command = parse_server(processes.command_line(record.pid, self._proc))
        if command is None:
            return None
        config = command.config
        folder = Path(config.model_path) if config.model_path else None
        return Engine(
            planned,
            config.tensor_parallel_size,
            config.pipeline_parallel_size,
            config.data_parallel_size_local or config.data_parallel_size,
            None if folder is None else model.read_shape(folder),
            0 if folder is None else model.weight_bytes(folder),
        )

    def _visible(self, server: int) -> list[int]:
        """The cards that the server sees, from its own environment as CUDA would read it."""
        value = processes.environment(server, self._proc).get("CUDA_VISIBLE_DEVICES")
        return workers.visible_devices(value, [gpu.uuid for gpu in self._node.gpus])

    def _show_card(self, gpu: SimulatedGPU, here: Sequence[tuple[Engine, Worker]], now: float, wall: float, seconds: float) -> None:
        share, holders = self._held(gpu, here, now)
        limits, place, faults = self._limits, gpu.position, self._faults.on(gpu)
        reasons = card_faults.clock_reasons(faults) | mirroring.thermal_reasons(limits, self._temperature[place])
        megahertz = mirroring.clock_megahertz(limits, share, reasons)
        if share < mirroring.IDLE_SHARE:
            reasons.add("gpu_idle")
        watts = mirroring.power_watts(limits, share, megahertz)
        cooled = card_faults.THERMAL not in faults
        celsius = mirroring.temperature_celsius(limits, self._temperature[place], watts, seconds, cooled)
        self._temperature[place] = celsius
        with gpu.changing():
            gpu.set_utilization(share)
            gpu.set_gpm(Gpm.GRAPHICS_UTIL, 100 * share)
            gpu.set_gpm(Gpm.SM_UTIL, 100 * share)
            gpu.set_memory_used(min(sum(holder.memory_bytes or 0 for holder in holders), gpu.memory_capacity_bytes))
            gpu.set_power(watts)
            gpu.add_energy(watts * seconds)
            gpu.set_temperature(round(celsius), None if self._memory_warmer is None else round(celsius) + self._memory_warmer)
            gpu.set_clock("sm", megahertz * 1e6)
            gpu.set_clock("graphics", megahertz * 1e6)
            gpu.set_event_reasons(reasons)
            card_faults.count_reasons(gpu, reasons, seconds)
            gpu.set_processes(holders, at=wall)
            gpu.push_samples(wall)

    def _held(self, gpu: SimulatedGPU, here: Sequence[tuple[Engine, Worker]], now: float) -> tuple[float, list[Process]]:
        """The busy share of the card's workers together, and everybody who holds memory of the card."""
        busy = 0.0
        holders = []
        for engine, worker in here:
            share, resident = self._meter(worker).measure(now)
            held = min(mirroring.memory_bytes(resident, *engine.least_memory(worker.local_rank)), gpu.memory_capacity_bytes)
            holders.append(Process(worker.pid, held, sm_ratio=share))
            busy += share
        return min(1.0, busy), [*holders, *(process for card, process in self._foreign if card == gpu.position)]

    def _meter(self, worker: Worker) -> Meter:
        meter = self._meters.get(worker.pid)
        if meter is None or meter.identity != worker.identity:
            meter = self._meters[worker.pid] = Meter(worker.identity, self._proc)
        return meter

    def _flows(self) -> list[Flow]:
        """What the ranks sent each other between the last two pages of each server that has a new one."""
        found: list[Flow] = []
        for engine in self._engines.values():
            reading = self._pages.latest(engine.planned.port)
            if reading is None or (engine.page is not None and reading.number == engine.page.number):
                continue
            before, engine.page = engine.page, reading
            if engine.shape is None or before is None:
                continue
            tokens = _growth(before.counts.computed_tokens, reading.counts.computed_tokens)
            found += traffic.compute_flows(engine.grid, engine.shape, tokens)
            pulled = _growth(before.counts.transferred_bytes, reading.counts.transferred_bytes)
            if pulled:
                found += traffic.transfer_flows(self._givers(engine), engine.grid, engine.shape.num_hidden_layers, pulled)
        return found

    def _givers(self, target: Engine) -> list[tuple[Grid, float]]:
        """The servers that the KV cache came from, each with the prompt tokens that it took in since it was last asked for: the
        page of the one that pulls does not tell them apart."""
        givers = [e for e in self._engines.values() if e is not target and e.planned.kv_connector and e.planned.role != "decode"]
        totals = {e.planned.name: 0.0 if e.page is None else sum(e.page.counts.prompt_tokens.values()) for e in givers}
        shares = {name: max(0.0, total - target.prompts.get(name, 0.0)) for name, total in totals.items()}
        target.prompts = totals
        alike = not any(shares.values())
        return [(engine.grid, 1.0 if alike else shares[engine.planned.name]) for engine in givers]


def _growth(before: Mapping[int, float], after: Mapping[int, float]) -> dict[int, float]:
    """How much each counter grew; none that is new or began anew."""
    return {rank: value - before[rank] for rank, value in after.items() if rank in before and value > before[rank]}


def limits_of(profile: Profile) -> CardLimits:
    """A profile's limits in the mirror's terms."""
    return CardLimits(
        idle_watts=profile.power.idle_watts,
        limit_watts=profile.power.default_limit_watts,
        idle_celsius=float(profile.temperature.idle),
        highest_celsius=float(profile.temperature.gpu_max),
        slowdown_celsius=float(profile.temperature.slowdown),
        idle_megahertz=float(profile.clocks.idle_mhz[1]),
        full_megahertz=float(profile.clocks.max_mhz[1]),
    )


def main(arguments: list[str]) -> int:
    layout = StateLayout(Path(arguments[0]))
    pages = PageThread()
    try:
        with SimulatedNode.open(layout.cards) as node:
            mirror = Mirror(layout, node, cards.profile(len(node.gpus)), pages)
            following = time.monotonic()
            while layout.cards.exists():
                mirror.tick(time.monotonic(), time.time())
                following = max(following + TICK_SECONDS, time.monotonic())
                time.sleep(max(0.0, following - time.monotonic()))
    except TestbedError as error:
        print(error, flush=True)
        return 1
    finally:
        pages.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
