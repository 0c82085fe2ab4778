"""What this process itself may run out of: descriptors, threads, memory. Whoever asked somebody then learns nothing of the other side.

Owns telling that from the faults of others, and the words. Values in, values out.
"""

from __future__ import annotations

import errno
import re
import socket

_DESCRIPTORS = "this process has no file descriptors left; a higher limit of open files (ulimit -n, LimitNOFILE= of the service) helps"
_THREADS = (
    "this process can start no thread; a higher limit of processes (ulimit -u, TasksMax= of the service, pids of the container) helps"
)
_MEMORY = "this process gets no memory; more of it, or a higher limit (MemoryMax= of the service), helps"
_OF_NUMBER = {
    errno.EMFILE: _DESCRIPTORS,
    errno.ENFILE: "this machine has no file descriptors left; a higher limit (sysctl fs.file-max) helps",
    errno.ENOMEM: _MEMORY,
    errno.ENOBUFS: _MEMORY,
    socket.EAI_MEMORY: _MEMORY,
}
#: What CPython's threading says when the system starts no thread (Modules/_threadmodule.c); it has no number.
_NO_THREAD = "can't start new thread"


def own_limit(error: BaseException) -> str:
    """What this process lacked, with the way out, when that is why `error` was raised, directly or beneath; empty for whatever else."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, MemoryError):
            return _MEMORY
        if isinstance(found, RuntimeError) and _NO_THREAD in str(found):
            return _THREADS
        for number in numbers(found):
            if number in _OF_NUMBER:
                return _OF_NUMBER[number]
        found = found.__cause__ or found.__context__
    return ""


def numbers(error: BaseException) -> list[int]:
    """The error numbers of a failed call. Of several addresses that were tried in vain asyncio tells only in the text."""
    if not isinstance(error, OSError):
        return []
    return [error.errno] if error.errno is not None else [int(one) for one in re.findall(r"\[Errno (-?[0-9]{1,6})\]", str(error))]
