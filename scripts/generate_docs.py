"""Writes the generated pages of docs/, or with --check says which of them no longer tell the truth."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from poise.alerts import docs as alert_docs
from poise.cli.main import SUBCOMMANDS, build_parser
from poise.exporter import metrics, settings
from poise.exporter.checks.runner import CHECKS
from poise.exporter.engines import documentation as engine_docs
from poise.exporter.metrics import LEADING_LABELS, Kind, Metric, Owner
from poise.exporter.nvml.xid_catalogue import CATALOGUE

DOCS = Path(__file__).resolve().parent.parent / "docs"

HEADINGS = {
    Owner.NODE: "Node and self",
    Owner.GPU: "Cards",
    Owner.ENGINE: "Engines, server level",
    Owner.WORK: "Engines, work level",
    Owner.ROUTER: "Routers",
}

METRICS_INTRO = """\
# Metrics

Generated from `exporter/poise/exporter/metrics.py` by `make docs`; do not edit.

Base units (bytes, seconds, joules, watts, hertz, celsius, ratio 0..1). A value that the driver or the engine did not give is an absent
series, never 0 and never NaN; `poise_gpu_unsupported_info` says why. A card that is lost or hangs keeps `poise_gpu_info`, `poise_gpu_up` 0,
the time of its last sample and its XIDs, and says `gpu_lost`, `timeout` or `error` for each series that it gave before. No series carries the host's
name: the scraper adds `instance`, and `poise_node_info` names the node. Work level means vLLM's own figures per data-parallel rank; `dp_rank` is vLLM's label `engine`,
`"0"` for a server without data parallelism.

Each histogram stands as `_bucket`, `_sum` and `_count`, its bounds exactly as the engine gives them.
"""


def metrics_page() -> str:
    """docs/metrics.md."""
    return METRICS_INTRO + "".join(_section(owner) for owner in Owner)


def _section(owner: Owner) -> str:
    leading = LEADING_LABELS[owner]
    labels = f"Labels: {', '.join(f'`{label}`' for label in leading)}, and those in the table.\n\n" if leading else ""
    rows = "".join(_row(metric) for metric in metrics.ALL if metric.owner is owner)
    return f"\n## {HEADINGS[owner]}\n\n{labels}| series | type | labels | meaning |\n| - | - | - | - |\n{rows}"


def _row(metric: Metric) -> str:
    kind = "info" if metric.name.endswith("_info") else str(metric.kind) if metric.kind is not Kind.HISTOGRAM else "histogram"
    return f"| `{metric.name}` | {kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.help.replace('|', '/')} |\n"


CONFIGURATION_INTRO = """\
# Configuration

Generated from the command line by `make docs`; do not edit.

Each layer replaces what the one before said: defaults, `poise.toml` (in the working directory, or `--config FILE`), variables, flags.
Keys of the exporter stand in the table `[exporter]`; an unknown key is an error that names it. A variable is `POISE_EXPORTER_` and the key in
capitals; `POISE_CONFIG` names the file, and `POISE_LOG_LEVEL` and `POISE_LOG_FORMAT` stand for the two that an exporter's log has. Durations
are `1s`, `500ms`, `1m30s`.

    # poise.toml
    [exporter]
    listen = "0.0.0.0:9747"
    expected_gpus = 8

    [[exporter.engines]]
    name = "qwen-prefill"
    url = "http://127.0.0.1:8100"
    deployment = "qwen-32b"
    role = "prefill"
    gpus = 2              # it is meant to use two cards of this node: then cards that it leaves are left on purpose

    [[exporter.engines]]                              # behind a proxy with a certificate and a token
    name = "qwen-decode"
    url = "https://gateway.example:8443/qwen"         # its page is https://gateway.example:8443/qwen/metrics
    ca_file = "/etc/poise/authority.pem"              # who signed its certificate; default: the system's authorities
    server_name = "qwen.internal"                     # the name that it has to carry; default: the URL's host
    cert_file = "/etc/poise/poise.pem"                # ours, where one is asked for
    key_file = "/etc/poise/poise.key"
    bearer_token_file = "/run/secrets/qwen-token"     # or bearer_token_env = "QWEN_TOKEN"

    [[exporter.engines]]
    name = "lab"
    url = "https://10.0.0.7:8000"
    insecure_skip_verify = true                       # any certificate will do
    username = "poise"
    password_file = "/run/secrets/lab-password"       # or password_env = "LAB_PASSWORD"

    [[exporter.routers]]
    name = "qwen-router"
    url = "http://127.0.0.1:30000"
    deployment = "qwen-32b"
    kind = "vllm-router"  # or production-stack, toy-proxy; as it answers when left out
    metrics = "http://127.0.0.1:29000"

    [exporter.collectors]
    codec = false

The same file has `[history]` and `[[target]]` ([history.md](history.md)), `[alerts]`, `[alerts.thresholds]` and `[[alertmanager]]` ([alerting.md](alerting.md)); their
variables begin with `POISE_HISTORY_` and `POISE_ALERTS_`. `POISE_STATE_DIR` is where history, alerts and token are kept.

