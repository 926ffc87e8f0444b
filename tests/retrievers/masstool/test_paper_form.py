"""The paper's form of each part, switched on: held against plain loops, trained, and served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from masstool_data import CONTEXT, small_set, torch_heads
from masstool_data import SETTINGS as SMALL
from test_masstool import LESSONS, SETTINGS, TOOLS, TRAIN, WIDTH, dense_graph, transferred

from retrievers.base import Detector
from retrievers.dense.encoder import Encoder
from retrievers.errors import BadInput
from retrievers.index import Index, add, build, confirm, remove, verify
from retrievers.kind import Context
from retrievers.masstool.artifacts import load_artifacts
from retrievers.masstool.faithful import trainer_class
from retrievers.masstool.graph import draw_dropout, dropout_views, full_view, make_edges, to_neighbours, to_queries
from retrievers.masstool.model import Heads
from retrievers.masstool.offline_scores import offline_scores
from retrievers.masstool.serving.faithful_heads import serving_heads
from retrievers.masstool.serving.pool_graph import PoolGraph, PoolNeighbours
from retrievers.masstool.settings import MassToolSettings, MassToolTraining, Modules, Transfer
from retrievers.masstool.training.epochs import train_heads
from retrievers.masstool.training.tensors import TrainingTensors, embed_training_set, nearest, no_labels
from retrievers.masstool.training.trainer import HeadTrainer
from retrievers.types import Tool

PAPER = Modules(
    score="joint",
    scene_view="propagated",
    attention="graph",
    sink=False,
    mixing=False,
    adapter=False,
    learned_weights=False,
    words=False,
)
PAPER_TRAIN = {
    "lists": "ten",
    "contrast_weight": 0.02,
    "text_dropout": 0.0,
    "detection_first": False,
    "decay": False,
    "calibrate": "threshold",
    "detection_threshold": 0.5,
}
ONE_BY_ONE = [
    Modules(score="joint"),
    Modules(scene_view="propagated"),
    Modules(attention="graph"),
    Modules(attention="graph", scene_view="propagated"),
    Modules(sink=False),
    Modules(score="joint", sink=False, filter=False),
    Modules(mixing=False, adapter=False, learned_weights=False),
]


def paper_settings(settings: MassToolSettings, **changes: object) -> MassToolSettings:
    assert settings.train is not None
    return replace(settings, modules=PAPER, train=replace(settings.train, **PAPER_TRAIN, **changes))


# The query-scene graph, against LightGCN's matrices.


def scene_graph(gold: list[list[int]], visible: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(queries, scenes) visible edges over the roots of both degrees, and (scenes, tools) means."""
    scenes = sorted({tuple(sorted(tools)) for tools in gold})
    adjacent = np.zeros((len(gold), len(scenes)))
    for row, tools in enumerate(gold):
        adjacent[row, scenes.index(tuple(sorted(tools)))] = visible[row]
    roots = np.sqrt(np.maximum(adjacent.sum(1, keepdims=True), 1) * np.maximum(adjacent.sum(0, keepdims=True), 1))
    means = dense_graph([list(scene) for scene in scenes], TOOLS)
    return adjacent / roots, means / means.sum(1, keepdims=True)


def test_a_propagated_scene_view_is_one_layer_over_the_query_scene_graph() -> None:
    gold, signals = [list(tools) for tools in LESSONS.gold], LESSONS.tools.double()
    padded = torch.cat([signals, torch.zeros(1, WIDTH, dtype=torch.float64)])
    edges, chance = make_edges(gold, TOOLS), torch.Generator().manual_seed(2)
    held_out, draws = torch.arange(len(gold)) < 40, draw_dropout(edges, chance)
    dropped = dropout_views(edges, held_out[None], 0.2, [draws])[0]
    kept = ((draws[edges.tools.numel() :] >= 0.2) & ~held_out).numpy().astype(float)
    rows = torch.randint(len(gold), (8, 5), generator=chance)
    attention = torch.rand(8, 5, generator=chance, dtype=torch.float64)
    for view, visible in ((full_view(edges), np.ones(len(gold))), (dropped, kept)):
        graph, means = scene_graph(gold, visible)
        wanted = graph @ means @ signals.numpy()
        every = torch.arange(len(gold))
        assert np.allclose(to_queries(view, padded, every, scene=True, scene_view="propagated").numpy(), wanted)
        both = to_neighbours(view, padded, rows, attention, "propagated")
        assert np.allclose(both[1].numpy(), np.einsum("qk,qkd->qd", attention.numpy(), wanted[rows.numpy()]))
        assert torch.allclose(both[0], to_neighbours(view, padded, rows, attention)[0])
        assert not torch.allclose(both[1], to_neighbours(view, padded, rows, attention)[1], atol=1e-3)


