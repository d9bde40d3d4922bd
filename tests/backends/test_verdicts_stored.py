"""Verdicts on pictures in a store: two ordinary fields of each record, made when it is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from photographs import jpeg
from storeds import StoreDataset, open_backend, open_writer
from storeds.backends import select
from storeds.errors import ConfigError, RecordError

MakeEngineUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb", "memory")
FIELDS = {"image": "image", "label": "int"}


def records() -> list[dict[str, Any]]:
    whole = [jpeg(seed) for seed in range(10)]
    return [{"image": blob if at % 3 else blob[:-40], "label": at} for at, blob in enumerate(whole)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checksum_covers_the_verdict(make_engine_url: MakeEngineUrl, engine: str) -> None:
    ids = set()
    for given in (
        {"image_finding": "intact", "image_recovered": 1.0},
        {"image_finding": "mine", "image_recovered": 0.5},
    ):
        url = make_engine_url(engine)
        with open_writer(url, FIELDS) as writer:
            writer.append([{**record, **given} for record in records()])  # a record that has a verdict keeps it
        with open_backend(url) as store:
            ids.add(store.meta.id)
            assert store.get_many([2], tuple(given)) == [given]
    assert len(ids) == 2


def test_a_field_with_the_name_of_a_verdict_and_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'image_recovered' holds the verdict .* of kind float, not int; rename it"):
        open_writer(f"lmdb://{tmp_path}/a.lmdb", {"image": "image", "image_recovered": "int"})


def test_stores_of_which_one_keeps_no_verdicts_have_none_together(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["label"] = np.arange(10)
        images = file.create_dataset("image", 10, h5py.vlen_dtype(np.uint8))
        for at, record in enumerate(records()):
            images[at] = np.frombuffer(record["image"], np.uint8)
    with open_backend(f"hdf5://{tmp_path}/foreign.h5") as foreign:
        fields = foreign.meta.fields
        with open_writer(f"hdf5://{tmp_path}/native.h5", fields) as writer:
            writer.append({name: record[name] for name in fields} for record in records())
    for names in (("foreign", "native"), ("native", "foreign")):
        with open_backend([f"hdf5://{tmp_path}/{name}.h5" for name in names]) as both:
            assert set(both.meta.fields) == set(fields) == {"image", "label"}
            assert both.get_many(range(20)) == records() * 2
            with pytest.raises(ConfigError, match="has no field 'image_finding'"):
                select(both, {"image_finding": "intact"})
        # Pictures without a verdict are examined when they are read.
        with pytest.raises(RecordError, match="record 10 of"):
            StoreDataset([f"hdf5://{tmp_path}/{name}.h5" for name in names], on_error="raise", repair=False)[10]


def test_half_a_verdict_is_refused_by_name(tmp_path: Path) -> None:
    writer = open_writer(f"lmdb://{tmp_path}/a.lmdb", FIELDS)
    with pytest.raises(RecordError, match="record 0 of .*it lacks 'image_recovered'; every record"):
        writer.append([{**records()[0], "image_finding": "intact"}])
    writer.abort()
