"""Looks at files below another process's root directory, whatever that container's own files say.

A container chooses its symbolic links. Opened through /proc/PID/root, an absolute link leads into *our* files: `/etc/hostname -> /etc/shadow`
would have us publish the node's secrets. So each link is followed by hand below the container's root, as chroot(2) would, and only an
ordinary file is ever opened: never a device, a pipe or a socket.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Iterator

#: Links that are followed in one path (path_resolution(7) allows 40); a service account's file needs three.
MOST_LINKS = 16
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


def read_inside(root: str, path: str, limit: int, offset: int = 0) -> bytes | None:
    """At most `limit` bytes, from `offset` on, of the ordinary file `path` below `root` (/proc/PID/root), or None when there is none that we
    may read."""
    try:
        with _found(root, path) as found:
            if not stat.S_ISREG(os.fstat(found).st_mode):
                return None
            descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                return os.pread(descriptor, limit, offset)
            finally:
                os.close(descriptor)
    except OSError:
        return None


def names_inside(root: str, folder: str) -> list[str] | None:
    """The names in `folder` below `root`, or None when it cannot be listed."""
    try:
        with _found(root, folder) as found:
            return os.listdir(f"/proc/self/fd/{found}")
    except OSError:
        return None


def devices_inside(root: str, folder: str, major: int) -> dict[str, int] | None:
    """Name → minor number of the character devices with this major number in `folder` below `root`; None when it cannot be listed.

    Links in the folder are not followed. Nothing is opened: that alone can wake a card.
    """
    try:
        with _found(root, folder) as found:
            devices = {}
            for name in os.listdir(f"/proc/self/fd/{found}"):
                try:
                    status = os.stat(name, dir_fd=found, follow_symlinks=False)
                except OSError:
                    continue  # gone since the listing
                if stat.S_ISCHR(status.st_mode) and os.major(status.st_rdev) == major:
                    devices[name] = os.minor(status.st_rdev)
            return devices
    except OSError:
        return None


@contextlib.contextmanager
def _found(root: str, path: str) -> Iterator[int]:
    """A descriptor that only locates (O_PATH) what `path` names below `root`. Raises OSError when there is nothing."""
    with contextlib.ExitStack() as opened:

        def look(name: str, below: int | None, flags: int) -> int:
            descriptor = os.open(name, flags, dir_fd=below)
            opened.callback(os.close, descriptor)
            return descriptor

        # The one link that is followed is the kernel's own, /proc/PID/root.
        way = [look(root, None, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
        parts = deque(path.split("/"))
        links = 0
        while parts:
            part = parts.popleft()
            if part in ("", "."):
                continue
            if part == "..":
                del way[max(len(way) - 1, 1) :]  # above the root is the root
                continue
            here = look(part, way[-1], _LOOK)
            if not stat.S_ISLNK(os.fstat(here).st_mode):
                way.append(here)
                continue
            links += 1
            if links > MOST_LINKS:
                raise OSError(f"more than {MOST_LINKS} links")
            target = os.readlink(part, dir_fd=way[-1])
            if target.startswith("/"):
                del way[1:]
            parts.extendleft(reversed(target.split("/")))
        yield way[-1]
