"""Conformance of reading: positions, projection, columns, arrays, memory, selection, threads, closing."""

from __future__ import annotations

import gc
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from storeds.backends.opening import open_backend
from storeds.errors import ClosedError, ConfigError, StoreNotFoundError
from storeds.protocols import Array, Backend, Record, SupportsColumns, SupportsWhere
from storeds.records.arrays import read_arrays, stack_records
from storeds.testing.kit import DTYPES, Kit, MakeUrl, Written, array_of, assert_same, kept, make_records

__all__ = ["ArrayTests", "ReadTests"]

_ASKED: list[Any] = [
    *([], (), range(0), np.empty(0, np.int64)),
    *([7, 0, 23, 7, 7, 1, 0, 22], (3, 1, 3), range(3, 0, -1), range(24)),
    *(np.array([3, 1, 3]), np.array([3, 1, 3], np.uint8), [np.int32(3), np.int64(1), 3]),
]
_OUTSIDE = [-1, 24, 2**31, 2**63 - 1, -(2**63), 2**64 - 1, 2**70]
_COLUMNS: dict[str, Any] = {"number": np.int64, "real": np.float64, "flag": np.bool_}
_FIXED = ("point", "box", "mask", "hollow", "wave", "swapped")
_VARIABLE = ("image", "raw", "doc", "half", "pixels")