# The score, against plain loops.


def slow_scores(heads: Heads, x: np.ndarray, tools: np.ndarray, signals: np.ndarray) -> np.ndarray:
    """Every term of the score by itself, in the form that the modules name."""
    state = {name: value.double().numpy() for name, value in heads.state_dict().items()}
    modules, keys, gold = heads.settings.modules, LESSONS.train.double().numpy(), LESSONS.gold
    degrees = np.maximum(dense_graph(list(gold), TOOLS).sum(0), 1)
    popular = {tuple(tools): sum(other == tools for other in gold) for tools in map(list, gold)}
    scales, faithful = state["scales"], heads.settings.faithful
    scores = np.zeros((len(x), TOOLS))
    for row, query in enumerate(x):
        cosines = keys @ query
        near = np.argsort(-cosines)[: heads.settings.neighbours]
        near = [n for n in near if not modules.filter or cosines[n] >= state["threshold"]]
        hidden = np.maximum(state["tower.weight"] @ query + state["tower.bias"], 0)
        info = np.maximum(state["info.weight"] @ hidden + state["info.bias"], 0)
        moved = query + scales[3] * (query @ state["adapter"])
        text, terms = moved / np.linalg.norm(moved), []
        for index, view in enumerate(("tool", "scene")):
            values = []
            for n in near:
                share = 1 / len(gold[n])
                if modules.scene_view == "propagated":
                    share /= np.sqrt(popular[tuple(gold[n])])
                weights = [share if view == "scene" else 1 / np.sqrt(len(gold[n]) * degrees[t]) for t in gold[n]]
                signal = sum(weight * signals[t] for weight, t in zip(weights, gold[n], strict=True))
                if faithful:
                    values.append(keys[n] + state["queries"][n] + signal / np.linalg.norm(signal))
                else:
                    values.append(state["neighbour_weight"] * keys[n] + signal)
            by_graph = modules.attention == "graph"
            matrix = state["scene_attention"] if by_graph and view == "scene" else state["attention"]
            read = values if by_graph else [keys[n] for n in near]
            logits = [scales[1] * (query @ matrix @ vector) for vector in read]
            sink = [scales[1] * state["sink"]] if modules.sink and not faithful else []
            shares = np.exp(np.array([*logits, *sink]) - max([*logits, *sink], default=0.0))
            shares = shares / shares.sum() if len(shares) else shares
            searched = sum((share * value for share, value in zip(shares, values, strict=False)), np.zeros(WIDTH))
            searched = searched if faithful else searched @ state[f"mixing.{index}"]
            terms.append((searched, transferred(modules.transfer, state, info, searched, index)))
        if modules.score == "joint":
            whole = sum(joint / np.linalg.norm(joint) for _, joint in terms) if near else query if faithful else text
        elif faithful:
            whole = sum(term / (np.linalg.norm(term) or 1) for pair in terms for term in (query, *pair))
        else:
            by_view = zip(terms, state["vote_weights"][:2], state["vote_weights"][2:], strict=True)
            whole = text + scales[0] * sum(b * searched + d * joint for (searched, joint), b, d in by_view)
        scores[row] = tools @ whole
    return scores


def check_scores(settings: MassToolSettings) -> None:
    bare = replace(LESSONS, labels=no_labels(WIDTH), dev_labels=no_labels(WIDTH))
    trainer = trainer_class(settings)(bare, settings, CONTEXT)
    trainer.epoch(0)
    heads = trainer.heads.eval().double()
    heads.threshold.fill_(0.7)
    vectors = [part.double() for part in (LESSONS.tools, LESSONS.train)]
    exact = TrainingTensors(*vectors, LESSONS.gold, LESSONS.dev[:0].double(), [], *[no_labels(WIDTH)] * 2)
    x = torch.cat([LESSONS.dev[:10], -LESSONS.dev[:2]]).double()  # the last two have no neighbour that counts
    needed = torch.tensor(LESSONS.trained_tools())
    with torch.no_grad():
        tools = heads.tools(exact.tools, exact.train, full_view(make_edges(LESSONS.gold, TOOLS)), needed)
    slow = slow_scores(heads, x.numpy(), tools.vectors.numpy(), tools.signals.numpy())
    assert np.abs(offline_scores(heads, exact, x).numpy() - slow).max() < 1e-9
    assert np.abs(slow).max(1).min() > 0.1
    served = served_vectors(heads, tools.signals[:-1].float().numpy(), x.float())
    assert np.abs(served @ tools.vectors.float().numpy().T - slow).max() < 1e-4


