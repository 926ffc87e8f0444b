"""PPO on tokens: a policy and its critic, a frozen reference, a reward at the end of every answer.

Random numbers come from the step's seed and nothing else, so that a step can be done again, on a GPU as far as its
arithmetic is the same each time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import GenerationConfig

from rewrite.align.ppo.advantages import adapted, advantages, policy_loss, value_loss
from rewrite.align.settings import PpoSettings
from rewrite.settings import Sampling
from rewrite.speedups.decoding import Decoding, can_record, half_copy

Tokens = list[list[int]]
Score = Callable[[Tokens], list[float]]
"""The tokens of each answer, its end included -> what it earns."""


class ActorCritic(nn.Module):
    """A language model, and a critic that reads its last hidden states without changing them."""

    def __init__(self, policy: Any) -> None:
        super().__init__()
        width = int(policy.config.get_text_config().hidden_size)
        self.policy = policy
        guess = nn.Linear(width, 1)
        nn.init.zeros_(guess.weight)
        nn.init.zeros_(guess.bias)
        self.critic = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh(), guess)

    def forward(self, ids: Tensor, mask: Tensor, width: int, temperature: float) -> tuple[Tensor, Tensor]:
        """Log-probabilities and values of the tokens after the first `width`."""
        output = _run(self.policy, ids, mask, width, hidden=True)
        states = output.hidden_states[-1][:, width - 1 : -1].detach().float()
        with torch.autocast(ids.device.type, enabled=False):  # small, and summed up over a whole answer
            values = self.critic(states).squeeze(-1)
        return _chosen(output.logits, ids, width, temperature), values


def _run(model: Any, ids: Tensor, mask: Tensor, width: int, hidden: bool = False) -> Any:
    """Scores from the last of the first `width` tokens on: those of prompts would cost as much and be thrown away."""
    return model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(1) - 1).clamp(min=0),
        use_cache=False,
        output_hidden_states=hidden,
        logits_to_keep=ids.shape[1] - width + 1,
    )


def _chosen(logits: Tensor, ids: Tensor, width: int, temperature: float) -> Tensor:
    scores = logits[:, :-1].float() / temperature
    return scores.log_softmax(-1).gather(2, ids[:, width:, None]).squeeze(-1)


@dataclass(frozen=True, slots=True)
class Batch:
    """Answers, and all that was known of them when they were written."""

    ids: Tensor
    mask: Tensor
    width: int
    """Tokens of the padded prompts."""
    written: Tensor
    """(answers, tokens): True on an answer's tokens."""
    logps: Tensor
    values: Tensor
    advantage: Tensor
    returns: Tensor
    figures: dict[str, float]


