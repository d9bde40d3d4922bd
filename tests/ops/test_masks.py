"""Folders of images beside folders of masks, as sources of `pack`: the class ids of every form of a mask."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
from _packing import records_of
from mask_files import FORMS, as_grey, class_ids, encode_mask, mask, write
from photographs import photograph, saved
from picture_stores import exif
from storeds.errors import RecordError

IDS = class_ids(1)
DEEP = IDS.astype(np.uint16)
DEEP[0, 0] = 300
# Masks of one photograph: the file, its suffix, and the class ids that it holds.
MASKS: dict[str, tuple[bytes, str, Any]] = {
    **{form: (encode_mask(IDS, form), "png", IDS > 0 if form == "1" else IDS) for form in FORMS},
    **{f"grey of {bits} bits": (as_grey(encode_mask(IDS, "P", bits=bits), bits), "png", IDS) for bits in (2, 4)},
    "GIF": (encode_mask(IDS, "P", "GIF"), "gif", IDS),
    "class ids beyond 255": (encode_mask(DEEP, "I;16"), "png", DEEP),
}


def pack(root: Path, files: dict[str, bytes], **options: Any) -> Any:
    """Pack these files, and the first photographs, as images and masks."""
    tree = write(root / "tree", {"images/0.jpg": 0, "images/1.jpg": 1, "masks/0.png": 0, **files})
    return storeds.pack(tree, f"lmdb://{root}/a.lmdb", kind="masks", overwrite=True, **options)


@pytest.mark.parametrize("name", MASKS)
def test_masks_keep_their_bytes_and_their_class_ids_are_compared_exactly(name: str, tmp_path: Path) -> None:
    blob, suffix, ids = MASKS[name]
    most = int(ids.max())
    files = {f"masks/1.{suffix}": blob}
    assert pack(tmp_path, files, classes=[f"c{n}" for n in range(max(most, 3) + 1)]).notes == ()
    assert records_of(tmp_path / "a.lmdb")[1]["mask"] == blob
    np.testing.assert_array_equal(storeds.StoreDataset(tmp_path / "a.lmdb", reader="sample")[1][1], ids)
    if most > 1:
        with pytest.raises(RecordError, match=rf"images/1.jpg.*without a name: {most};"):
            pack(tmp_path, files, classes=[f"c{n}" for n in range(most)], ignore_index=most + 1)


def test_a_mask_of_the_size_that_exif_gives_the_image_is_refused(tmp_path: Path) -> None:
    turned = saved(photograph(1), "JPEG", exif=exif(6))
    with pytest.raises(RecordError, match="64 × 96"):
        pack(tmp_path, {"images/1.jpg": turned, "masks/1.png": mask(1, size=(64, 96))})


def test_masks_as_jpeg_are_allowed_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lossy = encode_mask(IDS, format="JPEG")
    pack(tmp_path, {"masks/1.png": lossy})
    assert "field 'mask' holds a mask that is a JPEG" in caplog.text
    assert records_of(tmp_path / "a.lmdb")[1]["mask"] == lossy
