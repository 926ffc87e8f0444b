"""What a generative retriever costs: milliseconds a query against dense in the same run, parameters, perplexity.

python benchmarks/generative.py --index runs/toollens/toolgen --data data/toollens [--dense INDEX] [--device cuda]
python benchmarks/generative.py --tools 224          # untrained, on the sample: speed alone

Queries are asked one at a time and in batches, generative and dense in turn, the best of `--rounds` counts. Perplexity
is taken on a plain text that speaks of no tool, before training (--base) and after.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

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

PLAIN = """\
The harbour wakes before the town does. At four the first boats come in, low in the water, and the gulls know the
sound of each engine. Nobody speaks much. Crates are passed from hand to hand, ice is shovelled, and the floor of
the market hall is hosed down until it shines like the inside of a shell. By six the buyers have gone, and with them
the noise; what is left is the smell, and a cat that has learned not to hurry.

My grandmother sold nets here when nets were still made by hand. She said that a good knot is one that you forget,
and that the same was true of a good neighbour. I did not understand her then. I was eight, and interested in the
machines: the crane with its red cabin, the conveyor belt that carried herring like a silver river, the little train
that ran along the quay and never went anywhere else. When the canning factory closed, the train was sold to a
museum in the north. For a year the rails lay there in the rain, and then they were gone as well.

People ask whether the town has changed. It has more cafes, fewer boats, and a bridge that lights up at night in the
colours of whatever is being celebrated. The school is larger. In winter, though, when the wind comes straight from
the sea and the visitors stay away, it is still the place it was: a row of houses with their backs to the hill, a
church that leans a little, and men standing in doorways, looking at the sky as if it owed them an answer.

Memory is a careless librarian. It loses whole years and keeps a single afternoon, complete with the temperature of
the water and the song that came out of somebody's window. I remember that afternoon because nothing happened in it.
We sat on the wall. My brother counted ships. Someone had painted the bollards white, and the paint came off on our
hands, so that for the rest of the day everything that we touched bore the print of our fingers, as though we had
been there."""


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--index", type=Path, help="an index with a generative retriever; none: an untrained one is made"
    )
    parser.add_argument("--retriever", default="toolgen")
    parser.add_argument("--dense", type=Path, help="an index with a dense retriever; none: MiniLM as it comes")
    parser.add_argument("--data", default="bundled:sample", help="whose test queries are asked")
    parser.add_argument("--tools", type=int, default=224, help="of the sample, where no index is given")
    parser.add_argument("--base", default="bundled:smollm2-135m", help="the model before training")
    parser.add_argument("--queries", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--random", type=int, default=0, help="so many random queries: does anything but tools come out?"
    )
    parser.add_argument("-k", type=int, default=5)
    parser.add_argument("--device")
    words = parser.parse_args()
    context = make_context(words.device)
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(words, context, Path(scratch))
    print(json.dumps({**found, "machine": environment()["machine"]}, indent=1))


def measure(words: argparse.Namespace, context: Context, scratch: Path) -> dict[str, object]:
    """All figures."""
    folder = words.index or _untrained(words, context, scratch)
    index = Index(folder, context)
    asked = load_dataset(words.data)
    queries = [asked.queries[query].text for query in sorted(asked.split("test"))[: words.queries]]
    dense = Index(words.dense, context).retriever("dense") if words.dense else _dense(index, context, scratch)
    systems: dict[str, Retriever] = {"generative": index.retriever(words.retriever), "dense": dense}
    speed = {name: {"one": math.inf, "batch": math.inf} for name in systems}
    for each in systems.values():
        each.search(queries[:2], words.k)  # loads the model
    for _ in range(words.rounds):
        for name, each in systems.items():
            for key, size in (("one", 1), ("batch", words.batch)):
                for encoder in context.encoders.values():
                    encoder.forget()
                seconds = _timed(lambda each=each, size=size: _ask(each, queries, size, words.k))  # type: ignore[misc]
                speed[name][key] = min(speed[name][key], 1000 * seconds / len(queries))
    part = index.manifest.retrievers[words.retriever]
    after = LanguageModel(folder / part.model if part.model else find_model(words.base), words.device)
    before = LanguageModel(find_model(words.base), words.device)
    count = sum(weight.numel() for weight in after.model.parameters())
    return {
        "milliseconds a query": speed,
        "tools": len(index.tools),
        "queries": len(queries),
        "parameters": count,
        "parameters added": count - sum(weight.numel() for weight in before.model.parameters()),
        "random queries": _strangers(systems["generative"], set(index.tools), words.random, words.k),
        "perplexity before": perplexity(before),
        "perplexity after": perplexity(after),
    }


def perplexity(language: LanguageModel) -> float:
    """Of the plain text, each token given all before it."""
    tokens = torch.tensor([language.frames.ids(PLAIN)], device=language.device)
    with torch.no_grad(), precision(language.device):
        logits = language.model(input_ids=tokens).logits[0, :-1].float()
    return float(torch.exp(torch.nn.functional.cross_entropy(logits, tokens[0, 1:])))


def _strangers(retriever: Retriever, known: set[str], count: int, k: int) -> dict[str, int]:
    """Of random queries: answers that are no tool of the index, and rankings that are too short."""
    chance = random.Random(0)
    plain = PLAIN.split()
    queries = [
        " ".join(chance.choices(plain, k=chance.randint(1, 12)))
        if chance.random() < 0.5
        else "x"
        + "".join(chr(chance.choice((chance.randint(33, 126), chance.randint(161, 0xD7FF)))) for _ in range(20))
        for _ in range(count)
    ]
    rankings = [each for start in range(0, count, 256) for each in retriever.search(queries[start : start + 256], k)]
    strange = sum(tool not in known for ranking in rankings for tool in ranking.ids)
    return {"asked": count, "no tool": strange, "too short": sum(len(each) < min(k, len(known)) for each in rankings)}


def _untrained(words: argparse.Namespace, context: Context, scratch: Path) -> Path:
    tools = read_catalogue(sample_folder())[: words.tools]
    build(scratch / "index", tools, {words.retriever: ToolGenSettings(model=words.base)}, context)
    return scratch / "index"


def _dense(index: Index, context: Context, scratch: Path) -> Retriever:
    build(scratch / "dense", list(index.tools.values()), {"dense": DenseSettings()}, context, index.manifest.text)
    return Index(scratch / "dense", context).retriever("dense")


def _ask(retriever: Retriever, queries: Sequence[str], size: int, k: int) -> None:
    for start in range(0, len(queries), size):
        retriever.search(queries[start : start + size], k)


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
