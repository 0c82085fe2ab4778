"""The threads: a card that hangs, is lost or comes back, a driver that is missing, reloaded or hangs itself; nothing waits for any of it."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from poise.exporter import metrics as m
from poise.exporter.nvml import registry, xid
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.reader import CardReader
from poise.exporter.nvml.sampler import Sampler, View
from poise.exporter.nvml.statuses import DRIVER_COLLECTOR
from poise.exporter.nvml.worker import CardThread, Timing, down
from poise.exporter.nvml.xid_events import EventThread
from poise.exporter.snapshot import CollectorStatus, Gpu, Reason
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.node import SimulatedNode

from tests.simulated_cards import simulated_library
from tests.waiting import wait_until

FAST = Timing(
    deadline=0.5,
    look=0.05,
    backoff=0.05,
    longest_backoff=0.1,
    reinitialise=0.3,
    longest_reinitialise=0.3,
)
INTERVAL = 0.1
#: What a card keeps when it is down (docs/adr/0011).
XID = set(xid.METRICS)
COLLECTORS = registry.enabled({})


class Running:
    """A sampler under test with its simulated node."""

    def __init__(self, node: SimulatedNode, sampler: Sampler) -> None:
        self.node = node
        self.sampler = sampler

    def view(self) -> View:
        return self.sampler.view()

    def card(self, position: int) -> Gpu | None:
        uuid = self.node.gpus[position].uuid
        return next((gpu for gpu in self.view().gpus if gpu.uuid == uuid), None)

    def up(self, position: int) -> bool:
        card = self.card(position)
        return card is not None and card.up

    def down(self, position: int, reason: Reason) -> bool:
        card = self.card(position)
        return card is not None and not card.up and card.down_reason is reason

    def collector(self, name: str) -> CollectorStatus:
        return next(status for status in self.view().collectors if status.name == name)

    def wait_for_all_up(self) -> None:
        wait_until(lambda: all(self.up(position) for position in range(len(self.node.gpus))), "all cards up")

    def goes_on(self, position: int) -> None:
        """Waits until the card was read twice more."""
        for _ in range(2):
            before = self.card(position)
            at = before.sampled_at if before and before.sampled_at else 0.0

            def newer(at: float = at) -> bool:
                card = self.card(position)
                return card is not None and card.up and (card.sampled_at or 0.0) > at

            wait_until(newer, f"card {position} goes on being read")


@contextmanager
def running(profile: str, prepare: Callable[[SimulatedNode], object] = lambda node: None, timing: Timing = FAST) -> Iterator[Running]:
    with simulated_library(profile) as (node, library):
        prepare(node)
        sampler = Sampler(COLLECTORS, INTERVAL, library=library, timing=timing)
        sampler.start()
        try:
            yield Running(node, sampler)
        finally:
            node.release()
            sampler.stop()
            assert sampler.join(60.0), "all threads leave once nothing hangs"


def test_all_cards_are_read_in_index_order() -> None:
    with running("h100x8") as run:
        run.wait_for_all_up()
        view = run.view()
        assert [gpu.index for gpu in view.gpus] == list(range(8))
        assert [gpu.uuid for gpu in view.gpus] == [gpu.uuid for gpu in run.node.gpus]
        assert view.driver.driver == "570.172.08"
        assert view.driver.error == ""
        assert not view.stuck
        wait_until(lambda: all(status.success for status in run.view().collectors), "all collectors succeed")


def test_a_card_that_hangs_is_down_with_its_identity_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with running("h20x2") as run:
        run.wait_for_all_up()
        injection = run.node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0)
        injection.wait_until_held()
        wait_until(lambda: run.down(0, Reason.TIMEOUT), "card 0 timed out")
        wait_until(lambda: "card 0 hangs in the driver, in memory" in caplog.text, "the hang is logged")
        card = run.card(0)
        assert card is not None
        assert card.identity.name == run.node.gpus[0].name
        assert card.identity.pci_bus_id
        assert card.simulated
        assert (set(card.readings) - XID, card.processes) == (set(), None)
        run.goes_on(1)
        assert run.view().stuck
        status = run.collector("memory")
        assert not status.success
        assert "card 0 hangs" in status.error
        assert status.failures >= 1
        assert run.collector("utilization").success, "only the collector that hangs says so"
        injection.release()
        wait_until(lambda: run.up(0), "card 0 back")
        wait_until(lambda: run.collector("memory").success, "its collector succeeds again")
        assert run.collector("memory").failures >= 1
        assert "answers again" in caplog.text
        assert caplog.text.count("hangs in the driver") == 1, "a state is logged once"


@pytest.mark.parametrize(
    ("code", "reason"),
    [(ReturnCode.GPU_IS_LOST, Reason.GPU_LOST), (ReturnCode.UNKNOWN, Reason.ERROR), (None, Reason.TIMEOUT)],
)
def test_a_card_that_is_down_says_why_for_each_series_that_it_gave(code: ReturnCode | None, reason: Reason) -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        before = run.card(0)
        assert before is not None
        refused = {metric: why for metric, why in before.absent.items() if why is Reason.NOT_SUPPORTED}
        assert m.GPU_FAN in refused, "the card has no fan"
        if code is None:
            run.node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0)
        elif code is ReturnCode.GPU_IS_LOST:
            run.node.lose(0, code)
        else:
            run.node.inject("*", error=code, gpu=0)
        wait_until(lambda: run.down(0, reason), f"card 0 down, {reason}")
        card = run.card(0)
        assert card is not None
        given = {*before.readings, m.GPU_PROCESS_MEMORY, m.GPU_FOREIGN_MEMORY} - XID
        # The path to the other card is known once that one has answered, perhaps after `before`.
        assert {metric for metric, why in card.absent.items() if why is reason} | {m.GPU_PAIR_INFO} == given | {m.GPU_PAIR_INFO}
        assert {metric: why for metric, why in card.absent.items() if why is not reason} == refused
        assert m.GPU_INFO not in card.absent, "which card it is stands on the page"
        run.node.release()


def test_a_card_that_was_never_read_says_why_for_all_that_it_may_give() -> None:
    with running("h20x2", lambda node: node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0)) as run:
        wait_until(lambda: run.down(0, Reason.TIMEOUT), "card 0 timed out")
        card = run.card(0)
        assert card is not None
        may_give = {metric for collector in COLLECTORS for metric in collector.metrics} - {m.GPU_INFO} - XID
        assert dict(card.absent) == dict.fromkeys(may_give, Reason.TIMEOUT)
        run.node.release()


def test_the_reason_of_a_card_that_is_down_follows_what_became_of_it() -> None:
    given = Gpu(
        0, "GPU-1", sampled_at=1.0, readings={m.GPU_POWER: {(): 70.0}}, absent={m.GPU_FAN: Reason.NOT_SUPPORTED, m.GPU_CLOCK: Reason.ERROR}
    )
    hangs = down(given, Reason.TIMEOUT, ())
    assert dict(hangs.absent) == {m.GPU_FAN: Reason.NOT_SUPPORTED, m.GPU_CLOCK: Reason.TIMEOUT, m.GPU_POWER: Reason.TIMEOUT}
    lost = down(hangs, Reason.GPU_LOST, ())
    assert dict(lost.absent) == {m.GPU_FAN: Reason.NOT_SUPPORTED, m.GPU_CLOCK: Reason.GPU_LOST, m.GPU_POWER: Reason.GPU_LOST}


def test_a_view_never_waits_for_a_card() -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        injection = run.node.inject("*", hang=True)
        injection.wait_until_held(2)
        wait_until(lambda: run.down(0, Reason.TIMEOUT) and run.down(1, Reason.TIMEOUT), "both cards timed out")
        answered = threading.Event()
        threading.Thread(target=lambda: (run.view(), answered.set()), daemon=True).start()
        assert answered.wait(30)


def test_stopping_does_not_wait_for_a_card_that_hangs() -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        run.node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0).wait_until_held()
        run.sampler.stop()
        assert not run.sampler.join(0.1)


def test_a_card_that_hangs_from_the_start_keeps_no_other_from_being_read() -> None:
    with running("h20x2", lambda node: node.inject("nvmlDeviceGetHandleByIndex_v2", hang=True, gpu=0)) as run:
        wait_until(lambda: run.up(1), "card 1 up")
        run.goes_on(1)
        wait_until(lambda: "card 0 does not answer" in run.collector(DRIVER_COLLECTOR).error, "the driver's collector names the card")
        run.node.release()
        wait_until(lambda: run.up(0), "card 0 up")


def test_a_driver_whose_init_hangs_blocks_nothing_and_is_picked_up() -> None:
    with running("h20x2", lambda node: node.inject("nvmlInitWithFlags", hang=True)) as run:
        wait_until(lambda: "has not answered" in run.view().driver.error, "the hang is named")
        assert run.view().gpus == ()
        assert run.view().stuck
        assert not run.collector(DRIVER_COLLECTOR).success
        run.node.release()
        run.wait_for_all_up()
        wait_until(lambda: run.view().driver.error == "", "the driver is there")


def test_a_count_that_hangs_leaves_the_cards_running() -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        run.node.inject("nvmlDeviceGetCount_v2", hang=True).wait_until_held()
        wait_until(lambda: not run.collector(DRIVER_COLLECTOR).success, "the driver's collector says so")
        run.goes_on(0)
        run.goes_on(1)
        assert run.view().driver.driver


@pytest.mark.parametrize("code", [ReturnCode.GPU_IS_LOST, ReturnCode.RESET_REQUIRED])
def test_a_lost_card_is_down_and_comes_back_with_its_counters(code: ReturnCode) -> None:
    with running("h20x2") as run:
        run.node.gpus[0].set_utilization(1.0)
        run.wait_for_all_up()
        wait_until(lambda: (run.card(0) or Gpu(0, "")).value(m.GPU_BUSY_SECONDS), "some busy seconds")
        card = run.card(0)
        busy = card.value(m.GPU_BUSY_SECONDS) if card else None
        assert busy
        run.node.lose(0, code)
        wait_until(lambda: run.down(0, Reason.GPU_LOST), "card 0 lost")
        run.goes_on(1)
        run.node.restore(0)
        wait_until(lambda: run.up(0), "card 0 back")
        again = run.card(0)
        assert again is not None
        assert (again.value(m.GPU_BUSY_SECONDS) or 0.0) >= busy


def test_a_card_that_falls_off_the_bus_moves_no_other_to_its_place_and_is_found_again() -> None:
    """NVML sees it neither go nor come without being initialised anew; the later card's index changes, its UUID does not."""
    with running("h20x2") as run:
        run.wait_for_all_up()
        run.node.vanish(0)
        wait_until(lambda: run.down(0, Reason.GPU_LOST), "card 0 lost")

        def moved() -> bool:
            card = run.card(1)
            return card is not None and card.up and card.index == 0

        wait_until(moved, "card 1 has the index that NVML now gives it")
        assert run.down(0, Reason.GPU_LOST)
        run.node.restore(0)
        run.wait_for_all_up()
        wait_until(lambda: [gpu.index for gpu in run.view().gpus] == [0, 1], "both have their places again")


