"""The weights that learn: an extended vocabulary, and the whole model or adapters in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievers.errors import ModelMissing
from retrievers.generative.decoding.language_model import extend_vocabulary
from retrievers.generative.settings import GenerativeTraining


@dataclass(slots=True)
class TrainableModel:
    """A model in training."""

    model: Any
    weights: dict[str, Tensor]
    """The weights that learn, by name."""
    tied: bool
    adapters: Any = None
    """The peft model, where adapters learn."""

    def merge_adapters(self) -> None:
        """Merge adapters into the weights."""
        if self.adapters is not None:
            self.adapters.merge_and_unload()


def make_trainable(
    model: Any, inputs: np.ndarray, outputs: np.ndarray, training: GenerativeTraining, device: str, base: int
) -> TrainableModel:
    """Extend the vocabulary by these rows and select what learns; the first `base` tokens are the model's own."""
    tied = extend_vocabulary(model, inputs, outputs)
    model.to(device)
    if training.method == "full":
        return TrainableModel(model, dict(model.named_parameters()), tied)
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise ModelMissing(f"method: lora needs {error.name}; run `pip install toolrewrite[train]`") from error
    rank = training.lora_rank
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        adapters = get_peft_model(model, config)
    if model.get_input_embeddings().weight.shape[0] > base:
        _unfreeze_rows(model, base)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return TrainableModel(model, weights, tied, adapters)


def _unfreeze_rows(model: Any, base: int) -> None:
    """Let the rows from `base` on learn, and no other row."""
    embeddings = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    for weight in {id(weight): weight for weight in embeddings}.values():
        weight.requires_grad_(True)
        mask = torch.zeros(weight.shape[0], 1, device=weight.device)
        mask[base:] = 1.0
        weight.register_hook(lambda gradient, mask=mask: gradient * mask)
