"""Tunes the encoder for both tasks at once: which tools (listwise, over the catalogue) and whether a tool at all.

The paper's multi-task loss, reaching the encoder (aims.py). A plain loop: nothing but torch and sentence-transformers.
Chance comes from (seed, epoch), so that a killed run goes on at its last checkpoint and ends with the same weights.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from tqdm import tqdm

from retrievers.dense.encoder import check_device
from retrievers.dense.tuning.dev_recall import choose_blend, load_blend
from retrievers.masstool.encoder.losses import Aims
from retrievers.masstool.encoder.tokens import encode
from retrievers.masstool.settings import Beside
from retrievers.masstool.training.checkpoints import load, moments, save, set_moments
from retrievers.masstool.training.tensors import judge
from retrievers.settings import WARMUP, WEIGHT_DECAY, DenseTraining
from retrievers.training_set import TrainingSet

NOTHING = Beside()
EVERY = 30.0
"""Seconds between checkpoints: a large encoder's takes as long to write as an epoch."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where to stop and what to take, for a run that follows an earlier one and is not judged."""

    epoch: int
    weights: str
    """last, or averaged"""
    blend: float
    """How much of the tuning is kept."""


class _Joint:
    """The model, its losses, and one epoch of them."""

    def __init__(
        self, base: Path, data: TrainingSet, settings: DenseTraining, share: float, device: str, beside: Beside
    ) -> None:
        self.data, self.settings, self.device = data, settings, device
        self.cuda = device.startswith("cuda")
        self.model: Any = SentenceTransformer(
            str(base), device=device, local_files_only=True, model_kwargs={"dtype": torch.float32}
        )
        if settings.max_length:
            self.model.max_seq_length = settings.max_length
        self.original = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.aims = Aims(self.model, data, settings, beside, share, device)
        self._judge = judge(data.dev.gold, device)
        named = [*self.model.named_parameters(), *self.aims.tower.named_parameters()]
        plain = [value for _, value in named if value.ndim < 2]
        decaying = [value for _, value in named if value.ndim >= 2]
        groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, fused=self.cuda)
        self.steps = -(-len(data.train) // settings.batch_size)
        self.mean = self.state() if beside.averaged else {}
        held = self.model.state_dict()  # the weights themselves, wherever they move
        self._live = {name: value.detach() for name, value in held.items() if value.is_floating_point()}

    def epoch(self, number: int, bar: Any) -> float:
        """One pass over the training queries; the mean loss."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        order = torch.randperm(len(self.data.train), generator=generator)
        self.model.train()
        total = torch.zeros((), device=self.device)
        every = [*self.model.parameters(), *self.aims.tower.parameters()]
        with torch.random.fork_rng(devices=[self.device] if self.cuda else []):
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
            for step, places in enumerate(torch.split(order, self.settings.batch_size)):
                self._set_rate(number * self.steps + step)
                loss = self.aims(places, generator)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(every, 1.0)
                self.optimizer.step()
                self._average(number * self.steps + step)
                total += loss.detach() * len(places)
                if bar:
                    bar.update()
        self.model.eval()
        return float(total) / len(order)

    def _set_rate(self, step: int) -> None:
        whole = self.steps * self.settings.epochs
        warm = max(1, int(WARMUP * whole))
        share = (step + 1) / warm if step < warm else max(0.0, (whole - step) / max(1, whole - warm))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * share

    @torch.no_grad()
    def _average(self, step: int) -> None:
        """Moves the mean towards the weights; the first steps, which are far from the last ones, are soon forgotten."""
        if not self.mean:
            return
        share = min(self.aims.beside.averaged, (1 + step) / (10 + step))
        torch._foreach_lerp_([self.mean[name] for name in self._live], list(self._live.values()), 1 - share)

    def taken(self, weights: str) -> dict[str, Tensor]:
        """Copies of the last weights, or of the averaged ones."""
        return {name: value.clone() for name, value in (self.mean if weights == "averaged" else self.state()).items()}

    def judge_mean(self) -> dict[str, float]:
        """Dev metrics of the averaged weights."""
        held = self.state()
        self.model.load_state_dict(self.mean)
        found = self.judge(self.model)
        self.model.load_state_dict(held)
        return found

    def choose(self, best: Mapping[str, Tensor]) -> dict[str, Any]:
        """Leaves in the model as much of the best weights as dev likes, and tells how it came to that.

        By the text alone, as a dense index does it: nobody votes for a tool that no training query needed.
        """
        self.model.load_state_dict(best)
        by_text = partial(self.judge, voting=False)
        kept, scores = choose_blend(self.model, self.original, by_text, self.settings.blends)
        return {"after": self.judge(self.model), "blend": kept, "blends": scores}

    def end(self, stop: Stop) -> dict[str, Any]:
        """Leaves in the model what it was told to take."""
        load_blend(self.model, self.original, self.taken(stop.weights), stop.blend)
        return {"blend": f"{stop.blend:g}", "weights": stop.weights}

    @torch.no_grad()
    def judge(self, model: Any, voting: bool = True) -> dict[str, float]:
        """Dev metrics of the text alone, and, where the training queries vote, the mean of them with their votes.

        The voters' vectors are this model's: those that training goes by are of many moments, and of other weights.
        """
        documents, asked = (encode(model, each, self.cuda) for each in (self.aims.documents, self.aims.dev))
        scores = asked @ documents.T
        found = self._judge(scores)
        if not (voting and self.aims.beside.votes):
            return found
        voters = encode(model, self.aims.queries, self.cuda)
        both = torch.softmax(scores / self.settings.temperature, dim=-1) + self.aims.votes(asked, voters)
        return {**found, "voted": self._judge(both)["mean"]}

    def state(self) -> dict[str, Tensor]:
        """Copies of the model's weights."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def tensors(self, best: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All that a checkpoint holds."""
        parts = {
            "now": self.model.state_dict(),
            "best": best,
            "mean": self.mean,
            "tower": self.aims.tower.state_dict(),
            "adam": moments(self.optimizer),
            "aims": {"voters": self.aims.voters, "known": self.aims.known},
        }
        return {f"{part}/{name}": value for part, each in parts.items() for name, value in each.items()}

    def go_on(self, tensors: Mapping[str, Tensor]) -> None:
        """As the checkpoint has it."""
        self.model.load_state_dict(_part(tensors, "now/"))
        self.mean = {name: value.to(self.device) for name, value in _part(tensors, "mean/").items()}
        self.aims.tower.load_state_dict(_part(tensors, "tower/"))
        set_moments(self.optimizer, _part(tensors, "adam/"))
        self.aims.voters, self.aims.known = (tensors[f"aims/{name}"].to(self.device) for name in ("voters", "known"))


def tune_jointly(
    base: Path,
    data: TrainingSet,
    settings: DenseTraining,
    share: float,
    work: Path,
    device: str | None,
    progress: bool,
    beside: Beside = NOTHING,
    stop: Stop | None = None,
) -> Path:
    """Trains in `work`, or goes on where a killed run stopped there; returns the folder of the tuned encoder.

    `stop`: dev is not asked and nothing is told of it, it may be among what is learned from.
    """
    work.mkdir(parents=True, exist_ok=True)
    finished, path = work / "encoder", work / "joint.safetensors"
    if finished.is_dir():
        return finished
    joint = _Joint(base, data, settings, share, check_device(device), beside)
    facts: dict[str, Any] = {"epoch": 0, "best": -1.0, "best_epoch": 0, "history": []}
    before = joint.judge(joint.model) if not stop else {}
    best = joint.state()
    if (kept_there := load(path)) is not None:
        tensors, facts = kept_there
        best = _part(tensors, "best/")
        joint.go_on(tensors)
    whole = settings.epochs * joint.steps
    bar = tqdm(total=whole, initial=facts["epoch"] * joint.steps, desc="encoder") if progress else None
    kept_at = -EVERY
    for number in range(facts["epoch"], settings.epochs):
        if number >= stop.epoch if stop else number - facts["best_epoch"] >= settings.patience:
            break
        started = time.perf_counter()
        loss = joint.epoch(number, bar)
        dev, mean = (joint.judge(joint.model), joint.judge_mean() if joint.mean else {}) if not stop else ({}, {})
        told = {**dev, **{f"averaged {name}": value for name, value in mean.items()}}
        facts["epoch"] = number + 1
        facts["history"].append({"epoch": number + 1, "loss": loss, "seconds": time.perf_counter() - started, **told})
        for name, found in (("last", dev), ("averaged", mean)):
            if found and (reached := found.get("voted", found["mean"])) > facts["best"]:
                facts |= {"best": reached, "best_epoch": number + 1, "weights": name}
                best = joint.taken(name)
        if time.perf_counter() - kept_at >= EVERY:
            save(path, joint.tensors(best), facts)
            kept_at = time.perf_counter()
    if bar:
        bar.close()
    ending = joint.end(stop) if stop else {"before": before, **joint.choose(best), **facts}
    wishes = {"settings": asdict(settings), "detection": share, "beside": asdict(beside)}
    course = {"epoch": facts["epoch"], "history": facts["history"]}
    return _stored(joint.model, work, finished, {**ending, **course, **wishes})


def _part(tensors: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    return {name.removeprefix(start): value for name, value in tensors.items() if name.startswith(start)}


def _stored(model: Any, work: Path, finished: Path, facts: Mapping[str, Any]) -> Path:
    part = work / "encoder.part"
    shutil.rmtree(part, ignore_errors=True)
    model.save_pretrained(str(part), create_model_card=False)
    (part / "training.json").write_text(json.dumps(facts, indent=1))
    part.rename(finished)
    (work / "joint.safetensors").unlink(missing_ok=True)
    return finished
