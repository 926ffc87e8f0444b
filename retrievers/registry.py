"""What a kind of retriever must be able to do to live in an index folder, and the one dict that names them all.

Adding a kind: its settings in `settings.py`, a file with a class like this, one line in KINDS.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from retrievers.errors import BadInput, IndexBroken
from retrievers.generative.settings import ToolGenSettings
from retrievers.generative.weaver_settings import ToolWeaverSettings
from retrievers.kind import Context, Kind
from retrievers.masstool.settings import MassToolSettings
from retrievers.settings import BM25Settings, DenseSettings, HybridSettings, MilvusSettings

RetrieverSettings = (
    BM25Settings
    | DenseSettings
    | HybridSettings
    | MilvusSettings
    | MassToolSettings
    | ToolGenSettings
    | ToolWeaverSettings
)

KINDS = {
    "bm25": "retrievers.lexical:BM25Kind",
    "dense": "retrievers.dense.retriever:DenseKind",
    "hybrid": "retrievers.hybrid:HybridKind",
    "masstool": "retrievers.masstool.kind:MassToolKind",
    "milvus": "retrievers.dense.milvus:MilvusKind",
    "toolgen": "retrievers.generative.kind:ToolGenKind",
    "toolweaver": "retrievers.weaver.kind:ToolWeaverKind",
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
