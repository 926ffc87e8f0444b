"""How the vocabulary grows with the catalogue: a ToolGen token a tool against a ToolWeaver's codes. Runs on a CPU.

python benchmarks/weaver_growth.py [--tools 1000 16000 40000] [--data data/toolbench] [--steps 200]

For each size a catalogue is woven for real and every tool is given a code; rows, parameters and bytes are those of the
model that is named, and the trie is the one that a search walks. Where a catalogue has too few tools, variants of its
tools are added, so that codes have near duplicates to tell apart. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import tracemalloc

import numpy as np

from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.models import find_model
from pipelines.runs import environment
from retrievers.dense.embeddings import embed
from retrievers.dense.encoder import Encoder
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.decoding.trie import Trie
from retrievers.text import clean, document
from retrievers.weaver.co_usage import co_usage
from retrievers.weaver.code_assignment import weave
from retrievers.weaver.settings import WeaveSettings

BYTES = 4
"""Of a number in single precision. Training keeps four times as much: the weight, its gradient and two moments."""


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tools", type=int, nargs="+", default=[1000, 16_000, 40_000])
    parser.add_argument("--data", default="bundled:sample")
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--levels", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200, help="of the quantiser's training: this is about size")
    words = parser.parse_args()
    context = make_context("cpu")
    data = load_dataset(words.data)
    encoder = Encoder(find_model("bundled:minilm"), 64, "cpu")
    vectors = embed(encoder, [clean(document(tool)) for tool in data.tools], context)
    language = LanguageModel(find_model(words.model), "cpu")
    tied = language.tied
    found = [measure(count, vectors, words, language.width, tied) for count in words.tools]
    base = {"tokens": language.size, "width": language.width, "tied": tied}
    print(json.dumps({"model": base, "sizes": found, "machine": environment()["machine"]}, indent=1))


def measure(count: int, vectors: np.ndarray, words: argparse.Namespace, width: int, tied: bool) -> dict[str, object]:
    """One size."""
    codes = codes_for(count, words.levels)
    started = time.perf_counter()
    settings = WeaveSettings(levels=words.levels, codes=codes, steps=words.steps)
    woven = weave(varied(vectors, count), co_usage([]), settings, "cpu", True)
    seconds = time.perf_counter() - started
    rows = {"toolgen": count, "toolweaver": words.levels * codes}
    per_row = width * (1 if tied else 2)
    tries = {
        "toolgen": [(token,) for token in range(count)],
        "toolweaver": [tuple(level * codes + code for level, code in enumerate(path)) for path in woven.paths],
    }
    return {
        "tools": count,
        "levels x codes": f"{words.levels} x {codes}",
        "seconds of weaving": round(seconds, 1),
        "tools that shared a code before it was resolved": woven.facts[
            "tools that shared a code before it was resolved"
        ],
        "tools that share a code": woven.facts["tools that share a code"],
        "evenness by level": woven.facts["evenness by level"],
        **{
            name: {
                "rows": each,
                "parameters": each * per_row,
                "megabytes": round(each * per_row * BYTES / 2**20, 2),
                "megabytes in training": round(4 * each * per_row * BYTES / 2**20, 2),
                "megabytes of the trie": trie_size(tries[name]),
            }
            for name, each in rows.items()
        },
    }


def codes_for(count: int, levels: int) -> int:
    """A power of two with room for sixteen times the tools: later ones need free codes near by."""
    return int(2 ** math.ceil(math.log2((16 * count) ** (1 / levels))))


def varied(vectors: np.ndarray, count: int) -> np.ndarray:
    """So many vectors: those that are there, then the same with a little noise."""
    chance = np.random.default_rng(0)
    more = [vectors]
    while sum(map(len, more)) < count:
        noisy = vectors + 0.02 * chance.normal(size=vectors.shape)
        more.append((noisy / np.linalg.norm(noisy, axis=1, keepdims=True)).astype(np.float32))
    every: np.ndarray = np.concatenate(more)[:count]
    return every


def trie_size(codes: list[tuple[int, ...]]) -> float:
    """What a search walks, in megabytes."""
    tracemalloc.start()
    trie = Trie(codes, range(len(codes)), -1)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del trie
    return round(held / 2**20, 2)


if __name__ == "__main__":
    main()
