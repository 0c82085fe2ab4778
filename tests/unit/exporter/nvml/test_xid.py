"""XIDs: counted once however many sources tell of them, kept by a card that is lost, refused with a reason, told with their meaning."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import metrics as m
from poise.exporter.nvml import registry, xid, xid_watch
from poise.exporter.nvml.card import CardMemory
from poise.exporter.nvml.kernel_log import KernelXid
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.nvml.worker import Timing
from poise.exporter.nvml.xid import MOST_CODES, PAIR_SECONDS, Source, XidLedger
from poise.exporter.nvml.xid_catalogue import FATAL
from poise.exporter.snapshot import Gpu, Reason
from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.node import SimulatedNode

from tests.simulated_cards import START, Bench, bench, simulated_library
from tests.waiting import wait_until

FAST = Timing(deadline=0.5, look=0.05, backoff=0.05, longest_backoff=0.1, reinitialise=0.3, longest_reinitialise=0.3)
COLLECTORS = tuple(collector for collector in registry.ALL if collector.name in ("identity", "power", xid.NAME))


@pytest.fixture
def h20() -> Iterator[Bench]:
    with bench("h20x2") as cards:
        yield cards


def count(gpu: Gpu, code: int) -> float | None:
    return gpu.value(m.GPU_XID_ERRORS, str(code))


# ------------------------------------------------------------------------------------------------------------------- counting
def test_an_error_that_both_sources_tell_counts_once_whoever_is_first() -> None:
    for first in Source:
        ledger = XidLedger()
        assert ledger.observe(first, 79, 100.0, START)
        assert not ledger.observe(first.other, 79, 103.0, START + 3)
        assert ledger.readings[m.GPU_XID_ERRORS]["79",] == 1
        assert ledger.readings[m.GPU_XID_LAST]["79",] == START


def test_what_only_one_source_tells_counts() -> None:
    """An event that is never delivered (a lost card), and a line that the kernel dropped."""
    ledger = XidLedger()
    for source, code in ((Source.LOG, 62), (Source.EVENT, 31)):
        assert ledger.observe(source, code, 100.0, START)
        assert ledger.observe(source, code, 100.0 + 2 * PAIR_SECONDS, START)
        assert ledger.readings[m.GPU_XID_ERRORS][str(code),] == 2


def test_the_same_code_much_later_is_another_error() -> None:
    ledger = XidLedger()
    assert ledger.observe(Source.EVENT, 13, 100.0, START)
    assert ledger.observe(Source.LOG, 13, 100.1 + PAIR_SECONDS, START)


@given(st.lists(st.sampled_from(list(Source)), max_size=40))
def test_a_burst_counts_as_often_as_the_source_that_told_most(order: list[Source]) -> None:
    ledger = XidLedger()
    counted = sum(ledger.observe(source, 31, 100.0, START) for source in order)
    told = [order.count(source) for source in Source]
    assert max(told) == counted == ledger.readings[m.GPU_XID_ERRORS].get(("31",), 0)


def test_codes_that_cannot_be_or_are_too_many_count_as_unknown() -> None:
    ledger = XidLedger()
    for code in (0, -5, 1000, 1 << 63):
        ledger.observe(Source.EVENT, code, 100.0, START)
    assert ledger.readings[m.GPU_XID_ERRORS]["999",] == 4
    for code in range(1, 999):
        ledger.observe(Source.EVENT, code, 200.0, START)
    counts = ledger.readings[m.GPU_XID_ERRORS]
    assert len(counts) <= MOST_CODES + 1
    assert sum(counts.values()) == 4 + 998


def test_an_error_of_before_the_start_is_known_by_its_time_and_not_counted() -> None:
    ledger = XidLedger()
    ledger.remember(79, START - 60)
    assert ledger.readings[m.GPU_XID_ERRORS]["79",] == 0
    assert ledger.readings[m.GPU_XID_LAST]["79",] == START - 60


def test_readings_that_were_given_do_not_change_any_more() -> None:
    ledger = XidLedger()
    before = ledger.readings
    ledger.observe(Source.EVENT, 79, 100.0, START)
    assert before[m.GPU_XID_ERRORS]["79",] == 0
    assert m.GPU_XID_LAST not in before


# ---------------------------------------------------------------------------------------------------------------- as a series
@pytest.mark.parametrize("profile", ["h20x2", "driver535", "mig", "blackwell-x8"])
def test_fatal_codes_stand_at_zero_from_the_start(profile: str) -> None:
    with bench(profile) as cards:
        gpu = cards.read()
        assert gpu.readings[m.GPU_XID_ERRORS] == {(str(code),): 0 for code in FATAL}
        assert m.GPU_XID_LAST not in gpu.readings
        assert not set(xid.METRICS) & set(gpu.absent)


def test_an_event_moves_its_code_on_its_card_alone(h20: Bench) -> None:
    h20.read(0)
    h20.read(1)
    h20.node.raise_xid(1, 31)
    h20.node.raise_xid(1, 31)
    h20.deliver()
    gpu = h20.read(1, after=1.0)
    assert count(gpu, 31) == 2
    assert gpu.value(m.GPU_XID_LAST, "31") == START
    assert count(h20.read(0), 31) is None


def test_an_event_of_a_mig_instance_counts_for_its_card() -> None:
    with bench("mig") as cards:
        cards.read()
        cards.node.raise_xid(0, 94, gpu_instance=1)
        cards.deliver()
        assert count(cards.read(after=1.0), 94) == 1


def test_the_kernel_log_and_an_event_together_count_once_on_the_card_of_that_address(h20: Bench) -> None:
    h20.read(0)
    address = h20.node.gpus[0].pci_bus_id.lower()[4:].removesuffix(".0")
    h20.node.raise_xid(0, 48)
    h20.xids.on_line(KernelXid(address, 48, 5.0), False)
    h20.deliver()
    assert count(h20.read(after=1.0), 48) == 1


def test_lines_from_before_a_card_was_known_are_its_own_once_it_is() -> None:
    with bench("h20x2") as cards:
        address = cards.node.gpus[0].pci_bus_id.lower()[4:].removesuffix(".0")
        watch = xid_watch_of(cards)
        watch.on_line(KernelXid(address, 79, cards.now - 60), True)
        watch.on_line(KernelXid(address, 48, cards.now), False)
        ledger = XidLedger()
        watch.join(0, cards.node.gpus[0].uuid, cards.node.gpus[0].pci_bus_id, ledger)
        assert ledger.readings[m.GPU_XID_ERRORS]["79",] == 0
        assert ledger.readings[m.GPU_XID_ERRORS]["48",] == 1
        assert dict(ledger.readings[m.GPU_XID_LAST]) == {("79",): START - 60, ("48",): START}


def xid_watch_of(cards: Bench) -> xid_watch.XidWatch:
    return xid_watch.XidWatch(wall=lambda: cards.now, monotonic=lambda: cards.now, deadline=3.0)


def test_xids_of_cards_that_are_not_ours_are_told_now_and_then(h20: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """As in a container that was given two of eight cards, and reads the log of all."""
    for _ in range(100):
        h20.xids.on_line(KernelXid("0000:ee:00", 31, 1.0), False)
    assert caplog.text.count("XID 31 of PCI 0000:ee:00, where NVML lists no card") == 1
    h20.now += xid.TELL_SECONDS + 1
    h20.xids.on_line(KernelXid("0000:ee:00", 31, 1.0), False)
    assert caplog.text.count("XID 31 of PCI 0000:ee:00, where NVML lists no card") == 2


def test_lines_of_addresses_without_a_card_are_bounded(h20: Bench) -> None:
    for number in range(1000):
        h20.xids.on_line(KernelXid(f"{number:04x}:ee:00", 13, 1.0), False)
        h20.xids.on_line(KernelXid("0000:ff:00", number, 1.0), False)
    assert len(h20.xids._waiting) <= 32
    assert all(len(lines) <= 64 for lines in h20.xids._waiting.values())
    assert len(h20.xids._told_of_others) <= 256


@pytest.mark.parametrize(
    ("code", "reason", "fault"),
    [
        (ReturnCode.NOT_SUPPORTED, Reason.NOT_SUPPORTED, False),
        (ReturnCode.NO_PERMISSION, Reason.NO_PERMISSION, True),
    ],
)
def test_a_card_whose_events_are_refused_says_why(code: ReturnCode, reason: Reason, fault: bool) -> None:
    with bench("h20x2") as cards:
        cards.node.inject("nvmlDeviceRegisterEvents", error=code, gpu=0)
        gpu = cards.read(0)
        assert gpu.absent[m.GPU_XID_ERRORS] is gpu.absent[m.GPU_XID_LAST] is reason
        assert m.GPU_XID_ERRORS not in gpu.readings
        run = cards.runs[0][xid.NAME]
        assert run.success is not fault
        assert ("Insufficient Permissions" in run.error and "kernel log" in run.error) is fault
        assert m.GPU_XID_ERRORS in cards.read(1).readings, "the other card has its own"


def test_a_registration_that_failed_in_passing_is_tried_again(h20: Bench) -> None:
    h20.node.inject("nvmlDeviceRegisterEvents", error=ReturnCode.UNKNOWN, gpu=0, times=1)
    gpu = h20.read()
    assert count(gpu, 79) == 0
    assert "XIDs may be missed" in h20.runs[0][xid.NAME].error
    h20.read(after=xid.RETRY_SECONDS + 1)
    assert h20.runs[0][xid.NAME].success
    h20.node.raise_xid(0, 79)
    h20.deliver()
    assert count(h20.read(after=1.0), 79) == 1


def test_a_card_that_has_no_xid_events_is_left_alone_by_the_registration(h20: Bench) -> None:
    with h20.node.gpus[0].changing() as card:
        card.supported_events = 0x1
    gpu = h20.read()
    assert gpu.absent[m.GPU_XID_ERRORS] is Reason.NOT_SUPPORTED
    assert h20.node.calls("nvmlDeviceRegisterEvents", 0) == 0


# ----------------------------------------------------------------------------------------------------------------- the threads
class Log:
    """A kernel log that a test writes; the reader is at its other end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # read and write: so that opening waits for nobody

    def say(self, text: str) -> None:
        os.write(self._descriptor, f"4,1,5000000,-;{text}\n".encode())

    def xid(self, node: SimulatedNode, gpu: int, code: int) -> None:
        self.say(f"NVRM: Xid (PCI:{node.gpus[gpu].pci_bus_id.lower()[4:].removesuffix('.0')}): {code}, pid=1, name=python3")

    def close(self) -> None:
        os.close(self._descriptor)


