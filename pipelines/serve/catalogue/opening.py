"""Where a server's catalogue lives, as its config says: a folder, or a database that others share."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pipelines.index.defaults import index_folder
from pipelines.serve.catalogue.feedback import FeedbackLog
from pipelines.serve.catalogue.live_index import LiveCatalogue
from pipelines.serve.metrics import Metrics
from pipelines.serve.settings import ServeConfig
from retrievers.index import Index
from retrievers.kind import Context
from rewrite.errors import RewriteError


class Feedback(Protocol):
    """Keeps what callers confirm."""

    def append(self, record: dict[str, Any]) -> None:
        """Keeps one confirmation; it is safe when this returns."""
        ...


def open_catalogue(config: ServeConfig, context: Context, metrics: Metrics, phrasing: str) -> LiveCatalogue:
    """The catalogue, ready to search."""
    if config.database is None:
        index = Index(index_folder(config.index), context)
        return LiveCatalogue(index, config.retriever, metrics, phrasing)
    try:
        from pipelines.serve.catalogue.shared_catalogue import SharedCatalogue
    except ModuleNotFoundError as error:
        raise RewriteError(f"a shared catalogue needs {error.name}; run `pip install 'toolrewrite[shared]'`") from error
    return SharedCatalogue(config.database, config.retriever, context, metrics, phrasing)


def open_feedback(config: ServeConfig) -> Feedback | None:
    """Who keeps what callers confirm; None: nobody does."""
    if config.feedback:
        return FeedbackLog(Path(config.feedback).expanduser())
    if config.database is None or not config.database.feedback:
        return None
    from pipelines.serve.catalogue.shared_catalogue import SharedFeedback

    return SharedFeedback(config.database)
