"""Writing the files out: whole, never over somebody's changes, with links as asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from poise.alerts import shipped
from poise.cli.main import main
from poise.testbed.errors import TestbedError
from poise.testbed.manifests.files import Kind, Links, contents, write


@pytest.mark.parametrize("kind", ["kubernetes", "compose"])
def test_everything_is_written_and_a_second_time_changes_nothing(kind: Kind, tmp_path: Path) -> None:
    wanted = contents(kind, Links())
    written = write(kind, tmp_path / "out", Links(), force=False)
    assert written == sorted(tmp_path / "out" / name for name in wanted)
    assert {str(path.relative_to(tmp_path / "out")): path.read_text() for path in written} == wanted
    assert write(kind, tmp_path / "out", Links(), force=False) == []


def test_changes_of_somebody_stay_unless_forced(tmp_path: Path) -> None:
    write("compose", tmp_path, Links(), force=False)
    mine = tmp_path / "alertmanager" / "alertmanager.yml"
    mine.write_text("mine")
    (tmp_path / "compose.yaml").unlink()
    with pytest.raises(TestbedError, match=r"alertmanager\.yml would be overwritten and differs .* or give --force"):
        write("compose", tmp_path, Links(), force=False)
    assert mine.read_text() == "mine"
    assert not (tmp_path / "compose.yaml").exists(), "nothing is written in halves"
    assert write("compose", tmp_path, Links(), force=True) == [mine, tmp_path / "compose.yaml"]
    assert mine.read_text() == shipped.ALERTMANAGER.read_text()


def test_alerts_lead_where_they_are_told(tmp_path: Path) -> None:
    links = Links(dashboard="https://poise.example", runbooks="https://git.example/{alert}.md")
    (rule,) = yaml.safe_load_all(contents("kubernetes", links)["monitoring/rules.yaml"])
    watchdog = next(rule for group in rule["spec"]["groups"] for rule in group["rules"] if rule.get("alert") == "Watchdog")
    assert watchdog["annotations"]["dashboard_url"] == "https://poise.example/"
    assert watchdog["annotations"]["runbook_url"] == "https://git.example/Watchdog.md"
    assert "https://poise.example/" in contents("compose", links)["prometheus/rules/meta.yml"]


def test_rules_without_changes_keep_their_comments() -> None:
    (meta,) = [path for path in shipped.rule_files() if path.name == "meta.yml"]
    assert contents("compose", Links())["prometheus/rules/meta.yml"] == meta.read_text()


def test_the_command_lists_what_it_wrote_and_says_what_is_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "compose", "--output", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert str(tmp_path / "out" / "compose.yaml") in out.splitlines()
    told = f"poise: {len(out.splitlines())} files written; next: build the images (docs/deploy.md#images), then cd {tmp_path / 'out'} && docker"
    assert err.startswith(told)


def test_a_folder_that_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["testbed", "kubernetes", "--output", str(tmp_path / "file" / "x")]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"poise: --output={tmp_path}/file/x: ")
    assert err.endswith("name another folder\n")


@pytest.mark.parametrize("kind", ["kubernetes", "compose"])
def test_links_that_are_no_addresses_are_said_and_nothing_is_written(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["testbed", kind, "--output", str(tmp_path / "out"), "--dashboard-base", "javascript:alert(1)"]) == 1
    assert capsys.readouterr().err.startswith("poise: --dashboard-base 'javascript:alert(1)' is no address of a page: give one such as")
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_name_is_not_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["testbed", "compose", "--output", ""])
    assert "argument --output: '' is empty" in capsys.readouterr().err


def test_what_is_next_can_be_pasted_whatever_the_folder_is_called(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["testbed", "compose", "--output", str(tmp_path / "my folder; rm x")]) == 0
    assert f"cd '{tmp_path}/my folder; rm x' && docker compose up" in capsys.readouterr().err