@contextmanager
def watching(
    log: Path | None = None, prepare: Callable[[SimulatedNode], object] = lambda node: None, timing: Timing = FAST
) -> Iterator[tuple[SimulatedNode, Sampler]]:
    with simulated_library("h20x2") as (node, library):
        prepare(node)
        sampler = Sampler(COLLECTORS, 0.1, library=library, timing=timing, kernel_log=log)
        sampler.start()
        try:
            wait_until(lambda: [gpu.up for gpu in sampler.view().gpus] == [True, True], "both cards up")
            yield node, sampler
        finally:
            node.release()
            sampler.stop()
            assert sampler.join(60.0), "all threads leave once nothing hangs"


def registered(node: SimulatedNode, times: int = 1) -> Callable[[], bool]:
    return lambda: all(node.calls("nvmlDeviceRegisterEvents", gpu) >= times for gpu in (0, 1))


def shown(sampler: Sampler, gpu: int, code: int) -> float | None:
    return count(sampler.view().gpus[gpu], code)


def test_a_card_that_falls_off_the_bus_keeps_its_count_and_gets_the_one_that_tells_why(caplog: pytest.LogCaptureFixture) -> None:
    with watching() as (node, sampler):
        wait_until(registered(node), "both cards registered")
        node.lose(0)
        wait_until(lambda: not sampler.view().gpus[0].up, "card 0 lost")
        node.raise_xid(0, 79)
        wait_until(lambda: shown(sampler, 0, 79) == 1, "its XID counts all the same")
        gpu = sampler.view().gpus[0]
        assert set(gpu.readings) == set(xid.METRICS), "nothing else of a lost card is shown"
        assert not set(xid.METRICS) & set(gpu.absent)
        assert gpu.value(m.GPU_XID_LAST, "79")
        node.restore(0)
        wait_until(lambda: sampler.view().gpus[0].up, "card 0 back")
        assert shown(sampler, 0, 79) == 1
        assert shown(sampler, 1, 79) == 0
        (told,) = [record.getMessage() for record in caplog.records if "XID 79" in record.message]
        assert told.startswith(f"card 0 ({node.gpus[0].uuid}): XID 79, card has fallen off the bus: ")
        assert "restart it" in told


