"""The page under `/`: what runs here, how its collectors do, and where everything else is. One static document, no script, no foreign file."""

from __future__ import annotations

import html
from collections.abc import Iterable
from string import Template

from poise.exporter.assemble import Published
from poise.exporter.snapshot import CollectorStatus

HEADERS = (("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; img-src data:"),)

_LINKS = (
    ("/metrics", "the series, for Prometheus; <code>?collect[]=NAME</code> and <code>?exclude[]=NAME</code> choose among collectors"),
    ("/checks", "the checklist as JSON, which <code>poise doctor</code> shows"),
    ("/healthz", "200 while the process lives"),
    ("/readyz", "200 once there is a snapshot"),
)


def document(version: str, published: Published | None) -> bytes:
    """The page in UTF-8; everything that a driver, a process or a person named is escaped."""
    facts = "".join(f"<tr><th scope=row>{html.escape(name)}<td>{html.escape(value)}" for name, value in _facts(version, published))
    links = "".join(f'<li><a href="{path}">{path}</a> <span>{text}</span>' for path, text in _LINKS)
    collectors = _collectors(published.snapshot.collectors) if published is not None else ""
    return _PAGE.substitute(facts=facts, links=links, collectors=collectors).encode("utf-8", "replace")


def _facts(version: str, published: Published | None) -> list[tuple[str, str]]:
    facts = [("Version", version)]
    if published is None:
        return [*facts, ("State", "starting: no snapshot yet")]
    snapshot = published.snapshot
    expected = "" if snapshot.gpus_expected is None else f" of {snapshot.gpus_expected} expected"
    facts += [
        ("Node", snapshot.node),
        ("Driver", snapshot.driver.driver or snapshot.driver.error),
        ("Cards", f"{sum(gpu.up for gpu in snapshot.gpus)}{expected}{' (simulated)' if snapshot.simulated else ''}"),
        ("Engines", ", ".join(engine.identity.engine for engine in snapshot.engines) or "none found"),
    ]
    if snapshot.routers:
        facts.append(("Routers", ", ".join(router.name for router in snapshot.routers)))
    if published.outcome is not None:
        facts.append(("Verdict", published.outcome.verdict.summary))
    return facts


def _collectors(statuses: Iterable[CollectorStatus]) -> str:
    rows = []
    for status in sorted(statuses, key=lambda status: (status.success, status.name)):
        word = "ok" if status.success else "fails"
        took = "" if status.duration is None else f"{status.duration * 1000:.2f} ms"
        cells = (status.name, word, f"{status.interval:g} s", took, status.error)
        kind = "" if status.success else ' class="fails"'
        rows.append(f"<tr{kind}>" + "".join(f"<td>{html.escape(cell)}" for cell in cells))
    head = "".join(f"<th scope=col>{name}" for name in ("Collector", "Last run", "Every", "Took", "Why it fails"))
    return f"<h2>Collectors</h2>\n<div><table><tr>{head}{''.join(rows)}</table></div>" if rows else ""


_PAGE = Template("""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<title>Poise exporter</title>
<style>
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 56rem; margin: 2.5rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.1rem; margin-top: 2rem }
table { border-collapse: collapse } th, td { text-align: left; padding: .15rem 1.5rem .15rem 0; vertical-align: top }
th { font-weight: 600; white-space: nowrap } td { overflow-wrap: anywhere } td:first-child { white-space: nowrap }
div { overflow-x: auto } td:nth-child(3), td:nth-child(4) { white-space: nowrap }
tr.fails td:nth-child(2) { font-weight: 700 }
ul { list-style: none; padding: 0 } li { margin: .15rem 0 } li a { display: inline-block; min-width: 6rem } li span { opacity: .8 }
</style>
<h1>Poise exporter</h1>
<table>$facts</table>
<h2>Pages</h2>
<ul>$links</ul>
$collectors
</html>
""")