def served_vectors(heads: Heads, signals: np.ndarray, x: torch.Tensor) -> np.ndarray:
    """Vectors of queries as a server computes them, without PyTorch."""
    state = {name: value.float().numpy() for name, value in heads.state_dict().items()}
    near = nearest(x, LESSONS.train, heads.settings.neighbours)
    neighbours = PoolNeighbours(near.rows.numpy(), near.cosines.numpy(), near.valid.numpy())
    served = serving_heads(heads.settings)(heads.settings, state)
    assert served.expected_shapes(heads.settings, state).keys() == state.keys()
    return served.query_vectors(x.numpy(), neighbours, LESSONS.train.numpy(), PoolGraph(LESSONS.gold, signals))


@pytest.mark.parametrize("modules", [PAPER, *ONE_BY_ONE], ids=str)
def test_every_form_folds_into_one_inner_product(modules: Modules) -> None:
    check_scores(replace(SETTINGS, modules=modules))


@pytest.mark.parametrize("transfer", ["gating", "attention", "concatenation", "addition"])
@pytest.mark.parametrize("faithful", [False, True])
def test_the_joint_product_folds_with_every_transfer(transfer: Transfer, faithful: bool) -> None:
    check_scores(replace(SETTINGS, modules=Modules(score="joint", transfer=transfer), faithful=faithful))


def test_faithful_heads_attend_by_the_graph_as_well() -> None:
    check_scores(replace(SETTINGS, modules=Modules(attention="graph"), faithful=True))


def test_the_authors_norms_make_a_propagated_scene_view_the_mean_again() -> None:
    scores = []
    for scene_view in ("mean", "propagated"):
        settings = replace(SETTINGS, faithful=True, modules=Modules(scene_view=scene_view))  # type: ignore[arg-type]
        heads, _ = train_heads(LESSONS, settings, None, CONTEXT)
        scores.append(offline_scores(heads, LESSONS, LESSONS.dev))
    assert torch.equal(*scores)


# Training.


@pytest.mark.parametrize("change", ["lists", "contrast_weight", "text_dropout", "decay"])
def test_each_setting_of_training_changes_what_is_learned(change: str) -> None:
    weights = []
    for changes in ({}, {change: PAPER_TRAIN[change]}):
        trainer = HeadTrainer(LESSONS, replace(SETTINGS, train=replace(TRAIN, **changes)), CONTEXT)
        losses = [trainer.epoch(number) for number in range(2)]
        assert losses[1] < losses[0]
        weights.append(trainer.heads.attention)
    assert not torch.equal(*weights)


def test_the_detection_tower_is_trained_first_or_with_the_rest() -> None:
    for first in (True, False):
        settings = replace(SETTINGS, train=replace(TRAIN, detection_first=first))
        assert (HeadTrainer(LESSONS, settings, CONTEXT).warm_up() > 0) == first


def test_what_is_switched_off_stays_as_it_starts() -> None:
    modules = Modules(mixing=False, adapter=False, learned_weights=False)
    trainer = trainer_class(SETTINGS)(LESSONS, replace(SETTINGS, modules=modules), CONTEXT)
    trainer.epoch(0)
    heads = trainer.heads
    assert not heads.adapter.any()
    assert all(torch.equal(matrix, torch.eye(WIDTH)) for matrix in heads.mixing)
    assert heads.vote_weights.tolist() == [1.0] * 4
    assert (float(heads.neighbour_weight), float(heads.graph_weight)) == (1.0, 1.0)
    assert heads.residual.any()


@pytest.mark.parametrize("faithful", [False, True])
def test_the_paper_form_learns_what_texts_do_not_tell(faithful: bool, tmp_path: Path) -> None:
    settings = replace(paper_settings(SETTINGS), faithful=faithful)
    heads, facts = train_heads(LESSONS, settings, tmp_path, CONTEXT)
    assert facts["after"]["recall@5"] > facts["plain"]["recall@5"] + 0.1
    assert set(facts["chosen"]) == {"threshold"}
    again, same = train_heads(LESSONS, settings, tmp_path, CONTEXT)  # from the checkpoint
    assert same["after"] == facts["after"]
    assert torch.equal(again.attention, heads.attention)


