"""A catalogue of any size, its queries, and its vectors, made from real ones with a fixed seed.

Tools: the real ones in a shuffled order, then copies of them with other names, dropped and swapped words, other
numbers. Vectors: a base of real documents is embedded; every other document gets a base vector plus noise. The noise
is the difference of two other base vectors, so that it spreads the way real documents do, cut to a given length.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from pipelines.data.sample_data import sample_folder
from retrievers.catalogue import read_catalogue
from retrievers.dense.embeddings import EmbeddingCache
from retrievers.dense.encoder import Encoder
from retrievers.text import clean, document
from retrievers.types import Tool

SEED = 20
PREFERRED = ("toolbench", "mcp_catalog")
CUT = 300
"""Characters of a document that are embedded here: more would take hours on a small machine."""
NOISE = 0.6
"""Length of the noise added to a unit vector: the cosine to the original is then about 0.85."""
SUFFIXES = ("lite", "pro", "v2", "v3", "beta", "plus", "api", "service", "cloud", "next")


@dataclass(frozen=True, slots=True)
class Base:
    """How the vectors came about."""

    embedded: int
    derived: int
    seconds: float


def catalogues(data: Path | None) -> list[Path]:
    """The folders to read: ToolBench and the MCP catalogue where they are, else all there are, else the sample."""
    if data is None:
        return [sample_folder()]
    folders = sorted(corpus.parent for corpus in (*data.glob("corpus.jsonl"), *data.glob("*/corpus.jsonl")))
    if not folders:
        raise SystemExit(f"{data} holds no BEIR folder (corpus.jsonl); name another folder with --data")
    return [folder for folder in folders if folder.name in PREFERRED] or folders


def make_tools(folders: Sequence[Path], count: int) -> tuple[list[Tool], int]:
    """`count` tools with distinct ids, and how many of them are real."""
    real = {tool.id: tool for folder in folders for tool in read_catalogue(folder)}
    tools = list(real.values())
    rng = random.Random(SEED)
    rng.shuffle(tools)
    tools = tools[:count]
    known = len(tools)
    for place in range(known, count):
        tools.append(_vary(tools[place % known], place // known, rng))
    return tools, known


def make_queries(folders: Sequence[Path], count: int) -> list[str]:
    """Utterances of the catalogues' own query files, else of the sample, in a shuffled order, none twice."""
    files = [folder / "queries.jsonl" for folder in folders if (folder / "queries.jsonl").exists()]
    texts: dict[str, None] = {}
    for file in files or [sample_folder() / "queries.jsonl"]:
        texts.update((json.loads(line)["text"], None) for line in file.read_text("utf-8").splitlines() if line)
    found = list(texts)
    random.Random(SEED).shuffle(found)
    return found[:count]


def _vary(tool: Tool, copy: int, rng: random.Random) -> Tool:
    """A tool much like another: renamed, an eighth of its words gone, some swapped, other numbers."""
    kept = [_other_number(word, rng) for word in tool.description.split(" ") if rng.random() > 0.125]
    for _ in range(len(kept) // 8):
        a, b = rng.randrange(len(kept)), rng.randrange(len(kept))
        kept[a], kept[b] = kept[b], kept[a]
    return replace(
        tool,
        id=f"{tool.id}~{copy}",
        name=f"{tool.name} {rng.choice(SUFFIXES)}{rng.randrange(1000)}",
        description=" ".join(kept),
        parameters=tuple(parameter for parameter in tool.parameters if rng.random() > 0.2),
    )


def _other_number(word: str, rng: random.Random) -> str:
    return str(rng.randrange(10 ** len(word))) if word.isdecimal() and len(word) < 9 else word


def fill_cache(tools: Sequence[Tool], cache: Path, encoder: Encoder, most: int, seconds: float) -> Base:
    """Puts a vector for every tool's text into the embedding cache, so that a build of the index embeds nothing.

    Embeds at most `most` documents in about `seconds`; a kept cache folder is not paid for twice.
    """
    texts = [clean(document(tool)) for tool in tools]
    store = EmbeddingCache(cache, encoder.fingerprint)
    started = time.perf_counter()
    # In a place of its own: a text shorter than the cut is its own cut, and must not meet its derived vector later.
    kept = EmbeddingCache(cache / "base", encoder.fingerprint)
    base = _embed(kept, encoder, [text[:CUT] for text in texts[:most]], seconds)
    spent = time.perf_counter() - started
    store.put(texts[: len(base)], base)
    rng = np.random.default_rng(SEED)
    for start, stop in _spans(len(base), len(texts), 5000):
        store.put(texts[start:stop], _derived(base, stop - start, rng))
    return Base(len(base), len(texts) - len(base), spent)


def _embed(store: EmbeddingCache, encoder: Encoder, texts: Sequence[str], seconds: float) -> np.ndarray:
    """Vectors of the first of these texts: as many as the time allows."""
    deadline = time.perf_counter() + seconds
    found: list[np.ndarray] = []
    for start, stop in _spans(0, len(texts), 32):
        some = texts[start:stop]
        known = store.get(some)
        if known.keys() >= set(some):
            found.append(np.stack([known[text] for text in some]))
            continue
        if found and time.perf_counter() > deadline:
            break
        found.append(encoder.documents(some))
        store.put(some, found[-1])
    return np.concatenate(found)


def _derived(base: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors around the base's, as far apart as NOISE says."""
    origin, one, other = rng.integers(len(base), size=(3, count))
    noise = base[one] - base[other] + 1e-3 * rng.standard_normal((count, base.shape[1]))
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = base[origin] + noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    result: np.ndarray = vectors.astype(np.float32)
    return result


def _spans(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    return ((place, min(place + step, stop)) for place in range(start, stop, step))
