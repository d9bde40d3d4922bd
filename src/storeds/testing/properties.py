"""Conformance with random inputs: records, positions, and sequences of writing, resuming, reading and pickling."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from storeds.backends.writer import StoreWriter
from storeds.errors import UnavailableError
from storeds.protocols import Backend, Record
from storeds.testing.kit import DTYPES, Kit, MakeUrl, array_of, assert_same, kept, reference_id

__all__ = ["PropertyTests", "contents"]

# Half of what the loaded profile of Hypothesis asks for, because each example writes stores. No deadline, because a shared
# machine may be slow. No database, so that the kit leaves no files behind.
_SETTINGS = settings(
    max_examples=min(25, settings().max_examples // 2),
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors, HealthCheck.too_slow],
)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=5,
)
_SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "bytes": st.binary(max_size=200),
    "str": _TEXT,
    "int": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(),
    "bool": st.booleans(),
    "json": _JSON,
}


@st.composite
def _arrays(draw: st.DrawFn, spec: dict[str, Any]) -> Any:
    shape = tuple(draw(st.integers(0, 3)) if size is None else size for size in spec["shape"])
    dtype = np.dtype(spec["dtype"]).newbyteorder(draw(st.sampled_from("<>")))
    return array_of(dtype.str, shape, draw(st.integers(0, 1000)))


@st.composite
def _declarations(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True), min_size=2, max_size=5, unique=True))
    array = st.fixed_dictionaries(
        {
            "kind": st.just("array"),
            "dtype": st.sampled_from(DTYPES),
            "shape": st.lists(st.none() | st.integers(0, 3), max_size=3),
        }
    )
    return {name: draw(st.sampled_from(sorted(_SCALARS)) | array) for name in names}


def _records(fields: dict[str, Any]) -> st.SearchStrategy[Record]:
    return st.fixed_dictionaries(
        {name: _SCALARS[spec] if isinstance(spec, str) else _arrays(spec) for name, spec in fields.items()}
    )


@st.composite
def contents(draw: st.DrawFn) -> tuple[dict[str, Any], list[Record]]:
    """Draw a declaration of two to five fields, and records for it."""
    fields = draw(_declarations())
    return fields, draw(st.lists(_records(fields), max_size=12))


class PropertyTests(Kit):
    """Random contents of a store, and random sequences of operations on it, compared with a list."""

    @_SETTINGS
    @given(content=contents(), commit_every=st.integers(1, 5), data=st.data())
    def test_any_records_are_read_at_any_positions(
        self, make_url: MakeUrl, content: tuple[dict[str, Any], list[Record]], commit_every: int, data: st.DataObject
    ) -> None:
        fields, records = content
        url = make_url()
        meta = self.write(url, fields, records, commit_every=commit_every)
        assert meta.id == reference_id(fields, records)
        with self.open(url) as backend:
            assert_same(backend.get_many(range(len(records))), kept(records))
            for _ in range(3 if records else 0):
                asked = data.draw(st.lists(st.integers(0, len(records) - 1), max_size=20))
                names = data.draw(st.lists(st.sampled_from(sorted(fields)), unique=True))
                expected = [{name: kept(records[at][name]) for name in names} for at in asked]
                assert_same(backend.get_many(asked, names), expected)

    def test_any_sequence_of_operations_matches_a_list(self, make_url: MakeUrl) -> None:
        # Any callable that returns a machine works, whatever the annotation says.
        run_state_machine_as_test(lambda: _StoreMachine(self, make_url()), settings=_SETTINGS)  # type: ignore[arg-type]  # Hypothesis asks for a class, and calls it


class _StoreMachine(RuleBasedStateMachine):
    """A target that is written, suspended, resumed, published, replaced, read, pickled and closed, next to a list."""

    FIELDS = {"blob": "bytes", "label": "int", "doc": "json"}
    positions = st.lists(st.integers(0, 10**6), max_size=10)

    def __init__(self, kit: Kit, url: str) -> None:
        super().__init__()
        self.kit, self.url = kit, url
        self.writer: StoreWriter | None = None
        self.pending: list[Record] = []
        self.durable = 0
        self.published: list[Record] | None = None
        self.backend: Backend | None = None
        self.shown: list[Record] = []  # the records at the time `backend` was opened

    @initialize(commit_every=st.integers(1, 4), first=st.lists(_records(FIELDS), max_size=6))
    def begin(self, commit_every: int, first: list[Record]) -> None:
        # Most sequences are short, so begin with something to read.
        self.commit_every = commit_every
        self.start()
        self.append(first)
        self.publish()
        self.reopen()

    @precondition(lambda self: self.writer is None)
    @rule()
    def start(self) -> None:
        self.writer = self._open_writer(overwrite=self.published is not None)
        self.pending, self.durable = [], 0

    @precondition(lambda self: self.writer is not None)
    @rule(batch=st.lists(_records(FIELDS), max_size=6))
    def append(self, batch: list[Record]) -> None:
        assert self.writer is not None
        assert self.writer.append(batch) == len(batch)
        self.pending += batch

    @precondition(lambda self: self.writer is not None)
    @rule()
    def flush(self) -> None:
        assert self.writer is not None
        self.writer.flush()
        self.durable = len(self.pending)

    @precondition(lambda self: self.writer is not None)
    @rule()
    def suspend_and_resume(self) -> None:
        assert self.writer is not None
        self.writer.suspend()
        self._resume()

    @precondition(lambda self: self.writer is not None and self.kit.cross_process)
    @rule(batch=st.lists(_records(FIELDS), max_size=6), flush=st.booleans())
    def kill_and_resume(self, batch: list[Record], flush: bool) -> None:
        self.suspend_and_resume()
        assert self.writer is not None
        self.writer.suspend()
        pid = os.fork()
        if pid == 0:
            self._write_and_die(batch, flush)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        self.pending += batch
        self.durable = len(self.pending) if flush else self.durable
        self._resume()

    def _write_and_die(self, batch: list[Record], flush: bool) -> None:
        try:
            writer = self._open_writer(resume=True, overwrite=self.published is not None)
            writer.append(batch)
            if flush:
                writer.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)

    def _resume(self) -> None:
        self.writer = self._open_writer(resume=True, overwrite=self.published is not None)
        assert self.durable <= self.writer.count <= len(self.pending)
        assert len(self.pending) - self.writer.count < self.commit_every
        self.durable = self.writer.count
        del self.pending[self.durable :]

    @precondition(lambda self: self.writer is not None)
    @rule()
    def abort(self) -> None:
        assert self.writer is not None
        self.writer.abort()
        self.writer = None

    @precondition(lambda self: self.writer is not None)
    @rule()
    def publish(self) -> None:
        assert self.writer is not None
        meta = self.writer.publish()
        self.writer, self.published = None, self.pending
        assert meta.id == reference_id(self.FIELDS, self.published)

    @precondition(lambda self: self.published is not None)
    @rule()
    def reopen(self) -> None:
        assert self.published is not None
        self.backend, self.shown = self.kit.open(self.url), self.published

    @precondition(lambda self: self.backend is not None)
    @rule(asked=positions)
    def read(self, asked: list[int]) -> None:
        assert self.backend is not None
        asked = [at % len(self.shown) for at in asked] if self.shown else []
        try:
            got = self.backend.get_many(asked)
        except UnavailableError:
            assert self.shown is not self.published
        else:
            assert_same(got, [self.shown[at] for at in asked])

    @precondition(lambda self: self.backend is not None)
    @rule()
    def pickle(self) -> None:
        self.backend = pickle.loads(pickle.dumps(self.backend))

    @precondition(lambda self: self.backend is not None)
    @rule()
    def close(self) -> None:
        assert self.backend is not None
        self.backend.close()
        self.backend = None

    @invariant()
    def counts_agree(self) -> None:
        if self.writer is not None:
            assert self.writer.count == len(self.pending)
        if self.backend is not None:
            assert len(self.backend) == len(self.shown)

    def _open_writer(self, **how: Any) -> StoreWriter:
        return self.kit.writer(self.url, self.FIELDS, commit_every=self.commit_every, **how)

    def teardown(self) -> None:
        with contextlib.ExitStack() as last:
            if self.backend is not None:
                last.callback(self.backend.close)
            if self.writer is not None:
                last.callback(self.writer.abort)
