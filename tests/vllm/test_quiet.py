"""What Poise says of a real deployment that nobody asks anything: its counters stand, it is idle, and nothing is wrong with it."""

from __future__ import annotations

import os
import time

from poise.testbed import processes
from poise.testbed.deployment import Deployment

from tests.vllm.deploying import read, samples, total
from tests.vllm.watching import exporter_page, when
from tests.waiting import wait_until


def test_counters_equal_what_the_engines_own_page_says(tp: Deployment) -> None:
    own = read(f"{tp.engine().url}/metrics")

    def settled() -> bool:
        nonlocal own
        page, own = exporter_page(tp), read(f"{tp.engine().url}/metrics")
        return total(own, "vllm:num_requests_running") == 0 and total(page, "poise_engine_generation_tokens_total") == total(
            own, "vllm:generation_tokens_total"
        )

    wait_until(settled, "the exporter's next poll of an idle engine")
    page = exporter_page(tp)
    for ours, theirs in (
        ("poise_engine_generation_tokens_total", "vllm:generation_tokens_total"),
        ("poise_engine_prompt_tokens_total", "vllm:prompt_tokens_total"),
        ("poise_engine_requests_finished_total", "vllm:request_success_total"),
        ("poise_engine_preemptions_total", "vllm:num_preemptions_total"),
        ("poise_engine_time_to_first_token_seconds_count", "vllm:time_to_first_token_seconds_count"),
        ("poise_engine_time_to_first_token_seconds_sum", "vllm:time_to_first_token_seconds_sum"),
        ("poise_engine_inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_count"),
        ("poise_engine_e2e_latency_seconds_sum", "vllm:e2e_request_latency_seconds_sum"),
    ):
        assert total(page, ours) == total(own, theirs), ours
    (size,) = {value for labels, value in samples(page, "poise_engine_parallel_size") if labels["dimension"] == "tensor"}
    assert size == 2.0


def test_idle_deployment_is_idle_and_raises_nothing(tp: Deployment) -> None:
    page, _ = when(tp, lambda page: page if page["verdict"]["summary"].endswith("; idle") else None, "an idle verdict")
    assert {line["status"] for line in page["checks"]} == {"pass"}


def test_exporter_leaves_within_two_seconds_of_sigterm(tp: Deployment) -> None:
    record = tp.record("exporter")
    assert record is not None
    began = time.monotonic()
    os.kill(record.pid, 15)
    wait_until(lambda: not processes.is_alive(record.identity), "the exporter's end")
    assert time.monotonic() - began < 10, "two seconds are promised; ten say that it waits for something"
