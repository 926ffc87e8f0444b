"""HTML that is escaped unless it says otherwise: a plain string is always text, only `Html` is markup."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, lone surrogates, and characters that change the writing direction."""
VOID = frozenset({"input", "meta", "br", "line", "rect", "circle", "path"})
TEXT_LIMIT = 600
"""Longer texts are cut, so that one hostile query cannot fill the page."""


class Html(str):
    """Markup that goes into a page unescaped."""

    __slots__ = ()


def text(value: str) -> Html:
    """Any string as HTML text; `Html` passes as it is."""
    return value if isinstance(value, Html) else Html(escape(UNPRINTABLE.sub("\ufffd", value), quote=True))


def tag(name: str, /, *children: str, **attributes: str | float | bool | None) -> Html:
    """An element. `class_` is class, `aria_label` is aria-label; None and False leave an attribute out.

    >>> tag("td", "<b>", class_="best")
    '<td class="best">&lt;b&gt;</td>'
    """
    written = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID and not children:
        return Html(f"<{name}{written}/>")
    return Html(f"<{name}{written}>{join(children)}</{name}>")


def _attribute(name: str, value: str | float | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def join(parts: Iterable[str], between: str = "") -> Html:
    """Parts as one piece of markup; plain strings among them are escaped."""
    return Html(text(between).join(text(part) for part in parts))


def foreign(value: str) -> Html:
    """A text from the data: cut if very long, its writing direction isolated."""
    return tag("bdi", value if len(value) <= TEXT_LIMIT else value[:TEXT_LIMIT] + "…")


def section(anchor: str, title: str, explanation: str, *content: str) -> Html:
    """A part of the page with heading and explanation."""
    return tag(
        "section",
        tag("h2", title, id=f"{anchor}-title"),
        tag("p", explanation, class_="explanation") if explanation else Html(),
        *content,
        id=anchor,
        aria_labelledby=f"{anchor}-title",
    )


def scrolling(label: str, table: Html) -> Html:
    """A wide table that scrolls by itself."""
    return tag("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def tabs(group: str, legend: str, panels: Iterable[tuple[str, str, Html]], chosen: str | None = None) -> Html:
    """Panels (key, label, content), one shown at a time: radio buttons and CSS, no script needed.

    The script chooses the same key in tabs of the same kind (the group's name up to the dash).
    """
    rows = list(panels)
    keys = [key for key, _, _ in rows]
    start = keys.index(chosen) if chosen in keys else 0
    pieces: list[Html] = []
    for number, (key, label, content) in enumerate(rows):
        mark = f"{group}-{number}"
        pieces.append(tag("input", type="radio", name=group, id=mark, value=key, checked=number == start))
        pieces.append(tag("label", foreign(label), for_=mark))
        pieces.append(tag("div", content, class_="panel"))
    return tag("fieldset", tag("legend", legend, class_="unseen"), *pieces, class_="tabs")
