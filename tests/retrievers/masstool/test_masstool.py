"""MassTool on made-up vectors: what is computed, held against plain loops; what is learned; what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from masstool_data import CONTEXT
from torch.nn import functional

from retrievers.masstool import losses
from retrievers.masstool.faithful import double_softmax, trainer_class
from retrievers.masstool.graph import (
    draw_dropout,
    dropout_views,
    full_view,
    make_edges,
    to_neighbours,
    to_queries,
    to_scenes,
    to_tools,
)
from retrievers.masstool.model import Heads
from retrievers.masstool.neighbour_transfer import transferred_shifts
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.settings import MassToolSettings, MassToolTraining, Modules, Transfer
from retrievers.masstool.training.checkpoints import load_checkpoint, save_checkpoint
from retrievers.masstool.training.detection_threshold import best_threshold
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.step_sampler import select_neighbours
from retrievers.masstool.training.tensors import DevMetrics, LabelledVectors, TrainingTensors, nearest, no_labels
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.settings import TrainingSource
from reward.metrics import measure_rankings

TRAIN = MassToolTraining(
    data=(TrainingSource("toy"),),
    own_labels=0.0,
    joined_labels=0.0,
    epochs=4,
    batch_size=64,
    learning_rate=3e-3,
    patience=9,
)
SETTINGS = MassToolSettings(train=TRAIN, threshold=0.5, neighbours=5)
TOOLS, WIDTH, SCENES = 40, 24, 30


def unit(values: torch.Tensor) -> torch.Tensor:
    return functional.normalize(values, dim=-1)


def lessons(train: int = 300, dev: int = 80) -> TrainingTensors:
    """Queries gather around scenes whose tools their words hardly tell: neighbours know more than texts."""
    chance = torch.Generator().manual_seed(7)
    tools = unit(torch.randn(TOOLS, WIDTH, generator=chance))
    scenes = [torch.randperm(TOOLS, generator=chance)[: 1 + number % 3].tolist() for number in range(SCENES)]
    centres = unit(torch.randn(SCENES, WIDTH, generator=chance))

    def draw(count: int) -> tuple[torch.Tensor, list[list[int]]]:
        chosen = torch.randint(SCENES, (count,), generator=chance).tolist()
        hints = torch.stack([tools[scenes[scene]].mean(0) for scene in chosen])
        noise = torch.randn(count, WIDTH, generator=chance)
        return unit(centres[chosen] + 0.3 * hints + 0.12 * noise), [sorted(scenes[scene]) for scene in chosen]

    (known, gold), (asked, wanted) = draw(train), draw(dev)
    others = unit(torch.randn(100, WIDTH, generator=chance))
    labels = LabelledVectors(torch.cat([known[:100], others]), torch.arange(200) < 100)
    return TrainingTensors(tools, known, gold, asked, wanted, labels, labels)


LESSONS = lessons()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Heads, dict]:
    return train_heads(LESSONS, SETTINGS, tmp_path_factory.mktemp("learn"), CONTEXT)


# The graph, against matrices.


def dense_graph(gold: list[list[int]], count: int) -> np.ndarray:
    found = np.zeros((len(gold), count))
    for row, tools in enumerate(gold):
        found[row, tools] = 1
    return found


def test_propagation_is_lightgcns_sum() -> None:
    gold, count = LESSONS.gold[:50], TOOLS
    edges = full_view(make_edges(gold, count))
    adjacent = dense_graph(gold, count)
    roots = np.sqrt(np.maximum(adjacent.sum(1, keepdims=True), 1) * np.maximum(adjacent.sum(0, keepdims=True), 1))
    normal = adjacent / roots
    queries, tools = LESSONS.train[:50].double(), LESSONS.tools.double()
    assert np.allclose(to_tools(edges, queries).numpy(), normal.T @ queries.numpy())
    padded = torch.cat([tools, torch.zeros(1, WIDTH, dtype=torch.float64)])
    every = torch.arange(50)
    assert np.allclose(to_queries(edges, padded, every, scene=False).numpy(), normal @ tools.numpy())
    means = adjacent / adjacent.sum(1, keepdims=True)
    assert np.allclose(to_queries(edges, padded, every, scene=True).numpy(), means @ tools.numpy())


def test_scenes_hold_the_queries_they_belong_to() -> None:
    seen = full_view(make_edges([[0, 1], [2], [1, 0], [2], [3]], 4))
    queries = torch.eye(5)
    by_queries = to_scenes(seen, queries)
    assert torch.allclose(by_queries[0], (queries[0] + queries[2]) / 2**0.5)
    assert torch.allclose(by_queries[1:], torch.stack([(queries[1] + queries[3]) / 2**0.5, queries[4]]))


def test_dense_and_sparse_signals_are_the_same_with_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    seen = full_view(make_edges(LESSONS.gold, TOOLS))
    rows = torch.randint(len(LESSONS.gold), (8, 5), generator=chance)
    attention = torch.rand(8, 5, generator=chance, dtype=torch.float64)
    signals = torch.randn(TOOLS + 1, WIDTH, generator=chance, dtype=torch.float64)
    found = []
    for most in (0, 4096):
        monkeypatch.setattr("retrievers.masstool.graph.MAX_DENSE_TOOLS", most)
        given = [attention.clone().requires_grad_(), signals.clone().requires_grad_()]
        both = to_neighbours(seen, given[1], rows, given[0])
        both.square().sum().backward()
        found.append([both, given[0].grad, given[1].grad])
    assert all(torch.allclose(*pair) for pair in zip(*found, strict=True))
    each = [to_queries(seen, signals, row, scene) for row in rows for scene in (False, True)]
    one_by_one = torch.stack(
        [share @ some for share, some in zip(attention.repeat_interleave(2, 0), each, strict=True)]
    )
    assert torch.allclose(found[0][0].transpose(0, 1).flatten(0, 1), one_by_one)


# The score: folded and not.


def transferred(how: str, state: dict[str, np.ndarray], info: np.ndarray, searched: np.ndarray, at: int) -> np.ndarray:
    def layer(given: np.ndarray) -> np.ndarray:
        return state[f"transfer.{at}.weight"] @ given + state[f"transfer.{at}.bias"]

    match how:
        case "gating":
            return searched / (1 + np.exp(-layer(info)))
        case "addition":
            return searched + layer(info)
        case "concatenation":
            return layer(np.concatenate([info, searched]))
        case _:
            known = layer(info)
            pair = np.array([searched @ searched, searched @ known]) / np.sqrt(WIDTH)
            pair = np.exp(pair - pair.max()) / np.exp(pair - pair.max()).sum()
            return pair[0] * searched + pair[1] * known


def unfolded(heads: Heads, x: np.ndarray, tools: np.ndarray, signals: np.ndarray, gold: list[list[int]]) -> np.ndarray:
    """Every term of the score by itself, in plain loops, as model.py's first lines state it."""
    state = {name: value.double().numpy() for name, value in heads.state_dict().items()}
    settings, keys = heads.settings, LESSONS.train.double().numpy()
    degrees = np.maximum(dense_graph(gold, TOOLS).sum(0), 1)
    shares, found = state["scales"], np.zeros((len(x), TOOLS))
    for row, query in enumerate(x):
        cosines = keys @ query
        near = [n for n in np.argsort(-cosines)[: settings.neighbours]]
        kept = [n for n in near if not settings.modules.filter or cosines[n] >= state["threshold"]]
        logits = {n: shares[1] * (query @ state["attention"] @ keys[n]) for n in kept}
        if settings.faithful:
            top = max(logits.values(), default=0.0)
            total = sum(np.exp(value - top) for value in logits.values())
        else:
            top = max([shares[1] * state["sink"], *logits.values()])
            total = np.exp(shares[1] * state["sink"] - top) + sum(np.exp(value - top) for value in logits.values())
        attention = {n: np.exp(value - top) / total for n, value in logits.items()}
        hidden = np.maximum(state["tower.weight"] @ query + state["tower.bias"], 0)
        info = np.maximum(state["info.weight"] @ hidden + state["info.bias"], 0)
        for place, seen in enumerate(("tool", "scene")):
            values = np.zeros(WIDTH)
            for n, share in attention.items():
                weights = [
                    1 / len(gold[n]) if seen == "scene" else 1 / np.sqrt(len(gold[n]) * degrees[t]) for t in gold[n]
                ]
                brought = sum(weight * signals[t] for weight, t in zip(weights, gold[n], strict=True))
                if settings.faithful:
                    values += share * (keys[n] + state["queries"][n] + brought / np.linalg.norm(brought))
                else:
                    values += share * (state["neighbour_weight"] * keys[n] + brought)
            searched = values if settings.faithful else values @ state[f"mixing.{place}"]
            joint = transferred(settings.modules.transfer, state, info, searched, place)
            for t in range(TOOLS):
                if settings.faithful:
                    for term in (query, searched, joint):
                        length = np.linalg.norm(term)
                        found[row, t] += (term @ tools[t]) / length if length else 0.0
                else:
                    found[row, t] += shares[0] * state["vote_weights"][place] * (searched @ tools[t])
                    found[row, t] += shares[0] * state["vote_weights"][2 + place] * (joint @ tools[t])
        if not settings.faithful:
            text = query + shares[3] * (query @ state["adapter"])
            found[row] += tools @ (text / np.linalg.norm(text))
    return found


