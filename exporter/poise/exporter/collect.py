"""Which series `/metrics?collect[]=` and `exclude[]=` choose: every metric belongs to a collector, or to the node and is always there.

The names are those of `poise_collector_success{collector}`, and `checks` for the checklist, which no collector gives. Both parameters mean what they mean
for node_exporter. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from urllib.parse import parse_qsl

from poise.exporter import metrics as m
from poise.exporter.engines.source import DISCOVERY, PAGES
from poise.exporter.metrics import Metric, Owner
from poise.exporter.nvml import identity
from poise.exporter.nvml.statuses import DRIVER_COLLECTOR
from poise.exporter.routers.watch import ROUTERS

#: Parameters of a query; there are some thirty collectors.
MOST_PARAMETERS = 100

CHECKS = "checks"
#: Server-level series of an engine that come from asking it; the others come from its process and its command line.
_FROM_PAGE = frozenset(
    {
        m.ENGINE_UP,
        m.ENGINE_SCRAPE_DURATION,
        m.ENGINE_RTT,
        m.ENGINE_OBSERVED_ROLE_INFO,
        m.ENGINE_MISSING_INFO,
        m.ENGINE_HTTP_REQUESTS,
    }
)
#: What follows from a card's state; it stands with what the card is.
_FROM_STATE = frozenset({m.GPU_UP, m.GPU_LAST_SAMPLE})


def groups_of(cards: Mapping[str, Iterable[Metric]]) -> dict[str, frozenset[Metric]]:
    """Collector → its metrics, of a whole exporter. `cards`: those of the collectors of cards that run."""
    groups = {name: frozenset(metrics) for name, metrics in cards.items()}
    known = identity.COLLECTOR.name
    groups[known] = groups.get(known, frozenset()) | _FROM_STATE
    groups[DRIVER_COLLECTOR] = frozenset()  # it gives nothing but its own success
    groups[PAGES] = _FROM_PAGE | {metric for metric in m.ALL if metric.owner is Owner.WORK}
    groups[DISCOVERY] = frozenset(metric for metric in m.ALL if metric.owner is Owner.ENGINE) - _FROM_PAGE
    groups[ROUTERS] = frozenset(metric for metric in m.ALL if metric.owner is Owner.ROUTER)
    groups[CHECKS] = frozenset({m.CHECK_STATUS})
    return groups


class Groups:
    """The metrics by collector. `off`: collectors that there are and that do not run."""

    def __init__(self, groups: Mapping[str, Collection[Metric]], off: Iterable[str] = ()) -> None:
        self._groups = {name: frozenset(metrics) for name, metrics in groups.items()}
        self._off = frozenset(off)
        #: What belongs to the node and the exporter itself.
        self._always = frozenset(m.ALL).difference(*self._groups.values(), (metric for metric in m.ALL if metric.owner is not Owner.NODE))

    def chosen(self, query: str) -> frozenset[Metric] | None:
        """The metrics that a query asks for; None for all. Parameters of other names are nobody's business and pass.

        Raises:
            ValueError: an unknown collector, both parameters at once, or too many.
        """
        try:
            given = parse_qsl(query, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
        except ValueError:
            raise ValueError(f"the query has more than {MOST_PARAMETERS} parameters") from None
        collect = {value for name, value in given if name == "collect[]"}
        exclude = {value for name, value in given if name == "exclude[]"}
        if collect and exclude:
            raise ValueError("collect[] and exclude[] exclude each other; give one of them")
        for name in sorted(collect | exclude):
            if name in self._off:
                raise ValueError(
                    f"the collector {name!r} is switched off in this exporter; those that run: {', '.join(sorted(self._groups))}"
                )
            if name not in self._groups:
                raise ValueError(f"unknown collector {name[:64]!r}; known are {', '.join(sorted(self._groups))}")
        if collect:
            names = collect
        elif exclude:
            names = set(self._groups) - exclude
        else:
            return None
        found = self._always.union(*(self._groups[name] for name in names))
        # Why series are absent is told of the metrics that were asked for (exposition.py leaves the others out).
        return found | {m.GPU_UNSUPPORTED_INFO} if any(metric.owner is Owner.GPU for metric in found) else found
