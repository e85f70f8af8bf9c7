"""The page of a proposal in a real browser: laid out, readable, and without a request or an error."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tuned_pages import PAGES

pytestmark = pytest.mark.browser
every_page = pytest.mark.parametrize("name", PAGES)
TOUCHING = 1.0  # pixels by which boxes of texts may overlap, since they have room above and below


NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_CSP = "style-src 'unsafe-inline'"
_PROBE = """
<pre id="probe"></pre>
<script>
const errors = [];
addEventListener("error", event => errors.push(event.message));
addEventListener("securitypolicyviolation", event => errors.push(event.violatedDirective + " " + event.blockedURI));
addEventListener("load", () => {
  const box = element => { const one = element.getBoundingClientRect();
    return {left: one.left, top: one.top, right: one.right, bottom: one.bottom}; };
  const colour = (element, name) => getComputedStyle(element)[name];
  document.getElementById("probe").textContent = JSON.stringify({
    errors,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    scripts: document.querySelectorAll("script:not(:last-of-type)").length,
    widest: document.documentElement.scrollWidth,
    width: innerWidth,
    ink: colour(document.body, "color"),
    paper: colour(document.body, "backgroundColor"),
    faint: colour(document.querySelector("th"), "color"),
    drawings: [...document.querySelectorAll("figure svg")].map(svg => ({
      box: box(svg),
      texts: [...svg.querySelectorAll("text")].map(text => ({words: text.textContent, box: box(text)})),
      bars: [...svg.querySelectorAll("rect")].map(rect => ({
        kind: rect.getAttribute("class"), fill: colour(rect, "fill"), box: box(rect)})),
    })),
  });
});
</script>
"""


@dataclass(frozen=True)
class Browser:
    """An installed browser."""

    program: str
    folder: Path
    """A folder for the profile and the pages."""

    def screenshot(self, html: str, *, width: int = 1100, dark: bool = False) -> tuple[Path, list[str]]:
        """Draw a page as it is; returns the picture, and what the page wrote to the console."""
        picture = self.folder / "page.png"
        told = self._run(html, f"--screenshot={picture}", "--enable-logging=stderr", width=width, dark=dark)
        return picture, re.findall(r"CONSOLE.*", told.stderr)

    def inspect(self, html: str, *, width: int = 1100, dark: bool = False) -> dict[str, Any]:
        """Lay out a page, and return its elements, their places and its errors.

        A script that measures is added to the page, which allows none of its own.
        """
        assert _CSP in html
        probed = html.replace(_CSP, f"{_CSP}; script-src 'unsafe-inline'").replace("</body>", f"{_PROBE}</body>")
        told = self._run(probed, "--dump-dom", width=width, dark=dark)
        (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', told.stdout, re.DOTALL)
        measured: dict[str, Any] = json.loads(unescape(found))
        return measured

    def _run(self, html: str, *options: str, width: int, dark: bool) -> subprocess.CompletedProcess[str]:
        page = self.folder / "page.html"
        page.write_text(html, encoding="utf-8")
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium has no sandbox for root
        return subprocess.run(
            [
                self.program,
                "--headless",
                *sandbox,
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                f"--user-data-dir={self.folder / 'profile'}",
                f"--window-size={width},4000",
                f"--blink-settings=preferredColorScheme={0 if dark else 1}",
                *options,
                page.as_uri(),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"not run: there is no browser ({', '.join(NAMES)}); install one (Debian: chromium)")
    return Browser(program, tmp_path)


def overlapping(drawing: dict[str, Any]) -> list[tuple[str, str]]:
    """Pairs of texts of a drawing of which one hides a part of the other."""
    return [
        (one["words"], other["words"])
        for one, other in combinations(drawing["texts"], 2)
        if all(
            min(one["box"][end], other["box"][end]) - max(one["box"][start], other["box"][start]) > TOUCHING
            for start, end in (("left", "right"), ("top", "bottom"))
        )
    ]


def outside(drawing: dict[str, Any]) -> list[str]:
    frame, ways = drawing["box"], (("left", -1), ("right", 1), ("top", -1), ("bottom", 1))
    return [
        text["words"]
        for text in drawing["texts"]
        if any(sign * (text["box"][side] - frame[side]) > TOUCHING for side, sign in ways)
    ]


def contrast(first: str, second: str) -> float:
    """The contrast ratio of two colours, as WCAG 2 defines it."""
    lighter, darker = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@every_page
def test_a_page_loads_nothing_and_has_no_error(browser: Browser, name: str) -> None:
    page = PAGES[name]()
    found = browser.inspect(page.html)
    _, console = browser.screenshot(page.html)

    assert (found["errors"], found["loaded"], found["scripts"], console) == ([], [], 0, [])


@every_page
def test_texts_are_within_their_drawing_and_apart(browser: Browser, name: str) -> None:
    drawings = browser.inspect(PAGES[name]().html)["drawings"]

    assert drawings
    for drawing in drawings:
        assert overlapping(drawing) == []
        assert outside(drawing) == []


@every_page
def test_a_page_fits_a_narrow_window(browser: Browser, name: str) -> None:
    found = browser.inspect(PAGES[name]().html, width=500)

    assert found["widest"] <= found["width"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read_in_light_and_in_dark(browser: Browser, dark: bool) -> None:
    found = browser.inspect(PAGES["bucketed"]().html, dark=dark)

    assert (_luminance(found["paper"]) < 0.2) == dark
    assert contrast(found["ink"], found["paper"]) >= 7
    assert contrast(found["faint"], found["paper"]) >= 4.5


def test_padding_is_hatched(browser: Browser) -> None:
    page = PAGES["bucketed"]()
    bars = [bar for drawing in browser.inspect(page.html)["drawings"] for bar in drawing["bars"]]
    picture, _ = browser.screenshot(page.html)
    widest = max(
        (bar for bar in bars if bar["kind"] == "padded"), key=lambda bar: bar["box"]["right"] - bar["box"]["left"]
    )
    row = round((widest["box"]["top"] + widest["box"]["bottom"]) / 2)
    pixels = np.asarray(Image.open(picture).convert("RGB"), dtype=float)[row] / 255
    pixels = pixels[round(widest["box"]["left"]) + 2 : round(widest["box"]["right"]) - 2]

    assert {bar["fill"] for bar in bars if bar["kind"] == "padded"} == {'url("#padding")'}
    orange = abs(pixels - (0xD9 / 255, 0x82 / 255, 0x2B / 255)).max(1) < 0.1
    assert 0.1 < orange.mean() < 0.9
