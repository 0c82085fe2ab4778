"""The page docs/dialects.md: the table of engines/families.py for readers, and what of vLLM's page is unreliable or left out. Pure."""

from __future__ import annotations

from poise.exporter import metrics
from poise.exporter.engines import families
from poise.exporter.engines.families import Row, Version

INTRO = """\
# vLLM's names, version by version

Generated from `exporter/poise/exporter/engines/families.py` by `make docs`; do not edit. Read from vLLM {oldest} to {newest}; newer versions are read by
the newest rows. docs/engines.md says how a page is read, tests/captures/README.md how the pages came about that prove this table.

Of several rows for one series the one of the engine's version is taken; where the version is not known, the first whose family is there. Only one
of them is taken, so what vLLM exports under two names counts once. *Always*: the family is on the page of every engine of these versions, so that
`poise_engine_missing_info` names the series when it is not.

| series | vLLM's family | versions | always | to know |
| - | - | - | - | - |
"""

REST = """
`poise_engine_kv_cache_capacity_tokens` comes from labels of `vllm:cache_config_info` (V1: since 0.8.0): `kv_cache_size_tokens` since 0.24, before
that `num_gpu_blocks` × `block_size`. That product would be too high for hybrid models (vllm#42206), where the series is missing instead, and is too
low under context parallelism (vllm#40895), which a page does not tell. `poise_engine_http_requests_total` comes from `http_requests_total` (prometheus-fastapi-instrumentator).

## Not usable

While such a family is on the page, the series beside it are absent and in `poise_engine_missing_info`.

| family | series | why |
| - | - | - |
"""

END = """
## Unreliable

These are given and named in `poise_engine_missing_info`.

| series | when | why |
| - | - | - |
| `poise_engine_iteration_tokens` | several API servers (`--api-server-count`, since 0.9.1): the page has no `process_start_time_seconds` | each of them sees a part of a step's tokens (vllm/v1/metrics/loggers.py: "might be incorrect") |
| `poise_engine_kv_cache_usage_ratio` | several API servers before 0.11.1: series with a label `pid`; several replicas behind Ray's page | each writes its own last value and most are old; the highest is given |
| `poise_engine_sleeping` | several replicas behind Ray's page | 1 if any of them sleeps |

## Ways of writing

- Ray: `vllm_…`, `ray_vllm_…` and `ray_vllm:…` are read as `vllm:…`; replicas (`ReplicaId`, `WorkerId`) are added. Ray's agent tells no version, and writes a counter
  for the first time when it is not 0. Up to vLLM 0.20 its wrappers put the values of all `finished_reason`, `source` and `reason` under
  the last of them, no longer in 0.24.
- The Rust front end (`VLLM_USE_RUST_FRONTEND=1`) answers in OpenMetrics and lacks `cache_config_info`, `engine_sleep_state`, `num_requests_kv_fetch_by_stage`
  and `admission_rejections` in 0.33: those series are missing and named.
- `_created` series, histograms of request parameters, LoRA (`lora_requests_info`: a new series for each mix of adapters, its value a time; adapters'
  requests count under the base model), per-position acceptance, MFU estimates, multimodal cache and tiers of offloading are not read.
- V0's `model_forward_time_milliseconds`, `model_execute_time_milliseconds`, swapped requests and throughput gauges have no series of ours.
"""


def page() -> str:
    """docs/dialects.md."""
    versions = {"oldest": _version(families.OLDEST), "newest": _version(families.NEWEST)}
    rows = sorted(families.ROWS, key=lambda row: metrics.ALL.index(row.metric))
    unusable = [
        f"| `{item.family}` | {', '.join(f'`{metric.name}`' for metric in item.metrics)} | {item.why} |\n" for item in families.UNUSABLE
    ]
    return INTRO.format(**versions) + "".join(map(_line, rows)) + REST + "".join(unusable) + END


def _version(version: Version) -> str:
    return ".".join(map(str, version))


def _line(row: Row) -> str:
    """One row of the table."""
    selector = f'{{{row.only[0]}="{row.only[1]}"}}' if row.only else ""
    labels = ", ".join(f"`{theirs}` → `{ours}`" for theirs, ours in zip(row.labels, row.metric.labels, strict=False) if theirs != ours)
    notes = [
        labels,
        f"only {', '.join(f'`{value}`' for value in sorted(row.values))}" if row.values else "",
        f'`{row.metric.labels[0]}="{row.fixed[0]}"`' if row.fixed else "",
        "in blocks: × `block_size` of `cache_config_info`, missing where that is not told" if row.in_blocks else "",
        "only where the version is known" if row.needs_version else "",
        row.note,
    ]
    until = f", before {_version(row.until)}" if row.until else ""
    text = "; ".join(note for note in notes if note)
    always = "yes" if row.expected else ""
    return f"| `{row.metric.name}` | `{row.family}{selector}` | from {_version(row.since)}{until} | {always} | {text} |\n"
