"""A browser, and for each test a tab that fails it on console errors and on requests that leave the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.node_scenes import NodeScene
from tests.web.serving import Served

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, one per module: while it runs, its event loop keeps other tests of this thread from having one."""
    if not Path(CHROMIUM).exists():
        pytest.fail("chromium is not installed: apt-get install -y --no-install-recommends chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """`serve(scene, root_path=…)`: a running page; ended with the test."""
    with ExitStack() as stack:

        def start(scene: NodeScene, **how: object) -> Served:
            served = Served(scene, **how).start()  # type: ignore[arg-type]  # passed through unchanged
            stack.callback(served.stop)
            return served

        yield start


class Watched:
    """What a tab complained of and asked for."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.hosts: set[str] = set()
        self.allowed: tuple[str, ...] = ()

    def watch(self, page: Page) -> None:
        """Listen to a tab."""
        page.on("console", lambda message: self.errors.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname or ""))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))


@pytest.fixture
def watched() -> Iterator[Watched]:
    """Fails the test when a tab had an error that it did not allow, opened a dialog, or asked another host."""
    found = Watched()
    yield found
    assert [error for error in found.errors if not any(text in error for text in found.allowed)] == []
    assert found.dialogs == []
    assert found.hosts <= {"127.0.0.1"}


@pytest.fixture
def open_tab(browser: Browser, watched: Watched) -> Iterator[Callable[..., Page]]:
    """`open_tab(url, width=390, dark=True, javascript=False)`: a tab of its own profile."""
    with ExitStack() as stack:

        def start(url: str, *, width: int = 1440, height: int = 900, dark: bool = False, javascript: bool = True) -> Page:
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", java_script_enabled=javascript
            )
            stack.callback(context.close)
            page = context.new_page()
            watched.watch(page)
            page.goto(url)
            return page

        yield start
