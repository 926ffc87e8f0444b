"""The weights that learn: a vocabulary that has grown, and all of the model or adapters in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievers.errors import ModelMissing
from retrievers.generative.settings import GenerativeTraining


@dataclass(slots=True)
class Student:
    """A model in training."""

    model: Any
    weights: dict[str, Tensor]
    """Those that learn, by name."""
    tied: bool
    adapters: Any = None
    """What holds the model's adapters, where it has some."""


def enrol(
    model: Any, inputs: np.ndarray, outputs: np.ndarray, training: GenerativeTraining, device: str, base: int
) -> Student:
    """Grows the vocabulary by these rows and frees what is to learn; `base` tokens are not ours."""
    tied = grow(model, inputs, outputs)
    model.to(device)
    if training.method == "full":
        return Student(model, dict(model.named_parameters()), tied)
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise ModelMissing(f"method: lora needs {error.name}; run `pip install toolrewrite[train]`") from error
    config = LoraConfig(
        r=training.lora.rank, lora_alpha=training.lora.alpha, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        adapters = get_peft_model(model, config)
    if model.get_input_embeddings().weight.shape[0] > base:
        _free_our_rows(model, base)
    weights = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return Student(model, weights, tied, adapters)


def graduate(student: Student) -> None:
    """Adapters become part of the weights."""
    if student.adapters is not None:
        student.adapters.merge_and_unload()


def grow(model: Any, inputs: np.ndarray, outputs: np.ndarray) -> bool:
    """Adds rows to the vocabulary, read and spoken; True where the model has one row for both, and keeps that."""
    before = model.get_input_embeddings().weight.shape[0]
    tied = bool(model.get_input_embeddings().weight.data_ptr() == model.get_output_embeddings().weight.data_ptr())
    if not len(inputs):
        return tied
    model.resize_token_embeddings(before + len(inputs), mean_resizing=False)
    with torch.no_grad():
        read, said = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        # Output rows first: where there is one row for both, what makes a token be said is what counts.
        read[before:] = torch.from_numpy(inputs).to(read)
        said[before:] = torch.from_numpy(outputs).to(said)
    return tied


def _free_our_rows(model: Any, base: int) -> None:
    """Lets the rows of the tools' tokens learn, and no other row."""
    for weight in {
        id(w): w for w in (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    }.values():
        weight.requires_grad_(True)
        mask = torch.zeros(weight.shape[0], 1, device=weight.device)
        mask[base:] = 1.0
        weight.register_hook(lambda gradient, mask=mask: gradient * mask)
