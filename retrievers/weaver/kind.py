"""A ToolWeaver as it lives in an index folder: ToolGen's, with codes that are woven from the whole catalogue first.

A code is a token a level; the tokens of all levels, levels x codes of them, are in the trained model, so that a segment
brings none. A tool that comes later takes the nearest code that is free, in the book and in the index.

With `newcomers: token` it is said by a token of its own until it is trained in. Its segment brings that token's row
and keeps the token behind the code: the code is what stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from retrievers.base import Retriever
from retrievers.errors import BadInput
from retrievers.generative.code_table import SPREAD, Book, check_encoder, mark
from retrievers.generative.decoding.beam import search
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.kind import NOTHING, ToolGenKind, codes_in
from retrievers.generative.retriever import Generative
from retrievers.generative.token_schemes import Code, Spelled, Spelling, label
from retrievers.generative.training.new_tokens import as_array, beside_branches, from_words
from retrievers.generative.weaver_settings import WEAVE, ToolWeaverSettings
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Tool, ToolId
from retrievers.weaver import training_files as weaver_files
from retrievers.weaver.co_usage import Usage, co_usage
from retrievers.weaver.code_assignment import Weave, Woven, made_total, weave
from retrievers.weaver.token_init import from_books

BRANCHES = 6
"""Codes of each level among which the model says a later tool's, where it is asked."""


