"""Ctrl-C, kill -9 in the midst of a checkpoint, a full disk: a run goes on, and ends as if nothing had been.

All of it is real. A driver process forks a child for every leg of a run; the child runs the command and is stopped,
killed or left without room. What it leaves behind is looked at in the tests.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from paths import ROOT
from tiny_runs import make_targets, sft_config
from waiting import until

KILLS = {
    "weights written": ("transformers.trainer", "Trainer._save_optimizer_and_scheduler", 0),
    "state half written": ("transformers.trainer_callback", "TrainerState.save_to_json", 200),
    "old one being removed": ("transformers.trainer", "rotate_checkpoints", 0),
}
"""Where in the second checkpoint the child dies: before this function, or when it has written this many bytes."""
LIMITS = {"weights": ("lora", 16_000), "tokenizer": ("lora", 64_000), "optimizer": ("full", 4_000_000)}
"""What does not fit on the disk: the method, and the bytes that a file may have."""


class Leg(NamedTuple):
    """The end of one process."""

    code: int
    output: str
    steps: list[int]
    """Of the whole checkpoints it left."""


# What runs in the driver.


def _leg(config: str, words: list[str], before: Callable[[], object], meanwhile: Callable[[int], object]) -> Leg:
    """Runs the command in a child of its own."""
    from pipelines.cli import main as cli
    from rewrite.sft import checkpoints

    output = Path(config).with_suffix("")
    log = Path(f"{config}.log")
    child = os.fork()
    if child == 0:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        before()
        code = cli.train(["sft", config, "--device", "cpu", *words])
        sys.stdout.flush()
        os._exit(code)
    meanwhile(child)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    whole = [path for path in output.glob("checkpoints/checkpoint-*") if checkpoints.read_state(path)]
    return Leg(code, log.read_text(), sorted(int(path.name.rpartition("-")[2]) for path in whole))


def _finish(config: str) -> Leg:
    return _leg(config, ["--resume"], lambda: None, lambda child: None)


def _state(config: str) -> dict[str, str]:
    """The hashes of a run's weights, and the steps in its log."""
    output = Path(config).with_suffix("")
    files = [output / "rewriter", output / "checkpoints" / "checkpoint-8"]
    weights = [hashlib.sha256((item / "adapter_model.safetensors").read_bytes()).hexdigest() for item in files]
    rows = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if "train_runtime" not in row]
    return {"rewriter": weights[0], "last": weights[1], "steps": str(steps)}


def _when_begun(config: str, number: int) -> Callable[[int], None]:
    """Sends a signal when the first step is logged."""

    def send(child: int) -> None:
        printed = Path(config).with_suffix("") / "metrics.jsonl"
        try:
            until(lambda: printed.is_file() and printed.stat().st_size, 0.01)
        except AssertionError:
            os.kill(child, signal.SIGKILL)  # it hangs, and would hang on
            raise
        os.kill(child, number)

    return send


def _dying(directory: tuple[str, str, int]) -> Callable[[], None]:
    """Lets the process kill itself in the midst of its second checkpoint."""

    def before() -> None:
        import importlib

        module, name, written = directory
        owner: Any = importlib.import_module(module)
        *way, last = name.split(".")
        for item in way:
            owner = getattr(owner, item)
        plain, calls = getattr(owner, last), []

        def deadly(*arguments: Any, **settings: Any) -> Any:
            calls.append(1)
            if len(calls) == 2:
                if written:
                    plain(*arguments, **settings)
                    os.truncate(arguments[1], written)
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*arguments, **settings)

        setattr(owner, last, deadly)

    return before


def _cramped(size: int) -> Callable[[], None]:
    """Leaves no room for large files from the second evaluation on."""

    def before() -> None:
        from pipelines.train.dev_evaluator import DevEvaluator

        plain, calls = DevEvaluator.__call__, []

        def judged(self: DevEvaluator, rewrites: Any) -> dict[str, float]:
            calls.append(1)
            if len(calls) == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            return plain(self, rewrites)

        DevEvaluator.__call__ = judged  # type: ignore[method-assign]

    return before


def _measure_speed(config: str) -> None:
    """Measures this machine once for all children, each of which would take half a second for its estimate."""
    import torch

    from pipelines.config import load
    from pipelines.train.sft import SftConfig
    from pipelines.train.sources import read_targets
    from rewrite.sft.estimate import estimate
    from rewrite.sft.models import load_training_tokenizer
    from rewrite.sft.rows import build_rows

    settings = load(Path(config), SftConfig)
    [source], template = read_targets(settings.data)
    base, training = Path(settings.base), settings.training
    rows = build_rows(template, load_training_tokenizer(base), source.train, training.max_tokens)
    estimate(base, training, rows, torch.device("cpu"), half=False)


