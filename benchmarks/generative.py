"""Measure a generative retriever: milliseconds per query against dense in the same run, parameters, perplexity.

    python benchmarks/generative.py --index runs/toollens/toolgen --data data/toollens [--dense INDEX] [--device cuda]
    python benchmarks/generative.py --tools 224          # untrained, on the sample: speed alone

Queries are searched one at a time and in batches, generative and dense in turn; the best of `--rounds` counts.
Perplexity is that of a plain text about no tool, before training (--base) and after.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from harness import make_parser, write_json

from pipelines.context import make_context
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import sample_folder
from pipelines.models import find_model
from pipelines.runs import environment
from retrievers.base import Retriever
from retrievers.catalogue import read_catalogue
from retrievers.generative.decoding.language_model import LanguageModel, precision
from retrievers.generative.settings import ToolGenSettings
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.settings import DenseSettings

PLAIN = Path(__file__).with_name("plain_text.txt").read_text()
"""A text about no tool."""


def main() -> None:
    """Measure and print one JSON object."""
    parser = make_parser(__doc__)
    parser.add_argument("--index", type=Path, help="an index with a generative retriever (default: an untrained one)")
    parser.add_argument("--retriever", default="toolgen")
    parser.add_argument("--dense", type=Path, help="an index with a dense retriever (default: untuned MiniLM)")
    parser.add_argument("--data", default="bundled:sample", help="the data set with the test queries")
    parser.add_argument("--tools", type=int, default=224, help="tools of the sample, if no index is given")
    parser.add_argument("--base", default="bundled:smollm2-135m", help="the model before training")
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--random", type=int, default=0, help="random queries: count answers that are no tool")
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--device")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        facts = measure(options, make_context(options.device), Path(scratch))
    print(json.dumps(facts, indent=1))
    write_json(options.out, facts)


def measure(options: argparse.Namespace, context: Context, scratch: Path) -> dict[str, object]:
    """All figures."""
    folder = options.index or scratch / "index"
    if not options.index:
        tools = read_catalogue(sample_folder())[: options.tools]
        build(folder, tools, {options.retriever: ToolGenSettings(model=options.base)}, context)
    index = Index(folder, context)
    if not options.dense:
        build(scratch / "dense", list(index.tools.values()), {"dense": DenseSettings()}, context, index.manifest.text)
    dense = Index(options.dense or scratch / "dense", context).retriever("dense")
    data = load_dataset(options.data)
    queries = [data.queries[query].text for query in sorted(data.split("test"))[: options.queries]]
    systems: dict[str, Retriever] = {"generative": index.retriever(options.retriever), "dense": dense}
    speed = {name: {"one": math.inf, "batch": math.inf} for name in systems}
    for retriever in systems.values():
        retriever.search(queries[:2], options.k)  # loads the model
    for _ in range(options.rounds):
        for name, retriever in systems.items():
            for key, size in (("one", 1), ("batch", options.batch)):
                for encoder in context.encoders.values():
                    encoder.clear_cache()
                seconds = _search_time(retriever, queries, size, options.k)
                speed[name][key] = min(speed[name][key], 1000 * seconds / len(queries))
    part = index.manifest.retrievers[options.retriever]
    after = LanguageModel(folder / part.model if part.model else find_model(options.base), options.device)
    before = LanguageModel(find_model(options.base), options.device)
    count = sum(weight.numel() for weight in after.model.parameters())
    return {
        "milliseconds per query": speed,
        "tools": len(index.tools),
        "queries": len(queries),
        "parameters": count,
        "parameters added": count - sum(weight.numel() for weight in before.model.parameters()),
        "random queries": _search_random(systems["generative"], set(index.tools), options.random, options.k),
        "perplexity before": perplexity(before),
        "perplexity after": perplexity(after),
        "machine": environment()["machine"],
    }


def perplexity(language: LanguageModel) -> float:
    """Perplexity of the plain text, each token given all before it."""
    tokens = torch.tensor([language.chat.tokenize(PLAIN)], device=language.device)
    with torch.no_grad(), precision(language.device):
        logits = language.model(input_ids=tokens).logits[0, :-1].float()
    return float(torch.exp(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])))


def _search_random(retriever: Retriever, known: set[str], count: int, k: int) -> dict[str, int]:
    """Search for random queries; count answers that are no tool of the index, and rankings that are too short."""
    rng, words = random.Random(0), PLAIN.split()
    queries = [
        " ".join(rng.choices(words, k=rng.randint(1, 12)))
        if rng.random() < 0.5
        else "x" + "".join(chr(rng.choice((rng.randint(33, 126), rng.randint(161, 0xD7FF)))) for _ in range(20))
        for _ in range(count)
    ]
    rankings = [
        ranking for start in range(0, count, 256) for ranking in retriever.search(queries[start : start + 256], k)
    ]
    unknown = sum(tool not in known for ranking in rankings for tool in ranking.ids)
    too_short = sum(len(ranking) < min(k, len(known)) for ranking in rankings)
    return {"queries": count, "no tool": unknown, "too short": too_short}


def _search_time(retriever: Retriever, queries: Sequence[str], size: int, k: int) -> float:
    started = time.perf_counter()
    for start in range(0, len(queries), size):
        retriever.search(queries[start : start + size], k)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