Secrets stand in files or variables of their own, never in a setting, and are read with every request. A relative path is looked for beside
the file that it stands in; in a flag or a variable, from the working directory. docs/engines.md says more of certificates.

HTTP of the exporter: `/metrics`, `/checks` (the checklist as JSON), `/healthz` (the process lives), `/readyz` (there is a snapshot), `/`.
HTTP of the page: `/`, `/api/poise/v1/overview` (its JSON twin), `/events`, `/api/v1/…` (Prometheus' API), `/api/poise/v1/alerts…`, `…/silences`,
`…/acknowledgements`, `/metrics` (its own process), `/healthz`, `/readyz`.
On a loopback address both refuse a Host header that is not theirs. `/metrics?collect[]=NAME` and `exclude[]=NAME` choose among collectors. TLS, client
certificates and users (`--web.config.file`), every limit, and what SIGHUP reads again: docs/security.md.
"""


def configuration_page() -> str:
    """docs/configuration.md."""
    return CONFIGURATION_INTRO + "".join(_command_section(name) for name in SUBCOMMANDS)


def _command_section(name: str) -> str:
    parser = _subparser(build_parser(name), name)
    nested = _nested(parser)
    if not nested:
        return f"\n## poise {name}\n\n{parser.description}\n\n{_flags(parser, name)}"
    parts = [f"\n### poise {name} {action}\n\n{text[:1].upper()}{text[1:]}.\n\n{_flags(sub, '')}" for action, text, sub in nested]
    return f"\n## poise {name}\n\n{parser.description}\n" + "".join(parts)


def _subparser(parser: argparse.ArgumentParser, name: str) -> argparse.ArgumentParser:
    return next(sub for found, _text, sub in _nested(parser) if found == name)


def _nested(parser: argparse.ArgumentParser) -> list[tuple[str, str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            texts = {choice.dest: choice.help or "" for choice in action._choices_actions}
            return [(name, texts.get(name, ""), sub) for name, sub in action.choices.items()]
    return []


def _flags(parser: argparse.ArgumentParser, command: str) -> str:
    rows = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction) or action.help == argparse.SUPPRESS:
            continue
        names = ", ".join(f"`{option}`" for option in action.option_strings) or f"`{action.metavar or action.dest}`"
        value = f" `{action.metavar}`" if action.option_strings and isinstance(action.metavar, str) else ""
        choices = f" ({', '.join(map(str, action.choices))})" if action.choices and action.option_strings else ""
        key = f"`{action.dest}`" if command == "exporter" and action.dest in settings.field_names() and action.dest != "collectors" else ""
        text = (action.help or "").replace("|", "/") % {"default": action.default, "prog": parser.prog}
        rows.append(
            f"| {names}{value} | {key} | {text}{choices} |\n" if command == "exporter" else f"| {names}{value} | {text}{choices} |\n"
        )
    if not rows:
        return "No flags.\n"
    head = "| flag | key | meaning |\n| - | - | - |\n" if command == "exporter" else "| flag | meaning |\n| - | - |\n"
    return head + "".join(rows)


XID_INTRO = """\
# XIDs

Generated from `exporter/poise/exporter/nvml/xid_catalogue.py` by `make docs`; do not edit.

An XID is an error that the NVIDIA driver reports by number. `poise_gpu_xid_errors_total` counts them by card and code, and
`poise_gpu_xid_last_timestamp_seconds` tells when each came last. Both come from NVML's events and, where it may be read (`/dev/kmsg`, CAP_SYSLOG), from
the kernel log: an error that both tell counts once. Only what the kernel itself says there counts, not
what was written to `/dev/kmsg`. What stood in the kernel log before the exporter started has a time and no count. A
card that is lost keeps both series. NVSwitches' own errors (SXID) are written to the exporter's log.

Codes that are *fatal* stand at 0 from the start, so that `increase()` sees the first one. *Application*: the fault lies most often with the
program. Meaning and action are ours, after NVIDIA's public catalogue (docs.nvidia.com/deploy/xid-errors), which is the authority.

| XID | name | meaning | what to do | severity |
| -: | - | - | - | - |
"""


def xid_page() -> str:
    """docs/xid.md."""
    return XID_INTRO + "".join(
        f"| {xid.code} | {xid.name} | {xid.meaning} | {xid.action} | {xid.severity} |\n" for xid in CATALOGUE.values()
    )


def pages() -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and maker of every generated page."""
    yield "metrics.md", metrics_page
    yield "alerts.md", alert_docs.page
    yield "configuration.md", configuration_page
    yield "dialects.md", engine_docs.page
    yield "xid.md", xid_page


def missing_checks() -> list[str]:
    """Checks without a page of their own in docs/checks, which are written by hand."""
    return [name for name, _title, _function in CHECKS if not (DOCS / "checks" / f"{name}.md").exists()]


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    check = "--check" in arguments
    stale = []
    for name, make in pages():
        path, text = DOCS / name, make()
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{name}")
    if stale:
        print(f"docs: {', '.join(stale)} differ from the code; run `make docs` and commit the result", file=sys.stderr)
    missing = missing_checks()
    if missing:
        print(f"docs/checks has no page for: {', '.join(missing)}", file=sys.stderr)
    return 1 if stale or missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
