"""Shows each vLLM worker of a deployment on the simulated card on which CUDA would have put it: `python -m poise.testbed.mirror DIR`.

Owns the loop: find workers, measure them, write to the cards, apply the wanted faults. The arithmetic is in mirroring.py.
The only writer of the cards after they were made; survives servers that come and go, and its own restart.
"""

from __future__ import annotations

import http.client
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from poise.testbed import cards, mirroring, model, plan, processes, records, workers
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
from poise.testbed.ports import LOOPBACK
from poise.testbed.processes import PROC, ProcessIdentity
from poise.testbed.workers import Worker

# NVIDIA's driver takes a sample every 1/6 s; five a second is close to it and costs 1 % of a core for two workers.
TICK_SECONDS = 0.2
# Processes come and go in seconds; reading all of /proc costs more than reading two workers.
LOOK_SECONDS = 1.0
# vLLM renders its page in the API server: asked no more often than a dashboard would.
PAGE_SECONDS = 2.0
PAGE_TIMEOUT_SECONDS = 1.0
# The SM clock under the fault slow-clock, as a share of the top: a power cap that a neighbour's card does not have.
SLOW_CLOCK_SHARE = 0.6
# NVIDIA, XID errors: 79 is "GPU has fallen off the bus".
XID_FALLEN_OFF = 79


@dataclass(slots=True)
class Engine:
    """What is known of one server between two looks."""

    record: records.Record
    planned: EnginePlan
    by_card: dict[int, Worker] = field(default_factory=dict)
    tokens: float | None = None
    asked: float = float("-inf")


