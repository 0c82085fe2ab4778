"""A deployment of real vLLM servers on this machine: bring it up, look at it, change it, take it down.

Owns the order of things and the promise that nothing is left behind. What is run is in launch.py, how it is started in
spawning.py, what is shown on simulated cards in mirror.py.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from poise.testbed import (
    cards,
    claim,
    environment,
    launch,
    lock,
    model,
    ownership,
    plan,
    ports,
    processes,
    records,
    request,
    shared_memory,
    spawning,
    standing,
    startup,
    teardown,
    vllm_arguments,
    workers,
)
from poise.testbed.errors import TestbedError
from poise.testbed.keeper import KEEP
from poise.testbed.paths import StateLayout
from poise.testbed.plan import DeploymentPlan, EnginePlan, RouterPlan
from poise.testbed.planning import (
    STEP_CARDS,
    STEP_EXPORTER,
    STEP_INSTALL,
    STEP_MODEL,
    STEP_ROUTER,
    Request,
    look,
    make_plan,
    step_engine,
    step_names,
)
from poise.testbed.processes import wait_gone
from poise.testbed.progress import Progress
from poise.testbed.records import Record
from poise.testbed.workers import Worker

__all__ = ["Deployment", "Request", "step_engine", "step_names"]

# The CPU build with the tiny model is ready after 22 s on two idle cores and after minutes when many others want them (a
# server that ends is noticed at once). On GPUs a first start downloads and loads tens of gigabytes.
READY_SECONDS: Mapping[environment.Build, float] = {"cpu": 900.0, "gpu": 3600.0}
EXPORTER_READY_SECONDS = 60.0
FIRST_ANSWER_SECONDS = 300.0
LOCK_SECONDS = 5.0
# The keeper ends at a word; it may have to wait for a core.
KEEPER_END_SECONDS = 30.0
ROUTER_READY_SECONDS = 120.0
FIRST_PROMPT = "server token queue"


class Deployment:
    """A deployment that is up, in one state directory. Made by `up` or `open`.

    As a context manager it is taken down at the end. While a deployment that `up` made is neither released nor down, the end
    of this process takes it down, even kill -9 (keeper.py).
    """

    def __init__(self, layout: StateLayout, environ: Mapping[str, str], keeper_pipe: int | None = None) -> None:
        self.layout = layout
        self._environ = environ
        self._keeper_pipe = keeper_pipe
        self._changing = False

    # ---------------------------------------------------------------- coming to be

    @classmethod
    def open(cls, state_directory: Path, environ: Mapping[str, str] | None = None) -> Self:
        """The deployment that others brought up. Raises TestbedError when there is none."""
        layout = StateLayout(state_directory)
        plan.read(layout.plan)
        return cls(layout, os.environ if environ is None else environ)

    @classmethod
    def up(
        cls,
        wanted: Request,
        progress: Progress,
        environ: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda _: None,
        when_watched: Callable[[Self], None] = lambda _: None,
    ) -> Self:
        """Brings the deployment up and returns when every engine has answered a request.

        Behind a router they answer through it, together.
        What is asked for and whole already is returned as it is; what a killed launcher left of it is cleared first (standing.py).
        `when_watched` is called as soon as the exporter runs. Any exception takes everything down again.
        Raises TestbedError: ports taken, something else up, no compiler, no network, vLLM ended (with the end of its log).
        """
        vllm_arguments.check(wanted.arguments)
        layout = StateLayout(wanted.state_directory)
        claim.claim(layout)
        environ = os.environ if environ is None else environ
        with lock.held(layout.lock, f"poise testbed up {wanted.shape.name}", timeout=LOCK_SECONDS):
            if standing.whole(layout, wanted, lambda: look(environ)):
                say(f"shape {wanted.shape.name} is up already")
                return cls.open(layout.root, environ)
            deployment = cls(layout, environ)
            try:
                teardown.take_down(layout, say, lock_held=True)
                agreed = make_plan(wanted, look(environ), say)
                claim.make(layout)
                plan.write(layout.plan, agreed)
                deployment._keeper_pipe = start_keeper(layout, environ)
                deployment._bring_up(wanted, agreed, progress, when_watched)
            except BaseException:
                deployment._take_down(say, lock_held=True)
                raise
            return deployment

    def _bring_up(self, wanted: Request, agreed: DeploymentPlan, progress: Progress, when_watched: Callable[[Self], None]) -> None:
        if agreed.simulated_cards:
            with progress.step(STEP_CARDS) as note:
                cards.create(self.layout, agreed.simulated_cards, wanted.cache_directory, note)
                self.start_mirror()
                note(f"{agreed.simulated_cards} × {cards.profile(agreed.simulated_cards).product.name}")
        if agreed.exporter_port is not None:
            with progress.step(STEP_EXPORTER, f"http://{ports.LOOPBACK}:{agreed.exporter_port}/metrics") as note:
                self.start_exporter()
        when_watched(self)
        with progress.step(STEP_INSTALL) as note:
            environment.install(agreed.build, wanted.cache_directory, wanted.indexes, note, self._environ)
            note(f"{agreed.build} build in {agreed.environment}", fraction=1.0)
        if agreed.model == model.TINY:
            with progress.step(STEP_MODEL, "random weights, made here"):
                served = str(model.make_tiny(wanted.cache_directory / "models"))
        else:
            served = agreed.model
        # All at once: a start is mostly one process that imports, which leaves cores to the others.
        spawned = [(engine, self._spawn_engine(engine, served)) for engine in agreed.engines]
        for engine, record in spawned:
            self._wait_engine(engine, record, progress)
        if agreed.router is not None:
            self.start_router(progress)

    # ---------------------------------------------------------------- looking

    @property
    def plan(self) -> DeploymentPlan:
        """What the deployment is to be now (a fault changes it). Raises TestbedError when it was taken down."""
        return plan.read(self.layout.plan)

    def engine(self, name: str | None = None) -> EnginePlan:
        """One engine by name; the first when no name is given. Raises TestbedError for an unknown name."""
        engines = self.plan.engines
        for engine in engines:
            if name in (None, engine.name):
                return engine
        raise TestbedError(f"there is no engine {name!r}: choose from {', '.join(engine.name for engine in engines)}")

    def record(self, name: str) -> Record | None:
        """The record of a part, None when it was never started or has been ended."""
        return next((record for record in records.read_all(self.layout.records) if record.name == name), None)

    def workers(self, name: str | None = None) -> list[Worker]:
        """The worker processes of an engine by rank; empty while it loads or when it is dead."""
        engine = self.engine(name)
        record = self.record(engine.name)
        if record is None or not record.lives:
            return []
        stats = ownership.belonging(processes.all_stats(), self.layout)  # faults kill them, and anybody can edit a record
        return workers.workers_of(record.pid, engine.tensor_parallel_size, stats, pipeline_parallel_size=engine.pipeline_parallel_size)

    # ---------------------------------------------------------------- changing

    @contextlib.contextmanager
    def changing(self, purpose: str) -> Iterator[None]:
        """Nobody else changes the deployment while the body runs, which may call all that does: what it read of the plan stays true.

        Raises TestbedError when somebody else works on it.
        """
        if self._changing:
            yield
            return
        with lock.held(self.layout.lock, purpose, timeout=LOCK_SECONDS):
            self._changing = True
            try:
                yield
            finally:
                self._changing = False

    def start_mirror(self) -> Record:
        """Starts the mirror and returns when it shows the cards."""
        self.layout.mirror.unlink(missing_ok=True)  # what an earlier one showed is no word of this one
        record = spawning.spawn(self.layout, "mirror", "mirror", launch.mirror_command(self.layout), self._clean(), {})
        cards.wait_mirrored(self.layout)
        return record

    def restart_mirror(self) -> None:
        """Ends the mirror, if it lives, and starts it anew."""
        with self.changing("restarting the mirror"):
            teardown.end_processes(self.layout, ["mirror"])
            self.start_mirror()

    def start_exporter(self) -> Record:
        """Starts `poise exporter` on what this deployment has: the real cards, or the simulated ones."""
        current = self.plan
        if current.exporter_port is None:
            raise TestbedError("this deployment was brought up without an exporter")
        environ = self._clean()
        expected = None
        if current.simulated_cards:
            environ |= cards.library_environment(self.layout, current.environment.parent)
            expected = current.simulated_cards
        command = launch.exporter_command(current.exporter_port, expected)
        facts = {"url": f"http://{ports.LOOPBACK}:{current.exporter_port}"}
        record = spawning.spawn(self.layout, "exporter", "exporter", command, environ, facts)
        spawning.wait_http(self.layout, record, current.exporter_port, launch.EXPORTER_READY_PATH, EXPORTER_READY_SECONDS)
        return record

    def restart_exporter(self) -> None:
        """Ends the exporter and starts it anew, under the same port."""
        with self.changing("restarting the exporter"):
            teardown.end_processes(self.layout, ["exporter"])
            self.start_exporter()

    def restart_engine(self, changed: EnginePlan, fault: str | None, progress: Progress, through_router: bool = True) -> None:
        """Ends an engine and starts it as `changed` says, under the same name and port. `fault` is noted in the plan.

        Without `through_router` it is not waited for a request that goes through the router: it would not be answered.
        """
        with self.changing(f"restarting {changed.name}"):
            current = self.plan
            engines = tuple(changed if engine.name == changed.name else engine for engine in current.engines)
            plan.write(self.layout.plan, replace(current, engines=engines, fault=fault))
            teardown.end_processes(self.layout, [changed.name])
            self._wait_engine(changed, self._spawn_engine(changed, self._model_path()), progress)
            router = None if current.router is None else self.record(current.router.name)
            if through_router and current.router is not None and router is not None and router.lives:
                self._wait_router(current.router, progress)

    def kill(self, name: str) -> None:
        """Kills a part with all that it started; `record` still knows it. Raises TestbedError when it cannot be killed."""
        with self.changing(f"killing {name}"):
            teardown.kill(self.layout, name)

    def end(self, names: Sequence[str]) -> None:
        """Ends further processes that `spawn` started, with all that they started, and forgets them."""
        with self.changing(f"ending {', '.join(names)}"):
            teardown.end_processes(self.layout, names)

    def start_router(self, progress: Progress) -> Record:
        """Starts the router of the shape and returns when a request has gone through it. Raises TestbedError without one."""
        current = self.plan
        router = current.router
        if router is None:
            raise TestbedError(f"shape {current.shape} has no router")
        command = launch.router_command(current, router)
        environ = launch.router_environment(current, self.layout, self._environ)
        facts = {"url": router.url, "metrics_url": router.metrics_url, "kind": router.kind}
        record = spawning.spawn(self.layout, router.name, "router", command, environ, facts)
        self._wait_router(router, progress)
        return record

    def note_fault(self, fault: str | None) -> None:
        """Notes in the plan which fault is in force."""
        with self.changing("noting a fault"):
            plan.write(self.layout.plan, replace(self.plan, fault=fault))

    def spawn(self, name: str, role: records.Role, command: list[str], facts: Mapping[str, str] | None = None) -> Record:
        """Starts a further process (page, load) that belongs to the deployment and ends with it."""
        return spawning.spawn(self.layout, name, role, command, self._clean(), facts or {})

    def _spawn_engine(self, engine: EnginePlan, served: str) -> Record:
        current = self.plan
        command = launch.engine_command(current, engine, served)
        environ = launch.engine_environment(current, engine, self.layout, self._environ)
        facts = {
            "url": engine.url,
            "role": engine.role,
            "tensor_parallel_size": str(engine.tensor_parallel_size),
            "pipeline_parallel_size": str(engine.pipeline_parallel_size),
        }
        return spawning.spawn(self.layout, engine.name, "engine", command, environ, facts)

    def _wait_engine(self, engine: EnginePlan, record: Record, progress: Progress) -> None:
        current = self.plan
        with progress.step(step_engine(engine.name), f"{engine.url}, {engine.sizes}") as note:

            def news() -> None:
                self._note_shared_memory()
                text = self.layout.log(engine.name).read_text(encoding="utf-8", errors="replace")
                phase = startup.latest_phase(text.splitlines())
                note(phase.words if phase else "starting Python", fraction=phase.share if phase else 0.0)

            spawning.wait_http(self.layout, record, engine.port, launch.ENGINE_READY_PATH, READY_SECONDS[current.build], news)
            if current.router is None:  # prefill or decode alone is no use to a client: theirs goes through the router
                note("answering a first request", fraction=0.99)
                self._ask(engine.url, FIRST_ANSWER_SECONDS)
            self._note_shared_memory()
            note(f"ready on {engine.url}, {engine.sizes}", fraction=1.0)

    def _wait_router(self, router: RouterPlan, progress: Progress) -> None:
        """Returns when a request has gone through the router, prefill and decode. It learns of servers that came back by
        asking them now and then, and refuses until then: a refusal is no failure before the deadline."""
        record = self.record(router.name)
        if record is None:
            raise TestbedError(f"the router {router.name} does not run: `poise testbed fault --undo` starts it")
        with progress.step(STEP_ROUTER, router.url) as note:
            spawning.wait_http(self.layout, record, router.port, launch.ROUTER_READY_PATH, ROUTER_READY_SECONDS, note)
            deadline = time.monotonic() + FIRST_ANSWER_SECONDS
            note("a first request from prefill to decode")
            while True:
                try:
                    self._ask(router.url, max(1.0, deadline - time.monotonic()))
                    break
                except TestbedError:
                    if time.monotonic() > deadline or not wait_gone([record.identity], spawning.ASK_SECONDS):
                        raise
            self._note_shared_memory()
            note(f"ready on {router.url}", fraction=1.0)

    def _ask(self, url: str, timeout: float) -> None:
        request.complete(url, self.plan.served_name, FIRST_PROMPT, 4, timeout, self._environ)

    def _model_path(self) -> str:
        current = self.plan
        if current.model != model.TINY:
            return current.model
        return str(model.make_tiny(current.environment.parent / "models"))

    def _note_shared_memory(self) -> None:
        ours = ownership.belonging(processes.all_stats(), self.layout)
        shared_memory.note(self.layout.shared_memory, shared_memory.held_by(stat.pid for stat in ours))

    def _clean(self) -> dict[str, str]:
        return {**self._environ, "TMPDIR": str(self.layout.temporary)}

    # ---------------------------------------------------------------- ending

    def release(self) -> None:
        """Lets the deployment stay when this process ends. The keeper has ended then, and its record is gone."""
        if self._keeper_pipe is None:
            return
        keeper = self.record("keeper")
        with contextlib.suppress(BrokenPipeError):  # it was killed, or ended by somebody else's `down`
            os.write(self._keeper_pipe, KEEP)
        self._close_keeper_pipe()
        if keeper is not None and not wait_gone([keeper.identity], KEEPER_END_SECONDS):
            records.remove(self.layout.records, keeper.name)

    def down(self, say: Callable[[str], None] = lambda _: None) -> teardown.Removed:
        """Takes everything down; nothing of it is left. Twice is as good as once. Raises TestbedError."""
        return self._take_down(say, lock_held=False)

    def _take_down(self, say: Callable[[str], None], lock_held: bool) -> teardown.Removed:
        """The keeper watches to the end, which taking down ends last of all: if this is interrupted or killed half way, it goes on."""
        removed = teardown.take_down(self.layout, say, lock_held)
        self._close_keeper_pipe()
        return removed

    def _close_keeper_pipe(self) -> None:
        if self._keeper_pipe is not None:
            os.close(self._keeper_pipe)
            self._keeper_pipe = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.down()


def start_keeper(layout: StateLayout, environ: Mapping[str, str]) -> int:
    """Starts the keeper; returns our end of its pipe."""
    reading, writing = os.pipe()
    try:
        spawning.spawn(layout, "keeper", "keeper", launch.keeper_command(layout, reading), environ, {}, [reading])
    except BaseException:
        os.close(writing)
        raise
    finally:
        os.close(reading)
    return writing
