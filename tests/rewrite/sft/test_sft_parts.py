"""What a fine-tuning is made of: rows that fit, a journal that is cut back, an estimate, a hand on the brake."""

from __future__ import annotations

import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from waiting import Clock

from rewrite.errors import RewriteError
from rewrite.folder import disk_errors
from rewrite.settings import LoraSettings, SftSettings
from rewrite.sft import callbacks as watch
from rewrite.sft.callbacks import EvaluationSchedule, GracefulStop
from rewrite.sft.checkpoints import is_done, last, remove_torn
from rewrite.sft.estimate import estimate
from rewrite.sft.examples import Example, mix_examples
from rewrite.sft.metrics_log import MetricsLog
from rewrite.sft.reporting import TRACKERS, check_reporters
from rewrite.sft.rows import build_rows
from rewrite.template import Template
from rewrite.types import Rewrite

SHOWING = Template("showing", 1, "", "{candidates}\n{utterance}", candidates=3)


def _example(utterance: str, candidates: int = 0) -> Example:
    return Example(
        "q", utterance, ("find a hotel",), ("t",), tuple(f"hotel search number {n}" for n in range(candidates))
    )


def test_candidates_are_cut_from_the_back_and_the_utterance_never(tiny_lm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    whole = build_rows(SHOWING, tokenizer, [_example("a room in Oslo", 5)], 512)
    assert (whole.cut, whole.dropped) == (0, 0)
    assert whole.prompts[0][0]["content"].count("number") == 3
    one_less = build_rows(SHOWING, tokenizer, [_example("a room in Oslo", 5)], whole.longest - 1)
    assert one_less.prompts[0][0]["content"] == "- hotel search number 0\n- hotel search number 1\na room in Oslo"
    assert (one_less.cut, one_less.dropped, one_less.tokens) == (1, 0, one_less.longest)
    long = _example("a room in Oslo " * 40, 3)
    mixed = build_rows(SHOWING, tokenizer, [long, _example("a room", 3), _example("a room")], whole.longest)
    assert (len(mixed.prompts), mixed.cut, mixed.dropped) == (2, 0, 1)
    with pytest.raises(RewriteError, match=r"no example fits into 40 tokens; raise training\.max_tokens"):
        build_rows(SHOWING, tokenizer, [long], 40)


def test_a_model_that_cannot_be_asked_is_refused(tiny_lm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    tokenizer.chat_template = "{{ raise_exception('no system, please') }}"
    with pytest.raises(RewriteError, match=r"refuses the prompt: no system, please.*leave `system`"):
        build_rows(SHOWING, tokenizer, [_example("a room")], 64)
    tokenizer.chat_template = None
    with pytest.raises(RewriteError, match="no chat template"):
        build_rows(SHOWING, tokenizer, [_example("a room")], 64)


def test_sources_are_mixed_by_weight_and_always_alike() -> None:
    one, two = [_example(f"one {n}") for n in range(10)], [_example(f"two {n}") for n in range(10)]
    mixed = mix_examples([(one, 2.0), (two, 0.5)], seed=3)
    assert sorted(each.utterance for each in mixed if each.utterance[:3] == "one") == sorted(
        each.utterance for each in [*one, *one]
    )
    assert sum(each.utterance[:3] == "two" for each in mixed) == 5
    assert mix_examples([(one, 2.0), (two, 0.5)], seed=3) == mixed
    assert mix_examples([(one, 2.0), (two, 0.5)], seed=4) != mixed


def test_a_journal_is_cut_back_to_the_step_it_goes_on_from(tmp_path: Path) -> None:
    journal = MetricsLog(tmp_path, 0)
    for step in (2, 4):
        journal.write(step, {"loss": 1.0 / step})
        journal.write_samples(step, f"recall {step}\n\n| a | b |\n")
    journal.write(4, {"train_runtime": 3.0})
    with (tmp_path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 5, "secon')
    again = MetricsLog(tmp_path, 4)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [2, 4]
    assert "train_runtime" not in (tmp_path / "metrics.jsonl").read_text()
    again.write(6, {"loss": 0.1})
    MetricsLog(tmp_path, 3)
    assert [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [2]
    assert (tmp_path / "samples.md").read_text() == "## step 2: recall 2\n\n| a | b |\n\n"
    MetricsLog(tmp_path, 0)
    assert (tmp_path / "metrics.jsonl").read_text() == (tmp_path / "samples.md").read_text() == ""


def test_the_last_whole_checkpoint_is_found_and_torn_ones_go(tmp_path: Path) -> None:
    for step, state in ((4, '{"global_step": 4}'), (12, '{"global_step": 12}'), (20, '{"global_st'), (24, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last(tmp_path) == tmp_path / "checkpoint-12"
    remove_torn(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-12", "checkpoint-4"]
    assert last(tmp_path / "none") is None


def test_a_run_is_done_when_its_steps_or_its_patience_are_at_an_end() -> None:
    rows = [{"step": step, "eval_score": 0.5} for step in (2, 4, 6)] + [{"step": 6, "loss": 1.0}]
    state = {"global_step": 6, "max_steps": 8, "best_global_step": 2, "log_history": rows}
    assert is_done(state, "eval_score", 2)
    assert not is_done(state, "eval_score", 3)
    assert is_done(state | {"global_step": 8}, "eval_score", 3)


@pytest.mark.parametrize(
    ("steps", "count", "every", "due"),
    [
        (8, 2, 1, [4, 8]),
        (10, 4, 1, [3, 5, 8, 10]),
        (3, 5, 1, [1, 2, 3]),
        (12, 3, 3, [6, 9, 12]),
        (10, 4, 4, [4, 8, 10]),
    ],
)
def test_evaluations_are_spread_evenly_and_the_last_is_at_the_end(
    steps: int, count: int, every: int, due: list[int]
) -> None:
    rhythm, found = EvaluationSchedule(count, every), []
    for step in range(1, steps + 1):
        control = SimpleNamespace(should_evaluate=False, should_save=False)
        rhythm.on_step_end(None, SimpleNamespace(global_step=step, max_steps=steps), control)
        assert control.should_evaluate == control.should_save
        found += [step] * control.should_evaluate
    assert found == due


def test_the_second_signal_stops_at_once_unless_it_is_the_first_one_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(watch, "time", SimpleNamespace(monotonic=clock))
    before = signal.getsignal(signal.SIGINT)
    with GracefulStop() as stopper:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # a launcher that passes it on
        assert not stopper.stopped
        clock.now += 1.1
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before


def test_a_tracker_that_is_not_there_is_named_before_anything_starts() -> None:
    check_reporters(["tensorboard"])
    with pytest.raises(RewriteError, match="report_to knows tensorboard, wandb, mlflow, trackio, not 'tensorbord'"):
        check_reporters(["tensorboard", "tensorbord"])
    absent = [name for name in TRACKERS if find_spec(name) is None]
    if absent:
        with pytest.raises(RewriteError, match=f"{absent[0]} is not installed; run `pip install {absent[0]}`"):
            check_reporters(absent)


def test_no_terminal_obeys_what_is_shown_of_the_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = _example("red \x1b[31m | and a bell \x07 in München")
    watch.MetricsRecorder(MetricsLog(tmp_path, 0)).write_samples(
        4, {"score": 0.5}, [example], [Rewrite(("find hotels",))]
    )
    told = capsys.readouterr().err
    assert "| red [31m \\| and a bell in München | find hotels | find a hotel |" in told
    assert "\x1b" not in told + (tmp_path / "samples.md").read_text()


@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_estimate_counts_what_is_really_there(tiny_lm: Path, method: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    rows = build_rows(SHOWING, tokenizer, [_example("a room in Oslo")] * 4, 64)
    settings = SftSettings(method=method, lora=LoraSettings(rank=4, alpha=8), epochs=2, batch_size=2)  # type: ignore[arg-type]
    found = estimate(tiny_lm, settings, rows, torch.device("cpu"), half=False)
    model = AutoModelForCausalLM.from_pretrained(tiny_lm)
    everything = sum(each.numel() for each in model.parameters())
    assert found.parameters == everything
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    assert found.trained == sum(each.numel() for each in model.parameters() if each.requires_grad)
    assert found.seconds > 0
    assert found.free > 0
    first, second = found.lines()
    assert first.startswith(f"estimate: {everything / 1e6:.1f} million parameters")
    assert f"4 examples, {rows.tokens} tokens x 2 epochs" in second


def test_a_full_disk_is_told_whatever_library_meets_it() -> None:
    for said, code in (
        ("I/O error: File too large (os error 27)", 27),
        ("[enforce fail at inline_container.cc:1] .", 28),
    ):
        with pytest.raises(OSError, match=os.strerror(code)) as caught, disk_errors():
            raise RuntimeError(said)
        assert caught.value.errno == code
    with pytest.raises(RuntimeError, match="something else"), disk_errors():
        raise RuntimeError("something else")