class Mirror:
    """The state of the loop. `proc` and clocks are passed in; one call of `tick` does one round."""

    def __init__(self, layout: StateLayout, node: SimulatedNode, profile: Profile, proc: Path = PROC) -> None:
        self._layout = layout
        self._node = node
        self._limits = limits_of(profile)
        self._proc = proc
        self._engines: dict[ProcessIdentity, Engine] = {}
        self._meters: dict[int, Meter] = {}
        self._shown: tuple[dict[int, int], tuple[str, ...]] | None = None
        self._temperature = [self._limits.idle_celsius] * len(node.gpus)
        self._applied = cards.Wish()
        self._looked = float("-inf")
        self._ticked: float | None = None
        self._shape: ModelShape | None = None
        for gpu in node.gpus:
            for metric in range(1, MAX_GPM_METRICS):
                if metric not in (Gpm.GRAPHICS_UTIL, Gpm.SM_UTIL):
                    gpu.set_gpm(metric, None)  # what a process on a CPU cannot tell is not there, rather than 0

    def tick(self, now: float, wall: float) -> None:
        """One round at `now` (monotonic seconds) and `wall` (unix seconds)."""
        if now - self._looked >= LOOK_SECONDS:
            self._look()
            self._looked = now
        wish = cards.wanted_faults(self._layout)
        faults, faulty = wish.faults, self._faulty(wish).position
        on_cards = {
            card: worker
            for engine in self._engines.values()
            for card, worker in engine.by_card.items()
            if not (card == faulty and "rank-gone" in faults)
        }
        seconds = 0.0 if self._ticked is None else now - self._ticked
        self._ticked = now
        for gpu in self._node.gpus:
            self._show_card(gpu, on_cards.get(gpu.position), now, wall, seconds, slow=gpu.position == faulty and "slow-clock" in faults)
        for engine in self._engines.values():
            self._show_traffic(engine, on_cards, now)
        self._apply(wish)
        shown = {worker.pid: card for card, worker in on_cards.items()}, faults
        if shown != self._shown:
            cards.show(self._layout, *shown)
            self._shown = shown

    def _look(self) -> None:
        """Which servers there are, and which worker sits on which card."""
        try:
            planned = {engine.name: engine for engine in plan.read(self._layout.plan).engines}
        except TestbedError:  # it is being taken down, and so are we
            planned = {}
        stats = processes.all_stats(self._proc)
        found = {}
        for record in records.read_all(self._layout.records):
            if record.role == "engine" and record.name in planned and processes.is_alive(record.identity, self._proc):
                known = self._engines.get(record.identity)
                engine = known or Engine(record, planned[record.name])
                visible = self._visible(record.pid)
                engine.by_card = workers.cards_of(workers.workers_of(record.pid, self._size(engine), stats, self._proc), visible)
                found[record.identity] = engine
                self._shape = self._shape or self._model_shape(record.pid)
        self._engines = found
        there = {worker.identity for engine in found.values() for worker in engine.by_card.values()}
        for pid in [pid for pid, meter in self._meters.items() if meter.identity not in there]:
            self._meters.pop(pid).close()

    def _size(self, engine: Engine) -> int:
        """The size that the running server was started with: the plan may already say another."""
        return int(engine.record.facts.get("tensor_parallel_size", engine.planned.tensor_parallel_size))

    def _visible(self, server: int) -> list[int]:
        """The cards that the server sees, from its own environment as CUDA would read it."""
        value = processes.environment(server, self._proc).get("CUDA_VISIBLE_DEVICES")
        return workers.visible_devices(value, [gpu.uuid for gpu in self._node.gpus])

    def _model_shape(self, server: int) -> ModelShape | None:
        arguments = processes.command_line(server, self._proc)
        if "serve" not in arguments[:-1]:
            return None
        return model.read_shape(Path(arguments[arguments.index("serve") + 1]))

    def _show_card(self, gpu: SimulatedGPU, worker: Worker | None, now: float, wall: float, seconds: float, slow: bool) -> None:
        share, resident = (0.0, 0) if worker is None else self._meter(worker).measure(now)
        limits = self._limits
        watts = mirroring.power_watts(limits, share)
        place = gpu.position
        self._temperature[place] = mirroring.temperature_celsius(limits, self._temperature[place], watts, seconds)
        clock = mirroring.clock_megahertz(limits, share)
        reasons = {"gpu_idle"} if share < mirroring.IDLE_SHARE else set()
        if slow:
            clock = min(clock, SLOW_CLOCK_SHARE * limits.full_megahertz)
            reasons.add("sw_power_cap")
        used = min(resident, gpu.memory_capacity_bytes)
        with gpu.changing():
            gpu.set_utilization(share)
            gpu.set_gpm(Gpm.GRAPHICS_UTIL, 100 * share)
            gpu.set_gpm(Gpm.SM_UTIL, 100 * share)
            gpu.set_memory_used(used)
            gpu.set_power(watts)
            gpu.add_energy(watts * seconds)
            gpu.set_temperature(round(self._temperature[place]))
            gpu.set_clock("sm", clock * 1e6)
            gpu.set_clock("graphics", clock * 1e6)
            gpu.set_event_reasons(reasons)
            gpu.set_processes([] if worker is None else [Process(worker.pid, used, sm_ratio=share)], at=wall)
            gpu.push_samples(wall)

    def _meter(self, worker: Worker) -> Meter:
        meter = self._meters.get(worker.pid)
        if meter is None or meter.identity != worker.identity:
            meter = self._meters[worker.pid] = Meter(worker.identity, self._proc)
        return meter

    def _show_traffic(self, engine: Engine, on_cards: Mapping[int, Worker], now: float) -> None:
        """All-reduce bytes of the tokens that went through the model since the last page, over the links that are up."""
        size = self._size(engine)
        if size < 2 or self._shape is None or now - engine.asked < PAGE_SECONDS:
            return
        engine.asked = now
        tokens = mirroring.computed_tokens(read_page(engine.planned.port))
        if tokens is None:
            return
        before, engine.tokens = engine.tokens, tokens
        if before is None or tokens <= before:
            return
        sent = (tokens - before) * mirroring.all_reduce_bytes_per_token(self._shape, size)
        for card in engine.by_card:
            if card in on_cards:
                self._add_bytes(self._node.gpus[card], round(sent))

    def _add_bytes(self, gpu: SimulatedGPU, count: int) -> None:
        """NCCL stripes over all links, so each that is up carries the same part."""
        down = {0} if "link-down" in self._applied.faults and gpu.position == self._faulty(self._applied).position else set()
        links = [link for link in range(gpu.link_count) if link not in down]
        with gpu.changing():
            for place, link in enumerate(links):
                part = count // len(links) + (place < count % len(links))
                gpu.add_nvlink_bytes(link, tx=part, rx=part)

    def _faulty(self, wish: cards.Wish) -> SimulatedGPU:
        """The card that faults are shown on."""
        return self._node.gpus[-1 if wish.card is None or wish.card >= len(self._node.gpus) else wish.card]

    def _apply(self, wanted: cards.Wish) -> None:
        """Faults that are switched, not shown anew at each tick."""
        if wanted == self._applied:
            return
        faulty, before = self._faulty(wanted).position, self._faulty(self._applied).position
        for gpu in self._node.gpus:
            here = wanted.faults if gpu.position == faulty else ()
            if gpu.link_count:
                gpu.set_link_up(0, "link-down" not in here)
            if "card-lost" not in here:
                self._node.restore(gpu.position)
        if "card-lost" in wanted.faults and not ("card-lost" in self._applied.faults and faulty == before):
            self._node.lose(faulty)
            self._node.raise_xid(faulty, XID_FALLEN_OFF)
        self._applied = wanted


def limits_of(profile: Profile) -> CardLimits:
    """A profile's limits in the mirror's terms. Full load heats a card to ten degrees below its highest operating point."""
    return CardLimits(
        idle_watts=profile.power.idle_watts,
        limit_watts=profile.power.default_limit_watts,
        idle_celsius=float(profile.temperature.idle),
        full_load_celsius=float(profile.temperature.gpu_max - 10),
        idle_megahertz=float(profile.clocks.idle_mhz[1]),
        full_megahertz=float(profile.clocks.max_mhz[1]),
    )


def read_page(port: int) -> Sequence[str]:
    """The lines of a vLLM server's metrics page; none while it does not answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PAGE_TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.read().decode("utf-8", "replace").splitlines() if answer.status == 200 else ()
    except (OSError, http.client.HTTPException):
        return ()
    finally:
        connection.close()


def main(arguments: list[str]) -> int:
    layout = StateLayout(Path(arguments[0]))
    try:
        with SimulatedNode.open(layout.cards) as node:
            mirror = Mirror(layout, node, cards.profile(len(node.gpus)))
            following = time.monotonic()
            while layout.cards.exists():
                mirror.tick(time.monotonic(), time.time())
                following = max(following + TICK_SECONDS, time.monotonic())
                time.sleep(max(0.0, following - time.monotonic()))
    except TestbedError as error:
        print(error, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
