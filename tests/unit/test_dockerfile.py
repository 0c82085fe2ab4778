"""The Dockerfile and what it copies: every source is there and reaches the build, every extra exists, the images start what they should."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from poise.cli.main import main
from poise.dashboard.flags import DEFAULT_LISTEN as DASHBOARD_LISTEN
from poise.exporter.settings import DEFAULT_LISTEN

from tests.dockerfile import Stage, read_dockerfile

ROOT = Path(__file__).resolve().parents[2]
STAGES = read_dockerfile(ROOT / "Dockerfile")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "LABEL", "ENV", "USER", "VOLUME", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"}
IMAGES = ("exporter", "dashboard")


def copied() -> list[str]:
    """What is copied from the tree into the build, folders with a slash."""
    return [source for stage in STAGES.values() for copy in stage.all("COPY") if not copy.taken_from for source in copy.words[:-1]]


def test_every_instruction_is_one_of_dockers_and_every_stage_is_known() -> None:
    for stage in STAGES.values():
        assert {each.word for each in stage.instructions} <= KNOWN
        assert stage.base == "python:3.11-slim" or stage.base in STAGES
        assert all(each.taken_from in STAGES for each in stage.all("COPY") if each.taken_from)


def test_everything_that_is_copied_exists_and_is_let_into_the_build() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_in = {line[1:] for line in lines if line.startswith("!")}
    assert "*" in lines
    assert {source.rstrip("/") for source in copied()} == let_in
    for source in copied():
        assert (ROOT / source).is_dir() if source.endswith("/") else (ROOT / source).is_file(), source


def test_everything_that_the_wheel_is_made_of_is_copied() -> None:
    needed = {item.partition("/")[0] for item in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]}
    needed |= {PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "requirements.lock"}
    assert {source.rstrip("/") for source in copied()} == needed


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_one_set_of_extras_and_only_what_was_installed(image: str) -> None:
    (copy,) = STAGES[image].all("COPY")
    (install,) = STAGES[copy.taken_from].all("RUN")
    (extra,) = re.findall(r'"\.\[([a-z,-]+)\]"', install.rest)
    assert set(extra.split(",")) <= set(PROJECT["project"]["optional-dependencies"])
    assert "--constraint requirements.lock" in install.rest
    assert copy.words == ["/opt/poise", "/opt/poise"]
    assert "PATH=/opt/poise/bin:" in STAGES[image].all("ENV")[0].rest


def test_the_exporter_is_root_and_asks_for_the_drivers_library_and_the_dashboard_is_nobody() -> None:
    assert users(STAGES["exporter"]) == ["root"]
    assert "NVIDIA_DRIVER_CAPABILITIES=utility" in STAGES["exporter"].all("ENV")[0].rest
    assert users(STAGES["dashboard"]) == ["poise"]
    assert "NVIDIA" not in STAGES["dashboard"].all("ENV")[0].rest


def test_the_images_have_one_version_wherever_they_are_named() -> None:
    version = PROJECT["project"]["version"]
    pages = [ROOT / "Dockerfile", *(ROOT / "docs").rglob("*.md"), *(ROOT / "testbed").rglob("*.y*ml")]
    tagged = {(path.name, tag) for path in pages for tag in re.findall(r"\bpoise-(?:exporter|dashboard):([\w.-]+)", path.read_text())}
    assert {name for name, _ in tagged} >= {"Dockerfile", "containers.md", "deploy.md", "compose.yaml"}
    assert {tag for _, tag in tagged} == {version}


def test_the_dashboards_state_is_a_volume_that_its_user_owns_and_the_exporter_keeps_nothing() -> None:
    stage = STAGES["dashboard"]
    (state,) = re.findall(r"POISE_STATE_DIR=(\S+)", stage.all("ENV")[0].rest)
    assert [volume.rest for volume in stage.all("VOLUME")] == [state]
    (made,) = stage.all("RUN")
    assert f"install -d -o {users(stage)[0]} -m 0700 {state}" in made.rest
    assert made.rest.index("useradd") < made.rest.index("install -d")
    assert STAGES["exporter"].all("VOLUME") == []


def users(stage: Stage) -> list[str]:
    return [user.rest for user in stage.all("USER")]


@pytest.mark.parametrize(("image", "listen"), [("exporter", DEFAULT_LISTEN), ("dashboard", DASHBOARD_LISTEN)])
def test_ports_are_those_of_the_programs(image: str, listen: str) -> None:
    port = listen.rpartition(":")[2]
    assert STAGES[image].all("EXPOSE")[0].rest == port
    assert f"http://127.0.0.1:{port}/healthz" in STAGES[image].command("HEALTHCHECK")[-1]


@pytest.mark.parametrize("image", IMAGES)
def test_what_an_image_starts_is_a_command_of_poise(image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert STAGES[image].command("ENTRYPOINT") == ["poise"]
    with pytest.raises(SystemExit) as ended:
        main([*STAGES[image].command("CMD"), "--help"])
    assert ended.value.code == 0
    assert "usage: poise" in capsys.readouterr().out
