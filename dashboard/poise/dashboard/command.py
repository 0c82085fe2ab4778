"""`poise up`: this machine's page. Reads the command line, binds the port, runs server, scraper and exporter, and ends them in two seconds.

The edge of the dashboard: signals, sockets, clocks and processes are here. Knows nothing of what pages show.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path

import uvicorn
from poise.alerts import settings as alert_settings
from poise.alerts.settings import AlertSettings
from poise.dashboard.app import create_app
from poise.dashboard.backend import Backend
from poise.dashboard.connections import BoundedConnection, Exhaustion, bounds, of_the_clients
from poise.dashboard.exporter_process import ExporterProcess
from poise.dashboard.flags import add_arguments, exporter_command
from poise.dashboard.live import Live
from poise.dashboard.observation import ExporterMode, ExporterStatus
from poise.dashboard.progress import ProgressFile
from poise.dashboard.reloading import Reloading
from poise.dashboard.security import allowed_hosts, is_loopback
from poise.exporter import logs, setting_flags
from poise.exporter import settings as exporter_settings
from poise.exporter.listening import refused
from poise.exporter.nvml import registry
from poise.exporter.settings import SettingsError
from poise.history import page_token
from poise.history import settings as history_settings
from poise.history.fetch import FetchError, address, fetch
from poise.history.own_limits import own_limit
from poise.history.promql.labels import labels
from poise.history.scrape import ACCEPT, PAGE_LIMIT
from poise.history.settings import HistorySettings
from poise.history.targets import DEFAULT_JOB, Target
from poise.history.threads import started

log = logging.getLogger("poise.up")

__all__ = ["add_arguments", "run"]

#: Seconds that an exporter which is there may take to show that it is one.
PROBE_TIMEOUT = 2.0
#: Seconds between two looks at an address where something else than an exporter answers, or nothing that can be started.
PROBE_AGAIN = 5.0
#: Seconds for everything to end; the promise is two.
SHUTDOWN = 1.8
#: Threads in which names are looked up and files are read. A resolver may hold one for half a minute.
HELPERS = 6
BROKE, COULD_NOT = 1, 2


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM. Returns 0 then, 2 when the page could not be served at all, 1 when something of ours broke."""
    logs.set_up(arguments.log_level or "info", arguments.log_format or "text")
    logging.getLogger("uvicorn").setLevel("WARNING")
    logging.getLogger("uvicorn.error").addFilter(of_the_clients)
    host, port = arguments.listen
    try:
        settings = _settings(arguments)
        _check_exporter(arguments)
    except SettingsError as error:
        print(f"poise up: {error}", file=sys.stderr)
        return COULD_NOT
    try:
        listener = _bind(host, port)
    except OSError as error:
        print(f"poise up: {refused(f'{host}:{port}', error, 'poise up')}", file=sys.stderr)
        return COULD_NOT
    with listener:
        try:
            return asyncio.run(_serve(arguments, settings, listener))
        except SettingsError as error:
            print(f"poise up: {error}", file=sys.stderr)
            return COULD_NOT
        except RuntimeError as error:
            if not own_limit(error):
                raise
            print(f"poise up: {own_limit(error)}", file=sys.stderr)
            return BROKE


def _settings(arguments: argparse.Namespace) -> tuple[HistorySettings, AlertSettings]:
    """Raises SettingsError."""
    return history_settings.load(arguments, os.environ), alert_settings.load(arguments, os.environ)


def _check_exporter(arguments: argparse.Namespace) -> None:
    """Reads what the exporter would read that is about to be started here, so that a mistake is said before anything runs.

    Raises:
        SettingsError: that exporter would not start.
    """
    where = address(arguments.exporter)
    if arguments.no_exporter or not is_loopback(where.host):
        return
    with contextlib.suppress(OSError), socket.create_connection((where.host, where.port), timeout=PROBE_TIMEOUT):
        return  # one is there already, with settings of its own
    parser = argparse.ArgumentParser(prog="poise up: exporter")
    setting_flags.add_arguments(parser, registry.SWITCHES)
    command = exporter_command(arguments)
    exporter_settings.load(parser.parse_args(command[command.index("exporter") + 1 :]), os.environ, registry.SWITCHES)


def _backend(arguments: argparse.Namespace, settings: tuple[HistorySettings, AlertSettings], page: str) -> Backend:
    """Raises SettingsError."""
    history, alerts = settings
    path = None if arguments.no_history else Path(history.path) if history.path else history_settings.default_path(os.environ)
    token = None if arguments.no_history else page_token.token_path(os.environ)
    return Backend(
        history,
        alerts,
        local=_local(arguments),
        path=path,
        page=page,
        token=lambda: page_token.opened(token),
        starts_exporter=not arguments.no_exporter and is_loopback(address(arguments.exporter).host),
    )


def _local(arguments: argparse.Namespace) -> Target:
    """The exporter of this machine as a target; under a name that means the same on every machine."""
    where = address(arguments.exporter)
    host = socket.gethostname() if is_loopback(where.host) else where.host
    name = f"{host}:{where.port}"
    return Target(
        name,
        where.url(where.path.rstrip("/") + "/metrics"),
        labels({"job": DEFAULT_JOB, "instance": name}),
        interval=arguments.scrape_interval,
        timeout=arguments.scrape_interval,
    )


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: it would wait for open event streams and raise the signal again at the end."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to `_serve`."""
        yield


