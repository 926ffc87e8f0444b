"""What becomes of tools that come later? A fifth of the tools is held out, added live, and compared with retraining.

python benchmarks/masstool_life.py CONFIG [--set KEY=VALUE ...] [--tune] [--out results.json]

held out    trained without the tools and without every query that needs one of them; then `add`
confirmed   the same index, after those training queries were confirmed: nothing is trained
retrained   everything known from the start
dense       the encoder as the config names it, without MassTool

All are asked the test queries that need a held-out tool, and the others. The encoder is tuned with --tune only, each
time on what is known then; `dense` has it as it comes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset import load_dataset, stable_hash
from pipelines.data.training_sets import labelled_set
from pipelines.index.build import IndexConfig
from retrievers.base import Retriever
from retrievers.index import Index, add, build, confirm
from retrievers.masstool.settings import MassToolSettings
from retrievers.settings import DenseSettings
from retrievers.training_set import Examples, TrainingSet
from reward.metrics import judge, measure

SHARE = 5
"""One tool in so many is held out, by a hash."""


def main() -> None:
    """Builds, adds, confirms, retrains, prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    settings = next(each for each in config.retrievers.values() if isinstance(each, MassToolSettings) and each.train)
    assert settings.train is not None
    if not options.tune:
        settings = replace(settings, train=replace(settings.train, encoder=None))
    assert settings.train is not None
    context = make_context(options.device)
    data = load_dataset(settings.train.data[0].path)
    [whole] = labelled_set(settings.train, config.text)
    late = {tool.id for tool in data.tools if stable_hash(f"late/{tool.id}") % SHARE == 0}
    early = [tool for tool in data.tools if tool.id not in late]
    first = without(whole, late)
    rows: dict[str, Retriever] = {}
    with tempfile.TemporaryDirectory(prefix="masstool-life-") as scratch:
        folder, other = Path(scratch) / "early", Path(scratch) / "whole"
        build(folder, early, {"masstool": settings}, context, config.text, training={"masstool": [first]})
        add(folder, [tool for tool in data.tools if tool.id in late], context)
        rows["held out"] = Index(folder, context).retriever("masstool")
        rows["held out"].search(["warm"], 1)
        confirm(folder, confirmed(whole, late), context)
        rows["confirmed"] = Index(folder, context).retriever("masstool")
        kinds = {"masstool": settings, "dense": DenseSettings(model=settings.model)}
        build(other, list(data.tools), kinds, context, config.text, training={"masstool": [whole]})
        rows["retrained"] = Index(other, context).retriever("masstool")
        rows["dense"] = Index(other, context).retriever("dense")
        asked = sorted(data.split("test"))
        groups = {
            "needing a late tool": [query for query in asked if data.split("test")[query] & late],
            "the others": [query for query in asked if not data.split("test")[query] & late],
        }
        found: dict[str, dict[str, dict[str, float]]] = {}
        for group, queries in groups.items():
            print(f"\n{len(queries)} test queries {group} ({len(late)} of {len(data.tools)} tools are late)")
            found[group] = {}
            for name, retriever in rows.items():
                ids = [ranking.ids for ranking in retriever.search([data.queries[q].text for q in queries], 100)]
                judged = judge(ids, [data.split("test")[query] for query in queries])
                figures = {m: float(measure(m, judged).mean()) for m in ("recall@3", "recall@5", "ndcg@5", "comp@5")}
                found[group][name] = figures
                print(f"{name:<10} " + "  ".join(f"{metric} {value:.4f}" for metric, value in figures.items()))
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


def without(whole: TrainingSet, late: set[str]) -> TrainingSet:
    """The training set of a time when these tools were not there."""
    kept = [row for row, tool in enumerate(whole.ids) if tool not in late]
    place = {row: new for new, row in enumerate(kept)}

    def some(examples: Examples) -> Examples:
        chosen = [
            (query, tuple(place[row] for row in gold))
            for query, gold in zip(examples.queries, examples.gold, strict=True)
            if all(row in place for row in gold)
        ]
        return Examples(tuple(query for query, _ in chosen), tuple(gold for _, gold in chosen))

    return replace(
        whole,
        documents=tuple(whole.documents[row] for row in kept),
        ids=tuple(whole.ids[row] for row in kept),
        train=some(whole.train),
        dev=some(whole.dev),
    )


def confirmed(whole: TrainingSet, late: set[str]) -> list[tuple[str, list[str]]]:
    """The training queries that were kept back, with their tools."""
    pairs = [
        (query, [whole.ids[row] for row in gold])
        for query, gold in zip(whole.train.queries, whole.train.gold, strict=True)
    ]
    return [(query, tools) for query, tools in pairs if set(tools) & late]


if __name__ == "__main__":
    main()