@pytest.mark.parametrize("faithful", [False, True])
@pytest.mark.parametrize("transfer", ["gating", "attention", "concatenation", "addition"])
def test_the_score_folds_into_one_inner_product(faithful: bool, transfer: Transfer) -> None:
    settings = replace(SETTINGS, faithful=faithful, modules=Modules(transfer=transfer))
    bare = replace(LESSONS, labels=no_labels(WIDTH), dev_labels=no_labels(WIDTH))
    trainer = trainer_class(settings)(bare, settings, CONTEXT)
    trainer.epoch(0)
    heads = trainer.heads.eval().double()
    if not faithful:  # as if dev had chosen them
        heads.scales.copy_(torch.tensor([0.75, 1.5, 0.5, 1.25, 0.25]))
    exact = TrainingTensors(
        LESSONS.tools.double(),
        LESSONS.train.double(),
        LESSONS.gold,
        LESSONS.dev[:0].double(),
        [],
        *[no_labels(WIDTH)] * 2,
    )
    x = LESSONS.dev[:12].double()
    folded = offline_scores(heads, exact, x).numpy()
    seen = full_view(make_edges(LESSONS.gold, TOOLS))
    needed = torch.tensor(sorted({row for each in LESSONS.gold for row in each}))
    with torch.no_grad():
        tools = heads.tools(exact.tools, exact.train, seen, needed)
    slow = unfolded(heads, x.numpy(), tools.vectors.numpy(), tools.signals.numpy(), list(LESSONS.gold))
    assert np.abs(folded - slow).max() < 1e-9
    assert np.abs(slow).max() > 0.1


