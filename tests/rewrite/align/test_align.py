"""Alignment of the tiny model: every algorithm changes weights, resumed runs equal uninterrupted ones."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import recordable
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rewrite.align import dpo
from rewrite.align.alignment_trainer import AlignTask
from rewrite.align.best_of_n import train_best_of_n
from rewrite.align.blends import choose_blend
from rewrite.align.dpo import lost_likelihood, train_dpo
from rewrite.align.groups import run as groups
from rewrite.align.groups.run import train_groups
from rewrite.align.groups.trainers import GroupTrainer, retry_server
from rewrite.align.pairs import Pair
from rewrite.align.ppo import trainer as ppo_trainer
from rewrite.align.ppo.run import learning_rate_share, train_ppo
from rewrite.align.samples import AlignQuery
from rewrite.align.settings import (
    AlgoSettings,
    AlignTraining,
    CollapseLimits,
    DpoSettings,
    GrpoSettings,
    PpoSettings,
    RlooSettings,
)
from rewrite.backends.model_folder import load_tokenizer
from rewrite.errors import BackendDown, Interrupted, RewriteError
from rewrite.settings import LoraSettings
from rewrite.sft.dev_eval_trainer import RewriterTask
from rewrite.sft.examples import Example
from rewrite.sft.models import load_policy
from rewrite.sft.run import RunOptions, TrainingResult
from rewrite.speedups.decoding import Decoding
from rewrite.speedups.shared_prompts import SharedPrompts
from rewrite.template import Template
from rewrite.types import Answer, Rewrite

TEMPLATE = Template("plain", 1, "", "{utterance}", line="{query}")
"""Whatever is written can be read."""
EXAMPLES = [Example(f"q{number}", f"{thing} in Oslo", (f"{thing} search",), ("t",)) for number, thing in
            enumerate("hotels trains rain news".split())]  # fmt: skip
QUERIES = [AlignQuery("small", example) for example in EXAMPLES]
PAIRS = [Pair(each.utterance, each.lines[0], "what a lovely day") for each in EXAMPLES] * 2
FREE = CollapseLimits(min_parsed=0.0, min_distinct=0.0, min_length_ratio=0.0, max_length_ratio=1e9, max_kl=0.0)
SETTINGS = AlignTraining(
    lora=LoraSettings(rank=4, alpha=8), batch_size=2, learning_rate=1e-2, max_tokens=64, evaluations=2, patience=9,
    report_to=(),
)  # fmt: skip
"""With 8 pairs 4 steps, the evaluations after 2 and 4."""
PPO = PpoSettings(max_tokens=5, minibatch_size=2)
ROLLOUTS = {"answers": 2, "max_tokens": 5}


def _wild(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    """A score that changes with every letter of an answer."""
    text = "\n".join(each.answer for each in rewrites)
    return {"score": sum(place * ord(letter) for place, letter in enumerate(text, 1)) % 9973 / 9973}


def _rising() -> Callable[[Sequence[Rewrite]], dict[str, float]]:
    calls: list[int] = []

    def judge(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        calls.append(1)
        return {"score": float(len(calls))}

    return judge


def _reward(queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
    return [sum(letter in "aeiou" for letter in answer.text) / (1 + len(answer.text)) for answer in answers]


@pytest.fixture(scope="module")
def base(untied_lm: Path) -> Path:
    return untied_lm


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter as fine-tuning leaves one."""
    folder = tmp_path_factory.mktemp("models") / "adapter"
    torch.manual_seed(2)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(folder)
    return folder


def _goal(base: Path, adapter: Path | None, judge: Callable[..., dict[str, float]] | None = None) -> AlignTask:
    task = RewriterTask(base, TEMPLATE, (), EXAMPLES[:3], judge or _rising(), "score", (0,), 6, 64, adapter)
    return AlignTask(task, QUERIES, _reward, FREE)


def _leg(work: Path, resume: bool = False, **changes: object) -> RunOptions:
    work.mkdir(exist_ok=True, parents=True)
    return RunOptions(replace(SETTINGS, **changes), work, resume, False, False)  # type: ignore[arg-type]


def _weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    kept = {name: each.detach().clone() for name, each in model.named_parameters()}
    return {name: each for name, each in kept.items() if "lora" in name or "base_layer" not in name}


def _moved(trained: TrainingResult, adapter: Path) -> bool:
    """True where the adapter is another one than before."""
    before = load_file(adapter / "adapter_model.safetensors")
    after = {name.replace(".default", ""): value for name, value in trained.model.named_parameters()}
    return any(not torch.equal(value, after[name]) for name, value in before.items())