def test_without_a_driver_there_are_no_cards_and_it_is_picked_up_when_it_appears() -> None:
    with running("h20x2", lambda node: node.fail_init(ReturnCode.DRIVER_NOT_LOADED)) as run:
        wait_until(lambda: "Driver Not Loaded" in run.view().driver.error, "the error is named")
        assert run.view().gpus == ()
        statuses = run.view().collectors
        assert [status.name for status in statuses] == [DRIVER_COLLECTOR, *(collector.name for collector in COLLECTORS)]
        assert not any(status.success for status in statuses)
        run.node.load_driver()
        run.wait_for_all_up()
        wait_until(lambda: run.view().driver.error == "", "the driver is there")


def test_without_the_library_that_is_what_is_said() -> None:
    sampler = Sampler(COLLECTORS, INTERVAL, library="libnvidia-ml-that-is-not-here.so.1", timing=FAST)
    sampler.start()
    wait_until(lambda: "cannot be loaded" in sampler.view().driver.error, "the error is named")
    assert "libnvidia-ml-that-is-not-here.so.1" in sampler.view().driver.error
    sampler.stop()
    assert sampler.join(60.0)


def test_a_reloaded_driver_is_initialised_again() -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        run.node.unload_driver()
        wait_until(lambda: "Driver Not Loaded" in run.view().driver.error, "the error is named")
        wait_until(lambda: not run.up(0) and not run.up(1), "both cards down")
        assert [gpu.identity.name for gpu in run.view().gpus] == [gpu.name for gpu in run.node.gpus]
        run.node.load_driver("580.105.08")
        run.wait_for_all_up()
        wait_until(lambda: run.view().driver.driver == "580.105.08", "the new version is told")