# What training may see.


def test_a_training_query_does_not_see_its_own_gold_edges() -> None:
    """Other gold for the anchors changes nothing of what they are asked with; faithful it does: that is the leak."""
    anchors = torch.arange(40)
    other = [[(tools[0] + 7) % TOOLS] if row < 40 else tools for row, tools in enumerate(LESSONS.gold)]
    changed = TrainingTensors(
        LESSONS.tools, LESSONS.train, other, LESSONS.dev, LESSONS.dev_gold, *[no_labels(WIDTH)] * 2
    )
    found: dict[bool, list[torch.Tensor]] = {False: [], True: []}
    for faithful in found:
        for each in (LESSONS, changed):
            settings = replace(SETTINGS, faithful=faithful)
            learning = trainer_class(settings)(each, settings, CONTEXT)
            learning.heads.eval()
            with torch.no_grad():
                if not faithful:
                    learning.heads.mixing[0].copy_(torch.eye(WIDTH))
                    learning.heads.mixing[1].copy_(torch.eye(WIDTH))
                chance = torch.Generator().manual_seed(3)
                batch = (torch.arange(len(each.train)) >= 40).long()
                held_out = (batch == 0)[None]
                # the widths of both tables are the same, so that the same edges are dropped
                drawn = [draw_dropout(learning.edges, chance)]
                seen = full_view(learning.edges) if faithful else dropout_views(learning.edges, held_out, 0.0, drawn)[0]
                tools = learning.heads.tools(each.tools, each.train, seen)
                near = select_neighbours(
                    learning.sampler.near, anchors, None if faithful else batch, SETTINGS.neighbours
                )
                assert faithful or not (near.valid & (near.rows < 40)).any()
                asked = learning.heads(each.train[anchors], near, each.train, seen, tools, anchors)
            found[faithful].append(asked.vectors @ tools.vectors.T)
    assert torch.equal(found[False][0], found[False][1])
    assert not torch.allclose(found[True][0], found[True][1], atol=1e-3)


