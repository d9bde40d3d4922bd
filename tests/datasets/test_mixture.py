"""Mixtures: exact shares over epochs, weights that change, sources that keep their own settings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import storeds
from make_store import make_store
from storeds import StoreDataset, StoreLoader, StoreMixture
from storeds.errors import ClosedError, ConfigError
from threaded import threaded

FIELDS = {"x": "int", "label": "int"}
LARGE, SMALL = 1000, 37


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("mixture")
    urls = {"large": f"lmdb://{folder}/large.lmdb", "small": f"hdf5://{folder}/small.h5"}
    make_store(FIELDS, ({"x": at, "label": 0} for at in range(LARGE)), urls["large"], attrs={"classes": ["cat", "dog"]})
    make_store(FIELDS, ({"x": -at - 1, "label": 1} for at in range(SMALL)), urls["small"])
    return urls


def sources(urls: dict[str, str], **settings: Any) -> dict[str, StoreDataset]:
    settings = {"reader": "array", "fields": ["x"], "seed": 1, **settings}
    return {name: StoreDataset(url, **settings) for name, url in urls.items()}


def drawn(loader: Any) -> list[int]:
    return [int(x) for (values,) in loader for x in values]


def test_over_200_epochs_each_record_of_a_source_comes_equally_often(urls: dict[str, str]) -> None:
    mixture = StoreMixture(sources(urls), {"large": 0.75, "small": 0.25})
    sampler = storeds.EpochSampler(mixture, samples_per_epoch=400)
    times: Counter[int] = Counter()
    small: list[list[int]] = []
    for _ in range(200):
        indices = list(sampler)
        assert sum(index < LARGE for index in indices) == 300
        times.update(indices)
        small.append([index for index in indices if index >= LARGE])
        for of_source in (range(LARGE), range(LARGE, LARGE + SMALL)):
            counts = [times[index] for index in of_source]
            assert max(counts) - min(counts) <= 1
    assert len({tuple(sorted(indices)) for indices in small}) == 200  # each pass has another order
    assert sampler.plan.describe() == "400 samples by source: large 300 (75.0%), small 100 (25.0%)"


@pytest.mark.parametrize("kind", [StoreLoader, threaded, DataLoader])
def test_every_loader_reads_the_samples_of_their_sources(urls: dict[str, str], kind: Any) -> None:
    mixture = StoreMixture(sources(urls), {"large": 1, "small": 1})
    sampler = storeds.EpochSampler(mixture, samples_per_epoch=60)
    expected = [
        index if index < LARGE else LARGE - index - 1 for index in storeds.EpochSampler(mixture, samples_per_epoch=60)
    ]
    loader = kind(mixture, sampler=sampler, batch_size=8, num_workers=2, collate_fn=storeds.collate)
    assert drawn(loader) == expected


def test_weights_change_with_the_epochs(urls: dict[str, str]) -> None:
    mixture = StoreMixture(sources(urls), {"large": {0: 1, 2: 1, 3: 0}, "small": {0: 0, 2: 1}})
    loader = StoreLoader(mixture, batch_size=50, samples_per_epoch=100)
    assert [sum(x < 0 for x in drawn(loader)) for _ in range(5)] == [0, 0, 50, 100, 100]


@pytest.mark.parametrize(
    ("settings", "samples", "small"),
    [
        ({}, 1037, 37),
        ({"weights": {"large": 1, "small": 1}, "stop": "first"}, 74, 37),
        ({"weights": {"large": 1, "small": 1}, "stop": "last"}, 2000, 1000),
        ({"temperature": 1e9, "stop": "last"}, 2000, 1000),
        ({"temperature": 2}, 1037, round(1037 * 37**0.5 / (37**0.5 + 1000**0.5))),
    ],
)
def test_how_long_an_epoch_is(urls: dict[str, str], settings: dict[str, Any], samples: int, small: int) -> None:
    values = drawn(StoreLoader(StoreMixture(sources(urls), **settings), batch_size=100))
    assert len(values) == samples
    assert sum(x < 0 for x in values) == small


class TestConfig:
    @pytest.fixture
    def table(self, urls: dict[str, str]) -> dict[str, Any]:
        return {
            "dataset": {
                "reader": "array",
                "fields": ["x", "source"],
                "seed": 3,
                "sources": [
                    {"name": "a", "url": urls["large"], "weight": {"0": 3, "1": 1}, "where": {"x": list(range(50))}},
                    {"name": "b", "url": urls["small"], "weight": 1, "target_transform": "operator.neg"},
                ],
            },
            "loader": {"batch_size": 8, "num_workers": 0, "samples_per_epoch": 40},
        }

    def test_sources_have_settings_of_their_own_and_a_name_in_each_sample(self, table: dict[str, Any]) -> None:
        del table["dataset"]["sources"][1]["target_transform"]
        loader = storeds.build_loader(table)
        for small in (10, 20):
            seen: Counter[str] = Counter()
            for values, names in loader:
                seen.update(names)
                assert [("b" if x < 0 else "a") for x in values.tolist()] == list(names)
                assert int(values.max()) < 50
            assert seen == {"a": 40 - small, "b": small}
        mixture: Any = loader.dataset
        assert {name: part.report().seen for name, part in mixture.sources.items()} == {"a": 50, "b": 30}
        assert loader.stats()["sources"] == {"a": 50, "b": 30}

    def test_splits_apply_to_each_source(self, table: dict[str, Any], tmp_path: Path) -> None:
        for name in ("a", "b"):
            for split, first in (("train", 0), ("val", 100)):
                rows = [{"x": first + at, "label": 0} for at in range(10)]
                make_store(FIELDS, rows, f"lmdb://{tmp_path}/{name}-{split}.lmdb")
        table["dataset"]["sources"] = [
            {"name": name, "url": f"lmdb://{tmp_path}/{name}-{{split}}.lmdb"} for name in ("a", "b")
        ]
        val: Any = storeds.build_dataset(table, "val")
        assert sorted(x for x, _ in val) == sorted([*range(100, 110)] * 2)

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"weight": "much"}, "source 'b': a weight is a number"),
            ({"weight": None}, "source 'b' has none; give each"),
            ({"weight": -1}, "at least 0, got -1"),
            ({"weight": {"1": 1}}, "begin with epoch 0"),
            (
                {"fields": ["x", "label", "source"]},
                "samples of sources differ: 'a' has x .int., source .str.; 'b' has x",
            ),
            ({"urll": "x"}, "source 'b' of the mixture: .*unknown key 'urll'; did you mean 'url'"),
            ({"name": "a"}, "different names"),
        ],
    )
    def test_wrong_sources_are_refused(self, table: dict[str, Any], change: dict[str, Any], says: str) -> None:
        del table["dataset"]["sources"][1]["target_transform"]
        table["dataset"]["sources"][1] |= change
        with pytest.raises(ConfigError, match=says):
            storeds.build_dataset(table)


def test_a_stream_has_the_shares_and_no_other_dataset_hides_them(urls: dict[str, str]) -> None:
    mixture = StoreMixture(sources(urls), {"large": 1, "small": 1}, stop="first")
    stream = storeds.StoreIterable(mixture, seed=1, shuffle=True)
    values = [x for (x,) in stream]
    assert len(stream) == len(values) == 2 * SMALL
    assert sum(x < 0 for x in values) == SMALL
    with pytest.raises(ConfigError, match="would lose its shares"):
        StoreLoader(torch.utils.data.Subset(mixture, range(10)))


def test_different_classes_are_refused(urls: dict[str, str], tmp_path: Path) -> None:
    other = make_store(FIELDS, [{"x": 0, "label": 0}], f"lmdb://{tmp_path}/o.lmdb", attrs={"classes": ["dog", "cat"]})
    parts = sources({"a": urls["large"], "b": other}, fields=["x", "label"])
    with pytest.raises(ConfigError, match="different class names"):
        StoreMixture(parts)


def test_a_mixture_reads_as_its_parts_do(urls: dict[str, str]) -> None:
    mixture = StoreMixture(sources(urls))
    assert len(mixture) == LARGE + SMALL
    assert mixture[-1] == (-SMALL,)
    assert mixture.__getitems__([LARGE, 5, -1]) == [(-1,), (5,), (-SMALL,)]
    assert np.array_equal(torch.tensor([x for (x,) in (mixture[at] for at in range(3))]), range(3))


# What only a dataset of one store has.
OF_ONE_STORE = {"backend", "records", "where", "read"}


def test_a_mixture_has_every_name_of_a_dataset_that_makes_sense(urls: dict[str, str]) -> None:
    assert {name for name in vars(StoreDataset) if name[0] != "_"} - set(dir(StoreMixture)) == OF_ONE_STORE


def test_what_is_asked_of_a_mixture_is_asked_of_its_sources(urls: dict[str, str]) -> None:
    mixture = StoreMixture(sources(urls, fields=["x", "label"]))
    assert (mixture.classes, mixture.class_to_idx) == (["cat", "dog"], {"cat": 0, "dog": 1})
    assert mixture.targets == [0] * LARGE + [1] * SMALL
    assert mixture.column("x").tolist() == [*range(LARGE), *range(-1, -SMALL - 1, -1)]
    mixture.set_epoch(4)
    mixture.as_dict, mixture.target_transform, mixture.seed = True, _negative, 8
    assert mixture.epoch == 4
    assert mixture[-1] == {"x": -SMALL, "label": -1}
    for part in mixture.sources.values():
        assert (part.epoch, part.as_dict, part.target_transform, part.seed) == (4, True, _negative, 8)
    assert (mixture.as_dict, mixture.target_transform, mixture.seed) == (True, _negative, 8)
    assert (mixture.report().seen, mixture.sources["small"].report().seen) == (1, 1)
    mixture.close()
    with pytest.raises(ClosedError):
        mixture[0]


def _negative(label: int) -> int:
    return -label
