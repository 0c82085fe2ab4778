"""The file of a run: its schema, its folder, and what it must not hold."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from poise.testbed.bench import facts, run
from poise.testbed.bench.run import Step
from poise.testbed.bench.workload import StepPlan
from poise.testbed.errors import TestbedError

from tests.unit.testbed.bench.runs import ENGINE, RECORDED, TP, chat_step, document, figures, run_facts


def schema() -> dict[str, Any]:
    text = (importlib.resources.files("poise.testbed.bench") / "run.schema.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def valid(content: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(schema()).validate(json.loads(json.dumps(content)))


def test_the_schema_is_one() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())


def test_a_run_follows_the_schema() -> None:
    valid(document())


@pytest.mark.parametrize("path", sorted(RECORDED.glob("run-*.json")), ids=lambda path: path.stem)
def test_real_runs_follow_it_and_their_hash_is_that_of_what_they_sent(path: Path) -> None:
    content = run.read(path)
    valid(content)
    sent = {key: value for key, value in content["workload"].items() if key != "sha256"}
    assert content["workload"]["sha256"] == hashlib.sha256(json.dumps(sent, sort_keys=True).encode()).hexdigest()


def test_a_run_that_nobody_watched_follows_it_too_and_says_why() -> None:
    step = replace(chat_step(), usage=None, unobserved="the deployment was brought up without an exporter")
    content = run.document(run_facts(), [step], False, "a")
    valid(content)
    assert content["steps"][0]["observed"] is None
    assert "latency" in content["steps"][0]["client"]


def test_every_field_of_the_schema_is_described_in_docs() -> None:
    page = (Path(__file__).parents[4] / "docs" / "load.md").read_text(encoding="utf-8")
    missing = [name for name in schema()["properties"] if f"`{name}`" not in page]
    assert missing == []


def test_what_is_not_known_has_no_key() -> None:
    observed = document()["steps"][0]["observed"]
    assert "kv_transfer" not in observed
    assert None not in observed.values()


def test_a_run_is_saved_whole_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    path, content = run.save(folder, run_facts(), [chat_step()], False)
    assert run.read(path) == json.loads(json.dumps(content))
    second, _ = run.save(folder, run_facts(), [chat_step()], True)
    assert second != path, "two runs that began in the same second are two files"
    assert {found.name for found, _ in run.saved(folder)} == {path.name, second.name} == {item.name for item in folder.iterdir()}


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(TestbedError, match="the run cannot be saved in"):
        run.save(tmp_path / "runs", run_facts(), [chat_step()], False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no saved run"),
        ("[]", "is no saved run"),
        ('{"schema_version": 2}', "schema_version 2"),
        ('{"schema_version": 1}', "has no steps"),
    ],
)
def test_files_that_are_no_runs_are_refused_and_not_listed(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(TestbedError, match=said):
        run.read(path)
    assert run.saved(tmp_path) == []


def test_the_step_with_most_answers_speaks_for_a_ramp() -> None:
    slow, fast = chat_step(), replace(chat_step(), figures=replace(figures(), output_tokens_per_second=999.0))
    assert run.document(run_facts(), [slow, fast, slow], False, "a")["headline"] == 1


def test_a_step_is_saturated_when_it_answers_less_than_nine_tenths() -> None:
    seen = figures()  # 64 requests in 19.6 s

    def at(rate: float) -> Step:
        return Step(StepPlan(64, rate, 1), 0.0, 1.0, seen, None, "n/a")

    assert run.saturated(at(8.0), unloaded=1.0)
    assert not run.saturated(at(3.4), unloaded=1.0)
    assert not run.saturated(chat_step(), unloaded=1.0), "a closed loop asks for no rate"


def test_a_first_step_of_few_requests_is_not_saturated_by_its_last_answer() -> None:
    """As recorded: 4 requests at 1/s took 6.03 s, the last of them 2 s; later steps were quicker, which changes nothing for the first."""
    seen = figures()
    slow = replace(seen, completed=4, duration_seconds=6.03, latency={"e2el": replace(seen.latency["e2el"], p50=1.9, p99=2.0)})
    quick = replace(seen, completed=8, duration_seconds=4.86, latency={"e2el": replace(seen.latency["e2el"], p50=1.0, p99=1.5)})
    full = replace(seen, completed=32, duration_seconds=8.42)
    steps = [
        Step(StepPlan(count, rate, 1), 0.0, 1.0, entry, None, "n/a")
        for count, rate, entry in ((4, 1.0, slow), (8, 2.0, quick), (32, 8.0, full))
    ]
    content = run.document(run_facts(), steps, False, "a")
    assert [step["saturated"] for step in content["steps"]] == [False, False, True]


def test_no_secret_of_a_command_line_reaches_a_run() -> None:
    leaky = replace(ENGINE, arguments=("--max-num-seqs", "4", "--api-key", "sk-1", "--hf-token=hf-2", "--enforce-eager", "sk-3"))
    text = json.dumps(facts.deployment_facts(replace(TP, engines=(leaky,), healthy=(leaky,)), None))
    assert "sk-1" not in text
    assert "hf-2" not in text
    engine = json.loads(text)["engines"][0]
    assert engine["arguments"]["--max-num-seqs"] == "4"
    assert engine["other_arguments"] == ["--api-key", "--hf-token"]


def test_a_switch_takes_no_word_behind_it() -> None:
    told, others = facts.told_arguments(["--enforce-eager", "--max-num-seqs=2", "stray", "--port", "1"])
    assert (told, others) == ({"--enforce-eager": "", "--max-num-seqs": "2"}, [])


def test_versions_come_from_metadata_and_a_simulated_driver_is_called_so(tmp_path: Path) -> None:
    site = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("vllm-0.32.0+cpu.dist-info", "torch-2.13.0.dist-info", "torchx-1.dist-info", "unknown-1.dist-info"):
        (site / name).mkdir(parents=True)
    plan = replace(TP, environment=tmp_path)
    assert facts.installed(tmp_path) == {"vllm": "0.32.0+cpu", "torch": "2.13.0"}
    assert facts.versions(plan, "580.95.05", simulated=True)["driver"] == "simulated"
    assert facts.versions(plan, "580.95.05", simulated=False)["driver"] == "580.95.05"
    assert "driver" not in facts.versions(plan, "", simulated=False)


def test_the_machine_is_told_without_its_name(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: A Processor @ 2 GHz\n")
    (tmp_path / "meminfo").write_text("MemTotal:       1024 kB\n")
    found = facts.machine(tmp_path)
    assert (found["processor"], found["memory_bytes"]) == ("A Processor @ 2 GHz", 1024 * 1024)
    assert set(facts.machine(tmp_path / "nowhere")) == {"system", "architecture", "cores"}
