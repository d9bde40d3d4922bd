"""Test that no damaged picture of a random corpus is read silently from any store, and that no whole one is reported.

Damage is visible if some decoder sees it: libjpeg reports it, in a program without code of storeds (`by_djpeg`), a part of
the file is missing and Pillow gives other pixels, or a checksum fails. Any other damage leaves a valid picture. The test takes
250 pictures; `make test-full` (``STOREDS_TEST_FULL``) takes 4,000.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import _foreign_lmdb
import storeds
from _silence import DECODES, complaints, read_all
from conftest import with_path
from jpeg_corpus import Sample, random_corpus
from jpeg_encodings import ENCODINGS, RARE, encode
from make_store import make_store
from shares import FULL
from storeds.ops import convert, pack, repair
from storeds.pictures import examine

SEED = int(os.environ.get("STOREDS_TEST_CORPUS", "16"))
COUNT = 4000 if FULL else 250
FEW = 400 if FULL else 60  # for the engines that differ in nothing but storage

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # what Pillow thinks of damaged metadata


@dataclass(frozen=True)
class Store:
    """A store of the first `count` pictures of the corpus, and what reading it takes."""

    url: str
    count: int = COUNT
    options: Mapping[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def corpus() -> list[Sample]:
    return random_corpus(SEED, COUNT)


def write_native(url: str, samples: Iterable[Sample], **options: Any) -> None:
    make_store({"image": "image"}, ({"image": sample.blob} for sample in samples), url, **options)


def write_vlen(path: Path, samples: list[Sample]) -> None:
    with h5py.File(path, "w") as file:
        images = file.create_dataset("image", (len(samples),), h5py.vlen_dtype("u1"))
        for at, sample in enumerate(samples):
            images[at] = np.frombuffer(sample.blob, "u1")


@pytest.fixture(scope="module")
def stores(corpus: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Store]:
    """Stores of the corpus in files: our own, with and without verdicts, and as other tools write them."""
    folder = tmp_path_factory.mktemp("silence")
    found = {
        "native": Store(f"lmdb://{folder}/native.lmdb"),
        "unchecked": Store(f"lmdb://{folder}/unchecked.lmdb"),
        "native HDF5": Store(f"hdf5://{folder}/native.h5", FEW),
        "foreign": Store(f"lmdb://{folder}/foreign", options={"layout": "keyed"}),
        "foreign HDF5": Store(f"hdf5://{folder}/foreign.h5", FEW),
    }
    write_native(found["native"].url, corpus)
    write_native(found["unchecked"].url, corpus, check=False)
    write_native(found["native HDF5"].url, corpus[:FEW])
    _foreign_lmdb.put(folder / "foreign", ((b"%08d" % at, sample.blob) for at, sample in enumerate(corpus)))
    write_vlen(folder / "foreign.h5", corpus[:FEW])
    return found


READINGS = [
    *(("native", decode, 0.0) for decode in DECODES),
    *(("foreign", decode, 0.0) for decode in DECODES),
    *(("unchecked", decode, 0.0) for decode in ("pil", "tensor")),
    ("native", "tensor", 1.0),
    ("foreign", "pil", 0.5),
    ("foreign", "tensor", 1.0),
    ("native HDF5", "tensor", 0.0),
    ("native HDF5", "pil", 0.5),
    ("foreign HDF5", "tensor", 0.0),
    ("foreign HDF5", "pil", 0.5),
]


def assert_none_is_silent(samples: list[Sample], store: Store, *, pixels: bool = True, **options: Any) -> None:
    given = read_all(store.url, **store.options, **options)
    found = list(complaints(samples[: store.count], given, pixels=pixels))
    assert not found, f"{len(found)} of {store.count}:\n" + "\n".join(found[:40])


@pytest.mark.share(6)
@pytest.mark.parametrize(("store", "decode", "least"), READINGS)
def test_no_damaged_picture_is_silent(
    corpus: list[Sample], stores: dict[str, Store], store: str, decode: str, least: float
) -> None:
    assert_none_is_silent(corpus, stores[store], decode=decode, min_recovered=least, pixels=decode != "fast")


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("store", "decode"), [("native", "tensor"), *(("foreign", decode) for decode in DECODES), ("unchecked", "tensor")]
)
def test_a_crop_that_is_drawn_before_decoding_hides_no_damage(
    corpus: list[Sample], stores: dict[str, Store], store: str, decode: str
) -> None:
    crop = [{"name": "RandomResizedCrop", "size": 16, "scale": [0.05, 0.3]}]
    assert_none_is_silent(corpus, stores[store], decode=decode, min_recovered=0.0, pixels=False, transform=crop)


@pytest.mark.parametrize("kind", ["native", "foreign"])
def test_no_damaged_picture_of_a_server_is_silent(
    corpus: list[Sample], database: Any, mongodb_database: str, kind: str
) -> None:
    store = Store(with_path(mongodb_database, kind), FEW)
    if kind == "native":
        write_native(store.url, corpus[:FEW])
    else:
        database[kind].insert_many({"_id": at, "image": sample.blob} for at, sample in enumerate(corpus[:FEW]))
    assert_none_is_silent(corpus, store, decode="tensor", min_recovered=0.0)


@pytest.mark.parametrize("options", [{}, {"check": False}])
def test_whole_pictures_have_the_pixels_of_pillow(tmp_path: Path, options: Mapping[str, bool]) -> None:
    wholes = [Sample(name, "", encode(name), "", encode(name)) for name in (*ENCODINGS, *RARE)]
    wholes = [sample for sample in wholes if "lossless" not in sample.encoding]  # which Pillow may not know
    store = Store(f"lmdb://{tmp_path}/whole.lmdb", len(wholes))
    write_native(store.url, wholes, **options)
    for decode in DECODES:
        assert_none_is_silent(wholes, store, decode=decode, pixels=decode != "fast")
    crop = [{"name": "RandomResizedCrop", "size": 16, "scale": [0.05, 0.3]}]
    assert_none_is_silent(wholes, store, decode="tensor", pixels=False, transform=crop)


def test_no_damage_of_a_jpeg_is_silent_with_load_truncated_images(
    corpus: list[Sample], stores: dict[str, Store], tmp_path: Path
) -> None:
    (tmp_path / "corpus").write_bytes(pickle.dumps(corpus))
    urls = [stores[name].url for name in ("native", "foreign")]
    script = Path(__file__).parents[1].joinpath("support", "_silence.py")
    done = subprocess.run([sys.executable, script, tmp_path / "corpus", *urls], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert not done.stdout, done.stdout[:4000]


@pytest.mark.parametrize("check", [True, False])
def test_no_damage_is_silent_after_packing(corpus: list[Sample], tmp_path: Path, check: bool) -> None:
    (tmp_path / "files").mkdir()
    for at, sample in enumerate(corpus[:FEW]):
        (tmp_path / "files" / f"{at:05}.jpg").write_bytes(sample.blob)
    store = Store(f"lmdb://{tmp_path}/packed.lmdb", FEW)
    pack(tmp_path / "files", store.url, on_bad="keep", check=check)
    assert_none_is_silent(corpus, store, decode="tensor", min_recovered=0.0)


def test_a_converted_or_repaired_store_keeps_the_verdicts(
    corpus: list[Sample], stores: dict[str, Store], tmp_path: Path
) -> None:
    for name in ("native HDF5", "foreign HDF5"):
        store = Store(f"lmdb://{tmp_path}/{name}.lmdb", FEW)
        convert(stores[name].url, store.url)
        assert_none_is_silent(corpus, store, decode="tensor", min_recovered=0.0)
    for name in ("native", "foreign", "unchecked"):
        store = Store(f"lmdb://{tmp_path}/{name}.lmdb")
        layout = stores[name].options.get("layout")
        repair(stores[name].url, store.url, layout=layout)
        assert_none_is_silent(corpus, store, decode="tensor", min_recovered=0.0)
    again = Store(f"lmdb://{tmp_path}/again.lmdb")
    repair(f"lmdb://{tmp_path}/native.lmdb", again.url)
    assert_none_is_silent(corpus, again, decode="pil", min_recovered=0.0)


def columns(url: str) -> list[tuple[str, float]]:
    """Return the finding and the share that a store has for each picture."""
    with storeds.open_backend(url) as backend:
        kinds, shares = (backend.column(name) for name in ("image_finding", "image_recovered"))  # type: ignore[attr-defined]
    return list(zip(map(str, kinds), map(float, shares), strict=True))


def test_the_store_has_the_verdicts_and_none_is_silent(corpus: list[Sample], stores: dict[str, Store]) -> None:
    found = columns(stores["native"].url)
    assert found == [(verdict.finding, verdict.recovered) for verdict in (examine(sample.blob) for sample in corpus)]
    whole = ("intact", "trailing_data")
    assert not [
        sample for sample, (kind, _) in zip(corpus, found, strict=True) if not sample.damage and kind not in whole
    ]
    assert not [sample for sample, (kind, _) in zip(corpus, found, strict=True) if sample.is_visible and kind in whole]
    visible = {sample.blob for sample in corpus if sample.is_visible}
    chosen: dict[str, Any] = {"image_recovered": 1.0, "image_finding": list(whole)}
    for where in ({"image_finding": "intact"}, chosen):
        dataset = storeds.StoreDataset(stores["native"].url, fields=("image",), decode="bytes", where=where)
        with dataset.backend:
            blobs = {blob for (blob,) in dataset[:]}
        assert not visible & blobs
        assert {sample.blob for sample in corpus if sample.blob == sample.whole} <= blobs


def test_the_corpus_is_complete(corpus: list[Sample]) -> None:
    assert len({sample.encoding for sample in corpus}) >= 45
    assert len({sample.damage for sample in corpus}) >= 15
    assert 0.2 * COUNT < sum(not sample.damage for sample in corpus) < 0.4 * COUNT
    assert sum(sample.is_visible for sample in corpus) > 0.5 * COUNT
    assert random_corpus(SEED, 20) == corpus[:20]