@pytest.mark.parametrize(("faithful", "losses_by_epoch"), [(True, (0.254309, 0.246202)), (False, (1.804553, 1.373815))])
def test_losses_are_those_of_the_published_figures(faithful: bool, losses_by_epoch: tuple[float, float]) -> None:
    """Recorded when the published figures were made: the same seeds, draws and order of operations."""
    settings = replace(SETTINGS, faithful=faithful)
    trainer = trainer_class(settings)(LESSONS, settings, CONTEXT)
    trainer.warm_up()
    assert [trainer.epoch(number) for number in range(2)] == pytest.approx(losses_by_epoch, rel=1e-3)


def test_the_losses_are_what_they_say() -> None:
    chance = np.random.default_rng(0)
    logits, needs = chance.normal(size=8), chance.integers(0, 2, 8).astype(bool)
    p = 1 / (1 + np.exp(-logits))
    expected = -np.mean(np.where(needs, np.log(p), np.log(1 - p)))
    found = losses.detection(torch.tensor(logits), torch.tensor(needs))
    assert float(found) == pytest.approx(expected)
    two = torch.stack([torch.zeros(8), torch.tensor(logits).float()], dim=1)
    twice = double_softmax(two, torch.tensor(needs))
    assert float(twice) > float(functional.cross_entropy(two, torch.tensor(needs).long())) * 0.5
    assert float(twice) >= np.log(1 + np.exp(-1)) - 1e-6  # a double softmax can never be sure
    scored, gold = chance.normal(size=(3, 6)), np.array([[1, 0, 0, 1, 0, 0], [0, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0]])
    targets, slow = torch.tensor(gold / gold.sum(1, keepdims=True)), []
    for row, right in zip(scored / 0.5, gold, strict=True):
        logs = row - np.log(np.exp(row).sum())
        slow.append(-logs[right == 1].mean())
    assert float(losses.listwise(torch.tensor(scored), targets, 0.5)) == pytest.approx(np.mean(slow))
    same = unit(torch.randn(5, 4, generator=torch.Generator().manual_seed(0)))
    assert float(losses.contrastive(same, same, 0.1)) < float(losses.contrastive(same, same.roll(1, 0), 0.1))
    assert float(losses.contrastive(torch.zeros(5, 4), same, 0.1)) == 0.0


def test_rows_of_zeros_take_no_part_in_contrast() -> None:
    """As if they were cut out: the same loss, the same gradient, and none for themselves."""
    chance = torch.Generator().manual_seed(3)
    left, right = (torch.randn(7, 4, generator=chance) for _ in range(2))
    left[2], right[5] = 0.0, 0.0
    kept = [0, 1, 3, 4, 6]
    whole, cut = left.clone().requires_grad_(), left[kept].clone().requires_grad_()
    found = losses.contrastive(whole, right, 0.1)
    logits = functional.normalize(cut, dim=-1) @ functional.normalize(right[kept], dim=-1).T / 0.1
    wanted = functional.cross_entropy(logits, torch.arange(5))
    found.backward()
    wanted.backward()
    assert whole.grad is not None
    assert cut.grad is not None
    assert torch.allclose(found, wanted)
    assert torch.allclose(whole.grad[kept], cut.grad, atol=1e-6)
    assert not whole.grad[[2, 5]].any()


