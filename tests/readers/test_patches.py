"""Patches: equal to slices of the arrays themselves, at places of (seed, epoch, index) alone, in every engine and loader."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Subset

import storeds
from conftest import ENGINES
from make_store import make_store
from shares import examples
from storeds import EpochSampler, StoreDataset, StoreLoader, open_backend
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array
from threaded import threaded

SIZE = (8, 9, 10)
SHAPES = [(20, 30, 25), (8, 31, 26), (22, 9, 10)]
RAW = [np.random.default_rng(at).normal(size=(*shape, 2)).astype("f4") for at, shape in enumerate(SHAPES)]
LABELS = [(each[..., 0] > 1.5).astype("i4") for each in RAW]
EACH = {"*": "{}/**"}
COUNT = 5


def write(path: Path, **how: Any) -> Path:
    with h5py.File(path, "w") as file:
        for at, (raw, labels) in enumerate(zip(RAW, LABELS, strict=True)):
            file.create_dataset(f"s{at}/raw", data=raw, **how)
            file.create_dataset(f"s{at}/labels", data=labels, **({"chunks": how["chunks"][:3]} if how else {}))
            file[f"s{at}/label"], file[f"s{at}/affine"] = at, np.eye(2) * at
    return path


@pytest.fixture(scope="module")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("volumes") / "v.h5", chunks=(8, 8, 8, 2), compression="gzip", shuffle=True)


def patches(source: Any, size: Any = SIZE, **more: Any) -> StoreDataset:
    names = ("transforms", "transform", "seed", "on_error", "fields", "fold", "as_dict")
    given = {name: more.pop(name) for name in names if name in more}
    if isinstance(source, Path):
        given["options"] = {"columns": EACH}
    options = {"size": size, "per_record": COUNT, **more}
    options = {name: value for name, value in options.items() if value is not None}
    return StoreDataset(source, reader="patch", reader_options=options, **{"as_dict": True, "seed": 3, **given})


def check(sample: dict[str, Any]) -> None:
    """Compare a patch with slices of the arrays."""
    at = sample["label"]
    box = tuple(slice(start, start + side) for start, side in zip(sample["position"].tolist(), SIZE, strict=True))
    assert np.array_equal(sample["raw"], np.moveaxis(RAW[at][box], -1, 0))
    assert np.array_equal(sample["labels"], LABELS[at][box])
    assert np.array_equal(sample["affine"], np.eye(2) * at)


FIELDS: dict[str, Any] = {
    "raw": {"kind": "array", "dtype": "<f4", "shape": [None, None, None, 2]},
    "labels": {"kind": "array", "dtype": "<i4", "shape": [None, None, None]},
    "affine": {"kind": "array", "dtype": "<f8", "shape": [2, 2]},
    "label": "int",
}


@pytest.fixture(params=["foreign", *ENGINES])
def source(request: pytest.FixtureRequest, volumes: Path, make_engine_url: Callable[[str], str]) -> Any:
    if request.param == "foreign":
        return volumes
    rows = zip(RAW, LABELS, range(len(RAW)), strict=True)
    records = [{"raw": raw, "labels": labels, "affine": np.eye(2) * at, "label": at} for raw, labels, at in rows]
    return make_store(FIELDS, records, make_engine_url(request.param))


def test_patches_are_slices_at_random_places(source: Any) -> None:
    dataset = patches(source)
    samples = dataset[:]
    assert [each["label"] for each in samples] == [at // COUNT for at in range(3 * COUNT)]
    assert dataset.column("label").tolist() == [each["label"] for each in samples]
    assert list(samples[0])[-1] == "position"
    for sample in samples:
        check(sample)
    assert len({tuple(each["position"].tolist()) for each in samples}) > 2 * COUNT
    places = [each["position"].tolist() for each in samples]
    assert [each["position"].tolist() for each in patches(source)[:]] == places
    dataset.set_epoch(1)
    assert [each["position"].tolist() for each in dataset[:]] != places


def test_a_grid_has_every_place_once_and_stitches_to_the_record(source: Any) -> None:
    dataset = patches(source, per_record=None, grid=[8, 9, 4])
    starts = [
        [[*range(0, n - s, g), n - s] for n, s, g in zip(shape, SIZE, (8, 9, 4), strict=True)] for shape in SHAPES
    ]
    expected = [(at, place) for at, axes in enumerate(starts) for place in itertools.product(*axes)]
    samples = dataset[:]
    assert [(each["label"], tuple(each["position"].tolist())) for each in samples] == expected
    for at, raw in enumerate(RAW):
        own = [each for each in samples if each["label"] == at]
        whole = storeds.stitch([each["raw"] for each in own], [each["position"] for each in own], SHAPES[at])
        assert torch.allclose(whole, torch.from_numpy(np.moveaxis(raw, -1, 0)))
        arrays = [each["raw"].numpy() for each in own], np.stack([each["position"].numpy() for each in own])
        assert torch.equal(storeds.stitch(*arrays, SHAPES[at]), whole)


MODES: list[Callable[..., Any]] = [
    lambda dataset: StoreLoader(dataset, batch_size=4, shuffle=True, seed=3),
    lambda dataset: StoreLoader(dataset, batch_size=4, shuffle=True, seed=3, num_workers=2),
    lambda dataset: threaded(dataset, batch_size=4, shuffle=True, seed=3, num_workers=2),
    lambda dataset: DataLoader(dataset, batch_size=4, num_workers=1, sampler=EpochSampler(dataset, seed=3)),
]


def test_every_loader_gives_the_same_patches_and_a_resumed_one_the_rest(volumes: Path) -> None:
    fields = ["raw", "labels", "index"]
    passes = [
        [[*map(torch.clone, batch.values())] for batch in mode(patches(volumes, fields=fields))] for mode in MODES
    ]
    for other in passes[1:]:
        for ours, theirs in zip(passes[0], other, strict=True):
            assert all(map(torch.equal, ours, theirs))
    begun = MODES[0](patches(volumes, fields=fields))
    iterator = iter(begun)
    next(iterator)
    resumed = MODES[0](patches(volumes, fields=fields))
    resumed.load_state_dict(begun.state_dict())
    for ours, theirs in zip(passes[0][1:], resumed, strict=True):
        assert all(map(torch.equal, ours, theirs.values()))
    part = Subset(patches(volumes), [7, 2])
    assert [part[at]["position"].tolist() for at in (0, 1)] == [
        patches(volumes)[at]["position"].tolist() for at in (7, 2)
    ]


def test_folds_divide_records_and_stores_join(volumes: Path, tmp_path: Path) -> None:
    parts = [patches(volumes, fold={"of": 3, "take": at}) for at in range(3)]
    assert sorted(int(each["label"]) for part in parts for each in part[:]) == sorted([0, 1, 2] * COUNT)
    for part in parts:
        assert len({each["label"] for each in part[:]}) * COUNT == len(part)
        for sample in part[:]:
            check(sample)
    other = write(tmp_path / "other.h5")
    both = StoreDataset(
        [f"hdf5://{other}", f"hdf5://{volumes}"],
        reader="patch",
        options={"columns": EACH},
        as_dict=True,
        reader_options={"size": SIZE, "per_record": 2},
    )
    for at, sample in enumerate(both[[11, 0, 6, 5, 0]]):
        assert sample["label"] == (2, 0, 0, 2, 0)[at]
        check(sample)


HOW: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "chunked": {"chunks": True},
    "gzip": {"chunks": True, "compression": "gzip"},
    "shuffle": {"chunks": True, "compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"chunks": True, "compression": "lzf"},
}


@given(st.sampled_from([*HOW]), st.sampled_from(["u1", "?", ">i2", "<f4", "<c16"]), st.booleans(), st.data())
@settings(max_examples=examples(200))
def test_boxes_of_hdf5_are_slices(
    tmp_path_factory: pytest.TempPathFactory, how: str, dtype: str, rows: bool, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("boxes") / "a.h5"
    shape = data.draw(st.lists(st.integers(1, 24), min_size=1 + rows, max_size=4))
    shape[-1] += math.prod(shape[rows:]) == 1  # a single number is no array
    array = np.random.default_rng(0).integers(0, 200, shape).astype(dtype)
    options = dict(HOW[how])
    if options:
        options["chunks"] = tuple(data.draw(st.integers(1, side)) for side in shape)
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=array, **options)
    asked = []
    for _ in range(data.draw(st.integers(1, 4))):
        sides = shape[rows:]
        starts = [data.draw(st.integers(0, side)) for side in sides]
        box = tuple(slice(low, data.draw(st.integers(low, side))) for low, side in zip(starts, sides, strict=True))
        asked.append((data.draw(st.integers(0, shape[0] - 1)) if rows else 0, box))
    with open_backend(path, columns={"a": "a[]" if rows else "a"}) as backend:
        kept = backend.get_parts([at for at, _ in asked], lambda at, shapes: {"a": asked[at][1]}, ["a"])  # type: ignore[attr-defined]
        for (at, box), record in zip(asked, kept, strict=True):
            found, expected = record["a"], (array[at] if rows else array)[box]
            assert found.dtype == expected.dtype.newbyteorder("=")
            assert np.array_equal(found, expected)
            assert found.flags.writeable


def test_a_patch_decompresses_the_chunks_that_it_touches_once_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, volume = tmp_path / "v.h5", np.random.default_rng(0).integers(0, 255, (64, 64, 96), np.uint8)
    with h5py.File(path, "w") as file:
        file.create_dataset("raw", data=volume, chunks=(16, 32, 32), compression="gzip")
    given: dict[str, Any] = {"layout": "per_file", "reader": "patch", "fields": ["raw"], "options": {"cache_bytes": 0}}
    dataset = StoreDataset(path, reader_options={"size": (16, 32, 32), "per_record": 40}, **given)
    inflated, inflate = list[int](), zlib.decompressobj

    def counted() -> Any:
        inflated.append(1)
        return inflate()

    monkeypatch.setattr(zlib, "decompressobj", counted)
    raw, position = dataset[0]
    assert np.array_equal(raw, volume[tuple(slice(at, at + n) for at, n in zip(position, (16, 32, 32), strict=True))])
    assert len(inflated) <= 8
    inflated.clear()
    dataset[:]
    assert len(inflated) <= 4 * 2 * 3


def test_a_long_window_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signal = np.random.default_rng(0).normal(size=(1_000_000, 2)).astype("f4")
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file["signal"] = signal
    calls, preadv = list[int](), os.preadv

    def counted(*args: Any) -> int:
        calls.append(1)
        return preadv(*args)

    with open_backend(tmp_path / "s.h5", columns={"a": "signal"}) as backend:
        monkeypatch.setattr(os, "preadv", counted)
        box = slice(1_000, 201_000), slice(0, 2)
        (found,) = backend.get_parts([0], lambda *_: {"a": box}, ["a"])  # type: ignore[attr-defined]
    assert np.array_equal(found["a"], signal[box])
    assert len(calls) == 1


def test_a_damaged_chunk_is_a_bad_record_for_the_patches_that_touch_it(tmp_path: Path) -> None:
    path = write(tmp_path / "v.h5", chunks=(8, 8, 8, 2), compression="gzip")
    with h5py.File(path) as file:
        place = file["s0/raw"].id.get_chunk_info_by_coord((0, 0, 0, 0))
    blob = bytearray(path.read_bytes())
    blob[place.byte_offset + 9 : place.byte_offset + place.size] = bytes(place.size - 9)
    path.write_bytes(blob)
    dataset = patches(path, per_record=None, grid=[4, 3, 5], on_error="skip")
    for sample in dataset[:]:
        touches = max(sample["position"].tolist()) < 8 if not isinstance(sample, storeds.Skipped) else True
        assert not touches or isinstance(sample, storeds.Skipped) or sample["label"] != 0
    skipped = [each for each in dataset[:] if isinstance(each, storeds.Skipped)]
    assert len(skipped) == 2 * 3 * 2
    assert {each.position for each in skipped} == {0}
    with pytest.raises(
        RecordError, match=r"record 0 \(key 's0'\) of .*field 'raw': its bytes are cut short or damaged"
    ):
        patches(path, per_record=None, grid=4)[0]


def test_a_share_of_the_places_is_centred_on_the_foreground(source: Any) -> None:
    dataset = patches(source, size=[5, 5, 5], foreground={"field": "labels", "share": 0.5}, fields=["labels", "label"])
    for epoch in range(3):
        dataset.set_epoch(epoch)
        centres = [bool(each["labels"][2, 2, 2]) for each in dataset[:]]
        edges = [
            any(at in (0, n - 5) for at, n in zip(each["position"].tolist(), SHAPES[each["label"]], strict=True))
            for each in dataset[:]
        ]
        for at in range(len(dataset)):
            if at % COUNT < 3:  # half of 5, rounded up
                assert centres[at] or edges[at]
                assert dataset[at]["labels"].any()


def test_small_records_are_padded_and_say_their_extent(source: Any) -> None:
    with pytest.raises(
        RecordError, match=r"spatial shape \(20, 30, 25\), smaller than a patch of \(21, 9, 10\); pad=0"
    ):
        patches(source, size=[21, 9, 10])[0]
    pad = {"raw": -1, "labels": 7}
    dataset = patches(source, size=[21, 9, 10], pad=pad, per_record=None, grid=[21, 9, 10])
    for sample in dataset[:]:
        start, extent = sample["position"].tolist(), sample["extent"].tolist()
        shape = SHAPES[sample["label"]]
        assert extent == [min(side, n) for side, n in zip((21, 9, 10), shape, strict=True)]
        inner = tuple(slice(0, side) for side in extent)
        box = tuple(slice(at, at + side) for at, side in zip(start, extent, strict=True))
        assert np.array_equal(sample["labels"][inner], LABELS[sample["label"]][box])
        assert sample["labels"].shape == (21, 9, 10)
        assert (sample["labels"][extent[0] :] == 7).all()
        assert (sample["raw"][:, extent[0] :] == -1).all()
    own = [each for each in dataset[:] if each["label"] == 1]
    whole = storeds.stitch([each["labels"] for each in own], [each["position"] for each in own], SHAPES[1])
    assert np.array_equal(whole, LABELS[1])


def test_transforms_move_image_and_mask_together(volumes: Path) -> None:
    def swap(elements: dict[str, Any], generator: Any = None) -> dict[str, Any]:
        return {**elements, "raw": elements["raw"].flip(-3), "labels": elements["labels"].flip(-3)}

    roles = {"raw": "image", "labels": "mask"}
    plain = patches(volumes, fields=["raw", "labels"])
    flips = [{"name": "RandomHorizontalFlip", "p": 1.0}, {"name": "RandomVerticalFlip", "p": 1.0}]
    for transforms, axes in ((swap, (-3,)), (flips, (-2, -1))):
        moved = patches(volumes, fields=["raw", "labels"], roles=roles, transforms=transforms)
        for ours, theirs in zip(moved[:], plain[:], strict=True):
            for name in roles:
                assert np.array_equal(ours[name], theirs[name].flip(axes))
            assert torch.equal(ours["position"], theirs["position"])
    with pytest.raises(ConfigError, match="for reader 'patch' roles"):
        patches(volumes, transforms=swap)


@pytest.mark.parametrize(("size", "axes", "place"), [((7,), [3], 0), ((4, 6), [1, 3], 0), ((2, 2, 2, 2), None, 1)])
def test_one_to_four_axes_anywhere(size: tuple[int, ...], axes: list[int] | None, place: int) -> None:
    values = np.random.default_rng(0).integers(0, 99, (3, 4, 5, 6, 8)).astype("i2")
    field = {"kind": "array", "dtype": "<i2", "shape": [4, 5, 6, 8]}
    url = make_store({"tracks": field}, [{"tracks": each} for each in values])
    options = {"size": size, "axes": axes, "grid": 2}
    spatial = axes or [0, 1, 2, 3]
    dataset = StoreDataset(url, reader="patch", as_dict=True, fields=["tracks", "index"], reader_options=options)
    steps = [math.ceil(([4, 5, 6, 8][axis] - side) / 2) + 1 for axis, side in zip(spatial, size, strict=True)]
    assert len(dataset) == 3 * math.prod(steps)
    for sample in dataset[:]:
        box = [slice(None)] * 4
        for axis, start, side in zip(spatial, sample["position"].tolist(), size, strict=True):
            box[axis] = slice(start, start + side)
        whole: Array = values[sample["index"] // math.prod(steps)]
        expected = np.moveaxis(whole[tuple(box)], spatial, range(-len(size), 0))
        assert np.array_equal(sample["tracks"], expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": None}, "needs size, the sides of a patch along 1 to 4 axes"),
        ({"size": [1, 2, 3, 4, 5]}, "needs size"),
        ({"grid": 4}, "takes per_record, a number of random places, or grid"),
        ({"per_record": None}, "takes per_record, a number of random places, or grid"),
        ({"per_record": 0}, "per_record must be at least 1, got 0"),
        ({"per_record": None, "grid": 9}, "grid must be from 1 to 8, got 9"),
        ({"per_record": None, "grid": [1, 2]}, "has 2 distances, and size 3 sides"),
        ({"axes": {"row": [0, 1, 2]}}, "axes names 'row'; did you mean 'raw'"),
        ({"axes": [0, 1]}, "are 3 different numbers from 0"),
        ({"axes": [4, 5, 6]}, r"the shapes of those in .* are .*change size or axes"),
        ({"pad": {"affine": 0}}, "pad names 'affine', which is not cut"),
        ({"roles": {"raw": "boxes"}}, "'raw' is an image or a mask of patches"),
        ({"foreground": {"field": "label", "share": 0.3}}, "names 'label', which is not cut"),
        ({"foreground": {"field": "labels", "share": 2}}, "share must be a number from 0 to 1"),
        ({"foreground": {"share": 0.3}}, "foreground is {'field': 'labels', 'share': 0.33}"),
        ({"fields": {"position": "raw"}}, "'position' and 'extent' are elements of each patch"),
        ({"fields": ["label"]}, "reader 'patch' cuts arrays along 3 axes"),
    ],
    ids=str,
)
def test_what_cannot_be_cut_is_an_error(volumes: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        patches(volumes, **options)


def test_arrays_of_a_record_that_differ_are_a_bad_record(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "v.h5", "w") as file:
        file["s0/raw"], file["s0/labels"] = np.zeros((8, 8, 8)), np.zeros((8, 8, 9))
    with pytest.raises(RecordError, match=r"differ in shape .*: \(8, 8, 9\) and \(8, 8, 8\); .*name those that are"):
        patches(tmp_path / "v.h5", size=[4, 4, 4])[0]


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([[0, 0]], r"no patch covers \[0, 2\], and 5 of 9 places"),
        ([[0, 3]], r"a patch at \[0, 3\], of shape \(2, 2\), is not in a record of spatial shape \(3, 3\)"),
        ([[0, 0], [1, 1]], "a position for each prediction, and got 1 for 2"),
    ],
)
def test_stitch_refuses_what_leaves_places_open(positions: list[list[int]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        storeds.stitch(torch.ones(1, 2, 2), positions, (3, 3))
