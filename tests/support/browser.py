"""A real browser without a window: Chromium or Chrome, which loads a page and tells what became of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

import pytest

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
    faint: colour(document.querySelector(".cards span"), "color"),
    heading: document.querySelector("h1").textContent,
    drawings: [...document.querySelectorAll("figure svg")].map(svg => ({
      box: box(svg),
      texts: [...svg.querySelectorAll("text")].map(text => ({words: text.textContent, box: box(text)})),
      bars: [...svg.querySelectorAll("rect")].map(rect => ({
        kind: rect.getAttribute("class"), fill: colour(rect, "fill"), box: box(rect)})),
    })),
    tables: [...document.querySelectorAll("table")].map(table => ({
      caption: table.caption.textContent,
      rows: [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => cell.textContent)),
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


def browser_or_skip(folder: Path) -> Browser:
    """The browser of this machine; the test is skipped where there is none."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"not run: there is no browser ({', '.join(NAMES)}); install one (Debian: chromium)")
    return Browser(program, folder)
