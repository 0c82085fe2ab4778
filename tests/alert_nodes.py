"""Nodes as they look on a contract page: a forgotten option, a hidden card, a loading model, healthy ones. Knows no rule and no program."""

from __future__ import annotations

from poise.exporter import metrics as m

from tests.contract_page import ContractPage

#: Nothing is starting any more.
OLD = 86_400.0


def one_card(page: ContractPage) -> None:
    """Both cards visible, tensor-parallel size 1."""
    page.card(0, 0.97)
    page.card(1, 0.02)
    page.engine("qwen", tokens=500, age=OLD, ranks=1, deployment="chat")
    page.sees("qwen", 0, "own", deployment="chat")
    page.sees("qwen", 1, "free", deployment="chat")


def one_visible(page: ContractPage) -> None:
    """CUDA_VISIBLE_DEVICES=0: the second card is in nobody's sight."""
    page.card(0, 0.97)
    page.card(1, 0.02)
    page.engine("sim:8000", tokens=500, age=OLD, ranks=1)
    page.sees("sim:8000", 0, "own")


def tensor_parallel(page: ContractPage, *, busy: float, tokens: float, discovered: str = "argv") -> None:
    """A tensor-parallel engine on both cards, as it should be."""
    page.engine("tp", tokens=tokens, age=OLD, ranks=2, discovered=discovered)
    for index in (0, 1):
        page.card(index, busy, links=4)
        page.sees("tp", index, "own", tp_rank=str(index))


def loading(page: ContractPage, *, age: float) -> None:
    """A model that loads for the whole run: the page is silent, one rank works. The rules' 20 minutes are scaled to seconds, so that `age` may have
    to lie ahead."""
    page.card(0, 0.97)
    page.card(1, 0.0)
    page.engine("tp", tokens=0, age=age, ranks=2)
    labels = {"engine": "tp", "deployment": "tp", "role": "mixed"}
    page.gauge(m.ENGINE_UP, 0, **labels)
    page.sees("tp", 0, "own", tp_rank="0")
    page.sees("tp", 1, "own", tp_rank="1")


def pair(page: ContractPage) -> None:
    """Two engines on two cards, each seeing both, with unequal load."""
    page.card(0, 0.97)
    page.card(1, 0.03)
    for own, other in ((0, 1), (1, 0)):
        page.engine(f"e{own}", tokens=500, age=OLD, ranks=1)
        page.sees(f"e{own}", own, "own")
        page.sees(f"e{own}", other, "other")


def restart_with_both_cards(page: ContractPage, engine: str, deployment: str) -> None:
    """What the person does: the engine again, with both cards and tensor-parallel size 2."""
    page.engine(engine, tokens=500, age=0, ranks=2, deployment=deployment)
    for index in (0, 1):
        page.card(index, 0.95)
        page.sees(engine, index, "own", tp_rank=str(index), deployment=deployment)
