"""Folders of images and of masks, and stores, as sources of `pack`, and how `pack` finds out what a source is."""

from __future__ import annotations

import gc
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import storeds
from _packing import Source, records_of, storeds_command
from make_store import make_store
from mask_files import FORMS, as_grey, class_ids, encode_mask, mask, write
from photographs import jpeg, photograph, saved
from picture_stores import exif
from storeds.errors import ConfigError, RecordError
from storeds.formats import open_source


def put(root: Path, *names: str | bytes) -> Path:
    """Write a photograph under each name."""
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(jpeg(number))
    return root


# Folders


def test_folders_that_may_be_no_classes_are_named(tmp_path: Path) -> None:
    picture = jpeg(0)
    write(tmp_path / "a", {"img/0.jpg": picture, "gt/0.png": saved(photograph(0))})
    write(tmp_path / "b", {"train/0.jpg": picture, "val/1.jpg": picture})
    write(tmp_path / "c", {"cat/0.jpg": picture, "dog/0.jpg": picture})
    notes = [storeds.pack(tmp_path / name, f"memory://doubts-{name}").notes for name in "abc"]
    assert "gt and img hold files of the same names" in notes[0][0]
    assert "train, val are taken for classes" in notes[1][0]
    assert notes[2] == ()
    with pytest.raises(ConfigError, match="image_folder and mask_folder go together"):
        storeds.pack(tmp_path / "a", "memory://doubts", kind="masks", mask_folder="gt")


def test_two_classes_of_many_files_open_without_a_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    for name in ("cat", "dog"):
        write(tmp_path / name, {f"{number}.jpg": b"" for number in range(1010)})
    with storeds.open_backend(tmp_path) as backend:
        assert len(backend) == 2020
    gc.collect()  # which reports what was left open
    assert [str(each.message) for each in recwarn] == []


def test_links(tmp_path: Path) -> None:
    put(tmp_path, "root/a/deep/1.jpg", "root/a/sub/in.jpg", "outside/x.jpg")
    root = tmp_path / "root"
    links: dict[str, str | Path] = {
        "a/deep/up": "..",
        "a/root": root,
        "a/self": "self",
        "a/file.jpg": "../../outside/x.jpg",
        "a/folder": tmp_path / "outside",
        "a/within.jpg": "sub/in.jpg",
        "b": "a/sub",
        "c": tmp_path / "outside",
        "loop": "loop",
    }
    for link, target in links.items():
        (root / link).symlink_to(target)
    source = Source(root)
    assert source.column("key") == ["a/within.jpg", "a/deep/1.jpg", "a/sub/in.jpg", "b/in.jpg"]
    end = f"outside {root}; pass allow_outside=True (--option allow_outside=true) to read it anyway"
    assert sorted(source.bad) == [
        "a/deep/up: links back to a folder that contains it; the loop is left out",
        f"a/file.jpg: is a link to {tmp_path}/outside/x.jpg, {end}",
        f"a/folder: is a link to {tmp_path}/outside, {end}",
        "a/root: links back to a folder that contains it; the loop is left out",
        "a/self: cannot be inspected: Too many levels of symbolic links",
        f"c: is a link to {tmp_path}/outside, {end}",
        "loop: the folder cannot be listed: Too many levels of symbolic links",
    ]
    allowed = Source(root, allow_outside=True)
    assert len(allowed.records) == len(source.records) + 3
    assert not any("outside" in each for each in allowed.bad)


SUFFIXES = ["jpg", "jpe", "jfif", "mpo", "gif", "jp2", "j2k", "avif", "apng", "tga", "dib", "pbm", "PNM", "webp", "tif"]


def test_pictures_of_every_suffix_are_packed_and_other_files_counted(tmp_path: Path) -> None:
    image = Image.new("RGB", (16, 16), (200, 10, 10))
    known = Image.registered_extensions()
    (tmp_path / "in/a").mkdir(parents=True)
    for suffix in SUFFIXES:
        form = {"mpo": "JPEG", "PNM": "PPM", "pbm": "PPM"}.get(suffix, known[f".{suffix.lower()}"])
        image.save(tmp_path / f"in/a/x.{suffix}", form)
    put(tmp_path / "in", "a/w.heic", "a/v.HEIC", "a/deep/README", "a/.hidden.svg", "b/1.jpg")
    meta = storeds.pack(tmp_path / "in", f"lmdb://{tmp_path}/a.lmdb")
    assert (meta.count, set(meta.findings)) == (len(SUFFIXES) + 1, {"intact"})
    assert meta.notes == (
        "left out 3 files of other kinds: 1 without a suffix, such as a/deep/README, 2 *.heic, such as a/v.HEIC",
    )


