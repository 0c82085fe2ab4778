"""The shipped Alertmanager configuration with receivers and times changed: for people who are told elsewhere, for test beds and tests.

The file itself is for people to edit; this makes copies by values, never by text.
"""

from __future__ import annotations

from typing import Any

import yaml
from poise.alerts import shipped
from poise.alerts.durations import format_duration, parse_duration

#: The times of a route that a factor shortens.
_TIMES = ("group_wait", "group_interval", "repeat_interval")
#: Alertmanager refuses zero for intervals, and below a second nothing is grouped that belongs together.
_SHORTEST = 1.0


def shipped_configuration() -> str:
    """The text of the configuration that comes with Poise."""
    return shipped.ALERTMANAGER.read_text(encoding="utf-8")


def adapt(text: str, *, webhook_base: str, factor: float = 1.0) -> str:
    """The configuration with every webhook at `webhook_base`/RECEIVER and every time of a route multiplied by `factor`, at least 1 s."""
    document = yaml.safe_load(text)
    for receiver in document["receivers"]:
        for webhook in receiver.get("webhook_configs", ()):
            webhook["url"] = f"{webhook_base.rstrip('/')}/{receiver['name']}"
    _shorten(document["route"], factor)
    return yaml.safe_dump(document, sort_keys=False)


def with_receivers(text: str, example: str) -> str:
    """The configuration with the receivers of an example in place of those of the same name, and the example's global settings.

    Raises ValueError that names a receiver which no route of the configuration knows.
    """
    document, wanted = yaml.safe_load(text), yaml.safe_load(example)
    places = {receiver["name"]: index for index, receiver in enumerate(document["receivers"])}
    for receiver in wanted["receivers"]:
        if receiver["name"] not in places:
            raise ValueError(f'no route leads to the receiver "{receiver["name"]}"; there are {", ".join(places)}')
        document["receivers"][places[receiver["name"]]] = receiver
    settings = {**document.get("global", {}), **wanted.get("global", {})}
    return yaml.safe_dump({**({"global": settings} if settings else {}), **document}, sort_keys=False, allow_unicode=True)


def _shorten(route: dict[str, Any], factor: float) -> None:
    for name in _TIMES:
        if name in route:
            route[name] = format_duration(max(_SHORTEST, parse_duration(route[name]) * factor))
    for child in route.get("routes", ()):
        _shorten(child, factor)
