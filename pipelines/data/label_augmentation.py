"""More labels out of those there are: the catalogue's own queries need a tool, and so do requests of many steps.

Labelled chats are long and labelled requests short, in most sets: what learns from them alone turns away a long
request. So several texts of one kind are joined, of both kinds, and length no longer gives the label away. All draws
come from the texts, so that the same labels give the same again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from pipelines.data.dataset import stable_hash
from retrievers.training_set import Labels

BETWEEN = (" ", " Then: ", " After that, ", "\n", " Also, ", " and ", "\n\n")
STEPS = {True: 6, False: 4}
"""Texts joined at the most."""
LONGEST = 3000
"""Characters: what an encoder reads of a text is less."""


def with_own(labels: Labels, queries: Sequence[str], share: float, without: Iterable[str] = ()) -> Labels:
    """The catalogue's queries beside the labelled ones: `share` for each that needs a tool, drawn by their hashes.

    `without` are texts of the other split.
    """
    known = {*labels.queries, *without}
    order = sorted((query for query in dict.fromkeys(queries) if query not in known), key=stable_hash)
    chosen = order[: round(share * sum(labels.needs))]
    return Labels((*labels.queries, *chosen), (*labels.needs, *(True for _ in chosen)))


def with_joined(labels: Labels, share: float) -> Labels:
    """Beside the labels, `share` for each, texts of several of one kind."""
    chance = random.Random(stable_hash("\n".join(labels.queries)))
    texts, needs = list(labels.queries), list(labels.needs)
    for kind, most in STEPS.items():
        there = [text for text, each in zip(labels.queries, labels.needs, strict=True) if each == kind]
        for _ in range(round(share * len(there)) if len(there) > 1 else 0):
            some = chance.sample(there, min(len(there), chance.randint(2, most)))
            texts.append(chance.choice(BETWEEN).join(some)[:LONGEST])
            needs.append(kind)
    return Labels(tuple(texts), tuple(needs))
