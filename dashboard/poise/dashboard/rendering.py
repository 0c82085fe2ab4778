"""Contexts to HTML and JSON. Owns the template environment: everything is escaped, an undefined name is an error. Knows no request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from poise.dashboard import sparkline
from poise.dashboard.assets import Asset
from poise.dashboard.contexts import OverviewContext
from poise.dashboard.texts import Texts


class Renderer:
    """Renders pages below `root_path` (the prefix of a proxy, without a slash at its end), whose streams break silence every `heartbeat` s."""

    def __init__(self, texts: Texts, assets: Mapping[str, Asset], root_path: str, heartbeat: float) -> None:
        environment = Environment(
            loader=PackageLoader("poise.dashboard", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.globals["t"] = texts
        environment.globals["root"] = root_path
        environment.globals["heartbeat_ms"] = round(heartbeat * 1000)
        environment.globals["spark_width"] = sparkline.WIDTH
        environment.globals["spark_height"] = sparkline.HEIGHT
        environment.globals["asset"] = {name: f"{root_path}/static/{name}?v={asset.digest}" for name, asset in assets.items()}
        environment.filters["share"] = _share
        environment.filters["code"] = _code
        # Compiled now, so that neither the first visitor waits nor a broken template is found only when its part is shown.
        for name in environment.list_templates():
            environment.get_template(name)
        self._page = environment.get_template("overview.html")
        self._fragment = environment.get_template("fragment.html")
        self._runbook = environment.get_template("runbook.html")

    def fragment(self, context: OverviewContext) -> str:
        """The part of the page that is pushed at every change."""
        return self._fragment.render(page=context)

    def page(self, context: OverviewContext, version: str) -> str:
        """The whole page; `version` names the state that it shows, so that the stream does not send it again."""
        return self._page.render(page=context, version=version)

    def runbook(self, title: str, body: Markup) -> str:
        """A page of prose: a runbook, or the list of them."""
        return self._runbook.render(title=title, body=body)


def document(context: OverviewContext) -> str:
    """The JSON twin: the context itself."""
    return json.dumps(asdict(context), ensure_ascii=False, allow_nan=False)


def _share(ratio: float) -> str:
    """A share 0..1 as an SVG length: "73.5%"."""
    return f"{max(0.0, min(1.0, ratio)) * 100:.1f}%"


def _code(text: str) -> Markup:
    """Text in which `what stands between backticks` is shown as code; everything is escaped."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner is an ordinary character
        return escape(text)
    return Markup().join(Markup("<code>{}</code>").format(part) if position % 2 else escape(part) for position, part in enumerate(parts))
