"""The architecture page's tree names every file, and no doc links to nothing."""

from __future__ import annotations

import ast
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_tree_names_every_file_once() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named: list[str] = []
    folders: list[str] = []
    for indent, names in re.findall(r"^ {4}( *)((?:[\w.-]+(?:\.py\b|/)(?:, )?)+)", text, re.MULTILINE):
        for name in names.split(", "):
            if name.endswith("/"):
                folders[len(indent) // 2 :] = [name]
            else:
                named.append("".join([*folders[: len(indent) // 2], name]))
    rooms = ("retrievers", "rewrite", "reward", "pipelines")
    there = [path for room in rooms for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py"]
    assert sorted(named) == sorted(str(path.relative_to(ROOT)) for path in there)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name} links to {target}"
    for config in re.findall(r"configs/[\w/-]+\.yaml", text):
        assert (ROOT / config).exists() or "mine" in config, f"{page.name} names {config}"


def test_the_site_has_every_page_and_no_link_that_leads_nowhere(tmp_path: Path) -> None:
    spec = spec_from_file_location("docs_site", ROOT / "docs" / "site.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    pages = module.build(tmp_path)
    assert len(pages) == len(list((ROOT / "docs").glob("*.md"))) + 2  # README and CONTRIBUTING
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    for name, text in texts.items():
        ids = re.findall(r'<h\d id="([^"]+)"', text)
        assert sorted(ids) == sorted(set(ids)), f"a link into {name} cannot tell two headings apart"
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            if "://" in link:
                continue
            path, _sign, anchor = link.partition("#")
            there = path or name
            assert (tmp_path / there).exists(), f"{name} links to {link}"
            if anchor:
                assert f'id="{anchor}"' in texts[there], f"{name} links to {link}"
        assert "<script" not in text
        assert "http" not in re.sub(r"<(pre|code|a)\b.*?</\1>", "", text, flags=re.DOTALL).partition("<main>")[0]


def said() -> str:
    """All that the program can say: the texts in its code, each on a line."""
    texts = [
        node.value
        for room in ("retrievers", "rewrite", "reward", "pipelines")
        for path in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return "\n".join(texts)


def test_messages_of_the_docs_are_those_of_the_program() -> None:
    everything = said()
    quoted = [
        (page.name, words)
        for page in PAGES
        for table in page.read_text(encoding="utf-8").split("\n| message")[1:]
        for row in table.split("\n\n")[0].split("\n")[2:]
        for words in re.findall(r"`([^`]+)`", row.split(" | ")[0])
        if not re.match(r'rewrite-|"|/|stale', words)  # commands, JSON and routes are no messages
    ]
    assert len(quoted) > 80
    parts = [(page, part.strip(" ,;%")) for page, words in quoted for part in words.split("…")]
    assert not [(page, part) for page, part in parts if part not in everything]