class ToolWeaverKind(ToolGenKind):
    """Woven codes on disk, a trie in memory."""

    _settings: ToolWeaverSettings

    def __init__(self, settings: ToolWeaverSettings, context: Context, trained: Path | None = None) -> None:
        super().__init__(settings, context, trained)
        self._woven: Woven | None = None
        self._kept: dict[ToolId, Code] = {}

    @cached_property
    def _spelling(self) -> Spelling:
        raise BadInput("the codes of a toolweaver are learned from its catalogue")

    @cached_property
    def _book(self) -> Book:
        if self._trained is None:
            return Book(self._settings.indexing, self._language.size, self._language.size, {})
        from retrievers.generative import code_table as books

        found = books.read(self._trained)
        wanted = (self._settings.weave.levels, self._settings.weave.codes)
        if "books" not in found.state or found.state["books"].shape[:2] != wanted:
            raise BadInput("the index was trained with other levels and codes; build it anew, without --resume")
        return found

    def _fit(self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path) -> None:
        """Weaves the codes, or takes up those of a run that was killed after it: its weights have learned those."""
        usage = used_together([tool.id for tool in tools], sets)
        texts = [clean(document) for document in documents]
        key = weaver_files.key(self._settings.weave, self._encoder.fingerprint, texts, usage)
        found = weaver_files.read(work / WEAVE, key)
        if found is None:
            vectors = self._vectors(texts)
            found = weave(vectors, usage, self._settings.weave, self._language.device, self._context.show_progress)
            weaver_files.write(work / WEAVE, key, found)
        self._woven = found

    def _facts(self) -> dict[str, Any]:
        return {"weave": self._woven.facts} if self._woven else {}

    def _state(self) -> dict[str, np.ndarray]:
        if self._woven is None:
            return dict(self._book.state)
        return {**self._woven.weave.state, **mark(self._encoder.fingerprint)}

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        if self._trained is None:
            raise BadInput("a toolweaver learns its codes from the catalogue: it has to be trained when it is built")
        arrays, book = super().tool_rows(tools, documents), self._book
        fresh = [place for place, tool in enumerate(tools) if tool.id not in book.codes]
        if not fresh or self._settings.newcomers != "token":
            return arrays
        if book.own is None or SPREAD not in book.state:
            raise BadInput(
                "the index lacks what a token of a tool's own is made of; build it anew, or set newcomers: nearest"
            )
        language = self._language
        prompts = [language.frames.question(clean(documents[place]), self._settings.max_length) for place in fresh]
        firsts = sorted({code[0] for code in book.codes.values()})
        inputs = outputs = beside_branches(language, prompts, firsts, book.own, book.state[SPREAD])
        if not language.tied:
            inputs = from_words(language.inputs, [language.frames.ids(label(tools[place])) for place in fresh])
        tokens = np.full((len(tools), 1), NOTHING, dtype=np.int64)
        tokens[fresh, 0] = -1 - np.arange(len(fresh))
        codes = np.concatenate([arrays["codes"], tokens], axis=1)
        return {"codes": codes, "inputs": as_array(inputs), "outputs": as_array(outputs)}

    def see_existing_rows(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self._held.update(code[: self._levels] for code in codes_in(block.arrays["codes"][block.live]))

    def keep_codes(self, ids: Sequence[ToolId], blocks: Sequence[Block]) -> None:
        self.see_existing_rows(blocks)
        live = np.concatenate([block.live for block in blocks])
        codes = [code[: self._levels] for block in blocks for code in codes_in(block.arrays["codes"])]
        self._kept = {tool: code for tool, code, alive in zip(ids, codes, live, strict=True) if alive}

    def _sayable(self, code: Code) -> Code:
        return code[self._levels :] or code

    def _spell(self, tools: Sequence[Tool], documents: Sequence[str]) -> tuple[Spelled, np.ndarray, np.ndarray]:
        none = np.zeros((0, self._language.width), np.float32)
        if self._woven is not None:
            inputs, outputs = (
                self._begun(rows, tools, self._woven) for rows in (self._language.inputs, self._language.outputs)
            )
            new = tuple(f"{level}-{code}" for level in range(self._levels) for code in range(self._codes))
            return Spelled(tuple(map(self._tokens, self._woven.paths)), new), inputs, outputs
        rest = [place for place, tool in enumerate(tools) if tool.id not in self._kept]
        late = iter(self._late([clean(documents[place]) for place in rest]))
        return Spelled(tuple(self._kept.get(tool.id) or next(late) for tool in tools)), none, none

    def _late(self, texts: Sequence[str]) -> list[Code]:
        """Free codes of tools that nobody has given one yet."""
        if not texts:
            return []
        check_encoder(self._book.state, self._encoder.fingerprint)
        known = [{self._path(code)[level] for code in self._book.codes.values()} for level in range(self._levels)]
        branches = BRANCHES if self._settings.newcomers == "said" else 1
        paths = Weave(self._book.state).late(
            self._vectors(texts),
            set(map(self._path, self._taken())),
            known,
            branches,
            lambda place, near: self._said(texts[place], near),
        )
        return list(map(self._tokens, paths))

    def _said(self, text: str, near: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Of these codes the one that the model is likeliest to say of a document."""
        from retrievers.generative.decoding.local_model import LocalRun, Vocabulary

        none = np.zeros((0, self._language.width), np.float32)
        frames = self._language.frames
        run = LocalRun(
            Vocabulary(self._language, none, none), [frames.question(text, self._settings.max_length)], False
        )
        trie = Trie([self._tokens(path) for path in near], range(len(near)), frames.end)
        ((ends, scores),) = search(run, 1, trie, self._settings.beams, 1, True)
        return near[trie.rows[int(ends[int(scores.argmax())])][0]]

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        retriever = super().open(blocks, rows, fingerprint, other)
        assert isinstance(retriever, Generative)
        codes = [code for block in blocks for code in codes_in(block.arrays["codes"])]
        live = np.flatnonzero(np.concatenate([block.live for block in blocks])).tolist()
        retriever.branches = {rows.ids[row]: self._path(codes[row][: self._levels]) for row in live}
        return retriever

    @property
    def _levels(self) -> int:
        return self._settings.weave.levels

    @property
    def _codes(self) -> int:
        return self._settings.weave.codes

    def _tokens(self, path: Sequence[int]) -> Code:
        return tuple(self._book.base + level * self._codes + code for level, code in enumerate(path))

    def _path(self, code: Sequence[int]) -> tuple[int, ...]:
        return tuple(token - self._book.base - level * self._codes for level, token in enumerate(code))

    def _begun(self, rows: Any, tools: Sequence[Tool], woven: Woven) -> np.ndarray:
        """The rows of all code tokens."""
        names = from_words(rows, [self._language.frames.ids(label(tool)) for tool in tools])
        return as_array(from_books(rows, woven.weave.books, made_total(woven.weave, woven.paths), names))

    def _vectors(self, texts: Sequence[str]) -> np.ndarray:
        from retrievers.dense.embeddings import embed

        return embed(self._encoder, texts, self._context)


def used_together(ids: Sequence[ToolId], sets: Sequence[TrainingSet]) -> Usage:
    """Co-usage by training queries and by trajectories, never by those that judge."""
    rows = {tool: row for row, tool in enumerate(ids)}
    groups = [
        [rows[each.ids[row]] for row in gold if each.ids[row] in rows] for each in sets for gold in each.train.gold
    ]
    groups += [
        [rows[call.tool] for call in task.calls if call.tool in rows] for each in sets for task in each.trajectories
    ]
    return co_usage(groups)
