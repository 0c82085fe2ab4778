"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest
from poise.testbed import interrupts


@pytest.fixture(params=interrupts.SIGNALS)
def ignored(request: pytest.FixtureRequest) -> Iterator[signal.Signals]:
    number: signal.Signals = request.param
    before = signal.signal(number, signal.SIG_IGN)
    yield number
    signal.signal(number, before)


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_both_signals_interrupt_alike_and_more_than_once(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in interrupts.SIGNALS]
    with interrupts.as_exceptions():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert [signal.getsignal(each) for each in interrupts.SIGNALS] == before


def test_a_signal_that_is_ignored_at_the_start_stays_ignored_and_the_other_is_heeded(ignored: signal.Signals) -> None:
    (other,) = set(interrupts.SIGNALS) - {ignored}
    assert interrupts.heeded() == [other]
    with interrupts.as_exceptions():
        signal.raise_signal(ignored)
        with interrupts.held_off():
            signal.raise_signal(ignored)
        signal.raise_signal(ignored)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(other)
    assert signal.getsignal(ignored) is signal.SIG_IGN


def test_of_what_is_left_the_innermost_words_count() -> None:
    with pytest.raises(KeyboardInterrupt) as caught, interrupts.leaves("much"), interrupts.leaves("little"):
        raise KeyboardInterrupt
    assert interrupts.left_by(caught.value) == "little"
    assert interrupts.left_by(KeyboardInterrupt()) is None
    with pytest.raises(ValueError, match="other") as other, interrupts.leaves("much"):
        raise ValueError("other")
    assert not hasattr(other.value, "__notes__")


def test_cleaning_up_is_not_interrupted() -> None:
    with interrupts.as_exceptions():
        with interrupts.held_off():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_other_threads_may_clean_up_too() -> None:
    done: list[bool] = []

    def clean() -> None:
        with interrupts.held_off():
            done.append(True)

    thread = threading.Thread(target=clean)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_what_is_deferred_is_raised_behind_the_body_and_cleaning_up_within_it_is_done_first(number: signal.Signals) -> None:
    done = []

    def signalled_while_deferred() -> None:
        with interrupts.deferred():
            signal.raise_signal(number)
            with interrupts.held_off():
                signal.raise_signal(number)
                done.append("cleaned up")
            done.append("behind it")

    def failing_while_deferred() -> None:
        with interrupts.deferred():
            signal.raise_signal(number)
            raise ValueError("the body's own error counts")

    with interrupts.as_exceptions():
        with pytest.raises(KeyboardInterrupt):
            signalled_while_deferred()
        assert done == ["cleaned up", "behind it"]
        with interrupts.deferred():
            done.append("quiet")
        with pytest.raises(ValueError, match="the body's own error counts"):
            failing_while_deferred()
