"""What NVML's process lists are worth, by driver version and pid namespace: pure, from the history of the open kernel modules.

=========================  =============================  ======================================
driver                     pids in a container            usedGpuMemory seen from a container
=========================  =============================  ======================================
before 535.113.01          the node's                     right
535.113.01 to 565.57.01    the container's; processes     0: the lookup is not translated
                           that it cannot see are left    (NVIDIA/open-gpu-kernel-modules #614,
                           out                            Project-HAMi/HAMi-core #112)
565.57.01 and later        the same                       right
=========================  =============================  ======================================
"""

from __future__ import annotations

from dataclasses import dataclass

from poise.exporter.pid_namespace import PidNamespace

#: The first driver that translates pids into the caller's namespace.
TRANSLATES_PIDS = (535, 113, 1)
#: The first driver whose sizes are right from within a namespace.
TRANSLATES_SIZES = (565, 57, 1)

_REMEDY = "run it in the node's pid namespace (`--pid=host`, `hostPID: true`)"


@dataclass(frozen=True, slots=True)
class Trust:
    """What a process list may be taken for; `missing` says in words what the driver does not tell there, and what to do; empty for nothing."""

    #: The numbers are those of our /proc.
    pids: bool = True
    #: A size of 0 is a size.
    zero_sizes: bool = True
    #: Processes of other containers are in it.
    complete: bool = True
    missing: str = ""


def trust(namespace: PidNamespace, driver: tuple[int, ...]) -> Trust:
    """For a driver version such as (580, 95, 5); an unknown one, an empty tuple, counts as the oldest."""
    if namespace is PidNamespace.HOST:
        return Trust()
    if namespace is PidNamespace.MIXED or driver < TRANSLATES_PIDS:
        because = "/proc is another pid namespace's" if namespace is PidNamespace.MIXED else "this driver tells the node's pids"
        return Trust(
            pids=False,
            zero_sizes=False,
            complete=False,
            missing=f"which process holds which card is not known: the exporter is in a pid namespace of its own and {because}; {_REMEDY}",
        )
    if driver < TRANSLATES_SIZES:
        return Trust(
            zero_sizes=False,
            complete=False,
            missing=f"how much device memory a process holds is not known: the exporter is in a pid namespace of its own, where this driver "
            f"says 0; {_REMEDY}, or update the driver to {'.'.join(f'{number:02}' for number in TRANSLATES_SIZES)}",
        )
    return Trust(complete=False)
