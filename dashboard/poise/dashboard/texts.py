"""Every word that the pages show of their own, in one place, so that another language is another `Texts`.

Sentences of checks come from the exporter and are not here. Knows no numbers and no layout. Placeholders are str.format fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Texts:
    """The texts of one language; the defaults are English."""

    language: str = "en"

    # ---- the frame
    overview: str = "Overview"
    node: str = "Node"
    skip_to_content: str = "Skip to content"
    waiting_for_exporter: str = "Waiting for the exporter"
    no_javascript: str = "Without JavaScript this page reloads every 10 seconds."
    connection_lost: str = "No connection to Poise. What you see is old."
    as_of: str = "as of {time}"
    json_twin: str = "This page as JSON"
    own_metrics: str = "Metrics of this process"
    runbooks: str = "Runbooks"
    simulated_title: str = "Simulated cards"
    simulated_text: str = "The GPUs on this page are simulated: their numbers come from no real card."
    sources: str = "Sources"
    exporter: str = "exporter"
    stale_title: str = "Old data"
    stale_text: str = "The exporter has not answered for {age}. What follows is what it said last, at {time}."

    # ---- freshness words and what they mean
    freshness: Mapping[str, str] = field(
        default_factory=lambda: {
            "live": "live",
            "late": "late",
            "stale": "stale",
            "down": "down",
            "loading": "loading",
            "waiting": "waiting",
            "unknown": "not asked",
        }
    )
    source_live: str = "answered {age} ago in {duration}"
    source_old: str = "last answer {age} ago"
    source_failed: str = "last answer {age} ago; now: {error}"
    source_never: str = "no answer yet: {error}"
    source_first: str = "no answer yet"
    snapshot_old: str = "answers, but its newest reading of the node is {age} old"
    engine_live: str = "its metrics page answered in {duration}"
    engine_live_plain: str = "its metrics page answers"
    engine_loading: str = "its process runs; its metrics page does not answer yet"
    engine_silent: str = "its process runs; its metrics page does not answer"
    engine_without_address: str = "its process runs; it has no address here at which it could be asked"
    engine_gone: str = "its process is gone"
    engine_down: str = "its metrics page does not answer"

    # ---- verdict and checks
    states: Mapping[str, str] = field(
        default_factory=lambda: {"ok": "OK", "watch": "Watch", "problem": "Problem", "unknown": "Unknown"},
    )
    statuses: Mapping[str, str] = field(default_factory=lambda: {"pass": "pass", "fail": "fail", "unknown": "unknown"})
    verdict: str = "Verdict"
    verdict_waiting: str = "Nothing is known yet: the exporter has not answered."
    verdict_no_checks: str = "No verdict: the exporter's checks cannot be read ({error})."
    verdict_old: str = "No verdict: the exporter's checks are {age} old."
    cause: str = "Cause"
    fix: str = "Fix"
    evidence: str = "Evidence"
    since: str = "since"
    checks: str = "Checks"
    checks_counts: str = "{failed} fail · {unknown} unknown · {passed} pass"
    no_checks: str = "No checks have run."

    # ---- progress
    progress: str = "Progress"
    steps: Mapping[str, str] = field(
        default_factory=lambda: {"waiting": "waiting", "running": "running", "done": "done", "failed": "failed"},
    )
    progress_quiet: str = "no news for {age}"

    # ---- engines
    deployment: str = "Deployment"
    engine: str = "Engine"
    no_engine: str = "No engine"
    no_engine_text: str = "Cards on which no engine has a process."
    engines_none: str = "No engine was found on this node."
    roles: Mapping[str, str] = field(
        default_factory=lambda: {"mixed": "mixed", "prefill": "prefill", "decode": "decode", "unknown": "role unknown"},
    )
    tensor_parallel: str = "TP"
    pipeline_parallel: str = "PP"
    data_parallel: str = "DP"
    ranks: str = "ranks"
    of: str = "{part} of {whole}"
    visible_used: str = "uses {used} of {visible} visible cards"
    vllm: str = "vLLM {version}"
    requests: str = "Requests"
    running_waiting: str = "{running} running · {waiting} waiting"
    ttft: str = "Time to first token"
    itl: str = "Inter-token latency"
    queue: str = "Queue time"
    prefill: str = "Prefill"
    decode: str = "Decode"
    kv_cache: str = "KV cache"
    preemptions: str = "Preemptions"
    p50: str = "p50"
    p95: str = "p95"
    per_second: str = "/s"
    tokens_per_second: str = "tok/s"
    in_15_minutes: str = "in 15 min"
    kv_capacity: str = "of {tokens} tokens"
    mean_60_seconds: str = "mean of 60 s"

    # ---- cards
    card: str = "Card"
    cards: str = "Cards"
    gpu: str = "GPU {index}"
    cuda: str = "cuda:{index}"
    rank: str = "Rank"
    busy: str = "Busy, 60 s"
    busy_long: str = "Share of time with a kernel running, mean of 60 s and range of its samples"
    minutes: str = "Last 5 min"
    memory: str = "Memory"
    power: str = "Power"
    temperature: str = "Temp."
    clock: str = "SM clock"
    nvlink: str = "NVLink TX / RX"
    process: str = "Process"
    own: str = "own"
    others: str = "other engines"
    foreign: str = "foreign"
    unattributed: str = "not attributed"
    free: str = "free"
    limit: str = "of {limit}"
    links_up: str = "{up} of {total} links up"
    no_links: str = "no links"
    idle: str = "idle"
    not_available: str = "n/a"
    clock_events: Mapping[str, str] = field(
        default_factory=lambda: {
            "gpu_idle": "idle",
            "applications_clocks": "application clocks",
            "sw_power_cap": "power cap",
            "hw_slowdown": "hardware slowdown",
            "sync_boost": "sync boost",
            "sw_thermal_slowdown": "thermal slowdown",
            "hw_thermal_slowdown": "hardware thermal slowdown",
            "hw_power_brake": "power brake",
            "display_clock": "display clock",
        }
    )
    card_states: Mapping[str, str] = field(
        default_factory=lambda: {"up": "up", "lost": "lost", "hangs": "hangs", "failed": "does not answer"},
    )
    card_down: Mapping[str, str] = field(
        default_factory=lambda: {
            "lost": "The driver has lost this card. It needs a reset or a reboot; see the XID in the kernel log.",
            "hangs": "The driver does not return from a call for this card. Everything else goes on being measured.",
            "failed": "The driver answers calls for this card with an error.",
        }
    )
    spark_label: str = "GPU {index}, share of time with a kernel running, last 5 minutes: {summary}"
    spark_range: str = "mean {mean}, lowest {low}, highest {high}"
    spark_none: str = "no data"

    # ---- why a number is missing (poise_gpu_unsupported_info, poise_engine_missing_info)
    reasons: Mapping[str, str] = field(
        default_factory=lambda: {
            "not_supported": "this card does not report it",
            "no_permission": "the exporter lacks the permission to read it",
            "function_not_found": "this driver is too old to report it",
            "gpu_lost": "the card is lost",
            "timeout": "the driver did not return in time",
            "error": "the driver answered with an error",
        }
    )
    why_no_scrape: str = "the exporter does not give it"
    why_too_early: str = "two readings are needed, and there is one so far"
    why_no_requests: str = "no request in the last 60 s"
    why_no_load: str = "nothing was generated in the last 60 s"
    why_engine_down: str = "the engine's metrics page does not answer"
    why_engine_loading: str = "the engine is loading"
    why_version: str = "this vLLM version does not report it"
    why_no_process: str = "no process is known on this card"
    why_no_events: str = "the driver names no reason that holds the clock down"
    observed: str = "of {count} observations in 60 s"


ENGLISH = Texts()