class ReadTests(Kit):
    """Contract of `storeds.Backend` for reading."""

    def test_every_kind_round_trips_bit_for_bit(self, written: Written) -> None:
        with self.open(written.url) as backend:
            assert isinstance(backend, Backend)
            assert len(backend) == len(written.records)
            assert_same(backend.get_many(range(len(backend))), written.records)
            assert backend.url in repr(backend)

    def test_every_dtype_round_trips_in_either_byte_order(self, make_url: MakeUrl) -> None:
        fields = {
            f"{shape}_{dtype.strip('?') or 'b1'}": {"kind": "array", "dtype": dtype, "shape": size}
            for dtype in DTYPES
            for shape, size in (("fixed", [2, 2]), ("free", [None]))
        }
        records: list[dict[str, Any]] = [{}, {}]
        for at, order in enumerate("<>"):
            for name, spec in fields.items():
                shape = (2, 2) if name.startswith("fixed") else (3,)
                records[at][name] = array_of(f"{order}{spec['dtype']}", shape, at)
        url = make_url()
        self.write(url, fields, records)
        with self.open(url) as backend:
            assert_same(backend.get_many([0, 1]), kept(records))

    def test_records_have_the_order_of_their_positions(self, written: Written) -> None:
        with self.open(written.url) as backend:
            for asked in _ASKED:
                assert_same(backend.get_many(asked), [written.records[int(at)] for at in asked])

    def test_positions_outside_or_of_other_types_are_errors(self, written: Written) -> None:
        with self.open(written.url) as backend:
            for position in _OUTSIDE:
                for asked in ([position], [0, position, 1]):
                    with pytest.raises(IndexError, match=str(position)):
                        backend.get_many(asked)
            for wrong in ([1.0], ["1"], [None], [True], [[0]], 3, None, "1"):
                with pytest.raises(TypeError):
                    backend.get_many(wrong)  # type: ignore[arg-type]  # the wrong type is the point

    def test_results_own_their_memory(self, written: Written) -> None:
        with self.open(written.url) as backend:
            one, two = backend.get_many([11, 11])
            assert isinstance(one, dict)
            for value in one.values():
                if isinstance(value, np.ndarray):
                    assert value.flags.writeable
                    value.view()[...] = 1
            one["doc"].clear()
            one["extra"] = 1
            assert_same(two, written.records[11])
            assert_same(backend.get_many([11]), [written.records[11]])
        gc.collect()
        assert_same(two, written.records[11])

    def test_fields_select(self, written: Written) -> None:
        names = tuple(written.meta.fields)
        with self.open(written.url) as backend:
            chosen = [("flag", "number"), ("image", "text"), names[::-1], (), ("flag", "box", "flag")]
            for wanted in [(name,) for name in names] + chosen:
                expected = [{name: written.records[at][name] for name in wanted} for at in (4, 2, 4)]
                assert_same(backend.get_many([4, 2, 4], wanted), expected)

    def test_an_unknown_field_is_an_error_that_names_the_nearest(self, written: Written) -> None:
        with self.open(written.url) as backend:
            for asked in ([0], list[int]()):
                with pytest.raises(ConfigError, match="'imgae'.*'image'"):
                    backend.get_many(asked, ["imgae"])

    def test_columns_equal_the_records(self, written: Written) -> None:
        with self.open(written.url) as backend:
            if not isinstance(backend, SupportsColumns):
                return
            expected: dict[str, Array] = {
                name: np.array([r[name] for r in written.records], dtype) for name, dtype in _COLUMNS.items()
            }
            expected |= {name: np.stack([r[name] for r in written.records]) for name in _FIXED}
            for name, values in expected.items():
                assert_same(backend.column(name), values)
                backend.column(name)[...] = 0  # it owns its memory
                assert_same(backend.column(name), values)
            text = backend.column("text")
            assert isinstance(text.dtype, np.dtypes.StringDType)
            assert text.tolist() == [r["text"] for r in written.records]
            for name in _VARIABLE:
                with pytest.raises(ConfigError, match=f"'{name}'"):
                    backend.column(name)
            with pytest.raises(ConfigError, match="'nubmer'.*'number'"):
                backend.column("nubmer")

    def test_selecting_equals_a_filter_in_python(self, written: Written) -> None:
        with self.open(written.url) as backend:
            if not isinstance(backend, SupportsWhere):
                return
            wheres: list[dict[str, Any]] = [
                {},
                {"flag": True},
                {"number": 2**53 + 1},
                {"text": ["trailing\0", "plain", "nowhere"]},
                {"number": [0, 1], "flag": True},
                {"real": [0.1, 3.0]},
                {"text": []},
            ]
            for where in wheres:
                accepted = {name: value if isinstance(value, list) else [value] for name, value in where.items()}
                expected = [
                    at for at, record in enumerate(written.records) if all(record[n] in accepted[n] for n in accepted)
                ]
                assert_same(backend.select(where), np.array(expected, np.int64))
            for bad in ({"nubmer": 1}, {"number": "1"}, {"image": b""}, {"flag": 1}):
                with pytest.raises(ConfigError, match="where"):
                    backend.select(bad)

    def test_threads_read_the_same_records(self, written: Written) -> None:
        def reads(seed: int) -> None:
            draw = random.Random(seed)  # noqa: S311  # which batches, not secrets
            for _ in range(15):
                asked = draw.choices(range(24), k=draw.randrange(8))
                assert_same(backend.get_many(asked), [written.records[at] for at in asked])
                assert_same(read_arrays(backend, asked, ["box"])["box"], _oracle(written.records, asked, "box"))

        with self.open(written.url) as backend, ThreadPoolExecutor(8) as threads:
            list(threads.map(reads, range(8)))

    def test_a_closed_backend_raises_and_leaves_others_open(self, written: Written) -> None:
        backend, other = self.open(written.url), self.open(written.url)
        other.get_many([0])
        with backend as entered:
            assert entered is backend
            backend.get_many([0])
        backend.close()
        with pytest.raises(ClosedError):
            backend.get_many([0])
        assert len(backend) == 24
        assert_same(other.get_many([3]), [written.records[3]])
        other.close()
        with self.open(written.url) as again:
            assert_same(again.get_many([0]), [written.records[0]])

    def test_handles_are_released(self, written: Written) -> None:
        with self.open(written.url) as backend:
            backend.get_many([0])
        before = _open_files()
        backends = [self.open(written.url) for _ in range(4)]
        for backend in backends:
            backend.get_many([1, 2])
        backends.pop().close()
        del backends, backend
        gc.collect()
        # The threads of a client may take a moment to close their sockets.
        deadline = time.monotonic() + 10
        while _open_files() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _open_files() <= before

    def test_an_empty_store_is_a_store(self, make_url: MakeUrl) -> None:
        url = make_url()
        assert self.write(url, {"image": "image", "label": "int", "text": "str"}, []).count == 0
        with self.open(url) as backend:
            assert len(backend) == 0
            assert backend.get_many([]) == []
            with pytest.raises(IndexError):
                backend.get_many([0])
            if isinstance(backend, SupportsColumns):
                assert_same(backend.column("label"), np.empty(0, np.int64))
                assert backend.column("text").shape == (0,)

    def test_a_missing_store_is_not_found(self, make_url: MakeUrl) -> None:
        with pytest.raises(StoreNotFoundError):
            self.open(make_url())

    def test_an_unknown_option_is_an_error(self, make_url: MakeUrl) -> None:
        url = make_url()
        self.write(url, {"a": "int"}, make_records(1, {"a": "int"}))
        with pytest.raises(ConfigError, match="no_such_option"):
            open_backend(url, no_such_option=1, **self.options)