def test_what_another_driver_has_and_lacks_is_found_anew_after_a_reload() -> None:
    """Field ids, refusals and samples belong to one life of the driver."""
    with running("h20x2") as run:
        run.wait_for_all_up()
        wait_until(lambda: (run.card(0) or Gpu(0, "")).value(m.GPU_RECOVERY_ACTION) == 0, "the new driver tells the recovery action")
        run.node.unload_driver()
        wait_until(lambda: not run.up(0) and not run.up(1), "both cards down")
        assert (run.card(0) or Gpu(0, "")).absent[m.GPU_ECC_ERRORS] in (Reason.ERROR, Reason.GPU_LOST)
        run.node.load_driver("535.183.01")
        run.wait_for_all_up()
        card = run.card(0)
        assert card is not None
        assert card.absent[m.GPU_RECOVERY_ACTION] is Reason.NOT_SUPPORTED
        assert card.value(m.GPU_ECC_ERRORS, "corrected") == 0
        assert card.value(m.GPU_FABRIC_STATE, "completed") == 1
        wait_until(lambda: (run.card(0) or Gpu(0, "")).value(m.GPU_SM_ACTIVE) is not None, "activity is measured again")


def test_what_was_read_too_long_ago_is_not_shown_again_when_a_new_thread_takes_the_card_over() -> None:
    """After a driver reload it would be until the first reading, for as long as that takes."""
    with simulated_library("h20x2") as (_, library):
        now = 100.0
        driver = Driver.open(library)
        sampler = Sampler(COLLECTORS, INTERVAL, library=library, timing=FAST, monotonic=lambda: now)
        seen = Gpu(0, "GPU-0", sampled_at=1.0, readings={m.GPU_POWER: {(): 300.0}})
        sampler.claim(CardThread(sampler, driver, 0, 0.0), seen)
        assert sampler.view().gpus[0].up
        sampler.claim(CardThread(sampler, driver, 0, 0.0), seen)
        assert sampler.view().gpus[0].up, "a new start that takes no time changes nothing"
        now += INTERVAL + FAST.deadline + 0.1
        assert sampler.view().gpus[0].down_reason is Reason.GPU_LOST
        sampler.claim(CardThread(sampler, driver, 0, 0.0), seen)
        assert sampler.view().gpus[0].down_reason is Reason.GPU_LOST
        assert m.GPU_POWER not in sampler.view().gpus[0].readings
        driver.close()


