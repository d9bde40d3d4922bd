"""`ReaderTests`: everything that a reader must do, checked with a store in memory."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from storeds.backends.opening import open_backend, open_writer
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Backend, Reader, ReaderSpec, Record, SampleContext
from storeds.readers.reader import read_rows
from storeds.testing.kit import frozen

__all__ = ["ReaderTests"]


class ReaderTests:
    """The conformance suite of a reader. A subclass whose name begins with ``Test`` runs it.

    Notes
    -----
    A subclass overrides two fixtures:

    ``reader``
        The reader, not yet bound.
    ``content``
        ``(fields, records)`` of a store that the reader supports, with at least one sample.

    ``refuses`` declares the fields of a store that the reader does not support, or None if it supports any store.

    `comparable` converts a sample to a form that compares equal exactly if samples are equal. The default supports
    plain values and everything that NumPy can convert to an array (tensors, Pillow images), in mappings, lists and
    tuples.
    """

    refuses: ClassVar[Mapping[str, Any] | None] = {"zzz_unrelated": "json"}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.refuses is None:
            cls.test_an_unsuitable_store_is_an_error = None  # type: ignore[assignment,method-assign]  # not collected

    @pytest.fixture
    def reader(self) -> ReaderSpec[Any]:
        """Return the reader, not yet bound. A subclass overrides this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture reader; see storeds.testing.ReaderTests")

    @pytest.fixture
    def content(self) -> tuple[Mapping[str, Any], Iterable[Record]]:
        """Return fields and records. A subclass overrides this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture content; see storeds.testing.ReaderTests")

    def comparable(self, sample: Any) -> Any:
        """Return a form of the sample that compares equal exactly if samples are equal."""
        return frozen(_plain(sample))

    @pytest.fixture
    def backend(self, content: tuple[Mapping[str, Any], Iterable[Record]]) -> Backend:
        """Return a backend with `content`."""
        fields, records = content
        url = f"memory://reader-kit-{secrets.token_hex(8)}"
        with open_writer(url, fields) as writer:
            writer.append(records)
        return open_backend(url)

    def test_binding_gives_a_reader_with_samples(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        bound = reader.bind(backend)
        assert len(bound) > 0
        assert set(bound.stored) <= set(backend.meta.fields)
        assert all(isinstance(name, str) for name in bound.fields)
        assert len(set(bound.fields)) == len(bound.fields)

    def test_binding_twice_gives_equal_readers(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        one, two = reader.bind(backend), reader.bind(backend)
        assert (len(one), one.fields, one.stored) == (len(two), two.fields, two.stored)

    def test_positions_are_in_range_and_deterministic(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        bound = reader.bind(backend)
        for index in range(len(bound)):
            positions = [int(at) for at in bound.locate(index, SampleContext(index, seed=1))]
            assert positions
            assert all(0 <= at < len(backend) for at in positions)
            assert [int(at) for at in bound.locate(index, SampleContext(index, seed=1))] == positions

    def test_locating_reads_nothing(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        bound = reader.bind(backend)
        backend.close()  # reading a closed backend raises
        bound.locate(0, SampleContext(0, seed=1))

    def test_a_sample_has_the_readers_fields(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        bound = reader.bind(backend)
        for index in range(len(bound)):
            sample = _build(bound, backend, index)
            if isinstance(sample, Mapping):
                # The dataset adds index and key.
                assert set(bound.fields) - {"index", "key"} <= set(sample) <= {*bound.fields, "index", "key"}

    def test_samples_are_deterministic(self, reader: ReaderSpec[Any], backend: Backend) -> None:
        bound = reader.bind(backend)
        for index in range(len(bound)):
            assert self.comparable(_build(bound, backend, index)) == self.comparable(_build(bound, backend, index))

    @pytest.mark.parametrize("bound_first", [False, True], ids=["unbound", "bound"])
    def test_a_pickled_reader_builds_the_same(
        self, reader: ReaderSpec[Any], backend: Backend, bound_first: bool
    ) -> None:
        bound = reader.bind(backend)
        _build(bound, backend, 0)
        twin = pickle.loads(pickle.dumps(bound if bound_first else reader))
        twin = twin if bound_first else twin.bind(backend)
        assert len(twin) == len(bound)
        for index in range(len(bound)):
            assert self.comparable(_build(twin, backend, index)) == self.comparable(_build(bound, backend, index))

    def test_an_unsuitable_store_is_an_error(self, reader: ReaderSpec[Any]) -> None:
        url = f"memory://reader-kit-{secrets.token_hex(8)}"
        with open_writer(url, self.refuses or {}):
            pass
        with pytest.raises(ConfigError):
            reader.bind(open_backend(url))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return np.asarray(value)
    return value


def _build(reader: Reader[Any], backend: Backend, index: int) -> Any:
    context = SampleContext(index, seed=1)
    records: list[Record] = []
    ((_, read),) = read_rows(reader, backend, [context], {})
    for record in read:
        if isinstance(record, RecordError):
            raise record
        records.append(record)
    return reader.build(records, context)
