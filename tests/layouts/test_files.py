"""Folders and tar shards that open as stores: the same records and samples as of the stores that `pack` makes of them."""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import storeds
from _layout_case import lines_of
from _packing import stored_records, storeds_command, storeds_json
from _source_cases import FOLDERS, OF_MASKS, TARS, SourceCase
from _source_files import tar
from _verdicts import declared, unjudged
from mask_files import write
from photographs import jpeg
from storeds import errors
from storeds.testing import fingerprint

KINDS = ("imagefolder", "flat", "masks", "tar")
CASES = {
    f"{table}: {name}": case
    for table, cases in (("folder", FOLDERS), ("masks", OF_MASKS), ("tar", TARS))
    for name, case in cases.items()
    if case.options.get("kind", "flat") in KINDS and (table == "tar" or "label" not in case.options)
}
CLASSES = {f"{'cat' if n % 3 else 'dog'}/{n:02}.jpg": n for n in range(12)}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("STOREDS_CACHE", str(folder))
    return folder


def opened(url: object, **given: Any) -> Any:
    """Return an open store, as a type that has columns and keys."""
    return storeds.open_backend(url, **given)  # type: ignore[arg-type]


def arguments(case: SourceCase) -> dict[str, Any]:
    """Return the arguments that open what `pack` reads with the options of a case."""
    options = dict(case.options)
    return {**({"layout": options.pop("kind")} if "kind" in options else {}), **options}