def test_events_come_again_after_a_driver_reload_and_the_count_goes_on() -> None:
    with watching() as (node, sampler):
        wait_until(registered(node), "both cards registered")
        node.raise_xid(0, 31)
        wait_until(lambda: shown(sampler, 0, 31) == 1, "counted")
        node.unload_driver()
        wait_until(lambda: not sampler.view().gpus[0].up, "the driver is gone")
        assert shown(sampler, 0, 31) == 1
        node.load_driver()
        wait_until(registered(node, 2), "registered in a new set")
        node.raise_xid(0, 31)
        wait_until(lambda: shown(sampler, 0, 31) == 2, "counted on")


def test_a_driver_that_hangs_in_waiting_for_events_costs_only_the_events() -> None:
    with watching() as (node, sampler):
        node.inject("nvmlEventSetWait_v2", hang=True).wait_until_held()
        wait_until(lambda: sampler.view().stuck, "the process knows that it cannot leave in the ordinary way")

        def status() -> str:
            return next(status.error for status in sampler.view().collectors if status.name == xid.NAME)

        wait_until(lambda: "does not come back from waiting for events" in status(), "the collector says so")
        before = sampler.view().gpus[0].sampled_at or 0.0
        wait_until(lambda: (sampler.view().gpus[0].sampled_at or 0.0) > before + 0.3, "the cards are read on")
        sampler.stop()
        assert not sampler.join(0.5)


