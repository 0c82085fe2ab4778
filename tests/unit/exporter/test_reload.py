"""What a SIGHUP may change while the exporter runs, and what it may not."""

from __future__ import annotations

from dataclasses import replace

from poise.exporter import reload, settings
from poise.exporter.engine_specs import EngineSpec
from poise.exporter.reload import change
from poise.exporter.settings import ExporterSettings

BEFORE = ExporterSettings()


def test_nothing_changed() -> None:
    assert change(BEFORE, ExporterSettings()) == (BEFORE, (), ())


def test_what_can_change_does_and_the_rest_is_named_and_stays() -> None:
    engines = (EngineSpec("qwen", "http://h:1"),)
    wanted = replace(BEFORE, engines=engines, log_level="debug", listen=":1", interval=5.0, collectors={"power": False})
    changed = change(BEFORE, wanted)
    assert changed.settings == replace(BEFORE, engines=engines, log_level="debug")
    assert set(changed.taken) == {"engines", "log_level"}
    assert set(changed.left) == {"listen", "interval", "collectors"}


def test_what_needs_a_restart_is_named_each_time() -> None:
    wanted = replace(BEFORE, listen=":1")
    assert change(change(BEFORE, wanted).settings, wanted).left == ("listen",)


def test_only_settings_that_there_are_can_change() -> None:
    assert set(reload.WHILE_RUNNING) <= set(settings.field_names())
