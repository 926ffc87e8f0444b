"""English or not, and who is asked then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipelines.data.dataset import load_dataset
from retrievers.errors import BadInput
from retrievers.hybrid import Hybrid
from retrievers.language.english import is_english
from retrievers.registry import check_names
from retrievers.settings import BM25Settings, FusionSettings, HybridSettings
from retrievers.types import Ranking


def test_it_tells_the_languages_of_the_sample_apart() -> None:
    queries = load_dataset("bundled:sample").queries.values()
    right = [is_english(query.text) == (query.metadata["language"] == "en") for query in queries]
    assert sum(right) / len(right) > 0.995


def test_codes_names_and_nothing_pass_for_english() -> None:
    assert all(map(is_english, ["", "getForecastByCity", "42", "USD EUR", "🙂"]))


class Noted:
    """Finds one tool and notes the queries."""

    def __init__(self, tool: str) -> None:
        self.fingerprint, self.queries = tool, list[str]()

    def search(self, queries: Sequence[str], k: int) -> list[Ranking]:
        self.queries.extend(queries)
        return [Ranking((self.fingerprint,), (1.0,))] * len(queries)


def test_texts_that_are_not_english_go_to_other_retrievers() -> None:
    english, both, others = Noted("a"), Noted("b"), Noted("c")
    hybrid = Hybrid({"english": english, "both": both}, FusionSettings(), "", {"both": both, "others": others})
    found = hybrid.search(["wie wird das Wetter", "what is the weather", "天气怎么样"], 5)
    assert [set(ranking.ids) for ranking in found] == [{"b", "c"}, {"a", "b"}, {"b", "c"}]
    assert english.queries == ["what is the weather"]
    assert others.queries == ["wie wird das Wetter", "天气怎么样"]
    assert len(both.queries) == 3
    assert [len(ranking.parts) for ranking in found] == [2, 2, 2]
    assert list(hybrid.ranking_parts("what is the weather", 5).rankings) == ["english", "both"]
    assert list(hybrid.ranking_parts("wie wird das Wetter", 5).rankings) == ["both", "others"]


def test_a_single_other_retriever_answers_with_its_own_scores() -> None:
    hybrid = Hybrid({"a": Noted("a"), "b": Noted("b")}, None, "", {"c": Noted("c")})
    german, english = hybrid.search(["wie wird das Wetter", "what is the weather"], 5)
    assert (german.ids, german.scores) == (("c",), (1.0,))
    assert set(english.ids) == {"a", "b"}


@pytest.mark.parametrize("unknown", ["of", "other_languages"])
def test_every_part_is_in_the_index(unknown: str) -> None:
    parts = {"of": ("bm25", "words"), "other_languages": ("words",)} | {unknown: ("bm25", "unknown")}
    with pytest.raises(BadInput, match="is of 'unknown', which the index does not have"):
        check_names({"bm25": BM25Settings(), "words": BM25Settings(), "hybrid": HybridSettings(**parts)})