def test_dev_is_judged_as_evaluation_judges() -> None:
    found = torch.rand(30, TOOLS, generator=torch.Generator().manual_seed(1))
    gold = [list(each) for each in LESSONS.dev_gold[:30]]
    means = DevMetrics(measure_rankings, gold)(found)
    metrics = ("recall@3", "recall@5", "ndcg@5", "comp@3")
    for metric, values in measure_rankings(metrics, found.topk(10).indices.tolist(), gold).items():
        assert means[metric] == pytest.approx(values.mean())
    assert means["mean"] == pytest.approx(sum(means[metric] for metric in metrics) / 4)


def test_the_threshold_is_the_best_and_the_lowest_of_the_best() -> None:
    chance = np.random.default_rng(5)
    needs = chance.integers(0, 2, 60).astype(bool)
    p = np.round(np.clip(chance.normal(0.35 + 0.3 * needs, 0.2), 0, 1), 2)
    found = best_threshold(p.tolist(), needs.tolist())

    def balanced(edge: float) -> float:
        return float(((p >= edge)[needs].mean() + (p < edge)[~needs].mean()) / 2)

    every = np.unique(np.concatenate([np.linspace(0, 1, 201), p, p + 1e-6]))
    values = np.array([balanced(edge) for edge in every])
    assert found["balanced_accuracy"] == pytest.approx(balanced(found["threshold"]))
    assert found["balanced_accuracy"] == pytest.approx(values.max())
    assert found["threshold"] <= every[values > values.max() - 1e-9].min() + 0.02


# Learning.


def test_it_learns_what_texts_do_not_tell(learned: tuple[Heads, dict]) -> None:
    facts = learned[1]
    assert facts["after"]["recall@5"] > facts["plain"]["recall@5"] + 0.3
    assert facts["after"]["mean"] >= facts["before"]["mean"]
    assert facts["detection"]["balanced_accuracy"] > 0.6
    assert facts["history"][-1]["loss"] < facts["history"][0]["loss"]


@pytest.mark.parametrize(
    "modules",
    [
        Modules(transfer="none"),
        Modules(intent=False),
        Modules(filter=False),
        Modules(contrast=False),
        Modules(graph=False),
        Modules(detection=False),
    ],
    ids=lambda each: str(each),
)
@pytest.mark.parametrize("faithful", [False, True])
def test_every_part_can_be_left_out(modules: Modules, faithful: bool) -> None:
    settings = replace(SETTINGS, modules=modules, faithful=faithful, train=replace(TRAIN, epochs=1))
    few = replace(LESSONS, dev=LESSONS.dev[:20], dev_gold=LESSONS.dev_gold[:20])
    heads, facts = train_heads(few, settings, None, CONTEXT)
    found = offline_scores(heads, few, few.dev)
    assert torch.isfinite(found).all()
    assert (facts["detection"] is None) == (not modules.detection)
    assert facts["after"]["mean"] > 0


def test_parts_that_do_not_help_are_left_out_by_dev(tmp_path: Path) -> None:
    """Gold that neighbours know nothing of: the votes are worth nothing, and plain search remains."""
    chance = torch.Generator().manual_seed(1)
    tools = unit(torch.randn(TOOLS, WIDTH, generator=chance))

    def draw(count: int) -> tuple[torch.Tensor, list[list[int]]]:
        rows = torch.randint(TOOLS, (count,), generator=chance)
        return unit(tools[rows] + 0.05 * torch.randn(count, WIDTH, generator=chance)), [[int(row)] for row in rows]

    (known, _), (asked, wanted) = draw(200), draw(100)
    random = [[int(torch.randint(TOOLS, (1,), generator=chance))] for _ in known]
    data = TrainingTensors(tools, known, random, asked, wanted, no_labels(WIDTH), no_labels(WIDTH))
    _, facts = train_heads(data, replace(SETTINGS, train=replace(TRAIN, epochs=2)), tmp_path, CONTEXT)
    assert facts["plain"]["mean"] > 0.99
    assert facts["after"]["mean"] > 0.99


