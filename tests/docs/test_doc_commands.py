"""Every command in the docs is run for real if that takes seconds, else with --dry-run, or at least parsed.

The commands run in a folder of their own, in the order of the docs, with the repository's configs. A block that needs
a GPU, a server or other data says so in a comment before it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from doc_blocks import PAGES, ROOT, Block, blocks, commands
from markdown_it import MarkdownIt
from test_commands import CONFIG_KINDS

from pipelines import config as configs
from pipelines.cli import main as cli
from pipelines.serve.settings import ServeConfig
from retrievers.errors import BadInput

BLOCKS = blocks()
ENTRIES = {
    "rewrite-index": cli.index,
    "rewrite-eval": cli.evaluate,
    "rewrite-train": cli.train,
    "rewrite-batch": cli.batch,
    "rewrite-serve": cli.serve,
}
REAL = {
    ("rewrite-index", "build", "configs/index/sample.yaml"),
    ("rewrite-index", "build", "docs/examples/leisure-openapi.yaml"),
    ("rewrite-index", "build", "my-openapi.yaml"),
    ("rewrite-index", "search"),
    ("rewrite-index", "add"),
    ("rewrite-index", "remove"),
    ("rewrite-index", "info"),
    ("rewrite-index", "verify"),
    ("rewrite-index", "lint"),
    ("rewrite-eval", "configs/eval/tutorial.yaml"),
    ("rewrite-serve", "key"),
}
"""Commands that are run for real, by their first words."""
WITH_CONFIG = {
    "build",
    "ablate",
    "targets",
    "sft",
    "probe",
    "pairs",
    "align",
    "renew",
    "utterances",
    "encoder",
    "attack",
}
SHELL_WORDS = {"export", "source"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the repository's configs and docs, and the files that the docs name."""
    path = tmp_path_factory.mktemp("docs")
    for name in ("configs", "docs", "benchmarks", "Makefile"):
        (path / name).symlink_to(ROOT / name)
    kettle = {"name": "old/tool", "description": "Starts the kettle.", "inputSchema": {"type": "object"}}
    (path / "new-tools.json").write_text(json.dumps({"tools": [kettle]}))
    shutil.copy(ROOT / "docs/examples/leisure-openapi.yaml", path / "my-openapi.yaml")
    (path / "queries.jsonl").write_text('{"_id": "1", "text": "will I need a coat"}\n')
    before = Path.cwd()
    os.chdir(path)
    yield path
    os.chdir(before)


def is_real(words: list[str]) -> bool:
    return any(tuple(words[: len(start)]) == start for start in REAL)


def problem(words: list[str]) -> str:
    """Run or check a command as far as possible here, and describe what is wrong; empty: nothing."""
    name, rest = words[0], words[1:]
    if name == "make":
        targets = (ROOT / "Makefile").read_text()
        unknown = [word for word in rest if "=" not in word and not re.search(rf"^{re.escape(word)}:", targets, re.M)]
        return f"the Makefile has no {unknown[0]}" if unknown else ""
    if name == "python":
        return script_problem(rest[0], rest[1:]) if (ROOT / rest[0]).is_file() else f"there is no {rest[0]}"
    if name == "accelerate":
        start = next(index for index, word in enumerate(rest) if "which" in word or word.startswith("$("))
        return problem([rest[start + 1].rstrip(")"), *rest[start + 2 :]])
    if name not in ENTRIES:
        return "" if name in SHELL_WORDS else "it is not run; say why in a comment before its block"
    entry, dry = ENTRIES[name], "--dry-run" in rest
    if is_real(words) and not dry:
        plain = "retrievers={bm25: {kind: bm25}, dense: {kind: dense, model: bundled:minilm}, "
        plain += "hybrid: {kind: hybrid, of: [bm25, dense]}}"  # nothing to train
        quick = ["--set", "text=[name]", "--set", plain] if "configs/index/sample.yaml" in rest else []
        code = entry([*rest, *quick])
    elif takes_config(name, rest):
        code = entry(rest if dry else [*rest, "--dry-run"])
    else:
        cli.PARSERS[name]().parse_args(rest)  # exits on a wrong flag
        code = 0
    return f"it ends with {code}" if code else ""


