"""Photograph the page of a bare `rewrite-serve` for docs/deployment.md, in a headless Chromium (`$CHROMIUM`).

python docs/screenshots.py [FOLDER]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

DOCS = Path(__file__).resolve().parent
REQUEST = "got to be in Manchester by 10 on Tuesday, pick a train from Sheffield and pop it in my diary"
NAMES = ("chromium", "chromium-browser", "google-chrome")
SERVE = "import sys; from pipelines.cli.main import serve; sys.exit(serve(sys.argv[1:]))"
MAX_BYTES = 300_000


@dataclass(frozen=True, slots=True)
class Picture:
    """A file, and how the browser shows the page in it."""

    name: str
    width: int
    scheme: str


PICTURES = (Picture("page.png", 1120, "light"), Picture("page-narrow.png", 390, "dark"))


@contextmanager
def served() -> Iterator[str]:
    """The URL of the sample, served by the default config on a free port."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-c", SERVE, "--set", "port=0"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as server:
            try:
                assert server.stdout is not None
                line = server.stdout.readline()
                if not line.startswith("rewrite-serve: http"):
                    server.wait()
                    log.seek(0)
                    raise RuntimeError(f"the server did not start: {log.read()}")
                yield line.split()[1].strip(",")
            finally:
                server.terminate()


def photograph(browser: Browser, url: str, picture: Picture, folder: Path) -> Path:
    """One search with and without votes, and the way of the first tool to its rank."""
    page = browser.new_page(viewport={"width": picture.width, "height": 900}, color_scheme=picture.scheme)
    page.goto(url)
    page.wait_for_selector(".steps")
    page.select_option("#top", "5")
    page.fill("#utterance", REQUEST)
    page.press("#utterance", "Enter")
    page.wait_for_selector(".compared")
    why = page.locator(".column.right .why").first
    why.locator("summary", has_text="votes").click()
    page.mouse.move(0, 0)
    path = folder / picture.name
    page.screenshot(path=path, full_page=True)
    page.close()
    return path


def main(folder: Path) -> None:
    """Make both pictures."""
    executable = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with served() as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=executable, args=arguments)
        for picture in PICTURES:
            path = photograph(browser, url, picture, folder)
            size = path.stat().st_size
            sys.stdout.write(f"{path}: {size:,} bytes\n")
            if size > MAX_BYTES:
                raise RuntimeError(f"{path} has more than {MAX_BYTES:,} bytes")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS)
