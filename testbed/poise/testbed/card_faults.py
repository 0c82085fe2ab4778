"""How faults look on a simulated card: what is switched once, and what goes on while they last.

Owns the mirror's words for faults of cards. Knows nothing of who wishes for them (faults/) and of what a healthy card shows
(mirroring.py).
"""

from __future__ import annotations

from poise.testbed.cards import Wish
from poise.testbed.nvml.codes import LinkError, Policy, ReasonTime, RecoveryAction
from poise.testbed.nvml.gpu import SimulatedGPU
from poise.testbed.nvml.injection import EVERY_FUNCTION
from poise.testbed.nvml.node import SimulatedNode

RANK_GONE = "rank-gone"
SLOW_CLOCK = "slow-clock"
LINK_DOWN = "link-down"
CARD_LOST = "card-lost"
THERMAL = "thermal"
POWER_BRAKE = "power-brake"
LINK_ERRORS = "link-errors"
ECC = "ecc"
DRIVER_HANG = "driver-hang"

# Facts in the record of a process that stands for a foreign one: which card it is on, and how much of it it holds.
FOREIGN_CARD = "card"
FOREIGN_MEMORY = "gpu_memory_bytes"

# NVIDIA, XID errors: 79 is "GPU has fallen off the bus", 48 an uncorrectable memory error, 63 a row noted to be replaced.
XID_FALLEN_OFF = 79
XID_UNCORRECTABLE = 48
XID_ROW_REMAPPED = 63

# The link that has the faults of links.
FAULTY_LINK = 0
# Errors per second of a link whose cable or connector is bad: packets are sent again all the time, and now and then the link
# trains anew. (No vendor publishes figures; an alert that needs more than these would miss such a link.)
LINK_ERRORS_PER_SECOND = {LinkError.REPLAY: 20.0, LinkError.RECOVERY: 0.5, LinkError.CRC_FLIT: 50.0, LinkError.CRC_DATA: 5.0}
# What a failing row gives before it is replaced.
UNCORRECTED_ERRORS = 2

# Why a fault lowers the clocks whatever the card does. HwSlowdown stands for all that the card does itself (nvml.h).
_REASONS = {SLOW_CLOCK: ("sw_power_cap",), POWER_BRAKE: ("hw_power_brake", "hw_slowdown")}
_REASON_TIMES = {
    "sw_thermal_slowdown": ReasonTime.SW_THERMAL_SLOWDOWN,
    "hw_thermal_slowdown": ReasonTime.HW_THERMAL_SLOWDOWN,
    "hw_power_brake": ReasonTime.HW_POWER_BRAKE,
}
_POLICY_TIMES = {"sw_power_cap": Policy.POWER, "sw_thermal_slowdown": Policy.THERMAL}


def clock_reasons(faults: tuple[str, ...]) -> set[str]:
    """The clock event reasons that faults of a card bring with them."""
    return {reason for fault in faults for reason in _REASONS.get(fault, ())}


def count_reasons(gpu: SimulatedGPU, reasons: set[str], seconds: float) -> None:
    """The driver's own time counters of those reasons that it counts."""
    for reason in reasons:
        if reason in _REASON_TIMES:
            gpu.add_reason_time(_REASON_TIMES[reason], seconds)
        if reason in _POLICY_TIMES:
            gpu.add_policy_time(_POLICY_TIMES[reason], seconds)


class CardFaults:
    """The faults that are in force on one node. At its start nothing is held in the driver, whatever an earlier one left."""

    def __init__(self, node: SimulatedNode) -> None:
        self._node = node
        self._applied = Wish()
        self._begun = False
        self._owed = dict.fromkeys(LINK_ERRORS_PER_SECOND, 0.0)
        node.release()

    @property
    def names(self) -> tuple[str, ...]:
        return self._applied.faults

    def on(self, gpu: SimulatedGPU) -> tuple[str, ...]:
        """The faults of this card."""
        return self._applied.faults if gpu.position == self._card_of(self._applied) else ()

    def switch(self, wanted: Wish) -> None:
        """Puts the cards into the wished state; a card that is in it already is left alone. The first time nothing is known of the
        cards: an earlier mirror may have been killed with a fault on them."""
        if wanted == self._applied and self._begun:
            return
        self._begun = True
        before, was_on = self._applied.faults, self._card_of(self._applied)
        self._applied = wanted
        for gpu in self._node.gpus:
            had = before if gpu.position == was_on else ()
            self._switch_card(gpu, set(self.on(gpu)), set(had))

    def _switch_card(self, gpu: SimulatedGPU, faults: set[str], before: set[str]) -> None:
        place = gpu.position
        if gpu.link_count:
            gpu.set_link_up(FAULTY_LINK, LINK_DOWN not in faults)
        if CARD_LOST not in faults:
            self._node.restore(place)
        elif CARD_LOST not in before:
            self._node.lose(place)
            self._node.raise_xid(place, XID_FALLEN_OFF)
        if ECC not in faults and gpu.remap_pending:
            gpu.reset()
        elif ECC in faults and not gpu.remap_pending:  # else an earlier mirror has counted them
            with gpu.changing():
                gpu.add_ecc_errors(UNCORRECTED_ERRORS, uncorrected=True)
                gpu.set_remapped_rows(uncorrectable=1, pending=True)
                gpu.set_recovery_action(RecoveryAction.DRAIN_AND_RESET)
            for xid in (XID_UNCORRECTABLE, XID_ROW_REMAPPED):
                self._node.raise_xid(place, xid)
        if DRIVER_HANG in before and DRIVER_HANG not in faults:
            self._node.release(EVERY_FUNCTION, place)
        elif DRIVER_HANG in faults and DRIVER_HANG not in before:
            self._node.inject(EVERY_FUNCTION, hang=True, gpu=place)

    def advance(self, seconds: float) -> None:
        """What faults do as time goes by."""
        if LINK_ERRORS not in self._applied.faults:
            return
        gpu = self._node.gpus[self._card_of(self._applied)]
        for error, rate in LINK_ERRORS_PER_SECOND.items() if gpu.link_count else ():
            whole, self._owed[error] = divmod(self._owed[error] + rate * seconds, 1)
            gpu.add_link_errors(FAULTY_LINK, error, int(whole))

    def _card_of(self, wish: Wish) -> int:
        """The position of the card that faults are shown on: the last when none is named."""
        return len(self._node.gpus) - 1 if wish.card is None or wish.card >= len(self._node.gpus) else wish.card
