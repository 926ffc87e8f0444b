"""Sizes and files of the multilingual encoder, and its word pieces; without PyTorch."""

from __future__ import annotations

from retrievers.errors import ModelMissing

try:
    from sentencepiece import SentencePieceProcessor
except ModuleNotFoundError as error:
    raise ModelMissing("the multilingual encoder needs sentencepiece; run `pip install sentencepiece`") from error

PIECES, WIDTH, CHANNELS = 128_010, 512, 256
HIDDEN = 320  # of the network after the mean
ORDERS = (2, 3, 5)  # word pieces in an n-gram
EPSILON = 1e-12
MAX_PIECES = 256
WEIGHTS, VOCABULARY, SETTINGS = "model.safetensors", "sentencepiece.model", "multilingual.json"


class WordPieces:
    """Texts to ids of word pieces."""

    def __init__(self, vocabulary: bytes) -> None:
        self._processor = SentencePieceProcessor(model_proto=vocabulary)

    def encode(self, text: str, max_length: int) -> list[int]:
        """Ids of a text's word pieces between <s> and </s>, cut at `max_length`."""
        ids: list[int] = self._processor.encode(text, out_type=int)
        return [self._processor.bos_id(), *ids[: max(0, max_length - 2)], self._processor.eos_id()]


def padding(order: int) -> tuple[int, int]:
    """Zeros in front of a text and after it, so that each piece has an n-gram."""
    before = (order - 1) // 2
    return before, order - 1 - before