def test_dpo_goes_on_with_an_adapter_and_starts_at_its_reference(base: Path, adapter: Path, tmp_path: Path) -> None:
    trained = train_dpo(_goal(base, adapter), _leg(tmp_path), PAIRS, DpoSettings())
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # its gradient may be no number
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["step"] == 0
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)  # the policy is its own reference before the first step
    assert rows[1]["kl"] == pytest.approx(0.0, abs=1e-4)
    assert _moved(trained, adapter)
    assert list(trained.model.peft_config) == ["default"]
    assert trained.facts["kept"] == "best"
    assert [row["step"] for row in trained.history] == [0, 2, 4]
    assert trained.facts["pairs"] == 8


def test_dpo_of_a_whole_model_and_with_a_frozen_reference(base: Path, adapter: Path, tmp_path: Path) -> None:
    whole = train_dpo(_goal(base, None), _leg(tmp_path / "full", method="full"), PAIRS, DpoSettings())
    assert whole.facts["trained_parameters"] == whole.facts["parameters"]
    first = [json.loads(line) for line in (tmp_path / "full" / "metrics.jsonl").read_text().splitlines()][1]
    assert first["loss"] == pytest.approx(0.6931, abs=1e-3)
    goal = _goal(base, adapter)
    held = DpoSettings(loss=("sigmoid", "sft"), weights=(1.0, 0.2))
    train_dpo(goal, _leg(tmp_path / "held"), PAIRS, held, reference=replace(goal.training, adapter=None))
    row = [json.loads(line) for line in (tmp_path / "held" / "metrics.jsonl").read_text().splitlines()][1]
    assert abs(row["kl"]) > 1e-3  # the reference is another model than the start