def test_a_wait_that_fails_is_tried_again_with_a_new_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.exporter.nvml.xid_events.PAUSE_SECONDS", 0.05)
    with watching() as (node, sampler):
        wait_until(registered(node), "both cards registered")
        node.inject("nvmlEventSetWait_v2", error=ReturnCode.GPU_IS_LOST, times=1)
        wait_until(registered(node, 2), "registered in a new set")
        node.raise_xid(1, 119)
        wait_until(lambda: shown(sampler, 1, 119) == 1, "counted")


def test_a_driver_without_events_says_so(tmp_path: Path) -> None:
    def refuse(node: SimulatedNode) -> None:
        node.inject("nvmlEventSetCreate", error=ReturnCode.NOT_SUPPORTED)

    with watching(None, refuse) as (_, sampler):
        wait_until(lambda: sampler.view().gpus[0].absent.get(m.GPU_XID_ERRORS) is Reason.NOT_SUPPORTED, "absent with its reason")
        assert m.GPU_XID_ERRORS not in sampler.view().gpus[0].readings
    log = Log(tmp_path / "kmsg")
    try:
        with watching(log.path, refuse) as (node, sampler):
            log.xid(node, 0, 79)
            wait_until(lambda: shown(sampler, 0, 79) == 1, "the kernel log alone tells")
    finally:
        log.close()


