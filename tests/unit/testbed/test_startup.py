"""Phases of a start, from lines that vLLM 0.32 wrote."""

from __future__ import annotations

import pytest
from poise.testbed import startup

LOG = """\
(APIServer pid=11101) INFO 11-30 05:36:17 [utils.py:251] non-default args: {'model_tag': 'tiny', 'port': 50421}
(EngineCore pid=11412) INFO 11-30 05:36:43 [core.py:110] Initializing a V1 LLM engine (v0.32.0) with config: model='tiny'
(Worker pid=11421) INFO 11-30 05:36:59 [parallel_state.py:2350] rank 0 in world size 2 is assigned as DP rank 0, TP rank 0
(Worker_TP1 pid=11422) INFO 11-30 05:36:59 [cpu_model_runner.py:68] Starting to load model tiny...
(Worker_TP0 pid=11421) INFO 11-30 05:36:59 [default_loader.py:501] Loading weights took 0.02 seconds
(EngineCore pid=11412) INFO 11-30 05:37:00 [kv_cache_utils.py:2327] CPU KV cache size: 131,072 tokens
(EngineCore pid=11412) INFO 11-30 05:37:01 [core.py:402] init engine (profile, create kv cache, warmup model) took 0.80 s
INFO:     Application startup complete.
""".splitlines()


def test_each_line_of_a_real_log_moves_the_start_on() -> None:
    shares = []
    for count in range(1, len(LOG) + 1):
        phase = startup.latest_phase(LOG[:count])
        assert phase is not None
        shares.append(phase.share)
    assert shares == sorted(set(shares))
    assert shares[-1] < 1.0


@pytest.mark.parametrize("lines", [[], ["nothing that we know"]])
def test_before_the_first_phase_there_is_none(lines: list[str]) -> None:
    assert startup.latest_phase(lines) is None


def test_a_late_line_of_an_early_phase_does_not_move_it_back() -> None:
    phase = startup.latest_phase([LOG[5], LOG[3]])
    assert phase is not None
    assert phase.words == "making the KV cache"
