"""Settings are written once: the tables of a config are the arguments of `StoreDataset` and `StoreLoader`."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import storeds
from make_store import make_store
from storeds import DatasetSettings, StoreDataset, StoreLoader, build_dataset, build_loader, errors, load_config
from storeds.config import config_schema
from storeds.loaders.settings import LoaderSettings

COUNT = 24
OBJECTS = {"dataset", "sampler", "batch_sampler", "collate_fn", "generator", "multiprocessing_context"}
"""Arguments of a loader that no config can hold."""


def write_store(url: str, first: int = 0) -> str:
    records = [
        {"label": n % 3, "size": 1 + n % 5, "x": first + n, "split": "val" if n % 4 == 0 else "train"}
        for n in range(COUNT)
    ]
    fields = {"label": "int", "size": "int", "x": "int", "split": "str"}
    return make_store(fields, records, url, attrs={"classes": ["a", "b", "c"]})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return write_store(f"lmdb://{tmp_path}/x.lmdb")


def arguments(function: Any) -> dict[str, inspect.Parameter]:
    """Return the arguments of a function by name, without those that stand for others."""
    parameters = inspect.signature(function).parameters
    return {name: each for name, each in parameters.items() if each.kind is not inspect.Parameter.VAR_KEYWORD}


# --- Tables and arguments ---


def test_every_key_of_a_dataset_is_an_argument_with_the_same_default() -> None:
    defaults = {name: each.default for name, each in arguments(StoreDataset).items()}
    settings = DatasetSettings(url=defaults.pop("url"))
    assert {"url", *defaults} == set(DatasetSettings.__struct_fields__)
    assert defaults == {name: getattr(settings, name) for name in defaults}


def test_every_key_of_a_loader_is_an_argument_with_the_default_of_pytorch(url: str) -> None:
    dataset = StoreDataset(url, reader="array")
    keys = set(config_schema()["$defs"]["LoaderSettings"]["properties"])
    assert set(arguments(StoreLoader)) == OBJECTS
    of_pytorch = arguments(DataLoader)
    assert set(of_pytorch) - keys == OBJECTS
    assert set(arguments(storeds.EpochSampler)) - keys == {"data", "generator", "num_replicas", "rank"}
    loader, theirs = StoreLoader(dataset), DataLoader(dataset)
    for name in keys & set(of_pytorch) - {"shuffle"}:
        assert getattr(loader, name) == getattr(theirs, name), name
    for name in keys:
        default = getattr(LoaderSettings(), name)
        assert isinstance(StoreLoader(dataset, **{name: default}).sampler, storeds.EpochSampler)
        build_loader({"dataset": {"url": url, "reader": "array"}, "loader": {name: default}})


TABLES: list[dict[str, Any]] = [
    {},
    {"batch_size": 4, "shuffle": True, "drop_last": True},
    {"batch_size": 5, "shuffle": True, "block_size": 4, "window": 2, "seed": 9},
    {"batch_size": 6, "balance": "label", "samples_per_epoch": 30, "per_batch": True},
    {"batch_size": 5, "weights": {"a": 3, 1: 1}},
    {"batch_size": 5, "weights": "size"},
    {"batch_size": 10, "group_by": "size"},
    {"batch_size": 5, "bucket_by": ["size", "x"], "num_buckets": 3},
    {"batch_size": None, "timeout": 5, "prefetch_factor": 2, "persistent_workers": True, "start_method": "spawn"},
    {"batch_size": 4, "num_workers": 1, "start_method": "fork", "prefetch_factor": 3, "persistent_workers": True},
    {"batch_size": 4, "collate": "default", "num_workers": 0},
    {"batch_size": 4, "collate": "builtins.len"},
    {"batch_size": 4, "log_every": 60, "in_order": False},
]


OF_PYTORCH = ("batch_size", "drop_last", "num_workers", "timeout", "prefetch_factor", "persistent_workers", "in_order")


@pytest.mark.parametrize("table", TABLES, ids=lambda table: ", ".join(table) or "nothing")
def test_a_loader_of_a_config_is_the_one_made_with_these_arguments(url: str, table: dict[str, Any]) -> None:
    settings: dict[str, Any] = {"url": url, "reader": "array", "fields": ["x", "label", "size"], "seed": 5}
    ours = build_loader({"dataset": settings, "loader": table})
    other = StoreLoader(StoreDataset(**settings), **table)
    assert [getattr(ours, name) for name in OF_PYTORCH] == [getattr(other, name) for name in OF_PYTORCH]
    assert ours.plan.describe() == other.plan.describe()
    if table.get("collate") != "builtins.len":
        assert repr(list(ours)) == repr(list(other))
    assert ours.state_dict() == other.state_dict()


def test_num_workers_0_alone_turns_workers_off(url: str) -> None:
    of_workers = {"timeout": 5, "prefetch_factor": 2, "persistent_workers": True, "start_method": "spawn"}
    config = load_config(
        {"dataset": {"url": url}, "loader": {"num_workers": 2, "worker_init_fn": "builtins.print", **of_workers}},
        overrides=["loader.num_workers=0", "dataset.reader=array"],
    )
    loader = build_loader(config)
    assert (loader.timeout, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert (loader.worker_init_fn, len(list(loader))) == (None, COUNT)


@pytest.mark.parametrize(("local", "world", "share"), [(None, 1, 1), ("2", 8, 2), (None, 2, 2), ("4096", 4096, 4096)])
def test_auto_workers_are_the_cpus_divided_among_the_ranks(
    url: str, monkeypatch: pytest.MonkeyPatch, local: str | None, world: int, share: int
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    if local is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local)
    for name, value in (("is_initialized", world > 1), ("get_world_size", world), ("get_rank", 0)):
        monkeypatch.setattr(torch.distributed, name, lambda *_, value=value: value)
    table = {"dataset": {"url": url, "reader": "array", "seed": 1}, "loader": {"num_workers": "auto"}}
    assert build_loader(table).num_workers == max(len(os.sched_getaffinity(0)) // share, 1)


# Arguments of a loader, and the error.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"bach_size": 2}, "StoreLoader: unknown argument 'bach_size'; did you mean 'batch_size'"),
    ({"batch_size": 0}, "StoreLoader: batch_size: expected an integer >= 1"),
    ({"batch_size": "many"}, "StoreLoader: batch_size: expected an integer"),
    ({"num_workers": "much"}, "StoreLoader: num_workers: expected 'auto'"),
    ({"num_workers": -1}, "StoreLoader: num_workers: expected an integer >= 0"),
    ({"samples_per_epoch": 0}, "StoreLoader: samples_per_epoch: expected an integer >= 1"),
    ({"prefetch_factor": 0}, "StoreLoader: prefetch_factor: expected an integer >= 1"),
    ({"timeout": -1}, "StoreLoader: timeout: expected a number >= 0"),
    ({"log_every": 0}, "StoreLoader: log_every: expected a number > 0"),
    ({"ragged": {"x": "lists"}}, "StoreLoader: ragged.*expected 'mask', 'pad', 'list'"),
    ({"ragged": {1.5: "list"}}, "StoreLoader: ragged: a key of this table: expected an integer or a text"),
    ({"weights": {"d": 1}}, "weights: no sample has the label 'd'"),
    ({"weights": {"a": "x"}}, "weights: the weight of 'a' is a number, got 'x'"),
    ({"block_size": 4}, "block_size has an effect on shuffling only, and shuffle is False"),
    ({"bucket_by": "size", "batch_size": None}, "bucket_by makes batches: pass batch_size too"),
    ({"bucket_by": ["size"] * 3, "batch_size": 2}, "bucket_by is a field of numbers, or two such as width and height"),
    ({"collate": "detecton"}, "unknown collate 'detecton'; did you mean 'detection'"),
    ({"label_offset": 1}, "label_offset is for batches that storeds.collate_detection makes"),
    ({"pad": ["x"], "collate": "default"}, "pad is for batches that storeds.collate makes, .* collate = 'default'"),
    ({"pad": ["x"], "batch_size": None}, "pad is for batches that storeds.collate makes, .* batch_size = "),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=str)
def test_wrong_settings_of_a_loader_are_named_everywhere(url: str, settings: dict[str, Any], words: str) -> None:
    dataset = StoreDataset(url, reader="array")
    with pytest.raises(errors.ConfigError, match=words):
        StoreLoader(dataset, **settings)
    words = words.removeprefix("StoreLoader: ").replace("argument 'bach_size'", "key 'loader.bach_size'")
    with pytest.raises(errors.ConfigError, match=words):
        build_loader({"dataset": {"url": url, "reader": "array"}, "loader": settings})


@pytest.mark.parametrize(("table", "place"), [("loader", "loader."), ("splits.val.loader", r"\[splits.val.loader\]: ")])
def test_an_error_names_the_file_and_the_place(table: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(f"[dataset]\nurl = 'x'\n[{table}]\nbatch_size = 0\n")
    with pytest.raises(errors.ConfigError, match=rf"c\.toml: {place}batch_size: expected an integer >= 1"):
        load_config(tmp_path / "c.toml")


def test_a_loader_takes_functions_arrays_and_numbers_of_numpy(url: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x"])
    numbers: dict[str, Any] = {"batch_size": np.int64(4), "weights": np.ones(COUNT), "samples_per_epoch": np.int32(8)}
    assert list(StoreLoader(dataset, **numbers, collate=len, shuffle=None)) == [4, 4]
    assert list(StoreLoader(dataset, batch_size=12, weights=[1.0] * COUNT, collate_fn=len)) == [12, 12]
    with pytest.raises(errors.ConfigError, match="collate and collate_fn are the same"):
        StoreLoader(dataset, collate="default", collate_fn=len)
    for setting in ({"balance": "label"}, {"weights": np.ones(4)}, {"shuffle": True}, {"seed": 3}):
        with pytest.raises(errors.ConfigError, match=f"{next(iter(setting))} is for the sampler that the loader makes"):
            StoreLoader(dataset, sampler=range(4), **setting)


@dataclass
class Collator:
    """A function without a hash, as those of 🤗 Transformers."""

    size: int = 0

    def __call__(self, samples: list[Any]) -> int:
        return self.size + len(samples)


@pytest.mark.parametrize("name", ["collate", "collate_fn"])
def test_a_function_that_makes_batches_needs_no_hash(url: str, name: str) -> None:
    dataset: Any = StoreDataset(url, reader="array")
    for function, size, expected in ((Collator(5), 12, [17, 17]), (lambda sample: 1, None, [1] * COUNT)):
        given: dict[str, Any] = {name: function}
        assert list(StoreLoader(dataset, batch_size=size, **given)) == expected


# --- Settings over settings ---


OTHER_VALUES: dict[str, Any] = {
    **{"as_dict": True, "fields": ("x",), "where": {"label": 1}, "seed": 4, "on_error": "skip", "max_bad": 3},
    **{"max_bad_fraction": 0.5, "fold": {"of": 2, "take": 0}, "target_transform": abs, "options": {"readahead": True}},
}
"""A value for each argument of a dataset that is not its default."""


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_an_argument_equal_to_the_default_replaces_a_setting(url: str, name: str) -> None:
    other = {name: OTHER_VALUES[name]}
    settings = DatasetSettings(url=url, reader="array", **other)
    changed = StoreDataset(settings, **{name: arguments(StoreDataset)[name].default})
    assert repr(changed[:]) == repr(StoreDataset(url, reader="array")[:])
    assert changed.report().on_error == "raise"
    assert StoreDataset(settings)[0] == StoreDataset(url, reader="array", **other)[0]


@pytest.mark.parametrize("over", [{"columns": 2}, {"options": {"columns": 2}}])
@pytest.mark.parametrize("base", [{"columns": 1}, {"options": {"columns": 1, "more": 0}}, {"options": None}, {}])
def test_an_option_of_the_store_replaces_the_same_one_wherever_it_is_written(base: Any, over: Any) -> None:
    config = load_config({"dataset": {"url": "x", **base}, "splits": {"val": {"dataset": over}}})
    kept = {"more": 0} if "more" in (base.get("options") or {}) and "options" not in over else {}
    assert config.source_for("val").options == {"columns": 2, **kept}
    assert (config.source_for(None).options or {}).get("columns") == ((base.get("options") or base).get("columns"))


def test_a_split_reads_other_columns(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "two.h5", "w") as file:
        for at, name in enumerate(("train", "val")):
            file[f"{name}_x"], file[f"{name}_y"] = np.full((4, 3), at, "f4"), np.arange(4)
    columns = {name: {"x": f"{name}_x[]", "label": f"{name}_y[]"} for name in ("train", "val")}
    dataset = {"url": f"hdf5://{tmp_path}/two.h5", "reader": "array", "columns": columns["train"]}
    splits = {"train": {}, "val": {"dataset": {"columns": columns["val"]}}}
    for at, name in enumerate(("train", "val")):
        config = {"dataset": dataset, "splits": splits, "allow_overlap": True}
        assert float(build_dataset(config, name)[0][0][0]) == at


# --- Mixtures and splits ---


def values(config: Any, split: str | None) -> list[int]:
    dataset = build_dataset(config, split)
    return [x for (x,) in (dataset[at] for at in range(len(dataset)))]


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    return [write_store(f"lmdb://{tmp_path}/{name}.lmdb", first) for name, first in (("a", 0), ("b", 100), ("c", 200))]


def mixed(stores: Sequence[str], val: dict[str, Any], **more: Any) -> dict[str, Any]:
    sources = [{"name": "a", "url": stores[0], "where": {"label": 0}}, {"name": "b", "url": stores[1]}]
    dataset = {"reader": "array", "fields": ["x"], "seed": 1, "sources": sources, **more}
    return {"dataset": dataset, "splits": {"train": {}, "val": {"dataset": val}}, "allow_overlap": True}


def test_a_split_has_sources_or_a_url_of_its_own(stores: list[str]) -> None:
    config = mixed(stores, {"sources": [{"name": "c", "url": stores[2], "where": {"label": 1}}], "seed": 8})
    dataset: Any = build_dataset(config, "val")
    assert (dataset.names, dataset.datasets[0].seed) == (["c"], 8)
    assert values(config, "val") == [200 + n for n in range(1, COUNT, 3)]
    both: Any = build_dataset(config, "train")
    assert both.names == ["a", "b"]
    assert all(x % 4 for x in values(config, "train"))  # those whose field says so
    single = {"dataset": {"url": stores[0], "reader": "array", "fields": ["x"]}, "splits": config["splits"]}
    assert values({**single, "allow_overlap": True}, "val") == values(config, "val")
    alone = mixed(stores, {"url": stores[2]})
    assert isinstance(build_dataset(alone, "val"), StoreDataset)
    assert values(alone, "val") == [200 + n for n in range(COUNT)]


def test_a_split_changes_how_sources_are_mixed(stores: list[str]) -> None:
    config = mixed(stores, {"stop": "first", "where": {"label": 2}}, temperature=2)
    found: list[Any] = [load_config(config).sources_for(split)[0] for split in ("train", "val")]
    assert [(each.temperature, each.stop) for each in found] == [(2, None), (2, "first")]
    assert values(config, "val") == [n for first in (0, 100) for n in range(first + 2, first + COUNT, 3)]


def test_splits_of_a_mixture_that_share_records_are_found_across_sources(stores: list[str]) -> None:
    config = mixed(stores, {"sources": [{"name": "c", "url": stores[1], "where": {"label": 2}}]})
    config["allow_overlap"] = False
    with pytest.raises(errors.ConfigError, match="share .* records of .*b.lmdb"):
        build_dataset(config, "train")


# --- Settings that are assigned ---


ASSIGNED = [
    ("target_transform", abs, "fork"),
    ("transform", {"x": abs}, "spawn"),
    ("as_dict", True, "fork"),
    ("seed", 9, "fork"),
]


@pytest.mark.parametrize(("name", "value", "start_method"), ASSIGNED)
def test_persistent_workers_refuse_to_use_an_old_setting(url: str, name: str, value: Any, start_method: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x", "label"], seed=1)
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": start_method}
    loader = DataLoader(dataset, batch_size=8, num_workers=1, **options)
    first = list(loader)
    other = copy.copy(dataset)
    setattr(other, name, value)  # a copy is another dataset
    dataset.set_epoch(1)
    assert repr(list(loader)) == repr(first)
    setattr(dataset, name, value)
    dataset.set_epoch(2)
    with pytest.raises(errors.ConfigError, match="was assigned after this worker began.* make another DataLoader"):
        list(loader)
    assert len(dataset[:]) == len(other[:]) == COUNT


def test_a_pass_that_has_begun_keeps_its_settings(url: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x", "label"])
    batches = iter(DataLoader(dataset, batch_size=2, num_workers=1))
    next(batches)
    dataset.target_transform = abs
    assert len(list(batches)) == COUNT // 2 - 1


def test_a_subclass_may_set_its_seed_first(url: str) -> None:
    class Own(StoreDataset):
        def __init__(self, seed: int) -> None:
            self.seed = seed
            super().__init__(url, reader="array", seed=seed)

    assert Own(3).seed == 3
