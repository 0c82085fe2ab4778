"""Where things are kept."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from poise.testbed import claim, paths
from poise.testbed.paths import StateLayout


@pytest.mark.parametrize(
    ("environ", "argument", "folder"),
    [
        ({"HOME": "/home/ann"}, None, "/home/ann/.local/state/poise/testbed"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "/s"}, None, "/s/poise/testbed"),
        ({"HOME": "/home/ann", "XDG_STATE_HOME": "/s", "POISE_STATE_DIR": "/p"}, None, "/p/testbed"),
        ({"HOME": "/home/ann", "POISE_STATE_DIR": "/p"}, "/here", "/here"),
    ],
)
def test_the_state_directory_is_the_most_particular_one(environ: dict[str, str], argument: str | None, folder: str) -> None:
    assert paths.state_directory(environ, argument) == Path(folder)


def test_the_cache_follows_xdg() -> None:
    assert paths.cache_directory({"HOME": "/home/ann"}) == Path("/home/ann/.cache/poise")
    assert paths.cache_directory({"HOME": "/home/ann", "XDG_CACHE_HOME": "/c"}) == Path("/c/poise")


def test_folders_are_for_their_owner_alone(tmp_path: Path) -> None:
    layout = StateLayout(tmp_path / "state")
    claim.make(layout)
    claim.make(layout)
    for folder in (layout.root, layout.logs, layout.records, layout.run, layout.temporary):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_deep_state_directory_has_its_sockets_elsewhere_always_in_the_same_place() -> None:
    deep = StateLayout(Path("/" + "deep/" * 30))
    assert len(str(deep.temporary)) <= paths.LONGEST_TEMPORARY
    assert deep.temporary == StateLayout(deep.root).temporary
    assert deep.temporary != StateLayout(deep.root / "other").temporary
    assert StateLayout(Path("/s")).temporary == Path("/s/tmp")
