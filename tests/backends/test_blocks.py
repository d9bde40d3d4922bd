"""Parts of large arrays of native stores: equal to slices, read and verified block by block, by checksums in the cache folder."""

from __future__ import annotations

import math
import os
import resource
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from make_store import make_store
from shares import examples
from storeds import StoreDataset, StoreLoader, open_backend
from storeds.errors import RecordError, StoredsError
from storeds.protocols import Array, Box
from threaded import threaded

FILES = ("lmdb", "hdf5")
MakeUrl = Callable[[str], str]
LEAST = 2 << 20  # bytes of an array whose parts are read
SHAPES = [(160, 150, 140), (1, 3_000_001), (130, 140, 150)]
RAW = [np.random.default_rng(at).integers(0, 256, shape, np.uint8) for at, shape in enumerate(SHAPES)]
FIELDS: dict[str, Any] = {
    "key": "str",
    "raw": {"kind": "array", "dtype": "|u1", "shape": [None, None, None]},
    "affine": {"kind": "array", "dtype": "<f8", "shape": [None, 4]},
    "label": "int",
    "note": "json",
    "labels": {"kind": "array", "dtype": "<i2", "shape": [None, None, None]},
    "blob": "bytes",
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/storeds"


def record(at: int) -> dict[str, Any]:
    raw = RAW[at].reshape((*SHAPES[at], 1)[:3])
    return {
        "key": f"key{at}",
        "raw": raw,
        "affine": np.eye(4)[: 4 * (at % 2)] * at,
        "label": at - 1,
        "note": {"at": [at, "ä"]},
        "labels": (raw < 9).astype("<i2"),
        "blob": bytes(at * 40_000),
    }


@pytest.fixture(params=FILES)
def url(request: pytest.FixtureRequest, make_engine_url: MakeUrl) -> str:
    return make_store(FIELDS, map(record, range(len(RAW))), make_engine_url(request.param))


def path_of(url: str) -> Path:
    return Path(url.partition("://")[2])


def parts(backend: Any, positions: Sequence[int], boxes: Sequence[Box], fields: Any = ("raw",)) -> list[Any]:
    """Return a box of `raw` of each record."""
    found: list[Any] = backend.get_parts(positions, lambda at, _: {"raw": boxes[at]}, fields)
    return found


def part(url: str, at: int, box: Box, fields: Any = ("raw",)) -> Any:
    """Return a box of `raw` as a process would that opens the store for it."""
    with open_backend(url) as backend:
        return parts(backend, [at], [box], fields)[0]


def box_of(starts: Any, side: int = 20) -> Box:
    return tuple(slice(start, start + side) for start in starts)


def bytes_read(work: Callable[[], object]) -> int:
    """Return how many bytes this process reads from files meanwhile."""

    def count() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = count()
    own = count() - before
    work()
    return count() - before - 2 * own


DTYPES = ["|u1", "|b1", "|i1", "<i2", "<u2", "<f2", "<i4", "<f4", "<i8", "<f8", "<c8", "<c16"]


@given(st.sampled_from(FILES), st.sampled_from(DTYPES), st.booleans(), st.data())
@settings(max_examples=examples(200))
def test_boxes_are_slices(
    tmp_path_factory: pytest.TempPathFactory, engine: str, dtype: str, fixed: bool, data: st.DataObject
) -> None:
    itemsize = np.dtype(dtype).itemsize
    shape = data.draw(st.lists(st.sampled_from([1, 2, 3, 7, 40, 130]), max_size=3))
    shape.insert(data.draw(st.integers(0, len(shape))), LEAST // (math.prod(shape) * itemsize) + 5)
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 99, shape).astype(dtype) for _ in range(2)]
    path = tmp_path_factory.mktemp("boxes") / "a"
    field = {"kind": "array", "dtype": dtype, "shape": shape if fixed else [None] * len(shape)}
    url = make_store(
        {"n": "int", "a": field}, ({"n": n, "a": each} for n, each in enumerate(arrays)), f"{engine}://{path}"
    )
    asked = []
    for _ in range(data.draw(st.integers(1, 5))):
        starts = [data.draw(st.integers(0, side)) for side in shape]
        box = tuple(slice(low, data.draw(st.integers(low, side))) for low, side in zip(starts, shape, strict=True))
        asked.append((data.draw(st.integers(0, 1)), box))
    seen: list[Mapping[str, Any]] = []

    def choose(at: int, shapes: Mapping[str, Any]) -> Mapping[str, Box]:
        seen.append(shapes)
        return {"a": asked[at][1]}

    for _ in range(2):  # by new checksums, and by those that are kept
        with open_backend(url) as backend:
            found = backend.get_parts([at for at, _ in asked], choose)  # type: ignore[attr-defined]
        for (at, box), each in zip(asked, found, strict=True):
            expected = arrays[at][box]
            assert (each["n"], each["a"].dtype) == (at, expected.dtype)
            assert np.array_equal(each["a"], expected)
            assert each["a"].flags.writeable
    assert seen == [{"a": tuple(shape)}] * 2 * len(asked)


