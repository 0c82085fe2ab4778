"""Settings: each layer replaces the one before, and every mistake names the thing, its value and the way out."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from poise.exporter import setting_flags, settings
from poise.exporter.engine_specs import EngineSpec, parse_engine
from poise.exporter.setting_values import parse_duration, parse_listen
from poise.exporter.settings import ExporterSettings, SettingsError
from poise.exporter.snapshot import Role

from tests.complaints import complaint

COLLECTORS = {"nvlink": "bytes over NVLink", "power": "power of each card"}


def load(*flags: str, environment: dict[str, str] | None = None) -> ExporterSettings:
    parser = argparse.ArgumentParser()
    setting_flags.add_arguments(parser, COLLECTORS)
    return settings.load(parser.parse_args(list(flags)), environment or {}, COLLECTORS)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_defaults_hold_when_nothing_is_said(folder: Path) -> None:
    assert load() == ExporterSettings()
    assert ExporterSettings().listen == "0.0.0.0:9747"
    assert ExporterSettings().interval == 1.0


def test_flags_win_over_environment_over_file(folder: Path) -> None:
    (folder / "poise.toml").write_text('[exporter]\ninterval = "2s"\nengine_interval = "20s"\nlisten = "127.0.0.1:1"\nexpected_gpus = 8\n')
    found = load("--listen=127.0.0.1:3", environment={"POISE_EXPORTER_LISTEN": "127.0.0.1:2", "POISE_EXPORTER_ENGINE_INTERVAL": "30s"})
    assert (found.interval, found.engine_interval, found.listen, found.expected_gpus) == (2.0, 30.0, "127.0.0.1:3", 8)


def test_every_setting_can_stand_in_the_file_and_in_the_environment(folder: Path) -> None:
    file = folder / "other.toml"
    file.write_text(
        """
        [dashboard]
        title = "not the exporter's business"
        [exporter]
        listen = ":9000"
        interval = 0.5
        engine_interval = "500ms"
        discover = false
        expected_gpus = 2
        log_level = "debug"
        log_format = "json"
        [exporter.collectors]
        nvlink = false
        [[exporter.engines]]
        name = "qwen"
        url = "http://10.0.0.5:8000/"
        deployment = "chat"
        role = "decode"
        gpus = 2
        """
    )
    expected = ExporterSettings(
        listen=":9000",
        interval=0.5,
        engine_interval=0.5,
        engines=(EngineSpec("qwen", "http://10.0.0.5:8000", "chat", Role.DECODE, 2),),
        discover=False,
        expected_gpus=2,
        collectors={"nvlink": False},
        log_level="debug",
        log_format="json",
    )
    assert load(f"--config={file}") == expected
    assert load(environment={"POISE_CONFIG": str(file)}) == expected
    assert (
        load(
            environment={
                "POISE_EXPORTER_LISTEN": ":9000",
                "POISE_EXPORTER_INTERVAL": "0.5",
                "POISE_EXPORTER_ENGINE_INTERVAL": "500ms",
                "POISE_EXPORTER_DISCOVER": "no",
                "POISE_EXPORTER_EXPECTED_GPUS": "2",
                "POISE_LOG_LEVEL": "debug",
                "POISE_EXPORTER_LOG_FORMAT": "json",
                "POISE_EXPORTER_COLLECTORS": "nvlink=off",
                "POISE_EXPORTER_ENGINES": "qwen=http://10.0.0.5:8000,deployment=chat,role=decode,gpus=2",
            }
        )
        == expected
    )


def test_collectors_are_switched_by_flags(folder: Path) -> None:
    assert load("--no-collector.nvlink", "--collector.power").collectors == {"nvlink": False, "power": True}


def test_several_engines(folder: Path) -> None:
    engines = load("--engine", "a=http://h:1", "--engine", "b=https://[fd00::1]:2/base/metrics,role=prefill").engines
    assert engines == (EngineSpec("a", "http://h:1"), EngineSpec("b", "https://[fd00::1]:2/base", "", Role.PREFILL))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--interval=fast"], ["--interval=fast", "500ms"]),
        (["--interval=1ms"], ["--interval=1ms", "0.1 s"]),
        (["--interval=inf"], ["--interval=inf"]),
        (["--listen=9747"], ["--listen=9747", "HOST:PORT"]),
        (["--listen=h:70000"], ["--listen=h:70000", "65535"]),
        (["--expected-gpus=two"], ["--expected-gpus=two", "number of cards"]),
        (["--expected-gpus=-1"], ["--expected-gpus=-1"]),
        (["--engine=http://h:8000"], ["--engine=", "NAME=URL"]),
        (["--engine=justaname"], ["--engine=justaname", "NAME=URL"]),
        (["--engine=a=h:8000"], ["--engine=a=h:8000", "http://HOST:PORT"]),
        (["--engine=a=http://h:1,role=router"], ["router", "mixed, prefill, decode"]),
        (["--engine=127.0.0.1:8000=http://127.0.0.1:8000"], ["'127.0.0.1:8000' is a loopback address"]),
        (["--engine=localhost=http://127.0.0.1:8000"], ["'localhost' is a loopback address"]),
        (["--engine=a=http://h:1,gpus=two"], ["gpus 'two'", "1 to 1024"]),
        (["--engine=a=http://h:1,gpus=0"], ["gpus '0'", "1 to 1024"]),
        (["--engine=a=http://h:1,color=red"], ["color", "deployment="]),
        (["--engine=a=http://h:1", "--engine=a=http://h:2"], ["--engine=a", "two engines"]),
        (["--engine=a b=http://h:1"], ["a b"]),
        (["--config=/nowhere/poise.toml"], ["/nowhere/poise.toml", "No such file"]),
    ],
)
def test_a_wrong_flag_names_itself_its_value_and_the_way_out(flags: list[str], words: list[str], folder: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load(*flags)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[exporter]\nintervall = 1", ["intervall", "did you mean 'interval'?"]),
        ("[exportr]\ninterval = 1", ["exportr", "[exporter]"]),
        ("[exporter]\ninterval = true", ["interval"]),
        ("[exporter]\nexpected_gpus = true", ["expected_gpus"]),
        ("[exporter]\ndiscover = 'maybe'", ["discover=maybe", "true or false"]),
        ("[exporter]\nlog_level = 'loud'", ["log_level=loud", "debug"]),
        ("[exporter]\nlisten = 9747", ["listen=9747"]),
        ("[exporter]\nengines = 3", ["engines=3"]),
        ("[exporter]\nengines = [3]", ["engines"]),
        ("[exporter]\n[[exporter.engines]]\nname='a'", ["url"]),
        ("[exporter]\n[[exporter.engines]]\nname='a'\nurl='http://h:1'\nport=1", ["port", "name, url"]),
        ("[exporter]\n[exporter.collectors]\nnvlnk=false", ["nvlnk", "did you mean 'nvlink'?"]),
        ("[exporter]\n[exporter.collectors]\nnvlink='perhaps'", ["nvlink"]),
        ("exporter = 3", ["[exporter]"]),
        ("[exporter", ["not TOML"]),
    ],
)
def test_a_wrong_file_names_the_key(text: str, words: list[str], folder: Path) -> None:
    (folder / "poise.toml").write_text(text)
    with pytest.raises(SettingsError) as error:
        load()
    for word in words:
        assert word in str(error.value)
    assert "poise.toml" in str(error.value) or "nvl" in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("POISE_EXPORTER_INTERVALL", "1s", ["POISE_EXPORTER_INTERVALL", "POISE_EXPORTER_INTERVAL"]),
        ("POISE_EXPORTER_INTERVAL", "never", ["POISE_EXPORTER_INTERVAL=never"]),
        ("POISE_LOG_LEVEL", "loud", ["POISE_LOG_LEVEL=loud"]),
        ("POISE_EXPORTER_COLLECTORS", "wat=off", ["wat"]),
    ],
)
def test_a_wrong_variable_names_itself(name: str, value: str, words: list[str], folder: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load(environment={name: value})
    for word in words:
        assert word in str(error.value)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_no_mistake(folder: Path) -> None:
    kubernetes = {
        "POISE_EXPORTER_SERVICE_HOST": "10.0.0.1",
        "POISE_EXPORTER_SERVICE_PORT": "9747",
        "POISE_EXPORTER_SERVICE_PORT_METRICS": "9747",
        "POISE_EXPORTER_PORT": "tcp://10.0.0.1:9747",
        "POISE_EXPORTER_PORT_9747_TCP": "tcp://10.0.0.1:9747",
        "POISE_EXPORTER_PORT_9747_TCP_ADDR": "10.0.0.1",
    }
    assert load(environment=kubernetes) == ExporterSettings()


def test_a_password_in_a_url_is_refused_and_not_repeated(folder: Path) -> None:
    with pytest.raises(SettingsError) as error:
        load("--engine=a=http://user:hunter2@h:8000")
    assert "hunter2" not in str(error.value)
    with pytest.raises(SettingsError) as error:
        load(environment={"POISE_EXPORTER_ENGINES": "a=http://user:hunter2@h:8000"})
    assert "hunter2" not in str(error.value)
    (folder / "poise.toml").write_text("[exporter]\n[[exporter.engines]]\nname='a'\nurl='http://user:hunter2@h:8000'\n")
    with pytest.raises(SettingsError) as error:
        load()
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1), ("500ms", 0.5), ("2", 2), ("0.25", 0.25), ("1m30s", 90), ("1h", 3600), (" 1.5s ", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("0.0.0.0:9747", "0.0.0.0", 9747), (":9747", "", 9747), ("[::1]:80", "::1", 80), ("localhost:0", "localhost", 0)],
)
def test_listen_addresses(text: str, host: str, port: int) -> None:
    assert parse_listen(text) == (host, port)


@given(st.text(max_size=60))
def test_no_text_breaks_a_parser(text: str) -> None:
    for parse in (parse_duration, parse_engine, parse_listen):
        assert complaint(lambda parse=parse: parse(text), ValueError) != "an empty message"


TOML_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(settings.field_names()) | st.text(max_size=10), TOML_VALUES, max_size=4))
def test_no_table_breaks_the_settings(table: dict[str, object]) -> None:
    said = complaint(lambda: settings.from_table(ExporterSettings(), table, "poise.toml"), SettingsError)
    assert not said or "poise.toml" in said


@given(data=st.binary(max_size=200))
def test_no_file_breaks_the_settings(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "poise.toml"
    path.write_bytes(data)
    said = complaint(lambda: settings.read_file(path), SettingsError)
    assert not said or str(path) in said


@given(st.dictionaries(st.sampled_from(["INTERVAL", "LISTEN", "ENGINES", "COLLECTORS", "DISCOVER", "EXPECTED_GPUS"]), st.text(max_size=20)))
def test_no_environment_breaks_the_settings(values: dict[str, str]) -> None:
    environment = {f"POISE_EXPORTER_{name}": value for name, value in values.items()}
    said = complaint(lambda: settings.from_environment(ExporterSettings(), environment), SettingsError)
    assert not said or "POISE_EXPORTER_" in said


def test_every_setting_has_a_parser_and_every_parser_a_setting() -> None:
    assert set(settings._PARSERS) == set(settings.field_names())


@pytest.mark.parametrize(
    "value",
    [
        "a=http://user:hun/ter2@h:8000",
        "http://user:hunter2@h:8000",
        "a=user:hunter2@h:8000",
        "a=http://u=x:hunter2@h:8000",
        "a=//u:hunt er2@h",
    ],
)
def test_a_password_is_not_repeated_however_wrong_the_url_is(value: str, folder: Path) -> None:
    with pytest.raises(SettingsError) as on_the_command_line:
        load(f"--engine={value}")
    with pytest.raises(SettingsError) as in_the_environment:
        load(environment={"POISE_EXPORTER_ENGINES": value})
    for error in (on_the_command_line, in_the_environment):
        assert not any(part in str(error.value) for part in ("hun", "ter2", "er2"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("expected_gpus = " + "9" * 5000, "is not TOML: Exceeds the limit"),
        ("expected_gpus = 0x" + "f" * 5000, "expected_gpus=a number of thousands of digits: expected a number of cards"),
        ("interval = 0x" + "f" * 5000, "interval=a number of thousands of digits: must lie between"),
        ("interval = inf", "must lie between"),
        ("interval = nan", "expected a duration"),
        ("a = " + "[" * 100_000, "is not TOML"),
    ],
)
def test_a_file_with_values_beyond_all_measure_is_a_message(line: str, words: str, folder: Path) -> None:
    (folder / "poise.toml").write_text(f"[exporter]\n{line}\n")
    with pytest.raises(SettingsError) as error:
        load()
    assert words in str(error.value)
    assert len(str(error.value)) < 500


def test_a_configuration_that_is_no_ordinary_file_is_refused_and_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "huge.toml").write_bytes(b"#" * (settings.LARGEST_FILE + 1))
    for name, words in (
        ("pipe", "not an ordinary file"),
        ("/dev/zero", "not an ordinary file"),
        (".", "a directory"),
        ("huge.toml", "larger than"),
    ):
        with pytest.raises(SettingsError) as error:
            load(f"--config={name}")
        assert words in str(error.value)


@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "nowhere"])
def test_what_is_called_poise_toml_and_is_no_file_is_not_taken_for_none(folder: Path, kind: str) -> None:
    path = folder / "poise.toml"
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(path if kind == "loop" else folder / "none")
    with pytest.raises(SettingsError, match=r"^--config=poise\.toml: "):
        load()


def test_a_file_that_nobody_named_and_nobody_may_look_at_is_as_good_as_absent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object, **_options: object) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    assert load() == ExporterSettings()
