"""`rewrite-serve INDEX`: the config of an index folder, with the rewriter in the folder `rewriter` beside it."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from pipelines.context import make_context
from pipelines.index.defaults import AUTO, choose_retriever
from pipelines.system_description import retriever_label
from retrievers.errors import BadInput
from retrievers.index import Index
from rewrite.errors import RewriteError
from rewrite.folder import open_rewriter

BESIDE = "rewriter"
"""Name of the folder beside an index: a rewriter, or the training run that wrote it."""
log = logging.getLogger("rewrite-serve")


def index_overrides(folder: Path, overrides: Sequence[str]) -> list[str]:
    """The values that serve this index, for the default config; `overrides` are those of the caller, which win."""
    values = {key: value for key, _, value in (text.partition("=") for text in overrides)}
    chosen = [f"index={json.dumps(str(folder))}"]
    if not values.keys() & {"rewriter", "rewriter.path", "rewriter.base", "rewriter.template"}:
        own_fusion = any(key.startswith("rewriter.fusion") for key in values)
        rewriter = find_rewriter(folder, values.get("retriever", AUTO), own_fusion)
        chosen += [f"rewriter.path={json.dumps(str(rewriter))}"] if rewriter else []
    return chosen


def find_rewriter(folder: Path, retriever: str, own_fusion: bool = False) -> Path | None:
    """The rewriter beside an index, if it was trained in front of this kind of retriever; logs the decision.

    One that dev gives no share is left out, unless the caller sets a fusion: a model would be loaded and never asked.
    """
    index, path = Index(folder, make_context()), folder.resolve().parent / BESIDE
    name = choose_retriever(index, retriever)
    if name not in index.manifest.retrievers:
        raise BadInput(f"{folder} has no retriever {name!r}; it has {', '.join(index.manifest.retrievers)}")
    label, way = retriever_label(index, name), f"to use it, set rewriter.path={path}"
    if not path.is_dir():
        log.info("there is no rewriter in %s: raw retrieval by %s", path, name)
        return None
    try:
        card = open_rewriter(path).card
    except RewriteError as error:
        log.warning("raw retrieval by %s: %s", name, error)
        return None
    known = list(dict.fromkeys(str(row["searches"]) for row in card.data if row.get("searches")))
    if label not in known:
        before = f"was trained in front of {', '.join(known)}" if known else "does not name the retriever it is for"
        log.warning("the rewriter in %s %s, and this is %s: it is not used; %s", path, before, label, way)
        return None
    if card.fusion.get("raw") == 1 and not own_fusion:
        log.warning(
            "dev gave the rewriter in %s no share: it is not used; to ask it, set rewriter.fusion.raw=0.8", path
        )
        return None
    log.info("the rewriter in %s, trained in front of %s, is used", path, label)
    return path
