"""Takes the pictures of the README from a running page: light, dark, and as wide as a phone.

    scripts/screenshots.py [URL] [--output docs/images] [--wait SECONDS]

Run `make up` (or `poise up`) in another terminal first. Waits until the page has a verdict and as much history as --wait asks for.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from playwright.sync_api import sync_playwright

#: Name → (width, height, dark, pixels per CSS pixel, whole page).
PICTURES = {
    "overview-light": (1440, 900, False, 1, False),
    "overview-dark": (1440, 900, True, 1, False),
    "overview-phone": (390, 844, False, 2, True),
}
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def main() -> int:
    parser = argparse.ArgumentParser(description="Take the README's pictures of a running page.")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:9748/", help="the page (default: http://127.0.0.1:9748/)")
    parser.add_argument(
        "--output", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "images", help="folder (default: docs/images)"
    )
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="SECONDS", help="watch the page for so long first, so that it has history"
    )
    arguments = parser.parse_args()

    chromium = shutil.which("chromium")
    if chromium is None:
        print("screenshots: chromium is not installed: apt-get install -y --no-install-recommends chromium", file=sys.stderr)
        return 2
    url = arguments.url.rstrip("/") + "/"
    if not has_verdict(url):
        print(
            f"screenshots: no page with data at {url}: run `make up` in another terminal, wait until it is ready, and try again",
            file=sys.stderr,
        )
        return 2
    if arguments.wait:
        print(f"watching {url} for {arguments.wait:g} s …")
        time.sleep(arguments.wait)
    arguments.output.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        for name, (width, height, dark, scale, whole) in PICTURES.items():
            context = browser.new_context(
                viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", device_scale_factor=scale
            )
            page = context.new_page()
            page.goto(url)
            page.evaluate("document.fonts.ready")
            target = arguments.output / f"{name}.png"
            page.screenshot(path=target, full_page=whole)
            context.close()
            print(f"{target} {target.stat().st_size / 1000:.0f} KB")
        browser.close()
    return 0


def has_verdict(url: str) -> bool:
    """Whether a page answers there and its exporter has answered it."""
    try:
        with urllib.request.urlopen(f"{url}api/poise/v1/overview", timeout=10) as answer:
            document = json.load(answer)
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and document.get("waiting") is False


if __name__ == "__main__":
    sys.exit(main())
