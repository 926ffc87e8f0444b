"""A small data set, its index, its targets and a config of fine-tuning, made by the commands that a user has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from pipelines.cli import main as cli

THINGS = "hotels trains rain news music taxes recipes maps stocks films".split()
TEMPLATE = {"name": "short", "version": 1, "system": "", "user": "{utterance}", "max_characters": 40}
TRAINING = {
    "lora": {"rank": 4, "alpha": 8, "dropout": 0.2},
    "epochs": 2,
    "batch_size": 2,
    "learning_rate": 0.05,
    "max_tokens": 64,
    "evaluations": 2,
    "patience": 9,
    "report_to": [],
}
"""8 steps with 8 examples, the evaluations after 4 and 8."""


def make_data(folder: Path) -> Path:
    """Ten tools in BEIR layout, 8 training and 3 dev queries."""
    (folder / "qrels").mkdir(parents=True)
    tools = [{"_id": thing, "title": f"find_{thing}", "text": f"Finds {thing} by city."} for thing in THINGS]
    queries = [{"_id": f"q{number}", "text": f"{thing} for my trip"} for number, thing in enumerate([*THINGS, "maps"])]
    for name, rows in (("corpus", tools), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    gold = [(f"q{number}", thing) for number, thing in enumerate([*THINGS, "maps"])]
    for split, rows_ in (("train", gold[:8]), ("dev", gold[8:])):
        (folder / "qrels" / f"{split}.tsv").write_text("".join(f"{query}\t{tool}\t1\n" for query, tool in rows_))
    return folder


PLAIN = TEMPLATE | {"name": "plain", "line": "{query}"}
"""Parses any answer of a model."""
ALIGNING = TRAINING | {"epochs": 1, "learning_rate": 0.01}
"""4 steps with 8 pairs."""


def write(path: Path, config: dict[str, Any]) -> str:
    """A config file."""
    path.write_text(yaml.safe_dump(config))
    return str(path)


def make_targets(folder: Path, template: dict[str, Any] = TEMPLATE, **changes: Any) -> Path:
    """The targets of the small data set for a BM25 index."""
    data = make_data(folder / "small")
    index = {"index": f"{folder}/index", "catalogue": str(data), "retrievers": {"bm25": {"kind": "bm25"}}}
    assert cli.index(["build", write(folder / "index.yaml", index)]) == 0
    targets = {"output": f"{folder}/targets", "data": str(data), "index": f"{folder}/index", "retriever": "bm25"}
    targets |= {"template": write(folder / "short.yaml", template), **changes}
    assert cli.train(["targets", write(folder / "targets.yaml", targets), "--device", "cpu"]) == 0
    return folder / "targets"


def sft_config(targets: Path, base: Path, output: Path, **training: Any) -> str:
    """A config of fine-tuning in a folder beside its output."""
    config = {
        "output": str(output),
        "base": str(base),
        "data": [{"targets": str(targets)}],
        "training": TRAINING | training,
        "evaluation": {"max_tokens": 6},
    }
    return write(output.with_suffix(".yaml"), config)


def align_config(targets: Path, start: dict[str, Any], output: Path, algo: dict[str, Any], **more: Any) -> str:
    """A config of alignment in a folder beside its output."""
    config = {
        "output": str(output),
        "start": start,
        "data": [{"targets": str(targets)}],
        "algo": algo,
        "reward": {"terms": {"recall@5": 1.0, "length": 0.5}},
        "training": ALIGNING,
        "evaluation": {"max_tokens": 6},
        "collapse": {"min_parsed": 0, "min_distinct": 0, "min_length_ratio": 0, "max_length_ratio": 1000, "max_kl": 0},
    }
    return write(output.with_suffix(".yaml"), config | more)
