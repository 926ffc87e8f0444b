"""Augment labels: queries of the catalogue need a tool, and so do joined requests.

In most sets labelled chats are long and labelled requests short, so a detector trained on them refuses long requests.
Joining several texts of one label, for both labels, breaks that link. All draws are seeded by the texts.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from pipelines.data.dataset import stable_hash
from retrievers.training_set import Labels

BETWEEN = (" ", " Then: ", " After that, ", "\n", " Also, ", " and ", "\n\n")
STEPS = {True: 6, False: 4}
"""Maximum number of joined texts per label."""
MAX_CHARACTERS = 3000
"""More than an encoder reads of a text."""


def add_catalogue_queries(labels: Labels, queries: Sequence[str], share: float, without: Iterable[str] = ()) -> Labels:
    """Add queries of the catalogue, `share` per label that needs a tool, drawn by hash, without those of `without`."""
    known = {*labels.queries, *without}
    order = sorted((query for query in dict.fromkeys(queries) if query not in known), key=stable_hash)
    chosen = order[: round(share * sum(labels.needs))]
    return Labels((*labels.queries, *chosen), (*labels.needs, *(True for _ in chosen)))


def add_joined_texts(labels: Labels, share: float) -> Labels:
    """Add texts joined from several of one label, `share` per label."""
    chance = random.Random(stable_hash("\n".join(labels.queries)))
    texts, needs = list(labels.queries), list(labels.needs)
    for label, limit in STEPS.items():
        same = [text for text, needed in zip(labels.queries, labels.needs, strict=True) if needed == label]
        for _ in range(round(share * len(same)) if len(same) > 1 else 0):
            some = chance.sample(same, min(len(same), chance.randint(2, limit)))
            texts.append(chance.choice(BETWEEN).join(some)[:MAX_CHARACTERS])
            needs.append(label)
    return Labels(tuple(texts), tuple(needs))
