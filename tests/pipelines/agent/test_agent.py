"""Tasks, the sample's tools as functions, a model that is run against them, and the score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from generative_toys import ACTING, DATA, TOOLS, save_toy_model, toolgen
from generative_toys import TASKS as SOME_TASKS

from pipelines.agent.loop import AgentRun, run_trained, run_untrained
from pipelines.agent.score import is_right, score_runs
from pipelines.agent.simulated_tools import RESULTS, run_tool
from pipelines.agent.tasks import make_trajectories, read_families
from pipelines.cli import main as cli
from pipelines.data.sample_data import sample_folder
from pipelines.data.trajectories import load_trajectories
from retrievers.errors import BadInput
from retrievers.generative.chat_format import ChatTurn
from retrievers.generative.decoding.language_model import LanguageModel
from retrievers.generative.retriever import GenerativeRetriever
from retrievers.generative.settings import Stage
from retrievers.generative.trajectories import read_trajectories, to_turns
from retrievers.index import Index, build
from retrievers.kind import Context
from retrievers.text import document
from retrievers.types import Parameter, Tool

CALLABLE = {tool.id: replace(tool, parameters=(Parameter("what", "string"),)) for tool in TOOLS}
TASKS = [
    replace(each, calls=tuple(replace(c, result=run_tool(CALLABLE[c.tool], c.arguments)) for c in each.calls))
    for each in SOME_TASKS
]


def test_the_bundled_trajectories_are_what_their_families_make(sample_tools: list[Tool]) -> None:
    tools = {tool.id: tool for tool in sample_tools}
    families = read_families(sample_folder() / "agent" / "families.yaml")
    for split in ("train", "test"):
        assert load_trajectories("bundled:sample", split) == make_trajectories(families, tools, split)


def test_there_are_enough_of_them_and_test_tasks_are_new(sample_tools: list[Tool]) -> None:
    train, test = (load_trajectories("bundled:sample", split) for split in ("train", "test"))
    assert len(train) >= 300
    assert len(test) >= 100
    assert not {each.task for each in train} & {each.task for each in test}
    assert sum(len(each.calls) > 1 for each in train) >= 80
    assert len({call.tool for each in train for call in each.calls}) >= 50
    # What is asked in test needs no tool that training does not show.
    assert {c.tool for each in test for c in each.calls} <= {c.tool for each in train for c in each.calls}


def test_every_recorded_result_is_what_the_tool_gives(sample_tools: list[Tool]) -> None:
    tools = {tool.id: tool for tool in sample_tools}
    for split in ("train", "test"):
        for each in load_trajectories("bundled:sample", split):
            assert all(run_tool(tools[call.tool], call.arguments) == call.result for call in each.calls)


def test_every_tool_of_the_sample_answers_what_it_can_be_asked(sample_tools: list[Tool]) -> None:
    values = {"number": 20, "integer": 3, "boolean": True, "array": ["a"], "object": {"a": 1}}
    assert RESULTS.keys() <= {tool.id for tool in sample_tools}
    for tool in sample_tools:
        needed = {p.name: values.get(p.type, "EUR") for p in tool.parameters if p.required}
        result = run_tool(tool, needed)
        assert result
        assert result == run_tool(tool, dict(reversed(needed.items())))
        json.dumps(result)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({}, "missing argument city"), ({"city": 3}, "of type string"), ({"city": "x", "mood": 1}, "unknown argument")],
)
def test_a_wrong_call_is_told_what_is_wrong(arguments: dict[str, object], said: str) -> None:
    tool = Tool("a", "a", parameters=(Parameter("city", "string", required=True),))
    assert said in run_tool(tool, arguments)["error"]


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("hearthlot/mortgage", {"price": 100, "deposit": 0, "years": 0}),
        ("hearthlot/mortgage", {"price": 100, "deposit": 0, "years": -(10**7)}),
        ("vitalore/burn", {"activity": "running", "minutes": float("inf")}),
        ("pennywharf/estimate_income_tax", {"country": "Spain", "gross": float("nan")}),
        ("larderly/getNutritionFacts", {"food": "rice", "grams": float("nan")}),
    ],
)
def test_numbers_that_make_no_sense_end_no_run(
    tool: str, arguments: dict[str, object], sample_tools: list[Tool]
) -> None:
    (found,) = [each for each in sample_tools if each.id == tool]
    assert run_tool(found, arguments).keys() == {"error"}


def test_tools_that_compute_compute(sample_tools: list[Tool]) -> None:
    tools = {tool.id: tool for tool in sample_tools}
    assert run_tool(tools["larkchange/convertCurrency"], {"from": "EUR", "to": "USD", "amount": 100})["amount"] == 108
    assert run_tool(tools["pennywharf/check_iban"], {"iban": "GB82 WEST 1234 5698 7654 32"})["valid"]
    assert not run_tool(tools["pennywharf/check_iban"], {"iban": "GB82 WEST 1234 5698 7654 33"})["valid"]
    monthly = run_tool(tools["hearthlot/mortgage"], {"price": 300_000, "deposit": 60_000, "years": 20})["monthly"]
    left = 240_000.0
    for _ in range(240):
        left = left * (1 + 0.036 / 12) - monthly
    assert left == pytest.approx(0, abs=5)


def test_the_score_asks_for_all_calls_and_no_other() -> None:
    gold = TASKS[0]
    call = (gold.calls[0].tool, dict(gold.calls[0].arguments))
    loud = (call[0], {"what": f" {str(call[1]['what']).upper()} "})
    tries = [[call], [loud], [call, call], [(call[0], {})], [(call[0], None)], [("t9", call[1])], []]
    attempts = [AgentRun("", [], calls=list(calls)) for calls in tries]
    judged = [score_runs([attempt], [gold]) for attempt in attempts]
    assert [each.calls for each in judged] == [1, 1, 0, 0, 0, 0, 0]
    assert [each.tools for each in judged] == [1, 1, 0, 1, 1, 0, 0]
    assert [each.first for each in judged] == [1, 1, 1, 0, 0, 0, 0]
    with pytest.raises(BadInput, match="no tasks"):
        score_runs([], [])


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"id": "a"}', '{"id": "a", "task": " ", "calls": [], "answer": "x"}', "9" * 5000]
)
def test_a_damaged_trajectory_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text('\n{"id": "b", "task": "t", "calls": [], "answer": "x"}\n' + line)
    with pytest.raises(BadInput, match=r"tasks.jsonl:3"):
        read_trajectories(path)


@pytest.fixture(scope="module")
def taught(context: Context, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy that learns its eight tasks by heart."""
    place = tmp_path_factory.mktemp("agent")
    training = replace(
        ACTING,
        memorise=Stage(epochs=0),
        retrieve=Stage(epochs=0),
        agent=replace(ACTING.agent, epochs=60, learning_rate=3e-3, rehearse=0.0),
    )
    settings = toolgen(save_toy_model(place / "toy"), training)
    build(
        place / "index",
        TOOLS,
        {"toolgen": settings},
        context,
        training={"toolgen": [replace(DATA, trajectories=tuple(TASKS))]},
    )
    return place


