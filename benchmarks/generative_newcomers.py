"""How well is a tool found that came after training? Tools are kept back, the rest is trained on, then they are added.

python benchmarks/generative_newcomers.py --data data/toollens --text description [--share 0.1] [--no-further]
python benchmarks/generative_newcomers.py --kind toolweaver …    # or dense (as it comes), or tuned

Prints the share of gold tools in the first five, for tools that were trained and for those that were added, the way
`rewrite-index add` adds them. toolgen: with a token made from the tool's document, and from its name. toolweaver: in
the nearest free code, in what the model says of the document, and by a token made from the document. Then after
`build --resume` has trained them in, documents and queries.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipelines.context import make_context
from pipelines.data.dataset import DataSet, load_dataset, stable_hash
from pipelines.data.training_sets import training_set
from retrievers.generative import code_table as books
from retrievers.generative.settings import GenerativeTraining, Stage, ToolGenSettings
from retrievers.generative.weaver_settings import ToolWeaverSettings
from retrievers.index import Index, add, build
from retrievers.kind import Block, Context
from retrievers.registry import make_kind, settings_from_json
from retrievers.settings import DenseSettings, DenseTraining, TrainingSource
from retrievers.text import document
from retrievers.weaver.settings import WeaveSettings

DOCUMENTS = 32
"""Documents a step: a small catalogue would be over before it has learned anything."""
WAYS = {"toolgen": ("from documents", "from names"), "toolweaver": ("nearest", "said", "token")}
"""How newcomers are made: as the settings have it, then otherwise."""
Settings = ToolGenSettings | ToolWeaverSettings
Figures = dict[str, Any]


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kind", choices=("toolgen", "toolweaver", "dense", "tuned"), default="toolgen")
    parser.add_argument("--data", default="bundled:sample")
    parser.add_argument("--text", nargs="+", default=["name", "description"], help="parts of a tool that are read")
    parser.add_argument("--share", type=float, default=0.1, help="of the tools that come later")
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--encoder", default="bundled:minilm", help="of toolweaver and dense")
    parser.add_argument("--weave", type=int, nargs=2, default=(3, 64), metavar=("LEVELS", "CODES"))
    parser.add_argument("--epochs", type=int, nargs=2, default=(12, 8), metavar=("MEMORISE", "RETRIEVE"))
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=128, help="queries a step")
    parser.add_argument("--no-further", dest="further", action="store_false", help="train nothing in at the end")
    parser.add_argument("--device")
    words = parser.parse_args()
    memorise, retrieve = (
        Stage(epochs, words.learning_rate, batch, max_length=192)
        for epochs, batch in zip(words.epochs, (DOCUMENTS, words.batch), strict=True)
    )
    training = GenerativeTraining((TrainingSource(words.data),), memorise=memorise, retrieve=retrieve, judge_every=4)
    settings: Settings = ToolGenSettings(model=words.model, train=training)
    if words.kind == "toolweaver":
        weave = WeaveSettings(levels=words.weave[0], codes=words.weave[1])
        settings = ToolWeaverSettings(training, model=words.model, encoder=words.encoder, weave=weave)
    context = make_context(words.device, True)
    with tempfile.TemporaryDirectory() as scratch:
        data = load_dataset(words.data)
        given = {"text": words.text, "share": words.share, "dense": words.encoder, "further": words.further}
        found = newcomers(words.kind, data, settings, context, Path(scratch), **given)
    print(json.dumps(found, indent=1))


def newcomers(
    kind: str,
    data: DataSet,
    settings: Settings | None,
    context: Context,
    scratch: Path,
    text: Sequence[str],
    share: float,
    dense: str,
    further: bool = True,
) -> Figures:
    """All figures. `dense` is the encoder of that kind; without `further` nothing is trained in."""
    late = {tool.id for tool in data.tools if stable_hash(f"late/{tool.id}") % 1000 < 1000 * share}
    early, folder = without(data, late), scratch / "index"
    found: Figures = {"kind": kind, "tools": len(data.tools), "late": len(late)}
    came = [tool for tool in data.tools if tool.id in late]
    if kind in ("dense", "tuned"):
        learns = DenseTraining(data=(TrainingSource(data.name),)) if kind == "tuned" else None
        sets = {kind: [training_set(early, text)]} if learns else {}
        build(folder, early.tools, {kind: DenseSettings(model=dense, train=learns)}, context, text, training=sets)
        add(folder, came, context)
        return {**found, "added": _shares(folder, kind, data, late, context)}
    assert settings is not None
    build(folder, early.tools, {kind: settings}, context, text, training={kind: [training_set(early, text)]})
    found["before"] = _shares(folder, kind, data, late, context)
    add(folder, came, context)
    way, *others = WAYS[kind]
    found[f"added, {way}"] = _shares(folder, kind, data, late, context)
    for other in others:
        print(json.dumps(found), file=sys.stderr)  # each is a search of minutes: what is known outlives a kill
        found[f"added, {other}"] = _otherwise(folder, kind, other, data, late, context)
    if not further:
        return found
    again = {kind: [training_set(data, text)]}
    build(folder, data.tools, {kind: settings}, context, text, training=again, resume=True)
    found["trained in"] = _shares(folder, kind, data, late, context)
    return found


def _otherwise(folder: Path, kind: str, way: str, data: DataSet, late: set[str], context: Context) -> Figures:
    """The same index with newcomers made another way."""
    index = Index(folder, context)
    part = index.manifest.retrievers[kind]
    settings = settings_from_json(part.settings)
    if isinstance(settings, ToolWeaverSettings):
        settings = replace(settings, newcomers=way)
    made: Any = make_kind(settings, context, folder / part.model)
    if kind == "toolgen":  # tokens from names: as a book without `own` makes them
        made._book = replace(books.read(folder / part.model), own=None)
    tools = [index.tools[tool] for tool in index.rows.ids]
    arrays = made.tool_rows(tools, [document(tool, index.manifest.text) for tool in tools])
    return recall(made.open([Block(arrays, index.rows.live)], index.rows, "", index.retriever), data, late)


def _shares(folder: Path, kind: str, data: DataSet, late: set[str], context: Context) -> Figures:
    return recall(Index(folder, context).retriever(kind), data, late)


def recall(retriever: Any, data: DataSet, late: set[str]) -> Figures:
    """Recall@5 over pairs of a test query and a gold tool, known and late ones apart."""
    gold = data.split("test")
    order = sorted(gold)
    rankings = retriever.search([data.queries[query].text for query in order], 5)
    hits: dict[str, list[bool]] = {"known": [], "late": []}
    for query, ranking in zip(order, rankings, strict=True):
        for tool in gold[query]:
            hits["late" if tool in late else "known"].append(tool in ranking.ids)
    return {name: round(sum(each) / len(each), 4) for name, each in hits.items() if each} | {
        f"{name} pairs": len(each) for name, each in hits.items()
    }


def without(data: DataSet, late: set[str]) -> DataSet:
    """The data set as it was before those tools came: no document and no query of theirs in training."""
    gold = {
        split: {query: tools for query, tools in each.items() if split == "test" or not tools & late}
        for split, each in data.gold.items()
    }
    return replace(data, tools=tuple(tool for tool in data.tools if tool.id not in late), gold=gold)


if __name__ == "__main__":
    main()