def test_heads_are_kept_as_they_start_where_training_does_harm() -> None:
    settings = replace(SETTINGS, train=replace(SETTINGS.train, learning_rate=30.0, epochs=2))
    heads, facts = train_heads(LESSONS, settings, None, CONTEXT)
    assert facts["kept"] == "untrained"
    assert facts["after"]["mean"] == max(facts["calibrated"].values()) > facts["calibrated"]["trained"]
    assert not heads.residual.any()


def test_a_killed_run_goes_on_and_ends_with_the_same_numbers(learned: tuple[Heads, dict], tmp_path: Path) -> None:
    code = """
import os, signal, sys
sys.path[:0] = [sys.argv[1]]
import torch
torch.set_num_threads(1)
import test_masstool as t
from pathlib import Path
from retrievers.masstool.training import trainer as train
plain, count = train.HeadTrainer.loss, iter(range(99))
def loss(self, *rest):
    if next(count) == 12:
        os.kill(os.getpid(), signal.SIGKILL)
    return plain(self, *rest)
train.HeadTrainer.loss = loss
t.train_heads(t.LESSONS, t.SETTINGS, Path(sys.argv[2]), t.CONTEXT)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-800:]
    found = load_checkpoint(tmp_path / "heads.safetensors")
    assert found is not None
    assert found[1]["epoch"] == 2
    heads, facts = train_heads(LESSONS, SETTINGS, tmp_path, CONTEXT)
    assert [row["mean"] for row in facts["history"]] == [row["mean"] for row in learned[1]["history"]]
    assert facts["chosen"] == learned[1]["chosen"]
    theirs = learned[0].state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in heads.state_dict().items())


def test_a_torn_checkpoint_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert load_checkpoint(path) is None
    save_checkpoint(path, {"now": {"a": torch.ones(3)}}, {"epoch": 1})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert load_checkpoint(path) is None


def test_the_same_seed_gives_the_same_and_another_does_not() -> None:
    weights = []
    for seed in (0, 0, 1):
        trainer = HeadTrainer(LESSONS, replace(SETTINGS, train=replace(TRAIN, seed=seed)), CONTEXT)
        trainer.epoch(0)
        weights.append(trainer.heads.attention)
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("candidates", [4096, 20])
def test_how_many_steps_are_drawn_together_changes_nothing(candidates: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrievers.masstool.training.step_sampler.MAX_CANDIDATES", candidates)
    found = []
    for most in (1, 4_000_000):
        monkeypatch.setattr("retrievers.masstool.training.step_sampler.MAX_EDGES", most)
        learning = HeadTrainer(LESSONS, SETTINGS, CONTEXT)
        found.append((learning.epoch(0), learning.heads.attention))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-5)
    assert torch.allclose(found[0][1], found[1][1], atol=1e-5)


def test_training_leaves_the_process_chance_alone() -> None:
    torch.manual_seed(11)
    expected = torch.rand(3)
    torch.manual_seed(11)
    trainer = HeadTrainer(LESSONS, SETTINGS, CONTEXT)
    trainer.warm_up()
    trainer.epoch(0)
    assert torch.equal(torch.rand(3), expected)


# Transfer to untrained tools.


def test_a_tool_with_a_known_text_gets_its_whole_shift_and_one_unlike_all_gets_none() -> None:
    trained, shifts = torch.eye(4), torch.ones(4, 4)
    assert torch.allclose(transferred_shifts(trained[:1], trained, shifts, 1.0), shifts[:1], atol=1e-3)
    assert transferred_shifts(-trained[:1], trained, shifts, 1.0).abs().max() < 1e-3
    assert not transferred_shifts(trained[:1], trained, shifts, 0.0).any()


def test_neighbours_are_the_nearest_and_never_oneself() -> None:
    near = nearest(LESSONS.train, LESSONS.train, 5, exclude_self=True)
    cosines = (LESSONS.train @ LESSONS.train.T).fill_diagonal_(-2)
    assert torch.equal(near.cosines, cosines.topk(5).values)
    assert (near.rows != torch.arange(len(LESSONS.train))[:, None]).all()
    alone = nearest(LESSONS.dev[:3], LESSONS.train[:0], 5)
    assert not alone.valid.any()
