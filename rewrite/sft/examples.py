"""Training examples: an utterance, the tools it was shown, and the lines of the right answer."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rewrite.errors import RewriteError
from rewrite.types import RewriteRequest


@dataclass(frozen=True, slots=True)
class Example:
    """One line of a targets file."""

    id: str
    utterance: str
    lines: tuple[str, ...]
    """One line per gold tool; empty: the query is better left alone."""
    gold: tuple[str, ...]
    candidates: tuple[str, ...] = ()

    @property
    def request(self) -> RewriteRequest:
        """The rewriter's input."""
        return RewriteRequest(self.utterance, self.candidates)


def read_examples(path: Path) -> list[Example]:
    """Reads a targets file."""
    examples: list[Example] = []
    try:
        with path.open(encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                lists = {key: tuple(map(str, row[key])) for key in ("lines", "gold", "candidates")}
                examples.append(Example(str(row["id"]), str(row["utterance"]), **lists))
    except FileNotFoundError as error:
        raise RewriteError(f"no examples in {path.parent}; make them with `rewrite-train targets`") from error
    except (ValueError, KeyError, TypeError) as error:
        raise RewriteError(
            f"{path}:{len(examples) + 1}: not an example as `rewrite-train targets` writes it"
        ) from error
    return examples


def write_examples(examples: Sequence[Example]) -> str:
    """Content of a targets file."""
    return "".join(json.dumps(asdict(example), ensure_ascii=False) + "\n" for example in examples)


def mix_examples(sources: Sequence[tuple[Sequence[Example], float]], seed: int) -> list[Example]:
    """Shuffles examples of several sources: weight 2 takes each twice, 0.5 a random half."""
    mixed: list[Example] = []
    for number, (examples, weight) in enumerate(sources):
        whole, part = divmod(weight, 1)
        rng = random.Random(f"{seed}/{number}")
        mixed.extend(list(examples) * int(whole))
        mixed.extend(rng.sample(list(examples), -int(-part * len(examples) // 1)))
    random.Random(seed).shuffle(mixed)
    return mixed
