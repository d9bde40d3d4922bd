"""Packing takes short cuts: none of them changes what is taken, what is stored, or what a death leaves."""

from __future__ import annotations

import os
import random
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import pytest

import storeds
from _packing import records_of, storeds_json
from make_store import make_store
from mask_files import write
from storeds import errors
from storeds.formats import Bad, Differences, ExportFolder, File, Format, Row, Rows, from_start
from storeds.protocols import Field

FIELDS = {"label": "int", "key": "str", "image": "bytes", "blob": "bytes"}


def make_records(count: int, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return records whose images have these sizes in turn; no two are alike."""
    chance = random.Random(5)
    return [
        {"label": at, "key": f"№ {at}", "image": chance.randbytes(sizes[at % len(sizes)]), "blob": chance.randbytes(9)}
        for at in range(count)
    ]


def test_a_file_that_says_it_is_empty_is_read_whole() -> None:
    assert File("/proc/self/status").read().startswith(b"Name:")


def test_hardly_a_page_of_a_published_lmdb_file_is_free(tmp_path: Path) -> None:
    records = make_records(200, (40_000,))
    with storeds.open_writer(f"lmdb://{tmp_path}/store", FIELDS, commit_every=10) as writer:
        writer.append(records)
    whole_pages = sum(-(-len(record["image"]) // 4096) * 4096 for record in records)
    assert (tmp_path / "store").stat().st_size < whole_pages + 40 * 4096


@pytest.mark.parametrize("workers", [0, 3])
def test_files_are_read_and_examined_in_threads_that_end_with_the_pack(tmp_path: Path, workers: int) -> None:
    write(tmp_path / "tree", {f"class{at % 2}/{at:03}.jpg": at % 12 for at in range(400)})
    before, seen = threading.active_count(), list[int]()

    def stop(_: object) -> None:
        seen.append(threading.active_count())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(tmp_path / "tree", f"hdf5://{tmp_path}/store", workers=workers, progress=stop)
    assert before < seen[0] <= before + max(workers, 1)
    assert threading.active_count() == before


def letters(folder: Path) -> Rows:
    """The letters of the files in a folder, and one that is not there."""

    def items() -> Iterator[Row | Bad]:
        for name in "abcd":
            yield Row(name, {"key": name, "blob": File(str(folder / name))})
            yield Bad(f"{name}{name}", "is doubled") if name == "b" else Row(name * 2, {"key": name * 2, "blob": b"x"})

    return Rows(
        fields={"key": Field("str"), "blob": Field("bytes")}, items=from_start(items), attrs={"kind": "letters"}
    )


def test_a_source_of_ones_own_yields_rows(tmp_path: Path) -> None:
    write(tmp_path, {name: name * 5 for name in "abd"})
    problems, target = list[Bad](), f"lmdb://{tmp_path}/store"
    packed = storeds.pack(letters(tmp_path), target, on_bad="skip", on_problem=problems.append)
    reasons = [("bb", "is doubled"), ("c", "cannot be read: No such file or directory")]
    assert [(each.name, each.reason) for each in problems] == reasons
    assert (packed.count, packed.left_out, packed.attrs) == (6, 2, {"kind": "letters"})
    values = [(each["key"], each["blob"]) for each in records_of(target)]
    assert values[:3] == [("a", b"aaaaa"), ("aa", b"x"), ("b", b"bbbbb")]


class Names:
    """Writes the keys of records, one a line."""

    def __init__(self, meta: storeds.Meta, out: ExportFolder) -> None:
        self.out, self.left_out = out, dict.fromkeys(meta.fields.keys() - {"key"}, "no place")

    def add(self, position: int, record: storeds.Record) -> None:
        self.out.append("names.txt", f"{position} {record['key']}\n")

    def finish(self) -> Differences:
        return Differences(self.left_out, ())


def test_a_registered_format_reads_writes_and_is_detected(tmp_path: Path, registries: None) -> None:
    def read(path: str, *, upper: bool = False) -> Rows:
        """Rows of letters.

        Parameters
        ----------
        path : path
        upper : bool
            Whether they are upper case.
        """
        return replace(letters(Path(path)), attrs={"upper": upper})

    def detect(path: str) -> bool:
        return os.path.exists(os.path.join(path, "a"))

    write(tmp_path, {name: name for name in "abcd"})
    storeds.register_format("letters", Format(about="letters of an alphabet", read=read, write=Names, detect=detect))
    with pytest.raises(errors.ConfigError, match="no option 'uper'; did you mean 'upper'"):
        storeds.pack(tmp_path, "memory://letters", kind="letters", uper=True)
    found = storeds.pack(tmp_path, "memory://letters", kind="letters", upper=True, on_bad="skip", overwrite=True)
    assert found.attrs == {"upper": True}
    assert storeds.pack(tmp_path, f"lmdb://{tmp_path}/2", on_bad="skip").id != found.id
    (row, written) = storeds_json("formats", "letters")["formats"]
    assert (row["use"], row["about"], row["options"][0]["name"]) == ("pack", "letters of an alphabet", "upper")
    assert (written["use"], written["options"]) == ("export", [])
    out = storeds_json("export", f"lmdb://{tmp_path}/2", tmp_path / "out", "--format", "letters")
    assert out["left_out"] == {"blob": "no place"}
    assert (tmp_path / "out" / "names.txt").read_text() == "0 a\n1 aa\n2 b\n3 c\n4 cc\n5 d\n6 dd\n"


def test_formats_of_one_direction_say_so(tmp_path: Path, registries: None) -> None:
    with pytest.raises(errors.ConfigError, match="export writes no format 'csv'; the formats are coco, folder, yolo"):
        storeds.export(make_store({"key": "str"}, []), tmp_path / "out", format="csv")
    storeds.register_format("names", Format(about="names", write=Names))
    with pytest.raises(errors.ConfigError, match="export writes format 'names', and pack does not read it"):
        storeds.pack(tmp_path, "memory://x", kind="names")


def test_a_source_that_changes_while_it_is_packed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.ops.packing.listing._FEW", 3)  # more are listed again
    passes = count()

    def items() -> Iterator[Row]:
        yield from (Row(str(n), {"key": str(n)}) for n in range(4 - next(passes)))

    with pytest.raises(errors.ConfigError, match="3 items now, and had 4 when it was listed"):
        storeds.pack(Rows(fields={"key": Field("str")}, items=from_start(items)), f"lmdb://{tmp_path}/store")
    assert not (tmp_path / "store").exists()


def with_larger_pages(empty: bytes, size: int) -> bytes:
    """Return an empty LMDB file, whose pages have 4096 bytes, as a machine with pages of `size` bytes would make it."""
    metas = []
    for at in (0, 4096):
        meta = bytearray(empty[at : at + 4096].ljust(size, b"\0"))
        struct.pack_into("<I", meta, 16 + 24, size)  # behind the page's header: magic, version, address, map size
        metas.append(bytes(meta))
    return b"".join(metas)


def test_lmdb_with_pages_of_another_size_has_room_for_what_it_writes(tmp_path: Path) -> None:
    url, records = f"lmdb://{tmp_path}/store", make_records(1800, (16_400,))
    storeds.open_writer(url, FIELDS).suspend()
    with lmdb.open(str(tmp_path / "empty"), subdir=False, lock=False):
        pass
    larger = with_larger_pages((tmp_path / "empty").read_bytes(), 1 << 14)
    (tmp_path / ".store.partial/building.mdb").write_bytes(larger)
    with storeds.open_writer(url, FIELDS, resume=True, commit_every=1900) as writer:
        writer.append(records)
    with lmdb.open(str(tmp_path / "store"), subdir=False, lock=False, readonly=True) as env:
        assert env.stat()["psize"] == 1 << 14
    assert records_of(url) == records
    assert storeds.verify(url).ok
