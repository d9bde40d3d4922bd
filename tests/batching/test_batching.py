"""What `storeds.collate` makes of samples."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import storeds
from make_store import make_store
from photographs import photograph
from storeds import Skipped, collate, errors
from storeds.batching import Padded

SKIPPED = Skipped(7, "lmdb://x", 7, "decode", "it is empty")


class Point(NamedTuple):
    x: float
    y: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [
        [(torch.ones(3, 2), 1), (torch.zeros(3, 2), 2)],
        [{"a": 1.5, "b": "x"}, {"a": 2.5, "b": "y"}],
        [Point(1.0, torch.ones(2)), Point(2.0, torch.zeros(2))],
        [np.ones(3, np.float32), np.zeros(3, np.float32)],
        [(np.int64(3), b"x"), (np.int64(4), b"y")],
        ["a", "b"],
        [([1, 2], {"c": 3}), ([4, 5], {"c": 6})],
    ],
)
def test_what_pytorch_batches_is_batched_as_pytorch_does(batch: list[Any]) -> None:
    assert str(collate(batch)) == str(default_collate(batch))
    assert type(collate(batch)) is type(default_collate(batch))


def test_skipped_samples_are_dropped_and_samples_stacked_of_one() -> None:
    values, numbers = collate([SKIPPED, (torch.tensor([1]), 1), SKIPPED, (torch.tensor([3]), 3)])
    assert numbers.tolist() == [1, 3] == values[:, 0].tolist()
    assert collate([((1, 2), (3, 4)), ((5, 6), SKIPPED)]) == [[torch.tensor([1]), torch.tensor([2])], [3, 4]]
    assert collate([{"a": 1, "b": SKIPPED}, {"a": 2, "b": 3}])["a"].tolist() == [2]
    with pytest.raises(errors.BadSamplesError, match="the first: sample 7 of lmdb://x, it is empty"):
        collate([SKIPPED, SKIPPED])


def test_lengths_that_differ_are_padded_unasked_and_in_a_tuple_become_padded() -> None:
    values, wider, label = collate([(torch.ones(2), torch.tensor([1, 2]), 0), (torch.ones(3), torch.tensor([0.5]), 1)])
    assert isinstance(values, Padded)
    assert values.mask.tolist() == [[True, True, False], [True, True, True]]
    assert wider.values.tolist() == [[1.0, 2.0], [0.5, 0.0]]  # the wider type
    assert label.tolist() == [0, 1]
    assert isinstance(collate([(torch.ones(2), 0)], pad=[0])[0], Padded)


@pytest.mark.parametrize(
    "shapes", [[(3, 4, 5), (3, 5, 5)], [(3, 4), (2, 1)], [(2, 3), (2, 4)], [(), (1,)], [(2,), (2, 2)]]
)
def test_values_that_differ_otherwise_are_refused_with_their_shapes(shapes: list[tuple[int, ...]]) -> None:
    with pytest.raises(errors.ConfigError, match=r"make no batch, .*Resize"):
        collate([(torch.zeros(shape),) for shape in shapes])


def test_json_whose_keys_or_lengths_differ_stays_a_list() -> None:
    values = [({"a": 1}, [1, 2]), ({"b": 2}, [3])]
    assert collate(values) == [[{"a": 1}, {"b": 2}], [[1, 2], [3]]]


@pytest.mark.parametrize(
    ("batch", "settings", "words"),
    [
        ([], {}, "at least one sample"),
        ([(photograph(0), 1)], {}, "decode='tensor'"),
        ([{"x": torch.ones(1), "x_mask": 1}, {"x": torch.ones(2), "x_mask": 2}], {}, "'x_mask'"),
        ([{"x": torch.ones(1)}], {"pad": ["clip"]}, "pad names 'clip', .* no such element: 'x'"),
        ([{"x": torch.ones(1)}], {"ragged": {"y": "list"}}, "ragged names 'y'"),
        ([{"x": torch.ones(1)}], {"ragged": {"x": "lists"}}, "'x' is 'lists'; did you mean 'list'"),
        ([{"x": "none"}], {"ragged": {"x": "pad"}}, "element 'x': it cannot be padded"),
        ([{"x": torch.ones(1)}], {"pad_images": ["image"]}, "pad_images names 'image'"),
        ([{"x": torch.ones(1)}], {"pad_images": "x"}, "not 'x'"),
        (
            [{"x": torch.zeros(size, 9, 9)} for size in (5, 6)],
            {"pad_images": ["x"]},
            "element 'x': values of shapes.*pad_images pads",
        ),
        ([{"x": torch.zeros(4, size)} for size in (5, 6)], {"ragged": {"x": "mask"}}, "element 'x': values of shapes"),
        ([(torch.zeros(3, 4, size),) for size in (5, 6)], {}, r"element 0: .*Resize.*pad_images=True"),
        ([(torch.zeros(1, 4, 5),), (torch.zeros(3, 4, 6),)], {"pad_images": [0]}, "images of 1 and 3 channels"),
        *(
            (
                [{"x": torch.zeros(4, size, dtype=torch.uint8)} for size in (5, 6)],
                {"pad_images": {"x": fill}},
                "uint8 cannot hold",
            )
            for fill in (-1, 256, 0.5)
        ),
    ],
)
def test_what_makes_no_batch_says_why(batch: list[Any], settings: Any, words: str) -> None:
    with pytest.raises(errors.ConfigError, match=words):
        collate(batch, **settings)


def test_settings_apply_to_arrays_of_fixed_shape() -> None:
    fields: Any = {"x": {"kind": "array", "dtype": "<f4", "shape": [2]}}
    url = make_store(fields, ({"x": np.full(2, at, np.float32)} for at in range(3)))
    dataset = storeds.StoreDataset(url, reader="array", as_dict=True)
    (batch,) = storeds.StoreLoader(dataset, batch_size=3, collate_fn=functools.partial(collate, ragged={"x": "list"}))
    assert [x.tolist() for x in batch["x"]] == [[at, at] for at in range(3)]
    assert type(batch["x"]) is list
