"""Examples to learn from: an utterance, the tools it was shown, the lines that should be answered."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rewrite.errors import Unfit
from rewrite.types import Ask


@dataclass(frozen=True, slots=True)
class Example:
    """One line of a targets file."""

    id: str
    utterance: str
    lines: tuple[str, ...]
    """One a gold tool; none: the query is better left alone."""
    gold: tuple[str, ...]
    candidates: tuple[str, ...] = ()

    @property
    def ask(self) -> Ask:
        """What the rewriter will be given."""
        return Ask(self.utterance, self.candidates)


def read_examples(path: Path) -> list[Example]:
    """The examples of a targets file."""
    found: list[Example] = []
    try:
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                lists = {key: tuple(map(str, row[key])) for key in ("lines", "gold", "candidates")}
                found.append(Example(str(row["id"]), str(row["utterance"]), **lists))
    except FileNotFoundError as error:
        raise Unfit(f"no examples in {path.parent}; make them with `rewrite-train targets`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise Unfit(f"{path}:{len(found) + 1}: not an example as `rewrite-train targets` writes it") from error
    return found


def write_examples(examples: Sequence[Example]) -> str:
    """The content of a targets file."""
    return "".join(json.dumps(asdict(example), ensure_ascii=False) + "\n" for example in examples)


def mix(sources: Sequence[tuple[Sequence[Example], float]], seed: int) -> list[Example]:
    """Examples of several sources: a weight of 2 takes each twice, of 0.5 every second one, drawn by the seed."""
    mixed: list[Example] = []
    for number, (examples, weight) in enumerate(sources):
        whole, part = divmod(weight, 1)
        chance = random.Random(f"{seed}/{number}")
        mixed.extend(list(examples) * int(whole))
        mixed.extend(chance.sample(list(examples), -int(-part * len(examples) // 1)))
    random.Random(seed).shuffle(mixed)
    return mixed