def test_other_fields_come_along(url: str) -> None:
    for _ in range(2):
        with open_backend(url) as backend:
            asked = [2, 0, 1, 0]
            boxes = [
                box_of((100, 110, 120)),
                box_of((0, 0, 0)),
                (slice(0, 1), slice(9, 9_000), slice(0, 1)),
                box_of((5, 9, 3)),
            ]
            found = parts(backend, asked, boxes, None)
        for at, box, each in zip(asked, boxes, found, strict=True):
            expected = {**record(at), "raw": record(at)["raw"][box]}
            assert list(each) == list(FIELDS)
            for name, value in expected.items():
                assert np.array_equal(each[name], value) if isinstance(value, np.ndarray) else each[name] == value
    part(url, 0, box_of((0, 0, 0)))["raw"][:] = 0  # which shares no memory with the store
    assert np.array_equal(part(url, 0, box_of((0, 0, 0)))["raw"], RAW[0][box_of((0, 0, 0))])


def test_a_patch_reads_a_small_part(make_engine_url: MakeUrl) -> None:
    volume = np.random.default_rng(0).integers(0, 256, (256, 256, 256), np.uint8)
    field = {"kind": "array", "dtype": "|u1", "shape": [256, 256, 256]}
    url = make_store({"raw": field}, [{"raw": volume}] * 2, make_engine_url("hdf5"))
    assert bytes_read(lambda: part(url, 1, box_of((0, 0, 0), 32))) >= volume.nbytes
    with open_backend(url) as backend:

        def read(starts: Sequence[Any], side: int) -> list[Any]:
            return parts(backend, [1] * len(starts), [box_of(each, side) for each in starts])

        assert bytes_read(lambda: read([(0, 0, 0)], 0)) < 1 << 20  # shapes, from the checksums that are kept
        plane = 32 * 256 + 2 * 8192  # of a box: its rows, and the rest of two blocks
        assert bytes_read(lambda: read([(100, 90, 80)], 32)) <= 32 * plane
        together = bytes_read(lambda: read([(100, 90, 80), (101, 91, 81), (99, 90, 100), (100, 90, 80)], 32))
        assert together <= 34 * (plane + 256)


