"""README.md, CONTRIBUTING.md and docs/*.md as a static site: plain HTML, one style sheet, nothing fetched.

python docs/site.py [FOLDER]        (runs/site)
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

HERE = Path(__file__).parent
ROOT = HERE.parent
ORDER = (
    "README tutorial choosing limits guide words trouble agents rewriting masstool generative weaver renew shared "
    "poison hostile results matrix experiments data reference architecture CONTRIBUTING"
)
"""How pages stand in the list; others come after these."""


def pages() -> dict[str, Path]:
    """Names of pages, and where each comes from."""
    top = {path.stem: path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md")}
    found = {**top, **{path.stem: path for path in sorted(HERE.glob("*.md"))}}
    wanted = [name for name in ORDER.split() if name in found]
    return {name: found[name] for name in [*wanted, *(name for name in found if name not in wanted)]}


def address(name: str) -> str:
    """The file of a page."""
    return "index.html" if name == "README" else f"{name}.html"


def slug(heading: str) -> str:
    """A heading's anchor, as code forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def target(link: str, page: Path) -> str:
    """Where a link of a page leads on the site; pages link to each other, everything else stays as it is."""
    path, sign, anchor = link.partition("#")
    if "://" in path or not path.endswith(".md"):
        return link.removeprefix("docs/") if page.parent == ROOT and "://" not in path else link
    whole = (page.parent / path).resolve()
    if whole.parent not in (HERE.resolve(), ROOT.resolve()) or whole.stem not in pages():
        return link
    return address(whole.stem) + sign + anchor


def _walk(tokens: Sequence[Token], page: Path) -> None:
    for place, token in enumerate(tokens):
        for key in ("href", "src"):
            if token.attrGet(key) is not None:
                token.attrSet(key, target(str(token.attrGet(key)), page))
        if token.type == "heading_open":
            token.attrSet("id", slug(tokens[place + 1].content))
        _walk(token.children or [], page)


def render(page: Path) -> tuple[str, str]:
    """Title and body of a page."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    tokens = markdown.parse(page.read_text(encoding="utf-8"))
    _walk(tokens, page)
    headings = [tokens[place + 1].content for place, token in enumerate(tokens) if token.type == "heading_open"]
    body = str(markdown.renderer.render(tokens, markdown.options, {}))
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return (headings or [page.stem])[0], body


def build(folder: Path) -> list[Path]:
    """Writes the site, and gives its pages."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "site.css", folder / "style.css")
    for path in HERE.iterdir():
        if path.is_dir() and not path.name.startswith(("_", ".")):
            shutil.copytree(path, folder / path.name, dirs_exist_ok=True)
        elif path.suffix in (".png", ".svg"):
            shutil.copy(path, folder / path.name)
    made = {name: render(path) for name, path in pages().items()}
    for name, (title, body) in made.items():
        links = "".join(
            f'<li><a href="{address(each)}"{" aria-current=page" if each == name else ""}>{escape(head)}</a></li>'
            for each, (head, _) in made.items()
        )
        (folder / address(name)).write_text(
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f'<title>{escape(title)}</title><link rel="stylesheet" href="style.css"></head>\n'
            f"<body><nav><ul>{links}</ul></nav>\n<main>\n{body}</main></body></html>\n",
            encoding="utf-8",
        )
    return [folder / address(name) for name in made]


if __name__ == "__main__":
    made = build(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/site"))
    sys.stdout.write(f"{len(made)} pages: {made[0]}\n")