@pytest.mark.parametrize("classes", [["bird", "dog", "cat"], "bird,dog,cat", "names.txt"], ids=str)
def test_classes_name_the_labels_of_a_folder(classes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = put(tmp_path / "in", "cat/1.jpg", "dog/2.jpg")
    (tmp_path / "names.txt").write_text("bird\ndog\ncat\n")
    monkeypatch.chdir(tmp_path)
    if isinstance(classes, str):
        storeds_command("pack", root, "a.lmdb", "--classes", classes)
    else:
        storeds.pack(root, "a.lmdb", classes=classes)
    assert storeds.info("a.lmdb").attrs["classes"] == ["bird", "dog", "cat"]
    assert records_of("a.lmdb", "key", "label") == [{"key": "cat/1.jpg", "label": 2}, {"key": "dog/2.jpg", "label": 1}]
    put(root, "dgo/3.jpg")
    with pytest.raises(ConfigError, match="the folder 'dgo' is none of the classes given; did you mean 'dog'"):
        storeds.pack(root, "b.lmdb", classes=["bird", "dog", "cat"])
    with pytest.raises(ConfigError, match="no option 'classes'"):
        open_source(root, kind="flat", classes=["cat", "dog"])
    frames = Source(put(tmp_path / "frames", "dog/walk/1.jpg"), kind="frames", classes=["cat", "dog"])
    assert (frames.rows.attrs["classes"], frames.column("label")) == (["cat", "dog"], [1])


def test_unusual_file_names(tmp_path: Path) -> None:
    long = "n" * 250 + ".jpg"
    put(tmp_path, f"a/{long}", "a/日本 語.jpg", "a/'\"; rm -rf.jpg", b"a/\xff.jpg", b"a/\xfe/2.jpg", b"z\xfd/3.jpg")
    source = Source(tmp_path)
    assert source.column("key") == ["a/'\"; rm -rf.jpg", f"a/{long}", "a/日本 語.jpg"]
    assert sorted(source.bad) == [
        r"a/\xfe: the folder's name is not valid UTF-8, which a key must be; rename it",
        r"a/\xff.jpg: its name is not valid UTF-8, which a key must be; rename it",
        r"z\xfd: the folder's name is not valid UTF-8, which a key must be; rename it",
    ]
    assert source.rows.attrs == {"classes": ["a", r"z\xfd"]}


# Stores


def write_store(root: Path) -> str:
    records = ({"image": jpeg(n), "label": n + 3} for n in range(100))
    attrs = {"classes": list("abcdefgh") + [str(n) for n in range(100)]}
    return make_store({"image": "image", "label": "int"}, records, f"lmdb://{root}/a.lmdb", attrs=attrs)


def test_a_bad_record_of_a_store_is_a_bad_item(tmp_path: Path) -> None:
    url = write_store(tmp_path)
    sought = jpeg(7)[-40:]
    data = (tmp_path / "a.lmdb").read_bytes()  # of which free pages hold copies
    (tmp_path / "a.lmdb").write_bytes(data.replace(sought, bytes([sought[0] ^ 1]) + sought[1:]))
    source = Source(url)
    damaged = [n for n in range(100) if jpeg(n) == jpeg(7)]
    assert len(source.records) == 100 - len(damaged)
    starts = [f"record {position} of {url}: its checksum does not match" for position in damaged]
    assert [bad[: len(start)] for bad, start in zip(source.bad, starts, strict=True)] == starts


def test_a_backend_is_a_source_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_store(tmp_path)
    with storeds.open_backend(tmp_path / "a.lmdb") as backend:
        calls, get_many = list[int](), type(backend).get_many

        def counted(self: Any, positions: Any, fields: Any = None) -> Any:
            calls.append(len(positions))
            return get_many(self, positions, fields)

        with monkeypatch.context() as patched:  # a server is not asked for one record at a time
            patched.setattr(type(backend), "get_many", counted)
            storeds.pack(backend, "memory://in-batches", overwrite=True)
        assert len(calls) <= 2
        assert Source(backend).column("label") == list(range(3, 103))
        with pytest.raises(ConfigError, match="is already open; pass readahead when opening it"):
            open_source(backend, readahead=True)


# What a source is


def test_content_counts_more_than_the_file_name(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg")
    with tarfile.open(tmp_path / "shard.bin", "w") as shard:
        shard.add(tmp_path / "a/1.jpg", "1.jpg")
    (tmp_path / "a/list.csv").write_text("path\n1.jpg\n")  # beside the images, it does not hide them
    write_store(tmp_path)
    (tmp_path / "a.lmdb").rename(tmp_path / "lmdb.csv")
    assert list(open_source(tmp_path / "lmdb.csv").fields)[:2] == ["image", "label"]
    for path in ("shard.bin", "a", "a/list.csv"):
        rows = open_source(str(tmp_path / path))
        assert set(rows.fields) == {"image", "key"}
    assert open_source(rows) is rows


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (["a.jpg", "b.jpg"], {}, "a list of paths is a source only if all are .tar files"),
        (7, {}, "a int is not a source: expected a path, a URL, or a dataset"),
        ([1], {"kind": "csv"}, "kind='csv' needs a path, not a list"),
        ("gopher://x/y", {}, "unknown backend 'gopher'"),
        ("/dev/null", {}, "/dev/null is neither a folder nor a regular file"),
    ],
)
def test_what_is_no_source(source: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_source(source, **options)


# Masks

IDS = class_ids(1)
DEEP = IDS.astype(np.uint16)
DEEP[0, 0] = 300
# Masks of one photograph: the file, its suffix, and the class ids that it holds.
MASKS: dict[str, tuple[bytes, str, Any]] = {
    **{form: (encode_mask(IDS, form), "png", IDS > 0 if form == "1" else IDS) for form in FORMS},
    **{f"grey of {bits} bits": (as_grey(encode_mask(IDS, "P", bits=bits), bits), "png", IDS) for bits in (2, 4)},
    "GIF": (encode_mask(IDS, "P", "GIF"), "gif", IDS),
    "class ids beyond 255": (encode_mask(DEEP, "I;16"), "png", DEEP),
}


def pack_masks(root: Path, files: dict[str, bytes], **options: Any) -> Any:
    """Pack these files, and the first photographs, as images and masks."""
    tree = write(root / "tree", {"images/0.jpg": 0, "images/1.jpg": 1, "masks/0.png": 0, **files})
    return storeds.pack(tree, f"lmdb://{root}/a.lmdb", kind="masks", overwrite=True, **options)


@pytest.mark.parametrize("name", MASKS)
def test_masks_keep_their_bytes_and_their_class_ids_are_compared_exactly(name: str, tmp_path: Path) -> None:
    blob, suffix, ids = MASKS[name]
    most = int(ids.max())
    files = {f"masks/1.{suffix}": blob}
    assert pack_masks(tmp_path, files, classes=[f"c{n}" for n in range(max(most, 3) + 1)]).notes == ()
    assert records_of(tmp_path / "a.lmdb")[1]["mask"] == blob
    np.testing.assert_array_equal(storeds.StoreDataset(tmp_path / "a.lmdb", reader="sample")[1][1], ids)
    if most > 1:
        with pytest.raises(RecordError, match=rf"images/1.jpg.*without a name: {most};"):
            pack_masks(tmp_path, files, classes=[f"c{n}" for n in range(most)], ignore_index=most + 1)


@pytest.mark.parametrize("orientation", [1, 3, 6])
@pytest.mark.parametrize("size", [(96, 64), (64, 64)])
def test_masks_that_may_be_of_the_picture_as_displayed(orientation: int, size: tuple[int, int], tmp_path: Path) -> None:
    picture = saved(photograph(0).resize(size), "JPEG", exif=exif(orientation))
    notes = pack_masks(tmp_path, {"images/1.jpg": picture, "masks/1.png": mask(1, size=size)}).notes
    is_unproven = orientation == 3 or (orientation == 6 and size == (64, 64))
    assert [note[:37] for note in notes] == ["1 picture has an EXIF orientation (1."] * is_unproven
    if orientation == 6 and size == (96, 64):
        with pytest.raises(RecordError, match="64 × 96"):
            pack_masks(tmp_path, {"masks/1.png": mask(1, size=(64, 96))})
