"""The mirror's rounds on a real simulated node, over a /proc made here."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from poise.testbed import cards, model, plan, records
from poise.testbed.engine_page import PageCounts, Reading
from poise.testbed.mirror import LOOK_SECONDS, Mirror
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan
from poise.testbed.records import Record

from tests.fake_proc import FakeProc
from tests.unit.testbed.deployments import layout_in

SERVER, CORE, FIRST, SECOND_RANK = 3999, 3998, 4000, 4001  # as tests.full_node has them
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
NO_PORT = 1
XID_FALLEN_OFF = 79


class GivenPages:
    """Pages that a test gives, by port; each one is newer than all before."""

    def __init__(self) -> None:
        self.wanted: set[int] = set()
        self._readings: dict[int, Reading] = {}
        self._number = 0

    def want(self, ports: Collection[int]) -> None:
        self.wanted = set(ports)

    def latest(self, port: int) -> Reading | None:
        return self._readings.get(port)

    def give(self, port: int, counts: PageCounts) -> None:
        self._number += 1
        self._readings[port] = Reading(self._number, counts)


class World:
    """A TP=2 server in a /proc of our own, and the mirror that looks at it."""

    def __init__(self, folder: Path, node: SimulatedNode | None = None) -> None:
        self.layout: StateLayout = layout_in(folder)
        self.proc = FakeProc(folder / "proc")
        self.pages = GivenPages()
        self.now = 1000.0
        self.write_plan(2)
        self.node = node or SimulatedNode.create(self.layout.cards, cards.profile(2))
        self.model = model.make_tiny(folder / "models")
        self.start()
        self.mirror = self.make_mirror()

    def make_mirror(self) -> Mirror:
        return Mirror(self.layout, self.node, cards.profile(2), self.pages, self.proc.root)

    def write_plan(self, size: int, visible: str | None = None) -> None:
        self.write_engines(EnginePlan("server", NO_PORT, size, visible, ()))

    def write_engines(self, *engines: EnginePlan) -> None:
        plan.write(self.layout.plan, DeploymentPlan("tp", "cpu", Path("/env"), "tiny", "tiny", 2, engines, exporter_port=None))

    def start(self, size: int = 2, visible: str | None = None, titles: tuple[str, ...] = ("_TP0", "_TP1")) -> None:
        environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        arguments = ["/env/bin/python", "/env/bin/vllm", "serve", str(self.model), "--tensor-parallel-size", str(size)]
        self.proc.add(SERVER, arguments, environment=environment, ticks=77)
        self.proc.add(CORE, b"VLLM::EngineCore\0\0", ppid=SERVER)
        for pid, title in zip((FIRST, SECOND_RANK), titles, strict=False):
            self.proc.add(pid, f"VLLM::Worker{title}".encode() + b"\0\0", ppid=CORE)
            self.worked(pid, 0.0, 0.0)
            (self.proc.root / str(pid) / "statm").write_text("999999 180000 30000 1 0 200000 0\n")
        records.write(self.layout.records, Record("server", "engine", SERVER, 77, 0.0))

    def start_one(self, name: str, server: int, worker: int, visible: str) -> None:
        """A server with one worker that has no rank, as vLLM's CPU build starts it."""
        arguments = ["/env/bin/python", "/env/bin/vllm", "serve", str(self.model)]
        self.proc.add(server, arguments, environment={"CUDA_VISIBLE_DEVICES": visible}, ticks=77)
        self.proc.add(worker, b"VLLM::Worker\0\0", ppid=server)
        self.worked(worker, 0.0, 0.0)
        (self.proc.root / str(worker) / "statm").write_text("999999 1000 300 1 0 2000 0\n")
        records.write(self.layout.records, Record(name, "engine", server, 77, 0.0))

    def nvlink(self) -> list[tuple[int, int]]:
        """Bytes sent and received by each card."""
        cards_ = [gpu._card for gpu in self.node.gpus]
        return [(sum(link.payload_tx_bytes for link in c.links), sum(link.payload_rx_bytes for link in c.links)) for c in cards_]

    def worked(self, pid: int, ran: float, waited: float) -> None:
        """The one thread of a worker has run and waited so many seconds since it began."""
        folder = self.proc.root / str(pid) / "task" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "schedstat").open("r+" if (folder / "schedstat").exists() else "w") as file:
            file.write(f"{round(ran * 1e9):>20} {round(waited * 1e9):>20} 77\n")

    def tick(self, seconds: float = LOOK_SECONDS) -> None:
        self.now += seconds
        self.mirror.tick(self.now, 1_800_000_000 + self.now)

    def shown(self) -> dict[str, object]:
        value = json.loads(self.layout.mirror.read_text())
        assert isinstance(value, dict)
        return value

    def card(self, position: int) -> object:
        return self.node.gpus[position]._card


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.node.close()


