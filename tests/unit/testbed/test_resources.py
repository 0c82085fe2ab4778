"""What a deployment needs of a machine's cores and memory, and what is there."""

from __future__ import annotations

from pathlib import Path

import pytest
from poise.testbed import resources, shapes
from poise.testbed.errors import TestbedError
from poise.testbed.resources import Need, Resources

GIB = 1024**3


def machine(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def memory(folder: Path) -> int:
    return resources.measure(folder / "proc", folder / "sys", folder, allowed=[0]).memory_bytes


def test_memory_is_what_can_be_had_without_swapping(tmp_path: Path) -> None:
    machine(tmp_path, proc__meminfo="MemTotal:       100 kB\nMemAvailable:    64 kB\n")
    assert memory(tmp_path) == 64 * 1024


def test_a_containers_limit_counts_less_what_it_uses_and_cannot_give_back(tmp_path: Path) -> None:
    machine(tmp_path, proc__meminfo="MemAvailable:    64 kB\n")
    group = {"memory_dot_max": "50000\n", "memory_dot_current": "40000\n", "memory_dot_stat": "anon 7\ninactive_file 5000\n"}
    machine(tmp_path, **{f"sys__fs__cgroup__{name}": text for name, text in group.items()})
    assert memory(tmp_path) == 15000
    machine(tmp_path, sys__fs__cgroup__memory_dot_max="max\n")
    assert memory(tmp_path) == 64 * 1024


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    machine(tmp_path, proc__meminfo="MemAvailable:    64 kB\n")
    for name, text in (("limit_in_bytes", "9000"), ("usage_in_bytes", "8000"), ("stat", "total_inactive_file 100")):
        machine(tmp_path, **{f"sys__fs__cgroup__memory__memory_dot_{name}": text})
    assert memory(tmp_path) == 1100


def test_hardware_threads_of_one_core_count_once(tmp_path: Path) -> None:
    machine(tmp_path, proc__meminfo="")
    for cpu, siblings in ((0, "0,4"), (1, "1,5"), (4, "0,4"), (5, "1,5")):
        machine(tmp_path, **{f"sys__devices__system__cpu__cpu{cpu}__topology__thread_siblings_list": siblings})
    found = resources.measure(tmp_path / "proc", tmp_path / "sys", tmp_path, allowed=[5, 0, 1, 4, 9])
    assert found.cores == (0, 1, 9), "of a core whose siblings are not told nothing is left out"


def test_this_machine_can_be_measured() -> None:
    found = resources.measure()
    assert found.cores
    assert found.memory_bytes > 0
    assert found.shared_memory_bytes >= 0


def test_needs_add_up_over_servers_and_ranks() -> None:
    single, pp, hybrid = (resources.needed(shapes.load(name), kv_cache_bytes=128 * 2**20) for name in ("single", "pp", "hybrid"))
    assert 1.5 * GIB < single.memory_bytes < pp.memory_bytes < 2.5 * GIB < hybrid.memory_bytes < 4 * GIB
    assert pp.shared_memory_bytes == 2 * single.shared_memory_bytes < hybrid.shared_memory_bytes == 3 * single.shared_memory_bytes
    pair = shapes.load("pair")
    assert resources.needed(pair, weights_bytes=GIB).memory_bytes == resources.needed(pair).memory_bytes + 2 * GIB


def test_exactly_enough_is_enough() -> None:
    shape = shapes.load("tp")
    resources.check(shape, Need(GIB, 100), Resources((), GIB, 100))
    for there in (Resources((), GIB - 1, 100), Resources((), GIB, 99)):
        with pytest.raises(TestbedError, match="shape tp needs about"):
            resources.check(shape, Need(GIB, 100), there)


@pytest.mark.parametrize(
    ("name", "cores", "bound"),
    [
        ("tp", 5, {}),
        ("tp", 6, {"server": "4|5"}),
        ("tp", 10, {"server": "4,5,6|7,8,9"}),
        ("pd", 7, {}),
        ("pd", 8, {"prefill": "6", "decode": "7"}),
    ],
)
def test_each_rank_has_cores_of_its_own_once_vllm_and_the_watchers_have_theirs(name: str, cores: int, bound: dict[str, str]) -> None:
    assert resources.bind(shapes.load(name), range(cores), "cpu") == bound
    assert resources.bind(shapes.load(name), range(cores), "gpu") == {}


def test_a_tiny_model_takes_no_more_cores_than_help_it() -> None:
    assert resources.bind(shapes.load("tp"), range(64), "cpu", most_for_rank=1) == {"server": "62|63"}
