"""Generate the reference pages of the site: settings, commands, files. Also the hook through which mkdocs adds them.

python docs/generate.py FOLDER     writes the same pages as Markdown into FOLDER
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).parent.parent
ROOMS = ("retrievers", "rewrite", "reward", "pipelines", "benchmarks")
LIMITS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
TYPE_NAMES = {str: "text", int: "integer", float: "number", bool: "true or false", type(None): "null", Any: "any value"}


def config_kinds() -> dict[str, type]:
    """The config dataclass of each command."""
    from pipelines.batch.settings import BatchConfig
    from pipelines.cli.evaluate import MatrixConfig
    from pipelines.evaluate.attack_run import AttackConfig
    from pipelines.evaluate.published.check import ExpectedConfig
    from pipelines.evaluate.run import EvalConfig
    from pipelines.index.build import IndexConfig
    from pipelines.renew.settings import RenewConfig
    from pipelines.serve.settings import ServeConfig
    from pipelines.train.align import AlignConfig
    from pipelines.train.encoder.settings import EncoderConfig
    from pipelines.train.sampling import PairsConfig, ProbeConfig
    from pipelines.train.sft import SftConfig
    from pipelines.train.targets.settings import TargetsConfig
    from pipelines.train.utterances.settings import UtterancesConfig

    return {
        "rewrite-index build": IndexConfig,
        "rewrite-eval": EvalConfig,
        "rewrite-eval attack": AttackConfig,
        "rewrite-eval matrix": MatrixConfig,
        "rewrite-eval --check": ExpectedConfig,
        "rewrite-train encoder": EncoderConfig,
        "rewrite-train utterances": UtterancesConfig,
        "rewrite-train targets": TargetsConfig,
        "rewrite-train sft": SftConfig,
        "rewrite-train probe": ProbeConfig,
        "rewrite-train pairs": PairsConfig,
        "rewrite-train align": AlignConfig,
        "rewrite-train renew": RenewConfig,
        "rewrite-batch": BatchConfig,
        "rewrite-serve": ServeConfig,
    }


def config_reference() -> str:
    """Every settings dataclass: keys, types, ranges, defaults and attribute docstrings."""
    tops = config_kinds()
    lines = [
        "# Config reference",
        "",
        "Generated from the settings dataclasses: one section per command, then one per group of keys, to which the",
        "type column links. `--dry-run` prints a config with every default filled in.",
        "",
    ]
    for command, kind in tops.items():
        lines += [f"## {command}", "", *section(kind)]
    nested = {one for kind in tops.values() for one in reachable(kind)} - set(tops.values())
    lines += ["## Groups of keys", ""]
    for kind in sorted(nested, key=lambda one: (_title(one), one.__module__)):
        lines += [f"### {_title(kind)}", "", *section(kind)]
    return "\n".join(lines)


def section(kind: type) -> list[str]:
    """The table of one settings dataclass, as lines of Markdown."""
    hints = typing.get_type_hints(kind, include_extras=True)
    texts = attribute_docstrings(kind)
    rows = [
        f"| `{field.name}` | {_type(hints[field.name])} | {_default(field)} | {_cell(texts.get(field.name, ''))} |"
        for field in dataclasses.fields(kind)
    ]
    described = [_first_paragraph(kind), ""] if kind.__doc__ else []
    return [*described, "| key | type | default | meaning |", "|---|---|---|---|", *rows, ""]


def attribute_docstrings(kind: type) -> dict[str, str]:
    """The text below each attribute of a class, its parents' included."""
    texts: dict[str, str] = {}
    for parent in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(parent):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0]
        assert isinstance(body, ast.ClassDef)
        for statement, following in zip(body.body, body.body[1:], strict=False):
            if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
                continue
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                texts[statement.target.id] = inspect.cleandoc(str(following.value.value))
    return texts


def reachable(kind: type) -> set[type]:
    """The dataclasses below a dataclass, itself included."""
    kinds: set[type] = set()
    waiting = [kind]
    while waiting:
        current = waiting.pop()
        if current not in kinds:
            kinds.add(current)
            hints = typing.get_type_hints(current, include_extras=True).values()
            waiting += [one for hint in hints for one in _dataclasses(hint)]
    return kinds


