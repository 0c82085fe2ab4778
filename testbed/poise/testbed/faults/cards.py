"""Faults of the last rank's card. Shown on simulated cards only: the mirror reads the wish and shows it until it is taken back."""

from __future__ import annotations

from poise.testbed import card_faults, cards, workers
from poise.testbed.deployment import Deployment
from poise.testbed.faults.fault import Fault, Needs, Raises, Sign, Target
from poise.testbed.plan import EnginePlan

ONE_CARD = Needs(simulated_cards=True)
LINKED_CARDS = Needs(ranks=2, simulated_cards=True)
# Faults with an XID: as the plan notes them, and as the mirror calls what it shows.
NEED_REBOOT = frozenset({"card-lost", "xid-79", "ecc", card_faults.CARD_LOST, card_faults.ECC})


def last_card(engine: EnginePlan, cards_there: int) -> int | None:
    """The index of the card on which CUDA puts the engine's last rank; None when it sees too few."""
    visible = workers.visible_devices(engine.cuda_visible_devices, [""] * cards_there)
    return visible[engine.gpus - 1] if engine.gpus <= len(visible) else None


def rebooted(deployment: Deployment) -> list[str]:
    """A card that fell off the bus comes back with a reboot, and with it every exporter forgets the XID. Where no such fault is
    noted or shown nothing is done."""
    current, shown = deployment.plan, cards.wanted_faults(deployment.layout).faults
    if current.exporter_port is None or not NEED_REBOOT & {current.fault, *shown}:
        return []
    cards.want_faults(deployment.layout, [])  # first: an exporter that finds the card as it was remembers it again
    deployment.restart_exporter()
    return ["exporter"]


def _rank_gone(target: Target) -> None:
    show(target, "rank-gone")


def _slow_clock(target: Target) -> None:
    show(target, "slow-clock")


def _link_down(target: Target) -> None:
    show(target, "link-down")


def _card_lost(target: Target) -> None:
    show(target, "card-lost")


def show(target: Target, name: str) -> None:
    """Returns when the mirror shows the fault `name` (its own word for it) on the card of the engine's last rank."""
    deployment = target.deployment
    cards.want_faults(deployment.layout, [name], last_card(target.engine, deployment.plan.simulated_cards))


FAULTS = (
    Fault(
        name="rank-gone",
        group="cards",
        what="the last rank's process is gone from its card while the server lives",
        needs=LINKED_CARDS,
        raises=Raises(series=(Sign("poise_gpu_process_memory_bytes", "falls"),), checks=("parallel_size",), alerts=("EngineRankMissing",)),
        apply=_rank_gone,
    ),
    Fault(
        name="slow-clock",
        group="cards",
        what="the last rank's card is held at a low SM clock (power cap)",
        needs=LINKED_CARDS,
        raises=Raises(
            series=(
                Sign("poise_gpu_clock_hertz", "falls", (("clock", "sm"),)),
                Sign("poise_gpu_clocks_event", "rises", (("reason", "sw_power_cap"),)),
            ),
            checks=("rank_clock",),
            alerts=("EngineRankStraggler",),
        ),
        apply=_slow_clock,
    ),
    Fault(
        name="link-down",
        group="cards",
        what="one NVLink between the cards is down",
        needs=LINKED_CARDS,
        raises=Raises(series=(Sign("poise_gpu_nvlink_up", "falls"),), checks=("nvlink_links",), alerts=("NVLinkLinkDown",)),
        apply=_link_down,
    ),
    Fault(
        name="card-lost",
        group="cards",
        what="the last rank's card has fallen off the bus (XID 79)",
        needs=LINKED_CARDS,
        raises=Raises(series=(Sign("poise_gpu_up", "falls"),), checks=("cards",), alerts=("GPULost", "GPUXidFatal")),
        apply=_card_lost,
        undo=rebooted,
    ),
)
