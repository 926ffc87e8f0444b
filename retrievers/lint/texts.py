"""Checks that look at one tool, or at tools with the same words: thin, duplicate, same-name, parameters."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain

from retrievers.lint.finding import Finding, Severity, ids, listed, quoted
from retrievers.lint.vocabulary import MAX_CHARACTERS, informative
from retrievers.text import document, tokens
from retrievers.types import Tool, ToolId

MIN_WORDS = 3  # informative words a description should have: what is done, to what, and one thing more


def thin(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Tools whose description gives a query nothing to match beyond the name."""
    for tool in tools:
        described = informative(tool.description[:MAX_CHARACTERS])
        named = informative(tool.name)
        name = quoted(tool.name)
        if not described and not tokens(tool.description):
            message = f"{name} has no description: say in a sentence what it does, to what, and when to use it"
            yield Finding("thin", (tool.id,), message, "error")
        elif described <= named:
            # `calculate_triangle_area: Calculates the area of a triangle` is found all the same.
            severity: Severity = "hint" if len(named) >= MIN_WORDS else "warning"
            message = f"the description of {name} only repeats its name: say what it returns and when to use it"
            yield Finding("thin", (tool.id,), message, severity)
        elif len(described) < MIN_WORDS:
            count = len(described)
            message = f"the description of {name} has {count} informative words: add what it returns and for whom"
            yield Finding("thin", (tool.id,), message, "hint")


def duplicate_key(tool: Tool) -> Hashable:
    """Name and indexed text up to case and white space, equal for duplicates."""
    return " ".join(tool.name.casefold().split()), " ".join(document(tool).casefold().split())


def duplicate(tools: Sequence[Tool]) -> Iterator[Finding]:
    """The same tool under several ids."""
    for group in _groups(tools, duplicate_key):
        message = (
            f"{quoted(group[0].name)} is in the catalogue {len(group)} times with the same text: keep one of "
            f"{listed(ids(group))}, since a query cannot choose between them"
        )
        yield Finding("duplicate", ids(group), message, "error")


def same_name(tools: Sequence[Tool], reported: Sequence[Finding]) -> Iterator[Finding]:
    """Tools with the same name and the same words in their descriptions, unless `reported` already."""
    holding: dict[ToolId, list[set[ToolId]]] = {}
    for finding in reported:
        members = set(finding.tool_ids)
        for tool_id in members:
            holding.setdefault(tool_id, []).append(members)
    same_names = _groups(tools, lambda tool: tool.name.strip().casefold())
    # Words of the common name cannot distinguish the tools, even if a description repeats them.
    same_words = (
        _groups(group, lambda tool: frozenset(informative(tool.description) - informative(tool.name)))
        for group in same_names
    )
    for group in chain.from_iterable(same_words):
        if any(members.issuperset(ids(group)) for members in holding.get(group[0].id, ())):
            continue
        providers = sorted({tool.provider for tool in group if tool.provider})
        whose = f" (from {listed(providers)})" if len(providers) > 1 else ""
        message = (
            f"{len(group)} tools are called {quoted(group[0].name)}{whose} and their descriptions do not tell them "
            "apart: say in each what only that one does"
        )
        yield Finding("same-name", ids(group), message, "hint")


def parameters(tools: Sequence[Tool]) -> Iterator[Finding]:
    """Tools that describe none of their parameters; one finding per provider, since one author wrote them all."""
    bare = [tool for tool in tools if tool.parameters and not any(p.description.strip() for p in tool.parameters)]
    for group in _groups(bare, lambda tool: tool.provider, smallest=1):
        whose = f" of {quoted(group[0].provider)}" if group[0].provider else ""
        if len(group) == 1:
            message = (
                f"{quoted(group[0].name)}{whose} describes none of its parameters: say in a few words what each takes"
            )
        else:
            message = (
                f"{len(group)} tools{whose} describe none of their parameters ({listed(tool.name for tool in group)}): "
                "say in a few words what each takes"
            )
        yield Finding("parameters", ids(group), message, "hint")


def _groups(tools: Sequence[Tool], key: Callable[[Tool], Hashable], smallest: int = 2) -> Iterator[list[Tool]]:
    """Groups of tools with the same key, in the order of their first."""
    groups: dict[Hashable, list[Tool]] = {}
    for tool in tools:
        groups.setdefault(key(tool), []).append(tool)
    return (group for group in groups.values() if len(group) >= smallest)
