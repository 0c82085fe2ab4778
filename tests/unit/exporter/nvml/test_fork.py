"""Handles and forks: the exporter makes none, and in one that somebody else made it refuses clearly rather than read through dead handles."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import poise.exporter.nvml.library as library_module

from tests.simulated import run_python
from tests.simulated_cards import simulated_library

#: What would make a process with our memory. subprocess is not among them: what it starts is another program.
FORKS = re.compile(r"os\.fork|\bforkpty\b|\bimport pty\b|\bmultiprocessing\b|\bProcessPoolExecutor\b")

CHILD = """
import os, sys, warnings
warnings.simplefilter("ignore")
from poise.exporter.nvml.driver import Driver
from poise.exporter.nvml.library import ForeignProcess
driver = Driver.open()
handle = driver.handle(0)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(reader)
    refused = []
    for attempt in (driver.count, lambda: driver.handle(0), driver.library.check_process, driver.close):
        try:
            attempt()
        except ForeignProcess as error:
            refused.append(str(error))
    again = Driver.open()
    os.write(writer, repr((len(refused), refused[0], again.count())).encode())
    os._exit(0)
os.close(writer)
answer = os.read(reader, 4096).decode()
os.waitpid(child, 0)
print(answer)
print(os.getpid(), child, driver.count())
"""


def test_no_part_of_the_exporter_forks() -> None:
    folder = Path(library_module.__file__).parents[1]
    files = sorted(folder.rglob("*.py"))
    assert len(files) > 50
    assert {file.name: found.group() for file in files if (found := FORKS.search(file.read_text()))} == {}


def test_a_fork_refuses_the_handles_of_its_parent_and_can_begin_anew() -> None:
    with simulated_library("h20x2") as (node, _):
        first, second = run_python(node, CHILD).splitlines()
        refusals, words, cards = ast.literal_eval(first)
        parent, child, still = second.split()
        assert (refusals, cards, still) == (4, 2, "2")
        assert f"process {parent}" in words
        assert f"fork {child}" in words
        assert "start a new Sampler" in words
