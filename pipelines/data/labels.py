"""Labels of a data set folder: which queries need a tool at all (labels/{train,dev,test}.tsv)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from pipelines.data.dataset import DEV_SHARE, SPLITS, read_lines, read_queries, stable_hash
from pipelines.data.sample_data import SAMPLE, sample_folder
from retrievers.errors import BadInput


@dataclass(frozen=True, slots=True)
class Label:
    """One labelled query."""

    id: str
    text: str
    needs: bool
    source: str = ""
    """The third column of the file."""


@dataclass(frozen=True, slots=True)
class LabelSet:
    """Labelled queries by split; a missing dev is cut from train, never from test."""

    name: str
    splits: dict[str, list[Label]] = field(default_factory=dict)

    def split(self, name: str) -> list[Label]:
        """The labels of one split, which must not be empty."""
        if not self.splits.get(name):
            raise BadInput(f"{self.name} has no labels in its {name} split")
        return self.splits[name]


def has_labels(reference: str) -> bool:
    """True for a folder that labels its queries."""
    return (_folder(reference) / "labels").is_dir()


def load_labels(reference: str) -> LabelSet:
    """The labels of a folder, or of `bundled:sample`."""
    folder = _folder(reference)
    if not (folder / "labels").is_dir():
        raise BadInput(f"{folder} has no labels; a folder of labels has queries.jsonl and labels/train.tsv")
    queries = read_queries(folder / "queries.jsonl")
    splits: dict[str, list[Label]] = {}
    for split in SPLITS:
        path = folder / "labels" / f"{split}.tsv"
        if not path.exists():
            continue
        splits[split] = []
        for number, line in read_lines(path):
            cells = [cell.strip() for cell in line.split("\t")]
            if number == 1 and cells[0] == "query-id":
                continue
            if len(cells) not in (2, 3) or cells[1] not in ("0", "1"):
                raise BadInput(f"{path}:{number}: a row is query-id, 0 or 1, and an optional source, separated by tabs")
            if cells[0] not in queries:
                raise BadInput(f"{path}:{number}: the query {cells[0]!r} is not in queries.jsonl")
            splits[split].append(Label(cells[0], queries[cells[0]].text, cells[1] == "1", *cells[2:]))
    if "dev" not in splits and "train" in splits:
        train = splits["train"]
        splits["train"] = [label for label in train if stable_hash(label.id) % DEV_SHARE]
        splits["dev"] = [label for label in train if stable_hash(label.id) % DEV_SHARE == 0]
    return LabelSet(folder.name, splits)


def _folder(reference: str) -> Path:
    return sample_folder() if reference == SAMPLE else Path(reference)
