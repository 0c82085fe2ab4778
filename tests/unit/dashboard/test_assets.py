"""Static files: all there, named by content, compressed where it pays, with their licences beside them."""

from __future__ import annotations

import gzip
import re
from importlib.resources import files

from poise.dashboard import assets


def test_all_files_load_and_unpack_to_themselves() -> None:
    found = assets.load()
    assert set(found) == set(assets.FILES)
    for asset in found.values():
        assert asset.compressed is None or gzip.decompress(asset.compressed) == asset.body


def test_the_style_sheet_names_the_font_as_the_page_does() -> None:
    found = assets.load()
    assert f"inter.woff2?v={found['inter.woff2'].digest}".encode() in found["poise.css"].body
    assert found["inter.woff2"].compressed is None


def test_nothing_is_fetched_from_elsewhere() -> None:
    for name in ("poise.css", "poise.js"):
        assert not re.search(rb"https?://|//[a-z]+\.", assets.load()[name].body), name


def test_each_vendored_file_is_listed_with_its_licence() -> None:
    vendor = files("poise.dashboard") / "static" / "vendor"
    names = {entry.name for entry in vendor.iterdir()}
    listed = (vendor / "README.md").read_text()
    for name in names - {"README.md"}:
        assert name in listed, name
    assert {"htmx.LICENSE", "inter.LICENSE"} <= names


def test_everything_together_fits_the_budget_of_a_first_visit() -> None:
    assert sum(len(asset.compressed or asset.body) for asset in assets.load().values()) < 120_000
