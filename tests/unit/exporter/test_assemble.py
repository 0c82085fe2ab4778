"""A snapshot is what the sources have now, checked and published as one; nothing that fails stops the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from poise.exporter.assemble import Assembler
from poise.exporter.checks.runner import CheckOutcome, Runner
from poise.exporter.nvml.sampler import View
from poise.exporter.snapshot import CollectorStatus, DriverInfo, Gpu, NodeSnapshot, ObservedEngine, Router

from tests.scenes import START, card, engine
from tests.waiting import wait_until


class Cards:
    def __init__(self, gpus: Sequence[Gpu] = (), *, settled: bool = True) -> None:
        self.gpus = tuple(gpus)
        self.is_settled = settled
        self.fails = False

    def view(self) -> View:
        if self.fails:
            raise RuntimeError("the view broke")
        return View(DriverInfo("580.1", "13", "13.0"), self.gpus, (CollectorStatus("power", 1.0, success=True),), False)

    def settled(self) -> bool:
        return self.is_settled


@dataclass(frozen=True)
class Observed:
    engines: tuple[ObservedEngine, ...] = ()
    collectors: tuple[CollectorStatus, ...] = ()
    routers: tuple[Router, ...] = ()


class Engines:
    def __init__(self, engines: Sequence[ObservedEngine] = ()) -> None:
        self.value = Observed(tuple(engines), (CollectorStatus("engine_pages", 5.0, success=True),))

    def latest(self) -> Observed:
        return self.value


def assembler(cards: Cards, engines: Engines | None = None, **options: object) -> Assembler:
    given: dict[str, object] = {
        "node": "n1",
        "kernel": "6.1",
        "interval": 0.01,
        "title_of": lambda pid: "python3",
        "expected": lambda: 2,
        "wall": lambda: START,
    }
    return Assembler(cards, engines or Engines(), Runner(), **{**given, **options})  # type: ignore[arg-type]  # options by name


def test_a_snapshot_joins_cards_and_engines() -> None:
    observed = engine("n1:8000").observed
    found = assembler(Cards([card(0), card(1)]), Engines([observed])).assemble()
    snapshot = found.snapshot
    assert (snapshot.node, snapshot.kernel, snapshot.taken_at, snapshot.gpus_expected) == ("n1", "6.1", START, 2)
    assert [gpu.index for gpu in snapshot.gpus] == [0, 1]
    assert [item.identity.engine for item in snapshot.engines] == ["n1:8000"]
    assert [status.name for status in snapshot.collectors] == ["power", "engine_pages"]
    assert snapshot.driver.driver == "580.1"
    assert found.outcome is not None
    assert found.outcome.results


def test_expected_cards_are_counted_rarely() -> None:
    asked: list[int] = []
    now = [START]
    maker = assembler(Cards(), expected=lambda: asked.append(1) or len(asked), wall=lambda: now[0])
    for _ in range(5):
        assert maker.assemble().snapshot.gpus_expected == 1
    now[0] += 11
    assert maker.assemble().snapshot.gpus_expected == 2


def test_snapshots_are_made_until_stopped() -> None:
    maker = assembler(Cards([card(0)]))
    assert maker.latest() is None
    maker.start()
    assert maker.wait(60)
    first = maker.latest()
    wait_until(lambda: maker.latest() is not first, "a newer snapshot")
    maker.stop()
    assert maker.join(60)


def test_the_first_snapshot_waits_for_the_cards_first_turn() -> None:
    cards = Cards(settled=False)
    maker = assembler(cards)
    maker.start()
    cards.gpus = (card(0),)
    cards.is_settled = True
    assert maker.wait(60)
    published = maker.latest()
    assert published is not None
    assert len(published.snapshot.gpus) == 1
    maker.stop()
    assert maker.join(60)


def test_a_source_that_breaks_leaves_the_last_snapshot_and_its_age_tells() -> None:
    cards = Cards([card(0)])
    maker = assembler(cards)
    maker.start()
    assert maker.wait(60)
    cards.fails = True
    last = maker.latest()
    cards.fails = False
    wait_until(lambda: maker.latest() is not last, "it goes on once the source works")
    maker.stop()
    assert maker.join(60)


def test_checks_that_break_cost_only_themselves() -> None:
    class Broken:
        def observe(self, snapshot: NodeSnapshot) -> CheckOutcome:
            raise RuntimeError("no judgement")

    maker = Assembler(
        Cards([card(0)]), Engines(), Broken(), node="n1", kernel="", interval=1.0, title_of=str, expected=lambda: None, wall=lambda: START
    )
    found = maker.assemble()
    assert found.outcome is None
    assert found.snapshot.gpus


def test_stopping_before_the_cards_settle_is_prompt() -> None:
    maker = assembler(Cards(settled=False))
    maker.start()
    maker.stop()
    assert maker.join(60)
