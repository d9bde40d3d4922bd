"""An exported folder keeps what is known about damaged pictures: repaired ones look whole."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import storeds
from _damaged import PICTURES, write
from photographs import jpeg
from storeds.ops import repair

# `pack` refuses items of which nothing can be read.
READABLE = {key: picture for key, picture in PICTURES.items() if picture.is_readable}


def shares(url: str) -> dict[str, tuple[str, float]]:
    """Return the kind of damage of each record, and the share of its picture that is left."""
    with storeds.open_backend(url) as backend:
        records = backend.get_many(range(len(backend)), ("key", "image_finding", "image_recovered"))
        return {record["key"]: (record["image_finding"], record["image_recovered"]) for record in records}  # type: ignore[index]


def damaged(url: str) -> Counter[str]:
    return Counter(kind for kind, _ in shares(url).values())


@pytest.mark.parametrize("is_repaired", [True, False])
@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_pack_of_an_export_gives_the_same_id_and_the_same_damage(
    tmp_path: Path, engine: str, is_repaired: bool
) -> None:
    source, again = f"lmdb://{tmp_path}/source.lmdb", f"{engine}://{tmp_path}/again"
    write(source, READABLE)
    if is_repaired:
        repair(source, f"hdf5://{tmp_path}/repaired.h5")
        source = f"hdf5://{tmp_path}/repaired.h5"
    done = storeds.export(source, tmp_path / "out", format="folder")
    packed = storeds.pack(done.path, again)
    assert packed.id == storeds.info(source).id
    assert shares(again) == shares(source)
    assert packed.findings == dict(damaged(source))
    assert packed.damaged >= 3


def test_a_picture_that_was_replaced_is_examined(tmp_path: Path) -> None:
    source, repaired, again = (f"lmdb://{tmp_path}/{name}.lmdb" for name in ("source", "repaired", "again"))
    write(source, {key: PICTURES[key] for key in ("whole", "half", "coarse")})
    repair(source, repaired)
    out = Path(storeds.export(repaired, tmp_path / "out", format="folder").path)
    (file,) = out.glob("**/half*.jpg")
    file.write_bytes(jpeg(2))
    storeds.pack(out, again)
    assert shares(again) == {**shares(repaired), "half": ("intact", 1.0)}


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_formats_without_room_for_it_say_so(tmp_path: Path, format: str) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    boxes = {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"}
    labels = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
    with storeds.open_writer(url, {"key": "str", "image": "image", "boxes": boxes, "labels": labels}) as writer:
        blobs = {"a.jpg": jpeg(0), "b.jpg": PICTURES["half"].blob}
        objects = {"boxes": np.array([[1, 2, 9, 9]], np.float32), "labels": np.array([0])}
        writer.append({"key": key, "image": blob, **objects} for key, blob in blobs.items())
        writer.publish({"classes": ["cat"]})
    done = storeds.export(url, tmp_path / "out", format=format)
    assert [note for note in done.notes if "1 picture of the store is damaged or repaired" in note]


def test_a_row_with_half_a_verdict_is_a_bad_item(tmp_path: Path) -> None:
    source = f"lmdb://{tmp_path}/source.lmdb"
    write(source, {key: PICTURES[key] for key in ("whole", "half")})
    rows = Path(storeds.export(source, tmp_path / "out", format="folder").path) / "metadata.jsonl"
    lines = [json.loads(line) for line in rows.read_text().splitlines()]
    for line in lines:
        line.pop("image_recovered", None)
    rows.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(storeds.errors.RecordError, match="(?s)1 of 2 items .*lacks 'image_recovered'") as error:
        storeds.pack(tmp_path / "out", f"lmdb://{tmp_path}/again.lmdb")
    assert "half" in str(error.value)
