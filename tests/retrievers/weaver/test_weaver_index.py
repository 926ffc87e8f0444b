"""A ToolWeaver in an index folder: trained, killed, changed; and codes that never move."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from generative_toys import ACTING, DATA, IDS, TOOLS, TRAINING, WORDS, save_toy_model
from safetensors.torch import load_file
from weaver_toys import QUANTISER, QUICK, toolweaver

from retrievers.errors import BadInput
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.settings import GenerativeTraining
from retrievers.index import Index, add, build, remove, verify
from retrievers.index.in_memory import MemoryIndex, make_memory_segment
from retrievers.index.reader import open_kinds
from retrievers.index.tools import encode
from retrievers.kind import Context
from retrievers.registry import make_kind
from retrievers.text import document
from retrievers.types import Tool

DOCUMENTS = [document(tool) for tool in TOOLS]
PAIRED = replace(
    DATA, train=replace(DATA.train, queries=(*DATA.train.queries, "both"), gold=(*DATA.train.gold, (0, 1)))
)


def learn(model: Path, training: GenerativeTraining, work: Path, context: Context) -> Path:
    kind = make_kind(toolweaver(model, training), context)
    return kind.train_tools(TOOLS, DOCUMENTS, [PAIRED], work)  # type: ignore[attr-defined, no-any-return]


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def branches(folder: Path, context: Context) -> dict[str, tuple[int, ...]]:
    retriever = Index(folder, context).retriever("toolweaver")
    assert isinstance(retriever, GenerativeRetriever)
    return dict(retriever.branches)


@pytest.fixture(scope="module")
def toy_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_toy_model(tmp_path_factory.mktemp("models") / "toy")


@pytest.fixture(scope="module")
def taught(toy_lm: Path, context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(toy_lm, ACTING, tmp_path_factory.mktemp("toolweaver") / "work", context)


def test_all_stages_and_the_codes_report(taught: Path) -> None:
    facts = json.loads((taught / "training.json").read_text())
    assert [facts["stages"][name]["examples"] for name in ("memorise", "retrieve", "agent")] == [8, 49, 16]
    assert facts["new tokens"] == 12
    assert facts["parameters added"] == 12 * 64
    codes = facts["codes"]
    assert (codes["tools"], codes["tokens"], codes["tools that share a code"]) == (8, 12, 0)
    assert len(codes["entropy by level"]) == 3
    assert all(0 <= value <= 1 for value in codes["entropy by level"])
    assert codes["pairs used together"] == 1
    assert [path.name for path in taught.glob("*.safetensors")] == ["model.safetensors"]  # vLLM loads every one


def test_a_killed_run_goes_on_with_its_codes_and_ends_with_the_same_weights(
    taught: Path, toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    code = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import test_weaver_index as t
from killing import in_a_child
from pipelines.context import make_context
from retrievers.weaver.code_assignment import CodeAssignment
from retrievers.generative.training.loop import StageTrainer
one, write = StageTrainer._step, CodeAssignment.save
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def dying(number):
    steps = iter(range(1, number))
    def step(self, batch):
        if next(steps, None) is None:
            die()
        one(self, batch)
    return step
def run():
    t.learn(Path(sys.argv[4]), t.ACTING, Path(sys.argv[3]), make_context("cpu"))
CodeAssignment.save = die  # before the codes are kept
assert in_a_child(run) == -signal.SIGKILL
CodeAssignment.save = write
StageTrainer._step = dying(15)  # in the midst of an epoch of the second stage
assert in_a_child(run) == -signal.SIGKILL
"""
    work, here = tmp_path / "work", Path(__file__).parent
    words = [sys.executable, "-c", code, str(here), str(here.parent), str(work), str(toy_lm)]
    done = subprocess.run(words, capture_output=True, env={**os.environ})
    assert done.returncode == 0, done.stderr.decode()[-800:]
    assert (work / "1-memorise" / "done.json").exists()
    left, right = tensors(taught), tensors(learn(toy_lm, ACTING, work, context))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_code_tokens_begin_in_both_places_and_the_tokenizer_does_not_know_them(
    taught: Path, context: Context, tmp_path: Path
) -> None:
    untied = save_toy_model(tmp_path / "untied", tied=False)
    folder = learn(untied, QUICK, tmp_path / "work", context)
    before, after = tensors(untied), tensors(folder)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert len(after[name]) == len(before[name]) + 12
    language = LanguageModel(folder, "cpu")
    assert len(language.tokenizer) <= len(before["lm_head.weight"])
    assert max(language.chat.tokenize("0-1 <a_1> 2-3")) < len(before["lm_head.weight"])


