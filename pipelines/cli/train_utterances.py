"""`rewrite-train utterances`: a catalogue without labels -> a synthetic data set."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from pipelines import config as configs
from pipelines.context import make_context
from pipelines.data.dataset_writer import write_dataset
from pipelines.runs import as_json, environment
from pipelines.train.utterances.generate import SyntheticUtterances, make_utterances
from pipelines.train.utterances.settings import UtterancesConfig
from retrievers.errors import BadInput
from retrievers.index import Index

NUM_SAMPLES = 6
"""Utterances printed as samples."""


def run_utterances(arguments: argparse.Namespace) -> int:
    config = configs.load_from_args(arguments, UtterancesConfig)
    if config is None:
        return 0
    output = Path(config.output)
    if output.exists():
        raise BadInput(f"{output} exists already; name another folder, or remove it")
    drafts = output.with_name(f"{output.name}-drafts")
    context = make_context(arguments.device, sys.stderr.isatty())
    index = Index(Path(config.index), context)
    index.retriever(config.retriever)
    made = make_utterances(config, index, context, drafts)
    if not all(made.gold.get(split) for split in ("train", "dev", "test")):
        raise BadInput(
            f"{made.written} utterances were written and {len(made.queries)} are usable ({_reasons(made)}): too few "
            f"for a data set; a larger model writes better ones. The drafts are in {drafts}"
        )
    facts = {
        "tools": made.tools,
        "tools_with_utterances": made.served,
        "written": made.written,
        "kept": len(made.queries),
        "left_out": made.left_out,
        "index": {"path": config.index, "retriever": config.retriever, "fingerprint": index.fingerprint},
        "environment": environment(),
    }
    files = {"utterances.json": as_json(facts), "config.yaml": configs.dump(config)}
    write_dataset(output, index.tools.values(), made.queries, made.gold, files)
    shutil.rmtree(drafts)
    _print_summary(config, index, made)
    return 0


def _print_summary(config: UtterancesConfig, index: Index, made: SyntheticUtterances) -> None:
    counts = ", ".join(f"{len(made.gold[split])} {split}" for split in ("train", "dev", "test"))
    print(f"{config.output}: {counts}; {made.served} of {made.tools} tools have an utterance")
    print(f"{made.written} were written; left out: {_reasons(made)}")
    gold = {query: tools for split in made.gold.values() for query, tools in split.items()}
    step = max(1, len(made.queries) // NUM_SAMPLES)
    for query in made.queries[::step][:NUM_SAMPLES]:
        [tool] = gold[query.id]
        print(f"  {index.tools[tool].name}: {query.text}")
    if config.max_rank:
        print(
            f"A model wrote these, and {config.retriever} finds each tool within rank {config.max_rank}: figures on "
            "them flatter it. Use them to train and to try, not as evidence."
        )


def _reasons(made: SyntheticUtterances) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in made.left_out.items()) or "none"
