"""repair: a copy with every damaged JPEG repaired, and the verdict on what each was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
from _packing import records_of, storeds_command, storeds_json, verdicts_of
from photographs import jpeg
from storeds import StoreDataset
from storeds.ops import Progress, repair

MakeUrl = Callable[[str], str]
REPAIRED = [key for key, picture in PICTURES.items() if picture.repaired]
BEYOND = [key for key, picture in PICTURES.items() if not picture.is_readable]


@pytest.fixture
def source(tmp_path: Path) -> str:
    write(f"lmdb://{tmp_path}/source.lmdb")
    return f"lmdb://{tmp_path}/source.lmdb"


# The copy


@pytest.mark.parametrize(("before", "after"), [("lmdb", "hdf5"), ("hdf5", "mongodb")])
def test_the_copy_has_repaired_pictures_and_their_findings(make_engine_url: MakeUrl, before: str, after: str) -> None:
    src, dst = make_engine_url(before), make_engine_url(after)
    meta, seen = write(src), list[Progress]()
    old = {row["key"]: row for row in records_of(src)}
    report = repair(src, dst, progress=seen.append)
    new, found = {row["key"]: row for row in records_of(dst)}, verdicts_of(dst)
    assert found == verdicts_of(src)
    copy = storeds.info(dst)
    assert [row["name"] for row in copy.fields] == ["key", "image", "label", "image_finding", "image_recovered"]
    assert (copy.attrs, copy.id, copy.build) == (meta.attrs, report.id, report.build)
    assert list(new) == list(PICTURES)
    for key, picture in PICTURES.items():
        record, (kind, share) = new[key], found[key]
        assert (record["label"], kind) == (old[key]["label"], picture.finding)
        assert (record["image"] == picture.blob) == (not picture.repaired), key
        assert float(share) == picture.recovered if picture.recovered is not None else 0.0 < float(share) < 0.9, key
    assert (report.count, sum(report.kinds.values()), report.repaired) == (*[len(PICTURES)] * 2, len(REPAIRED))
    assert report.kinds["truncated_scan"] == 4
    assert report.beyond == {"corrupt_data": 3, "not_jpeg": 2, "truncated_scan": 1, "truncated_header": 1}
    assert not report.ok
    assert (seen[-1].done, seen[-1].bad) == (len(PICTURES), len(BEYOND))
    assert {row["key"]: row for row in records_of(src)} == old


def test_a_foreign_store_is_repaired_into_a_native_one(tmp_path: Path) -> None:
    names = ["no end", "png", "whole"]
    put(tmp_path / "foreign", ((name.encode(), PICTURES[name].blob) for name in names), database=b"pictures")
    target = f"hdf5://{tmp_path}/repaired.h5"
    how = ("--layout", "keyed", "--option", "database=pictures")
    report = storeds_json("repair", f"lmdb://{tmp_path}/foreign", target, *how)
    assert (report["count"], report["repaired"]) == (3, 1)
    assert verdicts_of(target) == {name: (PICTURES[name].finding, "1.0") for name in names}
    assert records_of(target, "image")[names.index("no end")] == {"image": jpeg(1)}


def test_verify_reports_repaired_pictures_as_the_damage_they_were_and_repair_leaves_them(
    source: str, tmp_path: Path
) -> None:
    url = f"hdf5://{tmp_path}/copy.h5"
    first, second = repair(source, url), repair(url, f"lmdb://{tmp_path}/2.lmdb")
    assert (second.id, second.kinds, second.beyond) == (first.id, first.kinds, first.beyond)
    before, after = ({f.key: f for f in storeds.verify(each).findings} for each in (source, url))
    assert after.keys() == {key for key, p in PICTURES.items() if p.reported not in (None, "trailing_data")}
    found, expected = ({key: (f.kind, f.recovered) for key, f in each.items()} for each in (after, before))
    assert found == expected
    assert "its bytes were repaired since" in after["no end"].message


@pytest.mark.parametrize(("decoder", "check"), [("tensor", True), ("fast", False), ("pil", True)])
def test_readers_report_damage_in_a_repaired_store(tmp_path: Path, decoder: str, check: bool) -> None:
    damaged = {key: picture for key, picture in PICTURES.items() if picture.repaired}
    src, url = f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/b.h5"
    write(src, damaged, check=check)
    repair(src, url)
    shares = [float(share) for _, share in verdicts_of(url).values()]
    for least in (0.0, 0.4, 1.0):
        dataset = StoreDataset(url, decode=decoder, min_recovered=least, on_error="skip", repair=True)
        dataset[:]
        report = dataset.report()
        assert sum(report.repaired.values()) == sum(share >= least for share in shares)
        assert report.skipped == sum(share < least for share in shares)


# The command


def test_the_command_exits_with_1_if_a_picture_is_beyond_repair(source: str, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/b.h5"
    shown = storeds_command("repair", source, url, code=1)
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) == 4}
    assert (rows["truncated_scan"], rows["intact"], rows["not_jpeg"]) == (
        ["4", "3", "1"],
        ["2", "0", "0"],
        ["2", "0", "2"],
    )
    assert f"{len(PICTURES)} records, id " in shown
    found = storeds_json("repair", source, url, "--overwrite", code=1)
    assert (found["ok"], found["id"], found["repaired"]) == (False, storeds.info(url).id, len(REPAIRED))
