"""Config of an index, and a build from it."""

from __future__ import annotations

import glob
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.data.sample_data import SAMPLE, sample_folder
from pipelines.index.defaults import default_retrievers
from pipelines.index.folds import build_folds
from pipelines.index.training_data import training_data
from retrievers.catalogue import FORMATS
from retrievers.catalogue.collection import read_catalogues
from retrievers.catalogue.detect import is_openapi
from retrievers.errors import BadInput
from retrievers.index import Change, build
from retrievers.index.writer import WAIT
from retrievers.kind import Context
from retrievers.lint.limits import admit, listed_sentences
from retrievers.progress import say
from retrievers.registry import RetrieverSettings, check_names
from retrievers.text import FIELDS
from retrievers.types import Tool


@dataclass(frozen=True, slots=True)
class IndexConfig:
    """`rewrite-index build`."""

    index: str
    """Folder to write."""
    catalogue: tuple[str, ...]
    """Files, folders or globs, of any format the readers know, or `bundled:sample`."""
    retrievers: dict[str, RetrieverSettings] = field(default_factory=default_retrievers)
    """name -> kind and settings; by default BM25, `bundled:tools`, `bundled:tools-multilingual` and their hybrid."""
    format: str | None = None
    """Format of the catalogues; None: recognised by their content."""
    text: tuple[str, ...] = field(default=FIELDS)
    """Parts of a tool that are indexed."""
    providers: dict[str, str] = field(default_factory=dict)
    """Entry of `catalogue`, or file in it -> provider of its tools, in place of the one that it names."""

    def __post_init__(self) -> None:
        if not self.catalogue:
            raise BadInput("name at least one catalogue, got none", "catalogue")
        unknown = [part for part in self.text if part not in FIELDS]
        if unknown or not self.text:
            raise BadInput(f"must consist of {', '.join(FIELDS)}, got {', '.join(unknown) or 'nothing'}", "text")
        if self.format is not None and self.format not in FORMATS:
            raise BadInput(f"no format {self.format!r}; formats are {', '.join(FORMATS)}", "format")
        check_names(self.retrievers)


def names_catalogue(path: Path) -> bool:
    """True if a path given in place of a config is a catalogue: no YAML file, or an OpenAPI document."""
    if glob.has_magic(str(path)) or path.suffix.lower() not in (".yaml", ".yml"):
        return True
    return path.is_file() and is_openapi(path.read_text(encoding="utf-8", errors="replace"))


def read_tools(
    sources: tuple[str, ...], format: str | None = None, providers: Mapping[str, str] | None = None
) -> list[Tool]:
    """All tools of several catalogues; what is skipped or renamed is reported on standard error."""
    for source in sources:
        if source.startswith("data/") and not glob.has_magic(source) and not Path(source).exists():
            raise BadInput(f"{source} does not exist; docs/data.md says where the public data sets come from")
    paths = [str(sample_folder()) if source == SAMPLE else source for source in sources]
    return read_catalogues(paths, format, providers, _report)


def admit_tools(tools: Sequence[Tool]) -> list[Tool]:
    """The tools within the limits. The others, and findings about those within, are reported on standard error."""
    admissible = admit(tools)
    if tools and not admissible.tools:
        raise BadInput(f"no tool can be added: {admissible.refused[0]}")
    for sentence in listed_sentences(admissible.refused):
        _report(f"skipped: {sentence}")
    for sentence in listed_sentences([finding.message for finding in admissible.findings]):
        _report(f"flagged: {sentence}")
    return admissible.tools


def _report(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def build_index(
    config: IndexConfig,
    context: Context,
    wait: float = WAIT,
    resume: bool = False,
    tools: Sequence[Tool] | None = None,
) -> Change:
    """Read the catalogues, unless `tools` are given, train, and build."""
    if tools is None:
        say(f"reading {', '.join(config.catalogue)}", context.show_progress)
        tools = read_tools(config.catalogue, config.format, config.providers)
    tools = admit_tools(tools)
    build_folds(Path(config.index), tools, config.retrievers, context, config.text, wait)
    training = training_data(config.retrievers, config.text)
    return build(Path(config.index), tools, config.retrievers, context, config.text, wait, training, resume)
