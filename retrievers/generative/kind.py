"""Generative retrievers in an index folder.

A segment keeps each tool's code and the embeddings of tokens that the model lacks. A code counts such a token of its
own segment as -1, -2, …, so that segments can be written separately and merged. Removed tools are left out of the trie
when the index is opened, so they cannot be generated from then on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrievers.base import Retriever
from retrievers.errors import BadInput, ModelMissing
from retrievers.generative.code_table import CodeTable, encoder_array
from retrievers.generative.decoding.language_model import MAX_ROWS, LanguageModel
from retrievers.generative.decoding.trie import Trie
from retrievers.generative.retriever import GenerativeRetriever, StartDecoder
from retrievers.generative.settings import GenerativeSettings, ToolGenSettings
from retrievers.generative.token_schemes import TOKEN_SCHEMES, AssignedCodes, Code, TokenScheme, TokenSource
from retrievers.generative.training.new_tokens import mean_rows, rows_from_documents, to_numpy
from retrievers.kind import Arrays, Block, Context
from retrievers.rows import Rows
from retrievers.text import clean
from retrievers.training_set import TrainingSet
from retrievers.types import Tool

if TYPE_CHECKING:
    from retrievers.dense.encoder import Encoder
    from retrievers.generative.decoding.free_text import TextGenerator
    from retrievers.generative.training.stages import TrainingTask

PADDING = np.iinfo(np.int64).min
"""Fills the array of codes."""


class GenerativeKind(ABC):
    """Codes on disk, a trie in memory. Subclasses define how tools get their codes."""

    indexing: str
    """Name of the scheme that the codes follow."""

    def __init__(self, settings: GenerativeSettings, context: Context, trained: Path | None = None) -> None:
        self._settings, self._context, self._trained = settings, context, trained
        self._existing: set[Code] = set()
        language = LanguageModel(trained or context.find_model(settings.model), context.device)
        # Several retrievers and several openings of one index share one loaded model.
        self._language: LanguageModel = context.encoders.setdefault(language.fingerprint, language)

    @abstractmethod
    def _fit(self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path) -> None:
        """Learn from the catalogue what codes are made of."""

    @abstractmethod
    def _assign(self, tools: Sequence[Tool], texts: Sequence[str]) -> tuple[AssignedCodes, np.ndarray, np.ndarray]:
        """Codes of new tools, with the input and output rows of the tokens that they add."""

    @abstractmethod
    def _arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the code table that later additions need."""

    def _task(self, task: TrainingTask) -> TrainingTask:
        """The training task with what a subclass adds."""
        return task

    def _decodable(self, code: Code) -> Code:
        """The tokens that are generated for a tool whose segment keeps this code."""
        return code

    @cached_property
    def _table(self) -> CodeTable:
        if self._trained is not None:
            return CodeTable.read(self._trained)
        return CodeTable(self.indexing, self._language.vocab_size, self._language.vocab_size, {})

    @cached_property
    def _encoder(self) -> Encoder:
        """The encoder whose vectors codes are made from."""
        from retrievers.dense.encoder import Encoder

        encoder = Encoder(
            self._context.find_model(self._settings.encoder), 64, self._context.device, self._context.cache
        )
        shared: Encoder = self._context.encoders.setdefault(encoder.fingerprint, encoder)
        return shared

    def identity(self) -> dict[str, str]:
        return {"weights": self._language.fingerprint}

    def rows(self, documents: Sequence[str]) -> Arrays:
        raise BadInput("a generative retriever indexes tools, not texts")

    def train_tools(
        self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path
    ) -> Path:
        """Train from the original model or, where an index is trained further, from its own."""
        if self._settings.train is None:
            raise BadInput("this generative retriever has no `train` settings")
        try:
            from retrievers.generative.training.stages import TrainingTask, train
        except ModuleNotFoundError as error:
            raise ModelMissing(f"training needs {error.name}; run `pip install toolrewrite[train]`") from error
        known = self._table.codes
        if not known:
            self._fit(tools, documents, sets, work)
        new, assigned, inputs, outputs = self._assign_new(tools, documents)
        codes = {tool.id: known[tool.id] for tool in tools if tool.id in known}
        codes |= {tools[index].id: code for index, code in zip(new, assigned.codes, strict=True)}
        size = self._language.vocab_size + len(assigned.new_tokens)
        table = CodeTable(self.indexing, size, self._table.base_vocab_size, codes, None, self._arrays())
        task = TrainingTask(self._language, table, inputs, outputs, tools, documents, sets, self._settings)
        return train(self._task(task), work, self._context)

    def see_existing_rows(self, blocks: Sequence[Block]) -> None:
        """Reserve the codes in the index. Codes with a segment's own tokens cannot collide."""
        for block in blocks:
            self._existing.update(code for code in unpack_codes(block.arrays["codes"][block.live]) if min(code) >= 0)

    def tool_rows(self, tools: Sequence[Tool], documents: Sequence[str]) -> Arrays:
        known, size = self._table.codes, self._language.vocab_size
        new, assigned, inputs, outputs = self._assign_new(tools, documents)
        local = [tuple(token if token < size else size - token - 1 for token in code) for code in assigned.codes]
        by_index = dict(zip(new, local, strict=True))
        codes = [by_index.get(index) or known[tool.id] for index, tool in enumerate(tools)]
        return {"codes": pack_codes(codes), "inputs": inputs, "outputs": outputs}

    def merge(self, blocks: Sequence[Block]) -> Arrays:
        codes, inputs, outputs = [], [], []
        count = 0
        for block in blocks:
            renumbered: dict[int, int] = {}
            for code in unpack_codes(block.arrays["codes"][block.live]):
                for token in code:
                    if token < 0:
                        renumbered.setdefault(token, -(count + len(renumbered) + 1))
                codes.append(tuple(renumbered.get(token, token) for token in code))
            kept = [-token - 1 for token in renumbered]
            inputs.append(block.arrays["inputs"][kept])
            outputs.append(block.arrays["outputs"][kept])
            count += len(kept)
        return {"codes": pack_codes(codes), "inputs": np.concatenate(inputs), "outputs": np.concatenate(outputs)}

    def open(
        self, blocks: Sequence[Block], rows: Rows, fingerprint: str, other: Callable[[str], Retriever]
    ) -> Retriever:
        first_new, codes, live, offset = self._language.vocab_size, list[Code](), list[int](), 0
        for block in blocks:
            for row in np.flatnonzero(block.live).tolist():
                (code,) = unpack_codes(block.arrays["codes"][row : row + 1])
                codes.append(tuple(token if token >= 0 else first_new - token - 1 for token in self._decodable(code)))
                live.append(offset + row)
            offset += len(block.live)
            first_new += len(block.arrays["inputs"])
        inputs, outputs = (np.concatenate([block.arrays[name] for block in blocks]) for name in ("inputs", "outputs"))
        trie = Trie(codes, live, self._language.chat.end)
        start = self._start(inputs, outputs, codes)
        retriever = GenerativeRetriever(
            start, self._language.chat, trie, rows, fingerprint, self._settings, self._max_rows
        )

        def text_generator() -> TextGenerator:
            from retrievers.generative.decoding.free_text import TextGenerator
            from retrievers.generative.decoding.local_model import ExtendedVocabulary

            vocabulary = ExtendedVocabulary(self._language, inputs, outputs)
            return TextGenerator(vocabulary, self._table.base_vocab_size, dict(zip(live, codes, strict=True)))

        retriever.text_generator = text_generator
        return retriever

    def _start(self, inputs: np.ndarray, outputs: np.ndarray, codes: Sequence[Code]) -> StartDecoder:
        """The function that starts decoding, by the context's engine."""
        over_all_tokens = self._settings.scores == "vocabulary"
        if self._context.engine == "vllm":
            from retrievers.generative.decoding.vllm_model import VllmModel

            if over_all_tokens:
                raise BadInput(
                    "engine: vllm returns probabilities among the tokens that may follow; "
                    f"it needs `scores: catalogue`, got {self._settings.scores!r}"
                )
            return VllmModel(self._language, inputs, outputs, codes, self._context, self._settings).start
        from retrievers.generative.decoding.local_model import ExtendedVocabulary, LocalDecoder

        vocabulary = ExtendedVocabulary(self._language, inputs, outputs)
        return lambda prompts: LocalDecoder(vocabulary, prompts, over_all_tokens)

    def _max_rows(self, tokens: int) -> int:
        """Beams decoded together; vLLM manages its own memory."""
        return MAX_ROWS if self._context.engine == "vllm" else self._language.max_rows(tokens)

    def _taken(self) -> set[Code]:
        return self._existing | set(self._table.codes.values())

    def _assign_new(
        self, tools: Sequence[Tool], documents: Sequence[str]
    ) -> tuple[list[int], AssignedCodes, np.ndarray, np.ndarray]:
        """Indices of the tools that the model does not know, their codes, and the rows of added tokens."""
        new = [index for index, tool in enumerate(tools) if tool.id not in self._table.codes]
        if not new:
            none = np.zeros((0, self._language.hidden_size), np.float32)
            return new, AssignedCodes(()), none, none
        return new, *self._assign([tools[index] for index in new], [clean(documents[index]) for index in new])


