"""Tar shards as sources of `pack`: samples, shards, and what is said of everything damaged or hostile."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

import h5py
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import storeds
from _packing import Source
from _source_files import tar
from mask_files import write
from photographs import jpeg
from shares import examples
from storeds.errors import StoreNotFoundError
from storeds.formats import BadItem, Row


def shard(path: Path, members: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    return write(path.parent, {path.name: tar(members, form)}) / path.name


NAMES = st.text("ab.é/", min_size=1, max_size=160).filter(lambda name: "//" not in name and name[-1] != "/")


@settings(max_examples=examples(80))
@given(
    members=st.lists(st.tuples(NAMES, st.binary(max_size=1200)), max_size=8, unique_by=lambda member: member[0]),
    form=st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
@example(members=[("a", b"\x89HDF\r\n\x1a\n")], form=tarfile.USTAR_FORMAT)  # where an HDF5 file may begin
def test_tars_are_grouped_as_tarfile_reads_them(members: list[tuple[str, bytes]], form: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar"
        try:
            shard(path, dict([("first.jpg", b"x"), *members]), form)
        except ValueError:  # ustar has no room for the name
            return
        wanted: dict[str, bytes] = {}
        with tarfile.open(path) as file:
            for info in file:
                parts = info.name.split("/")
                name, _, ending = parts[-1].partition(".")
                is_hidden = any(part.startswith(".") and part not in (".", "..") for part in parts)
                if name and ending == "jpg" and not is_hidden and parts[0] and ".." not in parts:
                    key = os.path.normpath("/".join([*parts[:-1], name]))
                    wanted.setdefault(key, file.extractfile(info).read())  # type: ignore[union-attr]
        source = Source(path, label=False, extensions="jpg")
        assert dict(zip(source.column("key"), source.column("image"), strict=True)) == wanted


def test_shards_are_given_by_range_glob_or_list(tmp_path: Path) -> None:
    for number in range(8, 12):
        shard(tmp_path / f"s-{number:03}.tar", {f"{number}.jpg": jpeg(number)})
    shard(tmp_path / "[x].tar", {"1.jpg": b""})
    for given_as, keys in (
        (tmp_path / "s-{008..011}.tar", ["8", "9", "10", "11"]),
        (f"{tmp_path}/s-01?.tar", ["10", "11"]),
        ([tmp_path / "s-010.tar", str(tmp_path / "s-008.tar")], ["10", "8"]),
        (tmp_path / "[x].tar", ["1"]),
    ):
        assert Source(given_as).column("key") == keys
    with pytest.raises(StoreNotFoundError, match=r"no file matches .*s-9\*.tar"):
        Source(f"{tmp_path}/s-{{9..11}}*.tar")


def test_a_member_is_read_whole_by_a_system_that_returns_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"0.jpg": jpeg(0), "1.jpg": jpeg(1)}
    (tmp_path / "a.tar").write_bytes(tar(members))
    pread = os.pread  # one call returns at most 2 GiB - 4096 bytes on Linux
    monkeypatch.setattr(os, "pread", lambda descriptor, size, offset: pread(descriptor, min(size, 100), offset))
    assert Source(tmp_path / "a.tar").column("image") == list(members.values())


def test_a_tar_that_holds_an_hdf5_file_is_a_tar(tmp_path: Path) -> None:
    # HDF5 allows a user block of 512 bytes in front, which is where the first member of a tar file begins.
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2]
    path = shard(tmp_path / "a.tar", {"a.h5": (tmp_path / "a.h5").read_bytes(), "a.jpg": jpeg(0)}, tarfile.USTAR_FORMAT)
    assert storeds.info(path, options={"label": False}).layout == "tar"
    assert storeds.pack(path, "memory://held", label=False).count == 1


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    types = (tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"Z", tarfile.DIRTYPE)
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as file:
        for number, type in enumerate(types):
            info = tarfile.TarInfo(f"type{number}.jpg")
            info.type, info.linkname = type, "/etc/passwd"
            file.addfile(info)
        for name in ("b\udcff.jpg", "good.jpg"):
            file.addfile(tarfile.TarInfo(name))
    source = Source(tmp_path / "a.tar")
    assert source.column("key") == ["good"]
    assert source.bad == [
        *(f"a.tar: type{n}.jpg: is a link, a device or a sparse file; only regular files are packed" for n in range(5)),
        r"a.tar: b\xff.jpg: its path is not valid UTF-8",
    ]
    assert os.listdir(tmp_path) == ["a.tar"]


def test_a_truncated_tar_keeps_earlier_members(tmp_path: Path) -> None:
    members = {f"{'deep/' * 30}{number}.jpg": bytes([number]) * 700 for number in range(3)}
    whole = shard(tmp_path / "a.tar", members, tarfile.GNU_FORMAT).read_bytes()
    every = Source(tmp_path / "a.tar").records
    assert len(every) == 3
    for size in [0, 1, 511, *range(512, len(whole), 512)]:
        (tmp_path / "cut.tar").write_bytes(whole[:size])
        end = 3 * (2 * 512 + 512 + 1024)
        source = Source(tmp_path / "cut.tar")
        assert source.records == every[: sum(2560 * number + 1536 + 700 <= size for number in range(3))]
        if size < end + 512:
            (problem,) = source.bad
            assert problem.startswith("cut.tar: is damaged, cut short or not a tar file: no valid member at byte ")


def test_tar_damage_is_reported_with_its_offset(tmp_path: Path) -> None:
    whole = shard(tmp_path / "a.tar", {"1.jpg": b"1", "2.jpg": b"2", "3.jpg": b"3"}).read_bytes()

    def header(size: bytes) -> bytes:
        """Return the first header with another size, and the checksum of that."""
        changed = bytearray(whole[:512])
        changed[124:136] = size
        changed[148:156] = b" " * 8
        changed[148:156] = b"%06o\0 " % sum(changed)
        return bytes(changed)

    for data, count, message in (
        (whole[:1030] + b"\x07" + whole[1031:], 1, "no valid member at byte 1,024 (bad checksum)"),
        (b"hello" * 300, 0, "no valid member at byte 0"),
        (whole[: 3 * 1024], 3, "no valid member at byte 3,072 (empty header); only members before that are used"),
        (whole * 2, 3, "has more data after the end of the archive at byte 3,072; put each archive into a file of its"),
        (b"\x1f\x8b" + bytes(2000), 0, "is compressed; decompress it"),
        # A size below zero sent tarfile back over the same headers for ever.
        (header(b"\xff" * 11 + b"\x00") + whole[512:], 0, "no valid member at byte 0"),
        (header(b"\x80" + (2**80).to_bytes(11, "big")) + whole[512:], 0, "the file ends within '1.jpg'"),
    ):
        (tmp_path / "b.tar").write_bytes(data)
        source = Source(tmp_path / "b.tar", kind="tar")
        (problem,) = source.bad
        assert len(source.records) == count
        assert message in problem


def test_special_or_changed_shards_are_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    assert Source([tmp_path / "pipe.tar"]).bad == ["pipe.tar: is not a regular file"]
    rows = Source(shard(tmp_path / "a.tar", {"1.jpg": b"1"})).rows
    (row,) = rows.items(0)
    assert isinstance(row, Row)
    shard(tmp_path / "a.tar", {"0.jpg": b"0", "1.jpg": b"1"})
    with pytest.raises(BadItem, match=r"a.tar changed after its members were listed"):
        row.read()
    os.unlink(tmp_path / "a.tar")
    with pytest.raises(BadItem, match=r"a.tar cannot be read: No such file or directory"):
        row.read()
