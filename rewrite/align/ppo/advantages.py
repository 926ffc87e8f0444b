"""Generalised advantage estimation (Schulman et al., 2016), and what PPO does with it: pure functions of tensors.

Everything is (answers, tokens); `mask` is True on the tokens of an answer, which come first in every row.
"""

from __future__ import annotations

import torch


def advantages(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns. What comes after an answer's last token is worth nothing."""
    values, rewards = values * mask, rewards * mask
    found = torch.zeros_like(values)
    after = torch.zeros_like(values[:, 0])
    for place in reversed(range(values.shape[1])):
        following = values[:, place + 1] if place + 1 < values.shape[1] else torch.zeros_like(after)
        surprise = rewards[:, place] + gamma * following - values[:, place]
        after = (surprise + gamma * lam * after) * mask[:, place]
        found[:, place] = after
    return found, found + values


def policy_loss(
    new: torch.Tensor, old: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """PPO's clipped loss, and the share of tokens where the clip held it back."""
    ratio = torch.where(mask, new - old, 0.0).exp()
    free, held = -advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)
    return torch.max(free, held)[mask].mean(), (held > free)[mask].float().mean()


def value_loss(
    new: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, clip: float
) -> torch.Tensor:
    """Half the squared error of the critic, which may not move further than the clip at a time."""
    near = old + (new - old).clamp(-clip, clip)
    return 0.5 * torch.max((new - returns) ** 2, (near - returns) ** 2)[mask].mean()


def adapted(kl_weight: float, kl: float, target: float, answers: int, horizon: int) -> float:
    """The weight of the distance, a little higher where it is above its target, lower where it is below."""
    if not target:
        return kl_weight
    error = min(0.2, max(-0.2, kl / target - 1))
    return kl_weight * (1 + error * min(1.0, answers / horizon))
