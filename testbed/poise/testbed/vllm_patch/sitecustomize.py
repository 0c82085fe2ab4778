"""Makes vLLM and NIXL usable on a machine with few cores and no GPU; no installed file is edited.

Python imports this file by itself at start because its folder is on PYTHONPATH, which only the testbed's CPU deployments
set. It runs in vLLM's environment and must not import Poise.

1. NIXL's Python bindings hard-code a delay of 0 for the progress thread of UCX (nixl 1.5.1), which then takes one whole core
   in each worker: a delay is set.
2. Readers of vLLM's shared-memory queue (vllm/distributed/device_communicators/shm_broadcast.py, 0.32) spin for one second
   after every message, and the wake-up that ends their sleep can be lost: they spin for 2 ms, then look again in short naps.
3. The CPU platform (vllm/platforms/cpu.py, 0.32) starts engine core and workers by spawn whatever VLLM_WORKER_MULTIPROC_METHOD
   says, and each imports vLLM and torch anew, for six seconds of a core: it is made to obey. A forked child would also keep the
   port of its server open beyond the server's end, which a spawned one does not: it lets go of it at once.
4. Pipeline stages behind the first receive activations into buffers that vLLM makes in its warm-up run, which the CPU worker (vllm/v1/worker/cpu_worker.py,
   0.32) leaves out when nothing is compiled and the KV cache has a fixed size: the first request then fails on an assertion. They are made after loading.
5. The fault scrape-blackhole: while the file that POISE_TESTBED_BLACKHOLE names is there, the metrics page of this server never answers, and
   everything else does.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import socket
import sys
import time

# UCX's progress thread looks this often. Transfers of the tiny model take milliseconds.
PROGRESS_THREAD_MICROSECONDS = 1000
SPIN_SECONDS = 0.002
# Naps while messages flow, and after a second without one: as long as a request after a pause may wait when its wake-up is
# lost. (What an idle worker still uses, about 2 % of a core, are the event loops of gloo, which look 100 times a second.)
BUSY_NAP_MILLISECONDS = 1
IDLE_NAP_MILLISECONDS = 100
IDLE_AFTER_SECONDS = 1.0
METHOD = "VLLM_WORKER_MULTIPROC_METHOD"
BLACKHOLE = "POISE_TESTBED_BLACKHOLE"
METRICS_PATH = "/metrics"
BLACKHOLE_LOOK_SECONDS = 0.1


def calm_nixl(module):
    create = module.nixlAgent

    def agent(name, configuration):
        configuration.pthrDelay = PROGRESS_THREAD_MICROSECONDS
        return create(name, configuration)

    module.nixlAgent = agent


def calm_queue(module):
    condition = module.SpinCondition
    create, wait = condition.__init__, condition.wait

    def __init__(self, is_reader, context, notify_address, busy_loop_s=SPIN_SECONDS):
        create(self, is_reader, context, notify_address, SPIN_SECONDS)

    def nap(self, timeout_ms=None):
        idle = time.monotonic() >= self.last_read + IDLE_AFTER_SECONDS
        longest = IDLE_NAP_MILLISECONDS if idle else BUSY_NAP_MILLISECONDS
        return wait(self, longest if timeout_ms is None else min(timeout_ms, longest))

    condition.__init__, condition.wait = __init__, nap


def obey_method(module):
    check = module.CpuPlatform.check_and_update_config.__func__

    def check_and_keep(platform, configuration):
        wanted = os.environ.get(METHOD, "spawn")
        check(platform, configuration)
        os.environ[METHOD] = wanted

    module.CpuPlatform.check_and_update_config = classmethod(check_and_keep)


def make_stage_buffers(module):
    runner = module.CPUModelRunner
    load = runner.load_model

    def load_model(self, *arguments, **named):
        load(self, *arguments, **named)
        from vllm.distributed import get_pp_group  # known only now: this runs in a worker, behind the group's making

        if self.intermediate_tensors is None and not get_pp_group().is_first_rank:
            self.intermediate_tensors = self.model.make_empty_intermediate_tensors(
                batch_size=self.max_num_tokens, dtype=self.model_config.dtype, device=self.device
            )

    runner.load_model = load_model


def hold_metrics(module):
    path = os.environ.get(BLACKHOLE)
    if not path:
        return
    attach = module.attach_router

    def attach_router(app):
        attach(app)
        app.add_middleware(BlackHole, path=path)

    module.attach_router = attach_router


class BlackHole:
    """ASGI middleware: a request for the metrics page waits for as long as the file is there, or until its client leaves."""

    def __init__(self, app, path):
        self.app = app
        self.path = path

    async def __call__(self, scope, receive, send):
        if scope["type"] == "http" and scope["path"].startswith(METRICS_PATH) and os.path.exists(self.path):
            await self.hold(receive)
        await self.app(scope, receive, send)

    async def hold(self, receive):
        import asyncio  # every process of vLLM reads this file, and few of them serve anything

        async def left():
            while (await receive())["type"] != "http.disconnect":
                pass

        leaving = asyncio.ensure_future(left())
        try:
            while os.path.exists(self.path) and not leaving.done():
                await asyncio.wait({leaving}, timeout=BLACKHOLE_LOOK_SECONDS)
        finally:
            leaving.cancel()


def release_ports():
    """In a child that was just forked: its copies of TCP sockets that wait for connections become copies of nothing."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        try:
            with socket.socket(fileno=os.dup(int(name))) as copy:
                waits = copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM and is_bound(copy)
            if waits:
                os.dup2(nothing, int(name))
        except OSError:  # no socket, or the descriptor of the listing itself
            continue
    os.close(nothing)


def is_bound(given):
    """Whether a socket has a port and no peer: a server's, before and after listen()."""
    try:
        given.getpeername()
    except OSError:
        return given.getsockname()[1] != 0
    return False


CHANGES = {
    "vllm.platforms.cpu": obey_method,
    "vllm.v1.worker.cpu_model_runner": make_stage_buffers,
    "vllm.entrypoints.serve.instrumentator.metrics": hold_metrics,
    "nixl_cu12._bindings": calm_nixl,
    "nixl_cu13._bindings": calm_nixl,
    "vllm.distributed.device_communicators.shm_broadcast": calm_queue,
}


class ChangingFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of CHANGES as usual and applies the change once the module has run."""

    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            change, run = CHANGES[name], spec.loader.exec_module

            def exec_module(module):
                run(module)
                change(module)

            try:
                spec.loader.exec_module = exec_module
            except AttributeError:  # a loader in C takes no attributes: the module stays as it is, only slower
                return None
        return spec


sys.meta_path.insert(0, ChangingFinder())
os.register_at_fork(after_in_child=release_ports)
