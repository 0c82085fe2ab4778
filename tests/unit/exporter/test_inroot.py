"""Files of a container are read as the container sees them: no link of its leads out, and nothing but ordinary files is opened."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter.inroot import MOST_LINKS, devices_inside, read_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A container's root directory, and beside it a secret of the node."""
    (tmp_path / "secret").write_text("of the node")
    inside = tmp_path / "container"
    for folder in ("etc", "run/secrets/account/..data"):
        (inside / folder).mkdir(parents=True)
    (inside / "etc/hostname").write_text("chat-0\n")
    (inside / "run/secrets/account/..data/namespace").write_text("serving")
    (inside / "run/secrets/account/namespace").symlink_to("..data/namespace")
    (inside / "var").mkdir()
    (inside / "var/run").symlink_to("/run")
    return inside


def read(root: Path, path: str, limit: int = 100) -> bytes | None:
    return read_inside(str(root), path, limit)


def test_a_file_is_read_up_to_its_limit(root: Path) -> None:
    assert read(root, "etc/hostname") == b"chat-0\n"
    assert read(root, "/etc/./hostname", 4) == b"chat"
    assert read_inside(str(root), "etc/hostname", 100, 5) == b"0\n"


def test_links_are_followed_below_the_containers_root(root: Path) -> None:
    assert read(root, "var/run/secrets/account/namespace") == b"serving"
    (root / "loop").symlink_to("etc")
    assert read(root, "loop/../etc/hostname") == b"chat-0\n"


@pytest.mark.parametrize(
    "target", ["{secret}", "../secret", "../../../../../../../..{secret}", "/proc/self/root{secret}", "etc/../../secret"]
)
def test_no_link_leads_to_a_file_of_the_node(root: Path, target: str) -> None:
    (root / "link").symlink_to(target.format(secret=root.parent / "secret"))
    (root / "etc/link").symlink_to(target.format(secret=root.parent / "secret"))
    assert read(root, "link") is None
    assert read(root, "etc/link") is None
    assert read(root, "../secret") is None
    assert read(root, f"etc/../..{root.parent / 'secret'}") is None


def test_a_root_of_another_process_may_itself_be_a_link_as_in_proc(root: Path) -> None:
    (root.parent / "root").symlink_to(root)
    assert read(root.parent / "root", "etc/hostname") == b"chat-0\n"
    assert read_inside(f"/proc/{os.getpid()}/root", "etc/passwd", 4) is not None


def test_links_in_circles_end(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert read(root, "a") is None
    for number in range(MOST_LINKS):
        (root / f"link{number}").symlink_to("etc/hostname" if number == 0 else f"link{number - 1}")
    assert read(root, f"link{MOST_LINKS - 1}") == b"chat-0\n"
    (root / "one-too-many").symlink_to(f"link{MOST_LINKS - 1}")
    assert read(root, "one-too-many") is None


def test_only_ordinary_files_are_opened(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert read(root, "pipe") is None
    assert read(root, "etc") is None
    assert read(root, "none") is None
    assert read(root, "etc/hostname/below") is None
    assert read_inside(str(root / "none"), "etc/hostname", 10) is None


def test_every_descriptor_is_closed(root: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("etc/hostname", "var/run/secrets/account/namespace", "none", "pipe/x/y", "etc"):
        read(root, path)
        devices_inside(str(root), path, 195)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_device_nodes_are_told_by_their_numbers_and_links_to_them_are_not(root: Path) -> None:
    (root / "dev").mkdir()
    (root / "dev/nvidia7").write_text("a file")
    assert devices_inside(str(root), "dev", 195) == {}
    assert devices_inside(str(root), "none", 195) is None
    assert devices_inside(str(root), "etc/hostname", 195) is None
    # Nodes that this machine has, which need no right to be made: null is character device 1:3.
    real = devices_inside("/", "dev", 1)
    assert real is not None
    assert real["null"] == 3
    (root / "dev/null").symlink_to("/dev/null")
    assert devices_inside(str(root), "dev", 1) == {}
    try:
        os.mknod(root / "dev/nvidia0", stat.S_IFCHR | 0o600, os.makedev(195, 2))
    except PermissionError:
        return  # only root may make nodes; tests/contract/test_containers.py needs it
    assert devices_inside(str(root), "dev", 195) == {"nvidia0": 2}


@given(st.lists(st.sampled_from(["..", ".", "", "etc", "hostname", "var", "run", "escape", "up"]), max_size=8).map("/".join))
def test_no_path_whatever_leads_out(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    outside = tmp_path_factory.getbasetemp() / "outside"
    root = outside / "container"
    if not root.exists():
        (root / "etc").mkdir(parents=True)
        (root / "etc/hostname").write_text("inside")
        (outside / "hostname").write_text("outside")
        (root / "escape").symlink_to("../../../..")
        (root / "up").symlink_to(str(outside))
    assert read_inside(str(root), path, 100) in (None, b"inside")
