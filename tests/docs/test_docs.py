"""Links, anchors, file names, messages and size of the hand-written pages, and the site that mkdocs builds of them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import PAGES
from paths import ROOT

ROOMS = ("retrievers", "rewrite", "reward", "pipelines")
MAX_BYTES = 150_000
"""Size of README, CONTRIBUTING and the pages together; notes and generated pages are not counted."""
NOTES = sorted((ROOT / "docs/notes").glob("*.md"))


def slug(heading: str) -> str:
    """The anchor of a heading, as code forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]


@pytest.mark.parametrize("page", [*PAGES, *NOTES], ids=lambda page: page.name)
def test_links_and_anchors_exist(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8")):
        if path.startswith("https://"):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {path}"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {path}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_files_exist_and_headings_differ(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folders = "|".join((*ROOMS, "benchmarks", "configs", "docs", "tests"))
    for path in re.findall(rf"\b((?:{folders})/[\w/.-]*\w/?)", text):
        named = ROOT / path
        assert "mine" in path or "YYYY" in path or named.exists() or list(ROOT.glob(f"{path}*")), f"{page.name}: {path}"
    assert len(anchors(page)) == len(set(anchors(page))), f"two headings of {page.name} have the same anchor"


def test_the_pages_stay_small() -> None:
    assert sum(page.stat().st_size for page in PAGES) <= MAX_BYTES


def test_the_site_builds_without_warnings_and_fetches_nothing(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    names = {"README": "index", "CONTRIBUTING": "contributing"}
    for page in (*PAGES, *NOTES):
        folder = "." if page.parent == ROOT else page.parent.relative_to(ROOT / "docs")
        assert (tmp_path / folder / f"{names.get(page.stem, page.stem)}.html").exists()
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img)[^>]+src="https?:|<link[^>]+rel="stylesheet"[^>]+href="https?:', text)
        assert "<p>|" not in text, f"a table of {page.name} is not read as one"


def texts_of_the_program() -> str:
    """All text constants of the code, each on a line."""
    return "\n".join(
        node.value
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def test_messages_of_the_docs_are_those_of_the_program() -> None:
    texts = texts_of_the_program()
    quoted = [
        (page.name, words)
        for page in PAGES
        for table in page.read_text(encoding="utf-8").split("\n| message")[1:]
        for row in table.split("\n\n")[0].split("\n")[2:]
        for words in re.findall(r"`([^`]+)`", row.split(" | ")[0])
        if not re.match(r'rewrite-|newcomers|"|/|stale', words)  # commands, settings, JSON and routes
    ]
    assert len(quoted) > 20
    parts = [(page, part.strip(" ,;%")) for page, words in quoted for part in words.split("…")]
    assert not [(page, part) for page, part in parts if part not in texts]
