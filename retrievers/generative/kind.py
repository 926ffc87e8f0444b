"""A generative retriever as it lives in an index folder.

A segment keeps, for every tool, its code; and, for tokens that the model does not have, their rows. A code counts such
a token of its own segment as -1, -2, …, so that segments can be written apart and folded together. Dead rows are left
out of the trie when the index is opened: what was removed cannot be said from that moment on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievers.base import Retriever
from retrievers.errors import BadInput, ModelMissing
from retrievers.generative import code_table as books
from retrievers.generative.chat_format import Frames
from retrievers.generative.code_table import Book
from retrievers.generative.decoding.language_model import ROWS_AT_ONCE, LanguageModel
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.retriever import Generative, Start
from retrievers.generative.settings import ToolGenSettings
from retrievers.generative.token_schemes import SPELLINGS, Code, Lexicon, Spelled, Spelling
from retrievers.generative.training.new_tokens import as_array, from_documents, from_words
from retrievers.generative.weaver_settings import ToolWeaverSettings
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Tool

if TYPE_CHECKING:
    from retrievers.dense.encoder import Encoder
    from retrievers.generative.decoding.free_text import Speech

NOTHING = np.iinfo(np.int64).min
"""Fills the codes' rectangle."""


class ToolGenKind:
    """Codes on disk, a trie in memory."""

    def __init__(
        self, settings: ToolGenSettings | ToolWeaverSettings, context: Context, trained: Path | None = None
    ) -> None:
        self._settings, self._context, self._trained = settings, context, trained
        self._held: set[Code] = set()
        language = LanguageModel(trained or context.find_model(settings.model), context.device)
        # Several retrievers and several openings of one index share one loaded model.
        self._language: LanguageModel = context.encoders.setdefault(language.fingerprint, language)

    @cached_property
    def _book(self) -> Book:
        if self._trained is not None:
            return books.read(self._trained)
        return Book(self._settings.indexing, self._language.size, self._language.size, {})

    @cached_property
    def _spelling(self) -> Spelling:
        assert isinstance(self._settings, ToolGenSettings)
        return make_spelling(self._settings, self._language, lambda: self._encoder, self._book)

    @cached_property
    def _encoder(self) -> Encoder:
        """Whose vectors codes are made of, where they are."""
        from retrievers.dense.encoder import Encoder

        encoder = Encoder(self._context.find_model(self._settings.encoder), 64, self._context.device)
        shared: Encoder = self._context.encoders.setdefault(encoder.fingerprint, encoder)
        return shared

    def identity(self) -> dict[str, str]:
        return {"weights": self._language.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        raise BadInput("a generative retriever indexes tools, not texts")

    def train_tools(
        self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path
    ) -> Path:
        """Trains, from the model as it came or, where an index is built further, from what it has learned so far."""
        if self._settings.train is None:
            raise BadInput("this generative retriever has no `train` settings")
        try:
            from retrievers.generative.training.stages import Pupil, train
        except ModuleNotFoundError as error:
            raise ModelMissing(f"training needs {error.name}; run `pip install toolrewrite[train]`") from error
        known = self._book.codes
        fresh = [place for place, tool in enumerate(tools) if tool.id not in known]
        if not known:
            self._fit(tools, documents, sets, work)
        spelled, inputs, outputs = self._spell([tools[i] for i in fresh], [documents[i] for i in fresh])
        codes = {tool.id: known[tool.id] for tool in tools if tool.id in known}
        codes |= {tools[place].id: code for place, code in zip(fresh, spelled.codes, strict=True)}
        size = self._language.size + len(spelled.new)
        book = Book(self._settings.indexing, size, self._book.base, codes, None, self._state())
        pupil = Pupil(self._language, book, inputs, outputs, self._facts())
        return train(pupil, tools, documents, sets, self._settings, work, self._context)

    def _fit(self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path) -> None:
        self._spelling.fit([clean(document) for document in documents])

    def _state(self) -> dict[str, np.ndarray]:
        state = self._spelling.state()
        return {**state, **books.mark(self._encoder.fingerprint)} if state and not self._book.state else state

    def _facts(self) -> dict[str, Any]:
        """What is told of the spelling beside the training."""
        return {}

    def see_existing_rows(self, blocks: Sequence[Block]) -> None:
        """Codes that the index holds are nobody else's. Those of tokens that a segment brought are its own anyway."""
        for block in blocks:
            self._held.update(code for code in codes_in(block.arrays["codes"][block.live]) if min(code) >= 0)

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        known = self._book.codes
        fresh = [place for place, tool in enumerate(tools) if tool.id not in known]
        spelled, inputs, outputs = self._spell([tools[i] for i in fresh], [documents[i] for i in fresh])
        size = self._language.size
        new = dict(zip(fresh, ((_local(code, size)) for code in spelled.codes), strict=True))
        codes = [new.get(place) or known[tool.id] for place, tool in enumerate(tools)]
        return {"codes": _rectangle(codes), "inputs": inputs, "outputs": outputs}

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        codes, inputs, outputs = [], [], []
        count = 0
        for block in blocks:
            wanted: dict[int, int] = {}
            for code in codes_in(block.arrays["codes"][block.live]):
                for token in code:
                    if token < 0:
                        wanted.setdefault(token, -(count + len(wanted) + 1))
                codes.append(tuple(wanted.get(token, token) for token in code))
            kept = [-token - 1 for token in wanted]
            inputs.append(block.arrays["inputs"][kept])
            outputs.append(block.arrays["outputs"][kept])
            count += len(kept)
        return {"codes": _rectangle(codes), "inputs": np.concatenate(inputs), "outputs": np.concatenate(outputs)}

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        size, codes, live, offset = self._language.size, list[Code](), list[int](), 0
        late = 0
        for block in blocks:
            for row in np.flatnonzero(block.live).tolist():
                (code,) = codes_in(block.arrays["codes"][row : row + 1])
                codes.append(tuple(token if token >= 0 else size + late - token - 1 for token in self._sayable(code)))
                live.append(offset + row)
            offset += len(block.live)
            late += len(block.arrays["inputs"])
        frames: Frames = self._language.frames
        inputs = np.concatenate([block.arrays["inputs"] for block in blocks])
        outputs = np.concatenate([block.arrays["outputs"] for block in blocks])
        trie = Trie(codes, live, frames.end)
        start = self._start(inputs, outputs, codes)
        retriever = Generative(start, frames, trie, rows, fingerprint, self._settings, self._room)
        retriever.speech = self._speech(inputs, outputs, dict(zip(live, codes, strict=True)))
        return retriever

    def _speech(self, inputs: np.ndarray, outputs: np.ndarray, codes: dict[int, Code]) -> Callable[[], Speech]:
        def speech() -> Speech:
            from retrievers.generative.decoding.free_text import Speech
            from retrievers.generative.decoding.local_model import Vocabulary

            return Speech(Vocabulary(self._language, inputs, outputs), self._book.base, codes)

        return speech

    def _start(self, inputs: np.ndarray, outputs: np.ndarray, codes: Sequence[Code]) -> Start:
        """How an answer is begun, by the engine that was asked for."""
        whole = self._settings.scores == "vocabulary"
        if self._context.engine == "vllm":
            from retrievers.generative.decoding.vllm_model import VllmModel

            if whole:
                raise BadInput("vLLM tells probabilities among what may follow: it needs `scores: catalogue`")
            return VllmModel(self._language, inputs, outputs, codes, self._context, self._settings).start
        from retrievers.generative.decoding.local_model import LocalRun, Vocabulary

        vocabulary = Vocabulary(self._language, inputs, outputs)
        return lambda prompts: LocalRun(vocabulary, prompts, whole)

    def _room(self, tokens: int) -> int:
        """Answers under way together; vLLM sees to its memory by itself."""
        return ROWS_AT_ONCE if self._context.engine == "vllm" else self._language.rows_at_once(tokens)

    def _sayable(self, code: Code) -> Code:
        """What is said of a tool whose code a segment keeps."""
        return code

    def _taken(self) -> set[Code]:
        return self._held | set(self._book.codes.values())

    def _spell(self, tools: Sequence[Tool], documents: Sequence[str]) -> tuple[Spelled, np.ndarray, np.ndarray]:
        """New tools as codes, with the rows of the tokens that they bring."""
        if not tools:
            none = np.zeros((0, self._language.width), np.float32)
            return Spelled(()), none, none
        texts = [clean(document) for document in documents]
        spelled = self._spelling.spell(tools, texts, self._taken())
        names = [self._language.frames.ids(text) for text in spelled.new]
        inputs, outputs = (from_words(rows, names) for rows in (self._language.inputs, self._language.outputs))
        if spelled.new and self._book.own is not None and all(len(code) == 1 for code in spelled.codes):
            prompts = [self._language.frames.question(text, self._settings.max_length) for text in texts]
            known = sorted({code[0] for code in self._book.codes.values()})
            outputs = from_documents(self._language, prompts, known, self._book.own)
            if self._language.tied:
                inputs = outputs
        return spelled, as_array(inputs), as_array(outputs)


def make_spelling(
    settings: ToolGenSettings, language: LanguageModel, encoder: Callable[[], Encoder], book: Book
) -> Spelling:
    """The spelling that the settings ask for, with what it has learned so far."""
    if book.indexing != settings.indexing:
        raise BadInput(f"the index was trained with indexing {book.indexing}, not {settings.indexing}; build it anew")

    def embed(texts: Sequence[str]) -> np.ndarray:
        books.check_encoder(book.state, encoder().fingerprint)
        return encoder().documents(texts)

    return SPELLINGS[settings.indexing](Lexicon(language.frames.ids, language.size, embed), book.state)


def _local(code: Code, size: int) -> Code:
    return tuple(token if token < size else size - token - 1 for token in code)


def _rectangle(codes: Sequence[Code]) -> np.ndarray:
    """(tools, longest code)"""
    found = np.full((len(codes), max(map(len, codes), default=0)), NOTHING, dtype=np.int64)
    for place, code in enumerate(codes):
        found[place, : len(code)] = code
    return found


def codes_in(rectangle: np.ndarray) -> list[Code]:
    """The codes of a rectangle's rows."""
    return [tuple(token for token in row if token != NOTHING) for row in rectangle.tolist()]
