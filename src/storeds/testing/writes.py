"""Conformance of writing: metadata, publishing, resuming and overwriting. What records a writer takes is no matter of engines."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from storeds.errors import ClosedError, ConfigError, RecordError, StoreExistsError, StoreNotFoundError, UnavailableError
from storeds.protocols import JSON, Record
from storeds.testing.kit import (
    FIELDS,
    SMALL,
    Kit,
    MakeUrl,
    assert_same,
    kept,
    make_records,
    reference_id,
    small_records,
)

__all__ = ["PublishTests", "WriteTests"]


class WriteTests(Kit):
    """Contract of `storeds.Writer.append` and `storeds.Meta`."""

    def test_append_counts_records_and_keeps_those_before_an_error(self, make_url: MakeUrl) -> None:
        def failing() -> Iterator[Record]:
            yield from small_records(3, start=10)
            raise OSError("the source broke")

        url = make_url()
        with self.writer(url, SMALL, commit_every=4) as writer:
            assert writer.append([]) == 0
            assert writer.append(iter(small_records(10))) == 10
            with pytest.raises(OSError, match="the source broke"):
                writer.append(failing())
            assert writer.count == 13
            with pytest.raises(RecordError, match="record 14 of"):
                writer.append([*small_records(1, start=13), {"blob": 1, "label": 2, "text": ""}])
            assert writer.count == 14
        with self.open(url) as backend:
            assert_same(backend.get_many(range(14)), small_records(14))

    def test_meta_describes_the_content(self, make_url: MakeUrl) -> None:
        url = make_url()
        attrs: dict[str, JSON] = {"classes": ["cat", "dög\0"], "nested": {"z": None, "a": [1.5, -0.0]}}
        meta = self.write(url, FIELDS, make_records(5), attrs=attrs)
        with self.open(url) as backend:
            assert backend.meta == meta
        assert (meta.count, meta.layout) == (5, "storeds/1")
        assert list(meta.fields) == list(FIELDS)
        assert (meta.fields["swapped"].dtype, meta.fields["swapped"].shape) == ("<i8", (3,))
        assert_same(dict(meta.attrs), attrs)
        assert len(meta.id) == 32

    def test_roles_are_kept_and_a_class_id_without_a_name_loses_nothing(self, make_url: MakeUrl) -> None:
        fields = {
            "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xywh"},
            "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels", "of": "boxes"},
        }
        records = [{"boxes": np.ones((count, 4), np.float32), "labels": np.arange(count)} for count in range(3)]
        url = make_url()
        with pytest.raises(RecordError, match="2 of .*'labels' has class id 1"), self.writer(url, fields) as writer:
            writer.append(records)
            writer.publish({"classes": ["cat"]})
        with self.writer(url, fields, resume=True) as again:
            assert again.count == 3
            meta = again.publish({"classes": ["cat", "dog"]})
        assert meta.id == reference_id(fields, records, {"classes": ["cat", "dog"]})
        with self.open(url) as backend:
            assert backend.meta == meta
            assert_same(backend.get_many(range(3)), records)
        found = meta.fields
        assert (found["boxes"].role, found["boxes"].format, found["labels"].of) == ("boxes", "xywh", "boxes")


class PublishTests(Kit):
    """Contract of `storeds.Writer` and `storeds.open_writer` for targets."""

    def test_a_store_appears_only_when_it_is_published(self, make_url: MakeUrl) -> None:
        url = make_url()
        writer = self.writer(url, SMALL, commit_every=2)
        writer.append(small_records(5))
        with pytest.raises(StoreNotFoundError):
            self.open(url)
        writer.publish()
        with pytest.raises(ClosedError):
            writer.publish()
        with pytest.raises(ClosedError):
            writer.append(small_records(1))
        writer.abort()
        with self.open(url) as backend:
            assert_same(backend.get_many(range(5)), small_records(5))

    @pytest.mark.parametrize("replaces", [False, True], ids=["new", "overwrite"])
    @pytest.mark.parametrize("fails", [False, True], ids=["abort", "exception"])
    def test_what_is_aborted_leaves_what_was_there(self, make_url: MakeUrl, replaces: bool, fails: bool) -> None:
        url = make_url()
        old = self.write(url, SMALL, small_records(3)) if replaces else None
        writer = self.writer(url, {"other": "int"}, commit_every=2 if fails else 1, overwrite=replaces)
        if fails:  # before anything is durable
            with pytest.raises(ZeroDivisionError), writer:
                writer.append([{"other": 1}])
                raise ZeroDivisionError
        else:
            writer.append([{"other": 1}])
            writer.abort()
            writer.abort()
        with pytest.raises(ClosedError):
            writer.append([{"other": 1}])
        if old is None:
            with pytest.raises(StoreNotFoundError):
                self.open(url)
            assert self.write(url, SMALL, small_records(1)).count == 1
        else:
            with self.open(url) as backend:
                assert backend.meta == old
                assert_same(backend.get_many(range(3)), small_records(3))

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ZeroDivisionError, ConfigError, RecordError])
    def test_an_exception_keeps_what_is_durable(self, make_url: MakeUrl, error: type[BaseException]) -> None:
        url = make_url()
        kept = pytest.raises(error, match=r"2 records of .* are kept, and resume=True")
        with kept as caught, self.writer(url, SMALL, commit_every=2) as writer:
            writer.append(small_records(3))
            raise error("the reason")
        assert str(caught.value).startswith("the reason")
        # Another one, before the resumed writer makes anything durable.
        with pytest.raises(error), self.writer(url, SMALL, resume=True) as writer:
            writer.append(small_records(1, start=2))
            raise error("the reason")
        with self.writer(url, SMALL, resume=True) as writer:
            assert writer.count == 2
        with self.open(url) as backend:
            assert_same(backend.get_many(range(2)), small_records(2))

    def test_an_existing_store_is_not_overwritten_by_default(self, make_url: MakeUrl) -> None:
        url = make_url()
        self.write(url, SMALL, small_records(3))
        for how in ({}, {"resume": True}):
            with pytest.raises(StoreExistsError, match="overwrite=True"):
                self.writer(url, SMALL, **how)
        with self.open(url) as backend:
            assert_same(backend.get_many(range(3)), small_records(3))

    def test_an_open_reader_never_mixes_an_old_store_with_a_new(self, make_url: MakeUrl) -> None:
        url, new = make_url(), small_records(6, start=100)
        self.write(url, SMALL, small_records(6))
        used, unused = self.open(url), self.open(url)
        assert_same(used.get_many([0, 1]), small_records(2))
        self.write(url, SMALL, new, overwrite=True)
        for reader in (used, unused):
            for _ in range(2):
                try:
                    got = reader.get_many(range(6))
                except UnavailableError as error:
                    assert "open it again" in str(error)
                else:
                    assert_same(got, small_records(6))
        with self.open(url) as backend:
            assert_same(backend.get_many(range(6)), new)
        used.close()
        unused.close()

    def test_a_suspended_writer_is_resumed_to_the_same_id(self, make_url: MakeUrl) -> None:
        url, records = make_url(), make_records(11)
        writer, resumed = self.writer(url, FIELDS, commit_every=4), 0
        writer.append(records[:9])
        writer.suspend()
        with pytest.raises(ClosedError):
            writer.append(records[9:])
        while resumed < 2:
            writer = self.writer(url, FIELDS, commit_every=3, resume=True)
            assert writer.count == 8
            resumed += 1
            if resumed < 2:
                writer.suspend()
        writer.append(records[writer.count :])
        assert writer.publish({"a": 1}).id == reference_id(FIELDS, records, {"a": 1})
        with self.open(url) as backend:
            assert_same(backend.get_many(range(11)), kept(records))

    def test_an_unfinished_store_is_resumed_with_its_fields_or_replaced(self, make_url: MakeUrl) -> None:
        url = make_url()
        with self.writer(make_url(), SMALL, resume=True) as writer:  # nothing to resume
            assert writer.count == 0
        writer = self.writer(url, SMALL, commit_every=1)
        writer.append(small_records(2))
        writer.suspend()
        for fields in ({"other": "int"}, dict(reversed(SMALL.items())), {**SMALL, "blob": "image"}):
            with pytest.raises(ConfigError, match="resumed"):
                self.writer(url, fields, resume=True)
        with pytest.raises(StoreExistsError, match="resume=True"):
            self.writer(url, SMALL)
        writer = self.writer(url, SMALL, resume=True)
        assert writer.count == 2
        writer.suspend()
        with self.writer(url, {"other": "int"}, overwrite=True) as writer:
            assert writer.count == 0
        assert writer.meta is not None
        assert writer.meta.id == reference_id({"other": "int"}, [])

    def test_a_target_has_one_writer_at_a_time(self, make_url: MakeUrl) -> None:
        url = make_url()
        with self.writer(url, SMALL, commit_every=1) as writer:
            writer.append(small_records(1))
            with pytest.raises(StoreExistsError):
                self.writer(url, SMALL)
            writer.append(small_records(1, start=1))
        with self.open(url) as backend:
            assert_same(backend.get_many([0, 1]), small_records(2))
