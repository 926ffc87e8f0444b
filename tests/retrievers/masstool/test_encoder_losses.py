"""What the encoder is tuned for, held against plain loops; the model is a table of vectors, one a text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from pipelines.config import parse
from retrievers.errors import BadInput
from retrievers.masstool.encoder.losses import JointLoss
from retrievers.masstool.encoder.tokens import TokenTable, embed_parts, encode
from retrievers.masstool.encoder.vote_matrix import VoteMatrix
from retrievers.masstool.graph import column_of, gold_shares, make_edges, scatter_columns, scene_members
from retrievers.masstool.settings import AuxiliaryLosses, EncoderTuning
from retrievers.training_set import Examples, Labels, TrainingSet

GOLD = ((0, 1), (2,), (1, 3, 4), (0, 1), (5,), (2,))
DATA = TrainingSet(
    "toy",
    tuple(f"tool {row}" for row in range(7)),
    Examples(tuple(f"query {place}" for place in range(6)), GOLD),
    Examples(("query 6", "query 7"), ((0,), (2,))),
    labels=Labels(("query 8", "query 9"), (True, False)),
)
SETTINGS = EncoderTuning(mode="joint", temperature=0.3)
HEAT = 0.3
NOTHING = AuxiliaryLosses()


class Table(nn.Module):
    """A vector a text; the words of a text are its name, repeated as often as its number says."""

    def __init__(self) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.tensor(np.random.default_rng(0).normal(size=(20, 5)), dtype=torch.float32))

    def preprocess(self, texts: list[str]) -> dict[str, object]:
        rows = [int(text.split()[1]) + (10 if text.startswith("query") else 0) for text in texts]
        width = max(row % 10 + 1 for row in rows)
        mask = torch.tensor([[1] * (row % 10 + 1) + [0] * (width - row % 10 - 1) for row in rows])
        return {"input_ids": torch.tensor(rows)[:, None] * mask, "attention_mask": mask, "told": "beside"}

    def forward(self, features: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"sentence_embedding": self.vectors[features["input_ids"][:, 0]]}

    def encode(self, texts: list[str], **_: object) -> torch.Tensor:
        return nn.functional.normalize(self(self.preprocess(texts))["sentence_embedding"], dim=-1)

    encode_query = encode_document = encode


def joint_loss(auxiliary: AuxiliaryLosses = NOTHING, weight: float = 0.0, **changes: int) -> JointLoss:
    return JointLoss(Table(), DATA, replace(SETTINGS, auxiliary=auxiliary, **changes), weight, 0, "cpu")


def unit(model: Table, rows: list[int]) -> np.ndarray:
    values = model.vectors.detach().double().numpy()[rows]
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return logits - np.log(np.exp(logits).sum())


def value(found: JointLoss, places: list[int]) -> float:
    return found(torch.tensor(places), torch.Generator().manual_seed(0)).item()


def expected_tools(model: Table, places: list[int]) -> float:
    tools = unit(model, list(range(6)))  # nobody needs the seventh
    logs = [log_softmax(tools @ x / HEAT) for x in unit(model, [10 + place for place in places])]
    return float(np.mean([np.mean(each[list(GOLD[place])]) for each, place in zip(logs, places, strict=True)])) * -1


def test_tools_are_a_cross_entropy_over_those_that_training_needs() -> None:
    found = joint_loss()
    assert value(found, [2, 0, 5]) == pytest.approx(expected_tools(found.model, [2, 0, 5]), abs=1e-5)


def test_scenes_are_a_cross_entropy_over_gold_sets() -> None:
    found = joint_loss(AuxiliaryLosses(scene_weight=0.5))
    tools, sets = unit(found.model, list(range(7))), [(0, 1), (2,), (1, 3, 4), (5,)]
    means = np.stack([tools[list(each)].mean(0) for each in sets])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    asked = dict(zip((2, 3), unit(found.model, [12, 13]), strict=True))
    logs = [log_softmax(means @ x / HEAT)[sets.index(GOLD[place])] for place, x in asked.items()]
    expected = expected_tools(found.model, [2, 3]) - 0.5 * np.mean(logs)
    assert value(found, [2, 3]) == pytest.approx(expected, abs=1e-5)


def test_scenes_of_the_batch_stand_alone_where_the_catalogue_does_not_fit() -> None:
    alone = value(joint_loss(AuxiliaryLosses(scene_weight=1.0), candidates=3), [1, 5])
    tools = value(joint_loss(candidates=3), [1, 5])
    assert alone == pytest.approx(tools, abs=1e-6)  # both have the one scene there is


def test_votes_are_those_of_the_other_training_queries() -> None:
    found = joint_loss(AuxiliaryLosses(vote_weight=2.0))
    queries = unit(found.model, list(range(10, 16)))
    logs = []
    for place in (0, 4):
        voters = [other for other in range(6) if other != place]
        shares = np.exp(log_softmax(queries[voters] @ queries[place] / HEAT))
        votes = np.zeros(7)
        for other, share in zip(voters, shares, strict=True):
            votes[list(GOLD[other])] += share / len(GOLD[other])
        logs.append(np.mean(np.log(votes[list(GOLD[place])] + 1e-6)))
    expected = expected_tools(found.model, [0, 4]) - 2 * np.mean(logs)
    assert value(found, [0, 4]) == pytest.approx(expected, rel=1e-4)
    assert found.votes.votes(torch.eye(5), found.votes.voters).sum(1).tolist() == pytest.approx([1.0] * 5, abs=1e-5)


def test_voters_are_remembered_as_they_last_were() -> None:
    found = joint_loss(AuxiliaryLosses(vote_weight=1.0))
    before = found.votes.voters.clone()
    with torch.no_grad():
        found.model.vectors += 1.0
    found(torch.tensor([1, 2]), torch.Generator().manual_seed(0)).backward()
    changed = (found.votes.voters != before).any(1).tolist()
    assert changed == [False, True, True, False, False, False]


def test_documents_that_are_not_refreshed_stay_as_they_were_and_bring_no_gradient() -> None:
    found = joint_loss(AuxiliaryLosses(documents_per_step=2))
    before = found.candidates.cached.clone()
    with torch.no_grad():
        found.model.vectors += 1.0
    found(torch.tensor([0, 1]), torch.Generator().manual_seed(0)).backward()
    changed = (found.candidates.cached != before).any(1)
    moved = found.model.vectors.grad[:10].abs().sum(1) > 0
    assert int(changed.sum()) == 2
    assert moved[:6].tolist() == changed.tolist()


def test_detection_reaches_the_encoder() -> None:
    found = joint_loss(weight=0.5)
    found(torch.tensor([0]), torch.Generator().manual_seed(0)).backward()
    assert (found.model.vectors.grad[18:20].abs().sum(1) > 0).all()
    assert all(each.grad is not None for each in found.detection.tower.parameters())


def test_hidden_tokens_are_drawn_anew_and_the_first_stays() -> None:
    found = joint_loss(AuxiliaryLosses(token_dropout=0.5))
    tokens = found.queries.rows(torch.tensor([5, 4]))
    drawn = [found.mask_tokens(tokens)["attention_mask"] for _ in range(20)]
    assert all((each[:, 0] == 1).all() and (each <= tokens["attention_mask"]).all() for each in drawn)
    assert len({tuple(each.flatten().tolist()) for each in drawn}) > 1


def test_tokens_are_cut_to_the_longest_asked_and_encoded_in_order() -> None:
    model = Table()
    tokens = TokenTable(model, ["query 3", "query 0", "query 7"], "", "cpu")
    assert tokens.rows(torch.tensor([1, 0]))["input_ids"].shape == (2, 4)
    assert encode(model, tokens, False).numpy() == pytest.approx(unit(model, [13, 10, 17]), abs=1e-6)


def test_texts_encoded_together_are_encoded_as_alone() -> None:
    model, passes = Table(), []
    model.register_forward_pre_hook(lambda _, given: passes.append(tuple(given[0]["input_ids"].shape)))
    tokens = TokenTable(model, [f"query {number}" for number in range(10)], "", "cpu")
    parts = [tokens.rows(torch.tensor(rows)) for rows in ([4, 0, 2], [9], [3, 1])]
    alone = embed_parts(model, parts, False, join=False)
    joined = embed_parts(model, parts, False, join=True)
    assert [each.tolist() for each in joined] == [each.tolist() for each in alone]
    assert passes == [(3, 5), (1, 10), (2, 4), (6, 10)]
    few = [tokens.rows(torch.tensor(rows)) for rows in ([0] * 90, [9])]  # ten times the tokens would be padding
    embed_parts(model, few, False, join=True)
    assert passes[4:] == [(1, 10), (90, 1)]


def test_votes_are_counted_as_by_a_matrix_with_their_gradient() -> None:
    edges = make_edges([*map(list, GOLD), []], 7)
    matrix = torch.zeros(len(GOLD) + 1, 7, dtype=torch.float64)
    for row, gold in enumerate(GOLD):
        matrix[row, list(gold)] = 1 / len(gold)
    chance = torch.Generator().manual_seed(0)
    weights = torch.rand(3, len(GOLD) + 1, generator=chance, dtype=torch.float64, requires_grad=True)
    pulled = torch.rand(3, 7, generator=chance, dtype=torch.float64)
    found = VoteMatrix(edges)(weights)
    assert torch.allclose(found, weights @ matrix, atol=1e-6)
    assert torch.allclose(torch.autograd.grad(found, weights, pulled)[0], pulled @ matrix.T, atol=1e-6)


def test_gold_and_scenes_as_tables() -> None:
    edges = make_edges([list(each) for each in GOLD], 7)
    rows, columns = torch.tensor([2, 1]), torch.tensor([1, 2, 3, 4])
    gold = scatter_columns(column_of(edges.tools[rows], columns, 7), gold_shares(edges)[rows], 4)
    third = pytest.approx(1 / 3)
    assert gold.tolist() == [[third, 0, third, third], [0, 1, 0, 0]]
    assert scene_members(edges).tolist() == [[0, 1, 7], [2, 7, 7], [1, 3, 4], [5, 7, 7]]


def test_only_joint_tuning_has_auxiliary_losses() -> None:
    with pytest.raises(BadInput, match="joint"):
        EncoderTuning(auxiliary=AuxiliaryLosses(vote_weight=1.0))
    with pytest.raises(BadInput, match="token_dropout must be less than 1, got 1"):
        parse(AuxiliaryLosses, {"token_dropout": 1.0})
