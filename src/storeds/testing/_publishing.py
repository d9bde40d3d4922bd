"""Conformance of a writer's life: what becomes visible when, and what an interrupted writer leaves."""

from __future__ import annotations

import pytest

from storeds.errors import ClosedError, ConfigError, StoreExistsError, StoreNotFoundError, UnavailableError
from storeds.testing._kit import Kit, MakeUrl, assert_same, reference_id
from storeds.testing._values import FIELDS, SMALL, kept, make_records, small_records

__all__ = ["PublishTests"]


class PublishTests(Kit):
    """What `storeds.Writer` and `storeds.open_writer` promise about targets."""

    def test_a_store_appears_only_when_it_is_published(self, make_url: MakeUrl) -> None:
        url = make_url()
        writer = self.writer(url, SMALL, commit_every=2)
        writer.append(small_records(5))
        with pytest.raises(StoreNotFoundError):
            self.open(url)
        writer.publish()
        with self.open(url) as backend:
            assert_same(backend.get_many(range(5)), small_records(5))

    def test_a_writer_is_finished_once(self, make_url: MakeUrl) -> None:
        writer = self.writer(make_url(), SMALL)
        writer.publish()
        with pytest.raises(ClosedError):
            writer.publish()
        with pytest.raises(ClosedError):
            writer.append(small_records(1))
        writer.abort()

    def test_an_aborted_writer_leaves_nothing(self, make_url: MakeUrl) -> None:
        url = make_url()
        writer = self.writer(url, SMALL, commit_every=1)
        writer.append(small_records(3))
        writer.abort()
        writer.abort()
        with pytest.raises(ClosedError):
            writer.append(small_records(1))
        with pytest.raises(StoreNotFoundError):
            self.open(url)
        assert self.write(url, SMALL, small_records(1)).count == 1

    def test_an_exception_aborts(self, make_url: MakeUrl) -> None:
        url = make_url()
        with pytest.raises(ZeroDivisionError), self.writer(url, SMALL, commit_every=1) as writer:
            writer.append(small_records(3))
            raise ZeroDivisionError
        with pytest.raises(StoreNotFoundError):
            self.open(url)
        assert self.write(url, SMALL, small_records(1)).count == 1

    def test_an_interrupt_keeps_what_is_durable(self, make_url: MakeUrl) -> None:
        url = make_url()
        with pytest.raises(KeyboardInterrupt), self.writer(url, SMALL, commit_every=2) as writer:
            writer.append(small_records(3))
            raise KeyboardInterrupt
        with self.writer(url, SMALL, resume=True) as writer:
            assert writer.count == 2

    def test_an_existing_store_is_in_the_way(self, make_url: MakeUrl) -> None:
        url = make_url()
        self.write(url, SMALL, small_records(3))
        for how in ({}, {"resume": True}):
            with pytest.raises(StoreExistsError, match="overwrite=True"):
                self.writer(url, SMALL, **how)
        with self.open(url) as backend:
            assert_same(backend.get_many(range(3)), small_records(3))

    def test_a_failed_overwrite_leaves_the_old_store(self, make_url: MakeUrl) -> None:
        url = make_url()
        old = self.write(url, SMALL, small_records(3))
        with pytest.raises(ZeroDivisionError), self.writer(url, {"other": "int"}, overwrite=True) as writer:
            writer.append([{"other": 1}])
            raise ZeroDivisionError
        with self.open(url) as backend:
            assert backend.meta == old
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

    def test_resuming_with_other_fields_is_an_error(self, make_url: MakeUrl) -> None:
        url = make_url()
        writer = self.writer(url, SMALL, commit_every=1)
        writer.append(small_records(2))
        writer.suspend()
        for fields in ({"other": "int"}, dict(reversed(SMALL.items())), {**SMALL, "blob": "image"}):
            with pytest.raises(ConfigError, match="resumed"):
                self.writer(url, fields, resume=True)
        with self.writer(url, SMALL, resume=True) as writer:
            assert writer.count == 2

    def test_resuming_nothing_starts_anew(self, make_url: MakeUrl) -> None:
        with self.writer(make_url(), SMALL, resume=True) as writer:
            assert writer.count == 0

    def test_leftovers_are_in_the_way(self, make_url: MakeUrl) -> None:
        url = make_url()
        writer = self.writer(url, SMALL, commit_every=1)
        writer.append(small_records(2))
        writer.suspend()
        with pytest.raises(StoreExistsError, match="resume=True"):
            self.writer(url, SMALL)
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
