"""What becomes of bad samples under each policy, and whether the report counts them."""

from __future__ import annotations

import contextlib
import html
import json
import logging
import pickle
import re
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import lmdb
import pytest
import torch
import xxhash
from torch.utils.data import ConcatDataset, DataLoader, Subset

import storeds
from _processes import end_workers
from make_store import make_store
from photographs import jpeg
from picture_stores import picture_store
from storeds import Skipped, StoreDataset, errors
from storeds.backends import Store
from threaded import threaded

COUNT = 60
SIZE = (48, 32)


def blob(number: int) -> bytes:
    whole = jpeg(number % 7, SIZE)
    if number % 20 == 3:
        return whole[:100]  # before any pixel
    if number % 20 == 13:
        return whole[: (whole.index(b"\xff\xda") + len(whole)) // 2]  # half a picture
    if number % 10 == 7:
        return whole[:-2]
    return whole


BAD = {number: "truncated_header" if number % 20 == 3 else "truncated_scan" for number in range(3, COUNT, 10)}
REPAIRED = list(range(7, COUNT, 10))
OPTIONS: dict[str, Any] = {"fields": ["image", "index"], "decode": "tensor", "min_recovered": 0.9}


def write(url: str) -> str:
    fields = {"key": "str", "image": "image", "split": "str"}
    records = (
        {"key": f"k{number}", "image": blob(number), "split": "val" if number % 2 else "train"}
        for number in range(COUNT)
    )
    return make_store(fields, records, url)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(f"lmdb://{tmp_path_factory.mktemp('policy')}/store.lmdb")


def epochs(dataset: StoreDataset, **workers: Any) -> tuple[list[int], str]:
    """Return the indices of two epochs, and a digest of all that they held."""
    loader = DataLoader(dataset, batch_size=5, collate_fn=storeds.collate, **workers)
    seen: list[int] = []
    digest = xxhash.xxh3_64()
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for images, indices in loader:
            seen += indices.tolist()
            digest.update(images.numpy().tobytes() + indices.numpy().tobytes())
    return seen, digest.hexdigest()


@pytest.mark.parametrize(
    ("engine", "policy", "method"),
    [
        ("lmdb", "skip", "fork"),
        ("hdf5", "skip", "spawn"),
        ("hdf5", "replace", "fork"),
        ("mongodb", "replace", "fork"),
        ("lmdb", "replace", "forkserver"),
    ],
)
def test_two_epochs_of_workers_report_the_truth(
    make_engine_url: Callable[[str], str], engine: str, policy: str, method: str
) -> None:
    url = write(make_engine_url(engine))
    dataset = StoreDataset(url, on_error=policy, seed=1, **OPTIONS)
    seen, digest = epochs(dataset, num_workers=2, multiprocessing_context=method, persistent_workers=True)
    good = Counter({number: 2 for number in range(COUNT) if number not in BAD})
    found = Counter(seen)
    assert not set(found) & set(BAD)
    assert good <= found
    assert len(seen) == 2 * (COUNT if policy == "replace" else COUNT - len(BAD))
    report = dataset.report()  # workers of a plain DataLoader tell no more
    assert report.bad == {"in_workers": 2 * len(BAD)}
    assert report.repaired == {"in_workers": sum(found[number] for number in REPAIRED)}
    assert (report.seen, report.first, report.last) == (0, [], [])
    assert "in_workers" in str(report)
    assert (seen, digest) == epochs(StoreDataset(url, on_error=policy, seed=1, **OPTIONS))


def test_raise_counts_the_sample_and_names_its_place(store: str) -> None:
    dataset = StoreDataset(store, **OPTIONS)
    with pytest.raises(errors.DecodeError, match=r"record 3 \(key 'k3'\)"):
        dataset[[0, 1, 2, 3]]
    report = dataset.report()
    assert (report.seen, report.bad, report.skipped) == (4, {"truncated_header": 1}, 0)


def test_an_error_has_the_key_of_the_record_it_is_about(store: str) -> None:
    with pytest.raises(errors.DecodeError, match=r"record 13 \(key 'k13'\)") as caught:
        StoreDataset(store, where={"key": ["k3", "k13"]}, **OPTIONS)[1]
    assert (caught.value.position, caught.value.key) == (13, "k13")


def fail_at_9(index: int) -> int:
    if index == 9:
        raise KeyError(index)
    return index


@pytest.mark.parametrize(
    ("method", "error", "arguments", "first"),
    [
        ("fork", errors.DecodeError, {}, (3, "k3", "truncated_header")),
        ("spawn", errors.DecodeError, {"where": {"key": ["k2", "k13"]}}, (13, "k13", "truncated_scan")),
        (
            "fork",
            errors.TransformError,
            {"transform": {"index": fail_at_9}, "where": {"key": [f"k{n}" for n in range(COUNT) if n not in BAD]}},
            (10, "k10", "transform"),
        ),
    ],
    ids=["picture", "selection", "transform"],
)
def test_an_error_of_a_worker_has_the_attributes_of_its_record(
    store: str, method: str, error: type[errors.RecordError], arguments: dict[str, Any], first: Any
) -> None:
    dataset = StoreDataset(store, **OPTIONS, **arguments)
    loader = storeds.StoreLoader(dataset, batch_size=4, num_workers=1, multiprocessing_context=method)
    with pytest.raises(error) as caught:
        list(loader)
    found = caught.value
    assert (found.url, found.position, found.key, found.kind) == (store, *first)
    assert found.reason
    assert found.reason in str(found)
    assert "Traceback" in str(found)


def fail_as_local(samples: Any) -> Any:
    class LocalError(Exception):
        pass

    raise LocalError("no other process has this class")


def test_an_error_whose_class_cannot_be_sent_is_raised_all_the_same(store: str) -> None:
    loader = storeds.StoreLoader(StoreDataset(store), num_workers=1, collate_fn=fail_as_local, timeout=60)
    with pytest.raises(RuntimeError, match="LocalError: no other process has this class"):
        next(iter(loader))


def test_a_skipped_sample_is_a_sentinel_that_says_why(store: str) -> None:
    skipped = StoreDataset(store, on_error="skip", **OPTIONS)[13]
    assert isinstance(skipped, Skipped)
    assert (skipped.index, skipped.position, skipped.fault) == (13, 13, "truncated_scan")
    assert "less than min_recovered" in skipped.reason
    assert pickle.loads(pickle.dumps(skipped)) == skipped


def test_a_batch_in_which_all_are_bad_is_made_of_replacements(store: str) -> None:
    dataset = StoreDataset(store, on_error="skip", **OPTIONS)
    samples = dataset[[3, 13, 23]]
    assert len(samples) == 3
    assert not any(isinstance(sample, Skipped) for sample in samples)
    assert dataset.report().replaced == 3
    (images, _) = next(iter(DataLoader(Subset(dataset, [3]), collate_fn=storeds.collate)))
    assert images.shape == (1, 3, 32, 48)


def test_a_batch_of_which_a_concatenation_skips_all_is_an_error_and_one_of_stores_is_filled(store: str) -> None:
    dataset: Any = ConcatDataset([StoreDataset(store, on_error="skip", **OPTIONS)])  # which asks for one at a time
    skipped = "all 2 samples of a batch were skipped; the first: sample 3"
    with pytest.raises(
        errors.BadSamplesError, match=rf"{skipped} .*StoreDataset\(\[url, …\]\), or use on_error='replace'"
    ):
        next(iter(DataLoader(Subset(dataset, [3, 13]), batch_size=2, collate_fn=storeds.collate)))
    dataset = StoreDataset([store, store], on_error="skip", **OPTIONS)
    batch = next(iter(DataLoader(Subset(dataset, [3, 73]), batch_size=2, collate_fn=storeds.collate)))
    assert len(batch[0]) == 2


@pytest.mark.parametrize(
    ("joined", "kind", "workers"),
    [
        ("mixture", storeds.StoreLoader, 0),
        ("mixture", threaded, 2),
        ("mixture", DataLoader, 0),
        ("mixture", DataLoader, 2),
        ("concatenation", storeds.StoreLoader, 2),
        ("part of a concatenation", storeds.StoreLoader, 0),
    ],
)
def test_replacements_fill_a_batch_of_joined_datasets_that_would_be_empty(
    store: str, joined: str, workers: int, kind: Any
) -> None:
    sources = {name: StoreDataset(store, on_error="skip", seed=1, **OPTIONS) for name in ("a", "b")}
    whole: Any = storeds.StoreMixture(sources) if joined == "mixture" else ConcatDataset(list(sources.values()))
    data: Any = Subset(whole, range(2 * COUNT)) if joined.startswith("part") else whole
    first, second, *_ = BAD
    batches = [[first, COUNT + second], [first, 0], [COUNT + 4]]
    loader = kind(data, batch_sampler=batches, num_workers=workers, collate_fn=storeds.collate)
    sizes = [len(labels) for _, labels in loader]
    assert sizes == [2, 1, 1]
    reports = [source.report() for source in sources.values()]
    if kind is not DataLoader or not workers:  # such workers tell the number of bad samples alone
        assert [(each.seen, each.replaced, each.skipped) for each in reports] == [(3, 1, 1), (2, 1, 0)]
    assert [sum(each.bad.values()) for each in reports] == [2, 1]


def test_a_replacement_depends_on_seed_epoch_and_index_alone(store: str) -> None:
    def of(index: int, epoch: int = 0, seed: int = 0, among: tuple[int, ...] = ()) -> int:
        dataset = StoreDataset(store, on_error="replace", seed=seed, **OPTIONS)
        dataset.set_epoch(epoch)
        return int(dataset[[*among, index]][-1][1])

    for index in BAD:
        assert of(index) == of(index, among=(1, 2, 13)) not in BAD
    assert len({of(3, epoch) for epoch in range(12)}) > 4
    assert len({of(3, 0, seed) for seed in range(12)}) > 4
    assert len({of(index) for index in BAD}) > 2


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Return a list that receives the positions of each storage call to LMDB."""
    calls: list[list[int]] = []
    read = Store.get_many

    def get_many(self: Any, positions: Any, /, fields: Any = None) -> Any:
        calls.append([int(position) for position in positions])
        return read(self, positions, fields)

    monkeypatch.setattr(Store, "get_many", get_many)
    return calls


def test_a_batch_with_bad_samples_takes_one_storage_call_for_replacements_and_one_for_keys(
    store: str, asked: list[list[int]]
) -> None:
    dataset = StoreDataset(store, on_error="replace", **OPTIONS)
    dataset[list(range(20))]
    assert list(map(len, asked))[:2] == [20, 2]
    assert sum(map(len, asked[2:-1])) <= 4  # replacements that are bad themselves
    assert set(asked[-1]) >= {3, 7, 13, 17}


def test_a_bad_record_of_columns_is_read_once(tmp_path: Path, asked: list[list[int]]) -> None:
    url = make_store({"x": "int"}, ({"x": number} for number in range(8)), f"lmdb://{tmp_path}/rows.lmdb")
    spoil(tmp_path / "rows.lmdb", 5)
    dataset = StoreDataset(url, reader="array", on_error="skip")
    samples = dataset[[1, 5, 6, 5]]
    assert [isinstance(sample, Skipped) for sample in samples] == [False, True, False, True]
    assert (samples[0], samples[2]) == ((1,), (6,))
    assert asked == [[1, 5, 6, 5], [1, 6]]
    assert dataset.report().bad == {"record": 2}


def spoil(path: Path, position: int) -> None:
    """Change a byte of a record behind the store's back."""
    with lmdb.open(str(path), subdir=False, max_dbs=8) as env:
        records = env.open_db(b"records")
        with env.begin(db=records, write=True) as transaction:
            value = bytearray(transaction.get(position.to_bytes(8, "big")) or b"")
            value[len(value) // 2] ^= 1
            transaction.put(position.to_bytes(8, "big"), bytes(value))


def test_a_batch_of_joined_datasets_takes_one_storage_call_for_each(
    store: str, make_engine_url: Callable[[str], str], asked: list[list[int]]
) -> None:
    joined: Any = StoreDataset(store, on_error="skip", **OPTIONS) + Subset(
        StoreDataset(write(make_engine_url("lmdb")), on_error="skip", **OPTIONS), range(COUNT)
    )
    expected = [index for index in range(COUNT) if index not in BAD]
    loader = storeds.StoreLoader(joined, batch_size=2 * COUNT, shuffle=True, seed=1)
    order = list(loader.sampler)
    loader.set_epoch(0)
    asked.clear()
    (batch,) = loader
    assert batch[1].tolist() == [index % COUNT for index in order if index % COUNT not in BAD]
    assert sorted(batch[1].tolist()) == sorted(2 * expected)
    keys = len(BAD) + len(REPAIRED)  # one call for those of bad and repaired samples
    assert sorted(map(len, asked)) == [keys, keys, COUNT, COUNT]


@pytest.mark.parametrize(
    ("limit", "kind", "workers"),
    [
        ({"max_bad": 2}, DataLoader, 0),
        ({"max_bad_fraction": 0.04}, DataLoader, 2),
        ({"max_bad_fraction": 0.04}, storeds.StoreLoader, 0),
        ({"max_bad": 2}, storeds.StoreLoader, 2),
        ({"max_bad": 2}, threaded, 2),
    ],
)
def test_too_many_bad_samples_stop_the_run_with_one_error_that_lists_them(
    store: str, limit: dict[str, Any], kind: Any, workers: int
) -> None:
    dataset = StoreDataset(store, on_error="skip", **limit, **OPTIONS)
    loader = kind(dataset, batch_size=10, num_workers=workers, collate_fn=storeds.collate)
    with pytest.raises(errors.BadSamplesError) as raised:
        list(loader)
    end_workers(raised)
    assert f"more than {next(iter(limit))}={next(iter(limit.values()))}" in str(raised.value)
    assert f"samples of {dataset.url} were bad" in str(raised.value)
    listed = [number for number in BAD if f"record {number} (key 'k{number}'): " in str(raised.value)]
    assert len(listed) >= (1 if kind is DataLoader and workers else 3)  # a worker lists its own


def test_a_loader_of_joined_datasets_skips_and_one_that_raises_counts(store: str) -> None:
    one, other = (StoreDataset(store, on_error="skip", **OPTIONS) for _ in range(2))
    ((_, indices),) = storeds.StoreLoader(Subset(one + other, [3, COUNT, -1]), batch_size=3)
    assert indices.tolist() == [0, COUNT - 1]
    assert (one.report().skipped, other.report().skipped) == (1, 0)
    dataset = StoreDataset(store, **OPTIONS)
    with pytest.raises(errors.DecodeError):
        list(storeds.StoreLoader(dataset, batch_size=10))
    assert sum(dataset.report().bad.values()) == 1


def test_as_many_bad_samples_as_a_limit_says_are_allowed(store: str) -> None:
    dataset = StoreDataset(store, on_error="skip", max_bad=len(BAD), **OPTIONS)
    for epoch in range(3):  # each counts alone
        dataset.set_epoch(epoch)
        assert len(dataset[:]) == COUNT
    assert dataset.report().skipped == 3 * len(BAD)
    assert pickle.loads(pickle.dumps(dataset)).report().seen == 0  # a copy counts for itself
    with pytest.raises(
        errors.BadSamplesError, match=rf"{len(BAD)} samples of \S+ were bad, more than max_bad={len(BAD) - 1}"
    ):
        StoreDataset(store, on_error="skip", max_bad=len(BAD) - 1, **OPTIONS)[:]


@pytest.mark.parametrize("workers", [2])
def test_limits_hold_for_each_of_two_loaders_at_different_epochs(store: str, workers: int) -> None:
    """Their batches take turns."""
    dataset = StoreDataset(store, on_error="skip", max_bad=4, **OPTIONS)
    loaders = [storeds.StoreLoader(dataset, batch_size=4, num_workers=workers) for _ in range(2)]
    for epoch, loader in enumerate(loaders):
        loader.set_epoch(5 * epoch)
    with pytest.raises(errors.BadSamplesError, match=r"5 samples of \S+ were bad, more than max_bad=4"):
        for _ in zip(*loaders, strict=True):
            pass


def of_epoch_0(dataset: StoreDataset, loader: Any) -> Any:
    (loader if hasattr(loader, "set_epoch") else dataset).set_epoch(0)
    return loader


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        (storeds.StoreLoader, {}),
        (storeds.StoreLoader, {"num_workers": 2, "persistent_workers": True}),
        (storeds.StoreLoader, {"sampler": range(COUNT)}),
        (storeds.StoreLoader, {"num_workers": 2, "start_method": "thread"}),
        (DataLoader, {}),
        (DataLoader, {"num_workers": 1, "persistent_workers": True}),  # each worker keeps the limit for itself
    ],
)
def test_limits_are_of_one_pass_where_each_has_the_same_epoch(store: str, kind: Any, arguments: dict[str, Any]) -> None:
    for limit, is_raised in ((len(BAD), False), (len(BAD) - 1, True)):
        dataset = StoreDataset(store, on_error="skip", max_bad=limit, **OPTIONS)
        loader = kind(dataset, batch_size=4, collate_fn=storeds.collate, **arguments)
        for _ in range(3):
            with pytest.raises(errors.BadSamplesError) if is_raised else nullcontext() as raised:
                assert sum(len(indices) for _, indices in of_epoch_0(dataset, loader)) == COUNT - len(BAD)
            if raised is not None:
                end_workers(raised)


