"""Samples that survive a kill, pairs as they should be, the probe's verdicts, and when a policy has collapsed."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from killing import in_a_child

from pipelines import config as configs
from retrievers.errors import BadInput
from rewrite.align.best_of_n import best_examples
from rewrite.align.collapse import collapse_reason, last_collapse
from rewrite.align.pairs import Pair, make_pairs, pairs_of, read_pairs, write_pairs
from rewrite.align.probe import probe
from rewrite.align.samples import AlignQuery, ScoredSample, draw_samples, read_samples
from rewrite.align.settings import (
    AlignTraining,
    BestOfNSettings,
    CollapseLimits,
    DpoSettings,
    PairSettings,
    SampleSettings,
)
from rewrite.errors import RewriteError
from rewrite.rewriter import Rewriter
from rewrite.settings import Sampling
from rewrite.sft.examples import Example
from rewrite.template import load_template
from rewrite.types import Answer, Prompt

TEMPLATE = load_template("needs")
QUERIES = [AlignQuery("trips", Example(f"q{number}", f"thing {number}", ("good",), ("t",))) for number in range(10)]
SETTINGS = SampleSettings(answers=3, chunk_size=4)


class Seeded:
    """Answers that depend on the seed and the place in the chunk, as a model's do."""

    context, rejects_long_prompts = None, True

    def __init__(self, dies_at: int = 0) -> None:
        self.calls, self._dies_at = 0, dies_at

    def count(self, prompts: Sequence[Prompt]) -> None:
        return None

    def generate(
        self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
    ) -> list[list[Answer]]:
        self.calls += 1
        if self.calls == self._dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return [
            [Answer(f"- answer {sampling.seed} {place} {each}", 5) for each in range(sampling.answers)]
            for place, _ in enumerate(prompts)
        ]


def _reward(queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
    return [sum(map(ord, answer.text)) % 7 / 7 for answer in answers]


def _draw(folder: Path, backend: Seeded, part: tuple[int, int] = (0, 1)) -> None:
    draw_samples(Rewriter(TEMPLATE, backend), QUERIES, _reward, SETTINGS, folder, part=part)


def test_a_killed_job_goes_on_with_nothing_twice(tmp_path: Path) -> None:
    _draw(tmp_path / "straight", Seeded())
    straight = read_samples(tmp_path / "straight")
    assert in_a_child(lambda: _draw(tmp_path / "killed", Seeded(dies_at=3))) == -signal.SIGKILL
    assert len(read_samples(tmp_path / "killed")) == 8
    path = tmp_path / "killed" / "samples-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])  # as if it had died in the midst of a line
    again = Seeded()
    _draw(tmp_path / "killed", again)
    assert again.calls == 2  # the chunk that lost a line, and the one that was never drawn
    assert read_samples(tmp_path / "killed") == straight
    assert len(path.read_text().splitlines()) == len(QUERIES)
    done = Seeded()
    _draw(tmp_path / "killed", done)
    assert done.calls == 0


def test_several_processes_draw_what_one_would(tmp_path: Path) -> None:
    _draw(tmp_path / "one", Seeded())
    for number in range(2):
        _draw(tmp_path / "two", Seeded(), (number, 2))
    assert read_samples(tmp_path / "two") == read_samples(tmp_path / "one")


def test_a_sample_knows_what_leaving_alone_and_the_target_earn(tmp_path: Path) -> None:
    _draw(tmp_path, Seeded())
    for sample in read_samples(tmp_path):
        assert sample.raw == _reward([], [Answer("NONE", 0)])[0]
        assert sample.oracle == _reward([], [Answer("- good", 0)])[0]
        assert list(sample.rewards) == _reward([], [Answer(text, 0) for text in sample.answers])


def test_samples_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "samples-0.jsonl").write_text('{"id": "q1"}\n')
    with pytest.raises(RewriteError, match=r"samples-0.jsonl:1: not a sample; remove the file"):
        read_samples(tmp_path)


def _sample(rewards: Sequence[float], readable: Sequence[bool] | None = None, raw: float = 0.0) -> ScoredSample:
    answers = tuple(f"- {'long ' * place}a{place}" for place in range(len(rewards)))
    able = tuple(readable or [True] * len(rewards))
    return ScoredSample("trips", "q1", "thing", (), answers, able, (True,) * len(rewards), tuple(rewards), raw, 1.0)


def test_pairs_are_the_best_with_the_worst() -> None:
    sample = _sample([0.2, 0.9, 0.5, 0.0])
    assert [pair.rewards for pair in pairs_of(sample, PairSettings())] == [(0.9, 0.0)]
    assert [pair.rewards for pair in pairs_of(sample, PairSettings(max_pairs=5))] == [(0.9, 0.0), (0.5, 0.2)]
    assert pairs_of(sample, PairSettings(margin=0.95)) == []


