"""Sources of `pack`: what each gives, and what is said of everything that can be wrong with one."""

from __future__ import annotations

import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, TensorDataset

import storeds
from photographs import jpeg, photograph
from shares import examples
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources import (
    BadItem,
    DatasetSource,
    FilesSource,
    FlatFolderSource,
    ImageFolderSource,
    JsonIndexSource,
    ManifestSource,
    PackSource,
    StoreSource,
    TarSource,
    open_source,
)
from storeds.protocols import Field, Record


def put(root: Path, *names: str | bytes) -> Path:
    """Write a photograph under each name."""
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(jpeg(number))
    return root


def problems(source: PackSource) -> list[str]:
    return [str(problem) for problem in source.problems]


def records(source: PackSource) -> list[Record]:
    return [source.read(index) for index in range(len(source))]


def column(source: PackSource, name: str) -> list[Any]:
    return [record[name] for record in records(source)]


def kinds(source: PackSource) -> dict[str, str]:
    return {name: field.kind for name, field in source.fields.items()}


def refused(source: PackSource, index: int = 0) -> str:
    with pytest.raises(BadItem) as caught:
        source.read(index)
    return f"{source.name(index)}: {caught.value}"


# What every source keeps


def tree(root: Path) -> PackSource:
    return ImageFolderSource(put(root, "ant/1.jpg", "bee/2.jpg"))


def flat(root: Path) -> PackSource:
    return FlatFolderSource(put(root, "1.jpg", "deep/2.jpg"))


def manifest(root: Path) -> PackSource:
    put(root, "1.jpg", "2.jpg")
    (root / "train.csv").write_text("path,label,score\n1.jpg,ant,1.5\n2.jpg,bee,2\n")
    return ManifestSource(root / "train.csv")


def lines(root: Path) -> PackSource:
    put(root, "1.jpg", "2.jpg")
    (root / "train.jsonl").write_text(
        '{"path": "1.jpg", "label": 4, "box": [1, 2]}\n{"path": "2.jpg", "label": 5, "box": []}\n'
    )
    return ManifestSource(root / "train.jsonl")


def index_file(root: Path) -> PackSource:
    put(root, "1.jpg", "2.jpg")
    (root / "index.json").write_text(json.dumps({"path_list": ["1.jpg", "2.jpg"], "label_list": [5, 6]}))
    return JsonIndexSource(root / "index.json")


def tar(root: Path) -> PackSource:
    return TarSource(shard(root / "a.tar", {"1.jpg": jpeg(0), "1.cls": b"3", "2.jpg": jpeg(1), "2.cls": b"4\n"}))


def dataset(root: Path) -> PackSource:
    return DatasetSource([(jpeg(0), 3), (jpeg(1), 4)])


def store(root: Path) -> PackSource:
    url = f"lmdb://{root}/a.lmdb"
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append([{"image": jpeg(0), "label": 3}, {"image": jpeg(1), "label": 4}])
        writer.publish({"classes": ["a"]})
    return StoreSource(url)


EVERY = [tree, flat, manifest, lines, index_file, tar, dataset, store]


@pytest.mark.parametrize("make", EVERY)
def test_every_source_meets_the_interface(make: Callable[[Path], PackSource], tmp_path: Path) -> None:
    source = make(tmp_path)
    assert len(source) == 2
    assert problems(source) == []
    assert column(source, "image") == [jpeg(0), jpeg(1)]
    # A verdict that a store has already comes along under its reserved name.
    declared = [[name for name in record if not name.startswith("_")] for record in records(source)]
    assert all(names == list(source.fields) for names in declared)
    assert all(source.size(index) > 0 for index in (0, 1))
    assert len({source.name(0), source.name(1)}) == 2
    # Whatever a source gives, a store takes.
    with storeds.open_writer(f"memory://{tmp_path.name}-contract", source.fields) as writer:
        writer.append(records(source))
        writer.publish(source.attrs)


@pytest.mark.parametrize("make", EVERY)
def test_sources_survive_pickling(make: Callable[[Path], PackSource], tmp_path: Path) -> None:
    source = make(tmp_path)
    records(source)
    copy = pickle.loads(pickle.dumps(source))
    assert records(copy) == records(source)
    assert (copy.fields, copy.attrs, copy.fingerprint) == (source.fields, source.attrs, source.fingerprint)


@pytest.mark.parametrize("make", [tree, flat, manifest, lines, index_file, tar])
def test_fingerprints_are_stable_and_change_with_files(make: Callable[[Path], PackSource], tmp_path: Path) -> None:
    source = make(tmp_path)
    files: dict[Any, str] = {manifest: "train.csv", lines: "train.jsonl", index_file: "index.json", tar: "a.tar"}
    where = files.get(make, "")
    code = "import json, sys; from storeds.ops.packing.sources import open_source; print(json.dumps(open_source(*sys.argv[1:2], "
    code += "kind=sys.argv[2] or None).fingerprint))"
    kind = "flat" if make is flat else ""
    run = [sys.executable, "-c", code, str(tmp_path / where), kind]
    done = subprocess.run(
        run, capture_output=True, text=True, timeout=60, check=True, env={**os.environ, "PYTHONHASHSEED": "7"}
    )
    assert json.loads(done.stdout) == source.fingerprint
    assert len(json.dumps(source.fingerprint)) < 200
    changed = next(tmp_path.rglob("*.tar" if make is tar else "2.jpg"))
    os.utime(changed, ns=(1, 1))
    assert open_source(tmp_path / where, kind=kind or None).fingerprint != source.fingerprint


