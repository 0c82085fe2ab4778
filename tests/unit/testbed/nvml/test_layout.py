"""The ctypes mirror of the mapped state has the size, the offsets and the limits of the C header."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from poise.testbed.nvml import state
from poise.testbed.nvml.state import SOURCES

MIRRORS: dict[str, type[ctypes.Structure]] = {
    "struct link_state": state.LinkStruct,
    "struct process_state": state.ProcessStruct,
    "struct sample": state.SampleStruct,
    "struct sample_ring": state.SampleRingStruct,
    "struct gpm_metric": state.GpmStruct,
    "struct raw_field": state.RawFieldStruct,
    "struct mig_device": state.MigDeviceStruct,
    "struct card_state": state.CardStruct,
    "struct rule": state.RuleStruct,
    "struct event": state.EventStruct,
    "struct state": state.StateStruct,
}

LIMITS = (
    *("MAX_CARDS", "MAX_LINKS", "MAX_PROCESSES", "MAX_RULES", "MAX_EVENTS", "SAMPLE_KINDS", "SAMPLES_KEPT"),
    *("MAX_FIELDS", "MAX_GPM_METRICS", "MAX_FUNCTIONS", "MAX_MIG_DEVICES", "ANY_FUNCTION", "ANY_CARD", "NO_CARD"),
)


def test_offsets_sizes_and_limits_are_those_of_state_h(tmp_path: Path) -> None:
    expected: dict[str, int] = {name: getattr(state, name) for name in LIMITS}
    expected |= {"STATE_LAYOUT": state.LAYOUT, "STATE_MAGIC": state.MAGIC, "FUNCTION_COUNT": len(state.functions())}
    for c_name, mirror in MIRRORS.items():
        expected[f"sizeof({c_name})"] = ctypes.sizeof(mirror)
        for field in mirror._fields_:
            expected[f"offsetof({c_name}, {field[0]})"] = getattr(mirror, field[0]).offset
            expected[f"sizeof((({c_name} *)0)->{field[0]})"] = getattr(mirror, field[0]).size
    lines = "".join(f'printf("%lld\\n", (long long)({expression}));\n' for expression in expected)
    source = tmp_path / "layout.c"
    source.write_text(f'#include <stddef.h>\n#include <stdio.h>\n#include "library.h"\nint main(void)\n{{\n{lines}}}\n', encoding="utf-8")
    program = tmp_path / "layout"
    subprocess.run(["cc", f"-I{SOURCES}", "-o", str(program), str(source)], check=True, capture_output=True, text=True)
    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.split()
    assert {name: int(value) for name, value in zip(expected, printed, strict=True)} == expected


def test_every_number_is_aligned_so_that_it_is_never_torn() -> None:
    for mirror in MIRRORS.values():
        for field in mirror._fields_:
            kind = field[1]
            while hasattr(kind, "_length_"):
                kind = kind._type_
            assert getattr(mirror, field[0]).offset % ctypes.alignment(kind) == 0
