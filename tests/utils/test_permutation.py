"""The order of an epoch: a bijection of any size, the same everywhere, that shuffles well, in blocks too."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storeds.loaders import EpochOrder

MAX_COUNT = 2**62

seeds = st.integers(-(2**70), 2**70)
epochs = st.integers(0, 10**6)
blocks = st.none() | st.tuples(st.integers(1, 400), st.integers(1, 20))
counts = (
    st.integers(0, 200) | st.integers(0, 5000) | st.sampled_from([2**k + d for k in range(1, 13) for d in (-1, 0, 1)])
)


def positions(*values: int) -> npt.NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def order(count: int, seed: int = 0, epoch: int = 0, block: tuple[int, int] | None = None) -> EpochOrder:
    size, window = block or (None, None)
    return EpochOrder(count, seed, epoch, True, size, window)


def listed(order: EpochOrder) -> list[int]:
    return list(order.walk(0, 1, order.count))


class TestBijection:
    @given(counts, seeds, epochs, blocks)
    def test_every_index_comes_once(self, count: int, seed: int, epoch: int, block: tuple[int, int] | None) -> None:
        assert sorted(listed(order(count, seed, epoch, block))) == list(range(count))

    @given(st.integers(2, MAX_COUNT), seeds, blocks, st.data())
    def test_of_any_size_up_to_the_largest(
        self, count: int, seed: int, block: tuple[int, int] | None, data: st.DataObject
    ) -> None:
        asked = data.draw(st.sets(st.integers(0, count - 1), min_size=2, max_size=50))
        found = order(count, seed, 0, block).indices(positions(*asked)).tolist()
        assert len(set(found)) == len(asked)
        assert all(0 <= index < count for index in found)

    @given(st.integers(1, 3000), seeds, blocks, st.data())
    def test_a_position_has_its_index_whatever_else_is_asked(
        self, count: int, seed: int, block: tuple[int, int] | None, data: st.DataObject
    ) -> None:
        asked = data.draw(st.lists(st.integers(0, count - 1), max_size=10))
        whole = listed(order(count, seed, 3, block))
        assert order(count, seed, 3, block).indices(positions(*asked)).tolist() == [whole[at] for at in asked]

    def test_nothing_is_held_of_the_size_of_the_set(self) -> None:
        assert len(set(islice(order(MAX_COUNT).walk(1, 3, MAX_COUNT // 3), 10_000))) == 10_000


class TestStability:
    """What a checkpoint of today means on another machine, and after an upgrade."""

    @pytest.mark.parametrize(
        ("made", "expected"),
        [
            (order(10, 7, 0), [6, 8, 4, 7, 2, 0, 3, 9, 1, 5]),
            (order(1000, 7, 2), [2, 628, 463, 916, 645, 39, 737, 806, 950, 501]),
            (order(MAX_COUNT, -1, 5), [4607425316350391293, 334189478562475559, 639238730245261636]),
            (order(1001, 7, 2, (10, 4)), [489, 484, 770, 482, 960, 774, 56, 969, 55, 58]),
        ],
        ids=["few", "many", "largest", "blocks"],
    )
    def test_orders_never_change(self, made: EpochOrder, expected: list[int]) -> None:
        assert made.indices(np.arange(len(expected), dtype=np.uint64)).tolist() == expected


class TestQuality:
    """χ² of what a fair shuffle would give: all seeds are fixed, the bounds are five standard deviations."""

    @staticmethod
    def assert_fair(observed: np.ndarray[tuple[int, ...], np.dtype[np.int64]], freedom: int) -> None:
        expected = observed.mean()
        surplus = ((observed - expected) ** 2 / expected).sum() - freedom
        assert abs(surplus) < 5 * (2 * freedom) ** 0.5

    @pytest.mark.parametrize("count", [2, 3, 4])
    def test_all_orders_are_equally_frequent(self, count: int) -> None:
        found = Counter(tuple(listed(order(count, seed, 1))) for seed in range(2400))
        assert len(found) == [2, 6, 24][count - 2]
        self.assert_fair(np.array(list(found.values())), len(found) - 1)

    @pytest.mark.parametrize("count", [5, 64, 65])
    def test_every_element_is_equally_often_at_every_position(self, count: int) -> None:
        at = np.arange(count)
        where, steps = np.zeros((count, count), np.int64), np.zeros(count, np.int64)
        for epoch in range(800):
            shuffled = np.array(listed(order(count, 3, epoch)))
            where[at, shuffled] += 1
            np.add.at(steps, (shuffled[1:] - shuffled[:-1]) % count, 1)
        self.assert_fair(where, (count - 1) ** 2)
        assert abs(np.trace(where) / 800 - 1) < 0.2  # fixed points
        assert steps[0] == 0
        self.assert_fair(steps[1:], count - 2)  # the next element tells nothing

    def test_seeds_and_epochs_are_unlike_each_other(self) -> None:
        orders = [listed(order(1000, seed, epoch)) for seed in range(6) for epoch in range(6)]
        agreeing = [sum(map(int.__eq__, a, b)) for at, a in enumerate(orders) for b in orders[:at]]
        assert max(agreeing) < 10


class TestBlocks:
    @given(st.integers(1, 3000), st.integers(1, 100), st.integers(1, 10), seeds)
    def test_a_block_is_read_within_one_window(self, count: int, size: int, window: int, seed: int) -> None:
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, index in enumerate(listed(order(count, seed, 0, (size, window)))):
            first.setdefault(index // size, position)
            last[index // size] = position
        assert all(last[block] - first[block] < size * window for block in first)

    def test_blocks_and_samples_are_shuffled_again_in_every_window(self) -> None:
        found = np.array(listed(order(1000, 1, 0, (1000, 1))))
        assert (found != np.arange(1000)).mean() > 0.9
        windows = np.array(listed(order(1000, 1, 0, (100, 1)))).reshape(10, 100)
        assert len({tuple(row % 100) for row in windows}) == 10
        assert [row[0] // 100 for row in windows] != list(range(10))