def script_problem(script: str, rest: list[str]) -> str:
    """Scripts take minutes to hours: only their flags are checked."""
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        return f"{script} --help ends with {done.returncode}"
    unknown = [word for word in rest if word.startswith("--") and word not in done.stdout]
    return f"{script} knows no {unknown[0]}" if unknown else ""


def takes_config(name: str, rest: list[str]) -> bool:
    if name in ("rewrite-eval", "rewrite-batch", "rewrite-serve"):
        return "key" not in rest[:1]
    return rest[0] in WITH_CONFIG


RUN = [block for block in BLOCKS if commands(block) and not block.reason]


def order(block: Block) -> tuple[int, int]:
    """README and tutorial come first: they build what other pages use."""
    first = {"README.md": 0, "tutorial.md": 1}
    return first.get(block.page, 2), BLOCKS.index(block)


@pytest.fixture(scope="module")
def utterances(folder: Path) -> None:
    """Stand in for the output of `rewrite-train utterances`, which takes minutes."""
    from pipelines.data.dataset import Query
    from pipelines.data.dataset_writer import write_dataset
    from pipelines.index.build import read_tools

    tools = read_tools((str(ROOT / "docs/examples/leisure-openapi.yaml"),))
    queries = [Query(f"q{n}", f"people who want {tool.description[:40]}") for n, tool in enumerate(tools)]
    gold = {query.id: frozenset({tool.id}) for query, tool in zip(queries, tools, strict=True)}
    splits = {"train": dict(list(gold.items())[:8]), "dev": dict(list(gold.items())[8:10])}
    write_dataset(folder / "runs/mine/utterances", tools, queries, splits | {"test": dict(list(gold.items())[10:])})


@pytest.mark.usefixtures("utterances")
@pytest.mark.parametrize("block", sorted(RUN, key=order), ids=lambda block: block.name)
def test_commands_of_a_block_can_be_run(block: Block, folder: Path) -> None:
    problems = {" ".join(words): problem(words) for words in commands(block)}
    assert problems
    assert not {command: text for command, text in problems.items() if text}


def test_something_is_run_for_real() -> None:
    every = [words for block in RUN for words in commands(block)]
    assert all(
        any(tuple(words[: len(start)]) == start for words in every) for start in REAL - {("rewrite-serve", "key")}
    )
    assert sum(map(is_real, every)) >= 9


def test_no_block_is_overlooked() -> None:
    """Refuse unknown languages, and commands in prose outside a block."""
    assert {block.language for block in BLOCKS} <= {"", "sh", "python", "yaml", "json"}
    for page in PAGES:
        prose = [t for t in MarkdownIt("commonmark").enable("table").parse(page.read_text()) if t.type == "inline"]
        for token in prose:
            for line in token.content.split("\n"):
                assert not re.match(r"(rewrite-\w+ [\w./-]+ |python \S+\.py|make \w+ )", line), f"{page.name}: {line}"


def test_what_is_not_run_has_a_reason() -> None:
    for block in BLOCKS:
        if block.reason:
            assert len(block.reason.split()) >= 4, f"{block.name}: {block.reason!r} is no reason"


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=lambda block: block.name)
def test_python_blocks(block: Block, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = compile(block.text, block.name, "exec")
    if not block.reason:
        exec(code, {})
        assert capsys.readouterr().out


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "yaml"], ids=lambda block: block.name)
def test_yaml_blocks_have_known_keys(block: Block) -> None:
    data = yaml.safe_load(block.text)
    named = re.search(r"configs/(\w+)/", block.text)
    kinds = [CONFIG_KINDS[named[1]]] if named else list(CONFIG_KINDS.values())
    problems = [_config_problem(kind, data) for kind in kinds]
    assert any(not text or "is missing" in text for text in problems), f"{block.name}: {problems}"


def _config_problem(kind: Any, data: Any) -> str:
    # A piece of a server's config may leave out what every one has.
    whole = {"index": "x", "anonymous": ["search"], **data} if kind is ServeConfig else data
    try:
        configs.parse(kind, whole)
    except BadInput as error:
        return str(error)
    return ""


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "json"], ids=lambda block: block.name)
def test_json_blocks_are_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict | list)
