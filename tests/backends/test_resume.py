"""What a writer that resumes brings along and gets back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import storeds
from storeds import errors

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


def test_a_convert_resumes_only_from_the_same_source(tmp_path: Path) -> None:
    for name, value in (("a", 1), ("b", 2)):
        with storeds.open_writer(f"memory://resume-{name}", FIELDS, overwrite=True) as writer:
            writer.append({"x": value} for _ in range(10))

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    target = f"lmdb://{tmp_path}/copy.lmdb"
    with pytest.raises(KeyboardInterrupt):
        storeds.convert("memory://resume-a", target, commit_every=3, progress=interrupt)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.convert("memory://resume-b", target, resume=True)
    assert storeds.convert("memory://resume-a", target, resume=True).id == storeds.info("memory://resume-a").id


def test_an_error_that_may_pass_keeps_what_is_durable(tmp_path: Path) -> None:
    with storeds.open_writer("memory://resume-c", FIELDS, overwrite=True) as writer:
        writer.append({"x": n} for n in range(10))

    def fail(_: object) -> None:
        raise OSError(28, "No space left on device")

    target = f"hdf5://{tmp_path}/copy.h5"
    with pytest.raises(OSError, match="No space left"):
        storeds.convert("memory://resume-c", target, commit_every=3, progress=fail)
    with pytest.raises(errors.StoreExistsError, match="resume=True"):
        storeds.convert("memory://resume-c", target)
    assert storeds.convert("memory://resume-c", target, resume=True).count == 10
