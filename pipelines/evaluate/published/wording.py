"""Figures as the table has them."""

from __future__ import annotations


def figure(value: float) -> str:
    """.347; 1.000 stays what it is."""
    return f"{value:.3f}".removeprefix("0")


def probability(p: float | None, below: float | None, against: str) -> str:
    """A p-value, and what it compares with."""
    if below is not None:
        return f"< {_short(below)} ({against})"
    if p is None:
        return ""
    return f"< .001 ({against})" if p < 0.001 else f"{figure(p)} ({against})"


def _short(value: float) -> str:
    return f"{value:g}".removeprefix("0")


def speed(milliseconds: float | None) -> str:
    """Milliseconds, with as many digits as mean something."""
    if milliseconds is None:
        return ""
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.2g}"


def amount(parameters: int | None) -> str:
    """22.7M; nothing for what nobody has counted."""
    if parameters is None:
        return ""
    for unit, size in (("B", 10**9), ("M", 10**6)):
        if parameters >= size:
            return f"{parameters / size:.3g}{unit}"
    return f"{parameters:,}"


class Footnotes:
    """Texts below a table, each once, with their marks."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def mark(self, text: str) -> str:
        """The mark of a text."""
        number = self._numbers.setdefault(text, len(self._numbers) + 1)
        return f"<sup>{number}</sup>"

    @property
    def lines(self) -> list[str]:
        """The texts."""
        return [f"{number}. {text}" for text, number in self._numbers.items()]
