"""Newcomers whose vector is near to everything are found; ordinary ones are not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from retrievers.dense.retriever import Dense
from retrievers.kind import Block
from retrievers.rows import Rows
from retrievers.trust.hubs import MIN_TOOLS, Hubs
from retrievers.types import Tool


class Given:
    """An encoder that gives the vectors it was given, by the texts' last words."""

    def __init__(self, vectors: dict[str, np.ndarray]) -> None:
        self.vectors = vectors

    def documents(self, texts: list[str]) -> np.ndarray:
        return np.stack([self.vectors[text.split()[-1]] for text in texts])


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)


def catalogue(count: int) -> tuple[Dense, np.ndarray]:
    chance = np.random.default_rng(0)
    middle = unit(chance.normal(size=48))
    vectors = unit(0.5 * middle + unit(chance.normal(size=(count + 20, 48))))  # encoders' vectors share a direction
    known: dict[str, np.ndarray] = {"hub": middle, "mixed": unit(vectors[:40].sum(axis=0))}
    known |= {f"plain{number}": vectors[count + number] for number in range(20)}
    live = np.ones(count, dtype=bool)
    encoder: Any = Given(known)
    rows = Rows([f"t{number}" for number in range(count)], live)
    return Dense(encoder, [Block({"vectors": vectors[:count]}, live)], rows, "x", 0), vectors[:count]


def tool(name: str) -> Tool:
    return Tool(name, name, f"says {name}")


def test_hubs_are_told_from_the_others() -> None:
    dense, vectors = catalogue(1200)
    hubs = Hubs(dense, ("name", "description"))
    names = ["hub", "mixed", *(f"plain{number}" for number in range(20))]
    found = hubs.findings([tool(name) for name in names])
    assert [each.tool_ids[0] for each in found] == ["hub", "mixed"]
    assert all(each.check == "hub" and "nearest" in each.message for each in found)
    # By hand: among the ten nearest of how many tools is the hub?
    scores = vectors @ vectors.T
    np.fill_diagonal(scores, -1)
    tenth = np.sort(scores, axis=1)[:, -10]
    share = float((vectors @ dense.embed(["hub"])[0] > tenth).mean())
    told = re.search(r"of (\d+)%", found[0].message)
    assert told is not None
    assert abs(int(told[1]) / 100 - share) < 0.06  # told from 400 probes of 1,200


@pytest.mark.parametrize("dense", [None, catalogue(MIN_TOOLS - 1)[0]])
def test_without_vectors_or_with_few_tools_nothing_is_said(dense: Dense | None) -> None:
    assert Hubs(dense, ("name",)).findings([tool("hub")]) == []
