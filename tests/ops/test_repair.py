"""repair: a copy with every damaged JPEG repaired, and the verdict on what each was."""

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
from PIL import Image
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds.cli import app
from storeds.ops import Progress, repair

MakeUrl = Callable[[str], str]
REPAIRED = [key for key, picture in PICTURES.items() if picture.repaired]
BEYOND = [key for key, picture in PICTURES.items() if not picture.is_readable]
WHOLE = {"whole": PICTURES["whole"], "png": PICTURES["png"], "trailing": PICTURES["trailing"]}


def records(url: str) -> dict[str, Any]:
    with storeds.open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(len(backend)))
    return {record["key"]: record for record in found}


def verdicts(url: str) -> dict[str, tuple[str, float]]:
    """Return the kind and the share that are stored with each picture."""
    with storeds.open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(len(backend)), ("key", "image_finding", "image_recovered"))
    return {record["key"]: (record["image_finding"], record["image_recovered"]) for record in found}


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
def test_the_copy_has_repaired_pictures_and_their_findings(make_engine_url: MakeUrl, before: str, after: str) -> None:
    src, dst = make_engine_url(before), make_engine_url(after)
    meta = write(src)
    old = records(src)
    seen: list[Progress] = []
    report = repair(src, dst, progress=seen.append)
    new, found = records(dst), verdicts(dst)
    assert found == verdicts(src)
    with storeds.open_backend(dst) as copy:
        assert list(copy.meta.fields) == ["key", "image", "label", "image_finding", "image_recovered"]
        assert (copy.meta.attrs, copy.meta.id, copy.meta.build) == (meta.attrs, report.id, report.build)
    assert list(new) == list(PICTURES)
    for key, picture in PICTURES.items():
        record, (kind, share) = new[key], found[key]
        assert record["label"] == old[key]["label"]
        assert kind == picture.finding
        assert (record["image"] == picture.blob) == (not picture.repaired), key
        assert share == picture.recovered if picture.recovered is not None else 0.0 < share < 0.9, key
    assert (report.count, sum(report.kinds.values()), report.repaired) == (
        len(PICTURES),
        len(PICTURES),
        len(REPAIRED),
    )
    assert report.kinds["truncated_scan"] == 4
    assert report.beyond == {"corrupt_data": 3, "not_jpeg": 2, "truncated_scan": 1, "truncated_header": 1}
    assert not report.ok
    assert (seen[-1].done, seen[-1].bad) == (len(PICTURES), len(BEYOND))
    assert records(src) == old


