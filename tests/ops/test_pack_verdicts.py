"""pack and convert examine each picture once and keep the verdict on it; info and the commands count verdicts."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
from photographs import jpeg
from storeds import StoreDataset, errors, open_backend
from storeds.backends import Selection
from storeds.cli import app
from storeds.ops import Progress, info

MakeUrl = Callable[[str], str]
COUNTS = dict(Counter(picture.finding for picture in PICTURES.values()))
WHOLE = {"whole", "png", "trailing"}


def run(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result


def verdicts(url: str) -> dict[str, tuple[str, str]]:
    """Return the finding and the share that are stored with each picture; the share as text, so that NaN is equal."""
    with open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(len(backend)), ("key", "image_finding", "image_recovered"))
    return {
        record["key"].removesuffix(".jpg"): (record["image_finding"], str(record["image_recovered"]))
        for record in found
    }


def blobs(url: str) -> dict[str, bytes]:
    with open_backend(url) as backend:
        found: list[Any] = backend.get_many(range(len(backend)), ("key", "image"))
    return {record["key"].removesuffix(".jpg"): record["image"] for record in found}


def selected(url: str, where: dict[str, Any]) -> set[str]:
    with open_backend(url) as backend:
        keys = StoreDataset(backend, fields=("image", "key"), where=where, decode="bytes")
        return {key.removesuffix(".jpg") for _, key in keys[:]}


def selected_count(url: str, where: dict[str, Any]) -> int:
    with open_backend(url) as backend:
        return len(Selection(backend, where))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    for key, picture in PICTURES.items():
        (tmp_path / "tree" / f"{key}.jpg").write_bytes(picture.blob)
    return tmp_path / "tree"


def pack(tree: Path, url: str, **options: Any) -> Any:
    return storeds.pack(tree, url, **{"kind": "flat", "on_bad": "keep", **options})


# pack


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb", "memory"])
def test_pack_stores_a_verdict_on_each_picture_and_leaves_its_bytes_alone(
    tree: Path, make_engine_url: MakeUrl, engine: str
) -> None:
    url = make_engine_url(engine)
    packed = pack(tree, url)
    assert list(packed.fields) == ["image", "key", "image_finding", "image_recovered"]
    assert packed.findings == COUNTS
    assert packed.damaged == len(PICTURES) - len(WHOLE)
    assert blobs(url) == {key: picture.blob for key, picture in PICTURES.items()}
    assert {key: finding for key, (finding, _) in verdicts(url).items()} == {k: p.finding for k, p in PICTURES.items()}


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
    listed = {line.strip().split(".jpg")[0] for line in str(raised.value).splitlines()[1:]}
    assert listed == {"page", "empty", "no scan", "no pixel", "stray", "half a png", "huge"}
    seen: list[Progress] = []
    packed = storeds.pack(tree, "memory://skipped", kind="flat", on_bad="skip", overwrite=True, progress=seen.append)
    assert (packed.left_out, seen[-1].bad) == (7, 7)
    assert packed.damaged == len(PICTURES) - len(WHOLE) - 7


def test_the_note_on_damage_names_the_verdicts_of_each_picture(tmp_path: Path) -> None:
    source = f"lmdb://{tmp_path}/a.lmdb"
    with storeds.open_writer(source, {"left": "image", "right": "image"}) as writer:
        writer.append([{"left": PICTURES["half"].blob, "right": PICTURES["whole"].blob}])
    (note,) = storeds.pack(source, f"lmdb://{tmp_path}/b.lmdb").notes
    where = {"left_finding": "intact", "right_finding": "intact"}
    assert f"where={where}" in note
    assert selected_count(f"lmdb://{tmp_path}/b.lmdb", where) == 0


def test_pack_says_how_many_pictures_are_damaged_and_what_to_do(
    tree: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    packed = pack(tree, f"lmdb://{tmp_path}/a.lmdb")
    (note,) = (note for note in packed.notes if "damaged" in note)
    assert note.startswith("11 of 14 pictures are damaged (truncated_scan 4, ")
    for step in ("min_recovered", "where={'image_finding': 'intact'}", "storeds repair", "storeds verify"):
        assert step in note
    assert note in caplog.text
    shown = run("pack", tree, f"lmdb://{tmp_path}/b.lmdb", "--kind", "flat", "--on-bad", "keep")
    assert "pictures: 3 whole, 11 damaged (truncated_scan 4, " in shown.stdout
    assert "storeds repair" in " ".join(shown.stderr.split())
    reported = run("pack", tree, f"lmdb://{tmp_path}/c.lmdb", "--kind", "flat", "--on-bad", "keep", "--json")
    assert json.loads(reported.stdout)["findings"] == COUNTS
    assert json.loads(reported.stdout)["damaged"] == 11


@pytest.mark.parametrize("options", [{"quality": 80}, {"max_side": 50}])
def test_encoding_again_keeps_the_original_verdict(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "tree").mkdir()
    for key in ("half", "no end", "coarse", "trailing", "whole"):
        (tmp_path / "tree" / f"{key}.jpg").write_bytes(PICTURES[key].blob)
    before, url = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb"
    pack(tmp_path / "tree", before)
    pack(tmp_path / "tree", url, **options)
    assert verdicts(url) == {**verdicts(before), "trailing": ("intact", "1.0")}
    assert all(blobs(url)[key] != blobs(before)[key] for key in verdicts(url))
    assert {finding.key for finding in storeds.verify(url).findings} == {"half.jpg", "no end.jpg", "coarse.jpg"}
    with Image.open(io.BytesIO(blobs(url)["half"])) as image:
        image.load()


def test_without_check_there_are_no_verdicts_and_damage_is_not_hidden(tree: Path, tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    packed = pack(tree, url, check=False)
    assert packed.findings == {"not examined": len(PICTURES)}
    assert set(verdicts(url).values()) == {("", "nan")}
    shown = run("pack", tree, url, "--kind", "flat", "--on-bad", "keep", "--no-check", "--overwrite")
    assert f"pictures: {len(PICTURES)} not examined" in shown.stdout
    encoded = [pack(tree, url, check=check, quality=80, overwrite=True) for check in (False, True)]
    assert encoded[0].findings == encoded[1].findings
    assert encoded[0].id == encoded[1].id


def test_a_killed_pack_resumes_to_the_same_id_but_not_without_the_check(tree: Path, tmp_path: Path) -> None:
    whole = pack(tree, f"lmdb://{tmp_path}/whole.lmdb")
    url = f"lmdb://{tmp_path}/cut.lmdb"
    code = (
        "import os, signal, storeds\n"
        "from storeds.ops import packing\n"
        "packing._CHUNK_ITEMS = 2\n"
        "def kill(state):\n"
        "    if state.done > 6: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"storeds.pack({str(tree)!r}, {url!r}, kind='flat', on_bad='keep', commit_every=3, progress=kill)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with pytest.raises(errors.ConfigError, match="check was true and is false"):
        pack(tree, url, check=False, resume=True)
    packed = pack(tree, url, resume=True)
    assert (packed.id, packed.findings) == (whole.id, whole.findings)


def test_a_picture_is_examined_only_once(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pack(tree, f"lmdb://{tmp_path}/a.lmdb")

    def refuse(blob: bytes) -> Any:
        raise AssertionError("examined again")

    for module in ("storeds.ops.packing", "storeds.ops.copying", "storeds.jpeg"):
        monkeypatch.setattr(f"{module}.examine", refuse)
    assert pack(Path(f"{tmp_path}/a.lmdb"), f"hdf5://{tmp_path}/b.h5", kind="store").id == first.id
    assert storeds.convert(f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/c.h5").id == first.id
    monkeypatch.undo()
    repaired = storeds.repair(f"lmdb://{tmp_path}/a.lmdb", f"hdf5://{tmp_path}/d.h5")
    assert repaired.kinds == first.findings


# convert


def test_convert_examines_pictures_without_a_verdict(tmp_path: Path, make_engine_url: MakeUrl) -> None:
    unchecked, checked, url = f"lmdb://{tmp_path}/a.lmdb", f"lmdb://{tmp_path}/b.lmdb", make_engine_url("hdf5")
    write(unchecked, check=False)
    whole = write(checked)
    assert storeds.convert(unchecked, url).id == whole.id
    assert verdicts(url) == verdicts(checked)
    same = storeds.convert(unchecked, f"{url}-same", check=False)
    assert same.id == storeds.info(unchecked).id != whole.id
    run("convert", unchecked, f"{url}-cli", "--no-check")
    assert storeds.info(f"{url}-cli").id == same.id


# info


def test_info_counts_verdicts(tmp_path: Path) -> None:
    for check, found in ((True, COUNTS), (False, {"not examined": len(PICTURES)})):
        write(f"lmdb://{tmp_path}/{check}.lmdb", check=check)
        assert info(f"lmdb://{tmp_path}/{check}.lmdb").pictures == found
    assert "3 whole, 11 damaged (truncated_scan 4, " in run("info", f"lmdb://{tmp_path}/True.lmdb").stdout
    put(tmp_path / "foreign", [(b"a", jpeg(0)), (b"b", jpeg(1))])
    assert info(f"lmdb://{tmp_path}/foreign").pictures == {"not examined": 2}
    with storeds.open_writer(f"lmdb://{tmp_path}/numbers.lmdb", {"x": "int"}) as writer:
        writer.append([{"x": 1}])
    assert info(f"lmdb://{tmp_path}/numbers.lmdb").pictures is None


# verify