def _open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


_DTYPES = {"number": np.dtype("i8"), "real": np.dtype("f8"), "image_recovered": np.dtype("f8"), "flag": np.dtype("?")}
_BATCHES: list[list[int]] = [[7, 0, 23, 7, 7, 1, 0, 22], [], [5], list(range(23, -1, -1)) * 3]
_NUMBERS: dict[str, Any] = {
    "vector": {"kind": "array", "dtype": ">f4", "shape": [5]},
    "number": "int",
    "flag": "bool",
    "real": "float",
    "empty": {"kind": "array", "dtype": "int32", "shape": [2, 0]},
}
"""Fields of fixed size only."""


class ArrayTests(Kit):
    """Contract of `SupportsBatchArrays`, checked for every backend, with the default if it lacks the capability."""

    @pytest.mark.parametrize("read", [read_arrays, stack_records])
    def test_arrays_equal_the_records(self, written: Written, read: Any) -> None:
        names = sorted((*_DTYPES, *_FIXED))
        with self.open(written.url) as backend:
            for asked in _BATCHES:
                found = read(backend, asked)
                assert sorted(found) == names
                for name in names:
                    expected = _oracle(written.records, asked, name)
                    assert_same(found[name], expected)
                    assert_same(read(backend, np.array(asked, np.int32), [name]), {name: expected})
            assert list(read(backend, [1, 2], ["flag", "box", "flag"])) == ["flag", "box"]
            assert read(backend, [1, 2], []) == {}

    def test_arrays_of_fixed_size_records(self, make_url: MakeUrl) -> None:
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
            found = read_arrays(backend, asked)
        for name, array in found.items():  # the store is closed
            assert_same(array, _oracle(written.records, asked, name))
        with pytest.raises(ClosedError):
            read_arrays(backend, range(24), ["number"])

    def test_positions_and_fields_without_arrays_are_errors(self, written: Written) -> None:
        with self.open(written.url) as backend:
            for position in _OUTSIDE:
                for asked in ([position], [0, position, 1, 2, 3, 4]):
                    with pytest.raises(IndexError):
                        read_arrays(backend, asked, ["number"])
            for name in (*_VARIABLE, "text", "nubmer"):
                for asked in ([], [0, 1]):
                    with pytest.raises(ConfigError, match=f"'{name}'.*number"):
                        read_arrays(backend, asked, ["flag", name])


def _oracle(records: list[Record], asked: list[int], name: str) -> Array:
    """Return the values of a list of records, stacked in the expected dtype."""
    first = records[0][name]
    dtype = _DTYPES.get(name) or first.dtype.newbyteorder("=")
    values = [np.asarray(records[at][name], dtype) for at in asked]
    return np.stack(values) if values else np.empty((0, *np.shape(first)), dtype)