@pytest.mark.parametrize("engine", FILES)
def test_a_cold_patch_reads_its_blocks_from_the_disk(make_engine_url: MakeUrl, engine: str) -> None:
    volume = np.random.default_rng(0).integers(0, 256, (256, 256, 256), np.uint8)
    field = {"kind": "array", "dtype": "|u1", "shape": [256, 256, 256]}
    url = make_store({"raw": field}, [{"raw": volume}], make_engine_url(engine))
    part(url, 0, box_of((0, 0, 0)))
    with open(path_of(url), "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = resource.getrusage(resource.RUSAGE_SELF)
    part(url, 0, box_of((100, 90, 80), 64))
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert (after.ru_inblock - before.ru_inblock) * 512 < volume.nbytes / 4
    assert after.ru_majflt - before.ru_majflt < 64


def flip(url: str, at: int, index: tuple[int, ...]) -> None:
    """Change the element of `raw` at an index of a record, in its file."""
    path, place = path_of(url), int(np.ravel_multi_index(index, RAW[at].shape))
    content = bytearray(path.read_bytes())
    content[content.index(RAW[at].tobytes()) + place] ^= 1
    path.write_bytes(content)


def test_damage_is_reported_by_the_patches_whose_blocks_it_is_in(url: str) -> None:
    near, far = box_of((70, 60, 50)), box_of((10, 20, 30))
    part(url, 0, near)
    flip(url, 0, (75, 65, 55))
    bad = part(url, 0, near)
    assert isinstance(bad, RecordError)
    assert (bad.url, bad.position) == (url, 0)
    assert str(bad).count("its checksum does not match its bytes, or it belongs to another store") == 1
    assert np.array_equal(part(url, 0, far)["raw"], RAW[0][far])
    with open_backend(url) as backend:
        together = parts(backend, [0, 0, 2], [far, near, near])
    assert [isinstance(each, RecordError) for each in together] == [False, True, False]
    assert [each.position for each in storeds.verify(url).findings] == [0]


def test_damage_of_other_fields_is_reported(url: str) -> None:
    box = box_of((70, 60, 50))
    part(url, 2, box)
    path = path_of(url)
    path.write_bytes(path.read_bytes().replace(b"key2", b"kez2"))
    assert isinstance(part(url, 2, box, ["raw", "key"]), RecordError)
    assert np.array_equal(part(url, 2, box)["raw"], RAW[2][box])


def test_damage_before_the_first_patch_is_reported_by_all(url: str) -> None:
    flip(url, 0, (75, 65, 55))
    for _ in range(2):
        assert isinstance(part(url, 0, box_of((10, 20, 30))), RecordError)
        assert not isinstance(part(url, 2, box_of((10, 20, 30))), RecordError)


@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "removed", "read-only"])
def test_a_damaged_cache_is_made_again(url: str, cache: Path, how: str) -> None:
    box = box_of((70, 60, 50))
    part(url, 0, box)
    (kept,) = cache.glob("*.npy")
    content = kept.read_bytes()
    changed = {"flipped": content[:-200] + b"\xff" + content[-199:], "cut": content[:-900], "emptied": b""}
    kept.write_bytes(changed.get(how, content))
    if how == "removed":
        kept.unlink()
    if how == "read-only":
        kept.unlink()
        cache.rmdir()
        cache.write_bytes(b"")  # no folder, so that nothing can be kept
    for _ in range(2):
        assert np.array_equal(part(url, 0, box)["raw"], RAW[0][box])
    if how != "read-only":
        assert kept.read_bytes() == content


@pytest.mark.parametrize("engine", FILES)
def test_a_replaced_store_has_checksums_of_its_own(make_engine_url: MakeUrl, engine: str) -> None:
    url, box = make_engine_url(engine), box_of((70, 60, 50))
    make_store(FIELDS, [record(0)], url)
    with open_backend(url) as old:
        (first,) = parts(old, [0], [box])
        make_store(FIELDS, [{**record(0), "raw": record(0)["raw"][::-1]}], url, overwrite=True)
        assert np.array_equal(part(url, 0, box)["raw"], RAW[0][::-1][box])
        try:
            (again,) = parts(old, [0], [box])
        except StoredsError:
            again = first
        assert np.array_equal(again["raw"], RAW[0][box])


@pytest.mark.parametrize("engine", FILES)
def test_a_deleted_store_that_is_open_is_read(make_engine_url: MakeUrl, engine: str) -> None:
    url, box = make_store(FIELDS, [record(0)], make_engine_url(engine)), box_of((70, 60, 50))
    with open_backend(url) as backend:
        backend.get_many([0], ["label"])
        path_of(url).unlink()
        for _ in range(2):
            assert np.array_equal(parts(backend, [0], [box])[0]["raw"], RAW[0][box])


def test_values_that_lie_elsewhere_now_are_read(make_engine_url: MakeUrl) -> None:
    url, box = make_engine_url("lmdb"), box_of((70, 60, 50))
    fields = {"raw": FIELDS["raw"]}
    volumes = [record(0)["raw"] + np.uint8(at) for at in range(3)]
    make_store(fields, ({"raw": each} for each in volumes), url)
    for at in range(3):
        part(url, at, box)
    path, moved = path_of(url), path_of(url).with_suffix(".moved")
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=3) as old:
        tables = [old.open_db(name, create=False) for name in (b"records", b"columns", b"meta")]
        with lmdb.open(str(moved), subdir=False, lock=False, max_dbs=3, map_size=1 << 26) as new, old.begin() as source:
            copies = [new.open_db(name) for name in (b"records", b"columns", b"meta")]
            with new.begin(write=True) as target:
                for table, copied in zip(tables, copies, strict=True):
                    for key, value in [*source.cursor(table)][::-1]:
                        target.put(key, value, db=copied)
    os.replace(moved, path)
    for at, volume in enumerate(volumes):
        assert np.array_equal(part(url, at, box)["raw"], volume[box])


