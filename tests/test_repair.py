"""repair, and the fields in which it and `pack --check` keep what was found."""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFile
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds.cli import app
from storeds.ops import Progress, repair
from storeds.ops._batches import _BATCH

MakeUrl = Callable[[str], str]
MENDED = [key for key, picture in PICTURES.items() if picture.mended]
BEYOND = [key for key, picture in PICTURES.items() if picture.recovered == 0.0]
WHOLE = {"whole": PICTURES["whole"], "png": PICTURES["png"], "trailing": PICTURES["trailing"]}


def records(url: str) -> dict[str, Any]:
    with storeds.open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(len(backend)))
    return {record["key"]: record for record in found}


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def source(tmp_path: Path) -> str:
    write(f"lmdb://{tmp_path}/source.lmdb")
    return f"lmdb://{tmp_path}/source.lmdb"


# The copy


@pytest.mark.parametrize(
    ("before", "after"), [("lmdb", "hdf5"), ("hdf5", "lmdb"), ("lmdb", "mongodb"), ("mongodb", "memory")]
)
def test_the_copy_has_mended_pictures_their_findings_and_everything_else_as_it_was(
    make_engine_url: MakeUrl, before: str, after: str
) -> None:
    src, dst = make_engine_url(before), make_engine_url(after)
    meta = write(src)
    old = records(src)
    seen: list[Progress] = []
    report = repair(src, dst, progress=seen.append)
    new = records(dst)
    with storeds.open_backend(dst) as copy:
        assert list(copy.meta.fields) == ["key", "image", "label", "finding", "recovered"]
        assert (copy.meta.attrs, copy.meta.id, copy.meta.build) == (meta.attrs, report.id, report.build)
    assert list(new) == list(PICTURES)
    for key, picture in PICTURES.items():
        record = new[key]
        assert record["label"] == old[key]["label"]
        assert record["finding"] == picture.finding
        assert (record["image"] == picture.blob) == (not picture.mended), key
        if picture.recovered is not None:
            assert record["recovered"] == picture.recovered, key
        else:
            assert 0.1 < record["recovered"] < 0.9, key
    assert (report.count, sum(report.kinds.values()), report.repaired) == (len(PICTURES), len(PICTURES), len(MENDED))
    assert report.kinds["truncated_scan"] == 5
    assert report.beyond == {"not_jpeg": 3, "truncated_scan": 2, "truncated_header": 1}
    assert not report.ok
    assert (seen[-1].done, seen[-1].bad) == (len(PICTURES), len(BEYOND))
    assert records(src) == old


def test_a_mended_picture_has_the_pixels_that_were_there(source: str, tmp_path: Path) -> None:
    repair(source, f"hdf5://{tmp_path}/copy.h5")
    with Image.open(io.BytesIO(jpeg(2))) as whole, Image.open(io.BytesIO(mended(tmp_path, "half"))) as half:
        assert half.size == whole.size
        rows = 16  # of the MCUs that are there for certain
        assert (np.asarray(half)[:rows] == np.asarray(whole)[:rows]).all()


def mended(folder: Path, key: str) -> bytes:
    image: bytes = records(f"hdf5://{folder}/copy.h5")[key]["image"]
    return image


