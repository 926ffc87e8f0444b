"""Tunes the encoder for both tasks at once: which tools (listwise, over the catalogue) and whether a tool at all.

The paper's multi-task loss, reaching the encoder. A plain loop: nothing but torch and sentence-transformers. Chance
comes from (seed, epoch), so that a killed run goes on at its last epoch and ends with the same weights.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from retrievers.encoder import check_device
from retrievers.masstool.checkpoints import load, moments, save, set_moments
from retrievers.settings import DenseTraining
from retrievers.tuning.examples import TrainingSet
from retrievers.tuning.judging import METRIC, DevRecall, blend, mine
from retrievers.tuning.loss import CatalogueLoss

LABELS = 64
"""Labelled queries in a step, half of them needing a tool."""


class _Joint:
    """The model, its two losses, and one epoch of them."""

    def __init__(self, base: Path, data: TrainingSet, settings: DenseTraining, share: float, device: str) -> None:
        self.data, self.settings, self.device = data, settings, device
        self.cuda = device.startswith("cuda")
        self.model: Any = SentenceTransformer(
            str(base), device=device, local_files_only=True, model_kwargs={"dtype": torch.float32}
        )
        if settings.max_length:
            self.model.max_seq_length = settings.max_length
        self.original = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.prompt = (getattr(self.model, "prompts", None) or {}).get("query") or ""
        self.judge = DevRecall([data], self.cuda)
        self.before = self.judge(self.model)
        negatives = mine(self.model, data, settings, self.cuda)
        self.listwise = CatalogueLoss(
            self.model, data, negatives, settings.temperature, settings.candidates, settings.seed
        )
        dimensions = self.model.encode_query(["width"], convert_to_tensor=True).shape[1]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.tower = nn.Sequential(nn.Linear(dimensions, dimensions), nn.ReLU(), nn.Linear(dimensions, 1))
        self.tower.to(device)
        needs = torch.tensor(data.labels.needs)
        both = bool(len(needs)) and bool(needs.any()) and not bool(needs.all())
        self.share, self.sides = (share if both else 0.0), [needs.nonzero()[:, 0], (~needs).nonzero()[:, 0]]
        named = [*self.model.named_parameters(), *self.tower.named_parameters()]
        plain = [value for _, value in named if value.ndim < 2]
        decaying = [value for _, value in named if value.ndim >= 2]
        groups = [{"params": decaying, "weight_decay": settings.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate)
        self.steps = -(-len(data.train) // settings.batch_size)

    def epoch(self, number: int, bar: Any) -> float:
        """One pass over the training queries; the mean loss."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1_000_003 + number)
        order = torch.randperm(len(self.data.train), generator=generator)
        half = torch.bfloat16 if self.cuda and torch.cuda.is_bf16_supported() else torch.float16
        self.model.train()
        total, every = 0.0, [*self.model.parameters(), *self.tower.parameters()]
        with torch.random.fork_rng(devices=[self.device] if self.cuda else []):
            torch.manual_seed(self.settings.seed * 1_000_003 + number)
            for step, places in enumerate(torch.split(order, self.settings.batch_size)):
                self._set_rate(number * self.steps + step)
                with torch.autocast("cuda", half, enabled=self.cuda):
                    loss = self.listwise([self._tokens([self.data.train.queries[i] for i in places.tolist()])], places)
                    if self.share:
                        loss = loss + self.share * self._detection(generator)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(every, 1.0)
                self.optimizer.step()
                total += float(loss.detach()) * len(places)
                if bar:
                    bar.update()
        self.model.eval()
        return total / len(order)

    def _set_rate(self, step: int) -> None:
        whole = self.steps * self.settings.epochs
        warm = max(1, int(self.settings.warmup * whole))
        share = (step + 1) / warm if step < warm else max(0.0, (whole - step) / max(1, whole - warm))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * share

    def _tokens(self, texts: list[str]) -> dict[str, Tensor]:
        features = self.model.preprocess([self.prompt + text for text in texts])
        return {name: value.to(self.device) for name, value in features.items() if torch.is_tensor(value)}

    def _detection(self, generator: torch.Generator) -> Tensor:
        drawn = [side[torch.randint(len(side), (LABELS // 2,), generator=generator)] for side in self.sides]
        texts = [self.data.labels.queries[row] for row in torch.cat(drawn).tolist()]
        vectors = functional.normalize(self.model(self._tokens(texts))["sentence_embedding"].float(), dim=-1)
        needs = torch.tensor([1.0] * (LABELS // 2) + [0.0] * (LABELS // 2), device=self.device)
        return functional.binary_cross_entropy_with_logits(self.tower(vectors)[:, 0].float(), needs)

    def state(self) -> dict[str, Tensor]:
        """Copies of the model's weights."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}


def tune_jointly(
    base: Path,
    data: TrainingSet,
    settings: DenseTraining,
    share: float,
    work: Path,
    device: str | None,
    progress: bool,
) -> Path:
    """Trains in `work`, or goes on where a killed run stopped there; returns the folder of the tuned encoder."""
    work.mkdir(parents=True, exist_ok=True)
    finished, path = work / "encoder", work / "joint.safetensors"
    if finished.is_dir():
        return finished
    joint = _Joint(base, data, settings, share, check_device(device))
    facts: dict[str, Any] = {"epoch": 0, "best": -1.0, "best_epoch": 0, "history": []}
    best = joint.state()
    if (found := load(path)) is not None:
        tensors, facts = found
        best = _part(tensors, "best/")
        joint.model.load_state_dict(_part(tensors, "now/"))
        joint.tower.load_state_dict(_part(tensors, "tower/"))
        set_moments(joint.optimizer, _part(tensors, "adam/"))
    whole = settings.epochs * joint.steps
    bar = tqdm(total=whole, initial=facts["epoch"] * joint.steps, desc="encoder") if progress else None
    for number in range(facts["epoch"], settings.epochs):
        if number - facts["best_epoch"] >= settings.patience:
            break
        started = time.perf_counter()
        loss = joint.epoch(number, bar)
        dev, seconds = joint.judge(joint.model)[METRIC], time.perf_counter() - started
        facts["epoch"] = number + 1
        facts["history"].append({"epoch": number + 1, "loss": loss, "seconds": seconds, METRIC: dev})
        if dev > facts["best"]:
            facts["best"], facts["best_epoch"], best = dev, number + 1, joint.state()
        tower = {f"tower/{name}": value for name, value in joint.tower.state_dict().items()}
        adam = {f"adam/{name}": value for name, value in moments(joint.optimizer).items()}
        now = {f"now/{name}": value for name, value in joint.model.state_dict().items()}
        save(path, {**now, **tower, **adam, **{f"best/{name}": value for name, value in best.items()}}, facts)
    if bar:
        bar.close()
    joint.model.load_state_dict(best)
    kept, scores = blend(joint.model, joint.original, joint.judge, settings.blends)
    told = {"before": joint.before, "after": scores[kept], "blend": kept, "blends": scores}
    return _stored(joint.model, work, finished, {**told, **facts, "settings": asdict(settings), "detection": share})


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
