"""The simulated library inside the running process: pynvml is pointed at it for a while.

LD_LIBRARY_PATH is read once, when a process starts. So pynvml's own handle is set to a library that was opened by its path;
everything else, wrappers, structs, errors, is the real pynvml. Owns that handle's coming and going. For another process use
node.environment().
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from poise.testbed.nvml.library import STATE_VARIABLE, build
from poise.testbed.nvml.node import SimulatedNode
from poise.testbed.nvml.state import read_header


@contextmanager
def simulated_pynvml(node: SimulatedNode, cache_dir: Path | None = None) -> Iterator[ModuleType]:
    """The real pynvml, answering from `node`, with the symbols that the node's driver branch has. nvmlInit is the caller's.

    On leaving, injections are released (calls that hang come back), the session is shut down and pynvml is as before.
    One at a time: pynvml has one handle for the process. Raises TestbedError (no compiler).
    """
    import pynvml

    library = build(cache_dir, read_header(node.path).driver_major)
    handle = ctypes.CDLL(str(library))
    before = (pynvml.nvmlLib, pynvml._nvmlLib_refcount, os.environ.get(STATE_VARIABLE))
    os.environ[STATE_VARIABLE] = str(node.path.absolute())
    pynvml.nvmlLib, pynvml._nvmlLib_refcount = handle, 0
    pynvml._nvmlGetFunctionPointer_cache.clear()
    try:
        yield pynvml
    finally:
        node.release()
        while handle.nvmlShutdown() == pynvml.NVML_SUCCESS:
            continue
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount, state = before
        if state is None:
            os.environ.pop(STATE_VARIABLE, None)
        else:
            os.environ[STATE_VARIABLE] = state
