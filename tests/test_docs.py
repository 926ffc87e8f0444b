"""The README's tree names every file, and no doc links to nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_tree_in_the_readme_names_every_file() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for room in ("retrievers", "rewrite", "reward", "pipelines"):
        for path in (ROOT / room).rglob("*.py"):
            if path.name != "__init__.py":
                assert re.search(rf"\b{re.escape(path.name)}", readme), f"{path} is missing from the README's tree"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for config in re.findall(r"configs/[\w/-]+\.yaml", text):
        assert (ROOT / config).exists() or "mine" in config, f"{page.name} names {config}"
