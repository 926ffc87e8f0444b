"""Write a data set folder in BEIR layout, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipelines.data.dataset import Gold, Query
from retrievers.errors import BadInput
from retrievers.files import disk_room, sync_folder
from retrievers.text import clean
from retrievers.types import Tool


def normalize_utterance(text: str) -> str:
    """An utterance without differences in case and spaces, to find duplicates."""
    return " ".join(clean(text).casefold().split())


def query_id(text: str) -> str:
    """The id of an utterance, a hash of its normalized text."""
    return hashlib.sha256(normalize_utterance(text).encode()).hexdigest()[:16]


def write_dataset(
    folder: Path,
    tools: Iterable[Tool],
    queries: Iterable[Query],
    gold: Mapping[str, Gold],
    more: Mapping[str, str] | None = None,
) -> None:
    """Write tools, queries and gold, and `more` files by name. The folder must not exist yet."""
    if folder.exists():
        raise BadInput(f"{folder} exists already; name another folder, or remove it")
    corpus = "".join(_line(_tool(tool)) for tool in tools)
    lines = (_line({"_id": query.id, "text": query.text, "metadata": dict(query.metadata)}) for query in queries)
    files = {"corpus.jsonl": corpus, "queries.jsonl": "".join(lines), **(more or {})}
    files |= {f"qrels/{split}.tsv": _qrels(needed) for split, needed in gold.items()}
    part = folder.with_name(f".part-{folder.name}")
    shutil.rmtree(part, ignore_errors=True)
    with disk_room(folder):
        try:
            (part / "qrels").mkdir(parents=True)
            for name, text in files.items():
                with (part / name).open("wb") as stream:
                    stream.write(text.encode("utf-8", "replace"))
                    stream.flush()
                    os.fsync(stream.fileno())
            os.rename(part, folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _qrels(gold: Gold) -> str:
    rows = [f"{query}\t{tool}\t1\n" for query, tools in sorted(gold.items()) for tool in sorted(tools)]
    return "query-id\tcorpus-id\tscore\n" + "".join(rows)


def _tool(tool: Tool) -> dict[str, Any]:
    parameters = [asdict(parameter) for parameter in tool.parameters]
    metadata = {"provider": tool.provider, "category": tool.category, "parameters": parameters}
    return {"_id": tool.id, "title": tool.name, "text": tool.description, "metadata": metadata}


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"