def test_events_come_again_after_a_wait_that_hung_while_the_driver_was_to_be_given_up() -> None:
    """NVML is not shut down under it; once it is back there is a new start, with events."""
    with watching(timing=dataclasses.replace(FAST, leave=0.1)) as (node, sampler):
        injection = node.inject("nvmlEventSetWait_v2", hang=True)
        injection.wait_until_held()
        sessions = node.node_calls("nvmlShutdown")
        node.vanish(1)
        wait_until(lambda: sampler.view().gpus[1].down_reason is Reason.GPU_LOST, "card 1 lost")
        wait_until(lambda: node.calls("nvmlDeviceGetHandleByIndex_v2", 0) > 2, "a new start was tried")
        assert node.node_calls("nvmlShutdown") == sessions
        injection.release()
        node.restore(1)
        wait_until(lambda: all(gpu.up for gpu in sampler.view().gpus), "both up")
        node.raise_xid(0, 31)
        wait_until(lambda: shown(sampler, 0, 31), "counted")


def test_events_that_are_wanted_while_everything_is_told_to_leave_leave_too(h20: Bench) -> None:
    """The driver's thread may be on its way into `open` when another says stop."""
    watch = xid_watch_of(h20)
    watch.stop()
    watch.open(h20.driver.library)
    wait_until(lambda: not watch.threads(), "the thread left")


def test_the_kernel_log_tells_of_a_card_that_has_no_events_and_of_what_events_do_not_deliver(tmp_path: Path) -> None:
    log = Log(tmp_path / "kmsg")

    def refuse(node: SimulatedNode) -> None:
        node.inject("nvmlDeviceRegisterEvents", error=ReturnCode.NOT_SUPPORTED, gpu=0)

    try:
        with watching(log.path, refuse) as (node, sampler):
            wait_until(lambda: node.calls("nvmlDeviceRegisterEvents", 1) >= 1, "card 1 registered")
            log.xid(node, 0, 62)
            log.xid(node, 1, 62)
            wait_until(lambda: [shown(sampler, gpu, 62) for gpu in (0, 1)] == [1, 1], "both counted")
            node.raise_xid(1, 63)
            wait_until(lambda: shown(sampler, 1, 63) == 1, "the event counted")
            log.xid(node, 1, 63)
            log.xid(node, 1, 64)
            wait_until(lambda: shown(sampler, 1, 64) == 1, "the line behind it was read")
            assert shown(sampler, 1, 63) == 1
    finally:
        log.close()


def test_a_switch_is_told_and_has_no_series(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = Log(tmp_path / "kmsg")
    try:
        with watching(log.path) as (_, sampler):
            log.say("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 44 sourcetrack timeout error")
            wait_until(lambda: "SXID 24007, Fatal, Link 44" in caplog.text, "told")
            assert all(count(gpu, 999) is None for gpu in sampler.view().gpus)
    finally:
        log.close()


def test_a_kernel_log_that_may_not_be_read_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with watching(tmp_path / "nothing") as (node, sampler):
        assert "the kernel log cannot be read" in caplog.text
        wait_until(registered(node), "events work")
        node.raise_xid(0, 31)
        wait_until(lambda: shown(sampler, 0, 31) == 1, "counted")


def test_a_storm_of_one_code_is_one_line_of_log(caplog: pytest.LogCaptureFixture) -> None:
    with watching() as (node, sampler):
        wait_until(registered(node), "both cards registered")
        for _ in range(50):
            node.raise_xid(0, 31)
        wait_until(lambda: shown(sampler, 0, 31) == 50, "all counted")
        assert caplog.text.count("XID 31") == 1


def test_a_card_that_is_down_without_anybody_listening_keeps_nothing() -> None:
    assert xid.kept_readings(CardMemory()) == {}
