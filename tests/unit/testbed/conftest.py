"""What tests of the testbed leave nowhere: the short temporary folders of state directories that lie deep, as pytest's do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from poise.testbed.paths import StateLayout


@pytest.fixture(autouse=True)
def _no_short_folder_stays(request: pytest.FixtureRequest) -> Iterator[None]:
    """A deployment that is taken down removes its own; of one that a test only lays out nobody would."""
    root = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if root is not None:
        for folder in (root, *(path for path in root.iterdir() if path.is_dir())):
            short = StateLayout(folder).temporary
            if not short.is_relative_to(folder):
                shutil.rmtree(short, ignore_errors=True)
