"""`poise exporter`: wires sources, checks, pages and server together, and leaves within two seconds when told to.

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
from pathlib import Path

from poise.exporter import logs, setting_flags, setting_values, settings
from poise.exporter.assemble import Assembler, Published
from poise.exporter.checks.runner import Runner
from poise.exporter.engines.source import EngineSource
from poise.exporter.expected import expected_gpus
from poise.exporter.exposition import Build, Exposition, library_collectors
from poise.exporter.nvml import registry
from poise.exporter.nvml.sampler import Sampler
from poise.exporter.pages import Pages
from poise.exporter.server import HttpServer, ListenError
from poise.exporter.settings import ExporterSettings, SettingsError
from poise.exporter.version import installed_version

logger = logging.getLogger(__name__)

#: Exit codes: a setting or address is wrong; the same as for any failed action.
FAILED = 1
LEAVE_SIGNALS = (signal.SIGTERM, signal.SIGINT)
#: The whole of leaving is done in two seconds; each part gets its share of them.
JOIN_SECONDS = 0.5
#: How long the start waits for the first snapshot before it says what was found so far.
FIRST_SNAPSHOT_SECONDS = 3.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `poise exporter`."""
    setting_flags.add_arguments(parser, registry.SWITCHES)


def run(arguments: argparse.Namespace) -> int:
    """Serves until SIGTERM or SIGINT. 0 after such an end, 1 when a setting or the address is wrong."""
    try:
        chosen = settings.load(arguments, os.environ, registry.SWITCHES)
        host, port = setting_values.parse_listen(chosen.listen)
    except SettingsError as error:
        print(f"poise: {error}", file=sys.stderr)
        return FAILED
    logs.set_up(chosen.log_level, chosen.log_format)
    exporter = Exporter(chosen)
    try:
        server = HttpServer(host, port, exporter.pages)
    except ListenError as error:
        print(f"poise: {error}", file=sys.stderr)
        return FAILED
    # Blocked before any thread starts, so that no thread takes them, and waited for: a handler would run only once the main thread wakes,
    # which a signal that the kernel hands to another thread does not do.
    # SIGHUP keeps its usual effect, the end of the process: the exporter has nothing that can be read again while it runs.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEAVE_SIGNALS)
    try:
        logger.info("poise exporter %s on http://%s:%d/metrics", installed_version(), _shown_host(server), server.server_port)
        exporter.start()
        server.serve_in_background()
        signal.sigwait(LEAVE_SIGNALS)
        logger.info("leaving")
        clean = exporter.stop()
        server.shutdown()
        server.server_close()
        if not clean:
            _leave_hard()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return 0


def _shown_host(server: HttpServer) -> str:
    host = str(server.server_address[0])
    return f"[{host}]" if ":" in host else host


def _leave_hard() -> None:
    """Ends the process at once, because a thread is stuck in the driver.

    Python's own end does not wait for daemon threads, but it runs the C library's exit handlers, and those of libnvidia-ml take locks that
    the stuck thread may hold. All that can be lost is output, so that is flushed first.
    """
    logger.warning("a card hangs in the driver; leaving without it")
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class Exporter:
    """All parts but the server, wired."""

    def __init__(self, chosen: ExporterSettings) -> None:
        node = socket.gethostname()
        self._sampler = Sampler(registry.enabled(chosen.collectors, defaults=not chosen.disable_default_collectors), chosen.interval)
        self._engines = EngineSource(node, chosen.engines, discover=chosen.discover, interval=chosen.engine_interval)
        self._assembler = Assembler(
            self._sampler,
            self._engines,
            Runner(),
            node=node,
            kernel=platform.release(),
            interval=chosen.interval,
            title_of=self._engines.title_of,
            expected=lambda: expected_gpus(chosen.expected_gpus, Path("/")),
        )
        exposition = Exposition(Build(installed_version(), platform.python_version()), library_collectors())
        self.pages = Pages(self._assembler.latest, exposition, installed_version())

    def start(self) -> None:
        """Starts all background threads; waits for none."""
        self._sampler.start()
        self._engines.start()
        self._assembler.start()
        threading.Thread(target=self._say_what_was_found, name="hello", daemon=True).start()

    def stop(self) -> bool:
        """Tells all threads to leave and gives them a moment; whether none is stuck."""
        began = time.monotonic()
        self._assembler.stop()
        self._sampler.stop()
        self._engines.stop()
        self._assembler.join(JOIN_SECONDS)
        clean = self._sampler.join(JOIN_SECONDS)
        logger.debug("left in %.2f s", time.monotonic() - began)
        return clean

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
