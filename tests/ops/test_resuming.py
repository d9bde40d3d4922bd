"""An operation that ends early resumes to the same store and report, and only with the same source and options."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pytest

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from _packing import interrupt
from _source_files import yolo
from _writing import fork, wait_for
from make_store import make_store
from mask_files import write
from photographs import jpeg
from storeds import errors
from storeds.ops import Progress

MakeUrl = Callable[[str], str]
READABLE = {key: picture for key, picture in PICTURES.items() if picture.is_readable}
FILES: dict[str, bytes | int | str] = {
    **{f"{'cat' if n % 2 else 'dog'}/{n:02}.jpg": jpeg(n, (448, 240), quality=88) for n in range(12)},
    **{f"cat/{key}.jpg": picture.blob for key, picture in READABLE.items()},
    **{f"dog/{n:02}.jpg": n for n in range(12, 30)},
    "cat/markers.jpg": jpeg(3, (448, 240), restart_marker_blocks=4),
}
BAD: dict[str, bytes | int | str] = {
    "cat/empty.jpg": b"",
    "dog/cut.jpg": jpeg(1)[:60],
    "dog/page.jpg": "<html>404</html>",
}
REPORTED = ("id", "count", "attrs", "fast_crops", "findings", "restarts", "kinds", "beyond", "left_out", "reasons")


class Run(NamedTuple):
    """An operation on a folder or on a store, and options with which it does not resume, with the reason."""

    operation: Callable[..., Any]
    is_of_folder: bool = False
    options: dict[str, Any] = {}
    others: dict[str, Any] = {}
    reason: str = "cannot be resumed"


SPLIT = {"split": {"a": 0.5, "b": 0.5}}
MARKED = {"fast_crops": True}
NOT_MARKED: Any = ({"fast_crops": False}, "fast_crops was true and is false")
RUNS = {
    "pack": Run(storeds.pack, others={"check": False}, reason="check was true and is false"),
    "pack, skipping": Run(storeds.pack, True, {"on_bad": "skip"}, {"on_bad": "keep"}),
    "pack, keeping": Run(storeds.pack, True, {"on_bad": "keep"}, {"quality": 50}),
    "pack in splits": Run(storeds.pack, True, {"on_bad": "skip", **SPLIT}, {"split_by": "key"}),
    "pack for fast crops": Run(storeds.pack, True, {"on_bad": "skip", **MARKED}, *NOT_MARKED),
    "convert": Run(storeds.convert, others={"check": False}),
    "convert for fast crops": Run(storeds.convert, False, MARKED, *NOT_MARKED),
    "repair": Run(storeds.repair),
}
ENDS = {"Ctrl-C": KeyboardInterrupt(), "full disk": OSError(28, "No space left on device"), "kill": None}
ENGINES = ("lmdb", "hdf5", "mongodb")
PAIRS = [(ENGINES[at % 3], name, [*ENDS][(at + at // 3) % 3]) for at, name in enumerate(RUNS)]
"""Each run once; each engine with each end."""


def end_early(work: Callable[[Callable[[Progress], None]], object], error: BaseException | None) -> None:
    """Run `work` until it has done more than 20 items, and end it with an error, or kill its process."""

    def stop(state: Progress) -> None:
        if state.done > 20:
            if error is None:
                os.kill(os.getpid(), signal.SIGKILL)
            else:
                raise error

    if error is None:
        assert wait_for(fork(lambda: work(stop))) == -signal.SIGKILL
    else:
        with pytest.raises(type(error)):
            work(stop)


def many(url: str, copies: int = 6) -> str:
    """Write a store of whole and damaged pictures."""
    write_damaged(url, {f"{key} {n}": picture for n in range(copies) for key, picture in READABLE.items()})
    return url


@pytest.mark.parametrize(("engine", "name", "end"), PAIRS)
def test_a_run_that_ends_early_resumes_to_the_same_store_and_report(
    engine: str, name: str, end: str, make_engine_url: MakeUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storeds.ops.copy._BATCH", 10)
    monkeypatch.setattr("storeds.ops.packing._CHUNK_ITEMS", 10)
    operation, is_of_folder, options, others, reason = RUNS[name]
    tree = write(tmp_path / "tree", {**FILES, **BAD})
    source, url = tree if is_of_folder else many(make_engine_url("memory")), make_engine_url(engine)
    whole, seen = operation(source, make_engine_url(engine), **options), list[Progress]()
    end_early(lambda stop: operation(source, url, commit_every=4, progress=stop, **options), ENDS[end])
    with pytest.raises(errors.StoreExistsError, match="resume=True"):
        operation(source, url, **options)
    if others:
        with pytest.raises(errors.ConfigError, match=reason):
            operation(source, url, resume=True, **{**options, **others})
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        write(tree, {"cat/new.jpg": 9})
        operation(source if is_of_folder else many(make_engine_url("memory"), 7), url, resume=True, **options)
    (tree / "cat/new.jpg").unlink()
    resumed = operation(source, url, resume=True, progress=seen.append, **options)
    assert seen[0].done > 20  # it goes on, and does not begin again
    assert reported(resumed) == reported(whole)


def reported(result: Any) -> dict[str, Any]:
    return {field: getattr(result, field, None) for field in REPORTED}


def test_a_resumed_run_that_raises_lists_every_bad_item(tmp_path: Path) -> None:
    tree, url = write(tmp_path / "tree", {**FILES, **BAD}), f"lmdb://{tmp_path}/cut.lmdb"
    with pytest.raises(KeyboardInterrupt):
        storeds.pack(tree, url, commit_every=2, progress=interrupt)
    with pytest.raises(errors.RecordError, match=f"{len(BAD)} of {len(FILES) + len(BAD)} items"):
        storeds.pack(tree, url, commit_every=2, resume=True)


@pytest.mark.parametrize(("engine", "options"), [("lmdb", {}), ("hdf5", MARKED), ("mongodb", SPLIT)])
def test_a_pack_that_refused_bad_items_goes_on_without_them(
    engine: str, options: dict[str, Any], make_engine_url: MakeUrl, tmp_path: Path
) -> None:
    tree, url = write(tmp_path / "tree", {**FILES, **BAD}), make_engine_url(engine)
    for resume in (False, True):  # the second time remembers the items of the first
        with pytest.raises(errors.RecordError, match=r"--on-bad skip") as raised:
            storeds.pack(tree, url, commit_every=4, resume=resume, **options)
        said = str(raised.value)
        assert all(key in said for key in BAD)
        kept = re.search(r"(\d+) records of .* are kept, and resume=True \(--resume\) continues there", said)
        assert int(kept[1] if kept else 0) > len(FILES) - 4
    with pytest.raises(errors.ConfigError, match="keep_bad was false and is true"):
        storeds.pack(tree, url, resume=True, on_bad="keep", **options)
    resumed = storeds.pack(tree, url, resume=True, on_bad="skip", **options)
    whole = storeds.pack(tree, make_engine_url("memory"), on_bad="skip", **options)
    assert reported(resumed) == reported(whole)


def spoil(url: str, positions: list[int]) -> None:
    """Change a byte of these records of an LMDB store."""
    with lmdb.open(url.removeprefix("lmdb://"), subdir=False, lock=False, max_dbs=3) as env:
        records = env.open_db(b"records", create=False)
        with env.begin(write=True, db=records) as txn:
            for position in positions:
                value = bytearray(txn.get(position.to_bytes(8, "big")) or b"")
                value[20] ^= 1
                txn.put(position.to_bytes(8, "big"), bytes(value))


@pytest.mark.parametrize(("operation", "engine"), [(storeds.convert, "lmdb"), (storeds.repair, "mongodb")])
def test_a_copy_of_a_store_with_bad_records_stops_and_goes_on_without_them(
    engine: str,
    operation: Callable[..., Any],
    make_engine_url: MakeUrl,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("storeds.ops.copy._BATCH", 10)
    source, url = many(make_engine_url("lmdb")), make_engine_url(engine)
    count = storeds.info(source).count
    bad = [0, 31, count - 1]
    spoil(source, bad)
    whole = operation(source, make_engine_url("memory"), on_bad="skip")
    assert (whole.count, whole.left_out) == (count - 3, 3)
    with pytest.raises(errors.RecordError, match="record 0 .*on_bad='skip'") as raised:
        operation(source, url, commit_every=4)
    assert (raised.value.position, "are kept" in str(raised.value)) == (0, False)
    end_early(lambda stop: operation(source, url, commit_every=4, on_bad="skip", progress=stop), KeyboardInterrupt())
    with pytest.raises(errors.RecordError, match=r"record 31 (.*\n)+2\d records of .* are kept, and resume=True"):
        operation(source, url, commit_every=4, resume=True)
    caplog.clear()
    resumed = operation(source, url, resume=True, on_bad="skip")
    assert len([line for line in caplog.messages if line.startswith("left out: record")]) == 2
    assert reported(resumed) == reported(whole)
    with pytest.raises(errors.ConfigError, match="on_bad"):
        operation(source, url, on_bad="keep")


@pytest.mark.parametrize("changed", ["labels/train/a.txt", "images/train/a.jpg", "data.yaml"])
def test_a_changed_file_of_several_is_noticed(changed: str, tmp_path: Path) -> None:
    files = yolo({"train/a": "0 0.5 0.50 0.25 0.125\n", "train/b": "", "train/c": None})
    root, url = write(tmp_path / "set", files), f"lmdb://{tmp_path}/a.lmdb"
    with pytest.raises(KeyboardInterrupt):
        storeds.pack(root, url, commit_every=1, progress=interrupt)
    before, times = (root / changed).read_bytes(), os.stat(root / changed)
    (root / changed).write_bytes(before.replace(b"cat", b"dogs") if changed == "data.yaml" else before + b"\n")
    with pytest.raises(errors.ConfigError, match=r"plan\.source\.(xxh3|fields) was"):
        storeds.pack(root, url, commit_every=1, resume=True)
    (root / changed).write_bytes(before)
    os.utime(root / changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert storeds.pack(root, url, commit_every=1, resume=True).id == storeds.pack(root, f"hdf5://{tmp_path}/b.h5").id


@pytest.mark.parametrize(
    ("condition", "other", "joined"),
    [
        ({"where": {"label": 1}}, {"where": {"label": 0}}, False),
        ({"fold": {"of": 2, "take": 1}}, {"fold": {"of": 2, "take": 0}}, True),
    ],
    ids=["where", "fold, joined"],
)
def test_other_records_of_the_same_store_are_another_source(
    condition: dict[str, Any], other: dict[str, Any], joined: bool, tmp_path: Path
) -> None:
    url, rows = f"lmdb://{tmp_path}/all.lmdb", [{"label": at % 2, "key": f"k{at}"} for at in range(120)]
    make_store({"label": "int", "key": "str"}, rows, url)
    parts = [storeds.StoreDataset(url, reader="array", fields=["label"], **chosen) for chosen in (condition, other)]
    first, second = (part + part if joined else part for part in parts)
    target = f"lmdb://{tmp_path}/part.lmdb"
    with pytest.raises(KeyboardInterrupt):
        storeds.pack(first, target, commit_every=2, progress=interrupt)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.pack(second, target, commit_every=2, resume=True)
    assert storeds.pack(first, target, commit_every=2, resume=True).count == (120 if joined else 60)
