"""Text without what nobody sees: control characters, tags, zero-width and direction marks.

Two joiners stay where a script needs them: between letters that are not Latin, and inside emoji.

>>> visible("pay\\u200bpal \\U000e0061bc \\u202eevil"), visible("a\\tb\\nc")
('paypal bc evil', 'a\\tb\\nc')
"""

from __future__ import annotations

import regex

UNSEEN = regex.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # controls, without tab and line ends
    r"|[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff"
    r"\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
    r"|(?<![\p{L}--\p{Latin}]|\p{M}|\p{So}|\ufe0f|\p{Sk})[\u200c\u200d]|[\u200c\u200d](?![\p{L}--\p{Latin}]|\p{So}|\p{M})",
    regex.V1,
)
"""What a reader does not see and a model does."""


def visible(text: str) -> str:
    """The text as a person sees it."""
    seen: str = UNSEEN.sub("", text)
    return seen