def test_dpo_tells_what_did_not_fit(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = replace(TEMPLATE, user="{utterance} {candidates}", candidates=2)
    goal = _goal(base, adapter)
    goal = replace(goal, training=replace(goal.training, template=shown))
    far = "a hotel " * 99
    pairs = [
        *PAIRS[:2],
        replace(PAIRS[2], candidates=("hotels", far, far)),
        replace(PAIRS[3], candidates=(far,)),
        replace(PAIRS[0], utterance=far),
    ]
    trained = train_dpo(goal, _leg(tmp_path), pairs, DpoSettings())
    told = [trained.facts[name] for name in ("pairs", "candidates_cut", "pairs_dropped")]
    assert told == [4, 2, 1]
    assert "max_tokens 64: 2 pairs lose candidates, 1 are left out" in capsys.readouterr().err


def _stopping(at: int) -> Callable[[Sequence[Rewrite]], dict[str, float]]:
    """A judge during whose n-th evaluation the process is asked to stop."""
    calls: list[int] = []

    def judge(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return _wild(rewrites)

    return judge


@pytest.mark.parametrize(
    ("algo", "epochs", "stopped", "steps"),
    [
        (DpoSettings(), 1, 3, 4),
        (GrpoSettings(**ROLLOUTS), 1, 3, 4),  # type: ignore[arg-type]
        (RlooSettings(**ROLLOUTS), 1, 3, 4),  # type: ignore[arg-type]
        (PpoSettings(max_tokens=5, minibatch_size=1), 2, 3, 4),
        (GrpoSettings(**ROLLOUTS, steps=2), 2, 6, 8),  # type: ignore[arg-type]
        (RlooSettings(**ROLLOUTS, iterations=2), 1.5, 8, 12),  # type: ignore[arg-type]
    ],
    ids=["dpo", "grpo", "rloo", "ppo", "grpo, two steps", "rloo, two iterations"],
)
def test_a_stopped_run_goes_on_as_if_nothing_had_been(
    base: Path, adapter: Path, tmp_path: Path, algo: AlgoSettings, epochs: float, stopped: int, steps: int
) -> None:
    """It is asked to stop in the step after its first evaluation; steps that share their answers are all done first."""

    def run(work: Path, resume: bool, judge: Callable[..., dict[str, float]]) -> TrainingResult:
        goal, leg = _goal(base, adapter, judge), _leg(work, resume, epochs=epochs)
        if isinstance(algo, DpoSettings):
            return train_dpo(goal, leg, PAIRS, algo)
        if isinstance(algo, PpoSettings):
            return train_ppo(goal, leg, algo)
        assert isinstance(algo, GrpoSettings | RlooSettings)
        return train_groups(goal, leg, algo)

    straight = run(tmp_path / "straight", False, _wild)
    with pytest.raises(Interrupted, match=rf"stopped after step {stopped} of {steps}.*--resume"):
        run(tmp_path / "stopped", False, _stopping(2))
    resumed = run(tmp_path / "stopped", True, _wild)
    name = "policy.safetensors" if algo.kind == "ppo" else "adapter_model.safetensors"
    ends = [tmp_path / each / "checkpoints" / f"checkpoint-{steps}" / name for each in ("straight", "stopped")]
    both = [load_file(end) for end in ends]
    assert all(torch.equal(both[0][key], both[1][key]) for key in both[0])
    assert (resumed.best, resumed.step) == (straight.best, straight.step)
    scores = [[row["eval_score"] for row in each.history] for each in (straight, resumed)]
    assert scores[0] == scores[1]
    again = run(tmp_path / "stopped", True, _wild)  # finished: nothing is trained any more
    assert again.step == straight.step


@pytest.mark.parametrize("algo", [GrpoSettings(**ROLLOUTS), RlooSettings(**ROLLOUTS)], ids=lambda algo: algo.kind)  # type: ignore[arg-type]
def test_groups_of_answers_move_the_policy(
    base: Path, adapter: Path, tmp_path: Path, algo: GrpoSettings | RlooSettings
) -> None:
    seen: list[int] = []

    def reward(queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
        assert {query.key for query in queries} <= {query.key for query in QUERIES}
        seen.append(len(answers))
        return _reward(queries, answers)

    goal = replace(_goal(base, adapter), reward=reward)
    trained = train_groups(goal, _leg(tmp_path, batch_size=4), algo)
    assert _moved(trained, adapter)
    assert seen == [4, 4]
    assert (trained.facts["queries"], trained.facts["answers"]) == (4, 8)
    assert 0 <= trained.facts["reward_share"] <= 1
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert any("reward" in row and "kl" in row for row in rows)


@pytest.mark.parametrize("algo", [GrpoSettings(**ROLLOUTS), RlooSettings(**ROLLOUTS), PPO], ids=lambda algo: algo.kind)  # type: ignore[arg-type]
def test_answers_by_recorded_steps_move_the_policy(
    base: Path,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    algo: GrpoSettings | RlooSettings | PpoSettings,
) -> None:
    """As on a GPU, but for the record."""
    recordable(monkeypatch)
    drawn: list[str] = []
    run = Decoding.run

    def watched(self: Decoding, record: bool) -> torch.Tensor:
        found = run(self, record)
        if self._sampling.temperature > 0:
            drawn.append(str(found.tolist()))
        return found

    monkeypatch.setattr(Decoding, "run", watched)
    monkeypatch.setattr(ppo_trainer, "MAX_ANSWERS", 3)  # a step of four answers takes two batches
    goal, leg = _goal(base, adapter), _leg(tmp_path, batch_size=4)
    train = train_ppo(goal, leg, algo) if isinstance(algo, PpoSettings) else train_groups(goal, leg, algo)
    assert _moved(train, adapter)
    assert len(set(drawn)) == len(drawn) > 0  # no two steps draw the same


def test_answers_for_several_steps_are_written_together(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tokens: list[list[float]] = []
    plain = GroupTrainer.log

    def log(self: GroupTrainer, logs: dict[str, float], start_time: float | None = None) -> None:
        tokens.append(list(self._metrics["train"].get("kl", ())))
        plain(self, logs, start_time)

    monkeypatch.setattr(GroupTrainer, "log", log)

    def reward(queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
        seen.append(len(answers))
        return _reward(queries, answers)

    goal = replace(_goal(base, adapter), reward=reward)
    trained = train_groups(goal, _leg(tmp_path, batch_size=2), GrpoSettings(**ROLLOUTS, steps=2))  # type: ignore[arg-type]
    assert seen == [4, 4]
    assert trained.facts["steps"] == trained.facts["done"] == 4
    assert trained.facts["answers"] == 8
    assert _moved(trained, adapter)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    told = [row for row in rows if "kl" in row]
    length = "completions/mean_length"
    assert [length in row for row in told] == [True, False, True, False]  # where answers were written
    lengths = [told[0][length]] * 2 + [told[2][length]] * 2
    wanted = [sum(kl) / len(kl) * length for kl, length in zip(tokens, lengths, strict=False)]
    assert [row["kl"] for row in told] == pytest.approx(wanted)  # nats an answer in every line, not a token
    assert wanted[3] > 0


@pytest.mark.parametrize("kind", [GrpoSettings, RlooSettings])
def test_answers_share_their_prompt_while_they_are_learned_from(
    base: Path,
    adapter: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: Callable[..., Any],
) -> None:
    """And what is learned is the same as from rows of their own in the same order."""
    algo = kind(answers=4, max_tokens=5, steps=2, beta=0.05)
    shared: list[tuple[int, int]] = []
    states = SharedPrompts.states

    def watched(self: SharedPrompts, *arguments: Any) -> torch.Tensor:
        if torch.is_grad_enabled():
            shared.append((len(self.prompts), len(self.answers)))
        return states(self, *arguments)

    monkeypatch.setattr(SharedPrompts, "states", watched)

    def learned(name: str) -> list[float]:
        train_groups(_goal(base, adapter), _leg(tmp_path / name, batch_size=8), algo)
        rows = [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        return [row["grad_norm"] for row in rows if "grad_norm" in row]

    together = learned("together")
    assert shared == [(2, 8)] * 2  # two prompts, of four answers each
    assert "row of its own" not in capsys.readouterr().err
    monkeypatch.setattr(groups, "share_prompts", lambda trainer: True)  # the order alone
    alone = learned("alone")
    assert shared == [(2, 8)] * 2
    assert len(together) == 2
    assert together == pytest.approx(alone, rel=1e-3)
    assert min(together) > 0.01
    monkeypatch.undo()
    forgetful = _leg(tmp_path / "forgetful", batch_size=8, gradient_checkpointing=True)
    train_groups(_goal(base, adapter), forgetful, algo)
    assert "answers cannot share their prompt here" in capsys.readouterr().err


def test_queries_that_fill_no_batch_are_told_or_refused(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = _goal(base, adapter)
    three = replace(goal, queries=QUERIES[:3])
    trained = train_groups(three, _leg(tmp_path / "three", batch_size=4), GrpoSettings(**ROLLOUTS))  # type: ignore[arg-type]
    assert (trained.facts["left_over"], trained.facts["steps"]) == (1, 1)
    assert "1 of 3 queries are left over in every epoch: answers are generated for 2 at once" in capsys.readouterr().err
    with pytest.raises(
        RewriteError, match=r"generated for 4 queries at once \(training.*\), and there are 3; lower one of them"
    ):
        train_groups(three, _leg(tmp_path / "few", batch_size=4), RlooSettings(**ROLLOUTS, steps=2))  # type: ignore[arg-type]


def test_ppo_moves_the_policy_and_tells_its_figures(base: Path, adapter: Path, tmp_path: Path) -> None:
    trained = train_ppo(_goal(base, adapter), _leg(tmp_path), PpoSettings(max_tokens=5, minibatch_size=2))
    assert _moved(trained, adapter)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 1, 2, 2]
    assert trained.facts["answers"] == 4
    assert rows[1]["kl"] == pytest.approx(0.0, abs=1e-3)
    assert {"reward", "value_loss", "kl_weight", "clipped", "entropy"} <= rows[1].keys()


def test_best_of_n_goes_on_with_the_adapter(base: Path, adapter: Path, tmp_path: Path) -> None:
    trained = train_best_of_n(_goal(base, adapter), _leg(tmp_path), EXAMPLES)
    assert _moved(trained, adapter)
    assert trained.history[0]["step"] == 0
    with pytest.raises(RewriteError, match="no answer exceeds the mean"):
        train_best_of_n(_goal(base, adapter), _leg(tmp_path / "none"), [])


def test_the_start_is_kept_where_nothing_beats_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    calls: list[int] = []

    def falling(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        calls.append(1)
        return {"score": -float(len(calls))}

    trained = train_dpo(_goal(base, adapter, falling), _leg(tmp_path), PAIRS, DpoSettings())
    assert (trained.facts["kept"], trained.step, trained.best) == ("start", 0, -1.0)
    assert not _moved(trained, adapter)


@pytest.mark.parametrize(("method", "goes_on"), [("full", False), ("lora", False), ("lora", True)])
def test_dev_chooses_how_much_of_the_way_is_kept(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, goes_on: bool
) -> None:
    held = adapter if goes_on else None

    def run(name: str, scores: Sequence[float], *blends: float) -> TrainingResult:
        told = iter(scores)
        goal = replace(_goal(base, held, lambda rewrites: {"score": next(told)}), blends=blends)
        return train_dpo(goal, _leg(tmp_path / name, method=method), PAIRS, DpoSettings())

    end, kept = run("end", (0, 1, 2)), run("kept", (0, 1, 2, 2, 4, 3), 0.25, 0.5, 0.75)
    assert kept.facts["blends"] == {"1": 2, "0.75": 2, "0.5": 4, "0.25": 3}
    assert (kept.facts["blend"], kept.best, kept.step, kept.facts["kept"]) == (0.5, 4, 4, "best")
    assert kept.history[-1]["eval_score"] == 4
    assert "dev with 50% of the way from the start: score 4.000" in capsys.readouterr().err
    with torch.no_grad():
        texts = torch.arange(3, 9)[None]
        start = load_policy(base, held)(texts).logits
        assert not torch.allclose(start, end.model(texts).logits, atol=1e-3)
    ended, half = dict(end.model.named_parameters()), dict(kept.model.named_parameters())
    before = dict(load_policy(base, held).named_parameters())
    for name, each in ended.items():
        if name in before:
            assert torch.allclose(half[name], (before[name] + each) / 2, atol=1e-6)
        else:  # a new adapter: its product is half of what it was
            assert torch.allclose(half[name], each / 2 if "lora_B" in name else each, atol=1e-6)
    assert torch.equal(run("none", (0, 1, 2, 1), 0.5).model(texts).logits, end.model(texts).logits)
    start_kept = run("start", (5, 1, 2, 4), 0.5).facts
    assert (start_kept["kept"], start_kept["blend"]) == ("start", 0.0)
    assert run("rescued", (2.5, 1, 2, 3), 0.5).facts["blend"] == 0.5  # though no checkpoint beats the start


def test_a_blend_that_has_collapsed_is_not_kept(base: Path, adapter: Path, tmp_path: Path) -> None:
    goal = replace(_goal(base, adapter), limits=replace(FREE, min_parsed=0.5))
    strict = replace(TEMPLATE, line="@@ {query}")  # nothing that it writes can be read
    goal = replace(goal, training=replace(goal.training, template=strict))
    end = TrainingResult(load_policy(base, adapter), load_tokenizer(base), 0.5, 4, [], {})
    found = choose_blend(goal.training, goal.limits, (0.5,), end, {"eval_score": 0.0})
    assert (found.best, found.facts["blend"], found.facts["blends"]) == (0.5, 1.0, {"1": 0.5, "0.5": 1.0})


def test_dpo_tells_when_the_chosen_answers_have_sunk(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = iter(range(0, -100, -1))
    goal = _goal(base, adapter, lambda rewrites: {"score": float(next(falling))})
    monkeypatch.setattr(dpo, "MAX_LOSS", -100.0)  # a few steps of a small model sink by little
    assert train_dpo(goal, _leg(tmp_path), PAIRS, DpoSettings()).facts["kept"] == "start"
    assert "the chosen answers became less likely too" in capsys.readouterr().err
    told = [{"loss": 1.0}, *({"rewards/chosen": -value} for value in (0, 0, 1, 1, 2, 2, 3, 5))]
    assert lost_likelihood(told, 0.5) == 8.0  # by the last quarter of what was told
    assert lost_likelihood(told[:4], 0.5) == 2.0
    assert lost_likelihood([{"loss": 1.0}], 0.1) == 0.0


def test_a_collapse_stops_the_run_and_stays_over(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = replace(_goal(base, adapter), limits=replace(FREE, max_kl=1e-6))
    leg = _leg(tmp_path, evaluations=4, epochs=3)
    trained = train_dpo(goal, leg, PAIRS, DpoSettings())
    assert trained.facts["done"] < trained.facts["steps"] == 12
    assert "nats per answer away" in trained.facts["collapse"]
    assert "stopped: the policy is" in capsys.readouterr().err
    again = train_dpo(goal, replace(leg, resume=True), PAIRS, DpoSettings())
    assert again.facts["done"] == trained.facts["done"]


def test_best_of_n_that_collapsed_stays_over(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    goal = replace(_goal(base, adapter), limits=replace(FREE, min_parsed=0.5))
    strict = replace(TEMPLATE, line="@@ {query}")  # nothing that it writes can be read
    goal = replace(goal, training=replace(goal.training, template=strict))
    leg = _leg(tmp_path, epochs=3)
    trained = train_best_of_n(goal, leg, EXAMPLES)
    capsys.readouterr()
    again = train_best_of_n(goal, replace(leg, resume=True), EXAMPLES)  # as after a kill before the rewriter is written
    assert again.facts["done"] == trained.facts["done"] < again.facts["steps"]
    assert again.facts["collapse"] == trained.facts["collapse"] != ""
    assert (again.step, again.facts["kept"]) == (0, "start")
    assert "stopped: only 0%" in capsys.readouterr().err


@pytest.mark.parametrize("algo", ["dpo", "ppo", "best-of-n"])
def test_a_policy_that_has_collapsed_is_never_the_best(base: Path, adapter: Path, tmp_path: Path, algo: str) -> None:
    goal = replace(_goal(base, adapter), limits=replace(FREE, min_parsed=0.5))
    strict = replace(TEMPLATE, line="@@ {query}")  # nothing that it writes can be read
    goal = replace(goal, training=replace(goal.training, template=strict))
    if algo == "dpo":
        trained = train_dpo(goal, _leg(tmp_path), PAIRS, DpoSettings())
    elif algo == "ppo":
        trained = train_ppo(goal, _leg(tmp_path, epochs=2), PpoSettings(max_tokens=5, minibatch_size=2))
    else:
        trained = train_best_of_n(goal, _leg(tmp_path, epochs=2), EXAMPLES)
    assert (trained.step, trained.facts["kept"]) == (0, "start")
    assert "can be parsed" in trained.facts["collapse"]
    assert trained.facts["done"] == 2  # though the judge liked it better than the start
    assert not _moved(trained, adapter)


def test_what_is_no_number_ends_the_run(base: Path, tmp_path: Path) -> None:
    wild = {"method": "full", "learning_rate": 1e30, "warmup": 0.0, "schedule": "constant", "evaluations": 4}
    with pytest.raises(RewriteError, match=r"became (nan|inf).*last good checkpoint kept"):
        train_dpo(_goal(base, None), _leg(tmp_path / "dpo", **wild), PAIRS, DpoSettings())
    with pytest.raises(RewriteError, match=r"became (nan|inf).*last good checkpoint kept"):
        train_ppo(_goal(base, None), _leg(tmp_path / "ppo", epochs=4, **wild), PpoSettings(max_tokens=5, passes=1))


def test_batches_that_do_not_divide_and_rollouts_without_a_gpu_are_refused(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match=r"no multiple of algo\.answers"):
        train_groups(_goal(base, None), _leg(tmp_path), GrpoSettings(answers=3))
    with pytest.raises(RewriteError, match="needs a CUDA device"):
        train_groups(_goal(base, None), _leg(tmp_path), GrpoSettings(answers=2, engine="colocate"))


def test_a_dead_reward_ends_the_run(base: Path, adapter: Path, tmp_path: Path) -> None:
    def dead(queries: Sequence[AlignQuery], answers: Sequence[Answer]) -> list[float]:
        raise ConnectionError("the index is gone")

    goal = replace(_goal(base, adapter), reward=dead)
    with pytest.raises(ConnectionError, match="the index is gone"):
        train_groups(goal, _leg(tmp_path / "grpo"), GrpoSettings(answers=2, max_tokens=5))
    with pytest.raises(ConnectionError, match="the index is gone"):
        train_ppo(goal, _leg(tmp_path / "ppo"), PpoSettings(max_tokens=5))


def test_a_rollout_server_is_asked_again_before_the_run_ends() -> None:
    tries: list[int] = []

    def work() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("refused")
        return "answers"

    def dead() -> str:
        raise ConnectionError("refused")

    assert retry_server(work, "http://here", wait=0.0) == "answers"
    with pytest.raises(BackendDown, match=r"http://here does not answer \(refused\).*--resume"):
        retry_server(dead, "http://here", wait=0.0)


def test_ppo_reports_where_it_can(base: Path, tmp_path: Path) -> None:
    with pytest.raises(RewriteError, match="leave wandb out"):
        train_ppo(_goal(base, None), _leg(tmp_path, report_to=("wandb",)), PpoSettings())


def test_learning_rates_follow_their_schedule() -> None:
    cosine = replace(SETTINGS, warmup=0.2)
    assert [round(learning_rate_share(cosine, step, 10), 3) for step in (0, 1, 2, 6)] == [0.5, 1.0, 1.0, 0.5]
    assert learning_rate_share(replace(SETTINGS, warmup=0.0, schedule="linear"), 5, 10) == 0.5
    assert learning_rate_share(replace(SETTINGS, warmup=0.0, schedule="constant"), 9, 10) == 1.0
