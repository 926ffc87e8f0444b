"""Ways to write a tool as text, and lexical scores of them: one bag of words (BM25) or weighted fields (BM25F)."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import sparse

from retrievers.text import clean, document, tokens, words
from retrievers.types import Parameter, Tool

FIELDS = ("name", "description", "parameter_names", "parameter_texts", "provider", "category")


def _parameters(tool: Tool, change: Callable[[Parameter], Parameter | None]) -> Tool:
    changed = (change(parameter) for parameter in tool.parameters)
    return replace(tool, parameters=tuple(parameter for parameter in changed if parameter))


def _cut(tool: Tool, size: int) -> str:
    """The text with at most `size` characters of parameters, whole ones only."""
    kept: list[Parameter] = []
    for parameter in tool.parameters:
        size -= len(f"{parameter.name} ({parameter.type}): {parameter.description}; ")
        if size < 0:
            break
        kept.append(parameter)
    return document(replace(tool, parameters=tuple(kept)))


def _names(tool: Tool, required: bool = False) -> str:
    """The text with the names of parameters only, as words."""
    named = [" ".join(words(p.name)) or p.name for p in tool.parameters if p.required or not required]
    return document(replace(tool, parameters=tuple(Parameter(name) for name in named)))


def _bare(tool: Tool) -> Tool:
    return replace(tool, parameters=())


def first_sentence(text: str) -> str:
    """The text up to its first full stop or line end."""
    return re.split(r"(?<=[.!?])\s|\n", text.strip(), maxsplit=1)[0]


def _provider_first(tool: Tool) -> str:
    spaced = tool.name if " " in tool.name else " ".join(words(tool.name)) or tool.name
    named = not tool.provider or tool.provider.casefold() in tool.name.casefold()
    first = spaced if named else f"{tool.provider}: {spaced}"
    return document(replace(tool, name=first, provider=""))


def _no_identifier(tool: Tool) -> str:
    return document(replace(tool, name=" ".join(words(tool.name)) or tool.name))


FORMS: dict[str, Callable[[Tool], str]] = {
    "default": document,
    "no parameters": lambda tool: document(_bare(tool)),
    "parameter names": _names,
    "required names": lambda tool: _names(tool, required=True),
    "no types": lambda tool: document(_parameters(tool, lambda p: replace(p, type=""))),
    "required only": lambda tool: document(_parameters(tool, lambda p: p if p.required else None)),
    "cut 100": lambda tool: _cut(tool, 100),
    "cut 200": lambda tool: _cut(tool, 200),
    "cut 400": lambda tool: _cut(tool, 400),
    "provider first": _provider_first,
    "provider first, no parameters": lambda tool: _provider_first(_bare(tool)),
    "provider first, parameter names": lambda tool: _provider_first(
        _parameters(tool, lambda p: Parameter(" ".join(words(p.name)) or p.name))
    ),
    "no provider": lambda tool: document(replace(tool, provider="")),
    "no provider, no category": lambda tool: document(replace(tool, provider="", category="")),
    "no identifier": _no_identifier,
    "first sentence": lambda tool: document(replace(_bare(tool), description=first_sentence(tool.description))),
}
"""Whole texts: one vector or one bag of words each."""

PARTS: dict[str, Callable[[Tool], str]] = {
    "name": lambda tool: document(tool, ("name",)).split("\n")[0],
    "description": lambda tool: tool.description or tool.name,
    "parameters": lambda tool: document(tool, ("parameters",)) or document(tool, ("name",)).split("\n")[0],
    "name and parameters": lambda tool: document(tool, ("name", "parameters")),
    "name and provider": lambda tool: document(tool, ("name", "provider", "category")),
}
"""Parts of a tool, for several vectors per tool or weighted sums of them."""


MAX_PARAMETERS = 12


def parameter_texts(tool: Tool) -> list[str]:
    """One text per parameter, for a vector each."""
    name = document(tool, ("name",)).split("\n")[0]
    return [
        f"{name}: {' '.join(words(parameter.name)) or parameter.name}. {parameter.description}".strip()
        for parameter in tool.parameters[:MAX_PARAMETERS]
    ]


def field_texts(tool: Tool) -> dict[str, str]:
    """The fields of BM25F."""
    return {
        "name": document(tool, ("name",)),
        "description": tool.description,
        "parameter_names": " ".join(parameter.name for parameter in tool.parameters),
        "parameter_texts": " ".join(f"{parameter.type} {parameter.description}" for parameter in tool.parameters),
        "provider": "" if tool.provider.casefold() in tool.name.casefold() else tool.provider,
        "category": "" if tool.category.casefold() in tool.name.casefold() else tool.category,
    }


class Words:
    """One vocabulary for the tools and queries of a catalogue."""

    def __init__(self, queries: Sequence[str]) -> None:
        self._ids: dict[str, int] = {}
        self.queries = self.count(queries, grow=True)
        self.size = len(self._ids)

    def count(self, texts: Iterable[str], grow: bool = False) -> sparse.csr_matrix:
        """(texts, words): counts of the words that some query has."""
        return self.count_all(texts, grow)[0]

    def count_all(self, texts: Iterable[str], grow: bool = False) -> tuple[sparse.csr_matrix, np.ndarray]:
        """Counts of the words that some query has, and the number of all words."""
        rows, columns, counts, lengths = [], [], [], []
        for row, text in enumerate(texts):
            present = tokens(clean(text) if grow else text)
            lengths.append(len(present))
            for token, count in Counter(present).items():
                word = self._ids.setdefault(token, len(self._ids)) if grow else self._ids.get(token)
                if word is not None:
                    rows.append(row)
                    columns.append(word)
                    counts.append(float(count))
        shape = (len(lengths), len(self._ids))
        return sparse.csr_matrix((counts, (rows, columns)), shape=shape), np.array(lengths, dtype=float)


def bag_scores(vocabulary: Words, texts: Sequence[str], k1: float = 1.5, b: float = 0.75) -> np.ndarray:
    """(queries, tools): BM25 as the product computes it."""
    counts, lengths = vocabulary.count_all(texts)
    return _scores(vocabulary, _normalised(counts, lengths, b), _idf(counts), k1)


@dataclass(frozen=True, slots=True)
class FieldWeights:
    """Weight and length normalisation per field; parameters: names and texts."""

    name: float = 1.0
    description: float = 1.0
    parameter_names: float = 1.0
    parameter_texts: float = 1.0
    provider: float = 1.0
    category: float = 1.0
    b_name: float = 0.75
    b_description: float = 0.75
    b_parameters: float = 0.75
    b_provider: float = 0.75
    k1: float = 1.5
    together: bool = False
    """Weigh words, not fields: one length of all weighted words, and b_description for it."""

    def of(self, field: str) -> tuple[float, float]:
        """Weight and b of a field."""
        kind = {"parameter_names": "parameters", "parameter_texts": "parameters", "category": "provider"}
        return getattr(self, field), getattr(self, f"b_{kind.get(field, field)}")


FieldCounts = Mapping[str, tuple[sparse.csr_matrix, np.ndarray]]


def count_fields(vocabulary: Words, tools: Sequence[Tool]) -> FieldCounts:
    """Counts per field."""
    texts = [field_texts(tool) for tool in tools]
    return {field: vocabulary.count_all(text[field] for text in texts) for field in FIELDS}


def field_scores(vocabulary: Words, fields: FieldCounts, weights: FieldWeights) -> np.ndarray:
    """(queries, tools): BM25F (Robertson, Zaragoza and Taylor, 2004), with the product's idf."""
    if weights.together:
        return _weighted_words(vocabulary, fields, weights)
    shape = fields["name"][0].shape
    total, whole = sparse.csr_matrix(shape), sparse.csr_matrix(shape)
    for field, (counts, lengths) in fields.items():
        weight, b = weights.of(field)
        if weight:
            total = total + weight * _normalised(counts, lengths, b)
            whole = whole + counts
    return _scores(vocabulary, total, _idf(whole), weights.k1)


