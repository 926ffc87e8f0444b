"""English or not, and who is asked then."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pipelines.data.dataset import load_dataset
from retrievers.errors import BadInput
from retrievers.hybrid import Hybrid
from retrievers.language.english import is_english
from retrievers.settings import FusionSettings, HybridSettings
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


def test_parts_that_read_english_alone_are_not_asked_about_other_texts() -> None:
    english, every = Noted("a"), Noted("b")
    hybrid = Hybrid({"english": english, "every": every}, FusionSettings(), "", ("english",))
    found = hybrid.search(["wie wird das Wetter", "what is the weather", "天气怎么样"], 5)
    assert [set(ranking.ids) for ranking in found] == [{"b"}, {"a", "b"}, {"b"}]
    assert english.queries == ["what is the weather"]
    assert len(every.queries) == 3


@pytest.mark.parametrize(("parts", "words"), [(("c",), "'c' is not one of the parts"), (("a", "b"), "leave a part")])
def test_a_part_is_left_for_other_languages(parts: tuple[str, ...], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        HybridSettings(of=("a", "b"), english_only=parts)
