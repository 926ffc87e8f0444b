"""Several catalogues read as one: files, folders and globs.

A data set and a tree of ToolBench are one catalogue; of any other folder, every JSON, YAML and CSV file is one. What
cannot be read is reported and skipped, as long as anything can. No file takes over the ids of another: an API whose
ids are taken is named with its version or its file, and where that is no way out, the two files are named.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retrievers.catalogue import read_source
from retrievers.catalogue.paths import CataloguePath, expand
from retrievers.catalogue.source import CatalogueSource
from retrievers.errors import BadInput
from retrievers.types import Tool

Report = Callable[[str], None]
MAX_REPORTS = 20
"""Wrong entries of a file that are named; the others are counted."""


def read_catalogues(
    sources: Sequence[str],
    format: str | None = None,
    providers: Mapping[str, str] | None = None,
    report: Report = lambda sentence: None,
) -> list[Tool]:
    """The tools of several files, folders and globs.

    `providers` names the provider of a file, or of all files of a source. `report` takes a sentence about everything
    that is skipped or renamed.
    """
    paths = expand(sources)
    collection = _Collection(format, _providers(providers or {}, paths), report)
    for path in paths:
        try:
            tools = collection.read(path)
        except BadInput as error:
            collection.failed.append((path, str(error)))
        else:
            collection.merge(path, tools)
    return collection.finish(paths)


@dataclass
class _Collection:
    format: str | None
    providers: Mapping[CataloguePath, str]
    report: Report
    tools: dict[str, Tool] = field(default_factory=dict)
    owners: dict[str, Path] = field(default_factory=dict)
    included: set[Path] = field(default_factory=set)
    failed: list[tuple[CataloguePath, str]] = field(default_factory=list)

    def read(self, path: CataloguePath) -> list[Tool]:
        """The tools of one file or folder; entries that are wrong are reported."""
        skipped: list[str] = []
        tools = self._read(path, self.providers.get(path, ""), skipped)
        sentences = list(dict.fromkeys(skipped))
        for sentence in sentences[:MAX_REPORTS]:
            self.report(f"skipped: {sentence}")
        if len(sentences) > MAX_REPORTS:
            self.report(f"skipped: {len(sentences) - MAX_REPORTS} more entries of {path.path}")
        return tools

    def merge(self, path: CataloguePath, tools: Sequence[Tool]) -> None:
        """Add the tools of one file or folder, under other ids where theirs are taken."""
        # Equal calls are one operation; equal tools of two MCP servers may do different things.
        fresh = [tool for tool in tools if not tool.call or self.tools.get(tool.id) != tool]
        taken = [tool for tool in fresh if tool.id in self.tools]
        if taken:
            fresh = self._renamed(path, taken)
        elif len(fresh) < len(tools):
            owner = next(self.owners[tool.id] for tool in tools if tool.id in self.owners)
            self.report(f"skipped: {len(tools) - len(fresh)} tools of {path.path} are the same in {owner}")
        self.tools |= {tool.id: tool for tool in fresh}
        self.owners |= {tool.id: path.path for tool in fresh}

    def finish(self, paths: Sequence[CataloguePath]) -> list[Tool]:
        """All tools; reports the files that failed, except parts of documents that were read."""
        failed = [(path, why) for path, why in self.failed if path.path.resolve() not in self.included]
        if not self.tools:
            _, why = (failed or self.failed)[0]
            raise BadInput(
                why if len(paths) == 1 else f"none of {len(paths)} files holds tools that can be read: {why}"
            )
        for _, why in failed:
            self.report(f"skipped: {why}")
        return list(self.tools.values())

    def _read(self, path: CataloguePath, provider: str, skipped: list[str]) -> list[Tool]:
        source = CatalogueSource.at(path.path, provider, skipped.append, path.folder)
        try:
            return read_source(source, self.format)
        except BadInput as error:
            if skipped:
                raise BadInput(skipped[0]) from error
            raise
        finally:
            self.included |= source.included

    def _renamed(self, path: CataloguePath, taken: Sequence[Tool]) -> list[Tool]:
        """The tools of an API under a name of its own; an error where the file, or its user, has chosen the ids."""
        first = taken[0]
        names = [] if path in self.providers else self._other_names(path.path, first)
        for name in names:
            renamed = self._read(path, name, [])
            if not any(tool.id in self.tools for tool in renamed):
                self.report(
                    f"{path.path}: {len(taken)} of its ids are taken by {self.owners[first.id]}; its tools have the "
                    f"provider {name!r} instead"
                )
                return renamed
        raise BadInput(
            f"the tool id {first.id!r} is both in {self.owners[first.id]} and in {path.path}; leave one out, or name "
            "the provider of one (`providers` in a config, --provider FILE=NAME, `rewrite-index mcp --name`)"
        )

    def _other_names(self, path: Path, tool: Tool) -> list[str]:
        """Names for an API whose title another one has: with its version, or with what its path has more."""
        if not tool.call:
            return []
        other = {word.lower() for word in _words(self.owners[tool.id])}
        more = " ".join(word for word in _words(path) if word.lower() not in other)
        version, its_version = _version(tool), _version(self.tools[tool.id])
        major = _major(version) if _major(version) != _major(its_version) else ""
        names = [f"v{major}" if major else "", more, version if version != its_version else "", path.stem]
        return [f"{tool.provider} {name}" for name in names if name]


def _version(tool: Tool) -> str:
    return str(json.loads(tool.call).get("version", "")) if tool.call else ""


def _major(version: str) -> str:
    match = re.match(r"v?(\d{1,3})(?:\.|$)", version)
    return match[1] if match else ""


def _words(path: Path) -> list[str]:
    return [word for word in re.split(r"[\W_]+", str(path.with_suffix(""))) if word]


def _providers(providers: Mapping[str, str], paths: Sequence[CataloguePath]) -> dict[CataloguePath, str]:
    """The provider of each path; a file's own entry counts before that of its source."""
    named: dict[CataloguePath, str] = {}
    used: set[str] = set()
    for path in paths:
        for key in (str(path.path), path.source):
            if key in providers and path not in named:
                named[path] = providers[key]
                used.add(key)
    unused = [key for key in providers if key not in used]
    if unused:
        raise BadInput(f"providers: no catalogue is called {unused[0]!r}; name a file or source as `catalogue` does")
    return named
