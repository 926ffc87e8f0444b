"""The registry of retriever kinds: the only module that names all of them.

To add a kind: its settings, a class that implements `kind.Kind`, and one line in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from retrievers.errors import BadInput, IndexBroken, ModelMissing
from retrievers.generative.settings import ToolGenSettings
from retrievers.kind import Context, Kind
from retrievers.masstool.settings import MassToolSettings
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, MilvusSettings, hybrid_parts
from retrievers.weaver.settings import ToolWeaverSettings

RetrieverSettings = (
    BM25Settings
    | DenseSettings
    | HybridSettings
    | MilvusSettings
    | MassToolSettings
    | ToolGenSettings
    | ToolWeaverSettings
)

KINDS: dict[str, tuple[type, str]] = {
    "bm25": (BM25Settings, "retrievers.lexical.bm25:BM25Kind"),
    "dense": (DenseSettings, "retrievers.dense.retriever:DenseKind"),
    "hybrid": (HybridSettings, "retrievers.hybrid:HybridKind"),
    "masstool": (MassToolSettings, "retrievers.masstool.kind:MassToolKind"),
    "milvus": (MilvusSettings, "retrievers.dense.milvus:MilvusKind"),
    "toolgen": (ToolGenSettings, "retrievers.generative.kind:ToolGenKind"),
    "toolweaver": (ToolWeaverSettings, "retrievers.weaver.kind:ToolWeaverKind"),
}
"""Name of a kind -> its settings and its class, imported when it is needed."""


def make_kind(settings: RetrieverSettings, context: Context, trained: Path | None = None) -> Kind:
    """The kind of these settings; `trained` is the folder of the model that was trained for the index."""
    module, _, name = KINDS[settings.kind][1].partition(":")
    try:
        kind: Kind = getattr(import_module(module), name)(settings, context, trained)
    except ModuleNotFoundError as error:
        raise ModelMissing(
            f"a retriever of kind {settings.kind} needs {error.name}; run `pip install 'toolrewrite[torch]'`, or name "
            "another retriever of the index"
        ) from error
    return kind


def settings_to_json(settings: RetrieverSettings) -> dict[str, Any]:
    """Settings as the manifest stores them."""
    return asdict(settings)


def settings_from_json(facts: dict[str, Any]) -> RetrieverSettings:
    """Settings out of the manifest. BM25 of a version that knew no bonus for names has none, so that equal
    fingerprints still rank alike."""
    try:
        if facts["kind"] == "bm25":
            facts = {"names": 0.0} | facts
        settings: RetrieverSettings = _decode(KINDS[facts["kind"]][0], facts)
    except (KeyError, TypeError, ValueError) as error:
        raise IndexBroken(
            f"the index has unknown settings ({error}); build it again with `rewrite-index build`"
        ) from error
    return settings


@cache
def _field_types(kind: type) -> dict[str, Any]:
    """Types of a dataclass's fields; finding them takes a millisecond."""
    return get_type_hints(kind)


def _decode(kind: Any, value: Any) -> Any:
    """Dataclasses and tuples out of JSON's dicts and lists."""
    if is_dataclass(kind) and isinstance(value, dict):
        hints = _field_types(cast(type, kind))
        return kind(**{key: _decode(hints[key], item) for key, item in value.items()})  # type: ignore[operator]
    if isinstance(value, list):
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    inner = [choice for choice in get_args(kind) if is_dataclass(choice)]
    return _decode(inner[0], value) if inner and value is not None else value


def check_names(retrievers: Mapping[str, RetrieverSettings]) -> None:
    """Refuse an empty set, names that cannot be file names, and hybrids of unknown retrievers or of hybrids."""
    if not retrievers:
        raise BadInput("an index needs at least one retriever")
    for name, settings in retrievers.items():
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise BadInput(f"a retriever's name consists of letters, digits, - and _, not {name!r}")
        if name in ("auto", "all"):
            raise BadInput(f"{name!r} cannot be a retriever's name; commands use it for a choice of retrievers")
        for part in hybrid_parts(asdict(settings)):
            if part not in retrievers:
                raise BadInput(f"the hybrid {name!r} is of {part!r}, which the index does not have")
            if isinstance(retrievers[part], HybridSettings):
                raise BadInput(f"the hybrid {name!r} is of the hybrid {part!r}; name the retrievers it consists of")
