"""The code blocks of the docs, and the commands in them."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from markdown_it import MarkdownIt
from paths import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs/figures/README.md",
]
_REASON = re.compile(r"<!-- not run: (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code."""

    page: str
    line: int
    language: str
    """Empty for an indented block."""
    text: str
    reason: str
    """Why it cannot be run in a test; empty: it is run."""

    @property
    def name(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"


def blocks() -> list[Block]:
    """Read all blocks. A comment `<!-- not run: reason -->` applies to the block after it."""
    read = []
    for page in PAGES:
        reason = ""
        for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
            if token.type == "html_block" and (match := _REASON.search(token.content)):
                reason = " ".join(match[1].split())
            elif token.type in ("fence", "code_block"):
                line = (token.map or [0])[0] + 1
                read.append(Block(page.name, line, token.info.strip(), token.content, reason))
                reason = ""
    return read


def commands(block: Block) -> list[list[str]]:
    """Split the commands of a block into words: all lines of a shell block, our commands of an indented one."""
    if block.language not in ("", "sh", "bash"):
        return []
    split = []
    for line in re.sub(r"\\\n\s*", " ", block.text).split("\n"):
        first = line.split(" ", 1)[0]
        if block.language or re.fullmatch(r"rewrite-\w+|make|python|accelerate|curl|export|source", first):
            words = shlex.split(line, comments=True)
            if words:
                split.append(words)
    return split
