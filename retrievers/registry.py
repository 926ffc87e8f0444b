"""What a kind of retriever must be able to do to live in an index folder, and the one dict that names them all.

Adding a kind: its settings in `settings.py`, a file with a class like this, one line in KINDS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, get_args, get_type_hints, runtime_checkable

import numpy as np

from retrievers.base import FindModel, Retriever, VectorCache
from retrievers.errors import BadInput, IndexBroken
from retrievers.generative.settings import ToolGenSettings
from retrievers.generative.weaver_settings import ToolWeaverSettings
from retrievers.masstool.settings import MassToolSettings
from retrievers.rows import Rows
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, MilvusSettings, RetrieverSettings
from retrievers.tuning.examples import TrainingSet
from retrievers.types import Tool, ToolId

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Block:
    """One retriever's share of one segment."""

    arrays: Arrays
    live: np.ndarray


@dataclass(frozen=True, slots=True)
class Context:
    """What a retriever may need of the world outside its folder."""

    find_model: FindModel
    cache: Path | None = None
    """Where embeddings are kept between builds; None: nowhere."""
    show_progress: bool = False
    device: str | None = None
    """cpu, cuda, mps; None: the best there is."""
    encoders: dict[str, Any] = field(default_factory=dict)
    """Encoders already loaded, by fingerprint of their weights."""
    vectors: Callable[[str], VectorCache] | None = None
    """Who keeps the vectors of a model, by its fingerprint; None: a file in `cache`."""
    engine: str = "transformers"
    """What runs the language model of a generative retriever: transformers or vllm."""
    vllm: Callable[[], Callable[..., Any]] | None = None
    """Who starts vLLM. Called, it refuses where there is none, or gives what starts it with a model's folder and vLLM's
    options; that which is started has vLLM's `generate`."""


class Kind(Protocol):
    """One way to search, as it is kept on disk."""

    def identity(self) -> dict[str, str]:
        """Facts that must still hold when the index is opened or changed, such as the hash of the encoder."""
        ...

    def rows(self, documents: Sequence[str]) -> Arrays:
        """Arrays for a new segment of these documents."""
        ...

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        """Arrays of one segment holding the live rows of several."""
        ...

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        """A retriever over all segments; `other(name)` opens another retriever of the same index."""
        ...


@runtime_checkable
class Learner(Protocol):
    """A kind that can train a model of its own before it indexes."""

    def train(self, sets: Sequence[TrainingSet], work: Path) -> Path:
        """Trains in the work folder, going on where a killed run stopped; returns the folder of the model."""
        ...


@runtime_checkable
class Rememberer(Protocol):
    """A kind that remembers which tools a query turned out to need, and finds them for the next one like it."""

    def remember(self, queries: Sequence[str]) -> np.ndarray:
        """(queries, dimensions): what each is recognised by."""
        ...

    def recall(self, keys: np.ndarray, pairs: list[tuple[str, tuple[ToolId, ...]]]) -> None:
        """What was remembered so far, for the retriever that is opened next."""
        ...


@runtime_checkable
class Speller(Protocol):
    """A kind that gives every tool an identity of its own, and so must know who is in which row."""

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        """As `Kind.rows`, with the tools themselves."""
        ...

    def train_tools(
        self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path
    ) -> Path:
        """As `Learner.train`, with the catalogue that is to be learned."""
        ...


@runtime_checkable
class Neighbour(Protocol):
    """A kind whose new rows must not be like those that the index holds."""

    def know(self, blocks: Sequence[Block]) -> None:
        """What the index holds, before more is added."""
        ...


@runtime_checkable
class Keeper(Protocol):
    """A kind that gives tools something which has to stay when its index is built further."""

    def keep(self, ids: Sequence[ToolId], blocks: Sequence[Block]) -> None:
        """What the index holds, and which tool is in which row, before it is trained further."""
        ...


KINDS = {
    "bm25": "retrievers.bm25:BM25Kind",
    "dense": "retrievers.dense:DenseKind",
    "hybrid": "retrievers.hybrid:HybridKind",
    "masstool": "retrievers.masstool.kind:MassToolKind",
    "milvus": "retrievers.milvus:MilvusKind",
    "toolgen": "retrievers.generative.kind:ToolGenKind",
    "toolweaver": "retrievers.generative.weaver_kind:ToolWeaverKind",
}
SETTINGS: dict[str, type] = {
    "bm25": BM25Settings,
    "dense": DenseSettings,
    "hybrid": HybridSettings,
    "masstool": MassToolSettings,
    "milvus": MilvusSettings,
    "toolgen": ToolGenSettings,
    "toolweaver": ToolWeaverSettings,
}


def make_kind(settings: RetrieverSettings, context: Context, trained: Path | None = None) -> Kind:
    """The kind that these settings ask for; `trained` is the folder of the model that was trained for the index."""
    module, _, name = KINDS[settings.kind].partition(":")
    kind: Kind = getattr(import_module(module), name)(settings, context, trained)
    return kind


def settings_to_json(settings: RetrieverSettings) -> dict[str, Any]:
    """Settings as the manifest keeps them."""
    return asdict(settings)


def settings_from_json(facts: dict[str, Any]) -> RetrieverSettings:
    """Settings as the manifest kept them."""
    try:
        settings: RetrieverSettings = _decode(SETTINGS[facts["kind"]], facts)
    except (KeyError, TypeError, ValueError) as error:
        raise IndexBroken(
            f"the index has settings that this version does not know ({error}); build it again"
        ) from error
    return settings


def _decode(kind: Any, value: Any) -> Any:
    """Dataclasses and tuples back out of the dicts and lists that JSON made of them."""
    if is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        return kind(**{key: _decode(hints[key], item) for key, item in value.items()})  # type: ignore[operator]
    if isinstance(value, list):
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    inner = [choice for choice in get_args(kind) if is_dataclass(choice)]
    return _decode(inner[0], value) if inner and value is not None else value


def check_names(retrievers: Mapping[str, RetrieverSettings]) -> None:
    """Refuses an empty set, names that cannot be file names, and hybrids of what is not there or of themselves."""
    if not retrievers:
        raise BadInput("an index needs at least one retriever")
    for name, settings in retrievers.items():
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise BadInput(f"a retriever's name is made of letters, digits, - and _, not {name!r}")
        for part in settings.of if isinstance(settings, HybridSettings) else ():
            if part not in retrievers:
                raise BadInput(f"the hybrid {name!r} is of {part!r}, which the index does not have")
            if isinstance(retrievers[part], HybridSettings):
                raise BadInput(f"the hybrid {name!r} is of the hybrid {part!r}; name the retrievers it consists of")