class Ppo:
    """The algorithm. Weights change in `step` alone."""

    def __init__(
        self, model: ActorCritic, reference: Any, settings: PpoSettings, learning_rate: float, weight_decay: float,
        ends: Sequence[int], pad: int, accelerator: Accelerator,
    ) -> None:  # fmt: skip
        self.settings, self.kl_weight = settings, settings.kl
        self._reference, self._ends, self._pad, self._accelerator = reference, list(ends), pad, accelerator
        trained = [each for each in model.policy.parameters() if each.requires_grad]
        self._rates = (learning_rate, settings.critic_learning_rate)
        groups: list[dict[str, Any]] = [
            {"params": trained, "lr": learning_rate},
            {"params": list(model.critic.parameters()), "lr": settings.critic_learning_rate},
        ]
        optimizer = torch.optim.AdamW(groups, weight_decay=weight_decay)
        self._model, self.optimizer = accelerator.prepare(model.eval(), optimizer)

    @property
    def model(self) -> ActorCritic:
        """Policy and critic, unwrapped."""
        model: ActorCritic = self._accelerator.unwrap_model(self._model)
        return model

    def step(self, prompts: Tokens, score: Score, seed: int, rate: float = 1.0) -> dict[str, float]:
        """Writes one answer a prompt, has them scored, and learns from them; `rate` scales the learning rates."""
        torch.manual_seed(seed)
        batch = self._collect(prompts, score)
        for group, full in zip(self.optimizer.param_groups, self._rates, strict=True):
            group["lr"] = full * rate
        order = torch.Generator().manual_seed(seed)
        sums: dict[str, float] = {}
        updates = 0
        for _ in range(self.settings.passes):
            rows_of_all: Any = torch.randperm(len(prompts), generator=order)
            for rows in rows_of_all.split(self.settings.minibatch):
                for name, value in self._update(batch, rows.to(batch.ids.device)).items():
                    sums[name] = sums.get(name, 0.0) + value
                updates += 1
        told = batch.figures | {name: value / updates for name, value in sums.items()}
        told = {name: self._mean(value) for name, value in told.items()}
        answers = len(prompts) * self._accelerator.num_processes
        told["kl_weight"] = self.kl_weight
        self.kl_weight = adapted(self.kl_weight, told["kl"], self.settings.target_kl, answers, self.settings.horizon)
        return told

    def _update(self, batch: Batch, rows: Tensor) -> dict[str, float]:
        settings, written = self.settings, batch.written[rows]
        with self._accelerator.autocast():
            logps, values = self._model(batch.ids[rows], batch.mask[rows], batch.width, settings.temperature)
        policy, held = policy_loss(logps, batch.logps[rows], batch.advantage[rows], written, settings.clip)
        value = value_loss(values, batch.values[rows], batch.returns[rows], written, settings.value_clip)
        loss = policy + settings.value_weight * value
        self.optimizer.zero_grad()
        self._accelerator.backward(loss)
        norm = self._accelerator.clip_grad_norm_(self._model.parameters(), 1.0)
        self.optimizer.step()
        return {
            "loss": loss.item(),
            "policy_loss": policy.item(),
            "value_loss": value.item(),
            "clipped": held.item(),
            "grad_norm": float(norm),
        }

    @torch.no_grad()
    def _collect(self, prompts: Tokens, score: Score) -> Batch:
        settings = self.settings
        ids, mask = self._padded(prompts)
        width = ids.shape[1]
        ids = self._answered(ids, mask)
        ended = torch.isin(ids[:, width:], torch.tensor(self._ends, device=ids.device))
        written = ended.cumsum(1) - ended.long() == 0  # up to the first end token, which counts as written
        mask = torch.cat([mask, written.long()], 1)
        logps, values, reference = self._looked_at(ids, mask, width)
        answers = [row[kept].tolist() for row, kept in zip(ids[:, width:], written, strict=True)]
        earned = torch.tensor(score(answers), dtype=torch.float32, device=ids.device)
        distance = (logps - reference) * written
        rewards = -self.kl_weight * distance
        rewards[torch.arange(len(answers)), written.sum(1) - 1] += earned
        advantage, returns = advantages(rewards, values, written, settings.gamma, settings.lam)
        figures = {
            "reward": earned.mean().item(),
            "reward_std": earned.std(unbiased=False).item(),
            "kl": distance.sum(1).mean().item(),
            "length": written.sum(1).float().mean().item(),
            "entropy": -(logps * written).sum().item() / int(written.sum()),
            "value": (values * written).sum().item() / int(written.sum()),
        }
        return Batch(ids, mask, width, written, logps, values, self._whitened(advantage, written), returns, figures)

    def _answered(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Prompts, and what the policy says to them."""
        settings, policy = self.settings, self.model.policy
        half = self._accelerator.mixed_precision == "bf16"
        if can_record(policy, copied=half):
            sampling = Sampling(settings.temperature, most_tokens=settings.most_tokens)
            writer = half_copy(policy) if half else policy
            said = Decoding(writer, ids, mask, sampling, self._ends, self._pad).run(record=True)
            ended = torch.isin(said, torch.tensor(self._ends, device=said.device)).cumsum(1) > 0
            longest = int((~ended).sum(1).max()) + 1  # as far as one is written, its end included
            return torch.cat([ids, said[:, :longest]], 1)
        config: Any = GenerationConfig
        how = config(
            do_sample=True, temperature=settings.temperature, top_k=0, top_p=1.0,
            max_new_tokens=settings.most_tokens, eos_token_id=self._ends, pad_token_id=self._pad,
            remove_invalid_values=True,  # a loss that is no number will tell; here it would end the process on a GPU
        )  # fmt: skip
        with self._accelerator.autocast():
            whole: Tensor = policy.generate(input_ids=ids, attention_mask=mask, generation_config=how)
        return whole

    def _looked_at(self, ids: Tensor, mask: Tensor, width: int) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, values and the reference's log-probabilities, a minibatch at a time: all at once the
        scores of a large vocabulary would not fit."""
        size, heat = self.settings.minibatch, self.settings.temperature
        seen = []
        for start in range(0, len(ids), size):
            some, kept = ids[start : start + size], mask[start : start + size]
            with self._accelerator.autocast():
                logps, values = self.model(some, kept, width, heat)
                reference = _chosen(_run(self._reference, some, kept, width).logits, some, width, heat)
            seen.append((logps, values, reference))
        logps, values, reference = (torch.cat(each) for each in zip(*seen, strict=True))
        return logps, values, reference

    def _padded(self, prompts: Tokens) -> tuple[Tensor, Tensor]:
        """Prompts padded on the left, and where they are not."""
        width, device = max(map(len, prompts)), self._accelerator.device
        ids = torch.tensor([[self._pad] * (width - len(each)) + each for each in prompts], device=device)
        mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts], device=device)
        return ids, mask

    def _whitened(self, advantage: Tensor, written: Tensor) -> Tensor:
        """Mean 0 and deviation 1 over the tokens of all processes."""
        kept = advantage[written]
        sums = torch.stack([kept.sum(), (kept**2).sum(), written.sum().float()])
        total, squares, count = self._accelerator.reduce(sums, reduction="sum")
        mean = total / count
        whitened: Tensor = (advantage - mean) * (squares / count - mean**2 + 1e-8).rsqrt() * written
        return whitened

    def _mean(self, value: float) -> float:
        if self._accelerator.num_processes == 1:
            return value
        mine = torch.tensor(value, device=self._accelerator.device)
        return float(self._accelerator.reduce(mine, reduction="mean"))
