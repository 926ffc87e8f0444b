"""Relevance: the estimated probability that a request needs one of a group of tools.

The first tools of a ranking are judged together, because a retriever rarely knows which of them is the right one:
by their own probabilities, most right tools of the ranks 2 to 5 would be left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

DIGITS = 6
GROUP = 5
"""Tools that are judged together: the ranks 1 to 5, 6 to 10, and so on."""


def relevance(probabilities: Sequence[float], group: int = GROUP) -> list[float]:
    """Per tool, the probability that one of its group is needed, or one of a later group if that is higher.

    It never rises along the ranking, and a group with a tool that is certainly needed has 1.
    """
    values: list[float] = []
    best = 0.0
    for start in reversed(range(0, len(probabilities), group)):
        tools = probabilities[start : start + group]
        best = max(best, round(1 - math.prod(1 - probability for probability in tools), DIGITS))
        values.extend([best] * len(tools))
    return values[::-1]