def test_the_target_is_an_answer_too_where_it_is_asked_for() -> None:
    sample = replace(_sample([0.2, 0.9, 0.5, 0.0]), target="- as written\n")
    found = pairs_of(sample, PairSettings(max_pairs=5, include_target=True))
    assert [pair.rewards for pair in found] == [(1.0, 0.0), (0.9, 0.2)]
    assert found[0].chosen == "- as written"
    worse = pairs_of(replace(sample, oracle=0.1), PairSettings(max_pairs=5, include_target=True))
    assert [pair.rewards for pair in worse] == [(0.9, 0.0), (0.5, 0.1)]
    assert worse[1].rejected == "- as written"
    said = replace(sample, target=sample.answers[0])  # by the policy itself: what it earned counts once
    assert pairs_of(said, PairSettings(max_pairs=5, include_target=True)) == pairs_of(sample, PairSettings(max_pairs=5))


def test_what_cannot_be_parsed_is_never_chosen_and_rejected_unless_told_otherwise() -> None:
    sample = _sample([0.9, 0.6, 0.0], [False, True, False])
    assert [pair.rewards for pair in pairs_of(sample, PairSettings())] == [(0.6, 0.0)]
    assert pairs_of(sample, PairSettings(parseable_only=True)) == []
    alike = replace(sample, answers=("- same",) * 3, readable=(True,) * 3)
    assert pairs_of(alike, PairSettings()) == []


def test_without_the_target_all_pairs_are_of_the_policys_own_answers() -> None:
    """The target would be chosen: it earns most."""
    samples = [replace(_sample([0.2, 0.9, 0.5, 0.0]), id=f"q{number}", target="- as written") for number in range(3)]
    own = make_pairs(samples, PairSettings(max_pairs=5))
    assert {answer for pair in own for answer in (pair.chosen, pair.rejected)} <= set(samples[0].answers)
    assert {pair.chosen for pair in make_pairs(samples, PairSettings(include_target=True))} == {"- as written"}


def test_answers_worse_than_the_raw_query_are_no_examples() -> None:
    """With `reward.baseline: raw` these are below 0."""
    sample = _sample([-0.3, -0.1, -0.6])
    assert pairs_of(sample, PairSettings()) == []
    assert best_examples([sample], TEMPLATE, BestOfNSettings()) == []
    better = _sample([-0.3, 0.1, -0.6])
    assert [pair.rewards for pair in pairs_of(better, PairSettings(max_pairs=5))] == [(0.1, -0.6)]
    assert len(best_examples([better], TEMPLATE, BestOfNSettings())) == 1


def test_what_a_cap_ended_is_learned_from_as_far_as_it_is_read(tmp_path: Path) -> None:
    class Cut(Seeded):
        def generate(
            self, prompts: Sequence[Prompt], sampling: Sampling, show_progress: bool = False
        ) -> list[list[Answer]]:
            whole = super().generate(prompts, sampling)
            return [[Answer(f"{row[0].text}\n- hal", 9, finished=False), *row[1:]] for row in whole]

    draw_samples(Rewriter(TEMPLATE, Cut()), QUERIES, _reward, SETTINGS, tmp_path)
    _draw(tmp_path / "whole", Seeded())
    samples, wanted = read_samples(tmp_path), read_samples(tmp_path / "whole")
    assert [sample.answers for sample in samples] == [sample.answers for sample in wanted]
    assert {sample.finished for sample in samples} == {(False, True, True)}
    assert probe(samples, PairSettings()).finished == pytest.approx(2 / 3, abs=1e-6)


def test_a_pairs_file_comes_back_and_needs_little(tmp_path: Path) -> None:
    pairs = make_pairs([_sample([0.2, 0.9])], PairSettings())
    (tmp_path / "pairs.jsonl").write_text(write_pairs(pairs))
    assert read_pairs(tmp_path) == pairs
    other = tmp_path / "other.jsonl"
    other.write_text('{"utterance": "a", "chosen": "- b", "rejected": "- c"}\n')
    assert read_pairs(other) == [Pair("a", "- b", "- c")]
    other.write_text('{"utterance": "a", "chosen": "- b"}\n')
    with pytest.raises(RewriteError, match=r"other.jsonl:1: not a pair"):
        read_pairs(other)
    other.write_text("")
    with pytest.raises(RewriteError, match="holds no pairs"):
        read_pairs(other)
    with pytest.raises(RewriteError, match="rewrite-train pairs"):
        read_pairs(tmp_path / "nowhere")


