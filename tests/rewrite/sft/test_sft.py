"""Fine-tuning the tiny model: resumed runs equal uninterrupted ones, the best model is kept, no number is trusted."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from rewrite.backends.in_process import TransformersBackend
from rewrite.errors import Interrupted, RewriteError
from rewrite.folder import RewriterCard, open_rewriter, save_rewriter
from rewrite.merge import merge_adapter
from rewrite.rewriter import Rewriter
from rewrite.settings import LoraSettings, Sampling, SftSettings, TransformersSettings
from rewrite.sft.dev_eval_trainer import RewriterTask
from rewrite.sft.examples import Example
from rewrite.sft.models import load_policy
from rewrite.sft.run import RunOptions, TrainingResult
from rewrite.sft.train import train
from rewrite.speedups.right_padding import drop_padding_mask
from rewrite.template import Template
from rewrite.types import Rewrite

TEMPLATE = Template("short", 1, "", "{utterance}")
EXAMPLES = [
    Example(f"q{number}", f"{thing} in {place}", (f"{thing} search",), ("t",))
    for number, (thing, place) in enumerate(
        (a, b) for a in ("hotels", "trains", "rain", "news") for b in ("Oslo", "Rome")
    )
]
LORA = LoraSettings(rank=4, alpha=8, dropout=0.2)
"""With dropout: every step draws random numbers."""
SETTINGS = SftSettings(
    lora=LORA, epochs=2, batch_size=2, learning_rate=5e-2, max_tokens=64, evaluations=2, patience=9, report_to=()
)
"""8 steps, the evaluations after 4 and 8."""


def _wild(rewrites: Sequence[Rewrite]) -> dict[str, float]:
    """A score that changes with every letter of an answer."""
    text = "\n".join(each.answer for each in rewrites)
    return {"score": sum(place * ord(letter) for place, letter in enumerate(text, 1)) % 9973 / 9973}


def _task(base: Path, judge: Callable[[Sequence[Rewrite]], dict[str, float]] = _wild) -> RewriterTask:
    return RewriterTask(base, TEMPLATE, EXAMPLES, EXAMPLES[:3], judge, "score", (0, 2), answer_tokens=6)


def _run(task: RewriterTask, work: Path, settings: SftSettings = SETTINGS, resume: bool = False) -> TrainingResult:
    work.mkdir(exist_ok=True)
    return train(task, RunOptions(settings, work, resume, progress=False, cuda=False))


def _stopping(
    at: int, judge: Callable[[Sequence[Rewrite]], dict[str, float]] = _wild
) -> Callable[..., dict[str, float]]:
    """A judge during whose n-th evaluation the process is asked to stop."""
    calls = []

    def judged(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return judge(rewrites)

    return judged


def _weights(run: Path, step: int) -> dict[str, torch.Tensor]:
    folder = run / "checkpoints" / f"checkpoint-{step}"
    return load_file(next(folder.glob("*.safetensors")))


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def _steps(run: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def base(untied_lm: Path) -> Path:
    return untied_lm


@pytest.fixture(scope="module")
def straight(base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TrainingResult]:
    """A run of 8 steps that nobody disturbed."""
    work = tmp_path_factory.mktemp("straight")
    return work, _run(_task(base), work)


def test_a_stopped_run_goes_on_as_if_nothing_had_been(
    base: Path, tmp_path: Path, straight: tuple[Path, TrainingResult]
) -> None:
    with pytest.raises(Interrupted, match=r"stopped after step 5 of 8.*--resume"):
        _run(_task(base, _stopping(1)), tmp_path)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    done = _run(_task(base), tmp_path, resume=True)
    work, undisturbed = straight
    assert _same(_weights(tmp_path, 8), _weights(work, 8))
    assert (done.best, done.step) == (undisturbed.best, undisturbed.step)
    assert [row["eval_score"] for row in done.history] == [row["eval_score"] for row in undisturbed.history]
    assert _steps(tmp_path) == [1, 4, 8, 8]
    assert _steps(work) == [1, 4, 8, 8]


def test_a_run_resumed_from_an_earlier_checkpoint_repeats_no_line(
    base: Path, tmp_path: Path, straight: tuple[Path, TrainingResult]
) -> None:
    shutil.copytree(straight[0], tmp_path, dirs_exist_ok=True)
    torn = tmp_path / "checkpoints" / "checkpoint-8" / "trainer_state.json"
    torn.write_bytes(torn.read_bytes()[:-9])  # as a kill in the midst of it leaves it
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 8, "los')
    _run(_task(base), tmp_path, resume=True)
    assert _same(_weights(tmp_path, 8), _weights(straight[0], 8))
    assert _steps(tmp_path) == [1, 4, 8, 8]
    seconds = [json.loads(line)["seconds"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert seconds == sorted(seconds)
    assert re.findall(r"^## step (\d+)", (tmp_path / "samples.md").read_text(), re.MULTILINE) == ["4", "8"]


def test_evaluations_do_not_disturb_the_training(
    base: Path, tmp_path: Path, straight: tuple[Path, TrainingResult]
) -> None:
    done = _run(_task(base), tmp_path, replace(SETTINGS, evaluations=3))
    assert [row["step"] for row in done.history] == [3, 6, 8]
    assert _same(_weights(tmp_path, 8), _weights(straight[0], 8))


def test_another_seed_gives_another_model(base: Path, tmp_path: Path, straight: tuple[Path, TrainingResult]) -> None:
    _run(_task(base), tmp_path, replace(SETTINGS, seed=1, evaluations=1))
    assert not _same(_weights(tmp_path, 8), _weights(straight[0], 8))


def test_patience_goes_on_counting_after_a_stop(base: Path, tmp_path: Path) -> None:
    flat = {"score": 0.5}
    settings = replace(SETTINGS, evaluations=4, patience=2)
    with pytest.raises(Interrupted):
        _run(_task(base, _stopping(2, lambda _: flat)), tmp_path, settings)  # after 4: once without a better one
    done = _run(_task(base, lambda _: flat), tmp_path, settings, resume=True)
    assert (done.step, done.facts["done"], done.facts["steps"]) == (2, 6, 8)
    # A kill after the last checkpoint, before the rewriter is written: nothing is trained any more.
    again = _run(_task(base, lambda _: flat), tmp_path, settings, resume=True)
    assert (again.step, again.facts["done"]) == (2, 6)


@pytest.mark.parametrize(("kind", "rate"), [("lora", 3e-2), ("full, tied", 7e-4), ("full, untied", 3e-3)])
def test_what_is_saved_is_the_model_that_was_judged_best(
    base: Path, tiny_lm: Path, tmp_path: Path, kind: str, rate: float
) -> None:
    base = tiny_lm if kind == "full, tied" else base
    scores: list[float] = []

    def first_best(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        """Later models are told to be worse, so that an earlier one must be brought back."""
        scores.append(_wild(rewrites)["score"])
        return {"score": -float(len(scores))}

    method = "lora" if kind == "lora" else "full"
    settings = replace(SETTINGS, method=method, learning_rate=rate)  # type: ignore[arg-type]
    trained = _run(_task(base, first_best), tmp_path / "run", settings)
    assert trained.step == 4
    assert scores[0] != scores[1]
    card = RewriterCard("base", "mark", method)  # type: ignore[arg-type]
    save_rewriter(tmp_path / "rewriter", trained.model, trained.tokenizer, card, TEMPLATE)
    folder = open_rewriter(tmp_path / "rewriter")
    backend = TransformersBackend(
        TransformersSettings(dtype="float32"), folder.path if method == "full" else base, folder.adapter, "cpu"
    )
    rewriter = Rewriter(folder.template, backend, Sampling(max_tokens=6))
    assert _wild(rewriter.rewrite([example.request for example in EXAMPLES[:3]]))["score"] == scores[0]


def test_a_merged_adapter_answers_as_before(base: Path, tmp_path: Path, straight: tuple[Path, TrainingResult]) -> None:
    rewriter, asks = tmp_path / "rewriter", [example.request for example in EXAMPLES]
    save_rewriter(rewriter, straight[1].model, straight[1].tokenizer, RewriterCard("base", "mark", "lora"), TEMPLATE)
    merged = open_rewriter(merge_adapter(rewriter, base, tmp_path / "deep" / "merged"))
    assert (merged.card.method, merged.adapter, merged.template) == ("full", None, TEMPLATE)
    settings = TransformersSettings(dtype="float32")
    backends = (
        TransformersBackend(settings, base, rewriter, "cpu"),
        TransformersBackend(settings, merged.path, None, "cpu"),
    )
    answers = [Rewriter(TEMPLATE, each, Sampling(max_tokens=12)).rewrite(asks) for each in backends]
    assert answers[0] == answers[1]
    plain = TransformersBackend(settings, base, None, "cpu")
    assert Rewriter(TEMPLATE, plain, Sampling(max_tokens=12)).rewrite(asks) != answers[1]
    with pytest.raises(RewriteError, match="exists already"):
        merge_adapter(rewriter, base, merged.path)
    with pytest.raises(RewriteError, match="whole model already"):
        merge_adapter(merged.path, base, tmp_path / "other")


def test_a_loss_that_is_no_number_ends_the_run(base: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, method="full", learning_rate=1e30, warmup=0.0, evaluations=8, schedule="constant")
    with pytest.raises(RewriteError, match=r"became (nan|inf).*lower learning_rate"):
        _run(_task(base), tmp_path, settings)
    assert not (tmp_path / "rewriter").exists()


def test_plain_attention_can_be_asked_for(base: Path) -> None:
    assert load_policy(base, None, "eager").config._attn_implementation == "eager"
    assert load_policy(base, None).config._attn_implementation != "eager"


@pytest.mark.parametrize("attention", ["auto", "eager"])
def test_training_needs_no_mask_of_padding_on_the_right(base: Path, attention: str) -> None:
    model = load_policy(base, None, attention).train()
    lengths = torch.tensor([[3], [9], [6]])
    ids = torch.arange(27).reshape(3, 9) + 5
    mask = (torch.arange(9) < lengths).long()
    seen: list[bool] = []
    model.model.register_forward_pre_hook(
        lambda _, args, named: seen.append(named["attention_mask"] is not None), with_kwargs=True
    )

    def outcome() -> list[torch.Tensor]:
        model.zero_grad()
        loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
        loss.backward()
        return [loss, *(each.grad.clone() for each in model.parameters())]

    masked = outcome()
    trainer = SimpleNamespace(model=model, args=SimpleNamespace(device=torch.device("cpu")), aux_loss_enabled=True)
    drop_padding_mask(trainer)  # experts are balanced without padding: the mask stays
    outcome()
    trainer.aux_loss_enabled = False
    drop_padding_mask(trainer)
    for one, other in zip(masked, outcome(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    model.eval()
    outcome()
    assert seen == [True, True, False, True]  # what generates is padded on the left, and needs it


def test_trouble_of_the_judge_ends_the_run(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def troubled(rewrites: Sequence[Rewrite]) -> dict[str, float]:
        raise ConnectionError("the index is gone")

    with pytest.raises(ConnectionError, match="the index is gone"):
        _run(replace(_task(base, troubled), train=[*EXAMPLES, Example("long", "word " * 99, ("x",), ("t",))]), tmp_path)
    assert "max_tokens 64: 0 examples lose candidates, 1 are left out" in capsys.readouterr().err
    assert not list((tmp_path / "checkpoints").glob("checkpoint-*"))
