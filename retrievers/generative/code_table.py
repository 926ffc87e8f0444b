"""What lies beside the weights of a trained model: who is spelled how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from retrievers.errors import BadInput, IndexBroken
from retrievers.generative.token_schemes import Code
from retrievers.out_of_memory import report_out_of_memory
from retrievers.types import ToolId

NAME, STATE = "tools.json", "spelling.tensors"
"""The arrays are safetensors under another name: vLLM takes every *.safetensors of a folder for weights."""

SPREAD = "spread"
"""In the state of woven codes: what the model is about to speak from after the tools' documents, squared."""

ENCODER = "encoder"
"""In the state of codes that come of vectors: whose vectors they were."""


@dataclass(frozen=True, slots=True)
class Book:
    """The tools that a model was trained on."""

    indexing: str
    size: int
    """Tokens of the model, its new ones with them."""
    base: int
    """Tokens that it came with."""
    codes: Mapping[ToolId, Code]
    own: float | None = None
    """How strongly the model says a tool's token, or its code's first, when it reads that tool's document: the mean of
    the logits. None where later tools are not made of documents."""
    state: Mapping[str, np.ndarray] = field(default_factory=dict)


def write(folder: Path, book: Book) -> None:
    """Puts the book into a model's folder."""
    from safetensors.numpy import save_file

    facts = {name: value for name, value in asdict(book).items() if name != "state"}
    (folder / NAME).write_text(json.dumps(facts, ensure_ascii=False))
    if book.state:
        save_file({name: np.ascontiguousarray(array) for name, array in book.state.items()}, folder / STATE)


def read(folder: Path) -> Book:
    """The book of a model's folder."""
    from safetensors.numpy import load_file

    try:
        facts = json.loads((folder / NAME).read_text())
        codes = {tool: tuple(code) for tool, code in facts.pop("codes").items()}
        with report_out_of_memory(folder):
            state = load_file(folder / STATE) if (folder / STATE).exists() else {}
        return Book(**facts, codes=codes, state=state)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise IndexBroken(f"{folder / NAME} is missing or damaged; build the index again") from error


def mark(encoder: str) -> dict[str, np.ndarray]:
    """What a state keeps of the encoder with that fingerprint."""
    return {ENCODER: np.frombuffer(encoder.encode(), np.uint8)}


def check_encoder(state: Mapping[str, np.ndarray], encoder: str) -> None:
    """Refuses to place later tools by the vectors of another encoder; a state of an older version may not say whose."""
    made_with = state[ENCODER].tobytes().decode() if ENCODER in state else encoder
    if made_with != encoder:
        raise BadInput(
            f"the tools' codes were made with encoder {made_with}, but at hand is {encoder}; "
            "use the same encoder or build the index again"
        )
