"""Both kinds of rerankers with real models: shared prefixes, long requests, tools without text, folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from rerankers import write_cross_encoder

from retrievers.errors import BadInput, ModelMissing
from retrievers.rerank.cross_encoder import CrossEncoderReranker
from retrievers.rerank.cutting import TextCutter, cut_middle, token_offsets
from retrievers.rerank.folder import CARD_FILE, open_reranker
from retrievers.rerank.language_model import LanguageModelReranker

REQUESTS = ["weather in Athens", "book a flight and a hotel for two nights, and rent a car " * 3, "x " * 10_000]
TOOLS = [["get weather: forecast of a city", "", "book flights " * 300], ["rent a car"], ["b", "c"]]


@pytest.fixture(scope="module")
def cross_encoder(tmp_path_factory: pytest.TempPathFactory) -> CrossEncoderReranker:
    folder = write_cross_encoder(tmp_path_factory.mktemp("models") / "reranker")
    return CrossEncoderReranker(folder, 128, 64, "cpu", "a")


@pytest.fixture(scope="module")
def reader(untied_lm: Path) -> LanguageModelReranker:
    return LanguageModelReranker(untied_lm, 256, 64, "cpu")


def test_a_batch_gives_the_scores_of_single_pairs(cross_encoder: CrossEncoderReranker) -> None:
    scores = cross_encoder.score(REQUESTS, TOOLS)
    pairs = zip(REQUESTS, TOOLS, strict=True)
    single = [[cross_encoder.score([query], [[tool]])[0][0] for tool in tools] for query, tools in pairs]
    assert all(np.allclose(own, alone, atol=1e-4) for own, alone in zip(scores, single, strict=True))
    assert cross_encoder.score([], []) == []
    assert [len(own) for own in cross_encoder.score(["a"], [[]])] == [0]


def test_candidates_share_the_request(reader: LanguageModelReranker) -> None:
    scores = reader.score(REQUESTS, TOOLS)
    pairs = [(query, tool) for query, tools in zip(REQUESTS, TOOLS, strict=True) for tool in tools]
    whole = reader.logits(*zip(*pairs, strict=True)).detach().numpy()
    assert np.allclose(np.concatenate(scores), whole, atol=1e-3)
    assert [len(own) for own in reader.score(["a", "b"], [[], ["c"]])] == [0, 1]


def test_the_tool_is_cut_before_the_request(reader: LanguageModelReranker) -> None:
    request = " ".join(f"need{number}" for number in range(30))
    shared, rests = reader.prompt.parts(request, ["tool " * 500])
    text = reader.tokenizer.decode(shared)
    assert "need0 " in text
    assert "need29" in text
    assert len(shared) + len(rests[0]) <= 256
    longer, rests = reader.prompt.parts("begin " + "x " * 2_000 + "end", ["tool"])
    text = reader.tokenizer.decode(longer)
    assert text.startswith("Request: begin")
    assert "end\nTool:" in text
    assert len(longer) + len(rests[0]) <= 256


def test_a_long_request_keeps_both_ends(cross_encoder: CrossEncoderReranker) -> None:
    cutter = TextCutter(token_offsets(cross_encoder._tokenizer), 8, 4)
    assert cutter.request("one two three") == "one two three"
    assert cutter.request("a b c d e f g h i j k l") == "a b c d i j k l"
    assert cutter.tool("get the weather of a city") == "get the weather of"
    assert cut_middle([1, 2, 3, 4, 5], 3) == [1, 2, 5]


def test_a_folder_is_checked(tmp_path: Path) -> None:
    folder = write_cross_encoder(tmp_path / "run" / "reranker")
    assert open_reranker(tmp_path / "run").card.kind == "cross-encoder"
    card = json.loads((folder / CARD_FILE).read_text())
    (folder / CARD_FILE).write_text(json.dumps({**card, "choices": []}))
    with pytest.raises(BadInput, match="is not a reranker's card"):
        open_reranker(folder)
    (folder / CARD_FILE).write_text(json.dumps(card))
    (folder / "config.json").unlink()
    with pytest.raises(ModelMissing, match="damaged"):
        open_reranker(folder)
    with pytest.raises(ModelMissing, match="not a finished reranker"):
        open_reranker(tmp_path)