def test_a_driver_upgraded_under_the_process_says_so_until_the_module_fits() -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        run.node.unload_driver(ReturnCode.LIB_RM_VERSION_MISMATCH)
        wait_until(lambda: "upgraded" in run.view().driver.error, "the mismatch is named")
        run.node.load_driver()
        run.wait_for_all_up()


def test_an_error_of_one_card_alone_leaves_driver_and_other_cards_alone() -> None:
    with running("h20x2", timing=FAST) as run:
        run.wait_for_all_up()
        sessions = run.node.node_calls("nvmlInitWithFlags")
        run.node.inject("*", error=ReturnCode.UNKNOWN, gpu=0)
        wait_until(lambda: run.down(0, Reason.ERROR), "card 0 in error")
        run.goes_on(1)
        assert run.node.node_calls("nvmlInitWithFlags") == sessions
        run.node.release()
        wait_until(lambda: run.up(0), "card 0 back")


def test_a_card_that_hangs_while_another_is_lost_keeps_nvml_from_being_shut_down() -> None:
    """Shutting NVML down under a thread that is in it would be undefined; the lost card has to wait."""
    with running("h20x2") as run:
        run.wait_for_all_up()
        injection = run.node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0)
        injection.wait_until_held()
        run.node.vanish(1)
        wait_until(lambda: run.down(1, Reason.GPU_LOST) and run.down(0, Reason.TIMEOUT), "one lost, one hanging")
        sessions = run.node.node_calls("nvmlShutdown")
        time.sleep(2 * FAST.reinitialise)
        assert run.node.node_calls("nvmlShutdown") == sessions
        injection.release()
        run.node.restore(1)
        run.wait_for_all_up()


def test_a_card_is_not_shown_before_its_first_reading() -> None:
    with running("h20x2") as run:
        wait_until(lambda: run.sampler.settled(), "first turns over")
        assert all(gpu.sampled_at is not None for gpu in run.view().gpus if gpu.up)


def test_collectors_that_are_off_run_on_no_card() -> None:
    with simulated_library("h20x2") as (node, library):
        sampler = Sampler(registry.enabled({"nvlink": False, "memory": False}), INTERVAL, library=library, timing=FAST)
        sampler.start()
        try:
            wait_until(lambda: [gpu.up for gpu in sampler.view().gpus] == [True, True], "both cards up")
            gpu = sampler.view().gpus[0]
            assert m.GPU_MEMORY_USED not in gpu.readings
            assert m.GPU_MEMORY_USED not in gpu.absent
            assert m.GPU_NVLINK_TX not in gpu.readings
            assert "memory" not in {status.name for status in sampler.view().collectors}
            assert node.calls("nvmlDeviceGetMemoryInfo_v2") == 0
        finally:
            sampler.stop()
            assert sampler.join(60.0)