def percent(world: World) -> list[int]:
    return [gpu._card.gpu_percent for gpu in world.node.gpus]


def on_cards(world: World) -> list[list[int]]:
    return [[gpu._card.processes[n].pid for n in range(gpu._card.process_count)] for gpu in world.node.gpus]


def test_each_rank_is_on_its_card_with_its_memory_and_share(world: World) -> None:
    world.tick()
    world.worked(FIRST, 0.9, 0.05)
    world.worked(SECOND_RANK, 0.3, 0.0)
    world.tick(1.0)
    assert on_cards(world) == [[FIRST], [SECOND_RANK]]
    assert percent(world) == [95, 30]
    card = world.node.gpus[0]._card
    assert card.memory_used_bytes == card.processes[0].used_memory_bytes == 180000 * PAGE_SIZE
    assert world.shown() == {"workers": {str(FIRST): 0, str(SECOND_RANK): 1}, "faults": []}


def test_power_energy_temperature_and_clock_follow_the_share(world: World) -> None:
    world.tick()
    world.worked(FIRST, 1.0, 0.0)
    world.tick(1.0)
    busy, idle = (gpu._card for gpu in world.node.gpus)
    assert (busy.power_mw, idle.power_mw) == (450_000, 75_000)
    assert busy.energy_mj > idle.energy_mj > 0
    assert busy.temperature > idle.temperature
    assert (busy.clock_mhz[1], idle.clock_mhz[1]) == (1980, 345)
    assert (busy.event_reasons, idle.event_reasons) == (0, 1)


def test_each_round_is_one_sample_in_the_drivers_ring(world: World) -> None:
    for _ in range(5):
        world.tick(0.2)
    assert world.node.gpus[0]._card.samples[1].written == 5


def test_a_worker_seen_for_the_first_time_has_no_share_yet(world: World) -> None:
    world.worked(FIRST, 500.0, 0.0)
    world.tick()
    assert percent(world) == [0, 0]


@pytest.mark.parametrize(("visible", "pids"), [("1,0", [[SECOND_RANK], [FIRST]]), ("0", [[FIRST], []]), ("", [[], []])])
def test_cards_are_those_that_the_server_sees(world: World, visible: str, pids: list[list[int]]) -> None:
    world.start(visible=visible)
    world.tick()
    assert on_cards(world) == pids


def test_a_worker_whose_rank_is_not_set_yet_is_on_no_card(world: World) -> None:
    world.start(titles=("", ""))
    world.tick()
    assert on_cards(world) == [[], []]


def test_the_worker_of_a_server_without_ranks_is_on_its_first_card(world: World) -> None:
    world.write_plan(1)
    world.proc.remove(SECOND_RANK)
    world.start(size=1, titles=("",))
    world.tick()
    assert on_cards(world) == [[FIRST], []]


def test_cards_are_empty_and_cool_down_when_the_server_is_gone(world: World) -> None:
    world.tick()
    world.worked(FIRST, 1.0, 0.0)
    world.tick(1.0)
    for pid in (SERVER, CORE, FIRST, SECOND_RANK):
        world.proc.remove(pid)
    world.tick(1.0)
    assert on_cards(world) == [[], []]
    assert percent(world) == [0, 0]
    assert [gpu._card.memory_used_bytes for gpu in world.node.gpus] == [0, 0]
    assert world.shown()["workers"] == {}


def test_a_server_that_comes_back_with_other_workers_is_followed(world: World) -> None:
    world.tick()
    for pid in (SERVER, CORE, FIRST, SECOND_RANK):
        world.proc.remove(pid)
    world.tick()
    world.start(visible="1")
    world.tick()
    assert on_cards(world) == [[], [FIRST]]


def test_a_deployment_without_a_plan_shows_idle_cards(world: World) -> None:
    world.layout.plan.unlink()
    world.tick()
    assert on_cards(world) == [[], []]


def test_rank_gone_takes_the_last_rank_off_its_card_while_the_process_lives(world: World) -> None:
    world.layout.faults.write_text('{"faults": ["rank-gone"]}')
    world.tick()
    assert on_cards(world) == [[FIRST], []]
    assert world.node.gpus[1]._card.memory_used_bytes == 0
    assert world.shown()["faults"] == ["rank-gone"]
    world.layout.faults.write_text('{"faults": []}')
    world.tick()
    assert on_cards(world) == [[FIRST], [SECOND_RANK]]


