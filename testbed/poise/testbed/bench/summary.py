"""A run in a few lines for a person, and a list of runs. Pure: a run's content in, text out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from poise.exporter.logs import visible
from poise.testbed.bench import run

LATENCIES = {"ttft": "TTFT", "itl": "ITL", "tpot": "TPOT", "e2el": "end to end"}
# Said wherever figures of simulated cards are shown.
SHAPE_NOT_SPEED = "simulated cards and a tiny model on CPUs: the figures show shape, not speed"


def summary(content: Mapping[str, Any]) -> str:
    """Several lines: what was sent, what the client saw, what the cards did."""
    deployment, profile = content["deployment"], content["profile"]
    lines = [
        f"{profile['name']} on {deployment['shape']} ({deployment['model']}, {cards_word(deployment['gpus'])}): {profile['arrival']}"
        + (" — interrupted, whole steps only" if content["interrupted"] else "")
    ]
    if content["simulated"]:
        lines.append(f"note         {SHAPE_NOT_SPEED}")
    if deployment["fault"]:
        lines.append(f"fault        {deployment['fault']} was in force")
    step = run.headline(content)
    if len(content["steps"]) > 1:
        lines += [_curve_line(entry) for entry in content["steps"]]
        lines.append(f"the step with most output tokens/s ({step['rate']:g} requests/s):")
    lines += _client_lines(step["client"], content["slo_milliseconds"])
    lines += _observed_lines(step)
    return "\n".join(map(visible, lines))


def cards_word(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _curve_line(step: Mapping[str, Any]) -> str:
    client = step["client"]
    ends = f"TTFT p50 {_ms(client, 'ttft', 'p50')}, end to end p99 {_ms(client, 'e2el', 'p99')}"
    full = ", saturated" if step["saturated"] else ""
    return f"{step['rate']:>6g} /s     {client['output_tokens_per_second']:.1f} output tokens/s, {ends}{full}"


def _client_lines(client: Mapping[str, Any], slo: Mapping[str, float]) -> list[str]:
    lines = [
        f"requests     {client['completed']} in {client['duration_seconds']:.1f} s, {client['failed']} failed",
        f"throughput   {client['output_tokens_per_second']:.1f} output tokens/s, {client['total_tokens_per_second']:.1f} tokens/s with the prompts, "
        f"{client['requests_per_second']:.2f} requests/s",
    ]
    if "goodput" in client:
        limits = ", ".join(f"{LATENCIES.get(name, name)} ≤ {limit:g} ms" for name, limit in slo.items())
        lines.append(f"goodput      {client['goodput']:.2f} requests/s within {limits}")
    for name, words in LATENCIES.items():
        if name in client["latency"]:
            shares = ", ".join(f"{share} {_ms(client, name, share)}" for share in ("mean", "p50", "p90", "p95", "p99"))
            lines.append(f"{words:<12} {shares}")
    return lines + [f"failed       {count} × {reason}" for reason, count in client["errors"].items()]


def _observed_lines(step: Mapping[str, Any]) -> list[str]:
    observed = step["observed"]
    if observed is None:
        return [f"cards        n/a: {step['unobserved']}"]
    lines = []
    for card in observed["cards"]:
        rank = "".join(f" {kind} {card[key]}" for kind, key in (("TP", "tp_rank"), ("PP", "pp_rank"), ("DP", "dp_rank")) if card[key])
        place = f"{card['engine']}{rank}" if card["use"] == "own" else f"seen by {card['engine']}, not used"
        lines.append(
            f"GPU {card['gpu']:<8} utilization {percent(card.get('utilization'))}, {watts(card.get('power_watts'))}: {place} ({card['role']})"
        )
    if len(observed["roles"]) > 1:
        lines.append("roles        " + ", ".join(f"{role['role']} {percent(role.get('utilization'))}" for role in observed["roles"]))
    lines.append(f"skew         {percent(observed['skew']) if 'skew' in observed else 'n/a (one card a group, or idle)'}")
    if "nvlink_bytes_per_token" in observed:
        lines.append(f"NVLink       {observed['nvlink_bytes_per_token']:.0f} bytes per token")
    if "joules_per_output_token" in observed:
        lines.append(f"energy       {observed['joules_per_output_token']:.2f} J per output token")
    transfer = observed.get("kv_transfer")
    if transfer and transfer["transfers"]:
        each = f", {transfer['bytes'] / transfer['transfers'] / 1e6:.2f} MB" if "bytes" in transfer else ""
        took = f", {transfer['seconds'] / transfer['transfers'] * 1000:.1f} ms each" if "seconds" in transfer else ""
        lines.append(f"KV transfer  {transfer['transfers']:.0f} transfers{each}{took}, {transfer.get('failures', 0):.0f} failed")
    if not observed["settled"]:
        lines.append("note         the exporter's counters did not reach what the client counted")
    return lines


def percent(share: float | None) -> str:
    return "n/a" if share is None else f"{share * 100:.0f} %"


def watts(power: float | None) -> str:
    return "power n/a" if power is None else f"{power:.0f} W"


def _ms(client: Mapping[str, Any], name: str, share: str) -> str:
    found = client["latency"].get(name)
    return "n/a" if found is None else f"{found[share] * 1000:.1f} ms"


def listing(runs: Sequence[tuple[Path, Mapping[str, Any]]]) -> str:
    """One line for each run."""
    rows = [("RUN", "BEGAN (UTC)", "SHAPE", "PROFILE", "REQUESTS", "TOKENS/S", "TTFT P50", "WORKLOAD")]
    for _, content in runs:
        client = run.headline(content)["client"]
        mark = " interrupted" if content["interrupted"] else ""
        rows.append(
            (
                visible(content["id"]),
                time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(content["began"])),
                visible(content["deployment"]["shape"]),
                visible(content["profile"]["name"]) + mark,
                f"{client['completed']}",
                f"{client['output_tokens_per_second']:.1f}",
                _ms(client, "ttft", "p50"),
                content["workload"]["sha256"][:12],
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
