"""Folders and stores as sources of `pack`, and how `pack` finds out what a source is."""

from __future__ import annotations

import os
import socket
import tarfile
from pathlib import Path
from typing import Any

import pytest

import storeds
from _rows import Source
from photographs import jpeg
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources import open_source


def put(root: Path, *names: str | bytes) -> Path:
    """Write a photograph under each name."""
    for number, name in enumerate(names):
        path = os.path.join(os.fsencode(root), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(jpeg(number))
    return root


# Folders


def test_special_files_do_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a/1.jpg")
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    os.mkfifo("a/2.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("a/3.jpg")
        os.mknod("a/5.jpg", 0o600 | 0o20000, os.makedev(1, 3))
        assert Source(".", kind="imagefolder").bad == [
            "a/2.jpg: is not a regular file",
            "a/3.jpg: cannot be read: No such device or address",
            "a/5.jpg: is not a regular file",
        ]


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
    url = f"lmdb://{root}/a.lmdb"
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append([{"image": jpeg(n), "label": n + 3} for n in range(100)])
        writer.publish({"classes": list("abcdefgh") + [str(n) for n in range(100)]})
    return url


def test_a_bad_record_of_a_store_is_a_bad_item(tmp_path: Path) -> None:
    url = write_store(tmp_path)
    sought = jpeg(7)[-40:]
    data = (tmp_path / "a.lmdb").read_bytes()  # of which free pages hold copies
    (tmp_path / "a.lmdb").write_bytes(data.replace(sought, bytes([sought[0] ^ 1]) + sought[1:]))
    source = Source(url)
    damaged = [n for n in range(100) if jpeg(n) == jpeg(7)]
    assert len(source.records) == 100 - len(damaged)
    assert len(source.bad) == len(damaged)
    for position, bad in zip(damaged, source.bad, strict=True):
        assert bad.startswith(f"record {position} of {url}: its checksum does not match")


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
    ("source", "options", "error", "message"),
    [
        ("none", {}, StoreNotFoundError, "nothing exists at none: .* holds "),
        ("both", {}, ConfigError, r"both contains 1 image \(x.jpg\) and 1 folder \(a\); pass kind='imagefolder' .* kind='flat'"),
        ("empty", {}, ConfigError, r"empty has no sub-folders and no images \(.jpg .*\), nothing"),
        ("texts", {}, ConfigError, "no images .*, only a.csv, b.txt; pass one of these files"),
        ("texts/b.txt", {}, ConfigError, "b.txt ends in none of .csv, .* and it is not a store, a tar file .*; pass kind="),
        ("pipe.csv", {}, ConfigError, "pipe.csv is neither a folder nor a regular file"),
        ("a\0b", {}, ConfigError, "expected a path, and no path holds a NUL"),
        ("a\0b", {"kind": "coco"}, ConfigError, "is no path: it has a NUL character"),
        ("texts/a.csv", {"kind": "cvs"}, ConfigError, "unknown source 'cvs'; did you mean 'csv'"),
        ("both", {"kind": "imgfolder"}, ConfigError, "unknown source 'imgfolder'; did you mean 'imagefolder'"),
        ("both", {"kind": "flat", "delimiter": ";"}, ConfigError, "a source of kind flat has no option 'delimiter'; the options are"),
        (["a.jpg", "b.jpg"], {}, ConfigError, "a list of paths is a source only if all are .tar files"),
        (7, {}, ConfigError, "a int is not a source: expected a path, a URL, or a dataset"),
        ({"a": 1}, {}, ConfigError, "a dict is not a source"),
        ([1], {"kind": "csv"}, ConfigError, "kind='csv' needs a path, not a list"),
        ("gopher://x/y", {}, ConfigError, "unknown backend 'gopher'"),
    ],
)  # fmt: skip
def test_invalid_sources(
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
    assert len(Source("both", kind="flat").records) == 2
    assert len(Source("both", kind="imagefolder").records) == 1