def settle(folder: Path) -> None:
    """Make folders and files old, so that a list of them is kept."""
    for top, _, names in os.walk(folder):
        for each in (top, *(os.path.join(top, name) for name in names)):
            os.utime(each, (1e9, 1e9))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = write(tmp_path / "photos", CLASSES)
    settle(folder)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_has_the_records_that_pack_makes(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = CASES[name]
    source = write(tmp_path / "set", case.files) / case.source
    packed = storeds.pack(source, f"lmdb://{tmp_path}/a.lmdb", on_bad="skip", **case.options)
    caplog.clear()
    rows = {row["key"]: row for row in stored_records(tmp_path / "a.lmdb")}
    with opened(source, **arguments(case)) as store, opened(f"{tmp_path}/a.lmdb") as twin:
        assert (list(store.meta.fields.items()), store.meta.attrs) == (list(declared(packed).items()), packed.attrs)
        assert len(pickle.dumps(store)) < 4096
        keys, unread = store.keys().tolist(), store.describe().unread
        good = [at for at, key in enumerate(keys) if key in rows]
        assert [keys[at] for at in good] == list(rows)
        expected = fingerprint(unjudged(twin.get_many(range(len(twin)))))
        for each in (store, pickle.loads(pickle.dumps(store))):
            assert fingerprint(each.get_many(good)) == expected
            assert fingerprint(each.get_many(good[::-1])[::-1]) == expected
            assert each.describe().unread == unread
        others = [each for at, each in enumerate(store.get_many(range(len(keys)))) if at not in good]
        for column in ("key", "label", "split"):
            if column in store.meta.fields:
                assert store.column(column)[good].tolist() == twin.column(column).tolist()
    # What pack calls bad is a record that cannot be read, or does not fit its role, or it is listed.
    reasons = [each.reason for each in others if isinstance(each, errors.RecordError)]
    for bad in case.bad:
        if "its mask" in bad or "its .json" in bad:
            assert any(reason[:30] in bad for reason in reasons), (bad, reasons)
        is_listed = any(entry[:60] in bad or bad[:60] in entry for entry in unread)
        assert is_listed or any(f"{key.rpartition('/')[2]}" in bad for key in keys), (bad, unread)
    assert all(any(note[:60] in entry for entry in [*unread, caplog.text]) for note in case.notes), (case.notes, unread)


@pytest.mark.parametrize("name", ["folder: classes", "masks: in each split", "tar: keys with their shard"])
def test_converts_to_the_store_that_pack_makes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    source = write(tmp_path / "set", case.files) / case.source
    packed = storeds.pack(source, "memory://packed", overwrite=True, **case.options)
    given = arguments(case)
    copy = storeds.convert(source, "memory://copy", overwrite=True, layout=given.pop("layout", None), options=given)
    assert (copy.id, copy.fields, copy.attrs) == (packed.id, packed.fields, packed.attrs)


def samples(dataset: Any, **loading: Any) -> list[Any]:
    batches = DataLoader(dataset, batch_size=4, collate_fn=list, **loading)
    return [(image.tolist(), int(label)) for batch in batches for image, label in batch]


@pytest.mark.process
def test_gives_the_samples_of_the_packed_store_in_workers(photos: Path, tmp_path: Path) -> None:
    storeds.pack(photos, f"{tmp_path}/a.lmdb")
    folder, packed = (storeds.StoreDataset(url, decode="tensor") for url in (photos, f"{tmp_path}/a.lmdb"))
    expected = samples(packed)
    assert samples(folder) == expected
    assert samples(folder, num_workers=2, multiprocessing_context="fork") == expected


def test_a_damaged_picture_is_found_repaired_and_skipped(photos: Path) -> None:
    cut = jpeg(3, (640, 480), quality=95)[:-9000]
    (photos / "cat/01.jpg").write_bytes(cut)
    (photos / "dog/03.jpg").write_bytes(b"<html>")
    report = storeds.verify(str(photos), workers=1)
    found = {each.key: each.kind for each in report.findings}
    assert found == {"cat/01.jpg": "truncated_scan", "dog/03.jpg": "not_jpeg"}
    assert "cat/01.jpg" in storeds_command("verify", photos, "--layout", "flat", code=1)
    dataset = storeds.StoreDataset(photos, decode="tensor", on_error="skip", transform=len)
    (batch,) = storeds.StoreLoader(dataset, batch_size=12, num_workers=0)
    assert batch[1].tolist() == [0] * 8 + [1] * 3
    assert "1 repaired" in str(dataset.report())


COMMANDS: dict[str, tuple[list[str], str]] = {
    "info": ([], "cat"),
    "stats": ([], "damaged: 0 of 12"),
    "head": (["-n", "2"], "cat/01.jpg"),
    "export": (["{}/out", "--format", "folder"], "12"),
    "show": (["-o", "{}/page.html"], "12 of 12"),
    "get": (["cat/01.jpg", "-o", "{}/one.jpg"], ""),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_read_it(name: str, photos: Path, tmp_path: Path) -> None:
    more, says = COMMANDS[name]
    assert says in storeds_command(name, photos, *(each.format(tmp_path) for each in more))


def test_a_list_is_made_once_and_a_changed_folder_is_noticed(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("lists the folder again")

    with opened(photos) as first:
        twin = pickle.dumps(first)
        with monkeypatch.context() as patched:
            patched.setattr(os, "scandir", refuse)
            with opened(photos) as second:
                assert (second.meta, len(second)) == (first.meta, 12)
        (photos / "notes.txt").write_text("beside the classes")
        assert len(pickle.loads(twin).get_many([0, 11])) == 2  # the records are the same
        (photos / "cat/99.jpg").write_bytes(jpeg(1))
        with pytest.raises(errors.UnavailableError, match="changed"):
            pickle.loads(twin).get_many([0])
        with opened(photos) as third:
            assert len(third) == 13
            assert third.meta.id != first.meta.id
        assert len(first.get_many([0, 11])) == 2  # an open store keeps its list


@pytest.mark.parametrize("state", ["emptied", "damaged", "a file"])
def test_reads_on_whatever_becomes_of_the_cache(state: str, photos: Path, cache: Path) -> None:
    if state == "a file":
        shutil.rmtree(cache)
        cache.write_text("")
    with opened(photos) as store:
        expected, twin = fingerprint(store.get_many(range(12))), pickle.dumps(store)
        if state == "emptied":
            shutil.rmtree(cache)
        elif state == "damaged":
            for file in cache.rglob("*.npy"):
                file.write_bytes(file.read_bytes()[:-3])
        assert fingerprint(pickle.loads(twin).get_many(range(12))) == expected
    with opened(photos) as again:
        assert fingerprint(again.get_many(range(12))) == expected


def test_what_vanishes_later(photos: Path, tmp_path: Path) -> None:
    shards = write(tmp_path / "shards", {f"{n}.tar": tar({f"{n}.jpg": jpeg(n), f"{n}.cls": b"1"}) for n in range(3)})
    with opened(photos) as store, opened(shards / "*.tar") as members:
        (photos / "cat/01.jpg").unlink()
        (shards / "1.tar").write_bytes(tar({"1.jpg": jpeg(2), "1.cls": b"22"}))
        found = store.get_many(range(12))
        assert [at for at, each in enumerate(found) if isinstance(each, errors.RecordError)] == [0]
        assert "cat/01.jpg" in str(found[0])
        assert "it was there when the folder was listed" in str(found[0])
        changed = members.get_many(range(3))
        assert [type(each) for each in changed] == [dict, errors.RecordError, dict]
        assert "1.tar changed after its members were listed" in str(changed[1])
        shutil.rmtree(photos)
        with pytest.raises(errors.UnavailableError, match="is gone now"):
            store.get_many([0])


def test_a_shard_that_is_cut_is_a_finding(tmp_path: Path) -> None:
    shards = {f"s-{n}.tar": tar({f"{n}.jpg": jpeg(n), f"{n}.cls": b"1"}) for n in range(2)}
    folder = write(tmp_path / "set", {**shards, "s-2.tar": tar({"2.jpg": jpeg(2), "2.cls": b"1"})[:700], "x.csv": "a"})
    report = storeds.verify(str(folder))
    assert (report.count, [each.kind for each in report.findings]) == (2, ["unread"])
    assert "s-2.tar: is damaged, cut short or not a tar file" in report.findings[0].message
    for copy in (storeds.convert, partial(storeds.pack, kind="store")):
        with pytest.raises(errors.RecordError, match="s-2.tar: is damaged"):
            copy(str(folder), "memory://copy", overwrite=True)
        assert copy(str(folder), "memory://copy", overwrite=True, on_bad="skip").count == 2
    (found,) = (each for each in storeds_json("info", folder)["unread"] if "x.csv" in each)
    assert found.startswith("left out 1 name")


MIXED = {"a/1.jpg": 0, "x.jpg": 1}
REFUSED: dict[str, tuple[dict[str, Any], str, dict[str, Any], type[Exception], str]] = {
    "mixed": (MIXED, ".", {}, errors.ConfigError, "layout='imagefolder' .* or layout='flat'"),
    "masks of another name": (
        {"images/0.jpg": 0, "annotations/0.png": 0}, ".", {}, errors.ConfigError, "layout='masks' .* layout='imagefolder'"
    ),
    "videos among images": ({"a/1.jpg": 0, "a/1.mp4": ""}, ".", {}, errors.ConfigError, "several kinds: .* layout='imagefolder'"),
    "a data set of YOLO": ({"data.yaml": "", "images/1.jpg": 0}, ".", {}, errors.FormatError, "'yolo'.*`storeds pack"),
    "empty": ({".keep": ""}, ".", {}, errors.FormatError, "no images and no tar files, nothing"),
    "an empty class": ({"a/1.jpg": 0, "b/.keep": ""}, ".", {}, errors.ConfigError, "no images in b"),
    "the native layout": (MIXED, ".", {"layout": "native"}, errors.FormatError, "no store of layout 'native'"),
    "a wrong option": (MIXED, ".", {"layout": "flat", "classes": ["a"]}, errors.ConfigError, "'flat' has no option 'classes'"),
    "an unknown option": (MIXED, ".", {"layout": "flat", "clases": ["a"]}, errors.ConfigError, "unknown option 'clases'"),
    "a store": ({"a.h5": b"\x89HDF\r\n\x1a\n"}, "a.h5", {"files": True}, errors.FormatError, "is a store of another engine"),
    "a text": ({"b.txt": "hello"}, "b.txt", {"files": True}, errors.FormatError, "neither a folder nor a tar file"),
    "classes that are no names": ({"a/1.jpg": 0}, ".", {"classes": 5}, errors.ConfigError, "classes: expected"),
    "compressed": ({"a.tar.gz": b"\x1f\x8b" + bytes(900)}, "a.tar.gz", {}, errors.FormatError, "is compressed; decompress it"),
    "no shard": ({"a.jpg": 0}, "x-*.tar", {}, errors.StoreNotFoundError, "no file matches"),
    "HDF5 files": ({"a/1.jpg": 0, "x.h5": ""}, ".", {}, errors.FormatError, "folder of HDF5 files"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_names_what_to_write(name: str, tmp_path: Path) -> None:
    files, source, given, error, says = REFUSED[name]
    with pytest.raises(error, match=says) as raised:
        path = write(tmp_path / "set", files) / source
        opened(f"files://{path}" if given.pop("files", False) else path, **given)
    if "Paste the line" in str(raised.value):
        lines_of(raised.value)


def test_links_and_folders_that_cannot_be_listed_are_named(tmp_path: Path) -> None:
    root = write(tmp_path / "set", {"a/1.jpg": 0, "a/deep/2.jpg": 1, "b/1.jpg": 2})
    (root / "a/deep/loop").symlink_to(root / "a", target_is_directory=True)
    (root / "b/out.jpg").symlink_to(write(tmp_path / "other", {"x.jpg": 3}) / "x.jpg")
    with opened(root) as store:
        assert store.keys().tolist() == ["a/1.jpg", "a/deep/2.jpg", "b/1.jpg"]
        faults = " ".join(store.describe().faults)
    assert "a/deep/loop: links back to a folder that contains it" in faults
    assert "b/out.jpg: is a link to" in faults
    with opened(f"files://{root}?allow_outside=true") as store:
        assert store.keys().tolist()[-1] == "b/out.jpg"


def test_folders_that_may_not_be_listed_are_named(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Any = ".") -> Any:
        if path in refused:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(path)

    scandir, refused = os.scandir, {str(photos / "cat/deep")}
    write(photos, {"cat/deep/1.jpg": 0})
    monkeypatch.setattr(os, "scandir", refuse)
    with opened(photos) as store:
        assert len(store) == 12
        assert store.describe().faults == ["cat/deep: the folder cannot be listed: Permission denied"]
    assert [each.kind for each in storeds.verify(str(photos)).findings] == ["unread"]


FORMS: dict[str, Callable[[Path], Any]] = {
    "a path": lambda path: path,
    "a URL": lambda path: f"files://{path}",
    "a file URL": lambda path: path.as_uri(),
    "with an option": lambda path: f"{path}?allow_empty=true",
}


@pytest.mark.parametrize("form", FORMS)
def test_is_named_by_a_path_or_a_url(form: str, photos: Path) -> None:
    with opened(FORMS[form](photos)) as store:
        assert (store.url, len(store)) == (f"files://{photos}", 12)


def test_shards_are_one_store_and_folders_of_a_list_are_several(photos: Path, tmp_path: Path) -> None:
    write(tmp_path, {f"x-{n}.tar": tar({f"{n}.jpg": jpeg(n), f"{n}.cls": b"1"}, tarfile.GNU_FORMAT) for n in range(12)})
    for url in (tmp_path / "x-*.tar", tmp_path / "x-{0..11}.tar"):
        with opened(url) as store:
            assert (len(store), store.url) == (12, f"files://{url}")
            assert store.describe().bytes == sum(file.stat().st_size for file in tmp_path.glob("x-*.tar"))
    with opened([photos, photos]) as both:
        assert torch.equal(torch.tensor(both.column("label")), torch.tensor([0] * 8 + [1] * 4).repeat(2))
