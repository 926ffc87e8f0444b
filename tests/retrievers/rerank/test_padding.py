"""Groups of rows by length: every row once, in groups that waste little."""

from hypothesis import given
from hypothesis import strategies as st

from retrievers.rerank.padding import MIN_ROWS, MIN_SHARE, groups_by_length
from retrievers.rerank.training.batches import TrainingList
from retrievers.rerank.training.loop import split_lists


@given(st.lists(st.integers(1, 500), max_size=60), st.integers(1, 40))
def test_groups_hold_every_row_once_and_similar_lengths(lengths: list[int], max_rows: int) -> None:
    groups = groups_by_length(lengths, max_rows, "cpu")
    assert sorted(row for group in groups for row in group) == list(range(len(lengths)))
    for group in groups:
        own = [lengths[row] for row in group]
        assert len(group) <= max_rows
        assert own == sorted(own, reverse=True)
        assert all(length >= MIN_SHARE * own[0] for length in own[MIN_ROWS["cpu"] :])


def test_a_gpu_reads_few_rows_in_one_pass() -> None:
    assert len(groups_by_length([5, 500] * 10, 256, "cuda")) == 1
    assert len(groups_by_length([5, 500] * 10, 256, "cpu")) == 2


@given(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 6)), min_size=1, max_size=12), st.integers(1, 20))
def test_lists_of_a_step_are_split_within_the_limits(sizes: list[tuple[int, int]], max_pairs: int) -> None:
    lists = [TrainingList("q" * length, ["tool"] * tools, [True] * tools) for length, tools in sizes]
    parts = list(split_lists(lists, max_pairs, 600))
    assert sorted(id(one) for part in parts for one in part) == sorted(map(id, lists))
    for part in parts:
        pairs = sum(len(one.needed) for one in part)
        longest = max(len(one.query) + 4 for one in part)
        assert len(part) == 1 or (pairs <= max_pairs and pairs * longest <= 600)
