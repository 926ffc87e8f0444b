"""The judged data sets of the headline table, each as a folder with at most 300 test queries.

Judged queries are those of `rewrite-train rerank`: official test queries, else a sample of all, drawn by a hash. A set
without a test of its own keeps its other queries for training; a training query with the text of a judged one is out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines import config as configs
from pipelines.data.dataset import Gold, Query, load_dataset
from pipelines.data.dataset_writer import normalize_utterance, write_dataset
from pipelines.train.rerank.sets import TO_JUDGE, load_set
from pipelines.train.rerank.settings import RerankConfig, RerankSource

JUDGES = Path("configs/rerank/lm-1.5b.yaml")
"""Config that names the sets, the number of their queries, and the sets that encoders and rerankers learned from."""
MIN_WORDS = 4
"""Words of a description by which a tool is recognised in another catalogue."""


@dataclass(frozen=True, slots=True)
class JudgedSet:
    """A judged set, not written yet."""

    name: str
    source: RerankSource
    official: bool
    """True if test and training queries were split by those who published the set."""


def judged_sets(data: Path, only: list[str] | None = None) -> tuple[RerankConfig, list[JudgedSet]]:
    """The sets that the reranking note was judged on, read from the folder `data`; or those named in `only`."""
    config = configs.load(JUDGES, RerankConfig)
    sets = []
    for source in config.judged:
        name = source.name.removeprefix("bundled:")
        path = source.path if source.path.startswith("bundled:") else str(data / source.name)
        if only is None or name in only:
            official = source.path.startswith("bundled:") or (Path(path) / "qrels" / "test.tsv").exists()
            sets.append(JudgedSet(name, replace(source, path=path), official))
    return config, sets


def write_judged(judged: JudgedSet, config: RerankConfig, folder: Path) -> None:
    """Write the data set folder; the training queries keep their ids, and so their dev split."""
    data, judging = load_dataset(judged.source.path), load_set(judged.source, config)
    examples = judging.examples[TO_JUDGE]
    ids = [tool.id for tool in data.tools]
    queries = [Query(f"judged-{number:04}", text) for number, text in enumerate(examples.queries)]
    test: Gold = {
        query.id: frozenset(ids[row] for row in rows) for query, rows in zip(queries, examples.gold, strict=True)
    }
    texts = {normalize_utterance(text) for text in examples.queries}
    gold = {
        split: {
            query: needed
            for query, needed in data.gold.get(split, {}).items()
            if normalize_utterance(data.queries[query].text) not in texts
        }
        for split in ("train", "dev")
    }
    kept = [data.queries[query] for own in gold.values() for query in own]
    write_dataset(folder, data.tools, [*queries, *kept], {**gold, "test": test})


def count_shared(config: RerankConfig, sets: Sequence[JudgedSet], data: Path) -> dict[str, int]:
    """Set -> tools whose description is also that of a tool in a catalogue that was trained on."""
    sources = [data / source.name for group in config.groups.values() for source in group]
    known = {words for source in sources for words in _descriptions(str(source))}
    return {judged.name: sum(words in known for words in _descriptions(judged.source.path)) for judged in sets}


def _descriptions(path: str) -> list[str]:
    """Descriptions of some length, without case, spaces and signs."""
    words = [re.findall(r"\w+", tool.description.lower()) for tool in load_dataset(path).tools]
    return [" ".join(own) for own in words if len(own) >= MIN_WORDS]
