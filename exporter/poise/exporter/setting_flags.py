"""The flags of the exporter: their names, their help and where argparse puts what they say. What a value means is settings.py's."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from poise.exporter import access
from poise.exporter.settings import DEFAULT_ENGINE_INTERVAL, DEFAULT_INTERVAL, DEFAULT_LISTEN, LOG_FORMATS, LOG_LEVELS


class _SwitchCollector(argparse.Action):
    """Stores ``--collector.NAME`` and ``--no-collector.NAME`` in one dictionary."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        switches = dict(getattr(namespace, "collectors", None) or {})
        option = option_string or ""
        switches[option.rpartition("collector.")[2]] = not option.startswith("--no-")
        namespace.collectors = switches


def add_arguments(parser: argparse.ArgumentParser, collectors: Mapping[str, str], *, serves: bool = True) -> None:
    """Adds every flag of the exporter; without `serves`, for who only looks, those alone that say what is looked at. `collectors`: name → help of
    each collector that can be switched."""
    parser.add_argument("--config", metavar="FILE", help="configuration file (default: poise.toml here, if there is one)")
    if serves:
        parser.add_argument("--listen", metavar="HOST:PORT", help=f"where to serve; :PORT for IPv4 and IPv6 (default: {DEFAULT_LISTEN})")
    parser.add_argument("--interval", metavar="DURATION", help=f"how often each card is read (default: {DEFAULT_INTERVAL:g}s)")
    parser.add_argument(
        "--engine-interval", metavar="DURATION", help=f"how often each engine is asked (default: {DEFAULT_ENGINE_INTERVAL:g}s)"
    )
    parser.add_argument(
        "--engine",
        dest="engines",
        action="append",
        metavar="NAME=URL[,deployment=D][,role=R][,gpus=N][,KEY=VALUE]",
        help="an engine to watch besides those found on this node; role: mixed, prefill, decode; gpus: how many cards of this node it is "
        f"meant to use; further keys for TLS and login: {', '.join(access.KEYS)}; repeatable",
    )
    parser.add_argument(
        "--router",
        dest="routers",
        action="append",
        metavar="NAME=URL[,deployment=D][,kind=K][,metrics=URL]",
        help="a router to ask besides those found on this node; kind: vllm-router, production-stack, toy-proxy (default: as it answers); "
        "metrics: where its metrics page is, if elsewhere; repeatable",
    )
    parser.add_argument(
        "--no-discover", dest="discover", action="store_const", const=False, help="do not look for engines and routers in /proc"
    )
    parser.add_argument("--expected-gpus", metavar="N", help="cards that should be here (default: NVIDIA display controllers on PCI)")
    if serves:
        parser.add_argument(
            "--web.config.file",
            dest="web_config_file",
            metavar="FILE",
            help="TLS, client certificates and basic auth, in the format of Prometheus' exporters (default: none of them)",
        )
    parser.add_argument(
        "--interconnect-file",
        metavar="FILE",
        help="what `poise testbed interconnect` measured on this node (default: $POISE_STATE_DIR/interconnect.json, else "
        "~/.local/state/poise/interconnect.json)",
    )
    parser.add_argument("--log-level", choices=LOG_LEVELS, help="least level to log (default: info)")
    parser.add_argument("--log-format", choices=LOG_FORMATS, help="text or one JSON object per line (default: text)")
    group = parser.add_argument_group("collectors", "on unless their help says otherwise; switch one off with --no-collector.NAME")
    group.add_argument(
        "--collector.disable-defaults",
        dest="disable_default_collectors",
        action="store_const",
        const=True,
        help="run only the collectors that are switched on by name",
    )
    for name, text in collectors.items():
        group.add_argument(
            f"--collector.{name}", f"--no-collector.{name}", dest="collectors", action=_SwitchCollector, nargs=0, default=None, help=text
        )
