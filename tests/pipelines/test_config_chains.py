"""Shipped configs fit together: the inputs of each command are written by another one.

Commands are those of the configs' own headers, of configs/expected.yaml, of the published figures and of the GPU jobs.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from paths import ROOT

from pipelines import config as configs
from pipelines.evaluate.attack_run import AttackConfig
from pipelines.evaluate.run import EvalConfig
from pipelines.index.build import IndexConfig
from pipelines.train.align import AlignConfig
from pipelines.train.encoder.settings import EncoderConfig
from pipelines.train.sampling import PairsConfig, ProbeConfig
from pipelines.train.sft import SftConfig
from pipelines.train.targets.build import TargetsConfig
from rewrite.align.settings import GrpoSettings, PpoSettings, RlooSettings

CONFIGS = ROOT / "configs"
KINDS: dict[str, type] = {
    "align": AlignConfig,
    "attack": AttackConfig,
    "encoder": EncoderConfig,
    "eval": EvalConfig,
    "index": IndexConfig,
    "pairs": PairsConfig,
    "probe": ProbeConfig,
    "sft": SftConfig,
    "targets": TargetsConfig,
}


FLAGS = r"(?:--set +(?:'[^']*'|\"[^\"]*\"|[^\s'\",;]+) *)"
USE = re.compile(rf"(configs/[\w/.-]+\.yaml) *((?:{FLAGS})*)|((?:{FLAGS})+)")


def _texts() -> Iterator[tuple[str, str]]:
    """Texts with commands, and the config that flags without one belong to."""
    for run in yaml.safe_load((CONFIGS / "expected.yaml").read_text())["runs"].values():
        yield run["command"], ""
    for path in (ROOT / "docs/figures").glob("*.json"):
        yield json.loads(path.read_text()).get("command", "").partition("; ")[0], ""
    for path in CONFIGS.rglob("*.yaml"):
        header = " ".join(line.lstrip("# ") for line in path.read_text().split("\n") if line.startswith("#"))
        yield header, str(path.relative_to(ROOT))
    make = ["make", "--no-print-directory", "-f", "benchmarks/gpu.mk"]
    jobs = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    done = subprocess.run([*make, "-n", *jobs], cwd=ROOT, check=True, capture_output=True, text=True)
    yield from ((line, "") for line in done.stdout.replace("\\\n", " ").split("\n"))


@cache
def _uses() -> set[tuple[str, tuple[str, ...]]]:
    """Config files with the --set flags that some command uses them with."""
    uses: set[tuple[str, tuple[str, ...]]] = set()
    for text, owner in _texts():
        for use in USE.finditer(text):
            path, flags = use[1] or owner, shlex.split(use[2] or use[3] or "")
            if path and path.split("/")[1] in KINDS:
                uses.add((path, tuple(flag for flag in flags if flag != "--set")))
    return uses


@cache
def _all(kind: str) -> dict[str, dict[str, Any]]:
    return {
        f"{path} {' '.join(flags)}": configs._simple(configs.load(ROOT / path, KINDS[kind], flags))
        for path, flags in _uses()
        if path.split("/")[1] == kind
    }


def _outputs(*kinds: str) -> set[str]:
    return {facts["output"] for kind in kinds for facts in _all(kind).values()}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_names_a_config_that_loads(kind: str) -> None:
    assert _all(kind)


@pytest.mark.parametrize("kind", ["sft", "align", "pairs", "probe"])
def test_targets_are_made_by_a_config(kind: str) -> None:
    made = _outputs("targets")
    for name, facts in _all(kind).items():
        assert {source["targets"] for source in facts["data"]} <= made, name


@pytest.mark.parametrize("kind", ["align", "pairs", "probe"])
def test_policies_come_from_a_training(kind: str) -> None:
    made = _outputs("sft", "align")
    for name, facts in _all(kind).items():
        start = facts["start"]
        assert start["path"] in made or (start["path"] is None and start["base"] and start["template"]), name


SAMPLE_INDEX = "bundled:sample"
SAMPLE = ("serve/sample.yaml", "batch/sample.yaml", "eval/sample-aligned.yaml")


def test_rewriters_that_are_evaluated_come_from_a_training() -> None:
    made = _outputs("sft", "align")
    for name, facts in _all("eval").items():
        block = [facts["rewriter"]] if facts["rewriter"] else []
        paths = {rewriter["path"] for rewriter in (*facts["rewriters"].values(), *block) if rewriter["path"]}
        assert paths <= made, name


def test_the_sample_is_served_batched_and_evaluated_by_one_block() -> None:
    """Index and rewriter of the block are those that `make demo-train` writes, in front of the same retriever."""
    files = [yaml.safe_load((CONFIGS / path).read_text()) for path in SAMPLE]
    block, *others = [{key: facts[key] for key in ("index", "retriever", "rewriter")} for facts in files]
    assert others == [block] * 2
    assert block["rewriter"]["path"] in _outputs("align")
    targets = yaml.safe_load((CONFIGS / "targets/sample.yaml").read_text())
    index = yaml.safe_load((CONFIGS / "index/sample.yaml").read_text())
    assert (targets["index"], targets["retriever"]) == (block["index"], block["retriever"])
    assert (index["index"], block["retriever"] in index["retrievers"]) == (block["index"], True)


def test_indexes_that_are_evaluated_are_built_by_a_config() -> None:
    made = {facts["index"] for facts in _all("index").values()} | {SAMPLE_INDEX}
    for name, facts in _all("eval").items():
        rows = [*facts["systems"].values(), *(facts["grid"] or {"retrievers": {}})["retrievers"].values()]
        assert {row["index"] or facts["index"] for row in rows} <= made, name


def test_trainings_do_not_share_a_folder() -> None:
    for kind in ("targets", "sft", "align"):
        outputs = [configs.load(path, KINDS[kind]).output for path in (CONFIGS / kind).glob("*.yaml")]
        assert len(set(outputs)) == len(outputs)


def test_alignment_on_held_out_queries_has_some() -> None:
    keys = ("hold_out_tools", "hold_out_queries")
    held = {facts["output"] for facts in _all("targets").values() if any(map(facts.get, keys))}
    used = {
        source["targets"]
        for facts in _all("align").values()
        for source in facts["data"]
        if source["split"] in ("align", "all")
    }
    assert used
    assert used <= held
    for facts in _all("align").values():
        start = next((sft for sft in _all("sft").values() if sft["output"] == facts["start"]["path"]), None)
        if start is not None and any(source["split"] == "align" for source in facts["data"]):
            # The same targets in both stages: queries of one are kept from the other.
            assert {source["targets"] for source in facts["data"]} <= {source["targets"] for source in start["data"]}


@pytest.mark.parametrize(
    ("text", "flags", "message"),
    [
        ("output: runs/<dataset>/eval\n", (), "name a data set with `--set dataset=NAME`"),
        ("dataset: toole\noutput: runs/eval\n", (), "unknown key dataset"),
        ("dataset: 5\noutput: runs/<dataset>/eval\n", ("output=x",), "name a data set with `--set dataset=NAME`"),
    ],
)
def test_a_dataset_is_filled_in_or_refused(text: str, flags: tuple[str, ...], message: str, tmp_path: Path) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text(text + "data: x\nsystems: {a: {retriever: bm25}}\n")
    with pytest.raises(configs.ConfigError, match=message):
        configs.load(path, EvalConfig, flags)


@pytest.mark.parametrize("dataset", ["dataset: toole\n", ""])
def test_flags_may_replace_every_place_of_the_dataset(dataset: str, tmp_path: Path) -> None:
    path = tmp_path / "eval.yaml"
    path.write_text(dataset + "output: runs/<dataset>/eval\ndata: x\nsystems: {a: {retriever: bm25}}\n")
    assert configs.load(path, EvalConfig, ["output=elsewhere"]).output == "elsewhere"


def test_a_dataset_is_filled_in_everywhere() -> None:
    config = configs.load(CONFIGS / "eval/grid.yaml", EvalConfig, ["dataset=toole"])
    assert config.data == "data/toole"
    assert config.rewriters["sft"].path == "runs/without-toole/sft"
    assert config.grid
    assert config.grid.retrievers["toolgen"].index == "runs/toole/learned"


def _sampled_answers(config: AlignConfig) -> float:
    """Answers that an alignment samples."""
    algo = config.algo
    if isinstance(algo, PpoSettings):
        return config.queries * config.training.epochs
    if isinstance(algo, GrpoSettings | RlooSettings):
        return config.queries * config.training.epochs * algo.answers
    return config.queries * algo.samples.answers


def test_alignments_of_toollens_can_be_compared() -> None:
    """They share start, queries, reward, dev and the number of answers: what differs is the algorithm."""
    names = ("bestofn", "dpo", "grpo", "rloo", "ppo")
    loaded = [configs.load(CONFIGS / f"align/toollens-{name}.yaml", AlignConfig) for name in names]
    shared = [
        (config.start, config.data, config.queries, config.reward, config.evaluation, config.collapse, config.backend)
        for config in loaded
    ]
    training = [(config.training.evaluations, config.training.blends, config.training.seed) for config in loaded]
    assert all(facts == shared[0] for facts in shared)
    assert all(facts == training[0] for facts in training)
    assert {_sampled_answers(config) for config in loaded} == {32_768}
    for name in names:
        assert "# 32,768 answers" in (CONFIGS / f"align/toollens-{name}.yaml").read_text()