def test_a_worker_does_not_count_what_its_parent_has_read(store: str) -> None:
    dataset = StoreDataset(store, on_error="skip", max_bad=len(BAD), **OPTIONS)
    assert len(dataset[:]) == COUNT
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, multiprocessing_context="fork", collate_fn=storeds.collate
    )
    assert sum(len(indices) for _, indices in loader) == COUNT - len(BAD)
    assert dataset.report().bad["in_workers"] == len(BAD)


def test_the_error_lists_bad_samples_of_its_own_pass(store: str) -> None:
    dataset = StoreDataset(store, on_error="skip", max_bad=1, **OPTIONS)
    dataset[[3]]
    dataset.set_epoch(1)
    dataset[[13]]
    with pytest.raises(errors.BadSamplesError) as raised:
        dataset[[23]]
    assert [number for number in BAD if f"record {number} " in str(raised.value)] == [13, 23]
    assert [event.position for event in dataset.report().first] == [3, 13, 23]


def test_the_events_of_workers_arrive_with_their_batches(store: str, caplog: pytest.LogCaptureFixture) -> None:
    dataset = StoreDataset(store, on_error="skip", seed=1, **OPTIONS)
    with caplog.at_level(logging.WARNING, "storeds"):
        for _ in range(2):
            list(storeds.StoreLoader(dataset, batch_size=7, num_workers=2))
    report = dataset.report()
    assert (report.seen, report.skipped) == (2 * COUNT, 2 * len(BAD))
    assert {event.index for event in report.first} <= set(BAD)
    assert all(event.text.startswith(f"record {event.index} (key 'k{event.index}'): ") for event in report.last)
    assert len([record for record in caplog.records if "are only counted" in record.message]) == 3


