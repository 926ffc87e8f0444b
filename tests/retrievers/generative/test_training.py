"""A language model that learns tools: three stages, real training of a tiny model, real kills."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generative_toys import ACTING, DATA, IDS, TOOLS, TRAINING, WORDS, save_toy_model, toolgen
from safetensors.torch import load_file

from retrievers.errors import BadInput
from retrievers.generative.settings import GenerativeTraining, Stage
from retrievers.index import Index, add, build, remove, verify
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import document
from retrievers.types import Tool

DOCUMENTS = [document(tool) for tool in TOOLS]


def learn(model: Path, training: GenerativeTraining, work: Path, context: Context, indexing: str = "atomic") -> Path:
    kind = make_kind(toolgen(model, training, indexing), context)
    return kind.train_tools(TOOLS, DOCUMENTS, [DATA], work)  # type: ignore[attr-defined, no-any-return]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def taught(toy_lm: Path, context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(toy_lm, ACTING, tmp_path_factory.mktemp("toolgen") / "work", context)


def test_all_three_stages_report_and_it_learns_words_that_mean_nothing(taught: Path) -> None:
    facts = json.loads((taught / "training.json").read_text())
    assert facts["stages"].keys() == {"memorise", "retrieve", "agent"}
    assert [facts["stages"][name]["examples"] for name in facts["stages"]] == [8, 48, 16]
    assert facts["stages"]["memorise"]["history"][-1]["loss"] < facts["stages"]["memorise"]["history"][0]["loss"]
    assert max(row["recall@5"] for row in facts["stages"]["retrieve"]["history"]) > 0.9
    assert facts["new tokens"] == 8
    assert facts["parameters added"] == 8 * 64
    assert facts["tied"]


def test_a_killed_run_goes_on_and_ends_with_the_same_weights(
    taught: Path, toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import test_training as t
from killing import in_a_child
from pipelines.context import make_context
from retrievers.generative.training.loop import StageTrainer
one = StageTrainer._step
def dying(number):
    steps = iter(range(1, number))
    def step(self, batch):
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        one(self, batch)
    return step
for number in (2, 15, 26):  # in the first stage, in the midst of an epoch of the second one, and in the last one
    StageTrainer._step = dying(number)
    code = in_a_child(lambda: t.learn(Path(sys.argv[4]), t.ACTING, Path(sys.argv[3]), make_context("cpu")))
    assert code == -signal.SIGKILL, (number, code)
"""
    work, here = tmp_path / "work", Path(__file__).parent
    words = [sys.executable, "-c", code, str(here), str(here.parent), str(work), str(toy_lm)]
    done = subprocess.run(words, capture_output=True, env={**os.environ})
    assert done.returncode == 0, done.stderr.decode()[-800:]
    assert (work / "2-retrieve" / "done.json").exists()
    assert not (work / "3-agent" / "done.json").exists()
    left, right = tensors(taught), tensors(learn(toy_lm, ACTING, work, context))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_new_rows_begin_as_the_tools_name_in_what_is_read_and_in_what_is_said(context: Context, tmp_path: Path) -> None:
    from retrievers.generative.decoding.language_model import LanguageModel, extend_vocabulary, load_model

    untied_lm = save_toy_model(tmp_path / "untied", tied=False)
    arrays = make_kind(toolgen(untied_lm), context).tool_rows(TOOLS, DOCUMENTS)  # type: ignore[attr-defined]
    language = LanguageModel(untied_lm, "cpu")
    for row, word in enumerate(WORDS):
        name = language.chat.tokenize(f"{word} tool")
        assert torch.allclose(torch.from_numpy(arrays["inputs"][row]), language.inputs[name].mean(dim=0), atol=1e-6)
        assert torch.allclose(torch.from_numpy(arrays["outputs"][row]), language.outputs[name].mean(dim=0), atol=1e-6)
    model = load_model(untied_lm)
    assert not extend_vocabulary(model, arrays["inputs"], arrays["outputs"])
    assert torch.equal(model.get_output_embeddings().weight[-8:], torch.from_numpy(arrays["outputs"]))
    assert torch.equal(model.get_input_embeddings().weight[-8:], torch.from_numpy(arrays["inputs"]))


