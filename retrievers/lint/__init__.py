"""Checks of a tool catalogue for what makes retrieval fail.

    thin             no description, one that only repeats the name, or one of a word or two
    duplicate        the same name and text under several ids
    near-duplicate   tools whose texts are almost the same, in clusters
    hub              tools near to far too many others, whose queries they take
    unsplittable     names that give a query no words
    same-name        one name, several tools, descriptions that do not tell them apart
    parameters       tools without any description of their parameters
    hidden           control characters, invisible text, orders to the model
    stuffed          lists of keywords in place of descriptions

>>> [finding.check for finding in lint([Tool("1", "api", "")])]
['thin', 'unsplittable']
"""

from __future__ import annotations

from collections.abc import Sequence

from retrievers.errors import BadInput
from retrievers.lint import hidden, names, texts
from retrievers.lint.finding import Finding, Progress, Severity
from retrievers.types import Tool

__all__ = ["CHECKS", "SEVERITIES", "Finding", "Progress", "Severity", "lint", "summary"]

CHECKS = ("thin", "duplicate", "near-duplicate", "hub", "unsplittable", "same-name", "parameters", "hidden", "stuffed")
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "hint")


def lint(tools: Sequence[Tool], progress: Progress | None = None, *, similarity: float = 0.9) -> list[Finding]:
    """All findings: errors first, then by check, then by tool id; the order of the tools does not matter.

    `similarity` is the TF-IDF cosine from which on two tools are near-duplicates. `progress` is called with the rows
    done and all rows of the comparison, which takes most of the time.
    """
    from retrievers.lint import alike  # scipy: other modules here are imported by every index

    if not 0 < similarity <= 1:
        raise BadInput(f"similarity must be above 0 and at most 1, got {similarity}; 0.9 is the default")
    tools = sorted(tools, key=lambda tool: tool.id)
    duplicates = list(texts.duplicate(tools))
    neighbours = list(alike.alike(tools, similarity, progress))
    findings = [
        *texts.thin(tools),
        *duplicates,
        *neighbours,
        *names.unsplittable(tools),
        *texts.same_name(tools, duplicates + [one for one in neighbours if one.check == "near-duplicate"]),
        *texts.parameters(tools),
        *hidden.hidden(tools),
        *hidden.stuffed(tools),
    ]
    return sorted(findings, key=lambda f: (SEVERITIES.index(f.severity), CHECKS.index(f.check), f.tool_ids))


def summary(findings: Sequence[Finding]) -> dict[str, int]:
    """Number of findings per check, 0 included."""
    return {check: sum(finding.check == check for finding in findings) for check in CHECKS}