def drive(folder: Path, base: Path, cache: Path) -> None:
    """Every scenario, one after the other."""
    import rewrite.sft.train  # noqa: F401 - once, before the children are forked

    os.environ["TOOLREWRITE_CACHE"] = str(cache)
    targets = make_targets(folder)
    gc.freeze()  # what is loaded by now is no child's garbage
    result: dict[str, Any] = {}

    def config(name: str, **training: Any) -> str:
        more = {"keep_checkpoints": True} | training  # the last one is compared, too
        return sft_config(targets, base, folder / name.replace(" ", "-"), **more)

    straight = config("straight")
    _measure_speed(straight)
    result["straight"] = [_leg(straight, [], lambda: None, lambda child: None), _state(straight)]
    for number in (signal.SIGINT, signal.SIGTERM):
        stopped = config(f"stopped {number.name}")
        legs = [_leg(stopped, [], lambda: None, _when_begun(stopped, number)), _finish(stopped)]
        result[number.name] = [*legs, _state(stopped)]
    for name, directory in KILLS.items():
        killed = config(name)
        result[name] = [_leg(killed, [], _dying(directory), lambda child: None), _finish(killed), _state(killed)]
    chance, killed = random.Random(0), config("killed at random")
    kills = []
    for _ in range(2):
        delay = chance.uniform(0.5, 3.0)
        kills.append(
            _leg(killed, ["--resume"], lambda: None, lambda child: (time.sleep(delay), os.kill(child, signal.SIGKILL)))  # noqa: B023
        )
    result["killed at random"] = [*kills, _finish(killed), _state(killed)]
    for name, (method, size) in LIMITS.items():
        full = config(f"no room for {name}", method=method)
        result[f"no room for {name}"] = [_leg(full, [], _cramped(size), lambda child: None), _finish(full)]
    (folder / "found.json").write_text(json.dumps(result))


# What runs in the tests.


@pytest.fixture(scope="module")
def result(tiny_lm: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("driven")
    code = (
        f"import sys; from pathlib import Path; sys.path.append({str(Path(__file__).parent)!r})\n"
        "from test_sft_survives import drive; drive(*map(Path, sys.argv[1:]))"
    )
    words = [sys.executable, "-c", code, str(folder), str(tiny_lm), str(cache)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    scenarios: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return {
        name: [Leg(*part) if isinstance(part, list) else part for part in parts] for name, parts in scenarios.items()
    }


def test_an_undisturbed_run_ends_well(result: dict[str, Any]) -> None:
    leg, state = result["straight"]
    assert leg.code == 0, leg.output
    assert "Traceback" not in leg.output
    assert state["steps"] == "[1, 4, 8]"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_leaves_a_checkpoint_that_resumes(result: dict[str, Any], name: str) -> None:
    stopped, resumed, state = result[name]
    assert stopped.code == 130, stopped.output
    assert "a checkpoint is kept, resume with `--resume`" in stopped.output.splitlines()[-1]
    assert "Traceback" not in stopped.output
    assert len(stopped.steps) >= 1
    assert resumed.code == 0, resumed.output
    assert state == result["straight"][-1]


@pytest.mark.parametrize("name", KILLS)
def test_killed_in_the_midst_of_a_checkpoint_goes_on_from_the_one_before(result: dict[str, Any], name: str) -> None:
    killed, resumed, state = result[name]
    assert killed.code == -signal.SIGKILL, killed.output
    assert 4 in killed.steps
    assert resumed.code == 0, resumed.output
    assert state == result["straight"][-1]


def test_killed_at_random_moments_ends_as_if_nothing_had_been(result: dict[str, Any]) -> None:
    *kills, resumed, state = result["killed at random"]
    assert all(leg.code in (-signal.SIGKILL, 0) for leg in kills)
    assert resumed.code == 0, resumed.output
    assert state == result["straight"][-1]


@pytest.mark.parametrize("name", LIMITS)
def test_a_full_disk_keeps_the_last_whole_checkpoint(result: dict[str, Any], name: str) -> None:
    cramped, resumed = result[f"no room for {name}"]
    assert cramped.code == 2, cramped.output
    assert "no room left to write in" in cramped.output.splitlines()[-1]
    assert "Traceback" not in cramped.output
    assert cramped.steps == [4]
    assert resumed.code == 0, resumed.output
