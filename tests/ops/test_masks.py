"""Folders of images beside folders of masks, as sources of `pack`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import storeds
from _verdicts import unjudged
from mask_files import FORMS, as_grey, class_ids, encode_mask, mask, pixels_of, write
from photographs import photograph
from storeds.errors import ConfigError, RecordError
from storeds.ops.packing.sources import open_source
from storeds.protocols import Field

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
PICTURE, MASK, TEXT = Field("image", role="image"), Field("image", role="mask"), Field("str")


def records(url: str) -> list[dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return unjudged(backend.get_many(range(len(backend))))


def generic(root: Path, count: int = 3, masks: str = "masks") -> Path:
    return write(
        root,
        {f"images/{n}.jpg": n for n in range(count)} | {f"{masks}/{n}.png": n for n in range(count)},
    )


def test_masks_as_gif(tmp_path: Path) -> None:
    files = {f"masks/{n}.gif": encode_mask(class_ids(n), "P", "GIF") for n in range(2)}
    root = write(tmp_path / "tree", {**{f"images/{n}.jpg": n for n in range(2)}, **files})
    with pytest.raises(ConfigError, match="--kind masks"):
        open_source(root)
    url = f"lmdb://{tmp_path}/a.lmdb"
    assert storeds.pack(root, url, kind="masks", classes=list("abcd")).notes == ()
    for number, record in enumerate(records(url)):
        assert record["mask"] == files[f"masks/{number}.gif"]
        np.testing.assert_array_equal(storeds.StoreDataset(url, reader="sample")[number][1], class_ids(number))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("engine", ENGINES)
def test_masks_keep_their_bytes_and_class_ids(tmp_path: Path, form: str, engine: str, make_engine_url: MakeUrl) -> None:
    files = {f"masks/{n}.png": mask(n, form) for n in range(3)}
    root = write(tmp_path / "tree", {**{f"images/{n}.jpg": n for n in range(3)}, **files})
    url = make_engine_url(engine)
    meta = storeds.pack(root, url, kind="masks", classes=["a", "b", "c", "d"])
    assert meta.attrs == {"classes": ["a", "b", "c", "d"]}
    for number, record in enumerate(records(url)):
        assert record["mask"] == files[f"masks/{number}.png"]
        ids = class_ids(number)
        np.testing.assert_array_equal(pixels_of(record["mask"]), ids > 0 if form == "1" else ids)


def problem_lines(root: Path, **options: Any) -> list[str]:
    """Return the lines of the error of a pack."""
    with pytest.raises(RecordError) as error:
        storeds.pack(root, f"lmdb://{root.parent}/bad.lmdb", kind="masks", **options)
    return str(error.value).splitlines()[1:]


@pytest.mark.parametrize("bits", [2, 4])
def test_class_ids_of_grey_masks_of_few_bits_are_compared_exactly(bits: int, tmp_path: Path) -> None:
    root = generic(tmp_path / "tree")
    ids = class_ids(1)
    (root / "masks/1.png").write_bytes(as_grey(encode_mask(ids, "P", bits=bits), bits))
    url = f"lmdb://{tmp_path}/a.lmdb"
    assert storeds.pack(root, url, kind="masks", classes=["sky", "road", "car", "tree"]).count == 3
    assert np.array_equal(storeds.StoreDataset(url, reader="sample")[1][1], ids)
    assert "without a name: 3;" in problem_lines(root, classes=["sky", "road", "car"])[0]


def test_16_bit_class_ids_are_compared_exactly(tmp_path: Path) -> None:
    ids = class_ids(0).astype(np.uint16)
    ids[0, 0] = 300
    root = write(tmp_path / "tree", {"images/0.jpg": 0, "masks/0.png": encode_mask(ids, "I;16")})
    (line,) = problem_lines(root, classes=list("abcd"))
    assert "class ids without a name: 300;" in line


def test_a_mask_of_the_size_that_exif_gives_the_image_is_refused(tmp_path: Path) -> None:
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 6
    photograph(0).save(buffer, "JPEG", exif=exif)
    root = write(tmp_path / "tree", {"images/0.jpg": buffer.getvalue(), "masks/0.png": mask(0, size=(64, 96))})
    (line,) = problem_lines(root)
    assert "64 × 96" in line


def test_masks_as_jpeg_are_allowed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lossy = encode_mask(class_ids(0), format="JPEG")
    root = write(tmp_path / "tree", {"images/0.jpg": 0, "masks/0.png": lossy})
    storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb", kind="masks")
    assert "field 'mask' holds a mask that is a JPEG" in caplog.text
    assert records(f"lmdb://{tmp_path}/a.lmdb")[0]["mask"] == lossy
