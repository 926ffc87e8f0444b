"""Every command and every config: help is instant, configs parse, and the index commands do what they say."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from killing import started
from paths import ROOT

from pipelines import config as configs
from pipelines.batch.settings import BatchConfig
from pipelines.cli import evaluate
from pipelines.cli import main as cli
from pipelines.cli.evaluate import MatrixConfig
from pipelines.evaluate.attack_run import AttackConfig
from pipelines.evaluate.published.check import ExpectedConfig
from pipelines.evaluate.run import EvalConfig
from pipelines.index.build import IndexConfig
from pipelines.renew.settings import RenewConfig
from pipelines.serve.settings import ServeConfig
from pipelines.train.align import AlignConfig
from pipelines.train.encoder.settings import EncoderConfig
from pipelines.train.rerank.settings import RerankConfig
from pipelines.train.sampling import PairsConfig, ProbeConfig
from pipelines.train.sft import SftConfig
from pipelines.train.targets.settings import TargetsConfig
from pipelines.train.utterances.settings import UtterancesConfig
from retrievers.index import Index
from retrievers.kind import Context
from retrievers.types import Tool

SCRIPTS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
SUBCOMMANDS = {
    "rewrite-index": "build add mcp remove confirm info verify lint search detect ablate tree agent push pull".split(),
    "rewrite-train": ["targets", "sft", "probe", "pairs", "align", "merge", "renew", "utterances"],
    "rewrite-serve": ["key", "mcp"],
    "rewrite-eval": ["attack", "matrix", "--check"],
}
CONFIG_KINDS = {
    "index": IndexConfig,
    "eval": EvalConfig,
    "targets": TargetsConfig,
    "sft": SftConfig,
    "probe": ProbeConfig,
    "pairs": PairsConfig,
    "align": AlignConfig,
    "batch": BatchConfig,
    "serve": ServeConfig,
    "attack": AttackConfig,
    "renew": RenewConfig,
    "utterances": UtterancesConfig,
    "matrix": MatrixConfig,
    "encoder": EncoderConfig,
    "rerank": RerankConfig,
    "configs": ExpectedConfig,
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_is_instant_and_loads_nothing_heavy(script: str) -> None:
    module, _, function = SCRIPTS[script].partition(":")
    code = (
        f"import sys; sys.argv[0] = {script!r}\nfrom {module} import {function}\n"
        f"for words in {[[], *([name] for name in SUBCOMMANDS.get(script, ()))]!r}:\n"
        f"  try: {function}([*words, '--help'])\n"
        "  except SystemExit as end: assert not end.code\n"
        "print('heavy' if {'torch', 'numpy', 'transformers'} & sys.modules.keys() else 'light')"
    )
    times = []
    for _ in range(3):  # the best of three, in processor seconds: the machine may be busy
        with started([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
            output = process.stdout.read()
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        times.append(used.ru_utime + used.ru_stime)
        assert process.returncode == 0
        assert output.startswith("usage:")
        assert output.endswith("light\n")
    assert min(times) < 1.5


def parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """A command's parser and those of its subcommands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from parsers(child)


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_command_and_every_flag_has_a_help_text(script: str) -> None:
    assert cli.PARSERS.keys() == SCRIPTS.keys()
    for parser in parsers(cli.PARSERS[script]()):
        assert parser.description, f"{parser.prog} has no description"
        for action in parser._actions:
            documented = action.help or isinstance(action, argparse._SubParsersAction)
            assert documented, f"{parser.prog}: {action.metavar or action.dest} has no help text"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["configs/eval/sample.yaml"], "run_eval"),
        (["--set", "seed=1", "attack.yaml"], "run_eval"),
        (["attack", "configs/attack/x.yaml"], "run_attack"),
        (["matrix", "configs/matrix/results.yaml"], "run_matrix"),
        (["--check"], "run_check"),
        (["--check", "expected.yaml", "--run", "runs/sample/eval"], "run_check"),
        (["--run", "runs/sample/eval", "--check"], "run_check"),
    ],
    ids=" ".join,
)
def test_a_command_that_is_left_out_is_the_default(
    words: list[str], command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(evaluate, command, lambda _: called.append(command) or 0)
    assert cli.evaluate(words) == 0
    assert called == [command]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs").rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_config_parses_and_starts_with_its_command(path: Path) -> None:
    kind = CONFIG_KINDS[path.parent.name]
    config = configs.load(path, kind)
    assert configs.parse(kind, json.loads(json.dumps(configs._simple(config)))) == config
    first = path.read_text(encoding="utf-8").split("\n")[0]
    assert first.startswith("# ")
    assert f" {path.relative_to(ROOT)}" in first
    assert any(name in first for name in SCRIPTS)


@pytest.fixture
def folder(tmp_path: Path, some_tools: list[Tool]) -> Path:
    """An index folder of a few tools, built by the command."""
    rows = [{"_id": tool.id, "title": tool.name, "text": tool.description} for tool in some_tools]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config = tmp_path / "index.yaml"
    config.write_text(
        f"index: {tmp_path}/index\ncatalogue: {tmp_path}/corpus.jsonl\nretrievers: {{bm25: {{kind: bm25}}}}\n"
    )
    assert cli.index(["build", str(config)]) == 0
    return tmp_path / "index"


def test_add_search_remove(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new.json").write_text(
        json.dumps(
            {"tools": [{"name": "brew_tea", "description": "Starts the kettle.", "inputSchema": {"type": "object"}}]}
        )
    )
    assert cli.index(["add", str(folder), str(tmp_path / "new.json")]) == 0
    assert "1 added" in capsys.readouterr().out
    assert cli.index(["search", str(folder), "put the kettle on", "-k", "1", "--json"]) == 0
    assert [hit["tool_id"] for hit in json.loads(capsys.readouterr().out)["tools"]["bm25"]] == ["brew_tea"]
    assert cli.index(["add", str(folder), str(tmp_path / "new.json")]) == 0
    assert "1 unchanged" in capsys.readouterr().out
    assert cli.index(["remove", str(folder), "brew_tea"]) == 0
    assert cli.index(["search", str(folder), "brew_tea", "-k", "1"]) == 0
    assert "brew_tea 1" not in capsys.readouterr().out


@pytest.mark.parametrize("columns", ["40", "400"])
def test_search_prints_whole_ids_at_every_width(
    columns: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    name = "a_provider_of_weather/v2/forecast/of_every_hour"
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [{"name": name, "inputSchema": {"type": "object"}}]}))
    retrievers = "{one: {kind: bm25}, two: {kind: bm25, k1: 2.0}}"
    (tmp_path / "index.yaml").write_text(
        f"index: {tmp_path}/index\ncatalogue: {tmp_path}/tools.json\nretrievers: {retrievers}\n"
    )
    assert cli.index(["build", str(tmp_path / "index.yaml")]) == 0
    capsys.readouterr()
    assert cli.index(["search", f"{tmp_path}/index", "weather forecast", "--retriever", "all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.count(name) for line in lines if name in line] == ([1, 1] if columns == "40" else [2])
    assert sum("one" in line and "two" in line for line in lines) == (columns == "400")


def test_info_verify_and_lint(folder: Path, capsys: pytest.CaptureFixture[str], context: Context) -> None:
    capsys.readouterr()
    assert cli.index(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    index = Index(folder, context)
    assert (facts["fingerprint"], facts["tools"]) == (index.fingerprint, len(index.tools))
    assert cli.index(["verify", str(folder)]) == 0
    damaged = next(folder.glob("tools-*.jsonl"))
    damaged.write_bytes(damaged.read_bytes()[:-2] + b"X\n")
    assert cli.index(["verify", str(folder)]) == 1
    assert damaged.name in capsys.readouterr().err


def test_lint_of_the_sample_finds_its_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.index(["lint", "bundled:sample", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert any(finding["check"] == "thin" and "skyfernet/getSeatMap" in finding["tool_ids"] for finding in findings)


def test_dry_run_prints_what_would_be_done_and_does_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ROOT / "configs/index/sample.yaml"
    words = ["build", str(config), "--dry-run", "--set", f"index={tmp_path}/x", "--set", "retrievers.bm25.k1=1.2"]
    assert cli.index(words) == 0
    resolved = tmp_path / "resolved.yaml"
    resolved.write_text(capsys.readouterr().out)
    again = configs.load(resolved, IndexConfig)
    assert again.retrievers["bm25"].k1 == 1.2  # type: ignore[union-attr]
    assert not (tmp_path / "x").exists()


def test_the_installed_script_works(folder: Path) -> None:
    script = shutil.which("rewrite-index", path=str(Path(sys.executable).parent))
    assert script
    done = subprocess.run(
        [script, "search", str(folder), "-"], input="weather\nflights\n", capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "weather" in done.stdout
    assert "flights" in done.stdout
