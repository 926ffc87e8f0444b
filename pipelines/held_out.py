"""Search for training and dev: as if a retriever that remembers queries did not know those it is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrievers.base import RemembersQueries, remembers
from retrievers.errors import BadInput
from retrievers.index import Index
from retrievers.index import manifest as manifests
from retrievers.index.manifest import Manifest
from retrievers.settings import hybrid_parts
from retrievers.types import Ranking

MAX_LEARNED = 0.05
"""Share of queries that every fold may have learned, as those with copies in several."""


class HeldOutSearch:
    """Answers each utterance by an index that was not trained on it, without votes of near copies and dev queries.

    An utterance that every index has learned, such as one with copies in several folds, is answered by the first.
    """

    def __init__(self, whole: RemembersQueries, folds: Sequence[RemembersQueries]) -> None:
        self._retrievers = [whole, *folds]
        self._owner: dict[str, int] = {}

    @property
    def has_folds(self) -> bool:
        return len(self._retrievers) > 1

    def count_learned(self, utterances: Sequence[str]) -> int:
        """Utterances that the weights of every index were trained on."""
        return sum(map(all, zip(*(retriever.learned(utterances) for retriever in self._retrievers), strict=True)))

    def search(self, texts: Sequence[str], k: int, utterances: Sequence[str]) -> list[Ranking]:
        """One ranking per text, each written for one utterance."""
        self._assign(utterances)
        rankings = [Ranking()] * len(texts)
        for number, retriever in enumerate(self._retrievers):
            rows = [row for row, utterance in enumerate(utterances) if self._owner[utterance] == number]
            if rows:
                own = retriever.search_held_out([texts[row] for row in rows], k, [utterances[row] for row in rows])
                for row, ranking in zip(rows, own, strict=True):
                    rankings[row] = ranking
        return rankings

    def _assign(self, utterances: Sequence[str]) -> None:
        """Note the first index that has not learned each utterance."""
        new = [utterance for utterance in dict.fromkeys(utterances) if utterance not in self._owner]
        if not new:
            return
        rows = zip(*(retriever.learned(new) for retriever in self._retrievers), strict=True)
        for utterance, learned in zip(new, rows, strict=True):
            self._owner[utterance] = 0 if all(learned) else learned.index(False)


def open_held_out(index: Index, name: str) -> HeldOutSearch | None:
    """The held-out search of a retriever; None if it remembers no queries."""
    retriever = index.retriever(name)
    if not remembers(retriever):
        return None
    folds = [fold.retriever(name) for fold in open_folds(index, name)]
    return HeldOutSearch(retriever, [fold for fold in folds if remembers(fold)])


def refuse_learned(search: HeldOutSearch | None, utterances: Sequence[str], name: str) -> None:
    """Refuse to train a rewriter on queries that the retriever has learned, unless folds can answer them."""
    if search is None:
        return
    count = search.count_learned(utterances)
    if count and not search.has_folds:
        raise BadInput(
            f"the retriever {name!r} was trained on {count} of these {len(utterances)} queries, so its answers to them "
            "are too good to train a rewriter with; build the index with `train.folds: 3`, whose folds answer them"
        )
    if count > MAX_LEARNED * len(utterances):
        raise BadInput(
            f"every fold of the retriever {name!r} has learned {count} of these {len(utterances)} queries, so no "
            "rewriter can be trained with its answers to them; build the index again from this data set"
        )


def fold_folder(index: Path, fold: int) -> Path:
    """Folder of a fold's index."""
    return index.absolute().with_name(f"{index.absolute().name}.folds") / str(fold)


def count_folds(manifest: Manifest, names: Iterable[str]) -> int:
    """Folds that these retrievers of an index were built with."""
    training = [manifest.retrievers[name].settings.get("train") or {} for name in names]
    return max((int(own.get("folds") or 0) for own in training), default=0)


def open_folds(index: Index, retriever: str) -> list[Index]:
    """Opened indexes of the folds of a retriever; none if it was built without."""
    part = index.manifest.retrievers[retriever]
    names = [retriever, *hybrid_parts(part.settings)]
    settings, count = [index.manifest.retrievers[name].settings for name in names], count_folds(index.manifest, names)
    opened = []
    for fold in range(count):
        folder = fold_folder(index.folder, fold)
        if not (folder / manifests.NAME).exists():
            raise BadInput(f"{folder} is missing: {index.name} was built with {count} folds; build it again")
        opened.append(Index(folder, index.context))
        missing = [name for name in names if name not in opened[-1].manifest.retrievers]
        if missing:
            raise BadInput(
                f"{retriever!r} of {index.name} cannot be held out: {missing[0]!r} is trained, and has no folds; "
                "leave it out, or train the rewriter in front of another retriever"
            )
        theirs = [opened[-1].manifest.retrievers[name].settings for name in names]
        if [_without_fold(own) for own in theirs] != [_without_fold(own) for own in settings]:
            raise BadInput(f"{folder} was built with other settings than {index.name}; build it again")
        if opened[-1].tools.keys() != index.tools.keys():
            raise BadInput(f"{folder} has other tools than {index.name}; build it again")
    return opened


def _without_fold(settings: Mapping[str, Any]) -> dict[str, Any]:
    training = settings.get("train")
    return {**settings, "train": training and {**training, "left_out_fold": None}}