@pytest.mark.parametrize("where", ["in the URL", "as options"])
def test_a_foreign_store_is_repaired_into_a_native_one(tmp_path: Path, where: str) -> None:
    names = ["no end", "png", "whole"]
    put(tmp_path / "foreign", ((name.encode(), PICTURES[name].blob) for name in names), database=b"pictures")
    foreign, target = f"lmdb://{tmp_path}/foreign", f"hdf5://{tmp_path}/repaired.h5"
    url, reported = (f"{foreign}?database=pictures", []) if where == "in the URL" else (foreign, ["database=pictures"])
    named = [part for option in reported for part in ("--layout", "keyed", "--option", option)]
    report = json.loads(run("repair", url, target, *named, "--json"))
    assert (report["count"], report["repaired"]) == (3, 1)
    found = records(target)
    assert verdicts(target) == {name: (PICTURES[name].finding, 1.0) for name in names}
    assert found["no end"]["image"] == jpeg(1)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_repair_does_not_change_the_source(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "source"
    write(f"{engine}://{path}")
    path.chmod(0o444)
    before = digest(path), path.stat().st_mtime_ns
    repair(f"{engine}://{path}", f"lmdb://{tmp_path}/copy.lmdb")
    assert (digest(path), path.stat().st_mtime_ns) == before
    assert sorted(os.listdir(tmp_path)) == ["copy.lmdb", "source"]


def test_verify_reports_repaired_pictures_as_the_damage_they_were(source: str, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/copy.h5"
    repair(source, url)
    before, after = ({f.key: f for f in storeds.verify(each).findings} for each in (source, url))
    assert (
        after.keys()
        == before.keys()
        == {key for key, p in PICTURES.items() if p.reported not in (None, "trailing_data")}
    )
    for key, finding in after.items():
        assert (finding.kind, finding.recovered) == (before[key].kind, before[key].recovered)
    assert "its bytes were repaired since" in after["no end"].message


@pytest.mark.parametrize("decoder", ["tensor", "fast", "pil"])
@pytest.mark.parametrize("check", [True, False])
def test_readers_report_damage_in_a_repaired_store(tmp_path: Path, decoder: str, check: bool) -> None:
    damaged = {key: picture for key, picture in PICTURES.items() if picture.repaired}
    src, url = f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/b.h5"
    write(src, damaged, check=check)
    repair(src, url)
    shares = [share for _, share in verdicts(url).values()]
    for least in (0.0, 0.4, 1.0):
        dataset = StoreDataset(url, decode=decoder, min_recovered=least, on_error="skip", repair=True)
        dataset[:]
        report = dataset.report()
        assert sum(report.repaired.values()) == sum(share >= least for share in shares)
        assert report.skipped == sum(share < least for share in shares)


def test_repairing_twice_changes_nothing(source: str, tmp_path: Path) -> None:
    first = repair(source, f"lmdb://{tmp_path}/1.lmdb")
    second = repair(f"lmdb://{tmp_path}/1.lmdb", f"lmdb://{tmp_path}/2.lmdb")
    assert (second.id, second.kinds, second.beyond) == (first.id, first.kinds, first.beyond)


def test_several_image_fields_have_a_verdict_each(tmp_path: Path) -> None:
    url, copy = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb"
    with storeds.open_writer(url, {"left": "image", "right": "image"}) as writer:
        writer.append([{"left": jpeg(0), "right": jpeg(1)[:-2]}])
    report = repair(url, copy)
    with storeds.open_backend(copy) as backend:
        assert backend.get_many([0], ["left", "right"]) == [{"left": jpeg(0), "right": jpeg(1)}]
        assert [backend.column(name)[0] for name in ("left_finding", "right_finding")] == ["intact", "missing_eoi"]  # type: ignore[attr-defined]
    assert report.kinds == {"intact": 1, "missing_eoi": 1}


def test_fields_called_finding_and_recovered_are_ordinary_ones(tmp_path: Path) -> None:
    fields = {"key": "str", "image": "image", "finding": "str", "recovered": "float"}
    src, url, packed = (f"lmdb://{tmp_path}/{name}.lmdb" for name in "abc")
    with storeds.open_writer(src, fields) as writer:
        writer.append([{"key": "a", "image": jpeg(1)[:-2], "finding": "nodule", "recovered": 2.0}])
    assert repair(src, url).kinds == storeds.pack(src, packed).findings == {"missing_eoi": 1}
    for each in (url, packed):
        assert (records(each)["a"]["finding"], records(each)["a"]["recovered"]) == ("nodule", 2.0)


# What it refuses


def test_a_source_without_pictures_is_refused(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(url, {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    with pytest.raises(errors.ConfigError, match=r"no field of kind image to repair, only x \(int\)"):
        repair(url, f"lmdb://{tmp_path}/b.lmdb")
    assert os.listdir(tmp_path) == ["a.lmdb"]


# The command


def test_the_command_exits_with_1_if_a_picture_is_beyond_repair(source: str, tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/b.h5"
    shown = run("repair", source, url, code=1)
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if len(line.split()) == 4}
    assert rows["truncated_scan"] == ["4", "3", "1"]
    assert rows["intact"] == ["2", "0", "0"]
    assert rows["not_jpeg"] == ["2", "0", "2"]
    assert f"{len(PICTURES)} records, id " in shown
    assert json.loads(run("repair", source, url, "--overwrite", "--json", code=1)) == {
        "ok": False,
        "url": url,
        "count": len(PICTURES),
        "id": storeds.info(url).id,
        "build": storeds.info(url).build,
        "kinds": {
            "truncated_scan": 4,
            "corrupt_data": 3,
            "intact": 2,
            "not_jpeg": 2,
            "missing_eoi": 1,
            "truncated_header": 1,
            "trailing_data": 1,
        },
        "repaired": len(REPAIRED),
        "beyond": {"not_jpeg": 2, "corrupt_data": 3, "truncated_scan": 1, "truncated_header": 1},
    }
    assert "--overwrite" in run("repair", source, url, code=3)
    assert "itself, which writing would replace" in run("repair", source, source, code=2)


def test_the_command_exits_with_0_if_all_pictures_are_repaired(tmp_path: Path) -> None:
    src, dst = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/::smile:.lmdb"
    write(src, {**WHOLE, "half": PICTURES["half"]})
    assert f"\n{dst}: {len(WHOLE) + 1} records" in run("repair", src, dst)
    with Image.open(io.BytesIO(jpeg(2))) as whole, Image.open(io.BytesIO(records(dst)["half"]["image"])) as half:
        assert half.size == whole.size
        rows = 16  # of the MCUs that are there for certain
        assert (np.asarray(half)[:rows] == np.asarray(whole)[:rows]).all()
