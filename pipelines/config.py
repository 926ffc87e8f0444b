"""YAML -> frozen dataclasses. An unknown key is an error that names the nearest known one.

A config may hold `<dataset>` in its values and the key `dataset`, whose value is filled in:
`rewrite-eval configs/eval/untrained.yaml --set dataset=toole`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import math
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union

import yaml
from annotated_types import Ge, Gt, Interval, Le, Lt

from pipelines.renamed_keys import RENAMED_KEYS
from pipelines.shipped import find_config
from retrievers.errors import BadInput

Config = TypeVar("Config")
KeyPath = tuple[str, ...]
DATASET = "<dataset>"


class ConfigError(BadInput):
    """A faulty config; the message names file, line and key."""


def load(path: Path, kind: type[Config], overrides: Sequence[str] = ()) -> Config:
    """Load a config file, with `dotted.key=value` overrides on top.

    `configs/…` that does not exist in the current folder is read from the package.
    """
    try:
        path = find_config(path)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        others = [other.name for other in find_config(path.parent).glob("*.y*ml")]
        near = difflib.get_close_matches(path.name, others, n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "configs/ has one folder per command"
        raise ConfigError(f"no config file {path}; {hint}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
    lines: dict[KeyPath, int] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _plain(root, (), lines, path) if root else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{where}: not valid YAML ({getattr(error, 'problem', error)})") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be a config") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: a config is a mapping of keys to values")
    named = _holds_dataset(data)  # read before `--set` may replace the last value that holds it
    data = _override(data, overrides)
    return parse(kind, _fill_dataset(data, path) if named or _holds_dataset(data) else data, str(path), lines)


def load_from_args(arguments: argparse.Namespace, kind: type[Config]) -> Config | None:
    """Load the config of a command; with --dry-run, print it and return None."""
    config = load(arguments.config, kind, arguments.set)
    if not arguments.dry_run:
        return config
    sys.stdout.write(dump(config))
    return None


def parse(kind: type[Config], data: Any, source: str = "config", lines: dict[KeyPath, int] | None = None) -> Config:
    """Make a dataclass from plain data."""
    result: Config = _Builder(source, lines or {}).value(kind, data, ())
    return result


def dump(config: Any) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(_simple(config), sort_keys=False, allow_unicode=True)


def _holds_dataset(data: Any) -> bool:
    """True where a value holds `<dataset>`; without one, a key `dataset` is an unknown key."""
    return DATASET in json.dumps(data, default=str)


def _fill_dataset(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Put the value of `dataset` in place of every `<dataset>`."""
    name = data.get("dataset", "")
    if not isinstance(name, str) or (_holds_dataset(data) and not name):
        raise ConfigError(f"{path}: a value holds {DATASET}; name a data set with `--set dataset=NAME`")

    def fill(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item) for item in value]
        return value.replace(DATASET, name) if isinstance(value, str) else value

    filled: dict[str, Any] = fill({key: value for key, value in data.items() if key != "dataset"})
    return filled


def _simple(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _simple(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _simple(item) for key, item in value.items()}
    return [_simple(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(node: yaml.Node, at: KeyPath, lines: dict[KeyPath, int], path: Path) -> Any:
    """Make plain data of a YAML node, noting the line of every key."""
    lines[at] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in mapping:
                raise ConfigError(f"{path}:{line}: duplicate key {'.'.join((*at, name))}")
            mapping[name] = _plain(value, (*at, name), lines, path)
            lines[*at, name] = line
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*at, str(i)), lines, path) for i, item in enumerate(node.value)]
    return _scalar(node, f"{path}:{node.start_mark.line + 1}: {_dotted(at)}")


def _scalar(node: yaml.Node, where: str) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{where} holds a value that YAML cannot read; put it in quotes if it is text") from error
    finally:
        loader.dispose()
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{where} holds a NUL character")
    return value


