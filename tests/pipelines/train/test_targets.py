"""Targets of a rewriter: best phrasings, order, abstention, held out tools, and an honest oracle."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import make_data, write

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.data.dataset import load_dataset
from pipelines.data.sample_data import SAMPLE
from pipelines.phrasing import NAMES, phrase
from pipelines.search import ToolSearch
from pipelines.train.sources import AlignSource, read_align_data
from pipelines.train.targets import build
from pipelines.train.targets.build import Targets, make_targets
from pipelines.train.targets.settings import TargetsConfig
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.kind import Context
from rewrite.sft.examples import read_examples
from rewrite.types import Answer


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> TargetsConfig:
    """Targets of the bundled sample for BM25."""
    folder = tmp_path_factory.mktemp("targets")
    index = {"index": f"{folder}/index", "catalogue": SAMPLE, "retrievers": {"bm25": {"kind": "bm25"}}}
    assert cli.index(["build", write(folder / "index.yaml", index)]) == 0
    return TargetsConfig(f"{folder}/out", SAMPLE, f"{folder}/index", "bm25", max_eval_queries=80)


@pytest.fixture(scope="module")
def made(config: TargetsConfig, context: Context) -> Targets:
    return make_targets(config, context)


@pytest.fixture(scope="module")
def search(config: TargetsConfig, context: Context) -> ToolSearch:
    return ToolSearch(Index(Path(config.index), context), "bm25")


def _place(search: ToolSearch, line: str, tool: str) -> int:
    (ranking,) = search.retrieve([line], 100)
    return ranking.ids.index(tool) if tool in ranking.ids else 100


def test_every_tool_is_said_in_the_phrasing_that_finds_it_best(made: Targets, search: ToolSearch) -> None:
    tools = {tool.id: tool for tool in load_dataset(SAMPLE).tools}
    most = made.template.max_characters
    single = [example for example in made.splits["train"] if len(example.gold) == 1][:20]
    assert single
    for example in single:
        ways = [phrase(tools[example.gold[0]], name, most, search.fields) for name in NAMES]
        assert example.lines[0] in [made.template.clean(way) for way in ways]
        assert _place(search, example.lines[0], example.gold[0]) == min(
            _place(search, way, example.gold[0]) for way in ways
        )


def test_one_phrasing_for_the_whole_set_is_the_best_on_average(config: TargetsConfig, context: Context) -> None:
    made = make_targets(replace(config, phrasing_choice="set"), context)
    output = made.facts["phrasings"]
    assert made.facts["phrasing"] == max(output, key=lambda name: output[name])
    tools = {tool.id: tool for tool in load_dataset(SAMPLE).tools}
    style, most = made.facts["phrasing"], made.template.max_characters
    for example in made.splits["dev"][:20]:
        assert set(example.lines) == {made.template.clean(phrase(tools[t], style, most)) for t in example.gold}


def test_any_phrasing_is_drawn_anew_for_every_query_and_draw(
    config: TargetsConfig, context: Context, search: ToolSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_for = {"phrasing_choice": "any", "draws": 3, "order": "id"}
    made = make_targets(replace(config, **asked_for), context)  # type: ignore[arg-type]
    tools = {tool.id: tool for tool in load_dataset(SAMPLE).tools}
    clean, most = made.template.clean, made.template.max_characters
    ways = {
        tool: {name: clean(phrase(tools[tool], name, most, search.fields)) for name in NAMES}
        for tool in {tool for example in made.splits["train"] for tool in example.gold}
    }
    drawn = Counter[str]()
    for example in made.splits["train"]:
        for tool, line in zip(example.gold, example.lines, strict=True):
            drawn.update(name for name, way in ways[tool].items() if way == line)
    assert set(drawn) == set(NAMES)
    assert min(drawn.values()) > len(made.splits["train"]) / len(NAMES) / 2  # none is preferred
    counts = Counter(example.id for example in made.splits["train"])
    assert set(counts.values()) == {3}
    for query in counts:
        draws = [example for example in made.splits["train"] if example.id == query]
        for directory, tool in enumerate(draws[0].gold):
            if len(set(ways[tool].values())) == len(NAMES):
                assert len({example.lines[directory] for example in draws}) == 3
    assert {made.facts["phrasing_choice"], made.facts["draws"]} == {"any", 3}
    assert len({example.id for example in made.splits["dev"]}) == len(made.splits["dev"])
    assert made.facts["unshown"] == {}
    # One query is one query for alignment, however often fine-tuning meets it.
    facts = {
        "output": str(tmp_path),
        "data": SAMPLE,
        "index": config.index,
        "retriever": "bm25",
        "max_eval_queries": 80,
    }
    assert cli.train(["targets", write(tmp_path / "any.yaml", facts | asked_for)]) == 0
    assert "phrasings (drawn at random): path" in capsys.readouterr().out
    assert read_examples(tmp_path / "train.jsonl") == made.splits["train"]
    queries = read_align_data([AlignSource(str(tmp_path))], 0, 0).queries
    assert sorted(query.example.id for query in queries) == sorted(counts)


@pytest.mark.parametrize(
    "wrong",
    [
        {"draws": 2},
        {"draws": 2, "phrasing_choice": "any", "target_style": "own-words"},
    ],
)
def test_several_draws_are_for_any_phrasing(config: TargetsConfig, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="several draws need `phrasing_choice: any`"):
        replace(config, **wrong)


def test_candidates_in_any_phrasing_are_refused_in_one_sentence(
    config: TargetsConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = {
        "output": str(tmp_path),
        "data": SAMPLE,
        "index": config.index,
        "retriever": "bm25",
        "phrasing_choice": "any",
    }
    assert cli.train(["targets", write(tmp_path / "any.yaml", facts), "--set", "template=pick"]) == 2
    error = "the template pick shows candidates: it needs `phrasing_choice: set`, got 'any'"
    assert capsys.readouterr().err == f"rewrite-train: {error}\n"


def test_a_perfect_rewriter_is_at_least_as_good_as_the_raw_query(made: Targets) -> None:
    for split in ("dev", "test"):
        for metric, value in made.facts["raw"][split].items():
            assert made.facts["oracle"][split][metric] >= value
    assert made.facts["oracle"]["dev"]["recall@5"] > made.facts["raw"]["dev"]["recall@5"]


def test_targets_are_always_the_same(made: Targets, config: TargetsConfig, context: Context) -> None:
    assert make_targets(config, context) == made
    assert make_targets(replace(config, seed=1, max_examples=50), context).splits["train"] != made.splits["train"]


def test_every_target_is_read_as_it_was_written(made: Targets) -> None:
    for example in made.splits["train"]:
        assert 1 <= len(example.lines) <= made.template.max_lines
        read = made.template.parse(Answer(made.template.write(example.lines), 0))
        assert read.lines == tuple(dict.fromkeys(example.lines))


def test_lines_come_in_the_order_that_was_asked_for(
    config: TargetsConfig, context: Context, search: ToolSearch
) -> None:
    orders = {
        order: {
            item.id: item
            for item in make_targets(replace(config, phrasing_choice="set", order=order), context).splits["train"]  # type: ignore[arg-type]
        }
        for order in ("id", "rank")
    }
    several = [item for item in orders["rank"].values() if len(set(item.lines)) > 2]
    assert several
    by_id = {query: dict(zip(item.lines, item.gold, strict=True)) for query, item in orders["id"].items()}
    for example in several[:20]:
        (raw,) = search.retrieve([example.utterance], 100)
        ranks = [raw.ids.index(tool) if tool in raw.ids else 100 for tool in map(by_id[example.id].get, example.lines)]
        assert ranks == sorted(ranks)


def test_only_served_queries_are_left_alone_and_no_more_than_the_share(
    config: TargetsConfig, context: Context, search: ToolSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "SERVED_RANK", 3)
    made = make_targets(replace(config, abstain=0.1), context)
    silent = [example for example in made.splits["train"] if not example.lines]
    assert 0 < len(silent) <= 0.1 * len(made.splits["train"])
    assert made.facts["abstained"] == len(silent)
    for example, ranking in zip(silent, search.retrieve([item.utterance for item in silent], 3), strict=True):
        assert set(example.gold) <= set(ranking.ids)
    assert all(example.lines for example in made.splits["dev"])


def test_held_out_tools_are_met_in_align_alone(config: TargetsConfig, context: Context, made: Targets) -> None:
    held = make_targets(replace(config, hold_out_tools=0.3), context).splits
    assert held["align"]
    known = {tool for example in held["train"] for tool in example.gold}
    assert all(set(example.gold) - known for example in held["align"])
    assert {item.id for item in held["train"]} | {item.id for item in held["align"]} == {
        item.id for item in made.splits["train"]
    }
    assert not {item.id for item in held["train"]} & {item.id for item in held["align"]}


def test_held_out_queries_are_met_in_align_alone(config: TargetsConfig, context: Context, made: Targets) -> None:
    halves = make_targets(replace(config, hold_out_queries=0.5), context).splits
    ids = {split: {item.id for item in halves[split]} for split in ("train", "align")}
    assert not ids["train"] & ids["align"]
    assert ids["train"] | ids["align"] == {item.id for item in made.splits["train"]}
    assert abs(len(ids["train"]) - len(ids["align"])) <= 1
    both = make_targets(replace(config, hold_out_queries=0.5, hold_out_tools=0.3), context).splits
    known = {tool for example in both["train"] for tool in example.gold}
    assert any(set(example.gold) - known for example in both["align"])
    assert any(set(example.gold) <= known for example in both["align"])
    with pytest.raises(BadInput, match="hold_out_queries must be less than 1, got 1"):
        configs.parse(TargetsConfig, {"output": "", "data": "", "index": "", "hold_out_queries": 1.0})


def test_no_more_examples_are_made_than_asked_for(config: TargetsConfig, context: Context, made: Targets) -> None:
    few = make_targets(replace(config, max_examples=30), context)
    assert len(few.splits["train"]) == 30
    assert few.facts["left_out"] == len(made.splits["train"]) - 30


def test_candidates_are_what_the_raw_query_finds(config: TargetsConfig, context: Context, search: ToolSearch) -> None:
    with pytest.raises(BadInput, match="phrasing_choice: set"):
        make_targets(replace(config, template="candidates"), context)
    shown = make_targets(replace(config, template="candidates", phrasing_choice="set", missing="skip"), context)
    data = load_dataset(SAMPLE)
    tools = {tool.id: tool for tool in data.tools}
    assert shown.facts["unshown"]["train"] == len(data.gold["train"]) - len(shown.splits["train"]) > 0
    assert len(shown.splits["dev"]) == 80  # dev keeps what it cannot show: it is asked all the same
    assert any(not example.lines for example in shown.splits["dev"])
    for example in shown.splits["dev"][:10]:
        (raw,) = search.retrieve([example.utterance], 10)
        style = shown.facts["phrasing"]
        texts = [phrase(tools[tool], style, shown.template.max_characters, search.fields) for tool in raw.ids]
        assert list(example.candidates) == texts
        assert set(example.lines) <= {shown.template.clean(text) for text in texts}


def test_own_words_say_nothing_of_the_catalogue(config: TargetsConfig, context: Context) -> None:
    own = make_targets(replace(config, target_style="own-words", max_examples=60), context)
    spoken_text = [example for example in own.splits["train"] if example.lines]
    assert spoken_text
    for example in spoken_text:
        words = set(re.findall(r"\w+", example.utterance.casefold()))
        for line in example.lines:
            if len(line) > own.template.max_characters - 20:
                line = line.rpartition(" ")[0]  # its last word may have been cut
            assert set(re.findall(r"\w+", line.casefold())) <= words
    for metric, value in own.facts["raw"]["dev"].items():
        assert own.facts["oracle_fused"]["dev"][metric] >= value - 0.05


def test_a_data_set_without_gold_or_of_other_tools_is_refused(
    config: TargetsConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = make_data(tmp_path / "small")
    settings = {"output": str(tmp_path / "out"), "data": str(data), "index": config.index, "retriever": "bm25"}
    path = write(tmp_path / "targets.yaml", settings)
    assert cli.train(["targets", path, "--device", "cpu"]) == 2
    assert "unlike the data set; build it from its corpus" in capsys.readouterr().err
    (data / "qrels" / "train.tsv").unlink()
    assert cli.train(["targets", path, "--device", "cpu"]) == 2
    assert "no training queries with gold tools" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_the_command_writes_what_was_made(
    made: Targets, config: TargetsConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {
        "output": str(tmp_path / "out"),
        "data": SAMPLE,
        "index": config.index,
        "retriever": "bm25",
    }
    path = write(tmp_path / "targets.yaml", settings | {"max_eval_queries": 80})
    for _ in range(2):  # the second time over the first
        assert cli.train(["targets", path, "--device", "cpu"]) == 0
        assert read_examples(tmp_path / "out" / "train.jsonl") == made.splits["train"]
    facts = json.loads((tmp_path / "out" / "targets.json").read_text())
    assert facts == json.loads(json.dumps(made.facts))
    assert f"oracle   dev: recall@3 {facts['oracle']['dev']['recall@3']:.3f}" in capsys.readouterr().out
