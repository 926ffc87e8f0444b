"""Ways to fuse BM25 with an encoder, on catalogues left out of training.

    python benchmarks/hybrid_fusion.py FOLDER [...] [--encoder base] [--encoder "0.5 int8"] [--out FILE]

A FOLDER holds the `rankings.npz` of `benchmarks/encoder_forms.py`: the first fifty tools by BM25 and by each form of
an encoder, with their scores, for each left-out set. Prints R@5 per set of every fusion, the unit of BM25's scores
that the other sets choose for each set, and p (Holm over the sets) of adding scores against reciprocal rank fusion;
then a table of R@5, N@5 and C@5 from untrained to new, with p of the last encoder's hybrid against the first encoder
and its hybrid by ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness import make_parser, write_json

from pipelines.evaluate.significance import holm, randomisation_test
from retrievers.fusion import DEPTH, add_scores, reciprocal_rank, weighted
from retrievers.lexical.bm25 import SCORE_UNIT
from retrievers.types import Ranking
from reward.metrics import measure_rankings

UNITS = (40.0, 50.0, 60.0, 75.0, 90.0, 100.0, 120.0, 150.0, 200.0)
METRICS = ("recall@5", "ndcg@5", "comp@5")
Fusion = Callable[[Sequence[Ranking]], Ranking]


@dataclass(frozen=True, slots=True)
class Lists:
    """Rankings of one set by BM25 and by each encoder, and the tools that each query needs."""

    rankings: Mapping[str, list[Ranking]]
    gold: list[set[str]]

    def recall(self, fuse: Fusion, encoder: str) -> np.ndarray:
        """R@5 of each query."""
        return self.measure(fuse, encoder)["recall@5"]

    def measure(self, fuse: Fusion, encoder: str) -> dict[str, np.ndarray]:
        """R@5, N@5 and C@5 of each query."""
        pairs = zip(self.rankings["bm25"], self.rankings[encoder], strict=True)
        return measure_rankings(METRICS, [fuse(lists).ids[:5] for lists in pairs], self.gold)


def read_lists(folder: Path) -> dict[str, Lists]:
    """The sets of one file of rankings."""
    arrays = np.load(folder / "rankings.npz", allow_pickle=False)
    sets: dict[str, Lists] = {}
    for name in sorted({key.split("|")[0] for key in arrays.files}):
        ends = np.cumsum(arrays[f"{name}|gold_sizes"])
        gold = [set(map(_tool_id, part)) for part in np.split(arrays[f"{name}|gold"], ends[:-1])]
        forms = {key.split("|")[1] for key in arrays.files if key.startswith(f"{name}|") and key.endswith("|rows")}
        sets[name] = Lists(
            {form: _rankings(arrays[f"{name}|{form}|rows"], arrays[f"{name}|{form}|scores"]) for form in forms}, gold
        )
    return sets


def _tool_id(row: int) -> str:
    """An id that sorts like the row, since equal scores are ranked by id."""
    return f"{row:06d}"


def _rankings(rows: np.ndarray, scores: np.ndarray) -> list[Ranking]:
    """Rankings, filled up to the depth of a fusion with their last score, so that it counts as their lowest."""
    rankings = []
    for own, values in zip(rows, scores.astype(float), strict=True):
        known = own >= 0
        rest = DEPTH - len(own) if known.all() else 0
        ids = [*map(_tool_id, own[known]), *(f"none-{number}" for number in range(rest))]
        rankings.append(Ranking(tuple(ids), (*values[known].tolist(), *[float(values[-1])] * rest)))
    return rankings


def add_with(unit: float) -> Fusion:
    """Add scores, BM25's in this unit."""
    return lambda lists: add_scores(lists, 5, (unit, 1.0))


FUSIONS: Mapping[str, Fusion] = {
    "bm25": lambda lists: lists[0],
    "dense": lambda lists: lists[1],
    "rrf": lambda lists: reciprocal_rank(lists, 5, (1, 1), 60.0),
    "rrf .6 : 1.4": lambda lists: reciprocal_rank(lists, 5, (0.6, 1.4), 60.0),
    "rrf, k 5": lambda lists: reciprocal_rank(lists, 5, (1, 1), 5.0),
    "scaled .5 : .5": lambda lists: weighted(lists, 5, (0.5, 0.5)),
    "scaled .3 : .7": lambda lists: weighted(lists, 5, (0.3, 0.7)),
    "added": add_with(SCORE_UNIT),
}