LOADERS: list[Callable[..., Any]] = [
    lambda dataset: StoreLoader(dataset, batch_size=3, shuffle=True, seed=1, num_workers=2),
    lambda dataset: threaded(dataset, batch_size=3, shuffle=True, seed=1, num_workers=2),
]


@pytest.mark.parametrize("loader", LOADERS, ids=["workers", "threads"])
@pytest.mark.parametrize("engine", FILES)
def test_workers_read_patches(make_engine_url: MakeUrl, engine: str, loader: Callable[..., Any], cache: Path) -> None:
    volumes = [record(at)["raw"] for at in (0, 2)]
    url = make_store(
        {"raw": FIELDS["raw"], "label": "int"},
        ({"raw": v, "label": n} for n, v in enumerate(volumes)),
        make_engine_url(engine),
    )
    options = {"size": [32, 32, 32], "per_record": 6}
    dataset = StoreDataset(url, reader="patch", reader_options=options, as_dict=True)
    for _ in range(2):
        seen = 0
        for batch in loader(dataset):
            for raw, label, position in zip(batch["raw"], batch["label"], batch["position"], strict=True):
                assert np.array_equal(raw, volumes[label][box_of(position.tolist(), 32)])
                seen += 1
        assert seen == 12
    assert len([*cache.glob("*.npy")]) == 2


def test_joined_stores_give_their_patches(make_engine_url: MakeUrl) -> None:
    urls = [
        make_store(FIELDS, map(record, each), make_engine_url(engine))
        for engine, each in zip(FILES, ([0], [1, 2]), strict=True)
    ]
    options = {"size": [1, 9, 1], "per_record": 2}
    for _ in range(2):
        dataset = StoreDataset(urls, reader="patch", reader_options=options, fields=["raw", "key"], as_dict=True)
        for at, sample in zip((5, 0, 3, 4), dataset[[5, 0, 3, 4]], strict=True):
            box = tuple(slice(low, low + n) for low, n in zip(sample["position"].tolist(), (1, 9, 1), strict=True))
            assert sample["key"] == f"key{at // 2}"
            assert np.array_equal(sample["raw"], record(at // 2)["raw"][box])


def test_many_records_keep_few_checksums_in_memory_and_no_open_files(make_engine_url: MakeUrl) -> None:
    array = np.random.default_rng(0).integers(0, 256, LEAST + 1, np.uint8)
    field = {"kind": "array", "dtype": "|u1", "shape": [None]}
    url = make_store({"raw": field}, ({"raw": array} for _ in range(30)), make_engine_url("hdf5"))
    with open_backend(url) as backend:
        before = len(os.listdir("/proc/self/fd"))
        for at in range(30):
            (found,) = parts(backend, [at], [(slice(at, at + 9),)])
            assert np.array_equal(found["raw"], array[at : at + 9])
        assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_threads_read_parts_of_one_backend(url: str) -> None:
    found: list[bool] = []
    with open_backend(url) as backend:

        def read(number: int) -> None:
            for at in range(8):
                box = box_of((10 * at, 11 * at, 3 * number))
                (each,) = parts(backend, [0], [box])
                found.append(np.array_equal(each["raw"], RAW[0][box]))

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert found == [True] * 32


def test_small_arrays_keep_nothing(make_engine_url: MakeUrl, cache: Path) -> None:
    field = {"kind": "array", "dtype": "<f4", "shape": [None, None]}
    arrays: list[Array] = [np.random.default_rng(at).random((at + 3, 500), np.float32) for at in range(4)]
    for engine in FILES:
        url = make_store({"raw": field}, ({"raw": each} for each in arrays), make_engine_url(engine))
        boxes = [box_of((1, at)) for at in range(4)]
        with open_backend(url) as backend:
            found = parts(backend, range(4), boxes)
        for box, array, each in zip(boxes, arrays, found, strict=True):
            assert np.array_equal(each["raw"], array[box])
    assert not [*cache.glob("*")]
