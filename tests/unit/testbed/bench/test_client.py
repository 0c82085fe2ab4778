"""`vllm bench serve`: what it is told, and what its recorded output tells."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from poise.testbed.bench import client, profile
from poise.testbed.bench.client import Event
from poise.testbed.bench.profile import Overrides
from poise.testbed.bench.workload import StepPlan

from tests.unit.testbed.bench.runs import RECORDED, TP
from tests.unit.testbed.deployments import layout_in


def words(name: str, step: StepPlan, **options: object) -> str:
    chosen = profile.changed(profile.load(name, "cpu"), Overrides(**options))  # type: ignore[arg-type]  # by name
    return " ".join(client.bench_command(TP, "http://127.0.0.1:8000", "/models/tiny", chosen, step, Path("/tmp/x")))


def test_a_closed_loop_has_clients_and_no_rate() -> None:
    said = words("chat", StepPlan(64, None, 1))
    assert said.startswith("/nowhere/bin/vllm bench serve --backend openai --base-url http://127.0.0.1:8000 --endpoint /v1/completions")
    assert "--seed 1 --num-prompts 64 --random-input-len 96 --random-output-len 48 --random-range-ratio 0.5 --random-prefix-len 0" in said
    assert "--max-concurrency 8" in said
    assert "--request-rate" not in said


def test_an_open_loop_has_a_rate_and_its_burstiness() -> None:
    said = words("burst", StepPlan(60, 3.0, 1))
    assert "--request-rate 3 --burstiness 0.25" in said
    assert "--max-concurrency" not in said


def test_nothing_is_sent_beside_the_step() -> None:
    """A probe or warm-up of the client's own would leave a measured prompt in the prefix cache, and count."""
    assert "--num-warmups 0 --ready-check-timeout-sec 0" in words("rag", StepPlan(8, None, 1))


def test_limits_become_goodput() -> None:
    assert words("chat", StepPlan(8, None, 1), slo=(("ttft", 500.0), ("e2el", 3000.0))).endswith("--goodput ttft:500 e2el:3000")


def test_a_key_goes_through_the_environment_alone(tmp_path: Path) -> None:
    environ = {"VLLM_API_KEY": "sk-secret", "PYTHONPATH": "/elsewhere", "NO_PROXY": "example.org", "PATH": "/bin"}
    made = client.bench_environment(TP, layout_in(tmp_path), environ)
    assert made["OPENAI_API_KEY"] == "sk-secret"
    assert "PYTHONPATH" not in made
    assert (made["NO_PROXY"], made["HF_HUB_OFFLINE"]) == ("example.org,127.0.0.1", "1")
    assert "HF_HUB_OFFLINE" not in client.bench_environment(replace(TP, model="Qwen/Qwen2.5"), layout_in(tmp_path), environ)
    assert "sk-secret" not in words("chat", StepPlan(1, None, 1))


def test_recorded_output_tells_when_it_began_how_far_it_is_and_when_it_ended() -> None:
    lines = re.split(r"[\r\n]+", (RECORDED / "chat.out").read_text())
    assert [event for line in lines if (event := client.read_line(line, 64))] == [Event("started"), Event("ended")]
    bars = re.split(r"[\r\n]+", (RECORDED / "chat.err").read_text())
    done = [event.done for line in bars if (event := client.read_line(line, 64)) is not None]
    assert (done[0], done[-1]) == (0, 64)
    assert done == sorted(done)


def test_other_bars_are_not_taken_for_progress() -> None:
    assert client.read_line("Loading:  50%|█████     | 1/2 [00:01<00:01,  1.00it/s]", 64) is None


def test_the_last_words_of_a_failure_are_its_error() -> None:
    lines = (RECORDED / "bad-rate.err").read_text().splitlines()
    assert client.last_words(lines) == "AssertionError: Obtained non-positive request rate -1.0."
    assert client.last_words(["a", "100%|███| 4/4 [00:00<00:00, 263.54it/s]", ""]) == "a"
    assert client.last_words([]) == "it said nothing"