def test_slow_clock_holds_the_last_card_at_a_power_cap(world: World) -> None:
    world.layout.faults.write_text('{"faults": ["slow-clock"]}')
    world.tick()
    world.worked(FIRST, 1.0, 0.0)
    world.worked(SECOND_RANK, 1.0, 0.0)
    world.tick(1.0)
    first, last = (gpu._card for gpu in world.node.gpus)
    assert (first.clock_mhz[1], last.clock_mhz[1]) == (1980, 1188)
    assert (first.event_reasons, last.event_reasons) == (0, 0x4)


def test_link_down_and_card_lost_are_switched_on_and_off(world: World) -> None:
    last = world.node.gpus[1]
    up = last._card.links[0].state
    world.layout.faults.write_text('{"faults": ["card-lost", "link-down"]}')
    world.tick()
    world.tick()
    assert last._card.links[0].state != up
    assert last._card.condition != 0
    events = world.node._file.state.events
    assert (world.node._file.state.events_written, events[0].data, events[0].card) == (1, XID_FALLEN_OFF, 1)
    world.layout.faults.write_text('{"faults": []}')
    world.tick()
    assert last._card.links[0].state == up
    assert last._card.condition == 0


def test_a_fault_is_on_the_card_that_is_wished_and_leaves_the_others(world: World) -> None:
    first, last = world.node.gpus
    up = last._card.links[0].state
    world.layout.faults.write_text('{"faults": ["card-lost", "link-down", "rank-gone", "slow-clock"], "card": 0}')
    world.tick()
    assert (first._card.links[0].state != up, last._card.links[0].state != up) == (True, False)
    assert (first._card.condition != 0, last._card.condition != 0) == (True, False)
    assert on_cards(world) == [[], [SECOND_RANK]]
    assert (first._card.event_reasons & 0x4, last._card.event_reasons & 0x4) == (0x4, 0)
    world.layout.faults.write_text('{"faults": ["card-lost"], "card": 1}')
    world.tick()
    assert (first._card.condition != 0, last._card.condition != 0) == (False, True)


def test_a_restarted_mirror_goes_on_with_the_faults_that_are_wanted(world: World) -> None:
    world.layout.faults.write_text('{"faults": ["link-down"]}')
    world.tick()
    world.mirror = world.make_mirror()
    world.tick()
    assert world.shown()["faults"] == ["link-down"]
    world.layout.faults.write_text('{"faults": []}')
    world.tick()
    assert world.node.gpus[1]._card.links[0].state == world.node.gpus[0]._card.links[0].state


def test_what_a_process_on_a_cpu_cannot_tell_is_not_there_rather_than_zero(world: World) -> None:
    world.tick()
    card = world.node.gpus[0]._card
    assert [number for number in range(1, 120) if card.gpm[number].given] == [1, 2]


def tokens(count: float) -> PageCounts:
    return PageCounts(computed_tokens={0: count})


def test_tensor_parallel_ranks_send_what_their_tokens_cost_over_the_links_that_are_up(world: World) -> None:
    world.tick()
    assert world.pages.wanted == {NO_PORT}
    world.pages.give(NO_PORT, tokens(1000))
    world.tick()
    assert world.nvlink() == [(0, 0), (0, 0)]  # what went before the mirror looked is not known
    world.layout.faults.write_text('{"faults": ["link-down"]}')
    world.pages.give(NO_PORT, tokens(1100))
    world.tick()
    world.tick()
    volume = 100 * 9 * 256 * 2
    assert world.nvlink() == [(volume, volume), (volume, volume)]
    assert world.node.gpus[1]._card.links[0].payload_tx_bytes == 0


def test_a_page_that_began_anew_moves_nothing(world: World) -> None:
    world.tick()
    for count in (1000, 10):
        world.pages.give(NO_PORT, tokens(count))
        world.tick()
    assert world.nvlink() == [(0, 0), (0, 0)]


def test_stages_of_a_pipeline_send_one_way(world: World) -> None:
    world.write_engines(EnginePlan("server", NO_PORT, 1, None, (), pipeline_parallel_size=2))
    arguments = ["/env/bin/python", "/env/bin/vllm", "serve", str(world.model), "--pipeline-parallel-size", "2"]
    world.proc.add(SERVER, arguments, environment={}, ticks=77)
    for pid, stage in ((FIRST, 0), (SECOND_RANK, 1)):
        world.proc.add(pid, f"VLLM::Worker_PP{stage}".encode() + b"\0\0", ppid=CORE)
    world.mirror = world.make_mirror()
    world.tick()
    assert on_cards(world) == [[FIRST], [SECOND_RANK]]
    for count in (0, 100):
        world.pages.give(NO_PORT, tokens(count))
        world.tick()
    assert world.nvlink() == [(100 * 2 * 256 * 2, 0), (0, 100 * 2 * 256 * 2)]


