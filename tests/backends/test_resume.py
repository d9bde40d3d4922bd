"""What a writer that resumes brings along and gets back."""

from __future__ import annotations

import contextlib
import dis
import functools
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

import storeds
from make_store import make_store
from shares import share
from storeds import errors
from storeds.backends import handles, staging
from storeds.records.columns import read_column
from storeds.testing import assert_same, reference_id

ENGINES = ("lmdb", "hdf5", "mongodb", "memory")
FIELDS = {"x": "int"}
MakeUrl = Callable[[str], str]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_note_is_kept_with_what_was_durable_when_it_was_written(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    writer = storeds.open_writer(url, FIELDS, plan={"source": "a"}, commit_every=100)
    assert writer.note is None
    writer.append({"x": n} for n in range(3))
    writer.flush({"next": 3, "problems": [["x.jpg", "is empty"]]})
    writer.append({"x": n} for n in range(3, 5))
    writer.flush()
    writer.append([{"x": 5}])
    writer.suspend()
    resumed = storeds.open_writer(url, FIELDS, plan={"source": "a"}, resume=True)
    assert resumed.count == 5
    assert resumed.note == {"next": 3, "problems": [["x.jpg", "is empty"]]}
    resumed.flush({"next": 5})
    assert resumed.note == {"next": 5}
    resumed.publish()
    with storeds.open_backend(url) as backend:
        assert backend.get_many(range(5)) == [{"x": n} for n in range(5)]


@pytest.mark.parametrize("engine", ENGINES)
def test_another_plan_cannot_be_resumed_and_says_what_differs(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    storeds.open_writer(url, FIELDS, plan={"source": "cats", "options": {"quality": 50}}).suspend()
    with pytest.raises(errors.ConfigError, match="with other arguments: plan.options.quality was 50 and is null; use"):
        storeds.open_writer(url, FIELDS, plan={"source": "cats", "options": {}}, resume=True)
    with pytest.raises(
        errors.ConfigError, match=r'fields was .* and is .*"y".*; plan was {.*"cats".*} and is null; use'
    ):
        storeds.open_writer(url, {**FIELDS, "y": "str"}, resume=True)


def test_a_batch_saves_its_state_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[Path] = []

    def save(path: Path, data: bytes) -> None:
        saved.append(path)
        staging.replace_file(path, data)

    monkeypatch.setattr("storeds.backends.hdf5.sink.replace_file", save)
    label = {"kind": "int", "role": "label"}
    make_store({"label": label}, ({"label": n} for n in range(6)), f"hdf5://{tmp_path}/x.h5", commit_every=2)
    assert len(saved) == 1 + 3  # when it begins, and with each batch


def test_writers_left_open_at_exit_say_nothing_and_can_be_resumed(make_engine_url: MakeUrl) -> None:
    urls = [make_engine_url(engine) for engine in ENGINES[:3]]
    script = f"""
import os, storeds
writers = [storeds.open_writer(url, {FIELDS!r}, commit_every=2) for url in {urls!r}]
for writer in writers:
    writer.append([{{"x": n}} for n in range(5)])
os.writers = writers[1:]
del writers[1:], writer
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for url in urls:
        with storeds.open_writer(url, FIELDS, resume=True) as writer:
            assert writer.count == 4


SOURCE = str(Path(storeds.__file__).parent)
LABELLED = {
    "key": "str",
    "label": {"kind": "int", "role": "label"},
    "blob": "bytes",
    "box": {"kind": "array", "dtype": "float32", "shape": [4]},
}
RECORDS = [
    {"key": f"{n}" * n, "label": n % 3, "blob": bytes([n]) * n, "box": np.full(4, n, np.float32)} for n in range(8)
]
STEPS: dict[str, Callable[[Any], object]] = {
    "append": lambda writer: writer.append(iter(RECORDS[3:])),
    "append with a note": lambda writer: writer.append(RECORDS[3:], note=8),
    "flush with a note": lambda writer: writer.flush(3),
    "publish": lambda writer: writer.publish(),
    "suspend": lambda writer: writer.suspend(),
    "abort": lambda writer: writer.abort(),
}


@functools.cache
def after_calls(code: CodeType) -> frozenset[int]:
    """Return where Python handles signals in a function: at its beginning, after calls, and at jumps back."""
    found, is_after = set(), False
    for each in dis.get_instructions(code):
        if is_after or each.opname in ("RESUME", "JUMP_BACKWARD"):
            found.add(each.offset)
        is_after = each.opname.startswith("CALL")
    return frozenset(found)


def in_finalizer(frame: FrameType | None) -> bool:
    """Return whether a frame runs in a ``__del__``, where Python drops an interrupt."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def interrupt_at(number: int, work: Callable[[], object]) -> tuple[int, KeyboardInterrupt | None]:
    """Run `work`, and raise KeyboardInterrupt at the n-th bytecode of storeds; return how many ran, and the error if it came.

    A lock can be safe only where Python handles signals, so in the pool of handles, which has one, these bytecodes count.
    """
    ran = 0

    def at_opcode(frame: FrameType, event: str, __: object) -> Any:
        nonlocal ran
        is_pool = frame.f_code.co_filename == handles.__file__
        counts = event == "opcode" and (not is_pool or frame.f_lasti in after_calls(frame.f_code))
        ran += counts
        if counts and ran == number:
            raise KeyboardInterrupt
        return at_opcode

    def at_call(frame: FrameType, *_: object) -> Any:
        if not frame.f_code.co_filename.startswith((SOURCE, contextlib.__file__)) or in_finalizer(frame):
            return None
        frame.f_trace_opcodes = True
        return at_opcode

    gc.disable()  # the end of an earlier writer is no bytecode of this one
    sys.settrace(at_call)
    try:
        work()
    except KeyboardInterrupt as error:
        return ran, error
    finally:
        sys.settrace(None)
        gc.enable()
    return ran, None


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    yield
    gc.collect()  # what an interrupt left open is reported to the test that interrupted, and to no later one


def interrupted(make_url: Callable[[], str], step: str) -> Iterator[tuple[Any, KeyboardInterrupt]]:
    """Yield writers of three records, each interrupted at a bytecode of a step, and the error.

    Its traceback keeps every frame, as in a notebook.
    """

    def begin() -> Any:
        writer = storeds.open_writer(make_url(), LABELLED, commit_every=2)
        writer.append(RECORDS[:3], note=3)
        return writer

    writer = begin()
    total, _ = interrupt_at(0, lambda: STEPS[step](writer))
    writer.abort()
    for number in share(range(1, total + 1), 6):
        writer = begin()
        _, error = interrupt_at(number, lambda: STEPS[step](writer))  # noqa: B023  # called at once
        assert error is not None
        yield writer, error


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.share(12)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_at_any_bytecode_leaves_a_prefix(make_engine_url: MakeUrl, engine: str, step: str) -> None:
    for writer, _ in interrupted(functools.partial(make_engine_url, engine), step):
        try:
            writer.publish()
        except errors.ClosedError:
            try:
                again = storeds.open_writer(writer.url, LABELLED, commit_every=2, resume=True)
            except errors.StoreExistsError:
                assert step == "publish"  # it was published
            else:
                assert again.count >= 3 or (step, again.count, again.note) == ("abort", 0, None)
                assert step == "append" or again.note in (again.count, None)  # a note counts the records beside it
                again.append(RECORDS[again.count :])
                again.publish()
        with storeds.open_backend(writer.url) as backend:
            count = len(backend)
            assert 3 <= count <= 8
            assert backend.meta.id == reference_id(LABELLED, RECORDS[:count])
            assert_same(backend.get_many(range(count)), RECORDS[:count])
            for name in ("key", "label"):
                assert read_column(backend, name).tolist() == [record[name] for record in RECORDS[:count]]


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.share(4)
@pytest.mark.parametrize("kept", [0, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_of_opening_loses_nothing(make_engine_url: MakeUrl, engine: str, kept: int) -> None:
    def begin() -> str:
        url = make_engine_url(engine)
        if kept:
            writer = storeds.open_writer(url, LABELLED)
            writer.append(RECORDS[:kept])
            writer.flush(kept)
            writer.suspend()
        return url

    def open_again(url: str) -> Any:
        return storeds.open_writer(url, LABELLED, resume=True)

    open_again(begin()).abort()  # the first call of a process takes more steps, which the count must not have
    url = begin()
    total, _ = interrupt_at(0, lambda: open_again(url))
    for number in share(range(1, total - 2), 5 if engine == "mongodb" else 8):  # Python handles no signal in a return
        url = begin()
        _, error = interrupt_at(number, lambda: open_again(url))  # noqa: B023  # called at once
        assert error is not None
        again = open_again(url)
        assert (again.count, again.note) == (kept, kept or None)
        again.append(RECORDS[kept:])
        meta = again.publish()
        assert meta is not None
        assert meta.id == reference_id(LABELLED, RECORDS)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.share(8)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("engine", ENGINES)
def test_abort_deletes_what_an_interrupted_writer_has_written(make_engine_url: MakeUrl, engine: str, step: str) -> None:
    for writer, _ in interrupted(functools.partial(make_engine_url, engine), step):
        writer.abort()
        try:
            storeds.open_writer(writer.url, LABELLED).abort()
        except errors.StoreExistsError as refused:
            assert step in ("publish", "suspend")  # both mean to keep the records
            assert ("never changes" if step == "publish" else "interrupted write") in str(refused)


@pytest.mark.parametrize("engine", ENGINES)
def test_abort_leaves_what_another_writer_has_continued(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    writer = storeds.open_writer(url, LABELLED, commit_every=2)
    writer.append(RECORDS[:3])
    total, _ = interrupt_at(0, lambda: writer.flush(3))
    writer.append(RECORDS[3:5])
    interrupt_at(total // 2, lambda: writer.flush(5))

    def abort(says: str) -> None:
        refuses = pytest.raises(errors.StoreExistsError, match=says)
        with contextlib.nullcontext() if engine == "mongodb" else refuses:
            writer.abort()

    other = storeds.open_writer(url, LABELLED, commit_every=2, resume=True)
    abort("written by")
    other.append(RECORDS[other.count :])
    other.flush()
    other.suspend()
    abort("taken over")
    with storeds.open_writer(url, LABELLED, resume=True) as last:
        assert last.count == len(RECORDS)
    assert last.meta is not None
    assert last.meta.id == reference_id(LABELLED, RECORDS)
