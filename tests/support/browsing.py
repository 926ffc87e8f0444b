"""A real Chromium in front of a real server process, for the page's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import processes
import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: run `make setup`")
CHROMIUM = os.environ.get("CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: install one, or name it in $CHROMIUM")
CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgb = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return canvas.getImageData(0, 0, 1, 1).data;
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const found = getComputedStyle(at).backgroundColor;
      if (rgb(found)[3] === 255) return found;
    }
    return 'white';
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.checkVisibility({opacityProperty: true}) || node.closest('.unseen, .skip, :disabled')) continue;
    const style = getComputedStyle(node);
    let opacity = 1;
    for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const [back, ink] = [rgb(behind(node)), rgb(style.color)];
    const mixed = [0, 1, 2].map((i) => ink[i] * opacity + back[i] * (1 - opacity));
    const [a, b] = [light(mixed), light(back)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const said = node.textContent.slice(0, 40);
    if (ratio < 4.5) poor.push(`${node.tagName} ${node.className} ${ratio.toFixed(2)} ${said}`);
  }
  return poor;
}"""
"""Texts that are hard to read: less than 4.5 to 1 against what lies behind them."""
NAMELESS = """() => [...document.querySelectorAll('button, input, select, textarea, a, iframe, dialog, section')]
  .filter((node) => node.checkVisibility() && !(node.labels?.length || node.ariaLabel || node.textContent.trim()
    || node.title || node.getAttribute('aria-labelledby')))
  .map((node) => node.outerHTML.slice(0, 120))"""
"""What a screen reader would have no name for."""


@contextmanager
def served(folder: Path, config: dict[str, Any]) -> Iterator[str]:
    """The command as a process; gives its URL."""
    with processes.served(folder, {"index": str(folder / "index"), **config}) as (_, url):
        yield url


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser. Not for longer than a file of tests: it holds the thread's event loop."""
    with playwright.sync_playwright() as driver:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Tab:
    """A page, and everything that it complained of or asked of anybody."""

    page: Any
    url: str
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.set_default_timeout(60_000)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._said)
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("requestfailed", self._failed)
        self.page.on("dialog", lambda dialog: (self.complaints.append("a dialog"), dialog.dismiss()))

    def _said(self, message: Any) -> None:
        if message.type == "error" and "the server responded with a status of 4" not in message.text:
            self.complaints.append(message.text)

    def _failed(self, request: Any) -> None:
        if request.failure == "csp":  # the browser refused to send it
            self.asked.remove(request.url)

    def go(self, where: str = "/") -> Any:
        """Opens a place of the server."""
        self.page.goto(self.url + where)
        return self.page

    def ask(self, text: str) -> None:
        """Types a request."""
        self.page.fill("#utterance", text)
        self.page.press("#utterance", "Enter")

    def texts(self, selector: str) -> list[str]:
        return [text.strip() for text in self.page.locator(selector).all_inner_texts()]

    def check(self) -> None:
        """Nothing was complained of, nobody else was asked, and no text became markup or ran."""
        assert self.complaints == []
        assert [url for url in self.asked if not url.startswith((self.url, "about:", "data:"))] == []
        assert self.page.evaluate("() => window.pwned ?? null") is None


@contextmanager
def tab(browser: Any, url: str, width: int = 1280, dark: bool = False, **more: Any) -> Iterator[Tab]:
    """A fresh tab, checked at its end."""
    scheme = "dark" if dark else "light"
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    made = Tab(context.new_page(), url)
    try:
        yield made
        made.check()
    finally:
        context.close()