def _dataclasses(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for argument in typing.get_args(hint):
        yield from _dataclasses(argument)


def _title(kind: type) -> str:
    hints = typing.get_type_hints(kind)
    tag = typing.get_args(hints["kind"]) if "kind" in hints else ()
    return f"{kind.__name__} (kind: {tag[0]})" if tag else kind.__name__


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        bounds = [one for group in arguments[1:] for one in (group if isinstance(group, Iterable) else (group,))]
        named = [(bound, name) for bound in bounds for name in LIMITS if hasattr(bound, name)]
        limits = [f"{LIMITS[name]} {getattr(bound, name):g}" for bound, name in named]
        return f"{_type(arguments[0])} {' and '.join(limits)}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{slug(_title(hint))})"
    if origin is Literal:
        return ", ".join(f"`{argument}`" for argument in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(_type(argument) for argument in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return f"names with {_type(arguments[1])}"
    return TYPE_NAMES.get(hint, f"`{hint}`")


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    elif field.default is dataclasses.MISSING:
        return "**required**"
    else:
        value = field.default
    if dataclasses.is_dataclass(value):
        return "its own defaults"
    return f"`{list(value) if isinstance(value, tuple) else value}`" if value not in ("", None) else ""


def _first_paragraph(kind: type) -> str:
    return _cell(inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def slug(heading: str) -> str:
    """The anchor of a heading, as code forges make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def commands() -> Iterator[argparse.ArgumentParser]:
    """The parsers of every command and subcommand."""
    from pipelines.cli import main

    for build in main.PARSERS.values():
        yield from _with_subparsers(build())


def _with_subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in dict.fromkeys(action.choices.values()):
                yield from _with_subparsers(child)


def command_reference() -> str:
    """Every command and flag, from argparse."""
    lines = ["# Command reference", "", "Generated from the parsers; `--help` behind each command prints it too.", ""]
    for parser in commands():
        lines += [
            f"## {parser.prog}",
            "",
            _cell(parser.description or ""),
            "",
            "```text",
            parser.format_usage().strip(),
        ]
        lines += ["```", ""]
        shown = [action for action in parser._actions if action.help not in (None, argparse.SUPPRESS)]
        rows = [
            f"| `{_flag(action)}` | {_cell(str(action.help) % _help_values(action, parser))} |"
            for action in shown
            if not isinstance(action, argparse._HelpAction)
        ]
        lines += ["| argument | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _flag(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if action.choices and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return f"{', '.join(action.option_strings)} {value}".strip() if action.option_strings else value


def _help_values(action: argparse.Action, parser: argparse.ArgumentParser) -> dict[str, Any]:
    return {**vars(action), "prog": parser.prog}


def file_list() -> str:
    """Every source file with the first sentence of its docstring."""
    lines = ["# Every file", "", "Generated from the module docstrings.", ""]
    for room in ROOMS:
        folder = ""
        for path in sorted((ROOT / room).rglob("*.py"), key=lambda one: (str(one.parent), one.name)):
            if path.name == "__init__.py":
                continue
            if str(path.parent.relative_to(ROOT)) != folder:
                folder = str(path.parent.relative_to(ROOT))
                about = _docstring(path.parent / "__init__.py")
                lines += ["", f"## {folder}/", "", *([about, ""] if about else []), "| file | content |", "|---|---|"]
            lines.append(f"| `{path.name}` | {_docstring(path)} |")
    return "\n".join(lines) + "\n"


def _docstring(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else ""
    return _cell((text or "").split("\n\n")[0])


def pages() -> dict[str, str]:
    """The generated pages by their path below docs/."""
    return {
        "generated/config.md": config_reference(),
        "generated/commands.md": command_reference(),
        "generated/files.md": file_list(),
    }


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, README and CONTRIBUTING to the site (a hook of mkdocs)."""
    from mkdocs.structure.files import File

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    top = {"index.md": readme, "contributing.md": guide}
    moved = {path: _below_docs(text) for path, text in top.items()}
    for path, content in {**moved, **pages()}.items():
        files.append(File.generated(config, path, content=content))
    return files


def _below_docs(text: str) -> str:
    """Links of a page at the root as links of a page in docs/."""
    links = text.replace("](docs/", "](").replace("](CONTRIBUTING.md", "](contributing.md")
    return links.replace("](README.md", "](index.md")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for path, content in pages().items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_text(content, encoding="utf-8")
