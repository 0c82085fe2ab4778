"""Start-up logs that `poise doctor --engine-log` is given: read from their files, judged, and added to the checklist's document."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from poise.exporter.checks import parallel_size
from poise.exporter.checks.document import with_results
from poise.exporter.checks.startup_log import judge
from poise.exporter.engines import startup_log
from poise.exporter.engines.startup_log import StartupLog

#: A start writes some hundred lines; a log of NCCL at its most talkative on eight cards has 5 MB. What follows is not read.
LARGEST_LOG = 32 << 20


class LogError(Exception):
    """A log cannot be read; the message says which, why and what to give instead."""


@dataclass(frozen=True, slots=True)
class GivenLog:
    """A start-up log that was given: whose it is ("" when that was not said), its file, and what it shows."""

    engine: str
    file: str
    log: StartupLog


def read_log(text: str) -> GivenLog:
    """The start-up log of ``[NAME=]FILE``.

    Raises:
        LogError: the file cannot be read.
    """
    name, equals, path = text.partition("=")
    if not equals or os.path.exists(text):
        name, path = "", text
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise LogError(f"--engine-log={text}: {path} is no ordinary file")
            data = file.read(LARGEST_LOG)
    except OSError as error:
        raise LogError(f"--engine-log={text}: {error.strerror or error}; give the file that `vllm serve` wrote") from None
    return GivenLog(name.strip(), os.path.basename(path), startup_log.parse(data.decode(errors="replace").splitlines()))


def with_logs(page: dict[str, Any], given: Sequence[GivenLog]) -> dict[str, Any]:
    """The document with a line for each log. A log that nobody named is the only engine's, where there is one."""
    if not given:
        return page
    engines = {str(result["engine"]): result for result in page["checks"] if result["check"] == parallel_size.NAME}
    added = []
    for item in given:
        engine = item.engine or (next(iter(engines)) if len(engines) == 1 else "")
        known = engines.get(engine, {"subject": engine or item.file, "evidence": {}})
        evidence = known["evidence"] if isinstance(known["evidence"], dict) else {}
        added.append((judge(item.log, engine, str(evidence.get("parallel size", ""))), str(known["subject"])))
    return with_results(page, added)
