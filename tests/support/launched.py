"""Runs commands in every process that `torchrun` starts, and notes what they did (tests/pipelines/train).

usage: launched.py NOTES RUNS, where RUNS is a JSON list of command lines of rewrite-train
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from pipelines.cli import main as cli
from pipelines.train.rewards import ToolReward
from rewrite.align import alignment_trainer as aligned
from rewrite.align.ppo import run as ppo_run
from rewrite.sft import train as fine_tuning
from rewrite.sft.distributed import rank
from rewrite.sft.run import TrainingResult

written: set[str] = set()
scored: Counter[str] = Counter()
weights: dict[str, str] = {}
now = ""


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    """Files that this process opens for writing, and folders that it makes."""
    if event == "open" and isinstance(arguments[0], str) and set(str(arguments[1] or "")) & set("wax+"):
        written.add(arguments[0])
    elif event == "os.mkdir":
        written.add(str(arguments[0]))


def _digest(trained: TrainingResult) -> str:
    digest = hashlib.sha256()
    for name, item in sorted(trained.model.named_parameters()):
        digest.update(name.encode() + item.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def main() -> int:
    """All commands one after the other; the first that fails ends it."""
    global now
    notes, runs = Path(sys.argv[1]), json.loads(sys.argv[2])
    score, tune, keep = ToolReward.__call__, fine_tuning.train, aligned.keep_best

    def counted(self: ToolReward, queries: Any, answers: Any) -> list[float]:
        scored[now] += len(queries)
        return score(self, queries, answers)

    def tuned(*words: Any, **more: Any) -> TrainingResult:
        trained = tune(*words, **more)
        weights[now] = _digest(trained)
        return trained

    def kept(goal: Any, settings: Any, trained: TrainingResult, *words: Any) -> TrainingResult:
        weights[now] = _digest(trained)  # what was trained, even where the start is kept
        return keep(goal, settings, trained, *words)

    ToolReward.__call__ = counted  # type: ignore[method-assign]
    fine_tuning.train, aligned.keep_best, ppo_run.keep_best = tuned, kept, kept  # type: ignore[attr-defined]
    sys.addaudithook(_watch)
    codes = []
    for words in runs:
        now = Path(words[1]).stem
        codes.append(cli.train([*words, "--device", "cpu"]))
        if codes[-1]:
            break
    facts = {"codes": codes, "written": sorted(written), "scored": scored, "weights": weights}
    (notes / f"{rank()}.json").write_text(json.dumps(facts))
    return codes[-1]


if __name__ == "__main__":
    sys.exit(main())
