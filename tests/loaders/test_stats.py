"""`StoreLoader.stats` and `why_slow`: a delay in any stage is named, whatever makes the batches.

Nothing here takes time: a `Clock` replaces ``time.perf_counter``, and what is slow moves it on.
"""

from __future__ import annotations

import functools
import logging
import threading
from pathlib import Path
from typing import Any

import h5py
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

import storeds
from _modes import Counted
from make_store import make_store
from photographs import saved
from storeds import EpochSampler, StoreDataset, StoreLoader, errors
from storeds.readers import array
from wrapped_reader import WrappedReader

COUNT, DELAY = 24, 1.0
WAYS: dict[str, dict[str, Any]] = {
    "alone": {},
    "fork": {"num_workers": 1, "multiprocessing_context": "fork"},
    "threads": {"num_workers": 1, "start_method": "thread"},
}


class Clock(threading.local):
    """The seconds of a thread: a microsecond for each look at it, and what `sleep` adds. A fork has its own from then on."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1e-6
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


time = Clock()


@pytest.fixture(autouse=True)
def no_other_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.perf_counter", time)
    monkeypatch.setattr("storeds.datasets.batch.perf_counter", time)


@pytest.fixture
def url() -> str:
    return make_store({"x": "int", "blob": "bytes"}, ({"x": at, "blob": bytes(1000)} for at in range(COUNT)))


class SlowBackend(Counted):
    def get_many(self, positions: Any, /, fields: Any = None) -> Any:
        time.sleep(DELAY * len(positions))
        return super().get_many(positions, fields)


class SlowReader(WrappedReader):
    def build(self, records: Any, context: Any) -> Any:
        time.sleep(DELAY)
        return super().build(records, context)


class SlowTransform:
    def __call__(self, value: Any) -> Any:
        time.sleep(DELAY)
        return value


class Plain:
    def __call__(self, value: Any) -> Any:
        return value


def slow_collate(samples: Any) -> Any:
    time.sleep(DELAY * len(samples))
    return storeds.collate(samples)


def made(url: str, stage: str, way: str, **more: Any) -> StoreLoader:
    source: Any = SlowBackend(storeds.open_backend(url)) if stage == "read" else url
    reader: Any = SlowReader(array(("x",))) if stage == "decode" else array(("x",))
    transform = storeds.transforms.Compose([Plain(), SlowTransform() if stage == "transform" else Plain()])
    dataset = StoreDataset(source, reader=reader, transform=transform, seed=1)
    collate_fn = slow_collate if stage == "collate" else storeds.collate
    return StoreLoader(dataset, batch_size=2, collate_fn=collate_fn, **WAYS[way], **more)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stage", ["read", "decode", "transform", "collate", "training"])
def test_a_delay_is_named_by_its_stage(url: str, stage: str, way: str) -> None:
    loader = made(url, stage, way)
    for batch in loader:
        if stage == "training":
            time.sleep(DELAY * len(batch[0]))
    said = loader.why_slow()
    if stage == "collate":  # a function of the user
        stage = "outside"
        assert "most of it in the collate_fn slow_collate" in said
    starts = {"outside": "time outside storeds limits: ", "training": "the training loop limits: "}
    assert said.startswith(starts.get(stage, f"{stage} limits: "))
    assert ("SlowTransform" in said) == (stage == "transform")
    stats = loader.stats()
    assert (stats["batches"], stats["samples"], stats["bad"]) == (COUNT // 2, COUNT, 0)
    assert stats["bytes"] == 0  # of numbers
    assert stats["seconds"][stage] == pytest.approx(DELAY * COUNT, abs=0.1)
    assert sum(each["samples"] for each in stats["workers"].values()) == COUNT


def test_a_rank_counts_its_own_samples(url: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x"], seed=1)
    loader = StoreLoader(dataset, batch_size=2, sampler=EpochSampler(dataset, num_replicas=2, rank=1))
    list(loader)
    assert loader.stats()["samples"] == COUNT // 2


def test_bytes_and_bad_samples_are_counted() -> None:
    png = saved(Image.new("RGB", (9, 9)))
    url = make_store({"image": "image"}, ({"image": png if at % 4 else b"no picture"} for at in range(COUNT)))
    loader = StoreLoader(StoreDataset(url, decode="tensor", on_error="skip"), batch_size=4, num_workers=2)
    list(loader)
    stats = loader.stats()
    assert (stats["bad"], stats["repaired"]) == (COUNT // 4, 0)
    assert stats["bytes"] == COUNT // 4 * (len(b"no picture") + 3 * len(png))
    assert set(stats["workers"]) == {0, 1}


def test_chunks_that_decompress_more_than_they_return_are_named(tmp_path: Path) -> None:
    path = tmp_path / "chunks.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("images", (64, 64, 64, 3), "u1", chunks=(64, 64, 64, 3), compression="gzip")
        file["labels"] = range(64)
    loader = StoreLoader(StoreDataset(SlowBackend(storeds.open_backend(path)), reader="array"), batch_size=32)
    list(loader)
    said = loader.why_slow()
    assert said.startswith("read limits")
    assert "each sample of 12 KiB decompresses 0.8 MB of chunks.h5: rechunk it with `storeds convert`" in said


def test_the_log_says_it_from_time_to_time(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", time)
    loader = made(url, "transform", "alone", log_every=5 * DELAY)
    assert loader.why_slow().startswith("nothing limits yet")
    with caplog.at_level(logging.INFO, "storeds"):
        list(loader)
    assert sum("loader: transform limits" in record.message for record in caplog.records) == COUNT // 6
    with pytest.raises(errors.ConfigError, match="log_every"):
        made(url, "none", "alone", log_every=0)


def test_a_loader_shows_what_it_is_and_refuses_unknown_arguments(url: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["x"])
    assert repr(StoreLoader(dataset, batch_size=3)).startswith("StoreLoader(StoreDataset('memory://")
    assert "batch_size=3, num_workers=0" in repr(StoreLoader(dataset, batch_size=3))
    with pytest.raises(errors.ConfigError, match=r"unknown argument 'batchsize'; did you mean 'batch_size'"):
        StoreLoader(dataset, batchsize=2)


class SlowDataset(torch.utils.data.Dataset[torch.Tensor]):
    """A dataset of a user."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(DELAY)
        return torch.zeros(3)


