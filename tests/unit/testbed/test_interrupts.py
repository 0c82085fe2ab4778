"""Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import threading

import pytest
from poise.testbed import interrupts


@pytest.mark.parametrize("number", interrupts.SIGNALS)
def test_both_signals_interrupt_alike_and_more_than_once(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in interrupts.SIGNALS]
    with interrupts.as_exceptions():
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(number)
    assert [signal.getsignal(each) for each in interrupts.SIGNALS] == before


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
