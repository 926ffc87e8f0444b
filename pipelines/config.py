"""YAML -> frozen dataclasses. A key nobody reads is an error that names the nearest one that somebody does."""

from __future__ import annotations

import argparse
import dataclasses
import difflib
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
from retrievers.errors import BadInput

Config = TypeVar("Config")
Path_ = tuple[str, ...]


class ConfigError(BadInput):
    """A config that cannot be meant; the message names file, line and key."""


def load(path: Path, kind: type[Config], overrides: Sequence[str] = ()) -> Config:
    """The config in a file, with `dotted.key=value` overrides on top."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = difflib.get_close_matches(path.name, [each.name for each in path.parent.glob("*.y*ml")], n=1)
        way = f"did you mean {path.parent / near[0]}?" if near else "configs/ has those that ship, one folder a command"
        raise ConfigError(f"no config file {path}; {way}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start})") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error})") from error
    lines: dict[Path_, int] = {}
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = _plain(root, (), lines, path) if root else {}
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        raise ConfigError(f"{place}: not valid YAML ({getattr(error, 'problem', error)})") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be a config") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path}:1: a config is a mapping of keys to values")
    return parse(kind, _override(data, overrides), str(path), lines)


def load_from_args(arguments: argparse.Namespace, kind: type[Config]) -> Config | None:
    """The config that a command was given; None, once it is printed, where nothing else is wanted."""
    config = load(arguments.config, kind, arguments.set)
    if not arguments.dry_run:
        return config
    sys.stdout.write(dump(config))
    return None


def parse(kind: type[Config], data: Any, source: str = "config", lines: dict[Path_, int] | None = None) -> Config:
    """A dataclass out of plain data."""
    result: Config = _Builder(source, lines or {}).value(kind, data, ())
    return result


def dump(config: Any) -> str:
    """The resolved config as YAML."""
    return yaml.safe_dump(_simple(config), sort_keys=False, allow_unicode=True)


def _simple(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _simple(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _simple(item) for key, item in value.items()}
    return [_simple(item) for item in value] if isinstance(value, (list, tuple)) else value


def _plain(node: yaml.Node, at: Path_, lines: dict[Path_, int], path: Path) -> Any:
    """Plain data, remembering the line of every key."""
    lines[at] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            name, line = str(key.value), key.start_mark.line + 1
            if name in found:
                raise ConfigError(f"{path}:{line}: the key {'.'.join((*at, name))} stands twice")
            found[name] = _plain(value, (*at, name), lines, path)
            lines[*at, name] = line
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*at, str(i)), lines, path) for i, item in enumerate(node.value)]
    return _scalar(node, f"{path}:{node.start_mark.line + 1}: {_dotted(at)}")


def _scalar(node: yaml.Node, place: str) -> Any:
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{place} holds a value that YAML cannot read; put it in quotes if it is text") from error
    finally:
        loader.dispose()
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{place} holds a NUL character")
    return value


def _override(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    for text in overrides:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"--set takes key=value, not {text!r}")
        *way, last = key.strip().split(".")
        place: Any = data
        for name in way:
            place = _step(place, name, key)
        try:
            node = yaml.compose(value, Loader=yaml.SafeLoader)
            new = _plain(node, (key,), {}, Path("--set")) if node else None
            if isinstance(place, list):
                place[int(last)] = new
            else:
                place[last] = new
        except (IndexError, TypeError) as error:
            raise ConfigError(f"--set {key}: there is no such place") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"--set {text!r}: the value is not valid YAML") from error
    return data


def _step(place: Any, name: str, key: str) -> Any:
    """One name further into the data: a key, or the number of an item."""
    try:
        inner = place[int(name)] if isinstance(place, list) else place.setdefault(name, {})
    except (ValueError, IndexError) as error:
        raise ConfigError(f"--set {key}: {name} is no item of that list") from error
    if not isinstance(inner, (dict, list)):
        raise ConfigError(f"--set {key}: {name} holds a value, not keys")
    return inner


class _Builder:
    """Turns plain data into typed values, one method a shape."""

    def __init__(self, source: str, lines: dict[Path_, int]) -> None:
        self._source, self._lines = source, lines

    def fail(self, at: Path_, message: str) -> ConfigError:
        line = next((self._lines[at[:n]] for n in range(len(at), 0, -1) if at[:n] in self._lines), None)
        return ConfigError(f"{self._source}{f':{line}' if line else ''}: {message}")

    def value(self, kind: Any, data: Any, at: Path_) -> Any:
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
            # One value stands for a list of one.
            items = data if isinstance(data, list) else [data]
            return tuple(self.value(arguments[0], item, (*at, str(i))) for i, item in enumerate(items))
        if origin is dict:
            if not isinstance(data, dict):
                raise self.fail(at, f"{_dotted(at)} must hold keys, not {data!r}")
            return {key: self.value(arguments[1], item, (*at, key)) for key, item in data.items()}
        return self._scalar(kind, data, at)

    def _in_range(self, value: Any, bounds: Sequence[Any], at: Path_) -> Any:
        """Checks the range that a field's annotation states: the one place where ranges are checked."""
        for bound in (one for group in bounds for one in (group if isinstance(group, Interval) else (group,))):
            holds, words = _BOUNDS[type(bound)]
            limit = getattr(bound, type(bound).__name__.lower())
            if not holds(value, limit):
                raise self.fail(at, f"{_dotted(at)} must be {words} {limit:g}, got {value:g}")
        return value

    def _scalar(self, kind: Any, data: Any, at: Path_) -> Any:
        if kind is Any or (kind is not float and type(data) is kind):
            return data
        if kind is float and isinstance(data, str) and _EXPONENT.fullmatch(data):
            data = float(data)  # YAML 1.1 takes 2e-4 for text
        if kind is float and type(data) in (int, float) and math.isfinite(data):
            return float(data)
        raise self.fail(at, f"{_dotted(at)} must be {_SPOKEN.get(kind, kind)}, not {data!r}")

    def _union(self, arguments: tuple[Any, ...], data: Any, at: Path_) -> Any:
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

    def _dataclass(self, kind: Any, data: Any, at: Path_) -> Any:
        if not isinstance(data, dict):
            raise self.fail(at, f"{_dotted(at)} must hold keys, not {data!r}")
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = {field.name: field for field in dataclasses.fields(kind)}
        for key in data:
            if key not in fields:
                known = [RENAMED_KEYS[key]] if RENAMED_KEYS.get(key) in fields else list(fields)
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
            place = (*at, str(error.args[1])) if len(error.args) > 1 else at
            raise self.fail(place, f"{_dotted(place)}: {error.args[0]}" if place else str(error)) from error

    def _choice(self, at: Path_, data: Any, known: list[str]) -> ConfigError:
        return self.fail(at, f"{_dotted(at)} cannot be {data!r}{_nearest(str(data), known)}")


_BOUNDS: dict[type, tuple[Callable[[Any, Any], bool], str]] = {
    Ge: (operator.ge, "at least"),
    Gt: (operator.gt, "more than"),
    Le: (operator.le, "at most"),
    Lt: (operator.lt, "less than"),
}
_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+")
_SPOKEN = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def _dotted(at: Path_) -> str:
    return ".".join(at) or "the config"


def _nearest(name: str, known: list[str]) -> str:
    close = known if len(known) == 1 else difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
