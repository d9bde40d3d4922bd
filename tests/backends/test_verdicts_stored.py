"""Verdicts on pictures in a store: two ordinary fields of each record, made when it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, open_backend
from storeds.backends import select
from storeds.errors import ConfigError, RecordError

FIELDS = {"image": "image", "label": "int"}


def records() -> list[dict[str, Any]]:
    whole = [jpeg(seed) for seed in range(10)]
    return [{"image": blob if at % 3 else blob[:-40], "label": at} for at, blob in enumerate(whole)]


def test_a_checksum_covers_the_verdict() -> None:
    ids = set()
    for finding, recovered in (("intact", 1.0), ("mine", 0.5)):
        given = {"image_finding": finding, "image_recovered": recovered}
        # A record that has a verdict keeps it.
        with open_backend(make_store(FIELDS, ({**record, **given} for record in records()))) as store:
            ids.add(store.meta.id)
            assert store.get_many([2], tuple(given)) == [given]
    assert len(ids) == 2


def test_stores_of_which_one_keeps_no_verdicts_have_none_together(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "foreign.h5", "w") as file:
        file["label"] = np.arange(10)
        images = file.create_dataset("image", 10, h5py.vlen_dtype(np.uint8))
        for at, record in enumerate(records()):
            images[at] = np.frombuffer(record["image"], np.uint8)
    with open_backend(f"hdf5://{tmp_path}/foreign.h5") as foreign:
        fields = foreign.meta.fields
        make_store(fields, ({name: record[name] for name in fields} for record in records()), f"{tmp_path}/native.h5")
    for names in (("foreign", "native"), ("native", "foreign")):
        with open_backend([f"hdf5://{tmp_path}/{name}.h5" for name in names]) as both:
            assert set(both.meta.fields) == set(fields) == {"image", "label"}
            assert both.get_many(range(20)) == records() * 2
            with pytest.raises(ConfigError, match="has no field 'image_finding'"):
                select(both, {"image_finding": "intact"})
        # Pictures without a verdict are examined when they are read.
        with pytest.raises(RecordError, match="record 10 of"):
            StoreDataset([f"hdf5://{tmp_path}/{name}.h5" for name in names], on_error="raise", repair=False)[10]


def test_half_a_verdict_and_one_of_another_kind_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'image_recovered' holds the verdict .* of kind float, not int; rename it"):
        make_store({"image": "image", "image_recovered": "int"}, [])
    with pytest.raises(RecordError, match="record 0 of .*it lacks 'image_recovered'; every record"):
        make_store(FIELDS, [{**records()[0], "image_finding": "intact"}])
