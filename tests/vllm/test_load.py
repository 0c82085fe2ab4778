"""Measured load on the real TP=2 deployment: what is saved is what the servers and the exporter counted."""

from __future__ import annotations

import importlib.resources
import json
import os
from pathlib import Path

import jsonschema
import pytest
from poise.testbed.bench import drive, profile, run
from poise.testbed.bench.profile import Overrides
from poise.testbed.comparison import command, report, table
from poise.testbed.deployment import Deployment
from poise.testbed.errors import TestbedError

from tests.vllm.deploying import progress_of, read, total

SHORT = Overrides(requests=16, output_tokens=32, warmup_requests=2, slo=(("e2el", 60_000.0),))


def test_a_saved_run_holds_what_client_exporter_and_server_counted(tp: Deployment, tmp_path: Path) -> None:
    chat = profile.changed(profile.load("chat", "cpu"), SHORT)
    page = f"{tp.engine().url}/metrics"
    before = read(page)
    outcome = drive.run_profile(tp, chat, tmp_path / "runs", progress_of("load", []), os.environ)
    after = read(page)
    content = run.read(outcome.path)
    text = (importlib.resources.files("poise.testbed.bench") / "run.schema.json").read_text(encoding="utf-8")
    jsonschema.Draft202012Validator(json.loads(text)).validate(content)

    step = content["steps"][0]
    client, observed = step["client"], step["observed"]
    assert (client["completed"], client["failed"], client["errors"]) == (16, 0, {})
    assert client["goodput"] == pytest.approx(client["requests_per_second"]), "each request is within a minute"
    assert observed["settled"]
    gained = observed["engines"][0]["gained"]
    assert (gained["prompt_tokens"], gained["generation_tokens"]) == (client["input_tokens"], client["output_tokens"])
    assert gained["requests_finished"] == 16
    # vLLM's own page has the warm-up too: two requests of as many tokens as a prompt has words.
    finished = total(after, "vllm:request_success_total") - total(before, "vllm:request_success_total")
    assert finished == 16 + 2
    assert total(after, "vllm:generation_tokens_total") - total(before, "vllm:generation_tokens_total") == client["output_tokens"] + 2 * 32

    assert [(card["engine"], card["tp_rank"], card["use"]) for card in observed["cards"]] == [
        ("server", "0", "own"),
        ("server", "1", "own"),
    ]
    assert all(card["nvlink_tx_bytes"] > 0 for card in observed["cards"])
    assert (content["simulated"], content["versions"]["driver"]) == (True, "simulated")
    assert content["versions"]["vllm"].startswith("0.")
    assert content["deployment"]["engines"][0]["arguments"]["--tensor-parallel-size"] == "2"
    assert list((tp.layout.temporary).glob("bench-*")) == []

    again = json.loads(outcome.path.read_text()) | {"id": "single"}
    again["deployment"] = {**again["deployment"], "shape": "single", "gpus": 1}
    made = table.compare([again, content])
    assert [row.verdict.faster for row in made.rows if row.verdict] == [None, False], "a run against itself is no faster"
    assert made.rows[1].tokens_per_second_per_gpu.mean == pytest.approx(client["output_tokens_per_second"] / 2)
    written = command.write(made, tmp_path / "comparison", plotted=False)
    assert report.command(made) in written[0].read_text(encoding="utf-8")


def test_what_cannot_fit_is_refused_before_anything_is_sent(tp: Deployment, tmp_path: Path) -> None:
    long = profile.changed(profile.load("rag", "cpu"), Overrides(input_tokens=4000))
    with pytest.raises(TestbedError, match=r"needs up to \d+ tokens for a request and server takes 2048 \(--max-model-len\)"):
        drive.run_profile(tp, long, tmp_path, progress_of("load", []), os.environ)
    with pytest.raises(TestbedError, match="there is no engine 'octopus'"):
        drive.run_profile(tp, profile.load("chat", "cpu"), tmp_path, progress_of("load", []), os.environ, direct="octopus")
    assert list(tmp_path.iterdir()) == []
