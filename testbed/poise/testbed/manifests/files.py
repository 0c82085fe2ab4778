"""The files of a deployment as they are written out: those that lie in the package, and those that are made of rules and routes, which therefore
cannot go stale. Owns what is in the folders and that nobody's changes are lost. Knows no command line.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Literal

from poise.alerts import routing, shipped
from poise.alerts.kubernetes import prometheus_rule
from poise.alerts.rules import RuleFile, load, render
from poise.alerts.scale import HEADER, rebase
from poise.testbed.errors import TestbedError

Kind = Literal["kubernetes", "compose"]

#: Where dashboards belong; Grafana's provisioning reads the folder, which may be empty.
DASHBOARDS = "grafana/dashboards"


@dataclass(frozen=True, slots=True)
class Links:
    """Where alerts point: to the page, and to the runbooks. None: where the rules that come with Poise point."""

    dashboard: str | None = None
    runbooks: str | None = None


def contents(kind: Kind, links: Links) -> dict[str, str]:
    """Path below the folder → text."""
    found = dict(_packaged(importlib.resources.files("poise.testbed") / kind, PurePosixPath()))
    rules = _rules(links)
    if kind == "kubernetes":
        found["monitoring/rules.yaml"] = prometheus_rule(list(rules.values()), name="poise", namespace="poise", comment=HEADER)
    else:
        found |= {f"prometheus/rules/{name}": text for name, text in _rule_texts(rules, links)}
        found["alertmanager/alertmanager.yml"] = routing.shipped_configuration()
    return found


def _rules(links: Links) -> dict[str, RuleFile]:
    try:
        return {path.name: rebase(load(path), runbooks=links.runbooks, dashboard=links.dashboard) for path in shipped.rule_files()}
    except ValueError as error:
        raise TestbedError(str(error)) from None


def _rule_texts(rules: Mapping[str, RuleFile], links: Links) -> Iterator[tuple[str, str]]:
    """As they are, with their comments, when nothing is changed in them."""
    for path in shipped.rule_files():
        text = path.read_text(encoding="utf-8")
        yield path.name, text if links == Links() else render(rules[path.name], HEADER)


def _packaged(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[str, str]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _packaged(entry, below / entry.name)
        else:
            yield str(below / entry.name), entry.read_text(encoding="utf-8")


def write(kind: Kind, folder: Path, links: Links, *, force: bool) -> list[Path]:
    """Writes all files below `folder`; returns those that are new or changed.

    Raises TestbedError when a file there differs, which somebody may have changed, unless `force`, and when a link is no address; nothing is
    written then.
    """
    wanted = {folder / name: text for name, text in contents(kind, links).items()}
    try:
        differing = [path for path, text in wanted.items() if path.exists() and path.read_text(encoding="utf-8", errors="replace") != text]
        if differing and not force:
            raise TestbedError(_would_lose(differing))
        changed = [path for path in wanted if path in differing or not path.exists()]
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[path], encoding="utf-8")
        if kind == "compose":
            (folder / DASHBOARDS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TestbedError(f"--output={folder}: {error.filename or folder}: {error.strerror or error}; name another folder") from None
    return sorted(changed)


def _would_lose(differing: Sequence[Path]) -> str:
    more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
    return f"{differing[0]}{more} would be overwritten and differs from what Poise writes: name another --output, or give --force"
