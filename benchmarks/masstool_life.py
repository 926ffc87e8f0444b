"""Measure tools that come after training: a fifth of the tools is held out, added live, compared with retraining.

python benchmarks/masstool_life.py CONFIG [--set KEY=VALUE ...] [--tune] [--out results.json]

held out    trained without the tools and without every query that needs one of them; then `add`
confirmed   the same index after those training queries were confirmed, without training
retrained   trained on everything
dense       the encoder that the config names, untuned, without MassTool

All are searched with the test queries that need a held-out tool, and with the others. --tune also tunes the encoder.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from harness import make_parser, write_json

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
"""One tool in `SHARE` is held out, by a hash."""


def main() -> None:
    """Build, add, confirm, retrain, print."""
    parser = make_parser(__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--device")
    parser.add_argument("--tune", action="store_true")
    options = parser.parse_args()
    config = configs.load(options.config, IndexConfig, options.set)
    settings = next(kind for kind in config.retrievers.values() if isinstance(kind, MassToolSettings) and kind.train)
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
    systems: dict[str, Retriever] = {}
    with tempfile.TemporaryDirectory(prefix="masstool-life-") as scratch:
        folder, other = Path(scratch) / "early", Path(scratch) / "whole"
        build(folder, early, {"masstool": settings}, context, config.text, training={"masstool": [first]})
        add(folder, [tool for tool in data.tools if tool.id in late], context)
        systems["held out"] = Index(folder, context).retriever("masstool")
        systems["held out"].search(["warm"], 1)
        confirm(folder, confirmed(whole, late), context)
        systems["confirmed"] = Index(folder, context).retriever("masstool")
        kinds = {"masstool": settings, "dense": DenseSettings(model=settings.model)}
        build(other, list(data.tools), kinds, context, config.text, training={"masstool": [whole]})
        systems["retrained"] = Index(other, context).retriever("masstool")
        systems["dense"] = Index(other, context).retriever("dense")
        gold = data.split("test")
        groups = {
            "needing a late tool": [query for query in sorted(gold) if gold[query] & late],
            "the others": [query for query in sorted(gold) if not gold[query] & late],
        }
        facts: dict[str, dict[str, dict[str, float]]] = {}
        for group, queries in groups.items():
            print(f"\n{len(queries)} test queries {group} ({len(late)} of {len(data.tools)} tools are late)")
            facts[group] = {}
            for name, retriever in systems.items():
                ids = [ranking.ids for ranking in retriever.search([data.queries[q].text for q in queries], 100)]
                judged = judge(ids, [gold[query] for query in queries])
                figures = {m: float(measure(m, judged).mean()) for m in ("recall@3", "recall@5", "ndcg@5", "comp@5")}
                facts[group][name] = figures
                print(f"{name:<10} " + "  ".join(f"{metric} {value:.4f}" for metric, value in figures.items()))
    write_json(options.out, facts)


def without(whole: TrainingSet, late: set[str]) -> TrainingSet:
    """The training set without these tools and their queries."""
    kept = [row for row, tool in enumerate(whole.ids) if tool not in late]
    new_rows = {row: new for new, row in enumerate(kept)}

    def filtered(examples: Examples) -> Examples:
        chosen = [
            (query, tuple(new_rows[row] for row in gold))
            for query, gold in zip(examples.queries, examples.gold, strict=True)
            if all(row in new_rows for row in gold)
        ]
        return Examples(tuple(query for query, _ in chosen), tuple(gold for _, gold in chosen))

    return replace(
        whole,
        documents=tuple(whole.documents[row] for row in kept),
        ids=tuple(whole.ids[row] for row in kept),
        train=filtered(whole.train),
        dev=filtered(whole.dev),
    )


def confirmed(whole: TrainingSet, late: set[str]) -> list[tuple[str, list[str]]]:
    """The training queries that were held out, with their tools."""
    pairs = [
        (query, [whole.ids[row] for row in gold])
        for query, gold in zip(whole.train.queries, whole.train.gold, strict=True)
    ]
    return [(query, tools) for query, tools in pairs if set(tools) & late]


if __name__ == "__main__":
    main()
