"""Measure tools that come after training: tools are held out, the rest is trained on, then they are added.

    python benchmarks/generative_newcomers.py --data data/toollens --text description [--share 0.1] [--no-further]
    python benchmarks/generative_newcomers.py --kind toolweaver …    # or dense (untuned), or tuned

Prints recall@5 of gold tools, for trained and for added tools, as `rewrite-index add` adds them. toolgen: with a token
made from the tool's document, and from its name. toolweaver: in the nearest free code,
and by a token made from the document. Then after `build --resume` has trained them in.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import make_parser, write_json

from pipelines.context import make_context
from pipelines.data.dataset import DataSet, load_dataset, stable_hash
from pipelines.data.training_sets import training_set
from retrievers.generative.code_table import CodeTable
from retrievers.generative.settings import GenerativeTraining, Stage, ToolGenSettings
from retrievers.index import Index, add, build
from retrievers.kind import Block, Context
from retrievers.registry import make_kind, settings_from_json
from retrievers.settings import DenseSettings, DenseTraining, TrainingSource
from retrievers.text import document
from retrievers.weaver.settings import QuantiserSettings, ToolWeaverSettings

DOCUMENT_BATCH = 32
"""Documents per step: with more, a small catalogue has too few steps to learn."""
WAYS = {"toolgen": ("from documents", "from names"), "toolweaver": ("nearest", "token")}
"""How codes of added tools are made: the default first."""
Facts = dict[str, Any]


def main() -> None:
    """Measure and print one JSON object."""
    parser = make_parser(__doc__)
    parser.add_argument("--kind", choices=("toolgen", "toolweaver", "dense", "tuned"), default="toolgen")
    parser.add_argument("--data", default="bundled:sample")
    parser.add_argument("--text", nargs="+", default=["name", "description"], help="parts of a tool that are read")
    parser.add_argument("--share", type=float, default=0.1, help="share of the tools that come later")
    parser.add_argument("--model", default="bundled:smollm2-135m")
    parser.add_argument("--encoder", default="bundled:minilm", help="of toolweaver and dense")
    parser.add_argument("--quantiser", type=int, nargs=2, default=(3, 64), metavar=("LEVELS", "CODES"))
    parser.add_argument("--epochs", type=int, nargs=2, default=(12, 8), metavar=("MEMORISE", "RETRIEVE"))
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--batch", type=int, default=128, help="queries per step")
    parser.add_argument("--no-further", dest="further", action="store_false", help="do not train them in at the end")
    parser.add_argument("--device")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        facts = measure(options, make_context(options.device, True), Path(scratch) / "index")
    print(json.dumps(facts, indent=1))
    write_json(options.out, facts)


def make_settings(options: argparse.Namespace) -> Any:
    """Settings of the retriever that is measured."""
    source = (TrainingSource(options.data),)
    if options.kind in ("dense", "tuned"):
        return DenseSettings(
            model=options.encoder, train=DenseTraining(data=source) if options.kind == "tuned" else None
        )
    memorise, retrieve = (
        Stage(epochs, options.learning_rate, batch, max_length=192)
        for epochs, batch in zip(options.epochs, (DOCUMENT_BATCH, options.batch), strict=True)
    )
    training = GenerativeTraining(source, memorise=memorise, retrieve=retrieve, eval_every=4)
    if options.kind == "toolgen":
        return ToolGenSettings(model=options.model, train=training)
    quantiser = QuantiserSettings(*options.quantiser)
    return ToolWeaverSettings(train=training, model=options.model, encoder=options.encoder, quantiser=quantiser)


def measure(options: argparse.Namespace, context: Context, folder: Path) -> Facts:
    """Train without the late tools, add them, and measure; then train them in."""
    data, kind, text = load_dataset(options.data), options.kind, options.text
    late = {tool.id for tool in data.tools if stable_hash(f"late/{tool.id}") % 1000 < 1000 * options.share}
    early, settings = without(data, late), {kind: make_settings(options)}
    facts: Facts = {"kind": kind, "tools": len(data.tools), "late": len(late)}
    sets = {kind: [training_set(early, text)]} if settings[kind].train else {}
    build(folder, early.tools, settings, context, text, training=sets)

    def note(name: str, retriever: Any = None) -> None:
        facts[name] = recall(retriever or Index(folder, context).retriever(kind), data, late)
        print(json.dumps({name: facts[name]}), file=sys.stderr)

    note("before")
    add(folder, [tool for tool in data.tools if tool.id in late], context)
    way, *others = WAYS.get(kind, ("as they are",))
    note(f"added, {way}")
    for other in others:
        note(f"added, {other}", _open_with(folder, kind, other, context))
    if options.further and kind in WAYS:
        sets = {kind: [training_set(data, text)]}
        build(folder, data.tools, settings, context, text, training=sets, resume=True)
        note("trained in")
    return facts


def _open_with(folder: Path, kind: str, way: str, context: Context) -> Any:
    """Open the same index with codes of added tools made another way."""
    index = Index(folder, context)
    part = index.manifest.retrievers[kind]
    settings = settings_from_json(part.settings)
    if isinstance(settings, ToolWeaverSettings):
        settings = replace(settings, new_tools=way)
    made: Any = make_kind(settings, context, folder / part.model)
    if kind == "toolgen":  # tokens from names: made by a code table without `own_logit`
        made._table = replace(CodeTable.read(folder / part.model), own_logit=None)
    tools = [index.tools[tool] for tool in index.rows.ids]
    arrays = made.tool_rows(tools, [document(tool, index.manifest.text) for tool in tools])
    return made.open([Block(arrays, index.rows.live)], index.rows, "", index.retriever)


def recall(retriever: Any, data: DataSet, late: set[str]) -> Facts:
    """Recall@5 over pairs of a test query and a gold tool, known and late tools apart."""
    gold = data.split("test")
    order = sorted(gold)
    rankings = retriever.search([data.queries[query].text for query in order], 5)
    hits: dict[str, list[bool]] = {"known": [], "late": []}
    for query, ranking in zip(order, rankings, strict=True):
        for tool in gold[query]:
            hits["late" if tool in late else "known"].append(tool in ranking.ids)
    shares = {name: round(sum(pairs) / len(pairs), 4) for name, pairs in hits.items() if pairs}
    return shares | {f"{name} pairs": len(pairs) for name, pairs in hits.items()}


def without(data: DataSet, late: set[str]) -> DataSet:
    """The data set without these tools, and without their queries in training."""
    gold = {
        split: {query: tools for query, tools in queries.items() if split == "test" or not tools & late}
        for split, queries in data.gold.items()
    }
    return replace(data, tools=tuple(tool for tool in data.tools if tool.id not in late), gold=gold)


if __name__ == "__main__":
    main()
