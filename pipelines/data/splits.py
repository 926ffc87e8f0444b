"""Split protocols that apply to any data set.

official        as published (dev cut from train where it is missing)
unseen-tools    three groups of tools; train, dev and test queries need tools of their own group only
late-tools      some tools come after training; each dev and test query needs at least one of them
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pipelines.data.dataset import DataSet, Gold, stable_hash
from retrievers.errors import BadInput
from retrievers.types import ToolId

Protocol = Literal["official", "unseen-tools", "late-tools"]
SHARES = {"test": 0.20, "dev": 0.12}
"""The share of used tools that is held out for each split."""
LATE, DEV_LATE = 5, 14
"""One tool in 5 comes after training for test, one in 14 for dev."""


def apply_protocol(data: DataSet, protocol: Protocol) -> DataSet:
    """Split a data set by a protocol."""
    return PROTOCOLS[protocol](data)


def unseen_tools(data: DataSet) -> DataSet:
    """Make tools disjoint between train, dev and test.

    Tools that are used together are held out together: drawn at random, hardly any query with several gold tools would
    have them all on one side. Queries whose tools are on different sides are dropped. Test queries come from test only,
    train and dev queries from train and dev only, so that nothing tuned here has seen a test query.
    """
    used = {split: set().union(*gold.values()) for split, gold in data.gold.items()}
    everything = [gold for split in data.gold.values() for gold in split.values()]
    # Where the data set itself keeps tools for its test, those are the unseen ones.
    side: dict[ToolId, str] = dict.fromkeys(
        used.get("test", set()) - used.get("train", set()) - used.get("dev", set()), "test"
    )
    for split, share in SHARES.items():
        for tool in held_out_tools(everything, share, side, split, f"{data.name}/{split}"):
            side[tool] = split
    own: dict[str, Gold] = {"train": {}, "dev": {}, "test": {}}
    dropped: Counter[str] = Counter()
    for source, queries in data.gold.items():
        for query, gold in queries.items():
            sides = {side.get(tool, "train") for tool in gold}
            target = next(iter(sides)) if len(sides) == 1 else None
            # A training query about a test tool must not be trained on; a test query about a training tool belongs
            # to the official test.
            if target is None or (target == "test") != (source == "test"):
                dropped["mixed tools" if target is None else f"{source} queries about {target} tools"] += 1
            else:
                own[target][query] = gold
    if not all(own.values()):
        counts = ", ".join(f"{len(queries)} {split}" for split, queries in own.items())
        raise BadInput(f"{data.name} is too small or too entangled for an unseen-tools split: {counts} queries")
    report = {
        **{f"{split} queries": len(gold) for split, gold in own.items()},
        **{f"{split} tools": len(set().union(*gold.values())) for split, gold in own.items()},
        **{f"dropped: {why}": count for why, count in sorted(dropped.items())},
    }
    return replace(data, gold=own, report=report)


def held_out_tools(
    scenes: Sequence[frozenset[ToolId]], share: float, taken: Mapping[ToolId, str], split: str, salt: str
) -> set[ToolId]:
    """Tools that are mostly used with each other: a group is grown until the split holds its share.

    Grown from a tool picked by hash, each step takes the tool whose queries lie most inside the group; a tool that
    hardly belongs ends the growth and another start is picked.
    """
    together: dict[ToolId, Counter[ToolId]] = defaultdict(Counter)
    uses: Counter[ToolId] = Counter()
    for scene in scenes:
        uses.update(scene)
        for tool in scene:
            together[tool].update(scene - {tool})
    free = {tool for tool in uses if tool not in taken}
    wanted = int(share * len(uses)) - list(taken.values()).count(split)
    group: set[ToolId] = set()
    inside: Counter[ToolId] = Counter()
    starts = sorted(free, key=lambda tool: stable_hash(f"{salt}/{tool}"))
    while len(group) < wanted and starts:
        best = max(
            (tool for tool in inside if tool in free),
            key=lambda tool: (inside[tool] / max(1, together[tool].total()), -uses[tool], tool),
            default=None,
        )
        if best is None or inside[best] / max(1, together[best].total()) < 0.2:
            best = starts.pop(0)
            if best not in free:
                continue
        group.add(best)
        free.discard(best)
        inside.update(together[best])
    return group


def late_tools(data: DataSet) -> DataSet:
    """Let some tools come after training: no training query needs one; each dev and each test query does.

    Where the data set itself keeps tools for its test, those are late; if they are few, one tool in `LATE` is, too.
    Training queries about them are dropped: they are what users may confirm later.
    """
    known = set().union(*(gold for split in ("train", "dev") for gold in data.gold.get(split, {}).values()))
    late = set().union(*data.gold.get("test", {}).values()) - known
    if LATE * len(late) < len(known):
        late |= {tool for tool in known if stable_hash(f"late/{tool}") % LATE == 0}
    dev_late = {tool for tool in known - late if stable_hash(f"late-dev/{tool}") % DEV_LATE == 0}
    queries = {**data.gold.get("train", {}), **data.gold.get("dev", {})}
    gold: dict[str, Gold] = {
        "train": {query: own for query, own in queries.items() if not own & (late | dev_late)},
        "dev": {query: own for query, own in queries.items() if own & dev_late and not own & late},
        "test": {query: own for query, own in data.gold.get("test", {}).items() if own & late},
    }
    if not all(gold.values()):
        counts = ", ".join(f"{len(own)} {split}" for split, own in gold.items())
        raise BadInput(f"{data.name} is too small or too entangled for a late-tools split: {counts} queries")
    report = {f"{split} queries": len(own) for split, own in gold.items()}
    return replace(data, gold=gold, report={**report, "late tools": len(late), "late tools of dev": len(dev_late)})


def leave_one_out(data: Sequence[DataSet], held: str) -> tuple[list[DataSet], DataSet]:
    """All data sets but one to train on, and that one to test on."""
    names = [dataset.name for dataset in data]
    if names.count(held) != 1 or len(names) < 2:
        raise BadInput(f"cannot hold out {held!r} of {', '.join(names) or 'no data sets'}")
    return [dataset for dataset in data if dataset.name != held], data[names.index(held)]


PROTOCOLS: dict[str, Callable[[DataSet], DataSet]] = {
    "official": lambda data: data,
    "unseen-tools": unseen_tools,
    "late-tools": late_tools,
}