class ToolGenKind(GenerativeKind):
    """Codes by one of the token schemes."""

    _settings: ToolGenSettings

    def __init__(self, settings: ToolGenSettings, context: Context, trained: Path | None = None) -> None:
        self.indexing = settings.indexing
        super().__init__(settings, context, trained)

    @cached_property
    def _scheme(self) -> TokenScheme:
        table, language = self._table, self._language
        if table.indexing != self.indexing:
            raise BadInput(
                f"the index was trained with indexing: {table.indexing}, got {self.indexing}; build it again",
                "indexing",
            )

        def embed(texts: Sequence[str]) -> np.ndarray:
            table.check_encoder(self._encoder.fingerprint)
            return self._encoder.documents(texts)

        source = TokenSource(language.chat.tokenize, language.vocab_size, embed)
        return TOKEN_SCHEMES[self.indexing](source, table.arrays)

    def _fit(self, tools: Sequence[Tool], documents: Sequence[str], sets: Sequence[TrainingSet], work: Path) -> None:
        self._scheme.fit([clean(document) for document in documents])

    def _arrays(self) -> dict[str, np.ndarray]:
        state = self._scheme.state()
        return state | encoder_array(self._encoder.fingerprint) if state and not self._table.arrays else state

    def _assign(self, tools: Sequence[Tool], texts: Sequence[str]) -> tuple[AssignedCodes, np.ndarray, np.ndarray]:
        language, table = self._language, self._table
        assigned = self._scheme.assign(tools, texts, self._taken())
        names = [language.chat.tokenize(text) for text in assigned.new_tokens]
        inputs, outputs = (mean_rows(rows, names) for rows in (language.inputs, language.outputs))
        if assigned.new_tokens and table.own_logit is not None and all(len(code) == 1 for code in assigned.codes):
            prompts = [language.chat.query_prompt(text, self._settings.max_length) for text in texts]
            known = sorted({code[0] for code in table.codes.values()})
            outputs = rows_from_documents(language, prompts, known, table.own_logit)
            if language.tied:
                inputs = outputs
        return assigned, to_numpy(inputs), to_numpy(outputs)


def pack_codes(codes: Sequence[Code]) -> np.ndarray:
    """(tools, longest code), padded."""
    array = np.full((len(codes), max(map(len, codes), default=0)), PADDING, dtype=np.int64)
    for row, code in enumerate(codes):
        array[row, : len(code)] = code
    return array


def unpack_codes(array: np.ndarray) -> list[Code]:
    """The codes in the rows of a padded array."""
    return [tuple(token for token in row if token != PADDING) for row in array.tolist()]