async def _serve(arguments: argparse.Namespace, settings: tuple[HistorySettings, AlertSettings], listener: socket.socket) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(Exhaustion(time.monotonic))
    loop.set_default_executor(started(HELPERS, "poise-helper"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)

    host, port = listener.getsockname()[:2]
    page = f"http://{_reached(host)}:{port}{arguments.root_path}"
    backend = _backend(arguments, settings, page)
    live = Live(
        arguments.exporter,
        fetch=fetch,
        wall_clock=time.time,
        clock=time.monotonic,
        interval=arguments.scrape_interval,
        progress=ProgressFile(arguments.progress) if arguments.progress else None,
        keep=backend.take,
    )
    exporter = ExporterProcess(
        exporter_command(arguments), tell=live.set_exporter, clock=time.monotonic, stderr=getattr(sys.stderr, "buffer", None)
    )
    reloading = Reloading(lambda: _settings(arguments), backend.reload, exporter.read_again)
    loop.add_signal_handler(signal.SIGHUP, reloading.wish)
    # Who starts this process may have it kept back until here (`poise.cli.process`); what came meanwhile comes now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    backend.register(live.metrics.registry)
    app = create_app(
        live,
        root_path=arguments.root_path,
        allowed_hosts=allowed_hosts(host, arguments.allow_host),
        routers=backend.routers(),
        alert_page=backend.alert_page,
    )
    most, backlog = bounds(resource.getrlimit(resource.RLIMIT_NOFILE)[0], len(settings[0].targets))
    server = _Server(
        uvicorn.Config(
            app,
            http=BoundedConnection.at_most(most),
            backlog=backlog,
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
    log.info("page on http://%s:%d%s/", f"[{host}]" if ":" in host else host, port, arguments.root_path)
    if not is_loopback(host):
        log.warning("the page asks for no password: whoever reaches %s:%d can read it", host, port)

    tasks = {
        asyncio.create_task(server.serve(sockets=[listener]), name="server"),
        asyncio.create_task(live.run(), name="scraping"),
        asyncio.create_task(backend.run(), name="history and alerts"),
        asyncio.create_task(reloading.run(), name="reading again"),
        asyncio.create_task(_keep_exporter(arguments, live, exporter), name="exporter"),
    }
    stopped = asyncio.create_task(stop.wait())
    running = tasks | {stopped}
    while not stopped.done():
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        running -= done
        if any(task.exception() is not None or task.get_name() != "exporter" for task in done - {stopped}):
            break
    stopped.cancel()

    await live.close()
    server.should_exit = True
    for task in tasks:
        if task.get_name() != "server":
            task.cancel()
    _, hanging = await asyncio.wait(tasks, timeout=SHUTDOWN)
    for task in hanging:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    broken = [task for task in tasks if not task.cancelled() and task.exception() is not None]
    for task in broken:
        fault = task.exception()
        lacking = own_limit(fault) if fault is not None else ""
        log.error("%s broke%s", task.get_name(), f": {lacking}" if lacking else "", exc_info=None if lacking else fault)
    code = BROKE if broken else 0
    if threading.active_count() > 1:
        _leave_hard(code)
    return code


def _leave_hard(code: int) -> None:
    """Ends the process although threads are left: those in which asyncio looks up names, which it and Python would wait for, in a thread of its own.

    A resolver that does not answer takes half a minute to say so, and nothing can interrupt it. Everything else has ended by now, so all that
    can be lost is output.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _reached(host: str) -> str:
    """The host name in links: this machine's where the page listens on all addresses."""
    if host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


async def _keep_exporter(arguments: argparse.Namespace, live: Live, process: ExporterProcess) -> None:
    """Attach to the exporter at --exporter, or start one there and keep it running; whatever else is there, look again."""
    where = address(arguments.exporter)
    if arguments.no_exporter:
        log.info("waiting for an exporter at %s", arguments.exporter)
        return
    url = where.url(where.path.rstrip("/") + "/metrics")
    told = ""
    while True:
        try:
            page = await fetch(url, timeout=PROBE_TIMEOUT, limit=PAGE_LIMIT, accept=ACCEPT)
        except FetchError as error:
            if error.refused and is_loopback(where.host):
                await process.run()
                return
            words = f"{live.exporter_url}: {error}." + ("" if is_loopback(where.host) else " Start `poise exporter` on that host.")
            notice = words if is_loopback(where.host) else ""
        else:
            if b"poise_build_info" in page:
                log.info("attached to the exporter that runs at %s", live.exporter_url)
                await live.set_exporter(ExporterStatus(ExporterMode.ATTACHED))
                return
            words = notice = f"What answers at {live.exporter_url} is no Poise exporter. Choose another address with --exporter."
        if words != told:
            told = words
            log.warning("no exporter: %s", words)
            await live.set_exporter(ExporterStatus(ExporterMode.ATTACHED, notice))
        # What has the port now may leave it, and what hangs may come back.
        await asyncio.sleep(PROBE_AGAIN)


def _bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except BaseException:
        listener.close()
        raise
    return listener
