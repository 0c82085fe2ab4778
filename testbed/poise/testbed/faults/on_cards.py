"""Faults of hardware and driver on the last rank's card, and who else may sit on it. Shown on simulated cards only.

How each looks on the card is in card_faults.py; the process that stands for a foreign one is a real one.
"""

from __future__ import annotations

from poise.testbed import card_faults
from poise.testbed.errors import TestbedError
from poise.testbed.faults.cards import LINKED_CARDS, ONE_CARD, last_card, rebooted, show
from poise.testbed.faults.fault import Fault, Raises, Sign, Target

FOREIGN_PROCESS = "fault_foreign"
# A sixth of the card: more than ranks may differ by (checks/thresholds.py, MEMORY_GAP) and far above what counts as a foreign
# user of a card (ownership.py).
FOREIGN_BYTES = 24 << 30


def _thermal(target: Target) -> None:
    show(target, card_faults.THERMAL)


def _power_brake(target: Target) -> None:
    show(target, card_faults.POWER_BRAKE)


def _link_errors(target: Target) -> None:
    show(target, card_faults.LINK_ERRORS)


def _xid_79(target: Target) -> None:
    show(target, card_faults.CARD_LOST)


def _ecc(target: Target) -> None:
    show(target, card_faults.ECC)


def _driver_hang(target: Target) -> None:
    show(target, card_faults.DRIVER_HANG)


def _foreign_process(target: Target) -> None:
    """A process that does nothing, and the mirror shows it with memory of the card."""
    deployment = target.deployment
    card = last_card(target.engine, deployment.plan.simulated_cards)
    if card is None:
        raise TestbedError(f"{target.engine.name} sees fewer cards than it has ranks: there is none to put a foreign process on")
    facts = {card_faults.FOREIGN_CARD: str(card), card_faults.FOREIGN_MEMORY: str(FOREIGN_BYTES)}
    deployment.spawn(FOREIGN_PROCESS, "fault", ["sleep", "infinity"], facts)


def _seconds(reason: str) -> Sign:
    return Sign("poise_gpu_clocks_event_seconds_total", "counts", (("reason", reason),))


def _reason(reason: str) -> Sign:
    return Sign("poise_gpu_clocks_event", "rises", (("reason", reason),))


FAULTS = (
    Fault(
        name="thermal",
        group="cards",
        what="nothing cools the last rank's card: it heats beyond its slowdown point and halves its clocks",
        needs=ONE_CARD,
        raises=Raises(
            series=(
                Sign("poise_gpu_temperature_celsius", "rises", (("sensor", "core"),)),
                Sign("poise_gpu_temperature_margin_celsius", "falls"),
                _reason("sw_thermal_slowdown"),
                _reason("hw_thermal_slowdown"),
                _seconds("sw_thermal_slowdown"),
                _seconds("hw_thermal_slowdown"),
            ),
            checks=("card_slowdown",),
            alerts=("GPUHwThermalSlowdown", "GPUSwThermalSlowdown"),
            tolerated=("GPUTemperatureMarginLow", "EngineRankStraggler"),
        ),
        apply=_thermal,
    ),
    Fault(
        name="power-brake",
        group="cards",
        what="the power supply makes the last rank's card brake: it halves its clocks",
        needs=ONE_CARD,
        raises=Raises(
            series=(_reason("hw_power_brake"), _seconds("hw_power_brake")),
            checks=("card_slowdown",),
            alerts=("GPUPowerBrake",),
            tolerated=("EngineRankStraggler",),
        ),
        apply=_power_brake,
    ),
    Fault(
        name="link-errors",
        group="cards",
        what="one NVLink of the last rank's card repeats packets and trains anew, and stays up",
        needs=LINKED_CARDS,
        raises=Raises(
            series=tuple(
                Sign("poise_gpu_nvlink_errors_total", "counts", (("link", str(card_faults.FAULTY_LINK)), ("type", kind)))
                for kind in ("replay", "recovery", "crc_flit", "crc_data")
            ),
            checks=("nvlink_errors",),
            alerts=("NVLinkErrors",),
        ),
        apply=_link_errors,
    ),
    Fault(
        name="xid-79",
        group="cards",
        what="card-lost, by the name that the driver's log has for it: the last rank's card has fallen off the bus",
        needs=LINKED_CARDS,
        raises=Raises(
            series=(Sign("poise_gpu_up", "falls"), Sign("poise_gpu_xid_last_timestamp_seconds", "appears", (("xid", "79"),))),
            checks=("cards",),
            alerts=("GPULost", "GPUXidFatal"),
        ),
        apply=_xid_79,
        undo=rebooted,
    ),
    Fault(
        name="ecc",
        group="cards",
        what="memory of the last rank's card fails: uncorrectable errors, a row that waits to be replaced, XIDs 48 and 63",
        needs=ONE_CARD,
        raises=Raises(
            series=(
                Sign("poise_gpu_remap_pending", "rises"),
                Sign("poise_gpu_recovery_action", "rises"),
                Sign("poise_gpu_xid_last_timestamp_seconds", "appears", (("xid", "48"),)),
            ),
            checks=("card_health",),
            alerts=("GPUEccUncorrected", "GPURowRemapPending", "GPUXidFatal"),
        ),
        apply=_ecc,
        undo=rebooted,
    ),
    Fault(
        name="driver-hang",
        group="cards",
        what="calls about the last rank's card hang in the driver",
        needs=ONE_CARD,
        raises=Raises(
            series=(Sign("poise_gpu_up", "falls"), Sign("poise_gpu_unsupported_info", "appears", (("reason", "timeout"),))),
            checks=("cards",),
            alerts=("GPULost",),
        ),
        apply=_driver_hang,
    ),
    Fault(
        name="foreign-process",
        group="cards",
        what=f"a process of no engine holds {FOREIGN_BYTES >> 30} GiB of the last rank's card",
        needs=ONE_CARD,
        raises=Raises(
            series=(Sign("poise_gpu_foreign_memory_bytes", "rises"), Sign("poise_gpu_memory_used_bytes", "rises")),
            checks=("foreign_process",),
            alerts=("EngineForeignProcess",),
            tolerated=("EngineMemoryImbalance",),
        ),
        apply=_foreign_process,
    ),
)