@pytest.mark.parametrize("kind", ["imagefolder", "csv", "tar"])
def test_many_items_take_little_memory(kind: str, tmp_path: Path) -> None:
    count = 20_000
    names = [f"class{number % 100:03}/a-rather-long-name-of-an-image-{number:08}.jpg" for number in range(count)]
    if kind == "imagefolder":
        for name in names:
            path = tmp_path / "tree" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        source = open_source(tmp_path / "tree")
    elif kind == "csv":
        (tmp_path / "a.csv").write_text("path,label,x\n" + "".join(f"{name},{name[:8]},{7}\n" for name in names))
        source = open_source(tmp_path / "a.csv")
    else:
        source = open_source(shard(tmp_path / "a.tar", dict.fromkeys(names, b"")))
    assert len(source) == count
    assert len(pickle.dumps(source)) < 130 * count


# Folders


TREE = (
    "zebra/b.jpg",
    "zebra/a.JPEG",
    "zebra/deep-1/c.png",
    "zebra/deep/er/d.webp",
    "apple/10.jpg",
    "apple/9.jpg",
    "ähre/é.bmp",
)


def test_a_tree_has_the_order_and_the_labels_of_imagefolder(tmp_path: Path) -> None:
    put(tmp_path, *TREE, "apple/notes.txt", "beside.jpg")
    source = ImageFolderSource(tmp_path)
    # torchvision's own lines, so that the order is not what we believe it to be
    expected = []
    for label, name in enumerate(sorted(entry.name for entry in os.scandir(tmp_path) if entry.is_dir())):
        for folder, _, files in sorted(os.walk(tmp_path / name, followlinks=True)):
            paths = [os.path.join(folder, file) for file in sorted(files)]
            expected += [(os.path.relpath(path, tmp_path), label) for path in paths if not path.endswith(".txt")]
    assert list(zip(column(source, "key"), column(source, "label"), strict=True)) == expected
    assert source.attrs == {"classes": ["apple", "zebra", "ähre"]}
    assert kinds(source) == {"image": "image", "label": "int", "key": "str"}


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    source = FlatFolderSource(put(tmp_path, "b.jpg", "A.JPG", "more/c.jpg", "read.me"))
    assert column(source, "key") == ["A.JPG", "b.jpg", "more/c.jpg"]
    assert kinds(source) == {"image": "image", "key": "str"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda root: ImageFolderSource(root / "none"), StoreNotFoundError, "no folder at .*none: No such file"),
        (lambda root: FlatFolderSource(root / "none"), StoreNotFoundError, "no folder at .*none: No such file"),
        (lambda root: ImageFolderSource(root / "a" / "1.jpg"), ConfigError, "1.jpg is a file; expected a folder"),
        (lambda root: ImageFolderSource(root / "a"), ConfigError, "has no sub-folders; expected one per class"),
        (lambda root: FlatFolderSource(root / "empty"), ConfigError, r"contains no images \(.jpg .jpeg"),
        (lambda root: ImageFolderSource(root), ConfigError, "no images in empty; remove .* or pass allow_empty=True"),
    ],
)
def test_invalid_folders_raise(make: Any, error: type[Exception], message: str, tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        make(tmp_path)


def test_allow_empty_keeps_the_label_of_an_empty_class(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg", "c/1.jpg")
    (tmp_path / "b").mkdir()
    source = ImageFolderSource(tmp_path, allow_empty=True)
    assert column(source, "label") == [0, 2]
    assert source.attrs == {"classes": ["a", "b", "c"]}


def test_special_files_are_reported_without_blocking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/1.jpg")
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    os.mkfifo("a/2.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a/3.jpg")
        Path("a/4.jpg").symlink_to("nowhere")
        os.mknod("a/5.jpg", 0o600 | 0o20000, os.makedev(1, 3))
        source = ImageFolderSource(".")
        assert refused(source, 1) == "a/2.jpg: is not a regular file"
        assert refused(source, 2) == "a/3.jpg: cannot be read: No such device or address"
        assert refused(source, 3) == "a/4.jpg: cannot be read: No such file or directory"
        assert refused(source, 4) == "a/5.jpg: is not a regular file"


def test_link_loops_are_reported(tmp_path: Path) -> None:
    put(tmp_path, "a/deep/1.jpg", "b/1.jpg")
    (tmp_path / "a" / "deep" / "up").symlink_to("..")
    (tmp_path / "a" / "root").symlink_to(tmp_path)
    (tmp_path / "a" / "self").symlink_to("self")
    (tmp_path / "c").symlink_to("c")
    source = ImageFolderSource(tmp_path)
    assert column(source, "key") == ["a/deep/1.jpg", "b/1.jpg"]
    assert sorted(problems(source)) == [
        "a/deep/up: links back to a, a folder that contains it; the loop is left out",
        "a/root: links back to the root, a folder that contains it; the loop is left out",
        "a/self: cannot be inspected: Too many levels of symbolic links",
        "c: cannot be inspected: Too many levels of symbolic links",
    ]


def test_a_folder_linked_twice_is_packed_twice(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg")
    (tmp_path / "b").symlink_to("a")
    source = ImageFolderSource(tmp_path)
    assert (column(source, "key"), problems(source)) == (["a/1.jpg", "b/1.jpg"], [])


def test_exponentially_many_link_paths_are_bounded(tmp_path: Path) -> None:
    for level in range(30):
        (tmp_path / "levels" / str(level)).mkdir(parents=True)
        for name in ("left", "right"):
            (tmp_path / "levels" / str(level) / name).symlink_to(f"../{level + 1}")
    put(tmp_path / "levels", "30/1.jpg")
    source = FlatFolderSource(tmp_path)
    assert len(source) <= 64
    assert "is a folder that 64 other paths lead to already; more are left out" in problems(source)[0]


@pytest.mark.parametrize("make", [ImageFolderSource, FlatFolderSource])
def test_links_out_of_the_root_are_refused_unless_allowed(make: Any, tmp_path: Path) -> None:
    put(tmp_path, "outside/x.jpg", "root/a/1.jpg", "root/a/sub/in.jpg")
    root = tmp_path / "root"
    (root / "a" / "file.jpg").symlink_to("../../outside/x.jpg")
    (root / "a" / "folder").symlink_to(tmp_path / "outside")
    (root / "b").symlink_to(tmp_path / "outside")
    (root / "a" / "within.jpg").symlink_to("sub/in.jpg")
    source = make(root)
    assert column(source, "key") == ["a/1.jpg", "a/within.jpg", "a/sub/in.jpg"]
    end = f"outside {root}; pass allow_outside=True (--allow-outside) to read it anyway"
    assert sorted(problems(source)) == [
        f"a/file.jpg: is a link to {tmp_path}/outside/x.jpg, {end}",
        f"a/folder: is a link to {tmp_path}/outside, {end}",
        f"b: is a link to {tmp_path}/outside, {end}",
    ]
    allowed = make(root, allow_outside=True)
    assert problems(allowed) == []
    assert len(allowed) == 6


def test_unusual_file_names(tmp_path: Path) -> None:
    long = "n" * 250 + ".jpg"
    put(tmp_path, f"a/{long}", "a/日本 語.jpg", "a/'\"; rm -rf.jpg", b"a/\xff.jpg", b"a/\xfe/2.jpg", b"z\xfd/3.jpg")
    source = ImageFolderSource(tmp_path)
    assert column(source, "key") == ["a/'\"; rm -rf.jpg", f"a/{long}", "a/日本 語.jpg"]
    assert sorted(problems(source)) == [
        r"a/\xfe: its name is not valid UTF-8, which a key must be; rename it",
        r"a/\xff.jpg: its name is not valid UTF-8, which a key must be; rename it",
        r"z\xfd: the folder's name is not valid UTF-8, which a key must be; rename it",
    ]
    assert source.attrs == {"classes": ["a", r"z\xfd"]}


def test_a_path_that_is_too_long_is_reported(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg")
    here = os.open(tmp_path / "a", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=here)
        inner = os.open("d" * 250, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    source = ImageFolderSource(tmp_path)
    assert len(source) == 1
    assert problems(source)[0].endswith(": the folder cannot be inspected: File name too long")


def test_an_unlistable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/1.jpg", "a/secret/2.jpg")
    scandir = os.scandir

    def refuse(path: str) -> Any:
        if path.endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert problems(ImageFolderSource(tmp_path)) == ["a/secret: the folder cannot be listed: Permission denied"]


def test_similar_or_numeric_class_names_give_a_note(tmp_path: Path) -> None:
    put(tmp_path / "a", "Cat/1.jpg", "cat/1.jpg", "caf\u00e9/1.jpg", "cafe\u0301/1.jpg", "dog/1.jpg")
    (note,) = ImageFolderSource(tmp_path / "a").notes
    assert note.startswith("2 groups of classes differ only in case, spaces or Unicode form, and stay separate: ")
    assert "'Cat', 'cat'" in note
    put(tmp_path / "b", "1/1.jpg", "2/1.jpg", "10/1.jpg")
    (note,) = ImageFolderSource(tmp_path / "b").notes
    assert note.endswith("so labels are not the numbers in their names: class '1' is label 0")
    put(tmp_path / "c", *(f"{number}/1.jpg" for number in range(10)))
    assert ImageFolderSource(tmp_path / "c").notes == ()


# Tar shards


def shard(path: Path, members: Mapping[str, bytes], *, format: int = tarfile.USTAR_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
    return path


def test_labels_of_a_tar_are_named_by_their_ending(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", {"1.jpg": jpeg(0), "1.idx": b"4", "1.txt": b"t", "__MACOSX/._1.jpg": b""})
    with pytest.raises(ConfigError, match=r"no .cls with a label, only images and .idx, .txt; .*--no-label"):
        TarSource(path)
    source = TarSource(path, label_column="idx")
    assert source.columns == {".jpg": "image", ".idx": "label", ".txt": "txt"}
    assert list(source.strata()) == [("1", 4)]
    assert column(TarSource(path, label=False), "idx") == [b"4"]
    assert source.notes == (
        "left out 1 hidden file (__MACOSX/._1.jpg); include_hidden=True (--include-hidden) includes them",
    )


FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]


@pytest.mark.parametrize("format", FORMATS)
def test_members_with_a_common_name_form_a_sample(format: int, tmp_path: Path) -> None:
    long = "l" * 90 + "/" + "m" * 90
    members = {
        "./0.jpg": jpeg(0),
        "./0.cls": b"3\n",
        "./0.json": b'{"a": [1, null]}',
        "0.txt": "Größe".encode(),
        "0.seg.png": b"png",
        f"{long}.CLS": b"-4",
        f"{long}.WebP": jpeg(1),
        f"{long}.json": b"[]",
        f"{long}.txt": b"",
        f"{long}.seg.PNG": b"",
    }
    source = TarSource(shard(tmp_path / "a.tar", members, format=format))
    assert problems(source) == []
    assert kinds(source) == {
        "image": "image",
        "label": "int",
        "key": "str",
        "json": "json",
        "seg_png": "image",
        "txt": "str",
    }
    first = {"image": jpeg(0), "label": 3, "key": "0", "json": {"a": [1, None]}, "seg_png": b"png", "txt": "Größe"}
    second = {"image": jpeg(1), "label": -4, "key": long, "json": [], "seg_png": b"", "txt": ""}
    assert records(source) == [first, second]
    assert source.name(1) == f"a.tar: {long}"
    assert source.attrs == {"source": {"kind": "tar", "shards": 1}}


NAMES = st.text("ab.é/", min_size=1, max_size=160).filter(lambda name: "//" not in name and name[-1] != "/")


@settings(max_examples=examples(80))
@given(
    members=st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=8, unique_by=lambda member: member[0]),
    format=st.sampled_from(FORMATS),
)
def test_tars_are_grouped_as_tarfile_reads_them(members: list[tuple[str, bytes]], format: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar"
        try:
            shard(path, dict([("first.jpg", b"x"), *members]), format=format)
        except ValueError:  # ustar has no room for the name
            return
        expected: dict[str, dict[str, bytes]] = {}
        with tarfile.open(path) as file:
            for info in file:
                base = os.path.basename(info.name)
                name, _, ending = base.partition(".")
                is_sample = name and ending and not info.name.startswith("/") and ".." not in info.name.split("/")
                if is_sample:
                    opened = file.extractfile(info)
                    assert opened is not None
                    key = os.path.normpath(os.path.join(os.path.dirname(info.name), name))
                    expected.setdefault(key, {}).setdefault(ending, opened.read())
        source = TarSource(path, label=False, include_hidden=True)
        # A sample without a jpg is no sample; what others hold besides the image makes those bad that lack it.
        whole = {key: parts for key, parts in expected.items() if "jpg" in parts}
        wanted = {ending for parts in whole.values() for ending in parts}
        good = {key: parts["jpg"] for key, parts in whole.items() if parts.keys() == wanted}
        assert dict(zip(column(source, "key"), column(source, "image"), strict=True)) == good


def test_shards_are_given_by_range_glob_or_list(tmp_path: Path) -> None:
    for number in range(8, 12):
        shard(tmp_path / f"s-{number:03}.tar", {f"{number}.jpg": jpeg(number)})
    keys = ["8", "9", "10", "11"]
    assert column(TarSource(tmp_path / "s-{008..011}.tar"), "key") == keys
    assert column(TarSource(f"{tmp_path}/s-*.tar"), "key") == keys
    assert column(open_source(f"{tmp_path}/s-01?.tar"), "key") == ["10", "11"]
    assert column(TarSource(f"{tmp_path}/s-{{009,010}}.tar"), "key") == ["9", "10"]
    assert column(open_source([tmp_path / "s-010.tar", str(tmp_path / "s-008.tar")]), "key") == ["10", "8"]
    shard(tmp_path / "[x].tar", {"1.jpg": b""})
    assert len(TarSource(tmp_path / "[x].tar")) == 1


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("none.tar", StoreNotFoundError, "no tar file: .*none.tar; .* holds a.tar"),
        ("{a,b,c}.tar", StoreNotFoundError, "2 of 3 tar files are missing: .*b.tar, .*c.tar"),
        ("x*.tar", StoreNotFoundError, r"no file matches .*x\*.tar: .* holds a.tar"),
        ("{3..1}.tar", ConfigError, r"{3..1} is empty"),
        ("{0..9999999}.tar", ConfigError, r"{0..9999999} is of more than 100000 files"),
        ("{a..b}.tar", ConfigError, r"{a..b} is neither a range such as {000..099} nor a list such as {a,b}"),
        ("{a,a}.tar", ConfigError, "a.tar is given twice"),
        ("empty.tar", ConfigError, "empty.tar: no members form a sample, such as 0001.jpg"),
    ],
)
def test_missing_shards_raise(name: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    shard(tmp_path / "a.tar", {"1.jpg": b"x"})
    if name == "empty.tar":
        shard(tmp_path / name, {})
    with pytest.raises(error, match=message):
        TarSource(tmp_path / name)


def test_hostile_members_are_reported_and_skipped(tmp_path: Path) -> None:
    members = {
        "hard.jpg": tarfile.LNKTYPE,
        "soft.jpg": tarfile.SYMTYPE,
        "device.jpg": tarfile.CHRTYPE,
        "pipe.jpg": tarfile.FIFOTYPE,
        "what.jpg": b"Z",
    }
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as file:
        for name, type in members.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = type, "/etc/passwd"
            file.addfile(info)
        info = tarfile.TarInfo("folder.jpg")
        info.type = tarfile.DIRTYPE
        file.addfile(info)
        for name in (
            "/abs.jpg",
            "../up.jpg",
            "a/../../up.jpg",
            "plain",
            ".hidden",
            "end.",
            "b\udcff.jpg",
            "good.jpg",
            "good.PNG",
        ):
            file.addfile(tarfile.TarInfo(name))
    source = TarSource(tmp_path / "a.tar")
    assert column(source, "key") == ["good"]
    assert problems(source) == [
        "a.tar: hard.jpg: is a hard link; only regular files are packed",
        "a.tar: soft.jpg: is a symbolic link; only regular files are packed",
        "a.tar: device.jpg: is a device; only regular files are packed",
        "a.tar: pipe.jpg: is a FIFO; only regular files are packed",
        "a.tar: what.jpg: is of the unknown type 'Z'; only regular files are packed",
        "a.tar: /abs.jpg: its name is an absolute path",
        "a.tar: ../up.jpg: its name leads out of the archive through ..",
        "a.tar: a/../../up.jpg: its name leads out of the archive through ..",
        "a.tar: plain: its name has no extension such as 0001.jpg, so it belongs to no sample",
        "a.tar: end.: its name has no extension such as 0001.jpg, so it belongs to no sample",
        r"a.tar: b\xff.jpg: its name is not valid UTF-8",
        "a.tar: good.PNG: is the second member of its sample for the field image",
    ]
    assert source.notes == ("left out 1 hidden file (.hidden); include_hidden=True (--include-hidden) includes them",)
    assert os.listdir(tmp_path) == ["a.tar"]


def test_incomplete_samples_are_reported(tmp_path: Path) -> None:
    members = {"1.jpg": b"1", "1.cls": b"1", "2.jpg": b"2", "3.cls": b"3", "3.txt": b"", "4.png": b"4", "4.cls": b"4"}
    source = TarSource(shard(tmp_path / "a.tar", members))
    images = "jpg, jpeg, png, ppm, bmp, pgm, tif, tiff, webp"
    assert column(source, "label") == [1, 4]
    assert problems(source) == [
        "a.tar: 2: has no .cls, which others have; choose extensions with extensions=",
        f"a.tar: 3: has no image ({images}), only label, txt",
    ]
    assert kinds(source) == {"image": "image", "label": "int", "key": "str"}
    assert column(TarSource(tmp_path / "a.tar", extensions=["jpg", ".PNG"]), "key") == ["1", "2", "4"]


def test_keys_in_two_shards_are_reported(tmp_path: Path) -> None:
    for name in ("x", "y"):
        shard(
            tmp_path / f"{name}.tar", {"0.jpg": name.encode(), "0.cls": b"1", f"{name}.jpg": b"", f"{name}.cls": b"2"}
        )
    source = TarSource(tmp_path / "{x,y}.tar")
    assert column(source, "key") == ["0", "x", "y"]
    assert problems(source) == ["y.tar: 0: its key is already in x.tar; pass key_with_shard=True to pack both"]
    source = TarSource(tmp_path / "{x,y}.tar", key_with_shard=True)
    assert column(source, "key") == ["x/0", "x/x", "y/0", "y/y"]
    assert column(source, "image")[::2] == [b"x", b"y"]


def test_a_truncated_tar_keeps_earlier_members(tmp_path: Path) -> None:
    members = {f"{'deep/' * 30}{number}.jpg": bytes([number]) * 700 for number in range(3)}
    whole = shard(tmp_path / "a.tar", members, format=tarfile.GNU_FORMAT).read_bytes()
    every = records(TarSource(tmp_path / "a.tar"))
    for size in [0, 1, 511, *range(512, len(whole), 256)]:
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        end = 3 * (2 * 512 + 512 + 1024)
        source = TarSource(tmp_path / "cut.tar")
        assert records(source) == every[: len(source)]
        assert len(source) == sum(2560 * number + 1536 + 700 <= size for number in range(3))
        if size < end + 512:
            assert len(problems(source)) == 1
            assert problems(source)[0].startswith("cut.tar: at byte ")
            assert "the file ends" in problems(source)[0]


def test_tar_damage_is_reported_with_its_offset(tmp_path: Path) -> None:
    whole = bytearray(shard(tmp_path / "a.tar", {"1.jpg": b"1", "2.jpg": b"2", "3.jpg": b"3"}).read_bytes())

    def say(data: bytes) -> tuple[int, str]:
        (tmp_path / "b.tar").write_bytes(data)
        source = TarSource(tmp_path / "b.tar")
        return len(source), "; ".join(problems(source))

    end = "; only members before that are used"
    flipped = bytes(whole[:1030]) + b"\x07" + bytes(whole[1031:])
    assert say(flipped) == (1, f"b.tar: at byte 1024: there is no tar header; the file is damaged{end}")
    assert say(b"hello" * 300) == (0, f"b.tar: at byte 0: it is not a tar file{end}")
    closed = "the file ends without the mark that closes an archive: it was cut short"
    assert say(bytes(whole[: 3 * 1024])) == (3, f"b.tar: at byte 3072: {closed}{end}")
    twice = "more data follows the end of the archive; put each archive into a file of its own"
    assert say(bytes(whole) * 2) == (3, f"b.tar: at byte 3072: {twice}{end}")
    assert say(b"\x1f\x8b" + bytes(2000))[1].startswith("b.tar: at byte 0: it is compressed (gzip); decompress it")
    # A size below zero sent tarfile back over the same headers for ever.
    header = bytearray(whole[:512])
    header[124:136] = b"\xff" * 11 + b"\x00"
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert say(bytes(header) + bytes(whole[512:])) == (0, f"b.tar: at byte 0: the size in a header is negative{end}")
    header[124:136] = b"\x80" + (2**80).to_bytes(11, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    assert say(bytes(header) + bytes(whole[512:])) == (0, f"b.tar: at byte 512: the file ends within '1.jpg'{end}")


def test_flipped_header_bytes_are_reported_or_harmless(tmp_path: Path) -> None:
    members = {"long/" * 30 + f"é{number}.jpg": bytes([number]) * 600 for number in range(2)}
    whole = shard(tmp_path / "a.tar", members, format=tarfile.PAX_FORMAT).read_bytes()
    every = {(record["key"], record["image"]) for record in records(TarSource(tmp_path / "a.tar"))}
    for place in range(0, 1536 + 1024, 7):
        data = bytearray(whole)
        data[place] ^= 0x55
        (tmp_path / "b.tar").write_bytes(data)
        source = TarSource(tmp_path / "b.tar")  # no foreign exception, whatever it holds
        assert problems(source) or len(source) == len(every)


def test_special_or_changed_shards_are_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    assert problems(TarSource(tmp_path / "pipe.tar")) == ["pipe.tar: is not a regular file"]
    source = TarSource(shard(tmp_path / "a.tar", {"1.jpg": b"1"}))
    shard(tmp_path / "a.tar", {"0.jpg": b"0", "1.jpg": b"1"})
    assert refused(source) == "a.tar: 1: its shard changed after its members were listed"
    os.unlink(tmp_path / "a.tar")
    assert refused(source) == "a.tar: 1: its shard cannot be read: No such file or directory"


@pytest.mark.parametrize(
    ("ending", "data", "message"),
    [
        ("cls", b"cat", "its .cls contains 'cat'; expected an integer"),
        ("cls", b"", "its .cls contains ''; expected an integer"),
        ("cls", b"1_0", "its .cls contains '1_0'; expected an integer"),
        ("txt", b"ab\xff", "its .txt is not UTF-8 at byte 2"),
        ("json", b"ab\xff", "its .json is not UTF-8 at byte 2"),
        (
            "json",
            b'{"a": 1,\n}',
            "its .json is not JSON at line 2 column 1: Expecting property name enclosed in double quotes",
        ),
        ("json", b"[NaN]", "its .json is JSON that cannot be stored: JSON has no nan"),
    ],
)
def test_unparsable_members_are_bad_items(ending: str, data: bytes, message: str, tmp_path: Path) -> None:
    source = TarSource(shard(tmp_path / "a.tar", {"1.jpg": b"", f"1.{ending}": data}), label=ending == "cls")
    assert refused(source) == f"a.tar: 1: {message}"


# Datasets


class Pair(NamedTuple):
    Picture: Any
    Score: float


def test_tuples_dicts_and_named_tuples(tmp_path: Path) -> None:
    assert kinds(DatasetSource([(jpeg(0), 3, "x", 1.5, True, b"raw")])) == {
        "image": "image",
        "label": "int",
        "field2": "str",
        "field3": "float",
        "field4": "bool",
        "field5": "bytes",
    }
    assert records(DatasetSource([{"Img": jpeg(0), "meta": {"a": (1, 2)}}])) == [
        {"img": jpeg(0), "meta": {"a": [1, 2]}}
    ]
    assert kinds(DatasetSource([Pair(jpeg(0), 1.0)])) == {"picture": "image", "score": "float"}
    assert kinds(DatasetSource([jpeg(0)])) == {"image": "image"}
    assert kinds(DatasetSource([(jpeg(0), 1)], fields=["photo", "y"])) == {"photo": "image", "y": "int"}
    assert kinds(DatasetSource([{"a": jpeg(0), "b": 1, "c": 2}], fields={"c": "float", "a": "bytes"})) == {
        "c": "float",
        "a": "bytes",
    }


def test_tensors_and_arrays_become_arrays() -> None:
    tensors = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    source = DatasetSource(TensorDataset(tensors, torch.tensor([5, 6])))
    assert source.fields == {"field0": Field("array", "<f4", (3, 4)), "label": Field("int")}
    np.testing.assert_array_equal(source.read(1)["field0"], tensors[1].numpy())
    assert (source.read(1)["label"], type(source.read(1)["label"])) == (6, int)
    source = DatasetSource([{"x": np.arange(3, dtype=">i2"), "y": np.float64(2.5)}])
    assert source.fields == {"x": Field("array", "<i2", (3,)), "y": Field("float")}


def test_an_unchanged_pil_image_is_stored_as_its_file(tmp_path: Path) -> None:
    put(tmp_path, "0.jpg")
    path = tmp_path / "0.jpg"
    loaded = Image.open(path)
    loaded.load()
    smaller = Image.open(path)
    smaller.thumbnail((20, 20))
    drawn = Image.open(path)
    drawn.load()
    drawn.putpixel((0, 0), (1, 2, 3))
    images = [Image.open(path), Image.open(io.BytesIO(jpeg(0))), loaded, smaller, drawn, photograph(1)]
    source = DatasetSource([(image,) for image in images])
    blobs = column(source, "image")
    assert [blob == jpeg(0) for blob in blobs] == [True, True, True, False, False, False]
    for image, blob in zip(images, blobs, strict=True):
        assert np.array_equal(np.asarray(Image.open(io.BytesIO(blob))), np.asarray(image))
    assert {Image.open(io.BytesIO(blob)).format for blob in blobs[3:]} == {"PNG"}
    for image in images[:3]:
        image.close()


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "YCbCr"])
def test_a_pil_image_of_any_mode_is_stored_without_loss(mode: str) -> None:
    image = photograph(0).convert("I" if mode == "I;16" else mode)
    if mode == "I;16":
        image = Image.fromarray((np.asarray(image).astype(np.uint16) * 251).astype(np.uint16))
    blob = DatasetSource([(image,)]).read(0)["image"]
    with Image.open(io.BytesIO(blob)) as back:
        assert back.size == image.size
        assert np.array_equal(np.asarray(back.convert(image.mode)), np.asarray(image))


def test_a_pil_image_without_a_lossless_format_is_a_bad_item() -> None:
    source = DatasetSource([(photograph(0).convert("HSV"),)])
    assert refused(source) == "sample 0: its image a PIL image of mode HSV has no lossless format; pass its array"


class Photographs:
    """A dataset of files as people write them."""

    def __init__(self, root: Path, count: int = 4, shift: int = 0) -> None:
        put(root, *(f"{n % 2}/{n}.jpg" for n in range(count)))
        self.root, self.shift = root, shift
        self.image_paths = [f"{n % 2}/{n}.jpg" for n in range(count)]
        self.labels = [n % 2 for n in range(count)]
        self.transform: Any = None
        self.target_transform: Any = None

    def __len__(self) -> int:
        return len(self.image_paths)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image: Any = Image.open(self.root / self.image_paths[index]).convert("RGB")
        label = self.labels[index] + self.shift
        if self.transform is not None:
            image = self.transform(image)
        return image, label if self.target_transform is None else self.target_transform(label)


def test_a_dataset_of_files_is_packed_as_files(tmp_path: Path) -> None:
    dataset = Photographs(tmp_path)
    source = open_source(dataset)
    assert type(source) is FilesSource
    assert column(source, "key") == ["0/0.jpg", "1/1.jpg", "0/2.jpg", "1/3.jpg"]
    assert column(source, "image") == [(tmp_path / key).read_bytes() for key in column(source, "key")]
    dataset.target_transform = lambda label: 7 - label
    assert column(open_source(dataset), "label") == [7, 6, 7, 6]
    dataset.transform = lambda image: image.resize((2, 2))
    source = open_source(Subset(dataset, [3, -4]))  # type: ignore[arg-type]  # a dataset by its methods
    assert (column(source, "label"), column(source, "key")) == ([6, 7], ["1/3.jpg", "0/0.jpg"])
    (note,) = source.notes  # type: ignore[attr-defined]
    assert note.startswith("its transform is not applied: pack stores the original files")
    taken = records(open_source(dataset, files=False))[0]
    with Image.open(io.BytesIO(taken["image"])) as image:
        assert (image.size, taken["label"]) == ((2, 2), 7)
    dataset.target_transform = str
    assert type(open_source(dataset)) is DatasetSource


def test_files_are_packed_only_if_samples_match_them(tmp_path: Path) -> None:
    assert type(open_source(Photographs(tmp_path / "a", shift=1))) is DatasetSource
    dataset = Photographs(tmp_path / "b")
    dataset.image_paths[0], dataset.image_paths[3] = dataset.image_paths[3], dataset.image_paths[0]
    assert column(open_source(dataset), "key")[0] == "1/3.jpg"  # its own order
    with pytest.raises(ConfigError, match="files=True: it is unknown which files the list reads"):
        open_source([(jpeg(0), 1)], files=True)


def test_concatenated_datasets_must_have_equal_classes(tmp_path: Path) -> None:
    parts: list[Any] = [Photographs(tmp_path / name) for name in "ab"]
    assert len(open_source(ConcatDataset(parts))) == 8
    parts[0].classes, parts[1].classes = ["cat", "dog"], ["dog", "cat"]
    with pytest.raises(ConfigError, match="have different classes, so one label would mean several"):
        open_source(ConcatDataset(parts))


class Broken(Sequence[Any]):
    classes = ("a", "b")
    targets = (0, 1, 0)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: Any) -> Any:
        if index == 1:
            raise OSError("image file is truncated")
        return jpeg(index), self.targets[index]


def test_an_exception_of_the_dataset_is_a_bad_item() -> None:
    source = DatasetSource(Broken())
    assert refused(source, 1) == "sample 1: cannot be read: OSError: image file is truncated"
    assert source.attrs["classes"] == ["a", "b"]


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ((b"x", 1), "has 2 elements, but the first sample has 5"),
        ((b"x", None, np.zeros(2), "s", 1.0), "its label is None"),
        ((b"x", True, np.zeros(2), "s", 1.0), "its label is a bool, but the field is of kind int"),
        ((b"x", 2**63, np.zeros(2), "s", 1.0), "its label cannot be stored: outside the int64 range"),
        ((1, 1, np.zeros(2), "s", 1.0), "its image is a int, but the field is of kind image"),
        (
            (b"x", 1, np.zeros(3), "s", 1.0),
            "its field2 is float64 (3,), and the field float64 (2,); pass fields= with None",
        ),
        ((b"x", 1, np.zeros(2, "f4"), "s", 1.0), "its field2 is float32 (2,), and the field float64 (2,)"),
        ((b"x", 1, np.zeros(2), b"s", 1.0), "its field3 is a bytes, but the field is of kind str"),
        (
            (b"x", 1, np.zeros(2), "\ud800", 1.0),
            "its field3 cannot be stored: text with a lone surrogate at character 0 has no UTF-8 form",
        ),
        ((b"x", 1, np.zeros(2), "s", "1"), "its field4 is a str, but the field is of kind float"),
    ],
)
def test_a_sample_unlike_the_first_is_a_bad_item(second: Any, message: str) -> None:
    source = DatasetSource([(jpeg(0), 1, np.zeros(2), "s", 1.0), second])
    assert refused(source, 1).startswith(f"sample 1: {message}")


def test_dimensions_may_vary_if_fields_allow_it() -> None:
    spec = {"x": {"kind": "array", "dtype": "float64", "shape": [None]}}
    source = DatasetSource([(np.zeros(2),), (np.zeros(3),)], fields=spec)
    assert [len(value) for value in column(source, "x")] == [2, 3]


@pytest.mark.parametrize(
    ("dataset", "options", "message"),
    [
        ([], {}, "the list is empty"),
        (iter([1]), {}, "a list_iterator is not a dataset: it needs __getitem__ and __len__"),
        ([(jpeg(0), None)], {}, "'element1' of the first sample is None, which no field can store; pass fields="),
        ([(object(),)], {}, "'element0' of the first sample is a object, which no field can store"),
        ([(torch.zeros(2, dtype=torch.bfloat16),)], {}, "'element0' of the first sample cannot be a NumPy array"),
        ([(jpeg(0), 1)], {"fields": ["a"]}, r"fields: 1 names \(a\) for 2 elements of a sample"),
        ([(jpeg(0), 1)], {"fields": "image"}, "fields='image' must be a list of names"),
        ([{"a": 1}], {"fields": ["b"]}, "fields: the first sample has no 'b', only 'a'"),
        ([{"a": 1, "A": 2}], {}, "column 'A' becomes field 'a', and so does column 'a'"),
        ([{1: 1}], {}, "the keys of a sample must be text"),
        (Subset(Broken(), [1, 1]), {}, "none of the first samples can be read.*sample 0 cannot be read: OSError"),  # type: ignore[arg-type]
    ],
)
def test_unsupported_datasets_raise(dataset: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DatasetSource(dataset, **options)


class ClassLabel:
    names = ["cat", "dog"]


class ImageFeature:
    def __init__(self, decode: bool = True) -> None:
        self.decode = decode


ImageFeature.__name__ = "Image"


class HuggingFace:
    """What of Hugging Face's `datasets.Dataset` counts here."""

    def __init__(self, decode: bool = True) -> None:
        self.features = {"image": ImageFeature(decode), "label": ClassLabel()}
        self._fingerprint = "abc"

    def cast_column(self, name: str, feature: ImageFeature) -> HuggingFace:
        assert name == "image"
        return HuggingFace(feature.decode)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert not self.features["image"].decode  # type: ignore[attr-defined]
        return {"image": {"bytes": jpeg(index), "path": None}, "label": index}


def test_a_hugging_face_dataset_gives_its_image_files() -> None:
    source = open_source(HuggingFace())
    assert column(source, "image") == [jpeg(0), jpeg(1)]
    assert kinds(source) == {"image": "image", "label": "int"}
    assert source.attrs["classes"] == ["cat", "dog"]


# Stores


def test_a_store_source_names_bad_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = store(tmp_path)
    verdict = {"image_finding": "str", "image_recovered": "float"}
    assert (kinds(source), source.attrs) == ({"image": "image", "label": "int", **verdict}, {"classes": ["a"]})
    bad = storeds.errors.RecordError.at("lmdb://x", 1, "its checksum does not match")
    meta = SimpleNamespace(fields=source.fields)
    backend = SimpleNamespace(get_many=lambda positions: [bad], url="lmdb://x", meta=meta)
    monkeypatch.setattr(source, "_backend", backend)
    assert refused(source, 1) == "record 1 of lmdb://x: its checksum does not match"


def test_a_backend_is_a_source_too(tmp_path: Path) -> None:
    store(tmp_path)
    with storeds.open_backend(tmp_path / "a.lmdb") as backend:
        assert records(open_source(backend))[1]["label"] == 4
        with pytest.raises(ConfigError, match="is already open; pass readahead when opening it"):
            open_source(backend, readahead=True)


# What a source is


@pytest.mark.parametrize(
    ("make", "where", "kind"),
    [
        (tree, "", ImageFolderSource),
        (manifest, "train.csv", ManifestSource),
        (lines, "train.jsonl", ManifestSource),
        (index_file, "index.json", JsonIndexSource),
        (tar, "a.tar", TarSource),
        (store, "a.lmdb", StoreSource),
    ],
)
def test_sources_are_detected(make: Callable[[Path], PackSource], where: str, kind: type, tmp_path: Path) -> None:
    make(tmp_path)
    assert type(open_source(tmp_path / where)) is kind
    assert type(open_source(str(tmp_path / where))) is kind


def test_content_counts_more_than_the_file_name(tmp_path: Path) -> None:
    tar(tmp_path)
    store(tmp_path)
    (tmp_path / "a.tar").rename(tmp_path / "tar.bin")
    (tmp_path / "a.lmdb").rename(tmp_path / "lmdb.csv")
    assert type(open_source(tmp_path / "tar.bin")) is TarSource
    assert type(open_source(tmp_path / "lmdb.csv")) is StoreSource
    assert type(open_source(put(tmp_path / "only", "1.jpg"))) is FlatFolderSource
    assert type(open_source(f"lmdb://{tmp_path}/lmdb.csv")) is StoreSource
    source = open_source(tmp_path / "tar.bin")
    assert open_source(source) is source


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("none", {}, StoreNotFoundError, "nothing exists at none: .* holds "),
        (
            "both",
            {},
            ConfigError,
            r"both contains 1 image \(x.jpg\) and 1 folder \(a\); pass kind='imagefolder' .* or kind='flat'",
        ),
        ("empty", {}, ConfigError, r"empty has no sub-folders and no images \(.jpg .*\), nothing"),
        ("texts", {}, ConfigError, "no images .*, only a.csv, b.txt; pass one of these files"),
        (
            "texts/b.txt",
            {},
            ConfigError,
            "b.txt ends in none of .csv, .* and it is not a store or a tar file; pass kind=",
        ),
        ("pipe.csv", {}, ConfigError, "pipe.csv is neither a folder nor a regular file"),
        ("a\0b", {}, ConfigError, "expected a path, and no path holds a NUL"),
        (
            "texts/a.csv",
            {"kind": "cvs"},
            ConfigError,
            "unknown kind of source 'cvs'; did you mean 'csv'\\? The kinds are imagefolder, flat, masks, csv, jsonl",
        ),
        (
            "both",
            {"kind": "flat", "delimiter": ";"},
            ConfigError,
            "a source of kind flat has no option 'delimiter'; the options are allow_outside",
        ),
        ("texts/a.csv", {"format": "jsonl"}, ConfigError, "a source of kind csv has no option 'format'"),
        (["a.jpg", "b.jpg"], {}, ConfigError, "a list of paths is a source only if all are .tar files"),
        (7, {}, ConfigError, "a int is not a source: expected a path, a URL, or a dataset"),
        ({"a": 1}, {}, ConfigError, "a dict is not a source"),
        ([1], {"kind": "csv"}, ConfigError, "kind='csv' needs a path, not a list"),
        ("gopher://x/y", {}, ConfigError, "unknown backend 'gopher'"),
    ],
)
def test_invalid_sources_raise(
    source: Any,
    options: dict[str, Any],
    error: type[Exception],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "both/a/1.jpg", "both/x.jpg")
    Path("empty").mkdir()
    Path("texts").mkdir()
    Path("texts/a.csv").write_text("path\n1.jpg\n")
    Path("texts/b.txt").write_text("hello")
    os.mkfifo("pipe.csv")
    with pytest.raises(error, match=message):
        open_source(source, **options)
    assert len(open_source("both", kind="flat")) == 2
    assert len(open_source("both", kind="imagefolder")) == 1
