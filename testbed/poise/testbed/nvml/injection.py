"""What is done to calls on purpose: errors, delays, hangs, per function and card, and counting the calls.

Owns the rules of a state. Knows nothing of what the functions answer.
"""

from __future__ import annotations

import difflib
import time
from contextlib import AbstractContextManager
from typing import Protocol

from poise.testbed.nvml.codes import ReturnCode
from poise.testbed.nvml.state import ANY_CARD, ANY_FUNCTION, MAX_CARDS, MAX_RULES, RuleStruct, StateStruct, functions

EVERY_FUNCTION = "*"
WITHOUT_END = -1
MICROSECONDS = 1_000_000
LOOK_SECONDS = 0.002  # the library counts in another process: there is nothing to be woken by


class Writer(Protocol):
    """The state and the right to write what belongs to no card."""

    @property
    def state(self) -> StateStruct: ...

    def writing(self) -> AbstractContextManager[StateStruct]: ...


class Injection:
    """One rule in force. It ends with `release`, or with `node.release`."""

    def __init__(self, writer: Writer, rule: RuleStruct, token: int) -> None:
        self._writer = writer
        self._rule = rule
        self._token = token

    @property
    def active(self) -> bool:
        return bool(self._rule.token == self._token)

    @property
    def hits(self) -> int:
        """Calls that the rule has affected; 0 once it is gone."""
        return int(self._rule.hits) if self.active else 0

    @property
    def held(self) -> int:
        """Calls that hang in the rule at this moment."""
        return int(self._rule.waiting) if self.active else 0

    def wait_until_held(self, calls: int = 1, timeout: float = 30.0) -> None:
        """Returns when at least `calls` calls hang in the rule. Raises TimeoutError after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while self.held < calls:
            if time.monotonic() >= deadline:
                raise TimeoutError(f"{self.held} of {calls} calls hang in the injected rule after {timeout:g} s")
            time.sleep(LOOK_SECONDS)

    def release(self) -> None:
        """Takes the rule away; calls that it holds go on and answer its error, or what they would have answered."""
        with self._writer.writing() as state:
            if self.active:
                clear(state, self._rule)


def function_number(function: str) -> int:
    """Position of `function` in functions.def. Raises ValueError that names what comes close."""
    if function == EVERY_FUNCTION:
        return ANY_FUNCTION
    for number, name in enumerate(functions()):
        if name == function:
            return number
    close = difflib.get_close_matches(function, functions(), n=3)
    raise ValueError(f"{function!r} is no NVML function; did you mean {' or '.join(close) or 'another name'}?")


def add(writer: Writer, function: str, *, error: int, delay: float, hang: bool, card: int | None, times: int | None) -> Injection:
    """Writes a rule; it is in force when this returns. `card` None: all cards and calls about none."""
    number = function_number(function)
    if error == ReturnCode.SUCCESS and not delay and not hang:
        raise ValueError(f"injecting into {function} needs an error, a delay or a hang")
    with writer.writing() as state:
        free = [rule for rule in state.rules if not rule.token]
        if not free:
            raise ValueError(f"{MAX_RULES} rules are in force, there is no room for another: release some")
        # A slot that still lets go of its last callers is taken only when there is no other: they count themselves out.
        rule: RuleStruct = min(free, key=lambda slot: int(slot.waiting))
        token = time.time_ns()  # never the token of a rule that stood here before
        rule.function = number
        rule.card = ANY_CARD if card is None else card
        rule.error, rule.delay_us, rule.hang = int(error), round(delay * MICROSECONDS), int(hang)
        rule.remaining = WITHOUT_END if times is None else times
        rule.hits = rule.waiting = 0
        rule.token = token
        state.rule_count += 1
    return Injection(writer, rule, token)


def clear(state: StateStruct, rule: RuleStruct) -> None:
    """Ends a rule; calls that it holds see within milliseconds that it is gone."""
    rule.token = 0
    rule.hang = 0
    state.rule_count -= 1


def matching(state: StateStruct, function: str | None, card: int | None) -> list[RuleStruct]:
    """Rules in force, of one function and one card where these are given."""
    number = None if function is None else function_number(function)
    return [rule for rule in state.rules if rule.token and number in (None, rule.function) and (card is None or rule.card == card)]


def count_calls(state: StateStruct, function: str, card: int | None) -> int:
    """Calls of `function` since the node was made; `card` None: about any card and about none."""
    row = state.calls[function_number(function)]
    return int(sum(row)) if card is None else int(row[card])


def count_node_calls(state: StateStruct, function: str) -> int:
    """Calls of `function` that were about no card."""
    return int(state.calls[function_number(function)][MAX_CARDS])