def test_the_kv_cache_that_decode_pulled_left_the_card_of_prefill(world: World) -> None:
    for pid in (SERVER, CORE, FIRST, SECOND_RANK):
        world.proc.remove(pid)
    records.remove(world.layout.records, "server")
    world.write_engines(
        EnginePlan("prefill", 11, 1, "0", (), "prefill", "NixlConnector", 1),
        EnginePlan("decode", 12, 1, "1", (), "decode", "NixlConnector", 2),
    )
    world.start_one("prefill", 600, 601, "0")
    world.start_one("decode", 700, 701, "1")
    world.tick()
    assert on_cards(world) == [[601], [701]]
    assert world.pages.wanted == {11, 12}
    for pulled in (0.0, 262_144.0, 786_432.0):
        world.pages.give(11, PageCounts(prompt_tokens={0: pulled / 2048}))
        world.pages.give(12, PageCounts(transferred_bytes={0: pulled}))
        world.tick()
    assert world.nvlink() == [(786_432, 0), (0, 786_432)]


def test_two_servers_on_one_card_are_both_there_and_busy_together(world: World) -> None:
    for pid in (SERVER, CORE, FIRST, SECOND_RANK):
        world.proc.remove(pid)
    records.remove(world.layout.records, "server")
    world.write_engines(EnginePlan("small", 11, 1, "1", ()), EnginePlan("large", 12, 1, "1", ()))
    world.start_one("small", 600, 601, "1")
    world.start_one("large", 700, 701, "1")
    world.tick()
    assert [sorted(pids) for pids in on_cards(world)] == [[], [601, 701]]
    assert world.node.gpus[1]._card.memory_used_bytes == 2 * 1000 * PAGE_SIZE
    world.worked(601, 0.3, 0.0)
    world.worked(701, 0.5, 0.0)
    world.tick(1.0)
    assert percent(world) == [0, 80]
    world.worked(601, 1.2, 0.0)
    world.worked(701, 1.3, 0.0)
    world.tick(1.0)
    assert percent(world) == [0, 100]


def test_memory_is_no_less_than_weights_and_kv_cache_once_that_is_there(world: World) -> None:
    world.tick()
    (world.proc.root / str(FIRST) / "statm").write_text("999999 1000 300 1 0 2000 0\n")  # the rest is swapped out
    world.tick()
    used = [gpu._card.memory_used_bytes for gpu in world.node.gpus]
    assert used == [1000 * PAGE_SIZE, 180000 * PAGE_SIZE]
    world.pages.give(NO_PORT, PageCounts(cache_tokens=1024 * 128))
    world.tick()
    world.tick()
    least = model.weight_bytes(world.model) // 2 + 134_217_728
    assert world.node.gpus[0]._card.memory_used_bytes == least
    assert world.node.gpus[1]._card.memory_used_bytes == 180000 * PAGE_SIZE


def test_pages_of_a_server_that_sends_nothing_are_asked_until_its_kv_cache_is_known(world: World) -> None:
    world.write_plan(1)
    world.start(size=1, titles=("",))
    world.mirror = world.make_mirror()
    world.tick()
    assert world.pages.wanted == {NO_PORT}
    world.pages.give(NO_PORT, PageCounts(cache_tokens=100))
    world.tick()
    world.tick()
    assert world.pages.wanted == set()


def test_a_foreign_process_holds_its_memory_beside_the_worker(world: World) -> None:
    world.proc.add(900, ["sleep", "600"], ticks=5)
    facts = {"card": "1", "gpu_memory_bytes": str(8 << 30)}
    records.write(world.layout.records, Record("foreign", "fault", 900, 5, 0.0, facts))
    world.tick()
    assert on_cards(world) == [[FIRST], [SECOND_RANK, 900]]
    assert world.node.gpus[1]._card.memory_used_bytes == 180000 * PAGE_SIZE + (8 << 30)
    world.proc.remove(900)
    world.tick()
    assert on_cards(world) == [[FIRST], [SECOND_RANK]]


def test_a_server_that_has_not_become_vllm_yet_is_on_no_card(world: World) -> None:
    world.proc.add(SERVER, ["/env/bin/python", "-m", "poise.testbed.starter"], environment={}, ticks=77)
    world.mirror = world.make_mirror()
    world.tick()
    assert on_cards(world) == [[], []]


def test_memory_sensors_keep_their_distance_to_the_core(world: World) -> None:
    world.tick()
    card = world.node.gpus[0]._card
    assert card.temperature_memory - card.temperature == 4
