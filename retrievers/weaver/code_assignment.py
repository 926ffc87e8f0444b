"""What was woven: the quantiser as plain arrays, for whoever spells a later tool, and the codes of its catalogue."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from retrievers.weaver.co_usage import Usage
from retrievers.weaver.codes import Known, Path, Room, assign, check_room, evenness
from retrievers.weaver.quantiser import Quantiser
from retrievers.weaver.quantiser_training import learn
from retrievers.weaver.settings import WeaveSettings
from retrievers.weaver.sinkhorn import prices

Choose = Callable[[int, list[Path]], Path]


@dataclass(frozen=True, slots=True)
class Weave:
    """A learned quantiser."""

    state: Mapping[str, np.ndarray]
    """`books` (levels, codes, width), and the encoder's layers `weight-0`, `bias-0`, …"""

    @property
    def books(self) -> np.ndarray:
        return self.state["books"]

    def points(self, vectors: np.ndarray) -> np.ndarray:
        """(vectors, width): where the encoder puts them."""
        found, last = vectors.astype(np.float32), sum(name.startswith("weight-") for name in self.state) - 1
        for place in range(last + 1):
            found = found @ self.state[f"weight-{place}"].T + self.state[f"bias-{place}"]
            found = np.maximum(found, 0) if place < last else found
        norm: np.ndarray = found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        return norm

    def late(
        self, vectors: np.ndarray, taken: Collection[Path], known: Known, branches: int, choose: Choose
    ) -> list[Path]:
        """Free codes for tools that come after the catalogue was woven, in order.

        `choose` is asked which of a tool's nearest free codes it shall be, where there are several.
        """
        room = Room(self.books.shape[0], self.books.shape[1], taken)
        found = []
        for place, point in enumerate(self.points(vectors)):
            near = room.near(point, self.books, branches, known)
            found.append(near[0] if len(near) == 1 else choose(place, near))
            room.take(found[-1])
        return found


@dataclass(frozen=True, slots=True)
class Woven:
    """A catalogue's codes."""

    weave: Weave
    paths: list[Path]
    facts: dict[str, Any]


def weave(vectors: np.ndarray, usage: Usage, settings: WeaveSettings, device: str, progress: bool = False) -> Woven:
    """Learns a quantiser of these tools and gives each a code of its own."""
    check_room(len(vectors), settings.levels, settings.codes)
    model = learn(vectors, usage, settings, device, progress)
    made = Weave(_arrays(model))
    points = made.points(vectors)

    def even(costs: np.ndarray) -> np.ndarray:
        found: np.ndarray = prices(torch.from_numpy(costs), settings.epsilon, settings.iterations).numpy()
        return found

    paths, shared = assign(points, made.books, even if settings.uniform else None)
    with torch.no_grad():
        every = torch.from_numpy(vectors.astype(np.float32)).to(device)
        total = made_total(made, paths)
        lost = (model.decoder(torch.from_numpy(total).to(device)) - every).square().sum(dim=1).mean()
    facts = {
        "tools": len(paths),
        "levels": settings.levels,
        "codes a level": settings.codes,
        "tokens": settings.levels * settings.codes,
        "tools that shared a code before it was resolved": shared,
        "tools that share a code": len(paths) - len(set(paths)),
        "evenness by level": [round(value, 4) for value in evenness(paths, settings.levels, settings.codes)],
        "used codes by level": [len({path[level] for path in paths}) for level in range(settings.levels)],
        "lost of a vector": round(float(lost), 4),
        "pairs used together": len(usage.pairs),
        "of these with the same first code": together(paths, usage),
    }
    return Woven(made, paths, facts)


def made_total(made: Weave, paths: Sequence[Path]) -> np.ndarray:
    """(tools, width): the sum of each tool's codes."""
    codes = np.array(paths)
    found: np.ndarray = sum(made.books[level][codes[:, level]] for level in range(codes.shape[1])).astype(np.float32)
    return found


def together(paths: Sequence[Path], usage: Usage) -> float | None:
    """The weighted share of pairs used together whose codes begin alike; None without pairs."""
    if not len(usage.pairs):
        return None
    same = np.array([paths[a][0] == paths[b][0] for a, b in usage.pairs.tolist()])
    return round(float((usage.weights * same).sum() / usage.weights.sum()), 4)


def _arrays(model: Quantiser) -> dict[str, np.ndarray]:
    found = {"books": model.books.detach().cpu().numpy().astype(np.float32)}
    layers = [layer for layer in model.encoder if isinstance(layer, torch.nn.Linear)]
    for place, layer in enumerate(layers):
        found[f"weight-{place}"] = layer.weight.detach().cpu().numpy()
        found[f"bias-{place}"] = layer.bias.detach().cpu().numpy()
    return found
