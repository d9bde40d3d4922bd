"""Sources of `pack`: what each gives, and what is said of everything that can be wrong with one."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import storeds
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources import (
    BadItem,
    DatasetSource,
    FlatFolderSource,
    ImageFolderSource,
    JsonIndexSource,
    ManifestSource,
    PackSource,
    StoreSource,
    TarSource,
    open_source,
)
from storeds.protocols import Record


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


# Manifests


def written(root: Path, text: str | bytes, name: str = "train.csv") -> Path:
    (root / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return root / name


def test_a_csv_gives_labels_keys_and_further_columns(tmp_path: Path) -> None:
    put(tmp_path, "x/1.jpg", "x/2.jpg", "3.jpg")
    text = (
        "Split Name,path,label,count,score,code,exact\n"
        'train,x/1.jpg,dog,1,1.5,007,9007199254740993\ntrain,x/2.jpg,cat,-2,2,008,1\n"a, b",3.jpg,dog,3,nan,1,2\n'
    )
    source = ManifestSource(written(tmp_path, text))
    assert kinds(source) == {
        "image": "image",
        "label": "int",
        "key": "str",
        "split_name": "str",
        "count": "int",
        "score": "float",
        "code": "str",
        "exact": "int",
    }
    assert source.attrs == {"classes": ["cat", "dog"], "source": {"kind": "csv", "file": "train.csv"}}
    assert column(source, "label") == [1, 0, 1]
    assert column(source, "key") == ["x/1.jpg", "x/2.jpg", "3.jpg"]
    assert column(source, "split_name") == ["train", "train", "a, b"]
    assert column(source, "count") == [1, -2, 3]
    assert column(source, "code") == ["007", "008", "1"]
    assert column(source, "exact") == [9007199254740993, 1, 2]
    assert column(source, "score")[:2] == [1.5, 2.0]
    assert np.isnan(column(source, "score")[2])
    assert source.name(1) == "train.csv line 3 (x/2.jpg)"


@pytest.mark.parametrize(
    "cells", [["1", "1_0"], ["1", " 2"], ["1", ""], ["1", "٣"], ["0x1", "1"], ["1", "01"], ["9" * 19, "1.5"]]
)
def test_a_column_is_numeric_only_if_no_character_is_lost(cells: list[str], tmp_path: Path) -> None:
    put(tmp_path, "0.jpg", "1.jpg")
    rows = "".join(f"{number}.jpg,{cell}\n" for number, cell in enumerate(cells))
    source = ManifestSource(written(tmp_path, "path,x\n" + rows), delimiter=",", label=False)
    assert column(source, "x") == cells


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("path;label\n1.jpg;a\n2.jpg;b\n", {}),
        ("path\tlabel\n1.jpg\ta\n2.jpg\tb\n", {}),
        ("path|label\n1.jpg|a\n2.jpg|b\n", {}),
        ("label, path\na, 1.jpg\nb, 2.jpg\n", {}),
        ("'path','label'\n'1.jpg','a'\n'2.jpg','b'\n", {}),
        ("path:label\n1.jpg:a\n2.jpg:b\n", {"delimiter": ":"}),
        ("$path$,label\n$1.jpg$,a\n2.jpg,b\n", {"quotechar": "$"}),
        ("1.jpg,a\n2.jpg,b\n", {"columns": ["path", "label"]}),
        ("\r\npath,label\r\n\r\n1.jpg,a\r\n\r\n2.jpg,b\r\n\r\n", {}),
        ("path,label\r1.jpg,a\r2.jpg,b", {}),
        ("\ufeffpath,label\n1.jpg,a\n2.jpg,b\n", {}),
        ("IMG,Class\n1.jpg,a\n2.jpg,b\n", {}),
        ("x,where,what\n,1.jpg,a\n,2.jpg,b\n", {"path_column": "where", "label_column": "what"}),
        ("path,label,note\n1.jpg,a,\"it's, here\"\n2.jpg,b,it's there\n", {}),
    ],
)
def test_csv_dialects_are_detected_or_given(text: str, options: dict[str, Any], tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    source = ManifestSource(written(tmp_path, text), **options)
    assert (column(source, "key"), column(source, "label")) == (["1.jpg", "2.jpg"], [0, 1])
    assert problems(source) == []


def test_one_column_alone_is_a_list_of_paths(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    source = ManifestSource(written(tmp_path, "path\n1.jpg\n2.jpg\n"))
    assert column(source, "key") == ["1.jpg", "2.jpg"]
    assert "classes" not in source.attrs


@pytest.mark.parametrize("encoding", ["utf-16", "cp1252", "utf-8"])
def test_an_encoding_can_be_given(encoding: str, tmp_path: Path) -> None:
    put(tmp_path, "é.jpg")
    source = ManifestSource(written(tmp_path, "path,label\né.jpg,à\n".encode(encoding)), encoding=encoding)
    assert (column(source, "key"), source.attrs["classes"]) == (["é.jpg"], ["à"])


@pytest.mark.parametrize(
    ("text", "options", "labels", "classes"),
    [
        ("3,1,-2", {}, [3, 1, -2], None),
        ("b,a,b", {}, [1, 0, 1], ["a", "b"]),
        ("b,a,b", {"classes": ["b", "a", "x"]}, [0, 1, 0], ["b", "a", "x"]),
        ("1,0,1", {"classes": ["x", "y"]}, [1, 0, 1], ["x", "y"]),
        ("10,9,a", {"label_type": "names"}, [0, 1, 2], ["10", "9", "a"]),
        ("10,9,a", {"classes": ["a", "9", "10"]}, [2, 1, 0], ["a", "9", "10"]),
        ("7,8,7", {"classes": ["7", "8"]}, [0, 1, 0], ["7", "8"]),
        ("1,0,1", {"classes": ["0", "1"], "label_type": "int"}, [1, 0, 1], ["0", "1"]),
    ],
)
def test_labels_are_integers_or_names(
    text: str, options: dict[str, Any], labels: list[int], classes: list[str] | None, tmp_path: Path
) -> None:
    put(tmp_path, "0.jpg", "1.jpg", "2.jpg")
    rows = "".join(f"{number}.jpg,{label}\n" for number, label in enumerate(text.split(",")))
    source = ManifestSource(written(tmp_path, "path,label\n" + rows), **options)
    assert column(source, "label") == labels
    assert source.attrs.get("classes") == classes


def test_ambiguous_labels_raise(tmp_path: Path) -> None:
    file = written(tmp_path, "path,label\n1.jpg,0\n2.jpg,1\npath,label\n")
    with pytest.raises(ConfigError) as caught:
        ManifestSource(file)
    assert str(caught.value) == (
        "train.csv: labels are integers such as '0' at train.csv line 2, names such as 'label' at train.csv line 4; pass "
        "label_type='names' (--label-type names) if all are class names, 'int' to accept integers only, classes=[…] to list "
        "the class names, or label=False (--no-label) to keep them as another field"
    )
    assert problems(ManifestSource(file, label_type="int")) == [
        "train.csv line 4 (path): label 'label' is not an integer"
    ]
    with pytest.raises(
        ConfigError, match=r"labels are numbers such as '1\.5' at train.csv line 2; pass label_type='names'"
    ):
        ManifestSource(written(tmp_path, "path,label\n1.jpg,1.5\n"))


def test_label_column_can_be_none(tmp_path: Path) -> None:
    source = ManifestSource(written(put(tmp_path, "1.jpg"), "path,label\n1.jpg,1.5\n"), label_column="")
    assert kinds(source) == {"image": "image", "key": "str", "label": "float"}


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


def test_spaces_around_a_label_are_ignored(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg", "3.jpg")
    source = ManifestSource(written(tmp_path, "path,label\n1.jpg,cat\n2.jpg,cat \n3.jpg,dog\n"))
    assert (column(source, "label"), source.attrs["classes"]) == ([0, 0, 1], ["cat", "dog"])


def test_hidden_files_of_a_list_are_left_out_by_default(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg", "a/.ipynb_checkpoints/1.jpg", "__MACOSX/a/._1.jpg")
    file = written(tmp_path, "path,label\na/1.jpg,x\na/.ipynb_checkpoints/1.jpg,y\n__MACOSX/a/._1.jpg,z\n")
    source = ManifestSource(file)
    assert (column(source, "key"), source.attrs["classes"]) == (["a/1.jpg"], ["x"])
    assert source.notes[0].startswith("left out 2 hidden files (__MACOSX/a/._1.jpg, a/.ipynb_checkpoints/1.jpg); ")
    assert len(ManifestSource(file, include_hidden=True)) == 3
    with pytest.raises(ConfigError, match="lists no image; left out 1 hidden file"):
        ManifestSource(written(tmp_path, "path\na/.ipynb_checkpoints/1.jpg\n"))


def test_bad_rows_are_reported_by_line(tmp_path: Path) -> None:
    put(tmp_path, "root/1.jpg", "out.jpg")
    root = tmp_path / "root"
    (root / "link.jpg").symlink_to("../out.jpg")
    (root / "up").symlink_to("..")
    text = (
        "path,label,x\n1.jpg,a,1\n"
        "2.jpg,,1\n"  # 3
        ",a,1\n"
        "./1.jpg,b,1\n"  # 5
        "../out.jpg,a,1\n"
        "/etc/passwd,a,1\n"  # 7
        "link.jpg,a,1\n"
        "up/out.jpg,a,1\n"  # 9
        "3.jpg,a\n"
        "3.jpg,a,1,2\n"  # 11
        "3\0.jpg,a,1\n"
        '"3.jpg"x,a,1\n'  # 13
        '"two\nlines.jpg",a,1\n'
        "4.jpg, ,1\n"  # 16
        '"open,a,1\n'
        "5.jpg,a,1\n"
    )
    source = ManifestSource(written(root, text))
    outside = f"outside {root}; pass allow_outside=True (--allow-outside) to read it anyway"
    assert column_keys(source) == ["1.jpg", "two\nlines.jpg"]
    assert problems(source) == [
        "train.csv line 3 (2.jpg): no label is given in 'label'",
        "train.csv line 4: no path is given",
        "train.csv line 5 (./1.jpg): the path is already listed at train.csv line 2",
        f"train.csv line 6 (../out.jpg): the path leads out of {root}; pass allow_outside=True (--allow-outside) to read it anyway",
        f"train.csv line 7 (/etc/passwd): the path is absolute, but paths are relative to {root}; pass "
        "allow_outside=True (--allow-outside) to read it anyway",
        f"train.csv line 8 (link.jpg): the path leads through a link to {tmp_path}/out.jpg, {outside}",
        f"train.csv line 9 (up/out.jpg): the path leads through a link to {tmp_path}/out.jpg, {outside}",
        "train.csv line 10: has 2 columns instead of 3",
        "train.csv line 11: has 4 columns instead of 3",
        "train.csv line 12: contains a NUL character",
        "train.csv line 13: is not CSV: ',' expected after '\"'",
        "train.csv line 16 (4.jpg): no label is given in 'label'",
        "train.csv line 17: a quote is opened and not closed before the file ends at line 18",
    ]
    allowed = ManifestSource(
        written(root, "path\n../out.jpg\nlink.jpg\n" + f"{tmp_path}/out.jpg\n"), allow_outside=True
    )
    assert problems(allowed) == []
    assert column(allowed, "image") == [jpeg(1)] * 3


def column_keys(source: PackSource) -> list[str]:
    return [source.name(index).partition(" (")[2][:-1] for index in range(len(source))]


def test_an_unreadable_file_is_a_bad_item(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")
    long = "n" * 300
    source = ManifestSource(written(tmp_path, f"path\ngone.jpg\nfolder.jpg\npipe.jpg\n{long}\n"))
    assert [refused(source, index) for index in range(4)] == [
        "train.csv line 2 (gone.jpg): cannot be read: No such file or directory",
        "train.csv line 3 (folder.jpg): is not a regular file",
        "train.csv line 4 (pipe.jpg): is not a regular file",
        f"train.csv line 5 ({long}): cannot be read: File name too long",
    ]


def test_labels_outside_the_given_classes_are_reported(tmp_path: Path) -> None:
    file = written(tmp_path, "path,label\n1.jpg,dgo\n2.jpg,cat\n")
    source = ManifestSource(file, classes=["dog", "cat"])
    assert problems(source) == [
        "train.csv line 2 (1.jpg): unknown label 'dgo'; did you mean 'dog'? The classes are dog, cat"
    ]
    assert column_keys(source) == ["2.jpg"]
    source = ManifestSource(written(tmp_path, "path,label\n1.jpg,1\n2.jpg,2\n3.jpg,-1\n"), classes=["dog", "cat"])
    assert problems(source) == [
        "train.csv line 3 (2.jpg): label 2 is outside the 2 classes given",
        "train.csv line 4 (3.jpg): label -1 is outside the 2 classes given",
    ]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "train.csv is empty; expected a line of column names, and one line per image"),
        ("path,label\n", {}, "train.csv lists no image"),
        (
            "a,b\n1.jpg,2\n",
            {},
            r"none of its columns 'a', 'b' is one of path, image, .*; name it with path_column= \(--path-column\), or, for CSV "
            r"without a header, pass columns=\['path', …\] \(--columns path,label\)",
        ),
        ("path,label\n", {"path_column": "pth"}, "path_column='pth' is not one of its columns 'path', 'label'"),
        ("path,label\n", {"label_column": "y"}, "label_column='y' is not one of its columns 'path', 'label'"),
        ("path,label\n", {"label_column": "path"}, "column 'path' cannot contain both paths and labels"),
        ("path,x,x\n", {}, "there are two columns 'x'; rename one"),
        ("path,A b,a_b\n", {"label": False}, "column 'a_b' becomes field 'a_b', and so does column 'A b'; rename one"),
        (
            "path,Key\n",
            {"label": False},
            "column 'Key' becomes field 'key', and so does a field that pack adds; rename one",
        ),
        ("p\0ath,label\n", {}, "its header contains NUL characters; if it is UTF-16, pass encoding='utf-16'"),
        (
            "path,label\né.jpg,a\n".encode("latin-1"),
            {},
            r"train.csv: byte 11 \(0xe9, line 2\) is not utf-8: invalid continuation byte; pass encoding= with the encoding",
        ),
        ("path\né.jpg\n", {"encoding": "ascii"}, r"byte 5 \(0xc3, line 2\) is not ascii: ordinal not in range"),
        ("path\na.jpg\n".encode("utf-16"), {}, "train.csv begins like UTF-16, not UTF-8; pass encoding='utf-16'"),
        ("path\n", {"encoding": "klingon"}, "encoding='klingon' is not a text encoding that Python knows"),
        ("path\n", {"encoding": "hex"}, "encoding='hex' is not a text encoding that Python knows"),
        ("path\n", {"delimiter": ",,"}, "delimiter=',,' must be one character, and not a line end"),
        ("path\n", {"delimiter": "\n"}, "must be one character, and not a line end"),
        ("path\n", {"format": "xml"}, "format='xml'; the formats are csv and jsonl"),
        ("path\n", {"label_type": "float"}, "label_type='float'; the choices are auto, int, names"),
        ("path,label\n", {"classes": "cat"}, "classes='cat' must be a list of class names"),
        ("path,label\n", {"classes": ["a", "a"]}, "classes: 'a' is listed twice"),
        ("path,label\n", {"classes": []}, "classes: the list is empty"),
        ('"path,label\n1.jpg,a\n', {}, "train.csv: its header cannot be read: unexpected end of data"),
        ("path\n", {"format": "jsonl", "delimiter": ";"}, "apply to CSV, not to JSONL"),
    ],
)
def test_ambiguous_manifests_raise(text: str | bytes, options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        ManifestSource(written(tmp_path, text), **options)


def test_a_wrong_byte_is_reported_with_its_offset(tmp_path: Path) -> None:
    text = "path\n" + "".join(f"{number:07}.jpg\n" for number in range(50_000))
    data = text.encode()
    file = written(tmp_path, data[:400_000] + b"\xff" + data[400_000:])
    with pytest.raises(ConfigError, match=r"byte 400000 \(0xff, line 33334\) is not utf-8: invalid start byte"):
        ManifestSource(file)


def test_an_unclosed_quote_does_not_exhaust_memory(tmp_path: Path) -> None:
    rows = "".join(f"{number}.jpg,a\n" for number in range(20_000))
    source = ManifestSource(written(tmp_path, f'path,label\n0.png,a\n"{rows}'))
    assert problems(source)[0] == (
        "train.csv line 3: field larger than field limit (131072); is a quote opened and not closed?"
    )


def test_a_manifest_must_be_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(ConfigError, match="pipe.csv is not a regular file"):
        ManifestSource(tmp_path / "pipe.csv")
    with pytest.raises(StoreNotFoundError, match=r"no file at .*none.csv: .* holds pipe.csv"):
        ManifestSource(tmp_path / "none.csv")
    with pytest.raises(StoreNotFoundError, match="root='nowhere' is not a folder"):
        ManifestSource(written(tmp_path, "path\n1.jpg\n"), root="nowhere")


CELLS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


@settings(max_examples=examples(150))
@given(
    rows=st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=5),
    delimiter=st.sampled_from(",;\t|:^ é"),
    quotechar=st.sampled_from("\"'$"),
    escapechar=st.sampled_from([None, "\\", "!"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC, csv.QUOTE_NONE]),
    doublequote=st.booleans(),
    lineterminator=st.sampled_from(["\n", "\r\n"]),
)
def test_files_of_the_csv_module_round_trip(
    rows: list[tuple[str, str]],
    delimiter: str,
    quotechar: str,
    escapechar: str | None,
    quoting: Any,
    doublequote: bool,
    lineterminator: str,
) -> None:
    if quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_NONE):  # csv.writer itself leaves this one unquoted
        rows = [(first.replace("\r", ""), second.replace("\r", "")) for first, second in rows]
    escapechar = escapechar or ("\\" if quoting == csv.QUOTE_NONE or not doublequote else None)
    buffer = io.StringIO(newline="")
    writer = csv.writer(
        buffer,
        delimiter=delimiter,
        quotechar=quotechar,
        escapechar=escapechar,
        quoting=quoting,
        doublequote=doublequote,
        lineterminator=lineterminator,
    )
    writer.writerow(["path", "a", "b"])
    writer.writerows([[f"{number}.jpg", *row] for number, row in enumerate(rows)])
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), *(f"{number}.jpg" for number in range(len(rows))))
        file = written(Path(folder), buffer.getvalue())
        source = ManifestSource(
            file,
            label=False,
            delimiter=delimiter,
            quotechar="" if quoting == csv.QUOTE_NONE else quotechar,
            escapechar=escapechar,
        )
        assert problems(source) == []
        assert [(str(record["a"]), str(record["b"])) for record in records(source)] == [
            tuple(normal(source, name, cell) for name, cell in zip("ab", row, strict=True)) for row in rows
        ]


def normal(source: PackSource, name: str, cell: str) -> str:
    """Return the text that a cell has once it was a number."""
    kind = source.fields[name].kind
    return str({"int": int, "float": float}.get(kind, str)(cell))


@settings(max_examples=examples(60))
@given(
    rows=st.lists(
        st.tuples(st.text("ab c,;'\"\n1", max_size=8), st.text("xyz 0-9.,", max_size=8)), min_size=1, max_size=5
    ),
    delimiter=st.sampled_from(",;\t|"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
)
@example(rows=[("it's", ""), ("'", "''")], delimiter=",", quoting=csv.QUOTE_MINIMAL)
@example(rows=[("'", ""), ("'", "")], delimiter=",", quoting=csv.QUOTE_MINIMAL)
def test_dialects_of_python_and_spreadsheets_are_detected(
    rows: list[tuple[str, str]], delimiter: str, quoting: Any
) -> None:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter, quoting=quoting)
    writer.writerow(["path", "a", "b"])
    writer.writerows([[f"{number}.jpg", *row] for number, row in enumerate(rows)])
    with tempfile.TemporaryDirectory() as folder:
        put(Path(folder), *(f"{number}.jpg" for number in range(len(rows))))
        source = ManifestSource(written(Path(folder), buffer.getvalue()), label=False)
        assert problems(source) == []
        assert [str(value) for value in column(source, "a")] == [normal(source, "a", first) for first, _ in rows]


# JSON lines


def test_jsonl_columns_have_the_types_of_their_values(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    rows: list[dict[str, Any]] = [
        {
            "path": "1.jpg",
            "label": "b",
            "i": 1,
            "f": 1,
            "b": True,
            "s": "x",
            "o": {"k": [1]},
            "m": 1,
            "n": None,
            "big": 2**70,
        },
        {"path": "2.jpg", "label": "a", "i": -(2**60), "f": 0.5, "b": False, "s": "1", "o": [], "m": "1", "late": 1},
    ]
    source = ManifestSource(written(tmp_path, "\n\n".join(map(json.dumps, rows)), "train.ndjson"))
    assert list(kinds(source).items())[3:] == [
        ("i", "int"),
        ("f", "float"),
        ("b", "bool"),
        ("s", "str"),
        ("o", "json"),
        ("m", "json"),
        ("n", "json"),
        ("big", "json"),
        ("late", "json"),
    ]
    for record, row, label in zip(records(source), rows, (1, 0), strict=True):
        rest = {name: record[name] for name in record.keys() - {"image", "key", "label"}}
        expected = {name: row.get(name) for name in rest}
        assert {name: (type(value), value) for name, value in rest.items() if name != "f"} == {
            name: (type(value), value) for name, value in expected.items() if name != "f"
        }
        assert (record["f"], record["label"]) == (row["f"], label)
    assert source.attrs == {"classes": ["a", "b"], "source": {"kind": "jsonl", "file": "train.ndjson"}}


def test_bad_json_lines_are_reported_by_line_and_column(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg")
    text = (
        '{"path": "1.jpg", "label": 1, "x": 1}\n'
        '{"path": "2.jpg", "label": 1,,}\n'  # 2
        '["3.jpg", 1]\n'
        '{"path": "4.jpg", "x": 1}\n'  # 4
        '{"path": "5.jpg", "label": null, "x": 1}\n'
        '{"label": 1, "x": 1}\n'  # 6
        '{"path": 7, "label": 1, "x": 1}\n'
        '{"path": "8.jpg", "label": true, "x": 1}\n'  # 8
        '{"path": "9\\u0000.jpg", "label": 1, "x": 1}\n'
        '{"path": "10\\ud800.jpg", "label": 1, "x": 1}\n'  # 10
        '{"path": "11.jpg", "label": 1, "x": "\\ud800"}\n'
        '{"path": "12.jpg", "label": 1, "x": ["\\ud800"]}\n'  # 12
        '{"path": "1.jpg", "label": 1, "x": 1}\n'
    )
    text += '{"path": "14.jpg", "x": ' + "[" * 100_000 + "\n" + '{"path": "15.jpg", "x": ' + "9" * 5000 + "}\n"
    source = ManifestSource(written(tmp_path, text, "a.jsonl"))
    assert len(source) == 1
    assert problems(source) == [
        "a.jsonl line 2: is not JSON at column 30: Expecting property name enclosed in double quotes",
        "a.jsonl line 3: is a JSON list; expected an object with a path",
        "a.jsonl line 4 (4.jpg): no label is given in 'label'",
        "a.jsonl line 5 (5.jpg): no label is given in 'label'",
        "a.jsonl line 6: no path is given",
        "a.jsonl line 7: its path is a int, not text",
        "a.jsonl line 8 (8.jpg): its label is a bool; expected an integer or a class name",
        "a.jsonl line 9 (9\\x00.jpg): its path contains a NUL character",
        "a.jsonl line 10 (10\\ud800.jpg): its path is not valid UTF-8",
        "a.jsonl line 11 (11.jpg): contains text with a lone surrogate, which UTF-8 cannot encode",
        "a.jsonl line 12 (12.jpg): contains text with a lone surrogate, which UTF-8 cannot encode",
        "a.jsonl line 13 (1.jpg): the path is already listed at a.jsonl line 1",
        "a.jsonl line 14: is JSON nested too deeply",
        "a.jsonl line 15: is JSON that cannot be stored: Exceeds the limit (4300 digits) for integer string conversion: "
        "value has 5000 digits; use sys.set_int_max_str_digits() to increase the limit",
    ]


def test_unstorable_json_is_a_bad_item(tmp_path: Path) -> None:
    source = ManifestSource(written(put(tmp_path, "1.jpg"), '{"path": "1.jpg", "x": [NaN]}', "a.jsonl"), label=False)
    assert refused(source) == "a.jsonl line 1 (1.jpg): its x cannot be stored: JSON has no nan"


# A JSON index


def indexed(root: Path, index: Any) -> Path:
    return written(root, index if isinstance(index, str) else json.dumps(index), "index.json")


def test_an_index_of_lists(tmp_path: Path) -> None:
    put(tmp_path, "1.jpg", "2.jpg")
    index = {"path_list": ["1.jpg", "2.jpg"], "label_list": ["b", "a"], "weight_list": [1, 0.5], "version": 3}
    source = JsonIndexSource(indexed(tmp_path, index))
    assert kinds(source) == {"image": "image", "label": "int", "key": "str", "weight": "float"}
    assert column(source, "weight") == [1.0, 0.5]
    assert source.attrs == {
        "classes": ["a", "b"],
        "source": {"kind": "index", "file": "index.json", "ignored": ["version"]},
    }
    index = {"path_list": ["1.jpg", "2.jpg"], "label_list": [1, 0], "classes": ["x", "y"]}
    assert JsonIndexSource(indexed(tmp_path, index)).attrs["classes"] == ["x", "y"]


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"path_list": ["a", "b"], "label_list": [1]}, "index.json: path_list has 2 items, but label_list has 1"),
        ({"path_list": ["a"], "label_list": [1, 2]}, "index.json: path_list has 1 items, but label_list has 2"),
        ({"path_list": ["a"], "x_list": []}, "path_list has 1 items, but x_list has 0"),
        ({"paths": []}, r'expected {"path_list": \[…\], "label_list": \[…\]}, found keys \'paths\''),
        ([1], "found list"),
        ({"path_list": []}, "lists no image"),
        ('{"path_list": [}', "index.json is not JSON at line 1 column 16: Expecting value"),
        ("[" * 100_000, "index.json is JSON that cannot be stored"),
        ('{"path_list": [' + "9" * 5000 + "]}", "index.json is JSON that cannot be stored: Exceeds"),
    ],
)
def test_invalid_indexes_raise(index: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        JsonIndexSource(indexed(tmp_path, index))


def test_bad_items_of_an_index_are_reported_by_position(tmp_path: Path) -> None:
    index = {"path_list": ["1.jpg", "../2.jpg", None, "1.jpg"], "label_list": [1, 2, 3, 4]}
    assert problems(JsonIndexSource(indexed(tmp_path, index))) == [
        f"index.json path_list[1] (../2.jpg): the path leads out of {tmp_path}; pass allow_outside=True (--allow-outside) to "
        "read it anyway",
        "index.json path_list[2]: no path is given",
        "index.json path_list[3] (1.jpg): the path is already listed at index.json path_list[0]",
    ]


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