def test_stages_can_be_skipped(toy_lm: Path, context: Context, tmp_path: Path) -> None:
    only = replace(TRAINING, memorise=Stage(epochs=0), retrieve=replace(TRAINING.retrieve, epochs=1))
    facts = json.loads((learn(toy_lm, only, tmp_path / "work", context) / "training.json").read_text())
    assert facts["stages"]["memorise"] == facts["stages"]["agent"] == "skipped"
    assert len(facts["stages"]["retrieve"]["history"]) == 1


def test_adapters_leave_every_old_row_as_it_was(toy_lm: Path, context: Context, tmp_path: Path) -> None:
    training = replace(TRAINING, method="lora", lora_rank=4, retrieve=replace(TRAINING.retrieve, epochs=1))
    before, after = tensors(toy_lm), tensors(learn(toy_lm, training, tmp_path / "work", context))
    name = "model.embed_tokens.weight"
    assert torch.equal(after[name][: len(before[name])], before[name])
    assert not torch.equal(after["model.layers.0.mlp.up_proj.weight"], before["model.layers.0.mlp.up_proj.weight"])
    assert after.keys() == before.keys()


def test_a_data_set_of_other_tools_is_refused(toy_lm: Path, context: Context, tmp_path: Path) -> None:
    kind = make_kind(toolgen(toy_lm, TRAINING), context)
    with pytest.raises(BadInput, match=r"lacks tools of the data set toy \(t7\)"):
        kind.train_tools(TOOLS[:7], DOCUMENTS[:7], [DATA], tmp_path / "work")  # type: ignore[attr-defined]


@pytest.mark.parametrize("indexing", ["atomic", "semantic", "numeric", "hierarchical"])
def test_every_indexing_is_trained_sealed_changed_and_searched(
    indexing: str, toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    training = replace(TRAINING, retrieve=replace(TRAINING.retrieve, epochs=12))
    settings = {"toolgen": toolgen(toy_lm, training, indexing)}
    build(folder, TOOLS, settings, context, training={"toolgen": [DATA]})
    assert verify(folder) == []
    assert not (tmp_path / "index-training").exists()
    wanted = [f"one {word}" for word in WORDS]
    found = Index(folder, context).retriever("toolgen").search(wanted, 8)
    assert sum(ranking.ids[0] == tool for ranking, tool in zip(found, IDS, strict=True)) >= 6
    assert all(sorted(ranking.ids) == sorted(IDS) for ranking in found)
    remove(folder, ["t0"], context)
    add(folder, [Tool("new", "weather_forecast", "Tells tomorrow's weather.")], context)
    found = Index(folder, context).retriever("toolgen").search(wanted, 10)
    assert all(sorted(ranking.ids) == sorted([*IDS[1:], "new"]) for ranking in found)


def test_a_new_tool_is_found_at_once_and_trained_in_by_building_further(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    folder, new = tmp_path / "index", Tool("new", "mimsy_tool", "Does mimsy things.")
    settings = {"toolgen": toolgen(toy_lm, TRAINING)}
    build(folder, TOOLS, settings, context, training={"toolgen": [DATA]})
    add(folder, [new], context)
    # Untrained, it answers to its own document at least as strongly as others do to theirs.
    (ranking,) = Index(folder, context).retriever("toolgen").search([document(new)], 9)
    assert ranking.ids.index("new") < 5
    before = tensors(next(folder.glob("toolgen-model-*")))
    more = replace(
        DATA, train=replace(DATA.train, queries=(*DATA.train.queries, "a mimsy"), gold=(*DATA.train.gold, (8,)))
    )
    more = replace(more, ids=(*IDS, "new"), documents=(*DATA.documents, new.description))
    further = replace(
        TRAINING, memorise=replace(TRAINING.memorise, epochs=8), retrieve=replace(TRAINING.retrieve, epochs=4)
    )
    again = {"toolgen": toolgen(toy_lm, further)}
    build(folder, [*TOOLS, new], again, context, training={"toolgen": [more]}, resume=True)
    index = Index(folder, context)
    assert index.retriever("toolgen").search(["a mimsy"], 1)[0].ids == ("new",)
    after = tensors(folder / index.manifest.retrievers["toolgen"].model)
    rows = "model.embed_tokens.weight"
    assert len(after[rows]) == len(before[rows]) + 1
