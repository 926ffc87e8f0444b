"""Catalogues of any size, made from real tools with a fixed seed, with queries and vectors.

Tools: the real ones shuffled, then copies with other names, dropped and swapped words, other numbers. Vectors: the
first documents are embedded; every other document gets a base vector plus noise (the difference of two other base
vectors, so that it spreads as real documents do), scaled to the length NOISE.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pipelines.data.sample_data import sample_folder
from pipelines.models import find_model
from retrievers.catalogue import read_catalogue
from retrievers.dense.embeddings import EmbeddingCache
from retrievers.dense.encoder import Encoder
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.registry import RetrieverSettings
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings
from retrievers.text import clean, document
from retrievers.types import Tool

SEED = 20
PREFERRED = ("toolbench", "mcp_catalog")
MAX_CHARACTERS = 300
"""Characters of a document that are embedded here: more would take hours on a small machine."""
NOISE = 0.6
"""Length of the noise added to a unit vector: the cosine to the original is then about 0.85."""
SUFFIXES = ("lite", "pro", "v2", "v3", "beta", "plus", "api", "service", "cloud", "next")


def catalogues(data: Path | None) -> list[Path]:
    """Folders to read: ToolBench and the MCP catalogue if present, else all BEIR folders, else the sample."""
    if data is None:
        return [sample_folder()]
    folders = sorted(corpus.parent for corpus in (*data.glob("corpus.jsonl"), *data.glob("*/corpus.jsonl")))
    if not folders:
        raise SystemExit(f"{data} holds no BEIR folder (corpus.jsonl); name another folder with --data")
    return [folder for folder in folders if folder.name in PREFERRED] or folders


def make_tools(folders: Sequence[Path], count: int) -> tuple[list[Tool], int]:
    """Return `count` tools with distinct ids, and how many of them are real."""
    real = {tool.id: tool for folder in folders for tool in read_catalogue(folder)}
    tools = list(real.values())
    rng = random.Random(SEED)
    rng.shuffle(tools)
    tools = tools[:count]
    known = len(tools)
    for index in range(known, count):
        tools.append(_vary(tools[index % known], index // known, rng))
    return tools, known


def make_queries(folders: Sequence[Path], count: int) -> list[str]:
    """Distinct utterances of the catalogues' query files, else of the sample, shuffled."""
    files = [folder / "queries.jsonl" for folder in folders if (folder / "queries.jsonl").exists()]
    texts: dict[str, None] = {}
    for file in files or [sample_folder() / "queries.jsonl"]:
        texts.update((json.loads(line)["text"], None) for line in file.read_text("utf-8").splitlines() if line)
    queries = list(texts)
    random.Random(SEED).shuffle(queries)
    return queries[:count]


def _vary(tool: Tool, copy: int, rng: random.Random) -> Tool:
    """A variation of a tool: renamed, an eighth of its words dropped, some swapped, other numbers."""
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


def build_index(
    folder: Path, cache: Path, tools: Sequence[Tool], max_embedded: int, seconds: float
) -> tuple[Index, Context, float]:
    """Build an index with BM25, dense and hybrid; also returns the context and the seconds of the build."""
    encoder = Encoder(find_model(DenseSettings().model), 16)
    context = Context(find_model, cache, encoders={encoder.fingerprint: encoder})
    fill_cache(tools, cache, encoder, max_embedded, seconds)
    retrievers: dict[str, RetrieverSettings] = {
        "bm25": BM25Settings(names=0),  # as the peers have it
        "lexical": BM25Settings(),
        "dense": DenseSettings(),
        "hybrid": HybridSettings(of=("lexical", "dense")),
    }
    started = time.perf_counter()
    build(folder, list(tools), retrievers, context)
    return Index(folder, context), context, time.perf_counter() - started


def fill_cache(tools: Sequence[Tool], cache: Path, encoder: Encoder, max_embedded: int, seconds: float) -> None:
    """Put a vector for every tool's text into the embedding cache, so that building the index embeds nothing.

    Embeds at most `max_embedded` documents in about `seconds`; vectors in an existing cache folder are reused.
    """
    texts = [clean(document(tool)) for tool in tools]
    store = EmbeddingCache(cache, encoder.fingerprint)
    # In a folder of its own: a text shorter than the limit must not meet its derived vector later.
    embedded = EmbeddingCache(cache / "base", encoder.fingerprint)
    base = _embed(embedded, encoder, [text[:MAX_CHARACTERS] for text in texts[:max_embedded]], seconds)
    store.put(texts[: len(base)], base)
    rng = np.random.default_rng(SEED)
    for start, stop in _spans(len(base), len(texts), 5000):
        store.put(texts[start:stop], _derived(base, stop - start, rng))
    print(
        f"{len(base)} documents embedded (first {MAX_CHARACTERS} characters); the vectors of the other "
        f"{len(texts) - len(base):,} are DERIVED: a base vector plus noise of length {NOISE}. Query vectors are real."
    )


def _embed(store: EmbeddingCache, encoder: Encoder, texts: Sequence[str], seconds: float) -> np.ndarray:
    """Embed the first texts, as many as the time allows."""
    deadline = time.perf_counter() + seconds
    vectors: list[np.ndarray] = []
    for start, stop in _spans(0, len(texts), 32):
        batch = texts[start:stop]
        known = store.get(batch)
        if known.keys() >= set(batch):
            vectors.append(np.stack([known[text] for text in batch]))
            continue
        if vectors and time.perf_counter() > deadline:
            break
        vectors.append(encoder.documents(batch))
        store.put(batch, vectors[-1])
    return np.concatenate(vectors)


def _derived(base: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Unit vectors near random base vectors, moved by NOISE."""
    origin, one, other = rng.integers(len(base), size=(3, count))
    noise = base[one] - base[other] + 1e-3 * rng.standard_normal((count, base.shape[1]))
    noise *= NOISE / np.linalg.norm(noise, axis=1, keepdims=True)
    vectors = base[origin] + noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    result: np.ndarray = vectors.astype(np.float32)
    return result


def _spans(start: int, stop: int, step: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + step, stop)) for first in range(start, stop, step))