@pytest.mark.parametrize("where", ["in the URL", "as options"])
def test_a_foreign_store_is_repaired_into_a_native_one(tmp_path: Path, where: str) -> None:
    names = ["no end", "png", "whole"]
    put(tmp_path / "foreign", ((name.encode(), PICTURES[name].blob) for name in names), database=b"pictures")
    foreign, target = f"lmdb://{tmp_path}/foreign", f"hdf5://{tmp_path}/mended.h5"
    url, told = (f"{foreign}?database=pictures", []) if where == "in the URL" else (foreign, ["database=pictures"])
    named = [part for option in told for part in ("--layout", "keyed", "--option", option)]
    report = json.loads(run("repair", url, target, *named, "--json"))
    assert (report["count"], report["repaired"]) == (3, 1)
    found = records(target)
    assert {key: record["finding"] for key, record in found.items()} == {name: PICTURES[name].finding for name in names}
    assert found["no end"]["image"] == jpeg(1)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_the_source_is_only_read(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "source"
    write(f"{engine}://{path}")
    path.chmod(0o444)
    before = digest(path), path.stat().st_mtime_ns
    repair(f"{engine}://{path}", f"lmdb://{tmp_path}/copy.lmdb")
    assert (digest(path), path.stat().st_mtime_ns) == before
    assert sorted(os.listdir(tmp_path)) == ["copy.lmdb", "source"]


def test_what_verify_says_of_the_copy(source: str, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/copy.h5"
    repair(source, url)
    report = storeds.verify(url)
    # What is beyond repair; and a file that lacks scans says so with an end marker too.
    assert {finding.key for finding in report.findings} == {*BEYOND, "coarse"}
    assert {finding.key for finding in report.notes} == {"trailing"}


def test_a_store_whose_pictures_are_whole_or_mended_verifies_clean(tmp_path: Path) -> None:
    pictures = {key: picture for key, picture in PICTURES.items() if key in ("whole", "png", "no end", "half")}
    write(f"lmdb://{tmp_path}/a.lmdb", pictures)
    report = repair(f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb")
    assert (report.ok, report.beyond, report.repaired) == (True, {}, 2)
    assert storeds.verify(f"lmdb://{tmp_path}/b.lmdb").to_json()["kinds"] == {}


def test_repairing_a_repaired_store_changes_nothing_and_forgets_nothing(source: str, tmp_path: Path) -> None:
    first = repair(source, f"lmdb://{tmp_path}/1.lmdb")
    second = repair(f"lmdb://{tmp_path}/1.lmdb", f"lmdb://{tmp_path}/2.lmdb")
    assert (second.id, second.kinds, second.beyond) == (first.id, first.kinds, first.beyond)


def test_several_image_fields_have_findings_each(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, {"left": "image", "right": "image"}) as writer:
        writer.append([{"left": jpeg(0), "right": jpeg(1)[:-2]}])
    report = repair(url, f"lmdb://{tmp_path}/b.lmdb")
    with storeds.open_backend(f"lmdb://{tmp_path}/b.lmdb") as backend:
        (record,) = backend.get_many([0])
    assert record == {
        "left": jpeg(0),
        "right": jpeg(1),
        "left_finding": "intact",
        "left_recovered": 1.0,
        "right_finding": "missing_eoi",
        "right_recovered": 1.0,
    }
    assert report.kinds == {"intact": 1, "missing_eoi": 1}


# What it refuses


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb", "memory"])
def test_a_store_is_never_its_own_target(make_engine_url: MakeUrl, engine: str) -> None:
    url = make_engine_url(engine)
    build = write(url).build
    with pytest.raises(errors.ConfigError, match="itself, which is only read here"):
        repair(url, url, overwrite=True)
    assert storeds.info(url).build == build
    assert storeds.info(url).leftovers is None


def test_a_link_to_the_source_is_the_source(source: str, tmp_path: Path) -> None:
    (tmp_path / "link.lmdb").symlink_to(tmp_path / "source.lmdb")
    os.link(tmp_path / "source.lmdb", tmp_path / "hard.h5")
    for url in (f"lmdb://{tmp_path}/link.lmdb", f"hdf5://{tmp_path}/hard.h5"):
        with pytest.raises(errors.ConfigError, match="itself, which is only read here"):
            repair(source, url, overwrite=True)


@pytest.mark.parametrize(
    ("fields", "row", "message"),
    [
        ({"x": "int"}, {"x": 1}, r"no field of kind image to be checked, only x \(int\)"),
        ({"image": "image", "finding": "int"}, {"image": b"", "finding": 1}, r"has finding \(int\) already"),
        ({"image": "image", "finding": "str"}, {"image": b"", "finding": "x"}, r"has finding \(str\) already"),
        (
            {"image": "image", "finding": "str", "recovered": "float"},
            {"image": b"", "finding": "nodule", "recovered": 1.0},
            "has finding 'nodule' already",
        ),
    ],
)
def test_a_source_without_pictures_or_with_such_fields_of_its_own_is_refused(
    tmp_path: Path, fields: dict[str, Any], row: dict[str, Any], message: str
) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, fields) as writer:
        writer.append([row])
    with pytest.raises(errors.ConfigError, match=message):
        repair(url, f"lmdb://{tmp_path}/b.lmdb")
    with pytest.raises(errors.ConfigError, match=message):
        storeds.pack(url, f"lmdb://{tmp_path}/b.lmdb", check=True, on_bad="keep")
    assert os.listdir(tmp_path) == ["a.lmdb"]


def test_a_record_that_cannot_be_read_ends_it_and_nothing_is_published(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(f"hdf5://{path}")
    data = bytearray(path.read_bytes())
    data[data.index(PICTURES["half"].blob) + 400] ^= 1
    path.write_bytes(data)
    with pytest.raises(errors.RecordError, match=r"record 2 \(key 'half'\) .*checksum"):
        repair(f"hdf5://{path}", f"lmdb://{tmp_path}/b.lmdb")
    assert os.listdir(tmp_path) == ["a.h5"]


def test_pillow_is_not_asked_while_it_is_set_to_call_cut_pictures_whole(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(errors.ConfigError, match="LOAD_TRUNCATED_IMAGES is set"):
        repair(source, f"lmdb://{tmp_path}/b.lmdb")
    with pytest.raises(errors.ConfigError, match="LOAD_TRUNCATED_IMAGES is set"):
        storeds.verify(source, workers=0)
    told = {finding.key for finding in storeds.verify(source, workers=1).findings}  # a process of its own
    assert "half a png" in told


# Interruptions


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_an_interrupted_repair_resumes_to_the_same_copy_and_report(tmp_path: Path, engine: str) -> None:
    many = {f"{key} {n}": picture for n in range(_BATCH // 4) for key, picture in PICTURES.items()}
    src, url = f"lmdb://{tmp_path}/a.lmdb", f"{engine}://{tmp_path}/cut"
    write(src, many)
    whole = repair(src, f"{engine}://{tmp_path}/whole")

    def interrupt(state: Progress) -> None:
        if state.done > _BATCH:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        repair(src, url, commit_every=20, progress=interrupt)
    with pytest.raises(errors.StoreExistsError, match="resume=True"):
        repair(src, url)
    resumed = repair(src, url, resume=True)
    assert (resumed.id, resumed.kinds, resumed.beyond) == (whole.id, whole.kinds, whole.beyond)


def test_a_target_that_exists_is_replaced_only_when_told(source: str, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/b.lmdb"
    first = repair(source, url)
    with pytest.raises(errors.StoreExistsError, match="overwrite"):
        repair(source, url)
    again = repair(source, url, overwrite=True)
    assert again.id == first.id
    assert again.build != first.build


# The command


def test_the_command_says_what_it_mended_and_exits_with_1_if_something_is_beyond_repair(
    source: str, tmp_path: Path
) -> None:
    url = f"hdf5://{tmp_path}/b.h5"
    shown = run("repair", source, url, code=1)
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) == 4}
    assert rows["truncated_scan"] == ["5", "3", "2"]
    assert rows["intact"] == ["1", "0", "0"]
    assert rows["not_jpeg"] == ["4", "0", "3"]
    assert f"{len(PICTURES)} records, id " in shown
    assert json.loads(run("repair", source, url, "--overwrite", "--json", code=1)) == {
        "ok": False,
        "url": url,
        "count": len(PICTURES),
        "id": storeds.info(url).id,
        "build": storeds.info(url).build,
        "kinds": {
            "truncated_scan": 5,
            "not_jpeg": 4,
            "intact": 1,
            "missing_eoi": 1,
            "truncated_header": 1,
            "corrupt_data": 1,
            "trailing_data": 1,
        },
        "repaired": len(MENDED),
        "beyond": {"not_jpeg": 3, "truncated_scan": 2, "truncated_header": 1},
    }
    assert "--overwrite" in run("repair", source, url, code=3)
    assert "itself, which is only read here" in run("repair", source, source, code=2)


def test_the_command_exits_with_0_if_all_is_whole_or_mended(tmp_path: Path) -> None:
    write(f"lmdb://{tmp_path}/a.lmdb", {**WHOLE, "half": PICTURES["half"]})
    run("repair", f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb")


# Findings kept by pack


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for number, (key, picture) in enumerate(PICTURES.items()):
        file = tmp_path / "tree" / f"{number:02} {key}.jpg"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(picture.blob)
    return tmp_path / "tree"


@pytest.mark.parametrize(("engine", "workers"), [("lmdb", 0), ("hdf5", 2), ("mongodb", 0)])
def test_pack_keeps_findings_and_leaves_bytes_alone(
    tree: Path, make_engine_url: MakeUrl, engine: str, workers: int
) -> None:
    url = make_engine_url(engine)
    storeds.pack(tree, url, kind="flat", check=True, on_bad="keep", workers=workers)
    found = records(url)
    for number, (key, picture) in enumerate(PICTURES.items()):
        record = found[f"{number:02} {key}.jpg"]
        assert list(record) == ["image", "key", "finding", "recovered"]
        assert (record["image"], record["finding"]) == (picture.blob, picture.finding)
        assert picture.recovered in (None, record["recovered"])


def test_training_takes_the_whole_pictures_by_their_finding(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(tree, url, kind="flat", check=True, on_bad="keep")
    fields = ("image", "key", "recovered")
    whole = StoreDataset(url, fields=fields, where={"finding": ["intact", "trailing_data"]})
    assert [(key[3:], recovered) for _, key, recovered in whole[:]] == [("whole.jpg", 1.0), ("trailing.jpg", 1.0)]
    assert len(StoreDataset(url, where={"finding": "intact"})) == 1
    repair(url, f"hdf5://{tmp_path}/b.h5")
    mended = StoreDataset(f"hdf5://{tmp_path}/b.h5", repair=False, where={"finding": ["missing_eoi", "corrupt_data"]})
    assert len(mended[:]) == 2


def test_a_checked_store_repairs_to_what_an_unchecked_one_does(tree: Path, tmp_path: Path) -> None:
    for check in (False, True):
        storeds.pack(tree, f"lmdb://{tmp_path}/{check}.lmdb", kind="flat", check=check, on_bad="keep")
    copies = [repair(f"lmdb://{tmp_path}/{c}.lmdb", f"lmdb://{tmp_path}/{c}2.lmdb") for c in (False, True)]
    assert copies[0].id == copies[1].id


def test_a_picture_that_is_encoded_anew_keeps_the_finding_of_what_it_was(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "half.jpg").write_bytes(PICTURES["half"].blob)
    storeds.pack(tmp_path / "tree", f"lmdb://{tmp_path}/a.lmdb", kind="flat", check=True, quality=80, workers=0)
    record = records(f"lmdb://{tmp_path}/a.lmdb")["half.jpg"]
    assert storeds.verify(f"lmdb://{tmp_path}/a.lmdb").ok
    assert record["finding"] == "truncated_scan"
    assert record["recovered"] < 0.9


def test_an_interrupted_pack_with_findings_resumes_to_the_same_id_but_not_without_them(
    tree: Path, tmp_path: Path
) -> None:
    whole = storeds.pack(tree, f"lmdb://{tmp_path}/whole.lmdb", kind="flat", check=True, on_bad="keep")
    url = f"lmdb://{tmp_path}/cut.lmdb"

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(tree, url, kind="flat", check=True, on_bad="keep", commit_every=3, progress=interrupt)
    with pytest.raises(errors.ConfigError, match="cannot be resumed"):
        storeds.pack(tree, url, kind="flat", on_bad="keep", resume=True)
    assert storeds.pack(tree, url, kind="flat", check=True, on_bad="keep", resume=True).id == whole.id


def test_the_command_counts_what_it_found(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    arguments = ("pack", tree, url, "--kind", "flat", "--check", "--on-bad", "keep")
    shown = json.loads(run(*arguments, "--json"))
    assert shown["findings"] == {
        "truncated_scan": 5,
        "not_jpeg": 4,
        "intact": 1,
        "missing_eoi": 1,
        "truncated_header": 1,
        "corrupt_data": 1,
        "trailing_data": 1,
    }
    lines = [line.split() for line in run(*arguments, "--overwrite").splitlines()]
    assert ["truncated_scan", "5"] in lines
    assert "findings" not in json.loads(run(*arguments[:5], "--on-bad", "keep", "--overwrite", "--json"))
