"""A program that a test needs and does not find is never passed over in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.needs import needs


def test_a_program_is_found_under_its_own_name_or_debians(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program = tmp_path / "prometheus-alertmanager"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert needs("alertmanager") == str(program)


@pytest.mark.parametrize("ci", ["", "false"])
def test_without_ci_the_test_is_skipped_with_the_reason(ci: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="promtool is not installed; `make test` as root installs it"):
        needs("promtool")


def test_in_ci_the_test_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="promtool is not installed"):
        needs("promtool")
