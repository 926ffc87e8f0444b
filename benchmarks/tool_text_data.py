"""Catalogues and queries for tool_text.py: parameters and providers are taken back out of the texts of public sets.

Public corpora write a tool as one text (`Parameters: city (string, required): Name of the city; …`). An index of a real
catalogue has them as fields, so they are parsed here; what cannot be parsed stays in the description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from pipelines.data.dataset import DataSet, limit_queries, load_dataset
from retrievers.index.tools import decode
from retrievers.types import Parameter, Tool

_PARAMETER = re.compile(r"(?:^|; )([\w$@.\-\[\]/]+)(?: \(([^()]*(?:\([^()]*\))?[^()]*)\))?(?:: |(?=; |$))")
_PROVIDERS, _CATEGORIES = ("Service", "Module"), ("Domain", "Category")
MIXED = (
    *("toollens", "bfcl", "apollo_tau", "aws_cli", "powershell", "dria", "toollinkos", "sgd", "n8n", "clinc150"),
    *("nushell", "toole"),
)
"""Sets of different fields that make one mixed catalogue."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A catalogue with queries."""

    name: str
    tools: tuple[Tool, ...]
    """Ordered by id, as equal scores are."""
    queries: tuple[str, ...]
    gold: tuple[frozenset[str], ...]
    any_of: bool = False
    """One gold tool in the list is all that is asked for."""


def load_trial(folder: Path, split: str, limit: int, seed: int = 0) -> Trial:
    """A data set folder with at most `limit` queries; a folder with `tools.jsonl` is a real catalogue."""
    if (folder / "tools.jsonl").exists():
        return _real_trial(folder, split)
    data = limit_queries(load_dataset(str(folder)), limit, seed)
    return _trial(folder.name, [structured(tool) for tool in data.tools], data, split)


def mix(trials: Sequence[Trial], max_queries: int) -> Trial:
    """One catalogue of several, with up to `max_queries` queries of each."""
    chosen = [trial for trial in trials if trial.name in MIXED]
    tools = [replace(tool, id=f"{trial.name}/{tool.id}") for trial in chosen for tool in trial.tools]
    pairs = [
        (query, frozenset(f"{trial.name}/{tool}" for tool in gold))
        for trial in chosen
        for query, gold in list(zip(trial.queries, trial.gold, strict=True))[:max_queries]
    ]
    return Trial("mixed", _in_order(tools), tuple(query for query, _ in pairs), tuple(gold for _, gold in pairs))


def _trial(name: str, tools: Iterable[Tool], data: DataSet, split: str) -> Trial:
    gold = data.split(split)
    order = sorted(gold)
    texts = tuple(data.queries[query].text for query in order)
    return Trial(name, _in_order(tools), texts, tuple(gold[query] for query in order))


def _in_order(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    return tuple(sorted(tools, key=lambda tool: tool.id))


def _real_trial(folder: Path, split: str) -> Trial:
    """`tools.jsonl` as an index stores it; requests have a split, a text and the tools of which any one is right."""
    tools = [decode(line) for line in (folder / "tools.jsonl").read_bytes().splitlines()]
    wanted = "dev" if split == "train" else split
    rows = [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["split"] == wanted]
    gold = tuple(frozenset(row["tools"]) for row in rows)
    return Trial(folder.name, _in_order(tools), tuple(row["text"] for row in rows), gold, any_of=True)


def structured(tool: Tool) -> Tool:
    """The tool with provider, category and parameters as fields instead of lines of its description."""
    name, provider, category = tool.name, tool.provider, tool.category
    if tool.description.startswith("category_name:"):
        return _toollens(tool)
    before, colon, rest = name.partition(": ")
    if colon and rest:
        name, provider = rest, provider or before
    kept: list[str] = []
    parameters: tuple[Parameter, ...] = ()
    for line in tool.description.split("\n"):
        key, _, value = line.partition(": ")
        if key == "Parameters" and (parsed := parse_parameters(value)):
            parameters = parsed
        elif key in _PROVIDERS and not provider:
            provider = value
        elif key in _CATEGORIES:
            category = value
        elif key in ("Tool", "API"):
            provider = provider or value.partition(". ")[0]
            kept.append(value.partition(". ")[2])
        else:
            kept.append(line)
    description = "\n".join(line for line in kept if line)
    return replace(
        tool, name=name, provider=provider, category=category, description=description, parameters=parameters
    )


def parse_parameters(text: str) -> tuple[Parameter, ...]:
    """Parameters out of `name (type, required): description; …`."""
    matches = list(_PARAMETER.finditer(text))
    result = []
    for match, following in zip_longest(matches, matches[1:]):
        description = text[match.end() : following.start() if following else None].strip()
        kinds = [kind.strip() for kind in (match.group(2) or "").split(",")]
        if not match.group(2) and description.startswith("("):  # `name: (type) description`
            kind, _, description = description[1:].partition(")")
            kinds = [kind]
        kind = ", ".join(kind for kind in kinds if kind and kind != "required")
        result.append(Parameter(match.group(1), kind, description.strip(), "required" in kinds))
    return tuple(result)


def _toollens(tool: Tool) -> Tool:
    text = tool.description
    description = re.split(r", required_params: \[", text.partition("api_description:")[2])[0]
    entries: list[Mapping[str, str]] = []
    parameters = []
    for key, required in (("required_params: ", True), ("optional_params: ", False)):
        start = text.find(key)
        try:
            entries = json.JSONDecoder().raw_decode(text, start + len(key))[0] if start >= 0 else []
        except ValueError:
            entries = []
        for entry in entries:
            about = str(entry.get("description", ""))
            parameters.append(
                Parameter(str(entry.get("name", "")), str(entry.get("type", "")).lower(), about, required)
            )
    name = tool.name.partition(": ")[2] or tool.name
    return replace(tool, name=name, description=description, parameters=tuple(parameters))
