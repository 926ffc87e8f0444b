"""The mathematics of learned codes against brute force: balanced use, co-usage, unique codes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrievers.errors import BadInput
from retrievers.weaver.co_usage import CoUsage, CoUsageGraph, count_co_usage
from retrievers.weaver.code_assignment import assign_codes, share_with_same_first_code
from retrievers.weaver.codes import FreeCodes, assign_unique_paths, usage_entropy
from retrievers.weaver.quantiser import Quantiser, codebook_loss, collaboration_features, straight_through
from retrievers.weaver.quantiser_training import kmeans, train_quantiser
from retrievers.weaver.settings import QuantiserSettings
from retrievers.weaver.sinkhorn import balancing_prices
from retrievers.weaver.token_init import code_token_rows

SMALL = QuantiserSettings(levels=3, codebook_size=4, width=8, steps=40)
NOBODY = count_co_usage([])


def unit(count: int, width: int = 12, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)  # type: ignore[no-any-return]


def transport_plan(costs: torch.Tensor, epsilon: float, iterations: int) -> torch.Tensor:
    """(tools, codes): the shares that the prices imply; rows sum to 1."""
    amplitude = (costs.max() - costs.min()) / 2
    return torch.softmax(-(costs + balancing_prices(costs, epsilon, iterations)) / (epsilon * amplitude), dim=1)


@pytest.mark.parametrize("shape", [(4, 3), (3, 5), (9, 4)])
def test_even_shares_have_the_marginals_and_are_the_cheapest_such_plan(shape: tuple[int, int]) -> None:
    costs = torch.from_numpy(np.random.default_rng(1).uniform(size=shape))
    found = transport_plan(costs, 0.2, 2000)
    assert torch.allclose(found.sum(dim=1), torch.ones(shape[0], dtype=torch.float64), atol=1e-9)
    assert torch.allclose(found.sum(dim=0), torch.full((shape[1],), shape[0] / shape[1]).double(), atol=1e-6)
    scaled = (costs - (costs.max() + costs.min()) / 2) / ((costs.max() - costs.min()) / 2)

    def objective(some: torch.Tensor) -> float:
        return float((some * scaled).sum() + 0.2 * torch.xlogy(some, some).sum())

    best = objective(found)
    # Around any square of four cells mass can be moved without touching the marginals: no such move is cheaper.
    for a, b in itertools.combinations(range(shape[0]), 2):
        for c, d in itertools.combinations(range(shape[1]), 2):
            for step in (1e-4, -1e-4):
                moved = found.clone()
                moved[a, c] += step
                moved[b, d] += step
                moved[a, d] -= step
                moved[b, c] -= step
                if bool((moved >= 0).all()):
                    assert objective(moved) >= best - 1e-9


def test_the_cheapest_code_with_its_price_has_the_largest_share() -> None:
    costs = torch.from_numpy(np.random.default_rng(2).uniform(size=(200, 16)))
    for epsilon in (0.005, 0.01, 0.1):
        largest = transport_plan(costs, epsilon, 50).argmax(dim=1)
        assert torch.equal((costs + balancing_prices(costs, epsilon, 50)).argmin(dim=1), largest)


def test_prices_make_use_even() -> None:
    crowded = unit(400)
    crowded[:300] = crowded[0] + 0.05 * unit(300, seed=1)
    costs = torch.cdist(torch.from_numpy(crowded), torch.from_numpy(unit(16, seed=2))).square()
    near, even = (
        Counter(each.tolist()) for each in (costs.argmin(1), (costs + balancing_prices(costs, 0.01, 50)).argmin(1))
    )
    assert max(near.values()) > 250
    assert max(even.values()) < 100


def brute_laplacian(groups: list[list[int]], vectors: np.ndarray) -> float:
    """As it is written: the mean over tools of sum_v A_uv |x_u - x_v|^2, A_uv = C_uv / sqrt(C_uu C_vv)."""
    count = len(vectors)
    times = np.zeros((count, count))
    for group in groups:
        for u in set(group):
            for v in set(group):
                times[u, v] += 1
    total = 0.0
    for u in range(count):
        for v in range(count):
            if u != v and times[u, v]:
                total += times[u, v] / np.sqrt(times[u, u] * times[v, v]) * np.square(vectors[u] - vectors[v]).sum()
    return float(total / count)


@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=4), max_size=12))
@settings(max_examples=40, deadline=None)
def test_the_laplacian_is_the_sum_over_pairs(groups: list[list[int]]) -> None:
    vectors = unit(8)
    found = float(CoUsageGraph(count_co_usage(groups), 8, "cpu").laplacian_loss(torch.from_numpy(vectors)))
    assert found == pytest.approx(brute_laplacian(groups, vectors), abs=1e-5)


def test_drawn_partners_tell_the_whole_loss_on_average() -> None:
    groups = [[0, 1], [0, 1], [1, 2, 3], [3, 4], [0, 4], [6]]
    vectors = torch.from_numpy(unit(8))
    graph, chance = CoUsageGraph(count_co_usage(groups), 8, "cpu"), torch.Generator().manual_seed(0)
    rows = torch.arange(8).repeat(6000)
    partners, sums = graph.sample_partners(rows, chance)
    drawn = float((sums * (vectors[rows] - vectors[partners]).square().sum(dim=1)).mean())
    assert drawn == pytest.approx(float(graph.laplacian_loss(vectors)), rel=0.02)
    assert set(partners[rows == 2].tolist()) == {1, 3}
    assert float(sums[5]) == float(sums[6]) == 0.0  # alone, and never used
    nobody = CoUsageGraph(NOBODY, 8, "cpu")
    assert torch.equal(nobody.sample_partners(torch.arange(8), chance)[0], torch.arange(8))
    assert float(nobody.laplacian_loss(vectors)) == 0.0


def test_every_loss_reaches_the_encoder_and_codes_follow_what_they_stand_for() -> None:
    model = Quantiser(12, SMALL)
    with torch.no_grad():
        model.books.copy_(torch.randn_like(model.books) * 0.3)
    vectors = torch.from_numpy(unit(6))
    graph = CoUsageGraph(count_co_usage([[0, 1], [2, 3]]), 6, "cpu")

    def reached(which: str) -> tuple[bool, bool]:
        model.zero_grad()
        points = model.points(vectors)
        quantised = model.quantise(points)
        loss = {
            "collaboration": lambda: graph.laplacian_loss(collaboration_features(points, quantised)),
            "codes": lambda: codebook_loss(quantised),
            "reconstruction": lambda: (model.decoder(straight_through(points, quantised)) - vectors).square().sum(),
        }[which]()
        loss.backward()  # type: ignore[no-untyped-call]
        encoder, books = next(iter(model.encoder.parameters())).grad, model.books.grad
        return bool(encoder is not None and encoder.abs().sum() > 0), bool(books is not None and books.abs().sum() > 0)

    assert reached("collaboration") == (True, False)
    assert reached("codes") == (True, True)
    assert reached("reconstruction") == (True, False)


def test_kmeans_finds_clear_clusters_and_survives_few_vectors() -> None:
    chance = torch.Generator().manual_seed(0)
    centres = torch.eye(4) * 10
    vectors = centres.repeat_interleave(20, dim=0) + 0.1 * torch.randn(80, 4, generator=chance)
    found = kmeans(vectors, 4, chance)
    assert float(torch.cdist(centres, found).min(dim=1).values.max()) < 0.2
    few = kmeans(torch.ones(3, 4), 8, chance)
    assert few.shape == (8, 4)
    assert bool(torch.isfinite(few).all())


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.booleans(),
    st.integers(2, 3),
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_tool_has_a_code_of_its_own_whatever_stands_twice(kinds: list[int], even: bool, levels: int) -> None:
    """Few different vectors, many exact duplicates: more than a branch has codes."""
    points, books = unit(4)[kinds], 0.5 * unit(levels * 8, seed=3).reshape(levels, 8, 12)

    def priced(costs: np.ndarray) -> np.ndarray:
        return balancing_prices(torch.from_numpy(costs), 0.01, 20).numpy()  # type: ignore[no-any-return]

    paths, shared = assign_unique_paths(points, books, priced if even else None)
    assert len(set(paths)) == len(kinds)
    assert all(len(path) == levels and all(0 <= code < 8 for code in path) for path in paths)
    assert shared != 1
    if not even:  # exact duplicates want the same code
        assert shared >= sum(times for times in Counter(kinds).values() if times > 1)


def test_without_collisions_every_tool_keeps_its_nearest_code() -> None:
    points, books = unit(6), 0.5 * unit(24, seed=4).reshape(2, 12, 12)
    wanted = []
    for point in points:
        first = int(np.square(books[0] - point).sum(axis=1).argmin())
        wanted.append((first, int(np.square(books[1] - (point - books[0][first])).sum(axis=1).argmin())))
    paths, shared = assign_unique_paths(points, books, None)
    if len(set(wanted)) == 6:
        assert (paths, shared) == (wanted, 0)
    alone, _ = assign_unique_paths(points[:1], books, None)
    assert alone == wanted[:1]


def test_of_a_crowded_branch_the_total_distance_is_the_least() -> None:
    books = np.stack([np.eye(3)[:2], np.array([[0.0, 0.2, 0.0], [0.0, 0.0, 0.3]])])
    points = np.array([[1.0, 0.2, 0.0], [1.0, 0.2, 0.1]])  # both nearest to (0, 0)
    paths, shared = assign_unique_paths(points, books, None)
    assert shared == 2
    assert paths == [(0, 0), (0, 1)]  # the second is nearer to the other code than the first


def test_later_tools_take_free_codes_until_there_are_none() -> None:
    books = 0.5 * unit(8, seed=5).reshape(2, 4, 12)
    taken = [(0, 0), (0, 1), (3, 3)]
    room = FreeCodes(books, taken)
    found = [room.take_nearest(point) for point in unit(13)]
    assert len({*found, *taken}) == 16
    with pytest.raises(BadInput, match=r"room for 16 tools, not 17; raise quantiser\.codebook_size"):
        room.take_nearest(unit(1)[0])
    with pytest.raises(BadInput, match=r"raise quantiser\.codebook_size"):
        assign_unique_paths(unit(17), books, None)


def test_later_tools_prefer_codes_that_the_model_has_met() -> None:
    books = 0.5 * unit(8, seed=6).reshape(2, 4, 12)
    for point in unit(20, seed=7):
        path = FreeCodes(books, [], [{1}, {2, 3}]).take_nearest(point)
        assert path[0] == 1
        assert path[1] in (2, 3)
    full = [(1, 2), (1, 3)]
    assert FreeCodes(books, full, [{1}, {2, 3}]).take_nearest(unit(1)[0])[0] == 1  # the branch before the leaf


def test_the_same_seed_weaves_the_same_codes_and_another_one_others() -> None:
    vectors, usage = unit(40), count_co_usage([[0, 1], [2, 3]])
    left, right = assign_codes(vectors, usage, SMALL, "cpu"), assign_codes(vectors, usage, SMALL, "cpu")
    assert left.paths == right.paths
    assert np.array_equal(left.quantiser.books, right.quantiser.books)
    assert assign_codes(vectors, usage, replace(SMALL, seed=1), "cpu").paths != left.paths
    assert left.summary["tools that share a code"] == 0
    assert left.summary["tokens"] == 12


def test_weaving_in_batches_draws_tools_together_as_well() -> None:
    vectors = unit(60)
    usage = count_co_usage([[a, a + 1] for a in range(0, 60, 2)] * 3)
    wide = replace(SMALL, codebook_size=8, width=16, steps=100, learning_rate=1e-2)
    apart, whole, batches = (
        share_with_same_first_code(
            assign_codes(vectors, usage, replace(wide, collaboration=how, batch_size=size), "cpu").paths, usage
        )
        for how, size in ((0.0, 64), (3.0, 64), (3.0, 16))
    )
    assert None not in (apart, whole, batches)
    assert apart < 0.25  # type: ignore[operator]
    assert min(whole, batches) > 0.3  # type: ignore[type-var]


def test_codes_that_nobody_uses_come_back_to_life(monkeypatch: pytest.MonkeyPatch) -> None:
    from retrievers.weaver import quantiser
    from retrievers.weaver import quantiser_training as learning

    settings = replace(SMALL, uniform=False, collaboration=0.0, codebook_size=16, steps=160)
    collapsed = torch.zeros(16, 8)

    def nowhere(vectors: torch.Tensor, count: int, chance: torch.Generator) -> torch.Tensor:
        return collapsed + 1e-4 * torch.randn(16, 8, generator=chance)

    monkeypatch.setattr(learning, "kmeans", nowhere)
    monkeypatch.setattr(quantiser, "HIDDEN", (16,))
    vectors = unit(80)
    alive = [len({p[0] for p in _paths(train_quantiser(vectors, NOBODY, settings, "cpu"), vectors)})]
    monkeypatch.setattr(learning, "RESET_EVERY", 10**9)
    alive.append(len({p[0] for p in _paths(train_quantiser(vectors, NOBODY, settings, "cpu"), vectors)}))
    assert alive[0] >= 12 > alive[1]


def _paths(model: Quantiser, vectors: np.ndarray) -> list[list[int]]:
    with torch.no_grad():
        return model.quantise(model.points(torch.from_numpy(vectors))).codes.tolist()  # type: ignore[no-any-return]


def test_plain_arrays_say_what_the_encoder_says() -> None:
    vectors = unit(30)
    assignment = assign_codes(vectors, NOBODY, SMALL, "cpu")
    model = train_quantiser(vectors, NOBODY, SMALL, "cpu")
    with torch.no_grad():
        wanted = model.points(torch.from_numpy(vectors)).numpy()
    assert np.allclose(assignment.quantiser.points(vectors), wanted, atol=1e-5)


def test_evenness_is_one_for_equal_shares_and_zero_for_one_code() -> None:
    assert usage_entropy([(0, 0), (0, 1), (0, 2), (0, 3)], 2, 4) == pytest.approx([0.0, 1.0])


def test_rows_of_codes_lie_as_the_codes_do_with_the_length_of_others() -> None:
    torch.manual_seed(0)
    table = torch.randn(100, 24) + 3
    books = 0.5 * unit(8, 6, seed=8).reshape(2, 4, 6)
    paths = list(itertools.product(range(4), range(4)))
    totals = np.stack([books[0][a] + books[1][b] for a, b in paths])
    projection = torch.randn(6, 24)
    names = torch.from_numpy(totals).float() @ projection + 3
    rows = code_token_rows(table, books, totals, names)
    assert rows.shape == (8, 24)
    away = rows - table.mean(dim=0)
    usual = float((table - table.mean(dim=0)).norm(dim=1).median())
    assert torch.allclose(away.norm(dim=1), torch.full((8,), usual), rtol=1e-3)
    for level in range(2):
        book = torch.from_numpy(books[level]).float()
        wanted = torch.nn.functional.normalize((book - book.mean(dim=0)) @ projection, dim=1)
        made = torch.nn.functional.normalize(away[4 * level : 4 * level + 4], dim=1)
        assert bool(((wanted * made).sum(dim=1) > 0.95).all())
    lonely = code_token_rows(table, books, totals[:1], names[:1])
    assert bool(torch.isfinite(lonely).all())


def test_usage_counts_each_pair_once() -> None:
    usage: CoUsage = count_co_usage([[1, 0], [0, 1, 1], [2], [0, 2]])
    assert usage.pairs.tolist() == [[0, 1], [0, 2]]
    assert usage.weights.tolist() == pytest.approx([2 / (3 * 2) ** 0.5, 1 / (3 * 2) ** 0.5])
