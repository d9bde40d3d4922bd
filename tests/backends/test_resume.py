"""What a writer that resumes brings along and gets back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import storeds
from make_store import make_store
from storeds import errors
from storeds.backends import staging

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


@pytest.mark.parametrize("engine", ENGINES[:3])
@pytest.mark.parametrize("owner", ["__main__", "os"])
def test_a_writer_left_open_at_exit_says_nothing_and_can_be_resumed(
    make_engine_url: MakeUrl, engine: str, owner: str
) -> None:
    url = make_engine_url(engine)
    script = f"""
import {owner}, storeds
{owner}.writer = storeds.open_writer({url!r}, {FIELDS!r}, commit_every=2)
{owner}.writer.append([{{"x": n}} for n in range(5)])
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    with pytest.raises(errors.StoreNotFoundError):
        storeds.open_backend(url)
    with storeds.open_writer(url, FIELDS, resume=True) as writer:
        assert writer.count == 4