def test_a_taught_model_calls_and_an_untaught_one_does_not(taught: Path, context: Context) -> None:
    index = Index(taught / "index", context)
    retriever = index.retriever("toolgen")
    assert isinstance(retriever, GenerativeRetriever)
    documents = {tool.id: document(tool) for tool in TOOLS}
    tasks = [each.task for each in TASKS]
    done = run_trained(retriever, index.rows.ids, CALLABLE, documents, tasks)
    assert score_runs(done, TASKS).calls >= 0.5
    # The conversation it has is the one it was taught.
    assert retriever.text_generator is not None
    codes = {index.rows.ids[row]: code for row, code in retriever.text_generator().codes.items()}
    first = next(each for each, gold in zip(done, TASKS, strict=True) if is_right(each, gold))
    expected = to_turns(TASKS[tasks.index(first.task)], documents, codes)
    assert first.turns == expected
    untaught = run_untrained(LanguageModel(taught / "toy", "cpu"), retriever, CALLABLE, documents, tasks[:2], 3)
    assert score_runs(untaught, TASKS[:2]).calls == 0
    assert isinstance(untaught[0].turns[0], ChatTurn)
    assert "- t" in str(untaught[0].turns[0].content)


def test_the_command_refuses_what_is_no_agent(taught: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["agent", str(taught / "index"), "--device", "cpu"]) == 2
    assert "which" in capsys.readouterr().err  # the sample's tasks need the sample's tools
    tasks = taught / "tasks.jsonl"
    rows = [{"id": each.id, "task": each.task, "calls": [], "answer": "x"} for each in TASKS[:2]]
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["agent", str(taught / "index"), "--tasks", str(tasks), "--device", "cpu", "--json"]
    assert cli.index([*words, "--output", str(taught / "calls.jsonl")]) == 0
    assert json.loads(capsys.readouterr().out)["trained"]["tasks"] == 2
    assert len((taught / "calls.jsonl").read_text().splitlines()) == 2


def test_half_characters_end_no_run_and_the_calls_are_put_where_they_are_wanted(
    taught: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks, out = taught / "half.jsonl", taught / "new" / "folder" / "calls.jsonl"
    tasks.write_text(json.dumps({"id": "a", "task": "do \ud83d\nblorp", "calls": [], "answer": "x"}))
    words = ["agent", str(taught / "index"), "--tasks", str(tasks), "--device", "cpu"]
    assert cli.index([*words, "--output", str(out)]) == 0
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["task"] == "do ? blorp"
    (taught / "file").write_text("")
    capsys.readouterr()
    assert cli.index([*words, "--output", str(taught / "file" / "calls.jsonl")]) == 1
    said = capsys.readouterr()
    assert (said.out, "file" in said.err) == ("", True)