def compare(sets: Mapping[str, Lists], encoder: str) -> dict[str, object]:
    """Print and return the figures of one encoder."""
    values = {name: {set_: own.recall(fuse, encoder) for set_, own in sets.items()} for name, fuse in FUSIONS.items()}
    print(f"\n{encoder}\n{'':16s}{' '.join(f'{name[:9]:>9s}' for name in sets)}      mean  worst against better part")
    better = [max(values["bm25"][name].mean(), values["dense"][name].mean()) for name in sets]
    for fusion, own in values.items():
        means = [scores.mean() for scores in own.values()]
        worst = min(mean - part for mean, part in zip(means, better, strict=True))
        print(f"{fusion:16s}{' '.join(f'{mean:9.3f}' for mean in means)}  {np.mean(means):8.4f}  {worst:+.3f}")
    by_unit = {unit: {name: own.recall(add_with(unit), encoder).mean() for name, own in sets.items()} for unit in UNITS}
    chosen = {
        name: max(UNITS, key=lambda unit: np.mean([by_unit[unit][other] for other in sets if other != name]))
        for name in sets
    }
    left_out = {name: float(by_unit[unit][name]) for name, unit in chosen.items()}
    print("unit chosen on the other sets:", {name: f"{unit:g}: {left_out[name]:.3f}" for name, unit in chosen.items()})
    tests = [randomisation_test((values["added"][name] - values["rrf"][name])[:, None])[0] for name in sets]
    corrected = dict(zip(sets, holm(tests), strict=True))
    print("p, added against rrf:", {name: f"{p:.4f}" for name, p in corrected.items()})
    recall = {fusion: {name: float(own[name].mean()) for name in sets} for fusion, own in values.items()}
    return {"recall@5": recall, "units": {str(unit): own for unit, own in by_unit.items()}, "p": corrected}


def show_table(sets: Mapping[str, Lists], first: str, last: str) -> dict[str, object]:
    """Print and return R@5, N@5 and C@5 of five systems, and p of the last against the second and the third."""
    systems = [("bm25", first), ("dense", first), ("rrf", first), ("dense", last), ("added", last)]
    print("\n| set | BM25 | MiniLM | old hybrid | new encoder | new hybrid | p, MiniLM | p, old hybrid |")
    values = {
        name: [own.measure(FUSIONS[fusion], encoder) for fusion, encoder in systems] for name, own in sets.items()
    }
    corrected = []
    for rival in (1, 2):
        tests = [
            randomisation_test((own[4]["recall@5"] - own[rival]["recall@5"])[:, None])[0] for own in values.values()
        ]
        corrected.append(holm(tests))
    means = {name: [[scores[metric].mean() for metric in METRICS] for scores in own] for name, own in values.items()}
    rows = {**means, "mean": np.mean(list(means.values()), axis=0).tolist()}
    for number, (name, cells) in enumerate(rows.items()):
        shown = [" / ".join(f"{value:.3f}"[1:] for value in cell) for cell in cells]
        p = [f"{column[number]:.3f}" if number < len(values) else "" for column in corrected]
        print(f"| {name} | " + " | ".join([*shown, *p]) + " |")
    return {"metrics": rows, "p": [list(map(float, column)) for column in corrected]}


def main() -> None:
    """Compare the fusions."""
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--encoder", action="append", help="repeatable (default: base and 0.5 int8)")
    chosen = parser.parse_args()
    sets = {name: lists for folder in chosen.folders for name, lists in read_lists(folder).items()}
    encoders = chosen.encoder or ["base", "0.5 int8"]
    facts = {encoder: compare(sets, encoder) for encoder in encoders}
    write_json(chosen.out, facts | {"table": show_table(sets, encoders[0], encoders[-1])})


if __name__ == "__main__":
    main()
