"""The Python interface in one import: `from toolrewrite import Index, ToolSearch`.

The only module at the top level: a package of this name would be a fifth room, and the rooms keep their names.
Names are imported when they are first used, so that importing this module costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipelines.context import make_context
    from pipelines.data.dataset import load_dataset
    from pipelines.index.defaults import best_retriever
    from pipelines.rewriters import RewriterSettings, make_rewriter
    from pipelines.search import ToolSearch
    from pipelines.shipped import version
    from retrievers.catalogue import read_catalogue
    from retrievers.index import Index, add, build, confirm, remove, verify
    from retrievers.settings import BM25Settings, DenseSettings, HybridSettings

__all__ = [
    "BM25Settings",
    "DenseSettings",
    "HybridSettings",
    "Index",
    "RewriterSettings",
    "ToolSearch",
    "add",
    "best_retriever",
    "build",
    "confirm",
    "load_dataset",
    "make_context",
    "make_rewriter",
    "read_catalogue",
    "remove",
    "verify",
    "version",
]
MODULES = {
    "pipelines.context": ("make_context",),
    "pipelines.data.dataset": ("load_dataset",),
    "pipelines.index.defaults": ("best_retriever",),
    "pipelines.rewriters": ("RewriterSettings", "make_rewriter"),
    "pipelines.search": ("ToolSearch",),
    "pipelines.shipped": ("version",),
    "retrievers.catalogue": ("read_catalogue",),
    "retrievers.index": ("Index", "add", "build", "confirm", "remove", "verify"),
    "retrievers.settings": ("BM25Settings", "DenseSettings", "HybridSettings"),
}


def __getattr__(name: str) -> Any:
    """Import a name of the interface when it is used."""
    for module, names in MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"toolrewrite has no {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
