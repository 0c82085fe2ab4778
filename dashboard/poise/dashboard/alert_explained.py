"""An alert with its clauses: what /api/poise/v1/alerts/explain and the page that notifications link to are made from.

Asks the querier and knows no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime

from markupsafe import Markup
from poise.alerts import explain_text
from poise.alerts.explain import Clause, explain
from poise.dashboard.api_prometheus.sources import AlertingRule, RulesSource
from poise.exporter.logs import visible
from poise.history.durations import format_duration
from poise.history.promql.errors import QueryError
from poise.history.querier.door import Querier

Explained = Sequence[tuple[AlertingRule, Clause]]


async def explained(
    name: str, querier: Querier, rules: RulesSource, at: float | None, where: Mapping[str, str], *, now: float
) -> tuple[float, Explained]:
    """The moment, and the rules of an alert's name (one alert may have several), each with its clauses then; none where no alert is called so.

    `at` and the moment are Unix seconds. Without one it is that of the last evaluation, whose samples have all come, so that the clauses belong to
    the state beside them; `now` before the first.

    Raises:
        QueryError: there is nobody to ask.
    """
    flat = [one for group in rules.groups() for one in group.rules]
    wanted = [one for one in flat if isinstance(one, AlertingRule) and one.rule.name == name]
    recordings = {one.name: one.query for one in flat if not isinstance(one, AlertingRule)}
    if at is None:
        at = min((now if one.rule.last_evaluation is None else one.rule.last_evaluation for one in wanted), default=now)
    return at, [(one, await explain(one.rule.query, querier, at, recordings=recordings, where=where)) for one in wanted]


class AlertPage:
    """What the page of an alert says besides its runbook."""

    def __init__(self, querier: Querier, rules: RulesSource, now: Callable[[], float]) -> None:
        self._querier = querier
        self._rules = rules
        self._now = now

    async def __call__(self, name: str, where: Mapping[str, str]) -> Markup | None:
        """HTML; None where no alert is called so."""
        now = self._now()
        try:
            _, found = await explained(name, self._querier, self._rules, None, where, now=now)
        except QueryError as error:
            return Markup("<h1>{}</h1><p>The history cannot be asked: {}</p>").format(name, str(error))
        if not found:
            return None
        parts = [Markup("<h1>{}</h1>").format(name)]
        for rule, clause in found:
            text = "\n".join(visible(line) for line in explain_text.lines(clause, _clock))  # a label forges no line
            parts.append(
                Markup("<p>{}</p><p>It {}.</p><pre>{}</pre>").format(_state(rule, now), explain_text.sentence(rule.state, clause), text)
            )
        return Markup("").join(parts)


def _state(rule: AlertingRule, now: float) -> str:
    words = [f"{rule.state}, {f'holds for {format_duration(rule.duration)} before it fires' if rule.duration else 'fires at once'}."]
    words += [
        f"{alert.state} for {format_duration(max(0, round(now - alert.active_at)))}: {alert.annotations.get('summary', '')}."
        for alert in rule.alerts
    ]
    words += [f"The rule fails: {rule.rule.last_error}."] if rule.rule.last_error else []
    words += [f"{rule.rule.lacks}."] if rule.rule.lacks else []
    return " ".join(words)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S} UTC"