def _weighted_words(vocabulary: Words, fields: FieldCounts, weights: FieldWeights) -> np.ndarray:
    used = {field: weights.of(field)[0] for field in fields if weights.of(field)[0]}
    total = sum(weight * fields[field][0] for field, weight in used.items())
    lengths = np.sum([weight * fields[field][1] for field, weight in used.items()], axis=0)
    idf = _idf(sum(fields[field][0] for field in used))
    return _scores(vocabulary, _normalised(total, lengths, weights.b_description), idf, weights.k1)


def _normalised(counts: sparse.csr_matrix, lengths: np.ndarray, b: float) -> sparse.csr_matrix:
    """Counts over relative length. A field that most tools lack has the mean of those that have it."""
    mean = lengths[lengths > 0].mean() if (lengths > 0).any() else 1.0
    return sparse.csr_matrix(sparse.diags(1 / (1 - b + b * np.maximum(lengths, 1) / mean)) @ counts)


def _idf(counts: sparse.csr_matrix) -> np.ndarray:
    frequency = np.asarray((counts > 0).sum(axis=0)).ravel()
    idf: np.ndarray = np.log((counts.shape[0] + 1) / np.maximum(frequency, 1))
    return idf


def _scores(vocabulary: Words, counts: sparse.csr_matrix, idf: np.ndarray, k1: float) -> np.ndarray:
    scored = counts.copy().tocsr()
    scored.data = scored.data * (k1 + 1) / (scored.data + k1)
    scored = sparse.csr_matrix(scored.multiply(idf[None, :]))
    result: np.ndarray = np.asarray((vocabulary.queries @ scored.T).todense())
    return result