def _override(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--set takes key=value, got {text!r}")
        *parents, last = key.strip().split(".")
        target: Any = data
        for name in parents:
            target = _child(target, name, key)
        try:
            node = yaml.compose(value, Loader=yaml.SafeLoader)
            target[int(last) if isinstance(target, list) else last] = (
                _plain(node, (key,), {}, Path("--set")) if node else None
            )
        except ConfigError:
            raise
        except (IndexError, TypeError) as error:
            raise ConfigError(f"--set {key}: there is no item {last}") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise ConfigError(f"--set {text!r}: the value is not valid YAML") from error
    return data


def _child(parent: Any, name: str, key: str) -> Any:
    """The value of a key, or the item of a list by its number."""
    try:
        child = parent[int(name)] if isinstance(parent, list) else parent.setdefault(name, {})
    except (ValueError, IndexError) as error:
        raise ConfigError(f"--set {key}: the list has no item {name}") from error
    if not isinstance(child, (dict, list)):
        raise ConfigError(f"--set {key}: {name} holds a value, not keys")
    return child


class _Builder:
    """Makes typed values of plain data, one method per kind of type."""

    def __init__(self, source: str, lines: dict[KeyPath, int]) -> None:
        self._source, self._lines = source, lines

    def fail(self, at: KeyPath, message: str) -> ConfigError:
        line = next((self._lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self._lines), None)
        return ConfigError(f"{self._source}{f':{line}' if line else ''}: {message}")

    def value(self, kind: Any, data: Any, at: KeyPath) -> Any:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is Annotated:
            return self._in_range(self.value(arguments[0], data, at), arguments[1:], at)
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind, data, at)
        if origin in (Union, types.UnionType):
            return self._union(arguments, data, at)
        if origin is Literal:
            if isinstance(data, (list, dict)) or data not in arguments:
                raise self._choice(at, data, [str(argument) for argument in arguments])
            return data
        if origin is tuple:
            # A single value is a list of one.
            items = data if isinstance(data, list) else [data]
            return tuple(self.value(arguments[0], item, (*at, str(i))) for i, item in enumerate(items))
        if origin is dict:
            if not isinstance(data, dict):
                raise self.fail(at, f"{_dotted(at)} must hold keys, not {data!r}")
            return {key: self.value(arguments[1], item, (*at, key)) for key, item in data.items()}
        return self._scalar(kind, data, at)

    def _in_range(self, value: Any, bounds: Sequence[Any], at: KeyPath) -> Any:
        """Check the range in a field's annotation: the one place where ranges are checked."""
        for bound in (one for group in bounds for one in (group if isinstance(group, Interval) else (group,))):
            holds, words = _BOUNDS[type(bound)]
            limit = getattr(bound, type(bound).__name__.lower())
            if not holds(value, limit):
                raise self.fail(at, f"{_dotted(at)} must be {words} {limit:g}, got {value:g}")
        return value

    def _scalar(self, kind: Any, data: Any, at: KeyPath) -> Any:
        if kind is Any or (kind is not float and type(data) is kind):
            return data
        if kind is float and isinstance(data, str) and _EXPONENT.fullmatch(data):
            data = float(data)  # YAML 1.1 takes 2e-4 for text
        if kind is float and type(data) in (int, float) and math.isfinite(data):
            return float(data)
        raise self.fail(at, f"{_dotted(at)} must be {_TYPE_NAMES.get(kind, kind)}, not {data!r}")

    def _union(self, arguments: tuple[Any, ...], data: Any, at: KeyPath) -> Any:
        if data is None and type(None) in arguments:
            return None
        choices = [argument for argument in arguments if argument is not type(None)]
        if len(choices) == 1:
            return self.value(choices[0], data, at)
        kinds = {typing.get_args(typing.get_type_hints(choice)["kind"])[0]: choice for choice in choices}
        if not isinstance(data, dict) or "kind" not in data:
            raise self.fail(at, f"{_dotted(at)} needs a kind: {', '.join(kinds)}")
        if not isinstance(data["kind"], str) or data["kind"] not in kinds:
            raise self._choice((*at, "kind"), data["kind"], list(kinds))
        return self._dataclass(kinds[data["kind"]], data, at)

    def _dataclass(self, kind: Any, data: Any, at: KeyPath) -> Any:
        if not isinstance(data, dict):
            raise self.fail(at, f"{_dotted(at)} must hold keys, not {data!r}")
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        for key in data:
            if key not in fields:
                known = [new for new in RENAMED_KEYS.get(key, ()) if new in fields] or list(fields)
                raise self.fail((*at, key), f"unknown key {_dotted((*at, key))}{_nearest(key, known)}")
        needed = [
            name
            for name, field in fields.items()
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        ]
        for name in needed:
            if name not in data:
                raise self.fail(at, f"the key {_dotted((*at, name))} is missing")
        values = {key: self.value(hints[key], item, (*at, key)) for key, item in data.items()}
        try:
            return kind(**values)
        except ConfigError:
            raise
        except ValueError as error:
            # A check may name the key it is about as the error's second argument.
            where = (*at, str(error.args[1])) if len(error.args) > 1 else at
            raise self.fail(where, f"{_dotted(where)}: {error.args[0]}" if where else str(error)) from error

    def _choice(self, at: KeyPath, data: Any, known: list[str]) -> ConfigError:
        return self.fail(at, f"{_dotted(at)} cannot be {data!r}{_nearest(str(data), known)}")


_BOUNDS: dict[type, tuple[Callable[[Any, Any], bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "more than"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "less than"),
}
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_TYPE_NAMES = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _dotted(at: KeyPath) -> str:
    return ".".join(at) or "the config"


def _nearest(name: str, known: list[str]) -> str:
    close = known if len(known) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