NAMES = {f"a/{n}.jpg": jpeg(n, SIZE)[: 60 if n % 4 == 3 else -2 if n % 4 == 1 else None] for n in range(12)}


def by_foreign_lmdb(folder: Path) -> Any:
    with lmdb.open(str(folder / "x.lmdb")) as environment, environment.begin(write=True) as transaction:
        for name, blob in NAMES.items():
            transaction.put(name.encode(), blob)
    return StoreDataset, {"url": f"lmdb://{folder}/x.lmdb", "columns": {"image": "{}"}}


def by_own(folder: Path, **more: Any) -> Any:
    records = [{"image": blob, "key": name} for name, blob in NAMES.items()]
    url = make_store({"image": "image", "key": "str"}, records, f"hdf5://{folder}/x.h5")
    return StoreDataset, {"url": url, **more}


SOURCES: dict[str, Callable[[Path], Any]] = {
    "native": by_own,
    "joined": lambda folder: by_own(folder, url=[f"hdf5://{folder}/x.h5"]),
    "a foreign LMDB": by_foreign_lmdb,
}


@pytest.mark.parametrize(("source", "policy"), list(zip(SOURCES, ["skip", "replace", "raise"], strict=True)))
def test_a_report_and_the_log_name_keys_and_the_store_once(
    source: str, policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, arguments = SOURCES[source](tmp_path)
    dataset = make(**arguments, on_error=policy, decode="tensor", seed=1, max_bad=2)
    with caplog.at_level(logging.WARNING, "storeds"):
        if policy == "raise":
            for at in range(len(dataset)):
                with contextlib.suppress(errors.DecodeError):
                    dataset[at]
        else:
            with pytest.raises(errors.BadSamplesError, match="3 samples of") as raised:
                dataset[:]
            assert str(raised.value).count(dataset.url) == 1
    report = dataset.report()
    whole = {key for event in report.last for key in [event.key] if key is not None}
    assert {name.rpartition("/")[2] for name in whole} == {f"{n}.jpg" for n in range(12) if n % 2}
    shown, table = str(report), report._repr_html_()
    lines = caplog.messages
    assert lines
    assert [text.count(dataset.url) for text in (shown, table, *lines)] == [1] * (2 + len(lines))
    for text in (shown, html.unescape(table), *lines):
        assert re.search(r"record \d+ \(key '(a/)?\d+\.jpg'\)", text)
    (first, *_) = json.loads(json.dumps(report.to_json()))["first"]
    assert (first["key"], first["text"]) == (report.first[0].key, report.first[0].text)
    assert len(pickle.dumps(report.first[0])) < 1000


@pytest.mark.parametrize(
    ("blobs", "reason"), [([b"<html>"] * 500, "the 100 others tried are bad too"), ([b""], "no good sample")]
)
def test_when_none_is_good_no_thousand_replacements_are_tried(blobs: list[bytes], reason: str) -> None:
    dataset = StoreDataset(picture_store(blobs), on_error="replace")
    with pytest.raises(errors.BadSamplesError, match=reason):
        dataset[0]
    assert dataset.report().bad == {"not_jpeg": 1}


def fail_on_dark(image: torch.Tensor) -> torch.Tensor:
    if image.float().mean() < 60:
        raise ValueError("too dark")
    return image


def test_transforms_and_records_come_under_the_policy_too(tmp_path: Path) -> None:
    records = ({"image": jpeg(number, SIZE)} for number in range(8))
    url = make_store({"image": "image"}, records, f"lmdb://{tmp_path}/x.lmdb")
    spoil(tmp_path / "x.lmdb", 5)
    dataset = StoreDataset(url, decode="tensor", transform=fail_on_dark, on_error="skip")
    dark = [n for n in range(8) if n != 5 and StoreDataset(dataset.url, decode="tensor")[n][0].float().mean() < 60]
    assert dark
    assert [n for n, sample in enumerate(dataset[:]) if isinstance(sample, Skipped)] == sorted([5, *dark])
    assert dataset.report().bad == {"record": 1, "transform": len(dark)}


def test_each_kind_of_fault_is_announced_once(store: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "storeds"):
        StoreDataset(store, on_error="skip", **OPTIONS)[:]
    reported = Counter(
        kind
        for record in caplog.records
        for kind in {*BAD.values(), "missing_eoi"}
        if f"of kind {kind}" in record.message
    )
    assert reported == {"truncated_header": 1, "truncated_scan": 1, "missing_eoi": 1}
    assert f"record 7 (key 'k7') of {store}: " in caplog.text
    assert {message.count(store) for message in caplog.messages} == {1}
    assert "100 % of it is there: the store's verdict: missing_eoi" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"on_error": "ignore"}, {"max_bad": -1}, {"max_bad": True}, {"max_bad_fraction": 1.5}]
)
def test_a_wrong_policy_is_refused(store: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError, match=next(iter(wrong))):
        StoreDataset(store, **wrong)


def is_gone(image: torch.Tensor) -> torch.Tensor:
    raise errors.UnavailableError("the feature server is gone")


def is_full(image: torch.Tensor) -> torch.Tensor:
    raise MemoryError


@pytest.mark.parametrize(("transform", "error"), [(is_gone, errors.UnavailableError), (is_full, MemoryError)])
def test_what_no_sample_is_to_blame_for_comes_through_every_policy(store: str, transform: Any, error: Any) -> None:
    for policy in ("skip", "replace"):
        with pytest.raises(error):
            StoreDataset(store, transform=transform, on_error=policy, **OPTIONS)[0]
