"""How well is a tool found that came after training? Tools are kept back, the rest is trained on, then they are added.

python benchmarks/generative_newcomers.py --data data/toollens --text description [--share 0.1] [--device cuda]

Prints the share of gold tools in the first five, for tools that were trained and for those that were added: with a
token made from the tool's name, with one made from its document (what `rewrite-index add` does), and after
`build --resume` has trained them in, documents and queries.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pipelines.data import DataSet, hashed, load_dataset
from pipelines.index import make_context
from pipelines.training_sets import training_set
from retrievers.generative import book as books
from retrievers.generative.settings import GenerativeTraining, Stage, ToolGenSettings
from retrievers.index import Index, add, build
from retrievers.kinds import Context
from retrievers.sources import TrainingSource

DOCUMENTS = 32
"""Documents a step: a small catalogue would be over before it has learned anything."""


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="bundled:sample")
    parser.add_argument("--text", nargs="+", default=["name", "description"], help="parts of a tool that are read")
    parser.add_argument("--share", type=float, default=0.1, help="of the tools that come later")
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--epochs", type=int, nargs=2, default=(12, 8), metavar=("MEMORISE", "RETRIEVE"))
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=128, help="queries a step")
    parser.add_argument("--device")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        print(json.dumps(measure(words, make_context(words.device, True), Path(scratch)), indent=1))


def measure(words: argparse.Namespace, context: Context, scratch: Path) -> dict[str, object]:
    """All figures."""
    data = load_dataset(words.data)
    late = {tool.id for tool in data.tools if hashed(f"late/{tool.id}") % 1000 < 1000 * words.share}
    early = _without(data, late)
    memorise, retrieve = (
        Stage(epochs, words.learning_rate, batch, max_length=192)
        for epochs, batch in zip(words.epochs, (DOCUMENTS, words.batch), strict=True)
    )
    training = GenerativeTraining((TrainingSource(words.data),), memorise=memorise, retrieve=retrieve, judge_every=4)
    settings = {"toolgen": ToolGenSettings(model=words.model, train=training)}
    folder = scratch / "index"
    sets = {"toolgen": [training_set(early, words.text)]}
    build(folder, early.tools, settings, context, words.text, training=sets)
    found: dict[str, object] = {"tools": len(data.tools), "late": len(late)}
    found["before"] = _shares(folder, data, late, context)
    newcomers = [tool for tool in data.tools if tool.id in late]
    found["added, from documents"] = _added(folder, newcomers, data, late, context)
    found["added, from names"] = _by_name(folder, data, late, context)
    again = {"toolgen": [training_set(data, words.text)]}
    build(folder, data.tools, settings, context, words.text, training=again, resume=True)
    found["trained in"] = _shares(folder, data, late, context)
    return found


def _added(folder: Path, tools: Sequence[object], data: DataSet, late: set[str], context: Context) -> dict[str, float]:
    add(folder, tools, context)  # type: ignore[arg-type]
    return _shares(folder, data, late, context)


def _by_name(folder: Path, data: DataSet, late: set[str], context: Context) -> dict[str, float]:
    """The same index with the other kind of token: as a book without `own` makes them."""
    index = Index(folder, context)
    part = folder / index.manifest.retrievers["toolgen"].model
    from retrievers.generative.kind import ToolGenKind
    from retrievers.kinds import Block, settings_from_json
    from retrievers.text import document

    settings = settings_from_json(index.manifest.retrievers["toolgen"].settings)
    assert isinstance(settings, ToolGenSettings)
    kind = ToolGenKind(settings, context, part)
    kind._book = replace(books.read(part), own=None)
    tools = [index.tools[tool] for tool in index.rows.ids]
    arrays = kind.tool_rows(tools, [document(tool, index.manifest.text) for tool in tools])
    retriever = kind.open([Block(arrays, index.rows.live)], index.rows, "", index.retriever)
    return _recall(retriever, data, late)


def _shares(folder: Path, data: DataSet, late: set[str], context: Context) -> dict[str, float]:
    return _recall(Index(folder, context).retriever("toolgen"), data, late)


def _recall(retriever: object, data: DataSet, late: set[str]) -> dict[str, float]:
    """Recall@5 over pairs of a test query and a gold tool, known and late ones apart."""
    gold = data.split("test")
    order = sorted(gold)
    rankings = retriever.search([data.queries[query].text for query in order], 5)  # type: ignore[attr-defined]
    hits: dict[str, list[bool]] = {"known": [], "late": []}
    for query, ranking in zip(order, rankings, strict=True):
        for tool in gold[query]:
            hits["late" if tool in late else "known"].append(tool in ranking.ids)
    return {name: sum(each) / len(each) for name, each in hits.items() if each}


def _without(data: DataSet, late: set[str]) -> DataSet:
    """The data set as it was before those tools came: no document and no query of theirs in training."""
    gold = {
        split: {query: tools for query, tools in each.items() if split == "test" or not tools & late}
        for split, each in data.gold.items()
    }
    return replace(data, tools=tuple(tool for tool in data.tools if tool.id not in late), gold=gold)


if __name__ == "__main__":
    main()
