"""Conformance of reading many records as arrays: by `SupportsBatchArrays` where a backend has it, and without."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from storeds._batch_arrays import read_arrays, stack_records
from storeds.errors import ClosedError, ConfigError
from storeds.protocols import Array, Record
from storeds.testing._kit import Kit, MakeUrl, Written, assert_same
from storeds.testing._values import make_records

__all__ = ["ArrayTests"]

_DTYPES = {"number": np.dtype("i8"), "real": np.dtype("f8"), "flag": np.dtype("?")}
_FIXED = ("number", "real", "flag", "point", "box", "mask", "hollow", "wave", "swapped")
_BATCHES: list[list[int]] = [[7, 0, 23, 7, 7, 1, 0, 22], [], [5], list(range(23, -1, -1)) * 3]
_NUMBERS: dict[str, Any] = {
    "vector": {"kind": "array", "dtype": ">f4", "shape": [5]},
    "number": "int",
    "flag": "bool",
    "real": "float",
    "empty": {"kind": "array", "dtype": "int32", "shape": [2, 0]},
}
"""Records of nothing but fixed size."""


class ArrayTests(Kit):
    """What `storeds.protocols.SupportsBatchArrays` promises, asked of every backend through the default for those without."""

    @pytest.mark.parametrize("read", [read_arrays, stack_records])
    def test_arrays_equal_the_records(self, written: Written, read: Any) -> None:
        with self.open(written.url) as backend:
            for asked in _BATCHES:
                found = read(backend, asked)
                assert sorted(found) == sorted(_FIXED)
                for name in _FIXED:
                    expected = _oracle(written.records, asked, name)
                    assert_same(found[name], expected)
                    assert_same(read(backend, np.array(asked, np.int32), [name]), {name: expected})

    def test_arrays_of_records_of_fixed_size_alone(self, make_url: MakeUrl) -> None:
        url, records = make_url(), make_records(24, _NUMBERS)
        self.write(url, _NUMBERS, records)
        with self.open(url) as backend:
            for asked in _BATCHES:
                for names in (["vector"], ["real", "number"], ["flag", "empty", "vector"], list(_NUMBERS)):
                    found = read_arrays(backend, asked, names)
                    assert list(found) == names
                    for name in names:
                        assert_same(found[name], _oracle(records, asked, name))
                        assert found[name].dtype.isnative

    def test_arrays_own_their_memory(self, written: Written) -> None:
        with self.open(written.url) as backend:
            asked = list(range(20))
            found = read_arrays(backend, asked)
            for name, array in found.items():
                assert array.flags.writeable
                array[...] = 1
                for other in found:
                    assert other == name or not np.shares_memory(array, found[other])
            for name, array in read_arrays(backend, asked).items():
                assert_same(array, _oracle(written.records, asked, name))
                found[name] = array
        for name, array in found.items():  # the store is closed
            assert_same(array, _oracle(written.records, asked, name))

    def test_a_field_asked_for_twice_is_one_array(self, written: Written) -> None:
        with self.open(written.url) as backend:
            assert list(read_arrays(backend, [1, 2], ["flag", "box", "flag"])) == ["flag", "box"]
            assert read_arrays(backend, [1, 2], []) == {}

    @pytest.mark.parametrize("position", [-1, 24, 2**63 - 1, 2**70])
    def test_arrays_of_positions_outside_are_index_errors(self, written: Written, position: int) -> None:
        with self.open(written.url) as backend:
            for asked in ([position], [0, position, 1, 2, 3, 4]):
                with pytest.raises(IndexError):
                    read_arrays(backend, asked, ["number"])

    @pytest.mark.parametrize("name", ["image", "raw", "text", "doc", "half", "pixels", "nubmer"])
    def test_what_makes_no_array_is_refused_by_name(self, written: Written, name: str) -> None:
        with self.open(written.url) as backend:
            for asked in ([], [0, 1]):
                with pytest.raises(ConfigError, match=f"'{name}'.*number"):
                    read_arrays(backend, asked, ["flag", name])

    def test_threads_read_the_same_arrays(self, written: Written) -> None:
        def reads(seed: int) -> None:
            draw = np.random.default_rng(seed)
            for _ in range(15):
                asked = draw.integers(0, 24, draw.integers(0, 40)).tolist()
                for name, array in read_arrays(backend, asked, ["box", "number"]).items():
                    assert_same(array, _oracle(written.records, asked, name))

        with self.open(written.url) as backend, ThreadPoolExecutor(8) as threads:
            list(threads.map(reads, range(8)))

    def test_a_closed_backend_gives_no_arrays(self, written: Written) -> None:
        backend = self.open(written.url)
        read_arrays(backend, range(24), ["number"])
        backend.close()
        with pytest.raises(ClosedError):
            read_arrays(backend, range(24), ["number"])


def _oracle(records: list[Record], asked: list[int], name: str) -> Array:
    """Return what a list of records says, stacked in the dtype that is promised."""
    first = records[0][name]
    dtype = _DTYPES.get(name) or first.dtype.newbyteorder("=")
    values = [np.asarray(records[at][name], dtype) for at in asked]
    return np.stack(values) if values else np.empty((0, *np.shape(first)), dtype)
