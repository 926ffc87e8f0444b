"""The paper's form of each part of MassTool (arXiv 2507.00487), as changes of a config's settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retrievers.errors import BadInput
from retrievers.masstool.settings import MassToolSettings

Changes = dict[str, Any]
MODULES: dict[str, Changes] = {
    "joint": {"score": "joint"},
    "scenes": {"scene_view": "propagated"},
    "attention": {"attention": "graph"},
    "no-sink": {"sink": False},
    "no-mixing": {"mixing": False},
    "no-adapter": {"adapter": False},
    "equal-weights": {"learned_weights": False},
    "no-words": {"words": False},
}
TRAIN: dict[str, Changes] = {
    "half": {"detection_threshold": 0.5},
    "lists": {"lists": "ten"},
    "text": {"text_dropout": 0.0},
    "not-first": {"detection_first": False},
    "uncalibrated": {"calibrate": "threshold"},
    "optimiser": {"decay": False, "contrast_weight": 0.02},
}
FAITHFUL: Changes = {"own_labels": 0.0, "joined_labels": 0.0, "epochs": 200, "patience": 20, "batch_size": 2048}
DETECTOR_ONLY = ("no-words", "half")
"""Forms that change nothing but the detector."""
WHOLE: dict[str, Changes] = {
    "paper": {},
    "faithful": {},
    "faithful-joint": {"score": "joint"},
    "faithful-attention": {"attention": "graph"},
    "faithful-threshold": {},
}


def paper_names(chosen: Sequence[str] | None) -> list[str]:
    """Names of forms: none without the flag, all if the flag names none."""
    known = [*MODULES, *TRAIN, *WHOLE]
    unknown = [name for name in chosen or () if name not in known]
    if unknown:
        raise BadInput(f"the paper has no form {unknown[0]!r}; its forms are {', '.join(known)}")
    return [] if chosen is None else list(chosen) or known


def paper_form(settings: MassToolSettings, name: str) -> MassToolSettings:
    """Settings with one part, or all (`paper`, without the leak), in the paper's form; or the authors' (`faithful`)."""
    assert settings.train is not None
    modules, train = MODULES.get(name, WHOLE.get(name, {})), TRAIN.get(name, {})
    if name == "paper":
        modules = {key: value for changes in MODULES.values() for key, value in changes.items()}
        train = {key: value for changes in TRAIN.values() for key, value in changes.items()}
    if name.startswith("faithful"):
        train = FAITHFUL | ({"calibrate": "threshold"} if name == "faithful-threshold" else {})
    return replace(
        settings,
        faithful=name.startswith("faithful"),
        modules=replace(settings.modules, **modules),
        train=replace(settings.train, **train),
    )
