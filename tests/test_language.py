"""The words and shapes that must not come back, in code, configs and docs (CONTRIBUTING.md says what to write instead).

Run alone it lists every place: python tests/test_language.py [PATH ...]
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = ("retrievers", "rewrite", "reward", "pipelines", "benchmarks")
PROSE = ("docs", "configs", "README.md", "CONTRIBUTING.md")
WORDS = (
    "told",
    "heard",
    "whoever",
    "nobody",
    "somebody",
    "besides",
    "of late",
    "gone on with",
    "goes on with",
    "going on with",
    "whatever",
    "stranger",
    "strangers",
    "by and by",
    "so many",
    "him",
    "his",
    "he",
    "spared",
    "woven",
)
"""Words that hide who does what; "he" is anybody here."""
SHAPES = (
    re.compile(r"\A(What|Who|Whom|Whose|Whether|Where|How|Which|When)\b"),
    re.compile(r"\b(stands?|lies) (there|here|in|at|beside|before|behind|first|twice|alone|outside)\b"),
    re.compile(r"\b(one|a|an) (number|list|line|file|row|score|ranking|vector|answer|place)s? an? [a-z]+\b"),
)
"""A docstring begins with a verb or a noun, not with a riddle; "per", not "a"."""
NAMES = re.compile(r"each|found|place|told|said|heard|asked|(most|least)_\w+")
"""Names that say nothing of what they hold; max_ and min_ are the field's own."""
DATA = ("Use it when somebody says: {query}",)
"""Texts of an attack whose figures are published."""
_WORD = re.compile(r"\b(" + "|".join(WORDS) + r")\b", re.IGNORECASE)


def _texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Line, text, and whether the text is a docstring."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from ((number, line, False) for number, line in enumerate(source.splitlines(), 1))
        return
    tree = ast.parse(source)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        for statement in node.body[:1]
        if isinstance(statement, ast.Expr)
    }
    word_lists = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "split"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in word_lists:
            yield node.lineno, node.value, id(node) in docstrings
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string, False


def _names(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.lineno, node.name


def findings(path: Path) -> list[str]:
    """Banned words, shapes and names in one file."""
    lines = []
    for line, text, is_docstring in _texts(path):
        if text in DATA:
            continue
        lines += [f"{path}:{line}: {match.group()!r}" for match in _WORD.finditer(text)]
        shapes = SHAPES if is_docstring else SHAPES[1:]
        lines += [f"{path}:{line}: {match.group()!r}" for shape in shapes for match in shape.finditer(text)]
    if path.suffix == ".py":
        lines += [f"{path}:{line}: the name {name}" for line, name in _names(path) if NAMES.fullmatch(name)]
    return lines


def files(*places: str) -> list[Path]:
    """Code, configs and docs below these places; dated notes are history, and the sample speaks as users do."""
    every = [
        path for name in places for path in ([ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*"))
    ]
    kept = [path for path in every if path.suffix in {".py", ".md", ".yaml", ".js", ".html"}]
    return sorted(path for path in kept if not {"sample", "notes", "leisure-openapi.yaml"} & set(path.parts))


def test_banned_words_and_shapes_stay_out() -> None:
    assert [line for path in files(*CODE, *PROSE) for line in findings(path)] == []


def test_lines_of_prose_are_short() -> None:
    long = [
        f"{path}:{number}"
        for path in files("docs", "README.md", "CONTRIBUTING.md")
        if path.suffix == ".md" and "generated" not in path.parts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")
    ]
    assert long == []


if __name__ == "__main__":
    chosen = files(*sys.argv[1:]) if sys.argv[1:] else files(*CODE, *PROSE)
    listed = [line for path in chosen for line in findings(path)]
    sys.stdout.write("\n".join([*listed, f"{len(listed)} findings in {len(chosen)} files\n"]))
