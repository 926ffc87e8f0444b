"""A training of MassTool's heads, epoch after epoch: kept on the way, judged by dev, gone on with after kill -9."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from retrievers.masstool.model import Heads
from retrievers.masstool.settings import MassToolSettings
from retrievers.masstool.training.calibration import keep_best, take_over
from retrievers.masstool.training.checkpoints import load, moments, save, set_moments
from retrievers.masstool.training.detection_threshold import decide
from retrievers.masstool.training.tensors import Lessons
from retrievers.masstool.training.trainer import Learning


def learn(
    lessons: Lessons,
    settings: MassToolSettings,
    work: Path | None,
    device: str,
    progress: bool,
    first: Mapping[str, Any] | None = None,
) -> tuple[Heads, dict[str, Any]]:
    """Trains, or goes on where a killed run stopped; the heads as dev likes them best, and how it came to that.

    Without a `work` folder nothing is kept on the way. `first` tells what dev chose in an earlier run: it is taken
    over and dev is not looked at, since its queries are among those that are learned from (again.py).
    """
    learning = Learning(lessons, settings, device)
    path = work / "heads.safetensors" if work else None
    facts: dict[str, Any] = {"epoch": 0, "best": -1.0, "best_epoch": 0, "history": [], "seconds": 0.0}
    found = load(path) if path else None
    warmed = 0
    if learning.detects and not settings.faithful and (first is not None or learning.lessons.dev_labels.both()):
        warmed = learning.warm_up(None if first is None else int(first["warm_up"]))
    start = best = _state(learning.heads)
    if found is not None:
        tensors, facts = found
        best = {name[5:]: value for name, value in tensors.items() if name.startswith("best/")}
        learning.heads.load_state_dict({n[4:]: v for n, v in tensors.items() if n.startswith("now/")})
        set_moments(learning.optimizer, {n[4:]: v for n, v in tensors.items() if n.startswith("adam")})
    best = _epochs(learning, facts, best, first, path, progress)
    learning.heads.load_state_dict(best)
    told = take_over(learning.heads, first) if first is not None else _chosen(learning, start, best)
    decided = (first or {}).get("detection")
    dev = learning.lessons.dev_labels
    return learning.heads, {
        **told,
        "detection": decide(learning.heads, lessons.labels, dev, decided) if learning.detects else None,
        "warm_up": warmed,
        "epochs": facts["epoch"],
        "best_epoch": facts["best_epoch"],
        "seconds": facts["seconds"],
        "history": facts["history"],
        "settings": asdict(settings),
    }


def _chosen(learning: Learning, start: dict[str, Tensor], best: dict[str, Tensor]) -> dict[str, Any]:
    """Leaves the heads as dev likes them best, and tells dev metrics of plain search, before and after."""
    plain = learning.judge(learning.lessons.dev @ learning.lessons.tools.T)
    before = learning.dev()
    if learning.settings.faithful:
        told: dict[str, Any] = {"chosen": {}}
    else:
        told = keep_best(learning.heads, learning.dev, {"trained": best, "untrained": start})
    return {"plain": plain, "before": before, "after": learning.dev(), **told}


def _epochs(
    learning: Learning,
    facts: dict[str, Any],
    best: dict[str, Tensor],
    first: Mapping[str, Any] | None,
    path: Path | None,
    progress: bool,
) -> dict[str, Tensor]:
    """The epochs that are left, noted in `facts`; the best weights, or the last where an earlier run chose how many."""
    train = learning.train
    most = train.epochs if first is None else int(first["best_epoch"]) if first["kept"] == "trained" else 0
    bar = tqdm(total=most, initial=facts["epoch"], unit="epoch", desc="MassTool") if progress else None
    for number in range(facts["epoch"], most):
        if first is None and number - facts["best_epoch"] >= train.patience:
            break
        started = time.perf_counter()
        loss = learning.epoch(number)
        seconds = time.perf_counter() - started
        dev = learning.dev() if first is None else {}
        facts["seconds"] += time.perf_counter() - started
        facts["epoch"] = number + 1
        facts["history"].append({"epoch": number + 1, "loss": loss, "seconds": seconds, **dev})
        if first is not None or dev["mean"] > facts["best"]:
            facts["best_epoch"], best = number + 1, _state(learning.heads)
            facts["best"] = dev.get("mean")
        if path:
            save(path, _tensors(learning, best), facts)
        if bar:
            bar.update()
            judged = {"recall": f"{dev['recall@5']:.4f}", "best": facts["best_epoch"]} if dev else {}
            bar.set_postfix(loss=f"{loss:.3f}", **judged)
    if bar:
        bar.close()
    return best


def _state(heads: Heads) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in heads.state_dict().items()}


def _tensors(learning: Learning, best: dict[str, Tensor]) -> dict[str, Tensor]:
    now = {f"now/{name}": value for name, value in learning.heads.state_dict().items()}
    adam = {f"adam{name}": value for name, value in moments(learning.optimizer).items()}
    return {**now, **adam, **{f"best/{name}": value for name, value in best.items()}}