@pytest.mark.parametrize("way", WAYS)
def test_a_slow_dataset_of_a_user_is_named_as_outside(url: str, way: str) -> None:
    other = StoreDataset(url, reader="array", fields=["x"])
    slow: list[Any] = [SlowDataset(), Subset(SlowDataset(), range(20)), ConcatDataset([SlowDataset(), SlowDataset()])]
    for dataset in slow:
        loader = StoreLoader(dataset, batch_size=4, **WAYS[way])
        list(loader)
        said = loader.why_slow()
        assert said.startswith("time outside storeds limits: ")
        assert "most of it in the dataset SlowDataset; " in said
    mixed = StoreLoader(ConcatDataset([SlowDataset(), other]), batch_size=4, collate_fn=len, **WAYS[way])
    list(mixed)
    assert "most of it in the dataset SlowDataset; " in mixed.why_slow()


def draw(value: torch.Tensor) -> torch.Tensor:
    time.sleep(DELAY)
    return value + torch.rand(1)


def resize(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(DELAY)
    return sample


@pytest.mark.parametrize(
    ("arguments", "slowest"),
    [
        ({"transform": draw}, "draw"),
        ({"transform": storeds.transforms.Compose([Plain(), storeds.transforms.Compose([Plain(), draw])])}, "draw"),
        ({"transform": functools.partial(draw)}, "draw"),
        ({"target_transform": SlowTransform(), "transform": Plain()}, "SlowTransform"),
        ({"transforms": [resize, "ToTensor"]}, "resize"),
        (
            {"transforms": ["RandomHorizontalFlip", storeds.transforms.Compose([resize])], "transform": Plain()},
            "resize",
        ),
    ],
)
def test_the_slowest_transform_is_named_without_running_any_again(arguments: Any, slowest: str) -> None:
    png = saved(Image.new("RGB", (9, 9)))
    url = make_store({"image": {"kind": "image", "role": "image"}, "label": "int"}, [{"image": png, "label": 0}] * 8)
    loader = StoreLoader(StoreDataset(url, decode="tensor", **arguments), batch_size=2)
    list(loader)
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    seen = loader.dataset.report().seen  # type: ignore[attr-defined]
    assert f", most of it in {slowest}; " in loader.why_slow()
    assert torch.equal(torch.rand(1), expected)
    assert loader.dataset.report().seen == seen  # type: ignore[attr-defined]
