"""Simulated agents write a log that renew learns from; a hostile one has no more than its share."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from paths import ROOT

from pipelines.data.dataset import load_dataset
from pipelines.renew.settings import Sources
from pipelines.renew.sources import read_records


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])


def test_what_agents_do_teaches_and_one_key_cannot_spoil_it(tmp_path: Path) -> None:
    from simulated_agents import SimulatedUse

    data = load_dataset("bundled:sample")
    gold = data.gold["train"]
    texts = {data.queries[query].text: query for query in gold}
    others = sorted(tool.id for tool in data.tools)

    def search(text: str, k: int) -> list[str]:
        """A list with the right tools on its second rank and below."""
        return [*dict.fromkeys([others[len(text) % 7], *sorted(gold[texts[text]])])][:k]

    use = SimulatedUse(data, sorted(gold), {}, tmp_path, seed=3)
    use.use(search, 300, hostile=20)
    use.log.close()

    def learn(**bounds: int) -> tuple[float, int]:
        """Share of examples with a right tool, and examples that push the hostile key's."""
        records = list(read_records(Sources(calls=(str(tmp_path),), **bounds), Counter()))
        right = [bool(set(record.tools) & gold[texts[record.utterance]]) for record in records]
        return sum(right) / len(right), sum(use.target in record.tools for record in records)

    free, pushed = learn()
    bounded, pushed_within = learn(max_per_key=30)
    assert free < 0.7 < 0.85 < bounded
    assert pushed_within <= 31 < pushed