@pytest.mark.parametrize("faithful", [False, True])
def test_dev_chooses_the_threshold_of_neighbours_or_nobody_does(faithful: bool) -> None:
    found = {}
    for calibrate in ("threshold", "none"):
        train = replace(TRAIN, calibrate=calibrate)  # type: ignore[arg-type]
        settings = replace(SETTINGS, threshold=0.99, faithful=faithful, train=train)
        heads, facts = train_heads(LESSONS, settings, None, CONTEXT)
        found[calibrate] = float(heads.threshold), facts["after"]["mean"]
        assert heads.scales[:4].tolist() == [1.0] * 4
    assert found["none"][0] == pytest.approx(0.99)
    assert found["threshold"][0] < 0.96
    assert found["threshold"][1] > found["none"][1]


def test_forms_that_cannot_be_are_refused() -> None:
    for modules in ({"transfer": "none"}, {"intent": False}):
        with pytest.raises(BadInput, match="score: joint"):
            replace(SETTINGS, modules=Modules(score="joint", **modules))
    with pytest.raises(BadInput, match="has no factors"):
        replace(SETTINGS, faithful=True, train=replace(TRAIN, calibrate="all"))


# Serving.


@pytest.mark.parametrize("faithful", [False, True])
def test_an_index_of_the_paper_form_lives(
    faithful: bool, some_tools: list[Tool], context: Context, tmp_path: Path
) -> None:
    settings = replace(paper_settings(SMALL, own_labels=0.0, joined_labels=0.0, epochs=3), faithful=faithful)
    data, folder = small_set(some_tools), tmp_path / "index"
    build(folder, some_tools, {"masstool": settings}, context, training={"masstool": [data]})
    index = Index(folder, context)
    model = folder / index.manifest.retrievers["masstool"].model
    served = load_artifacts(model, settings).heads
    heads = torch_heads(served)
    encoder = Encoder(context.find_model(settings.model), settings.batch_size, "cpu")
    queries = ["will it rain tomorrow", "zxqv", *data.dev.queries[:5]]
    tensors = embed_training_set(data, encoder, context)
    expected = offline_scores(heads, tensors, torch.from_numpy(encoder.queries(queries)))
    for ranking, row in zip(index.retriever("masstool").search(queries, 10), expected, strict=True):
        assert np.allclose(ranking.scores, row.topk(10).values.numpy(), atol=1e-3)  # its keys take 16 bits
    detector = index.retriever("masstool")
    assert isinstance(detector, Detector)
    detected = heads.detect(torch.from_numpy(encoder.queries(queries)), queries)
    assert np.allclose(detector.probabilities(queries), detected.numpy(), atol=1e-5)
    assert detector.threshold == 0.5
    assert not len(served.word_weights)
    assert "words" not in json.loads((model / "training.json").read_text())["detection"]

    tool, strange = Tool("new/llama", "shear_llama", "Shears a llama and sells its wool."), "shear my llama and sell it"
    add(folder, [tool], context)
    confirm(folder, [(strange, [tool.id])], context)
    assert Index(folder, context).retriever("masstool").search([strange], 3)[0].ids[0] == tool.id
    remove(folder, [tool.id], context)
    assert tool.id not in Index(folder, context).retriever("masstool").search([strange], 100)[0].ids
    gold = data.ids[data.train.gold[0][0]]
    remove(folder, [gold], context)
    assert gold not in Index(folder, context).retriever("masstool").search([data.train.queries[0]], 100)[0].ids
    assert verify(folder) == []


def test_a_detector_without_words_reads_the_vector_alone() -> None:
    texts = tuple(f"text {number}" for number in range(200))
    lessons = replace(
        LESSONS, labels=replace(LESSONS.labels, texts=texts), dev_labels=replace(LESSONS.labels, texts=texts)
    )
    for words in (True, False):
        settings = replace(SETTINGS, modules=Modules(words=words), train=MassToolTraining(TRAIN.data, epochs=1))
        heads, facts = train_heads(lessons, settings, None, CONTEXT)
        assert ("words" in facts["detection"]) == words
        if not words:
            plain = torch.sigmoid(heads.detection_logits(LESSONS.dev[:3]))
            assert torch.equal(heads.detect(LESSONS.dev[:3], ["a", "b", "c"]), plain)
