"""Several benchmarks write one page: each replaces its own section, and nothing of the others is lost."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from tests import scripts

FOLDER = Path(__file__).parents[2] / "scripts"
HISTORY, ENGINE = FOLDER / "bench_history.py", FOLDER / "bench_engine.py"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return scripts.loaded(FOLDER / "bench_page.py", monkeypatch)


def test_a_section_comes_to_the_end_and_is_replaced_where_it_stands(page: ModuleType) -> None:
    first = page.with_section("# Benchmarks\n\nFigures.\n", HISTORY, "\n## History\n\n1\n")
    assert first == "# Benchmarks\n\nFigures.\n\n<!-- bench_history.py begins -->\n\n## History\n\n1\n<!-- bench_history.py ends -->\n"
    both = page.with_section(first, ENGINE, "## Engine\n")
    again = page.with_section(both, HISTORY, "## History\n\n2")
    assert again == both.replace("\n1\n", "\n2\n")
    assert page.with_section(again, HISTORY, "## History\n\n2") == again


def test_a_page_whose_mark_is_gone_loses_nothing(page: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    broken = page.with_section("# B\n", HISTORY, "## History").replace("<!-- bench_history.py ends -->\n", "\n## Others\n")
    file.write_text(broken)
    with pytest.raises(ValueError, match=r"bench_history\.py ends"):
        page.put(file, HISTORY, "## History")
    assert file.read_text() == broken


def test_all_sections_stand_behind_a_new_beginning_whichever_came_first(page: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    assert page.sections(file) == ""
    file.write_text("# Old\n")
    assert page.sections(file) == ""
    for script in (HISTORY, ENGINE):
        page.put(file, script, f"## {script.stem}")
    new = "# New\n" + page.sections(file)
    assert new == file.read_text().replace("# Old", "# New")


def test_the_page_of_the_tree_has_every_mark_with_its_end(page: ModuleType) -> None:
    text = (FOLDER.parent / "docs" / "benchmarks.md").read_text()
    for script in sorted(FOLDER.glob("bench_*.py")):
        assert text.count(f"<!-- {script.name} begins -->\n") == text.count(f"<!-- {script.name} ends -->\n") <= 1
