"""How a comparison is written down: Markdown for people, JSON for machines. Pure: a comparison in, text and values out."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from poise.exporter.logs import visible
from poise.testbed import shapes
from poise.testbed.bench import profile
from poise.testbed.bench.summary import SHAPE_NOT_SPEED, percent
from poise.testbed.comparison import markdown
from poise.testbed.comparison.markdown import plain_text
from poise.testbed.comparison.statistics import Estimate
from poise.testbed.comparison.table import Comparison, Row

SCHEMA_VERSION = 1
UNKNOWN = "n/a"
MEASURES = {
    "output_tokens_per_second": "output tokens/s (95 % intervals of the mean over repetitions must not overlap)",
    "e2e_p50": "median end-to-end latency, because the rate of requests is given (95 % intervals must not overlap)",
}
# GiB in a byte count.
GIB = 1 << 30


def as_dict(comparison: Comparison) -> dict[str, Any]:
    """For the JSON file: every figure of the table, with units in the names of the keys; latencies in seconds."""
    value = asdict(comparison)
    value["schema_version"] = SCHEMA_VERSION
    value["note"] = note(comparison)
    for row, entry in zip(comparison.rows, value["rows"], strict=True):
        entry["latency"] = {}
        for (name, share), figure in row.latency.items():
            entry["latency"].setdefault(name, {})[share] = {**asdict(figure), "spread": figure.spread}
        for name in ("requests_per_second", "output_tokens_per_second", "tokens_per_second_per_gpu"):
            entry[name]["spread"] = getattr(row, name).spread
    return value


def note(comparison: Comparison) -> str | None:
    """What has to be said before any figure: None on real cards."""
    return f"On {SHAPE_NOT_SPEED}. Two ranks share the cores that one would have alone." if comparison.simulated else None


def page(comparison: Comparison, plot: str | None = None) -> str:
    """The page: what it was measured on, the command that measures it again, the table; `plot` is the path of its picture."""
    said = note(comparison)
    parts = ["# Comparison\n", f"**{said}**\n" if said else "", _setting(comparison), markdown.code(command(comparison))]
    parts.append(_main_table(comparison))
    parts.append(_usage_table(comparison))
    if any(row.curve for row in comparison.rows):
        parts.append(_curve_table(comparison))
    parts.append(_legend(comparison))
    if plot:
        parts.append(markdown.picture(_alternative(comparison), plot))
    return "\n".join(part for part in parts if part)


def command(comparison: Comparison) -> str:
    """The command that measures the same again: what differs from the profile stands as options. A profile of one's own is a file; a
    deployment with a fault, or of one's own shape, is compared by its saved runs."""
    if any(row.fault or row.shape not in shapes.names() for row in comparison.rows):
        return runs_command([name for row in comparison.rows for name in row.runs])
    shipped = comparison.profile in profile.names()
    name = comparison.profile if shipped else f"{comparison.profile}.toml"
    compared = " ".join(row.shape for row in comparison.rows)
    words = f"poise testbed compare {compared} --profile {shlex.quote(name)} --repeat {len(comparison.seeds)}"
    if comparison.scale != comparison.build:
        words += f" --scale {comparison.scale}"
    if not shipped:
        return words
    usual, sent = profile.load(name, comparison.scale), comparison.workload
    prompts, arrival = sent["prompts"], sent["arrival"]
    if comparison.seeds[0] != usual.seed:
        words += f" --seed {comparison.seeds[0]}"
    for key in ("input_tokens", "output_tokens", "prefix_tokens", "spread"):
        if prompts[key] != getattr(usual.prompts, key):
            words += f" --{key.replace('_', '-')} {prompts[key]:g}"
    if arrival["concurrency"] != usual.arrival.concurrency:
        words += f" -c {arrival['concurrency']}"
    if tuple(arrival["rates"]) != usual.arrival.rates:
        words += "".join(f" --rate {rate:g}" for rate in arrival["rates"])
    if arrival["burstiness"] != usual.arrival.burstiness:
        words += f" --burstiness {arrival['burstiness']:g}"
    rates: tuple[float | None, ...] = usual.arrival.rates or (None,)
    same_steps = tuple(arrival["rates"]) == usual.arrival.rates
    if not same_steps or sent["requests"] != [profile.requests_of(usual, rate) for rate in rates]:
        words += f" --requests {sent['requests'][0]}"
    if sent["warmup_requests"] != usual.warmup_requests:
        words += f" --warmup {sent['warmup_requests']}"
    return words