def test_it_learns_words_that_mean_nothing_and_codes_of_others_never_move(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    folder = tmp_path / "index"
    training = replace(TRAINING, retrieve=replace(TRAINING.retrieve, epochs=16))
    settings = {"toolweaver": toolweaver(toy_lm, training)}
    build(folder, TOOLS, settings, context, training={"toolweaver": [PAIRED]})
    assert verify(folder) == []
    assert not (tmp_path / "index-training").exists()
    wanted = [f"one {word}" for word in WORDS]
    found = Index(folder, context).retriever("toolweaver").search(wanted, 8)
    assert sum(ranking.ids[0] == tool for ranking, tool in zip(found, IDS, strict=True)) >= 5
    first = branches(folder, context)
    # Twins of a known tool, and of each other: each gets a free code, in one addition and in several.
    twins = [replace(TOOLS[3], id=f"twin{i}") for i in range(20)]
    add(folder, twins[:3], context)
    now = branches(folder, context)
    assert len(set(now.values())) == 11
    for number in range(3, 20):  # segments are folded on the way
        before = branches(folder, context)
        add(folder, [twins[number]], context)
        now = branches(folder, context)
        assert before == {tool: now[tool] for tool in before}
    assert len(set(now.values())) == 28
    assert first == {tool: now[tool] for tool in first}
    # A removed tool cannot be said; the same tool, back again, has its code again.
    remove(folder, ["t0", *(f"twin{i}" for i in range(18))], context)
    kept = branches(folder, context)
    assert kept == {tool: now[tool] for tool in kept}
    for ranking in Index(folder, context).retriever("toolweaver").search(wanted, 40):
        assert sorted(ranking.ids) == sorted([*IDS[1:], "twin18", "twin19"])
    add(folder, [TOOLS[0]], context)
    assert branches(folder, context) == {**kept, "t0": first["t0"]}


def test_a_new_tool_is_found_at_once_and_trained_in_by_building_further(
    toy_lm: Path, context: Context, tmp_path: Path
) -> None:
    folder, new = tmp_path / "index", Tool("new", "mimsy_tool", "Does mimsy things.")
    build(folder, TOOLS, {"toolweaver": toolweaver(toy_lm, TRAINING)}, context, training={"toolweaver": [PAIRED]})
    add(folder, [new], context)
    (ranking,) = Index(folder, context).retriever("toolweaver").search([document(new)], 9)
    assert "new" in ranking.ids
    codes = branches(folder, context)
    size = len(tensors(next(folder.glob("toolweaver-model-*")))["model.embed_tokens.weight"])
    more = replace(
        PAIRED, train=replace(PAIRED.train, queries=(*PAIRED.train.queries, "a mimsy"), gold=(*PAIRED.train.gold, (8,)))
    )
    more = replace(more, ids=(*IDS, "new"), documents=(*DATA.documents, new.description))
    further = replace(
        TRAINING, memorise=replace(TRAINING.memorise, epochs=8), retrieve=replace(TRAINING.retrieve, epochs=8)
    )
    again = {"toolweaver": toolweaver(toy_lm, further)}
    build(folder, [*TOOLS, new], again, context, training={"toolweaver": [more]}, resume=True)
    index = Index(folder, context)
    assert index.retriever("toolweaver").search(["a mimsy"], 1)[0].ids == ("new",)
    after = tensors(folder / index.manifest.retrievers["toolweaver"].model)
    assert len(after["model.embed_tokens.weight"]) == size  # a tool costs no row
    assert branches(folder, context) == codes
    model = folder / index.manifest.retrievers["toolweaver"].model
    kind = make_kind(toolweaver(toy_lm, further), context, model)
    kind.see_existing_rows(index.blocks("toolweaver"))  # type: ignore[attr-defined]
    later = [replace(new, id=f"later{i}") for i in range(3)]
    rows = kind.tool_rows(later, [document(tool) for tool in later])["codes"].tolist()  # type: ignore[attr-defined]
    taken = [row for block in index.blocks("toolweaver") for row in block.arrays["codes"].tolist()]
    assert len({tuple(row) for row in [*rows, *taken]}) == 12  # free ones
    wider = {"toolweaver": toolweaver(toy_lm, further, replace(QUANTISER, codebook_size=8))}
    with pytest.raises(BadInput, match="was trained with 3 levels of 4 codes, got 3 of 8"):
        build(folder, [*TOOLS, new], wider, context, training={"toolweaver": [more]}, resume=True)


def test_in_memory_later_tools_have_codes_of_their_own_as_well(toy_lm: Path, context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "index"
    build(folder, TOOLS, {"toolweaver": toolweaver(toy_lm, QUICK)}, context, training={"toolweaver": [PAIRED]})
    manifest = Index(folder, context).manifest

    def lines(*tools: Tool) -> list[str]:
        return encode(tools).decode().rstrip("\n").split("\n")

    kinds = open_kinds("memory", folder, manifest, context)
    run = make_memory_segment("memory", lines(*TOOLS), manifest.text, kinds)
    memory = MemoryIndex("memory", manifest, "0", [run], folder, context)
    found = []
    for number in range(3):
        twin = replace(TOOLS[0], id=f"twin{number}")
        memory = memory.with_changes(lines(twin), frozenset(), str(number), context)
        retriever = memory.retriever("toolweaver")
        assert isinstance(retriever, GenerativeRetriever)
        found.append(dict(retriever.branches))
    assert len(set(found[-1].values())) == 11
    assert found[0].items() < found[1].items() < found[2].items()


def test_what_cannot_be_is_refused(toy_lm: Path, context: Context, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has to be trained when it is built"):
        build(tmp_path / "untrained", TOOLS, {"toolweaver": toolweaver(toy_lm)}, context)
    narrow = toolweaver(toy_lm, QUICK, replace(QUANTISER, levels=2, codebook_size=2))
    with pytest.raises(BadInput, match=r"room for 4 tools, not 8; raise quantiser\.codebook_size"):
        build(tmp_path / "narrow", TOOLS, {"toolweaver": narrow}, context, training={"toolweaver": [PAIRED]})
