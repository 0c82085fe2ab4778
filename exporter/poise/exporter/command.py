"""`poise exporter`: wires sources, checks, pages and server together, reads its settings again on SIGHUP, and leaves within two seconds.

The one place that knows all parts. Flags are in setting_flags.py, what they mean in settings.py.
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import signal
import socket
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from poise.exporter import interconnect_results, logs, rdma, setting_flags, setting_values, settings
from poise.exporter.assemble import Assembler, Published
from poise.exporter.checks.runner import Runner
from poise.exporter.collect import Groups, groups_of
from poise.exporter.engines.source import EngineSource
from poise.exporter.expected import expected_gpus
from poise.exporter.exposition import Build, Exposition, library_collectors
from poise.exporter.interconnect_results import Kept
from poise.exporter.nvml import registry
from poise.exporter.nvml.kernel_log import KERNEL_LOG
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.pages import Pages
from poise.exporter.pid_namespace import own_pid_namespace
from poise.exporter.procfs import ProcFs
from poise.exporter.reload import Change, change
from poise.exporter.server import HttpServer, ListenError
from poise.exporter.settings import ExporterSettings, SettingsError
from poise.exporter.snapshot import RdmaPort
from poise.exporter.version import installed_version
from poise.exporter.watched import Watched
from poise.exporter.web.security import WebSecurity

logger = logging.getLogger(__name__)

#: Exit codes: something of ours broke; a setting or address is wrong, so that it could not be carried out (as every command of Poise has it).
FAILED, COULD_NOT = 1, 2
LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The whole of leaving is done in two seconds; each part gets its share of them.
JOIN_SECONDS = 0.5
#: How long the start waits for the first snapshot before it says what was found so far.
FIRST_SNAPSHOT_SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `poise exporter`."""
    setting_flags.add_arguments(parser, registry.SWITCHES)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT. 0 after such an end, 2 when a setting or the address is wrong, 1 when no thread can be started."""
    # From the first moment on, for it ends a process that does not take it. The others still end one whose settings are on a disk that hangs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        return _serve(arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(arguments: argparse.Namespace) -> int:
    try:
        chosen = settings.load(arguments, os.environ, registry.SWITCHES)
        host, port = setting_values.parse_listen(chosen.listen)
    except SettingsError as error:
        print(f"poise: {error}", file=sys.stderr)
        return COULD_NOT
    logs.set_up(chosen.log_level, chosen.log_format)
    exporter = Exporter(chosen)
    try:
        security = WebSecurity(Path(chosen.web_config_file)) if chosen.web_config_file else None
        server = HttpServer(host, port, exporter.pages, security=security)
    except (ListenError, SettingsError) as error:
        print(f"poise: {error}", file=sys.stderr)
        return COULD_NOT
    # Blocked before any thread starts, so that no thread takes them, and waited for: a handler would run only once the main thread wakes,
    # which a signal that the kernel hands to another thread does not do.
    signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE_SIGNALS)
    where = f"{server.scheme}://{setting_values.authority(str(server.server_address[0]), server.server_port)}/metrics"
    logger.info("poise exporter %s on %s", installed_version(), where)
    again = threading.Event()
    try:
        exporter.start()
        server.serve_in_background()
        # A thread of its own, so that a disk that hangs holds neither leaving nor anything else. Wishes that come while it reads are one.
        threading.Thread(target=_read_whenever, args=(again, arguments, exporter, security), name="settings", daemon=True).start()
    except RuntimeError as error:  # what threading says of it
        print(f"poise: {error}: raise the limit of processes (ulimit -u, TasksMax= of the service, pids of the container)", file=sys.stderr)
        _end(FAILED)  # some threads run already
    while signal.sigwait({*LEAVE_SIGNALS, signal.SIGHUP}) is signal.SIGHUP:
        again.set()
    logger.info("leaving")
    clean = exporter.stop()
    server.shutdown()
    server.server_close()
    if not clean:
        _leave_hard()
    return 0


def _read_whenever(again: threading.Event, arguments: argparse.Namespace, exporter: Exporter, security: WebSecurity | None) -> None:
    while again.wait():
        again.clear()
        try:
            _read_again(arguments, exporter, security)
        except Exception:
            logger.exception("reading the settings again failed; those from before stay in force")


def _read_again(arguments: argparse.Namespace, exporter: Exporter, security: WebSecurity | None) -> None:
    """On SIGHUP: takes over what can change while it runs. What is wrong is logged, and what was there before stays in force."""
    if security is not None:
        security.renew()
    try:
        wanted = settings.load(arguments, os.environ, registry.SWITCHES)
    except SettingsError as error:
        logger.error("exporter: %s; the settings from before stay in force", error)
        return
    changed = exporter.reload(wanted)
    logger.info(
        "exporter: settings were read again: %s", f"new {', '.join(changed.taken)}" if changed.taken else "nothing new that can change now"
    )
    if changed.left:
        logger.warning("not in force before a restart: %s", ", ".join(changed.left))


def _leave_hard() -> None:
    """Ends the process at once, because a thread is stuck in the driver.

    Python's own end does not wait for daemon threads, but it runs the C library's exit handlers, and those of libnvidia-ml take locks that
    the stuck thread may hold. All that can be lost is output, so that is flushed first.
    """
    logger.warning("a card hangs in the driver; leaving without it")
    _end(0)


def _end(code: int) -> NoReturn:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(code)


class Exporter:
    """All parts but the server, wired."""

    def __init__(self, chosen: ExporterSettings) -> None:
        node = socket.gethostname()
        self._chosen = chosen
        cards = registry.enabled(chosen.collectors, defaults=not chosen.disable_default_collectors)
        self._sampler = Sampler(cards, chosen.interval, kernel_log=KERNEL_LOG, pid_namespace=own_pid_namespace(ProcFs()))
        self._engines = EngineSource(
            node, chosen.engines, router_specs=chosen.routers, discover=chosen.discover, interval=chosen.engine_interval
        )
        self._rdma: Watched[tuple[RdmaPort, ...] | None] = Watched(
            lambda: rdma.read_ports(Path("/")), None, interval=rdma.INTERVAL, name="poise-rdma", what="the RDMA ports"
        )
        measured = Path(chosen.interconnect_file) if chosen.interconnect_file else interconnect_results.standard_path(os.environ)
        self._interconnect = Watched(
            lambda: replace(interconnect_results.read(measured), boot_id=ProcFs().boot_id()),
            Kept(),
            interval=interconnect_results.INTERVAL,
            name="poise-interconnect",
            what="the measurement of the interconnect",
        )
        self._assembler = Assembler(
            self._sampler,
            self._engines,
            Runner(),
            node=node,
            kernel=platform.release(),
            interval=chosen.interval,
            title_of=self._engines.title_of,
            rdma=self._rdma.latest,
            interconnect=self._interconnect.latest,
            expected=lambda: expected_gpus(self._chosen.expected_gpus, Path("/")),
            view_limits=self._engines.view_limits,
        )
        exposition = Exposition(Build(installed_version(), platform.python_version()), library_collectors())
        groups = Groups(
            groups_of({collector.name: collector.metrics for collector in cards}),
            (collector.name for collector in registry.ALL if collector not in cards),
        )
        self.pages = Pages(self._assembler.latest, exposition, installed_version(), groups=groups)

    def start(self) -> None:
        """Starts all background threads; waits for none."""
        self._sampler.start()
        self._engines.start()
        self._rdma.start()
        self._interconnect.start()
        self._assembler.start()
        for limit in self._engines.view_limits or ():
            logger.warning("Poise does not see everything: %s; %s", limit.sentence, limit.fix)
        threading.Thread(target=self._say_what_was_found, name="hello", daemon=True).start()

    def stop(self) -> bool:
        """Tells all threads to leave and gives them a moment; whether none is stuck."""
        began = time.monotonic()
        self._assembler.stop()
        self._sampler.stop()
        self._engines.stop()
        self._rdma.stop()
        self._interconnect.stop()
        self._assembler.join(JOIN_SECONDS)
        clean = self._sampler.join(JOIN_SECONDS)
        logger.debug("left in %.2f s", time.monotonic() - began)
        return clean

    def reload(self, wanted: ExporterSettings) -> Change:
        """Takes over what of `wanted` can change while this runs: no counter falls and no identity that was published changes."""
        changed = change(self._chosen, wanted)
        self._chosen = changed.settings
        if "expected_gpus" in changed.taken:
            self._assembler.forget_expected()
        if {"log_level", "log_format"} & set(changed.taken):
            logs.set_up(self._chosen.log_level, self._chosen.log_format)
        if {"engines", "routers"} & set(changed.taken):
            self._engines.replace_specs(self._chosen.engines, self._chosen.routers)
        return changed

    def latest(self) -> Published | None:
        """What was published last."""
        return self._assembler.latest()

    def _say_what_was_found(self) -> None:
        """Logs once, shortly after the start, how many cards and engines there are."""
        if not self._assembler.wait(FIRST_SNAPSHOT_SECONDS):
            logger.warning("no snapshot after %g s", FIRST_SNAPSHOT_SECONDS)
            return
        published = self._assembler.latest()
        assert published is not None
        snapshot = published.snapshot
        expected = "unknown" if snapshot.gpus_expected is None else snapshot.gpus_expected
        logger.info("cards: %d (expected %s), engines: %d so far", len(snapshot.gpus), expected, len(snapshot.engines))
