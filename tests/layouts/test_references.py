"""What object references lead to: cells of MATLAB, one for each record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from storeds import StoreDataset, open_backend
from storeds.errors import RecordError, StoredsError


def characters(text: str) -> Any:
    return np.frombuffer(text.encode("utf-16-le"), "u2").reshape(-1, 1)


ARRAYS = [np.full((number + 1, 2), number / 2) for number in range(4)]
TEXTS = ["a.png", "bé", "", "日本 𝄞"]
CELLS: dict[str, tuple[list[Any], list[Any]]] = {
    "arrays": (ARRAYS, ARRAYS),
    "numbers": ([np.array([[number]], "f8") for number in range(4)], [0.0, 1.0, 2.0, 3.0]),
    "integers": ([np.array([number], "u4") for number in range(4)], [0, 1, 2, 3]),
    "texts": ([characters(text) for text in TEXTS], TEXTS),
    "some empty": ([ARRAYS[1], None, ARRAYS[2], None], [ARRAYS[1], np.zeros((3, 0)), ARRAYS[2], np.zeros((3, 0))]),
}


def write(path: Path, values: list[Any], shape: tuple[int, ...]) -> Path:
    """Write cells as MATLAB 7.3 does, beside a number for each; None is an empty one of 0 × 3."""
    with h5py.File(path, "w") as file:
        group, found = file.create_group("#refs#"), []
        for number, value in enumerate(values):
            is_empty = value is None or not value.size
            sizes = np.array([0, 3] if value is None else [0, 0], "u8")
            made = group.create_dataset(f"{number}x", data=sizes if is_empty else value)
            is_text = value is not None and value.dtype == "u2"
            if is_empty:
                made.attrs["MATLAB_empty"] = np.uint8(1)
            made.attrs["MATLAB_class"] = np.bytes_("char" if is_text else "double")
            found.append(made.ref)
        cells = np.array(found, h5py.ref_dtype).reshape(shape)
        file.create_dataset("cells", data=cells, dtype=h5py.ref_dtype).attrs["MATLAB_class"] = np.bytes_("cell")
        file["y"] = np.arange(float(len(values))).reshape(shape)
        file["y"].attrs["MATLAB_class"] = np.bytes_("double")
    return path


@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1)])
@pytest.mark.parametrize("name", CELLS)
def test_a_cell_is_a_value_of_its_record(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    values, expected = CELLS[name]
    path = write(tmp_path / "cells.mat", values, shape)
    ways: list[dict[str, Any]] = [{}, {"columns": {"cells": "cells[]", "y": "y[]"}}]
    for how in ways:
        with open_backend(path, **how) as store:
            found: Any = store.get_many([3, 0, 1, 2])
        for record, at in zip(found, [3, 0, 1, 2], strict=True):
            if isinstance(expected[at], np.ndarray):
                assert (record["cells"].dtype, record["cells"].shape) == (expected[at].dtype, expected[at].shape)
                assert record["cells"].tolist() == expected[at].tolist()
            else:
                assert record["cells"] == expected[at]
            assert record["y"] == at


def test_cells_come_through_workers_and_are_packed(tmp_path: Path) -> None:
    path = write(tmp_path / "cells.mat", ARRAYS, (1, 4))
    dataset = StoreDataset(path, reader="array", fields=["cells", "y"])
    loader = storeds.StoreLoader(dataset, batch_size=2, num_workers=2, collate_fn=list)
    assert [cells.tolist() for batch in loader for cells, _ in batch] == [each.tolist() for each in ARRAYS]
    storeds.convert(str(path), f"hdf5://{tmp_path}/packed.h5")
    with open_backend(tmp_path / "packed.h5") as store:
        assert [each["cells"].tolist() for each in store.get_many(range(4))] == [each.tolist() for each in ARRAYS]  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("kinds", "references in dataset /cells lead to values of several kinds: float64 of 2 dimensions, a text"),
        ("groups", "references in dataset /cells lead to a group"),
        ("nowhere", "references in dataset /cells lead nowhere"),
    ],
)
def test_what_no_field_holds_is_an_error_that_says_where_references_lead(
    tmp_path: Path, change: str, message: str
) -> None:
    values = [ARRAYS[0], characters("x")] if change == "kinds" else ARRAYS[:2]
    path = write(tmp_path / "cells.mat", values, (2,))
    with h5py.File(path, "r+") as file:
        group = file["#refs#"].create_group("struct")
        if change != "kinds":
            file["cells"][:] = [group.ref if change == "groups" else h5py.Reference()] * 2
    with pytest.raises(StoredsError, match=message):
        open_backend(path, columns={"cells": "cells[]", "y": "y[]"})
    with open_backend(path, columns={"y": "y[]"}) as store:
        assert any("cells (references" in each for each in store.unread())  # type: ignore[attr-defined]


def test_what_claims_more_than_the_file_can_hold_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "cells.mat", ARRAYS * 5, (20,))
    with h5py.File(path, "r+") as file:
        empty = file["#refs#"].create_dataset("empty", data=np.array([1 << 30, 1 << 30], "u8"))
        empty.attrs["MATLAB_empty"], empty.attrs["MATLAB_class"] = np.uint8(1), np.bytes_("double")
        huge = file["#refs#"].create_dataset("huge", (1 << 40, 2), "f8", chunks=(1 << 10, 2))
        file["cells"][2], file["cells"][3] = empty.ref, huge.ref
    with open_backend(path, columns={"cells": "cells[]", "y": "y[]"}) as store:
        found = [str(each) for each in store.get_many([2, 3])]
    assert "it says that it is empty, and has the sizes [1073741824, 1073741824]" in found[0]
    assert "dataset /#refs#/huge claims values of 17,592,186,044,416 bytes, more than" in found[1]


def test_no_reference_reads_another_file(tmp_path: Path) -> None:
    path, secret = write(tmp_path / "cells.mat", ARRAYS * 5, (20,)), tmp_path / "secret"
    secret.write_bytes(bytes(range(64)))
    with h5py.File(path, "r+") as file:
        group = file["#refs#"]
        outside = group.create_dataset("outside", (4, 2), "f8", external=[(str(secret), 0, 64)])
        layout = h5py.VirtualLayout((4, 2), "f8")
        layout[:] = h5py.VirtualSource(str(secret), "x", (4, 2))
        file["cells"][2], file["cells"][3] = outside.ref, group.create_virtual_dataset("virtual", layout).ref
    with open_backend(path, columns={"cells": "cells[]", "y": "y[]"}) as store:
        found = [str(each) for each in store.get_many([2, 3])]
    assert "lies in external files" in found[0]
    assert "is virtual" in found[1]


def test_a_reference_that_leads_nowhere_is_a_bad_record(tmp_path: Path) -> None:
    path = write(tmp_path / "cells.mat", ARRAYS * 5, (20,))
    with h5py.File(path, "r+") as file:
        file["cells"][2] = h5py.Reference()
        file["cells"][3] = file["y"].ref
    with open_backend(path, columns={"cells": "cells[]", "y": "y[]"}) as store:
        found = store.get_many(range(20))
    assert [at for at, each in enumerate(found) if isinstance(each, RecordError)] == [2, 3]
    assert "field 'cells': its reference leads nowhere" in str(found[2])
    assert "field 'cells': its reference leads to another kind of value" in str(found[3])