def runs_command(names: Sequence[str], *options: str) -> str:
    """The command that compares saved runs again."""
    return f"poise testbed compare --runs {shlex.join([*names, *options])}"


def _setting(comparison: Comparison) -> str:
    machine, prompts = comparison.machine, comparison.workload["prompts"]
    memory = f", {machine['memory_bytes'] / GIB:.0f} GiB" if "memory_bytes" in machine else ""
    versions = plain_text(", ".join(f"{name} {version}" for name, version in comparison.versions.items()))
    spread = f" ± {prompts['spread'] * 100:.0f} %" if prompts["spread"] else ""
    prefix = f" behind a shared prefix of {prompts['prefix_tokens']}" if prompts["prefix_tokens"] else ""
    repetitions = max(len(row.runs) for row in comparison.rows)
    return (
        f"Profile {plain_text(comparison.profile)}: {plain_text(comparison.arrival)}, prompts of {prompts['input_tokens']}{spread} tokens{prefix}, "
        f"answers of {prompts['output_tokens']}{spread}; "
        f"{' + '.join(str(count) for count in comparison.workload['requests'])} requests after "
        f"{comparison.workload['warmup_requests']} for warm-up; {_times(repetitions)}, seeds {', '.join(map(str, comparison.seeds))}.\n"
        f"Model {plain_text(comparison.model)} on {plain_text(comparison.cards)}; "
        f"{plain_text(machine.get('processor', 'unknown processor'))}, "
        f"{machine.get('cores', '?')} cores{memory}; {versions}.\n"
    )


def _times(repetitions: int) -> str:
    return "measured once" if repetitions == 1 else f"{repetitions} repetitions"


def _main_table(comparison: Comparison) -> str:
    heads = ["shape", "GPUs", "req/s", "output tok/s", "tok/s per GPU", "spread"]
    heads += [f"{name} {share}" for name in ("TTFT", "ITL", "E2E") for share in ("p50", "p99")]
    heads.append("verdict")
    rows = [
        [
            row.shape,
            str(row.gpus),
            _interval(row.requests_per_second, 2),
            _interval(row.output_tokens_per_second, 0),
            f"{row.tokens_per_second_per_gpu.mean:.0f}",
            UNKNOWN if row.output_tokens_per_second.spread is None else percent(row.output_tokens_per_second.spread),
            *(_milliseconds(row, name, share) for name in ("ttft", "itl", "e2el") for share in ("p50", "p99")),
            UNKNOWN if row.verdict is None else row.verdict.words,
        ]
        for row in comparison.rows
    ]
    return markdown.table(heads, rows)


def _usage_table(comparison: Comparison) -> str:
    heads = ["shape", "utilization per card", "per role", "skew", "NVLink bytes per token", "J per output token", "failed"]
    rows = [
        [
            row.shape,
            ", ".join(f"GPU {card.gpu} ({_place(card.engine, card.rank)}) {percent(card.utilization)}" for card in row.cards) or UNKNOWN,
            ", ".join(f"{role} {percent(share)}" for role, share in row.roles.items()) or UNKNOWN,
            UNKNOWN if row.skew is None else percent(row.skew),
            UNKNOWN if row.nvlink_bytes_per_token is None else f"{row.nvlink_bytes_per_token:,.0f}",
            UNKNOWN if row.joules_per_output_token is None else f"{row.joules_per_output_token:.2f}",
            str(row.failed),
        ]
        for row in comparison.rows
    ]
    return markdown.table(heads, rows)


