"""The conformance kit over views: a part of a store, of several, and several parts; and where their records lie."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

import storeds
from make_store import make_store
from storeds.backends import Index, View, select
from storeds.errors import RecordError
from storeds.protocols import Array, Backend, Meta, Place, Record
from storeds.testing import ArrayTests, MakeUrl, PickleTests, ProcessTests, ReadTests, assert_same


class ThirdParty:
    """A backend that keeps the protocol and has none of the optional parts."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def meta(self) -> Meta:
        return self._inner.meta

    def __len__(self) -> int:
        return len(self._inner)

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        return self._inner.get_many(positions, fields)

    def close(self) -> None:
        self._inner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def odd(count: int) -> Array:
    return np.arange(1, count, 2)


def with_others(records: Sequence[Record]) -> list[Record]:
    """Return the records at the odd positions, and others between them."""
    return list(itertools.chain.from_iterable(zip(reversed(records), records, strict=True)))


class TestPartOfSeveralParts(ReadTests, ArrayTests, PickleTests, ProcessTests):
    """The odd records of several stores, each of which is the odd records of a file.

    What the kit calls the URL is only a common name. A view has no writer. `test_many` runs the kit without an index.
    """

    test_a_killed_writer_changes_nothing_and_is_resumed = None  # type: ignore[assignment]  # only stores are written
    test_an_unknown_option_is_an_error = None  # type: ignore[assignment]  # a view has none

    @pytest.fixture
    def make_url(self, tmp_path: Path) -> MakeUrl:
        numbers = itertools.count()
        return lambda: f"{tmp_path}/{next(numbers)}"

    def open(self, url: str) -> Backend:
        lmdb, hdf5 = storeds.open_backend(f"lmdb://{url}.lmdb"), storeds.open_backend(f"hdf5://{url}.h5")
        stores = [lmdb, hdf5, ThirdParty(storeds.open_backend(f"lmdb://{url}.more"))]
        parts = [View([each], Index(partial(odd, len(each)), each.url, each.meta.build, "odd")) for each in stores]
        return View(parts, Index(partial(odd, sum(map(len, parts))), *(part.meta.build for part in parts), "odd"))

    def write(self, url: str, fields: Mapping[str, Any], records: Iterable[Record], **how: Any) -> Meta:
        every = list(records)
        cut = len(every) // 3
        parts: list[list[Record]] = [with_others(every[:cut]), [], with_others(every[cut:])]
        for store, part in zip((f"lmdb://{url}.lmdb", f"hdf5://{url}.h5", f"lmdb://{url}.more"), parts, strict=True):
            super().write(store, fields, with_others(part), **how)
        with self.open(url) as backend:
            return backend.meta


@pytest.fixture
def stores(tmp_path: Path) -> list[str]:
    """Ten records in two files; the sixth, in the second, is damaged."""
    urls = [f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb"]
    for first, url in zip((0, 4), urls, strict=True):
        rows = [{"key": f"k{n}", "n": n, "blob": b"%d" % n * 40} for n in range(first, first + (6 if first else 4))]
        make_store({"key": "str", "n": "int", "blob": "bytes"}, rows, url)
    data = bytearray((tmp_path / "b.lmdb").read_bytes())
    data[data.index(b"6" * 40)] ^= 1
    (tmp_path / "b.lmdb").write_bytes(data)
    return urls


def test_a_record_is_named_as_its_url_counts(stores: list[str]) -> None:
    """Through any nesting of views, and after pickling, an error has the position among all that its URL names."""
    whole = storeds.open_backend(stores)
    part = select(whole, {"n": [1, 3, 5, 6, 9]})
    part_of_part = select(part, {"n": [3, 6, 9]})
    second = select(storeds.open_backend(stores[1]), {"n": [5, 6, 9]})
    several = View([select(storeds.open_backend(stores[0]), {"n": [2]}), second])
    cases: list[tuple[Any, int, str, int, bool]] = [
        (whole, 6, whole.url, 6, True),
        (part, 3, whole.url, 6, True),
        (part_of_part, 1, whole.url, 6, True),
        (second, 1, stores[1], 2, False),
        (several, 2, several.url, 2, True),
        (select(several, {"n": [2, 6]}), 1, several.url, 2, True),
    ]
    for view, position, url, counted, names_store in cases:
        for each in (view, pickle.loads(pickle.dumps(view))):
            (found,) = each.get_many([position])
            assert isinstance(found, RecordError)
            assert (found.url, found.position) == (url, counted)
            assert (f"(record 2 of {stores[1]})" in str(found)) == names_store
            assert each.place(position) == Place(stores[1], 2)
            with pytest.raises(RecordError, match=f"^record {counted} "):
                each.get_arrays([position], ["n"])


def test_an_id_is_that_of_the_store_and_the_selection() -> None:
    one, two = (storeds.open_backend(make_store({"n": "int"}, ({"n": at} for at in range(4)))) for _ in range(2))
    first, same, other = (
        select(store, {"n": numbers}) for store, numbers in ((one, [1, 2]), (two, [2, 1]), (one, [1, 3]))
    )
    assert first.meta.id == same.meta.id
    assert len({first.meta.id, other.meta.id, one.meta.id}) == 3
    assert View([first]).meta.id != View([other]).meta.id


def test_selections_of_one_store_do_not_share_what_is_kept(stores: list[str]) -> None:
    """Other records of the same store have another build, by which positions are kept."""
    store = storeds.open_backend(stores[0])
    first, second = (View([select(store, {"n": numbers})]) for numbers in ([0, 1], [2, 3]))
    assert first.url == second.url
    assert [row["n"] for view in (first, second) for row in select(view, {"n": [1, 2]}).get_many([0])] == [1, 2]  # type: ignore[index]


def test_what_a_view_says_of_itself(stores: list[str], tmp_path: Path) -> None:
    with storeds.open_backend(stores) as whole:
        assert isinstance(whole, View)
        said = whole.describe()
        assert said.bytes == sum((tmp_path / f"{name}.lmdb").stat().st_size for name in "ab")
        assert said.settings == {"members": 2}
        part = select(storeds.open_backend(stores[0]), {"n": [1]})
        assert isinstance(part, View)
        assert part.describe() == storeds.open_backend(stores[0]).describe()  # type: ignore[attr-defined]
        assert View([whole, ThirdParty(part)]).describe().bytes is None
        assert_same(part.get_many([0], ["n"]), [{"n": 1}])
