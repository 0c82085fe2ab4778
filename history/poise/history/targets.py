"""Targets to scrape, as a person names them: what can be said of one in `poise.toml` (`[[target]]`) and behind ``--target``, and what is
wrong with it. Values only: scraping.py asks them. This file knows no layer of settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poise.exporter import access, named_specs, setting_values
from poise.exporter.access import PLAIN, Access
from poise.history.promql.labels import Labels, labels
from poise.history.scrape import DEFAULT_INTERVAL, PAGE_LIMIT
from poise.history.text_format import MAX_SERIES

#: The label `job` of a target that says no other: the shipped Prometheus configuration calls Poise's exporters so too.
DEFAULT_JOB = "poise"
#: Share of the interval after which a scrape has failed where no timeout was said, so that it ends before the next is due.
TIMEOUT_SHARE = 0.8
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OWN_LABELS = ("job", "instance")


@dataclass(frozen=True, slots=True)
class Target:
    """One page that is scraped. Interval and timeout in seconds, `body_limit` in bytes (unpacked), `sample_limit` in series.

    `labels` are put on each of its series, `instance` and `job` among them. Where the page has a label of such a name, the page's becomes
    ``exported_NAME``, or with `honor_labels` it wins (Prometheus `scrape_config`).
    """

    name: str
    url: str
    labels: Labels
    interval: float = DEFAULT_INTERVAL
    timeout: float = DEFAULT_INTERVAL * TIMEOUT_SHARE
    honor_labels: bool = False
    sample_limit: int = MAX_SERIES
    body_limit: int = PAGE_LIMIT
    access: Access = PLAIN

    @property
    def job(self) -> str:
        """The label `job`."""
        return dict(self.labels)["job"]

    @property
    def key(self) -> str:
        """What tells its series from those of other targets."""
        return repr(self.labels)

    def beside(self, folder: Path) -> Target:
        """The same with relative paths below `folder`."""
        return replace(self, access=self.access.beside(folder))


#: What can be said of a target, in `[[target]]` and, but for `labels`, behind `--target NAME=URL`.
TARGET_KEYS = (
    *("name", "url", "metrics_path", "job", "labels", "interval", "timeout", "honor_labels", "sample_limit", "body_size_limit"),
    *access.KEYS,
)
_OPTIONS = tuple(key for key in TARGET_KEYS if key not in ("name", "url", "labels"))
_NO_TEXT = ("labels", "interval", "timeout", "honor_labels", "sample_limit", "body_size_limit", "insecure_skip_verify")


def parse_target(text: str) -> Target:
    """A target from ``NAME=URL[,job=…][,interval=…][,timeout=…]`` and the keys of TARGET_KEYS.

    Raises:
        ValueError: what is wrong with it, in words.
    """
    for option in text.split(",")[1:]:
        _refuse_secret(option.partition("=")[0])
    return _target(named_specs.table_from_text(text, _OPTIONS, "gpu-1=http://gpu-1:9747"))


def targets(value: object) -> tuple[Target, ...]:
    """From a TOML list of tables, or from text with targets separated by blanks or semicolons. Raises ValueError."""
    found = named_specs.many(value, parse_target, _target)
    check_distinct(found)
    return found


def check_distinct(found: Sequence[Target]) -> None:
    """Raises ValueError naming the target whose series could not be told from another's."""
    for position, target in enumerate(found):
        for other in found[:position]:
            if other.labels == target.labels:
                raise ValueError(
                    f"target {target.name!r} stands twice with job {target.job!r}; give each its own name, or one of them another job"
                )


def _refuse_secret(key: str) -> None:
    if hint := access.secret_hint(key):
        raise ValueError(hint)


def _target(values: Mapping[str, Any]) -> Target:
    """A target from a table; raises ValueError naming the key."""
    for key in values:
        _refuse_secret(key)
    named_specs.check_keys(values, TARGET_KEYS, no_text=_NO_TEXT)
    name = named_specs.checked_name(values.get("name", ""), "target")
    base = setting_values.base_url(values.get("url", ""))
    interval = _seconds(values, "interval", DEFAULT_INTERVAL)
    timeout = _seconds(values, "timeout", interval * TIMEOUT_SHARE)
    if timeout > interval:
        raise ValueError(f"timeout {timeout:g} s is longer than the interval {interval:g} s; a scrape has to end before the next begins")
    return Target(
        name=name,
        url=base + _path(values.get("metrics_path", "/metrics")),
        labels=_labels(name, values.get("job", DEFAULT_JOB), values.get("labels", {})),
        interval=interval,
        timeout=timeout,
        honor_labels=_boolean(values, "honor_labels"),
        sample_limit=_count(values, "sample_limit", MAX_SERIES),
        body_limit=_count(values, "body_size_limit", PAGE_LIMIT),
        access=access.from_values(values, base),
    )


def _seconds(values: Mapping[str, Any], key: str, default: float) -> float:
    try:
        return setting_values.interval(values[key]) if key in values else default
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _boolean(values: Mapping[str, Any], key: str) -> bool:
    try:
        return setting_values.boolean(values.get(key, False))
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def _count(values: Mapping[str, Any], key: str, default: int) -> int:
    """A positive number up to the default, which is what one page may cost at most."""
    value = values.get(key, default)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= default:
        raise ValueError(f"{key} {value!r} is not a number from 1 to {default}")
    return value


def _path(text: str) -> str:
    if not re.fullmatch(r"/[!-~]*", text):
        raise ValueError(f"metrics_path {text!r} is no path of a URL, such as /metrics")
    return text


def _labels(name: str, job: str, extra: object) -> Labels:
    if not job.strip():
        raise ValueError("job is empty; leave it out, or give it a name")
    if not isinstance(extra, dict):
        raise ValueError('labels must be a table, such as { cluster = "a" }')
    for label, value in extra.items():
        if not _LABEL_NAME.fullmatch(label) or label.startswith("__") or label in _OWN_LABELS:
            raise ValueError(f"labels: {label!r} is no label that a target may carry; job and instance have keys of their own (job, name)")
        if not isinstance(value, str):
            raise ValueError(f"labels: {label} must be text, not {value!r}")
    return labels({**extra, "job": job, "instance": name})
