"""A run in a few lines for a person."""

from __future__ import annotations

from pathlib import Path

from poise.testbed.bench import run, summary

from tests.unit.testbed.bench.runs import chat_step, document, run_facts


def test_a_summary_says_what_was_sent_what_came_and_what_the_cards_did() -> None:
    lines = summary.summary(document()).splitlines()
    assert lines[0] == "chat on tp (tiny-qwen2, 2 GPUs): 8 clients"
    assert lines[1] == "note         simulated cards and a tiny model on CPUs: the figures show shape, not speed"
    assert "requests     64 in 19.6 s, 0 failed" in lines
    assert "throughput   163.9 output tokens/s, 472.8 tokens/s with the prompts, 3.26 requests/s" in lines
    assert "TTFT         mean 211.3 ms, p50 144.7 ms, p90 586.1 ms, p95 699.2 ms, p99 700.8 ms" in lines
    assert any(line.startswith("GPU 1 ") and line.endswith(": server TP 1 (mixed)") for line in lines)
    assert "NVLink       9089 bytes per token" in lines


def test_what_is_special_about_a_run_is_said() -> None:
    content = document()
    content["interrupted"] = True
    content["deployment"]["fault"] = "one-card"
    content["steps"][0] |= {"observed": None, "unobserved": "no exporter"}
    content["steps"][0]["client"]["errors"] = {"Bad Request": 3}
    text = summary.summary(content)
    assert "interrupted, whole steps only" in text
    assert "fault        one-card was in force" in text
    assert "cards        n/a: no exporter" in text
    assert "failed       3 × Bad Request" in text


def test_prefill_and_decode_are_told_apart_and_transfers_are_there() -> None:
    content = document()
    observed = content["steps"][0]["observed"]
    observed["roles"] = [{"role": "prefill", "cards": 1, "utilization": 0.2}, {"role": "decode", "cards": 1}]
    observed["kv_transfer"] = {"transfers": 64, "bytes": 64 * 262_144, "seconds": 0.64, "failures": 1}
    observed["settled"] = False
    text = summary.summary(content)
    assert "roles        prefill 20 %, decode n/a" in text
    assert "KV transfer  64 transfers, 0.26 MB, 10.0 ms each, 1 failed" in text
    assert "did not reach what the client counted" in text


def test_a_ramp_has_a_line_for_each_step() -> None:
    content = document()
    step = content["steps"][0]
    content["steps"] = [{**step, "rate": 1.0, "saturated": False}, {**step, "rate": 2.0, "saturated": True}]
    text = summary.summary(content)
    assert "     1 /s     163.9 output tokens/s, TTFT p50 144.7 ms, end to end p99 3664.4 ms\n" in text
    assert "end to end p99 3664.4 ms, saturated" in text


def test_runs_are_listed_with_their_workload(tmp_path: Path) -> None:
    path, content = run.save(tmp_path, run_facts(), [chat_step()], False)
    head, line = summary.listing([(path, content)]).splitlines()
    assert head.split()[0] == "RUN"
    assert content["id"] in line
    assert content["workload"]["sha256"][:12] in line
    assert "163.9" in line