def test_the_probe_says_what_the_figures_mean() -> None:
    good = probe([_sample([0.2, 0.9], raw=0.3), _sample([0.5, 0.5], raw=0.3)], PairSettings())
    assert (good.mean, good.best, good.raw, good.oracle, good.no_spread) == (0.525, 0.7, 0.3, 1.0, 0.5)
    assert (good.pairs, good.pairs_per_query, good.hopeless) == (1, 0.5, False)
    assert good.verdict.startswith("yes: best of 2 earns 0.700")
    flat = probe([_sample([0.5, 0.5])] * 3, PairSettings())
    assert flat.hopeless
    assert "no query has spread" in flat.verdict
    garbled = probe([_sample([0.5, 0.1, 0.2], [True, False, False])], PairSettings())
    assert garbled.hopeless
    assert "the majority of answers cannot be parsed" in garbled.verdict
    assert "hardly" in probe([_sample([0.2, 0.9], raw=0.95)], PairSettings()).verdict
    assert "pairing.margin" in probe([_sample([0.5, 0.55])], PairSettings()).verdict
    without = probe([_sample([-0.2, -0.5])], None)  # GRPO learns from answers that are all worse than the raw query
    assert (without.pairs, without.hopeless) == (0, False)
    assert probe([_sample([-0.2, -0.5])], PairSettings()).hopeless
    assert probe([_sample([0.5, 0.5])], None).hopeless
    assert "room for an answer" in probe([replace(_sample([0.1]), answers=())], PairSettings()).verdict


def test_best_of_n_keeps_what_stands_out() -> None:
    samples = [_sample([0.2, 0.9]), _sample([0.5, 0.5]), _sample([0.9, 0.4], [False, True])]
    found = best_examples(samples, TEMPLATE, BestOfNSettings(margin=0.1))
    assert [example.lines for example in found] == [("long a1",)]


def test_best_of_n_learns_silence_where_writing_gains_nothing() -> None:
    """Rewards are gains over the raw query, which earns 0."""
    gain, loss, same = (_sample(rewards, raw=0.0) for rewards in ([-0.2, 0.4], [-0.3, -0.1], [0.0, -0.5]))
    unread = _sample([-0.7, -0.7], [False, False], raw=0.0)
    samples = [loss, unread, gain, same, gain, gain, loss]

    def written(abstain: float) -> list[int]:
        return [len(one.lines) for one in best_examples(samples, TEMPLATE, BestOfNSettings(abstain=abstain))]

    assert written(0.0) == [1, 1, 1, 1]  # `same` too: it is its best answer, and harms nothing
    assert written(0.25) == [1, 1, 1, 0]
    assert written(0.4) == [1, 1, 1, 0, 0]
    assert written(0.9) == [1, 1, 1, 0, 0, 0]  # there are no more


def test_a_collapse_is_named() -> None:
    limits, start = CollapseLimits(), {"eval_tokens": 20.0}
    fine = {"eval_parsed": 0.9, "eval_distinct": 0.8, "eval_tokens": 25.0, "kl": 3.0}
    assert collapse_reason(limits, fine, start) == ""
    for change, said in [
        ({"eval_parsed": 0.3}, "only 30% of the dev answers can be parsed"),
        ({"eval_distinct": 0.1}, "only 10% of the dev answers differ"),
        ({"eval_tokens": 99.0}, "from 20 to 99 tokens"),
        ({"eval_tokens": 1.0}, "from 20 to 1 tokens"),
        ({"kl": 100.0}, "100 nats"),
    ]:
        assert said in collapse_reason(limits, fine | change, start)
    alike = start | {"eval_distinct": 0.15}  # a small catalogue: few answers are right
    assert collapse_reason(limits, fine | {"eval_distinct": 0.1}, alike) == ""
    assert "only 5%" in collapse_reason(limits, fine | {"eval_distinct": 0.05}, alike)
    history = [fine | {"step": 1, "kl": 100.0}, fine | {"step": 2}]
    assert last_collapse(limits, history, start) == ""
    assert "nats" in last_collapse(limits, history[:1], start)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(RewriteError, match="a DPO loss is one of"):
        DpoSettings(loss=("sigmoids",))
    with pytest.raises(RewriteError, match="later rounds make their own pairs"):
        DpoSettings(pairs="x", rounds=2)
    with pytest.raises(BadInput, match="answers must be at least 2, got 1"):
        configs.parse(SampleSettings, {"answers": 1})
    with pytest.raises(BadInput, match=r"blends\.0 must be less than 1, got 1"):
        configs.parse(AlignTraining, {"blends": [1.0]})