def test_readers_are_prepared_anew_now_and_then_so_that_a_refusal_is_no_last_word() -> None:
    timing = dataclasses.replace(FAST, prepare=0.2)
    with running("h20x2", lambda node: node.gpus[0].refuse("nvmlDeviceGetMemoryInfo_v2", ReturnCode.NO_PERMISSION), timing) as run:
        run.wait_for_all_up()
        wait_until(lambda: (run.card(0) or Gpu(0, "")).absent.get(m.GPU_MEMORY_USED) is Reason.NO_PERMISSION, "the refusal is told")
        assert run.collector("memory").success, "a refusal is an answer"
        run.node.gpus[0].refuse("nvmlDeviceGetMemoryInfo_v2", None)
        wait_until(lambda: (run.card(0) or Gpu(0, "")).value(m.GPU_MEMORY_USED) is not None, "the call is made again")


def test_a_card_that_we_may_not_open_is_named_and_the_others_are_read(caplog: pytest.LogCaptureFixture) -> None:
    """As in a container that was given one card's device node."""
    forbid = ReturnCode.NO_PERMISSION
    with running("h20x2", lambda node: node.inject("nvmlDeviceGetHandleByIndex_v2", error=forbid, gpu=0)) as run:
        wait_until(lambda: run.up(1), "card 1 up")
        wait_until(
            lambda: "card 0: nvmlDeviceGetHandleByIndex: Insufficient Permissions" in run.collector(DRIVER_COLLECTOR).error, "it is named"
        )
        assert len(run.view().gpus) == 1
        wait_until(lambda: run.node.calls("nvmlDeviceGetHandleByIndex_v2", 0) > 3, "it is tried again")
        assert caplog.text.count("card 0 is not read") == 1
        run.node.release()
        run.wait_for_all_up()
        wait_until(lambda: run.collector(DRIVER_COLLECTOR).success, "all is well")


def test_a_fault_of_our_own_does_not_end_a_cards_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()

        def broken(self: CardReader) -> Gpu:
            raise RuntimeError("a fault of ours")

        with monkeypatch.context() as patch:
            patch.setattr(CardReader, "tick", broken)
            wait_until(lambda: run.down(0, Reason.ERROR), "card 0 in error")
        run.wait_for_all_up()


def test_a_card_for_which_no_thread_is_left_is_tried_again(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    start = CardThread.start

    def refused(self: CardThread) -> None:
        if self.index == 1:
            raise RuntimeError("can't start new thread")
        start(self)

    with monkeypatch.context() as patch:
        patch.setattr(CardThread, "start", refused)
        with running("h20x2") as run:
            wait_until(lambda: run.up(0), "card 0 is read")
            wait_until(lambda: "can't start new thread" in run.collector(DRIVER_COLLECTOR).error, "the driver's collector says why")
            run.goes_on(0)
            patch.undo()
            run.wait_for_all_up()
    (told,) = [record for record in caplog.records if "can't start new thread" in record.message]
    assert told.message == "card 1 is not read: can't start new thread; raise the limit of processes"
    assert not told.exc_info, "it is the system's limit, no fault of ours"


def test_a_changed_number_of_cards_starts_all_anew(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As when a card is added while the driver runs."""
    caplog.set_level(logging.INFO)
    with running("h20x2") as run:
        run.wait_for_all_up()
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "count", lambda self: 1)
            wait_until(lambda: run.down(1, Reason.GPU_LOST), "card 1 is lost")
            run.goes_on(0)
        run.wait_for_all_up()
        assert "the driver now has 1 cards, before 2" in caplog.text


def test_a_changed_number_of_cards_while_one_hangs_leaves_the_others_running(monkeypatch: pytest.MonkeyPatch) -> None:
    with running("h20x2") as run:
        run.wait_for_all_up()
        injection = run.node.inject("nvmlDeviceGetMemoryInfo_v2", hang=True, gpu=0)
        wait_until(lambda: run.down(0, Reason.TIMEOUT), "card 0 timed out")
        with monkeypatch.context() as patch:
            patch.setattr(Driver, "count", lambda self: 3)
            run.goes_on(1)
            run.goes_on(1)
        injection.release()
        run.wait_for_all_up()


def test_xids_for_which_no_thread_is_left_are_waited_for_later(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def refused(self: EventThread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(EventThread, "start", refused)
        with running("h20x2") as run:
            words = "XIDs are not waited for: can't start new thread; raise the limit of processes"
            wait_until(lambda: run.collector(DRIVER_COLLECTOR).error == words, "the driver's collector says why")
            patch.undo()
            run.wait_for_all_up()
            wait_until(lambda: run.node.node_calls("nvmlEventSetWait_v2") > 0, "they are waited for")
    assert not any(record.exc_info for record in caplog.records)