def _curve_table(comparison: Comparison) -> str:
    heads = ["shape", "asked req/s", "output tok/s", "TTFT p50", "E2E p50", "E2E p99", "saturated"]
    rows = [
        [
            row.shape,
            f"{point.rate:g}",
            f"{point.output_tokens_per_second:.0f}",
            *(UNKNOWN if value is None else f"{value * 1000:.0f} ms" for value in (point.ttft_p50, point.e2e_p50, point.e2e_p99)),
            "yes" if point.saturated else "no",
        ]
        for row in comparison.rows
        for point in row.curve
    ]
    return markdown.table(heads, rows)


def _legend(comparison: Comparison) -> str:
    lines = [
        "± is half the 95 % confidence interval of the mean over repetitions, spread the widest distance between two of them. Latencies are means over "
        "repetitions. Skew is 1 − min/max over the ranks of one group, n/a for groups of one card. "
        "NVLink bytes are those sent by all cards for each token of prompt or answer; on simulated cards they follow from the model's size "
        "(docs/testbed.md).",
        f"The verdict goes by {MEASURES[comparison.measure]}.",
    ]
    if all(row.verdict is None for row in comparison.rows):
        lines.append("There is no verdict: the shape `single` is not among the runs.")
    return "\n".join(lines) + "\n"


def _alternative(comparison: Comparison) -> str:
    """Text for who does not see the picture."""
    figures = ", ".join(f"{row.shape} {row.output_tokens_per_second.mean:.0f}" for row in comparison.rows)
    return f"Output tokens per second by shape: {figures}"


def _place(engine: str, rank: str) -> str:
    return f"{engine} {rank}" if rank else engine


def _interval(value: Estimate, digits: int) -> str:
    half = "" if value.high is None else f" ± {value.high - value.mean:.{digits}f}"
    return f"{value.mean:.{digits}f}{half}"


def _milliseconds(row: Row, name: str, share: str) -> str:
    found = row.latency.get((name, share))
    if found is None:
        return UNKNOWN
    milliseconds = found.mean * 1000
    digits = 0 if milliseconds >= 100 else 1 if milliseconds >= 1 else 3
    return f"{milliseconds:.{digits}f} ms"


def plain(comparison: Comparison) -> str:
    """The table for a terminal: the columns that fit, and the verdicts below."""
    said = note(comparison)
    heads = ["SHAPE", "GPUS", "REQ/S", "TOK/S", "TOK/S/GPU", "TTFT P50", "TTFT P99", "ITL P50", "E2E P50", "E2E P99", "SKEW"]
    rows = [
        [
            visible(row.shape),
            str(row.gpus),
            _interval(row.requests_per_second, 2),
            _interval(row.output_tokens_per_second, 0),
            f"{row.tokens_per_second_per_gpu.mean:.0f}",
            _milliseconds(row, "ttft", "p50"),
            _milliseconds(row, "ttft", "p99"),
            _milliseconds(row, "itl", "p50"),
            _milliseconds(row, "e2el", "p50"),
            _milliseconds(row, "e2el", "p99"),
            UNKNOWN if row.skew is None else percent(row.skew),
        ]
        for row in comparison.rows
    ]
    widths = [max(len(cells[column]) for cells in (heads, *rows)) for column in range(len(heads))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(cells, widths, strict=True)).rstrip() for cells in (heads, *rows)]
    verdicts = [f"{visible(row.shape):<{widths[0]}}  {_verdict_line(row)}" for row in comparison.rows]
    return "\n".join([*([said] if said else []), *lines, "", *verdicts])


def _verdict_line(row: Row) -> str:
    roles: Mapping[str, float | None] = row.roles
    shares = ", ".join(f"{role} {percent(share)}" for role, share in roles.items())
    cards = ", ".join(f"GPU {card.gpu} {percent(card.utilization)}" for card in row.cards)
    words = UNKNOWN if row.verdict is None else row.verdict.words
    return f"{words}; utilization {cards or UNKNOWN}" + (f" ({shares})" if len(roles) > 1 else "")
