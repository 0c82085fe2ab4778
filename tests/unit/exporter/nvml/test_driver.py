"""The driver as a whole: versions, errors in words, and a library that an upgrade has replaced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from poise.exporter.nvml.driver import Driver, DriverError
from poise.exporter.nvml.library import Library, LibraryMissing, NvmlFailure, reason_of, words_of
from poise.exporter.snapshot import Reason
from poise.testbed.nvml.codes import ReturnCode

from tests.simulated_cards import bench, simulated_library


def test_versions_are_told() -> None:
    with bench("h100x8") as cards:
        info = cards.driver.info
        assert (info.driver, info.nvml, info.cuda, info.error) == ("570.172.08", "12.570.172.08", "12.8", "")
        assert cards.driver.version == (570, 172, 8)
        assert cards.driver.count() == 8


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ReturnCode.DRIVER_NOT_LOADED, "Driver Not Loaded (9)"),
        (ReturnCode.NO_PERMISSION, "Insufficient Permissions (4)"),
        (ReturnCode.LIB_RM_VERSION_MISMATCH, "restart the node"),
        (ReturnCode.UNKNOWN, "Unknown Error (999)"),
    ],
)
def test_a_driver_that_does_not_start_says_why(code: ReturnCode, words: str) -> None:
    with simulated_library("h20x2") as (node, library):
        node.fail_init(code)
        with pytest.raises(DriverError) as error:
            Driver.open(library)
        assert words in str(error.value)


def test_no_library_is_said(tmp_path: Path) -> None:
    with pytest.raises(DriverError) as error:
        Driver.open(str(tmp_path / "nothing.so"))
    assert "nothing.so" in str(error.value)
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(LibraryMissing):
        Library(str(tmp_path / "text.so"))


def test_calls_that_fail_name_themselves_and_the_error() -> None:
    with bench("h20x2") as cards:
        with pytest.raises(NvmlFailure) as failure:
            cards.driver.handle(99)
        assert "nvmlDeviceGetHandleByIndex" in str(failure.value)
        assert "Invalid Argument (2)" in str(failure.value)


def test_a_symbol_that_is_missing_answers_function_not_found() -> None:
    with bench("driver535") as cards:
        library = cards.driver.library
        assert not library.has("nvmlDeviceGetTemperatureV")
        assert library.function("nvmlDeviceGetTemperatureV")(1, 2, 3) == ReturnCode.FUNCTION_NOT_FOUND
        assert library.has("nvmlDeviceGetTemperature")


@pytest.mark.parametrize("code", list(ReturnCode))
def test_every_code_has_words_and_a_reason(code: ReturnCode) -> None:
    assert words_of(code).endswith(f"({int(code)})")
    assert reason_of(code) in Reason


def test_an_unloaded_library_makes_room_for_the_one_that_an_upgrade_put_there(tmp_path: Path) -> None:
    """The process keeps a mapped library for as long as anybody has it open, whatever lies under its name."""
    with simulated_library("h20x2") as (_, library):
        path = tmp_path / "libnvidia-ml.so.1"
        shutil.copy(library, path)

        def mapped() -> bool:
            return str(path) in Path(f"/proc/{os.getpid()}/maps").read_text()

        driver = Driver.open(str(path))
        assert mapped()
        driver.close(unload=True)
        assert not mapped()
        again = Driver.open(str(path))
        assert again.count() == 2
        again.close(unload=True)
