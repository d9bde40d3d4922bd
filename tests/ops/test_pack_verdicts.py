"""pack and convert examine each picture once and keep the verdict; repair keeps what each picture was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from _foreign_lmdb import put
from _packing import records_of, storeds_command, storeds_json, verdicts_of
from make_store import make_store
from mask_files import write
from photographs import by_pillow, jpeg
from storeds import StoreDataset, errors
from storeds.ops import Progress, info, repair

COUNTS = dict(Counter(picture.finding for picture in PICTURES.values()))
WHOLE = {"whole", "png", "trailing"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return write(tmp_path / "tree", {f"{key}.jpg": picture.blob for key, picture in PICTURES.items()})


def selected(url: str, where: dict[str, Any]) -> set[str]:
    keys = StoreDataset(url, fields=("image", "key"), where=where, decode="bytes")
    return {key.removesuffix(".jpg") for _, key in keys[:]}


def pack(tree: Path, url: str, **options: Any) -> Any:
    return storeds.pack(tree, url, **{"kind": "flat", "on_bad": "keep", **options})


# pack


def test_pack_stores_a_verdict_on_each_picture_and_leaves_its_bytes_alone(tree: Path, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/a.h5"
    packed = pack(tree, url)
    assert list(packed.fields) == ["image", "key", "image_finding", "image_recovered"]
    assert packed.findings == COUNTS
    assert packed.damaged == len(PICTURES) - len(WHOLE)
    found = {
        row["key"]: (row["image"], row["image_finding"]) for row in records_of(url, "key", "image", "image_finding")
    }
    assert found == {f"{key}.jpg": (picture.blob, picture.finding) for key, picture in PICTURES.items()}


def test_whole_pictures_are_selected_by_their_verdict_and_no_damaged_one_is(tree: Path, tmp_path: Path) -> None:
    early = jpeg(0)[:1200] + jpeg(0)[-2:]  # data that end before the end marker: its structure is whole
    (tree / "early.jpg").write_bytes(early)
    url = f"lmdb://{tmp_path}/a.lmdb"
    pack(tree, url)
    assert selected(url, {"image_finding": "intact"}) == WHOLE - {"trailing"}
    assert selected(url, {"image_recovered": 1.0}) == WHOLE | {"no end"}  # of which all is there but its end marker
    assert selected(url, {"image_finding": ["truncated_scan", "corrupt_data"]}) >= {"early", "half"}


def test_undecodable_pictures_are_bad_but_partial_ones_are_not(tree: Path) -> None:
    with pytest.raises(errors.RecordError) as raised:
        storeds.pack(tree, "memory://raised", kind="flat", overwrite=True)
    listed = {line.strip().split(".jpg")[0] for line in str(raised.value).splitlines()[1:] if ".jpg" in line}
    assert listed == {"page", "empty", "no scan", "no pixel", "stray", "half a png", "huge"}
    seen: list[Progress] = []
    packed = storeds.pack(tree, "memory://skipped", kind="flat", on_bad="skip", overwrite=True, progress=seen.append)
    assert (packed.left_out, seen[-1].bad) == (7, 7)
    assert packed.damaged == len(PICTURES) - len(WHOLE) - 7


def test_the_note_on_damage_names_the_verdicts_of_each_picture(tmp_path: Path) -> None:
    source = f"lmdb://{tmp_path}/a.lmdb"
    make_store({"left": "image", "right": "image"}, [{"left": PICTURES["half"].blob, "right": jpeg(0)}], source)
    (note,) = storeds.pack(source, f"lmdb://{tmp_path}/b.lmdb").notes
    where = {"left_finding": "intact", "right_finding": "intact"}
    assert f"where={where}" in note
    assert len(StoreDataset(f"lmdb://{tmp_path}/b.lmdb", reader="array", fields=["left_finding"], where=where)) == 0


def test_pack_says_what_is_damaged_and_what_to_do(tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    command = ("pack", tree, f"lmdb://{tmp_path}/b.lmdb", "--kind", "flat", "--on-bad", "keep", "--overwrite")
    reported = storeds_json(*command)
    assert (reported["findings"], reported["damaged"]) == (COUNTS, 11)
    (note,) = (note for note in reported["notes"] if "damaged" in note)
    assert note.startswith("11 of 14 pictures are damaged (truncated_scan 4, ")
    for step in ("min_recovered", "where={'image_finding': 'intact'}", "storeds repair", "storeds verify"):
        assert step in note
    assert note in caplog.text
    assert "pictures: 3 whole, 11 damaged (truncated_scan 4, " in " ".join(storeds_command(*command).split())


@pytest.mark.parametrize("options", [{"quality": 80}, {"max_side": 50}], ids=str)
def test_encoding_again_keeps_the_original_verdict(tmp_path: Path, options: dict[str, Any]) -> None:
    keys = ("half", "no end", "coarse", "trailing", "whole")
    tree = write(tmp_path / "tree", {f"{key}.jpg": PICTURES[key].blob for key in keys})
    url = f"lmdb://{tmp_path}/b.lmdb"
    pack(tree, url, **options)
    before = {f"{key}.jpg": PICTURES[key] for key in keys[:3]}
    found, blobs = verdicts_of(url), records_of(url, "key", "image")
    assert {key: found[key][0] for key in before} == {key: picture.finding for key, picture in before.items()}
    assert (found["trailing.jpg"], found["whole.jpg"]) == (("intact", "1.0"),) * 2
    assert {finding.key for finding in storeds.verify(url).findings} == set(before)
    for row in blobs:
        assert row["image"] != (tree / row["key"]).read_bytes()
        by_pillow(row["image"])  # which raises if anything is missing


def test_without_check_there_are_no_verdicts_and_damage_is_not_hidden(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    packed = pack(tree, url, check=False)
    assert packed.findings == {"not examined": len(PICTURES)}
    assert set(verdicts_of(url).values()) == {("", "nan")}
    shown = storeds_command("pack", tree, url, "--kind", "flat", "--on-bad", "keep", "--no-check", "--overwrite")
    assert f"pictures: {len(PICTURES)} not examined" in shown
    encoded = [pack(tree, url, check=check, quality=80, overwrite=True) for check in (False, True)]
    assert encoded[0].findings == encoded[1].findings
    assert encoded[0].id == encoded[1].id


def test_a_picture_is_examined_only_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack(tree, f"lmdb://{tmp_path}/a.lmdb")

    def refuse(blob: bytes) -> Any:
        raise AssertionError("examined again")

    for module in ("storeds.ops.pictures", "storeds.pictures"):
        monkeypatch.setattr(f"{module}.examine", refuse)
    assert pack(Path(f"{tmp_path}/a.lmdb"), f"hdf5://{tmp_path}/b.h5", kind="store").id == first.id
    assert storeds.convert(f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/c.h5").id == first.id
    monkeypatch.undo()
    repaired = storeds.repair(f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/d.h5")
    assert repaired.kinds == first.findings


# convert


def test_convert_examines_pictures_without_a_verdict(tmp_path: Path) -> None:
    unchecked, checked, url = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb", f"hdf5://{tmp_path}/c.h5"
    write_damaged(unchecked, check=False)
    whole = write_damaged(checked)
    assert storeds.convert(unchecked, url).id == whole.id
    assert verdicts_of(url) == verdicts_of(checked)
    same = storeds_json("convert", unchecked, url, "--no-check", "--overwrite")["id"]
    assert same == storeds.info(unchecked).id != whole.id


# info


def test_info_counts_verdicts(tmp_path: Path) -> None:
    for check, found in ((True, COUNTS), (False, {"not examined": len(PICTURES)})):
        write_damaged(f"lmdb://{tmp_path}/{check}.lmdb", check=check)
        assert info(f"lmdb://{tmp_path}/{check}.lmdb").pictures == found
    assert "3 whole, 11 damaged (truncated_scan 4, " in storeds_command("info", f"lmdb://{tmp_path}/True.lmdb")
    put(tmp_path / "foreign", [(b"a", jpeg(0)), (b"b", jpeg(1))])
    assert info(f"lmdb://{tmp_path}/foreign").pictures == {"not examined": 2}
    assert info(make_store({"x": "int"}, [{"x": 1}])).pictures is None


# repair: a copy with every damaged JPEG repaired, and the verdict on what each was

MakeUrl = Callable[[str], str]
REPAIRED = [key for key, picture in PICTURES.items() if picture.repaired]
BEYOND = [key for key, picture in PICTURES.items() if not picture.is_readable]


@pytest.fixture
def source(tmp_path: Path) -> str:
    write_damaged(f"lmdb://{tmp_path}/source.lmdb")
    return f"lmdb://{tmp_path}/source.lmdb"


# The copy


@pytest.mark.parametrize(("before", "after"), [("lmdb", "hdf5"), ("hdf5", "mongodb")])
def test_the_copy_has_repaired_pictures_and_their_findings(make_engine_url: MakeUrl, before: str, after: str) -> None:
    src, dst = make_engine_url(before), make_engine_url(after)
    meta, seen = write_damaged(src), list[Progress]()
    old = {row["key"]: row for row in records_of(src)}
    report = repair(src, dst, progress=seen.append)
    new, found = {row["key"]: row for row in records_of(dst)}, verdicts_of(dst)
    assert found == verdicts_of(src)
    copy = storeds.info(dst)
    assert [row["name"] for row in cast("Any", copy.fields)] == [
        "key",
        "image",
        "label",
        "image_finding",
        "image_recovered",
    ]
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


def test_verify_and_repair_report_what_was_repaired(source: str, tmp_path: Path) -> None:
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
    write_damaged(src, damaged, check=check)
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
