"""Descriptions in HTML or Markdown as plain text.

Only HTML's own tags are removed: `<id>` in a description is a placeholder. Comments and blocks of code, which hold
examples, are left out unless nothing else is there.
"""

from __future__ import annotations

import html
import re
from functools import lru_cache

_TAG_NAMES = (
    "a abbr b big blockquote br caption center code col colgroup dd del details dfn div dl dt em font h1 h2 h3 h4 h5 "
    "h6 hr i img ins kbd li mark ol p pre s samp section small span strike strong sub summary sup table tbody td tfoot "
    "th thead tr tt u ul var"
).replace(" ", "|")
_BLOCK_NAMES = "blockquote|br|caption|dd|div|dl|dt|h[1-6]|hr|li|ol|p|pre|section|summary|table|td|th|tr|ul"
_ATTRIBUTES = r"""(?:\s(?:[^<>"']|"[^"]{0,2000}"|'[^']{0,2000}'){0,2000})?/?"""
MAX_CHARACTERS = 20_000
"""Of a text whose markup is removed: some patterns look ahead for 2,000 characters from every one."""
_INDENT = re.compile(r"[ \t]{101,}")
_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_CODE = re.compile(
    r"^[ \t]*(?P<fence>```|~~~)[^\n]*\n.*?(?:^[ \t]*(?P=fence)[ \t]*$|\Z)|<pre\b[^<>]{0,2000}>.*?(?:</pre\s*>|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^`\n]*$", re.MULTILINE)
_BLOCK = re.compile(rf"</?(?:{_BLOCK_NAMES}){_ATTRIBUTES}>", re.IGNORECASE)
_TAG = re.compile(rf"</?(?:{_TAG_NAMES}){_ATTRIBUTES}>", re.IGNORECASE)
_IMAGE = re.compile(r"!\[([^\[\]\n]{0,500})\](?:\([^()\s]{0,2000}\)|\[[^\[\]\n]{0,200}\])")
_LINK = re.compile(r"\[([^\[\]\n]{1,500})\](?:\((?:[^()\s]|\([^()\s]{0,200}\)){0,2000}(?:\s\"[^\"\n]{0,200}\")?\))")
_AUTOLINK = re.compile(r"<(https?://[^<>\s]{1,2000}|mailto:[^<>\s]{1,200})>")
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+|(?<![ \t])[ \t]+#+[ \t]*$", re.MULTILINE)
_RULE = re.compile(
    r"^[ \t]*(?:[-*_=][ \t]*){3,}$|^[ \t]*\|?(?:[ \t]*:?-{2,}:?[ \t]*\|)+[ \t]*:?-*:?[ \t]*$", re.MULTILINE
)
_STRONG = re.compile(r"(\*\*|__)(?=\S)([^\n]{1,500}?)(?<=\S)\1")
_EMPHASIS = re.compile(r"(?<![\w*])\*(?=[^\s*])([^*\n]{1,500}?)(?<=[^\s*])\*(?![\w*])")
_TICKS = re.compile(r"`{1,3}([^`\n]{1,500})`{1,3}")
_CELLS = re.compile(r"^[ \t]*\|(.*)\|[ \t]*$", re.MULTILINE)
_FAR_CODE = re.compile(r"&#[0-9]{8,};?")
"""Of no character; Python refuses to read a number of 5,000 digits."""
_ESCAPE = re.compile(r"\\([*_#\[\]<>|])")
_QUOTE = re.compile(r"^[ \t]{0,3}>[ \t]?", re.MULTILINE)


@lru_cache(maxsize=4096)
def plain_text(text: str) -> str:
    """The text without markup; unchanged where it has none, and where it is too long for any tool."""
    if len(text) > MAX_CHARACTERS or not any(mark in text for mark in "<&*_`#[|>-=~"):
        return text
    bare = _COMMENT.sub(" ", _INDENT.sub(" " * 100, text))
    return _strip(_CODE.sub("\n", bare)) or _strip(bare)


def _strip(text: str) -> str:
    text = _TAG.sub("", _BLOCK.sub("\n", _FENCE.sub("", text))).replace("\\`", "`")
    text = _AUTOLINK.sub(r"\1", _LINK.sub(r"\1", _IMAGE.sub(r"\1", text)))
    text = _HEADING.sub("", _QUOTE.sub("", _RULE.sub("", text)))
    text = _TICKS.sub(r"\1", _EMPHASIS.sub(r"\1", _STRONG.sub(r"\2", text)))
    text = _CELLS.sub(lambda row: " ".join(cell.strip() for cell in row[1].split("|")), text)
    text = _ESCAPE.sub(r"\1", text)
    # Unescaped last: &lt;b&gt; is text, not a tag.
    text = html.unescape(_FAR_CODE.sub("\ufffd", text))
    lines = (re.sub(r"[ \t\xa0]+", " ", line).strip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).replace("\0", " ").strip()
