"""Folders of images beside folders of masks, as sources of `pack`."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import storeds
from _verdicts import declared, unjudged
from mask_files import FORMS, as_grey, class_ids, encode_mask, mask, pixels_of, write
from photographs import jpeg, photograph
from storeds.cli import app
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.packing.rows import Bad, Listing
from storeds.ops.packing.sources import open_source
from storeds.protocols import Field

MakeUrl = Callable[[str], str]
ENGINES = ("lmdb", "hdf5", "mongodb")
PICTURE, MASK, TEXT = Field("image", role="image"), Field("image", role="mask"), Field("str")


def records(url: str) -> list[dict[str, Any]]:
    with storeds.open_backend(url) as backend:
        return unjudged(backend.get_many(range(len(backend))))


def cityscapes(root: Path) -> Path:
    """Write a tree with the names of Cityscapes, with the four files of each annotation."""
    for number, (split, city) in enumerate((("train", "aachen"), ("train", "ulm"), ("val", "lindau"))):
        name = f"{city}_{number:06}_000019"
        write(
            root,
            {
                f"leftImg8bit/{split}/{city}/{name}_leftImg8bit.png": encode_mask(np.asarray(photograph(number))),
                f"gtFine/{split}/{city}/{name}_gtFine_labelIds.png": number,
                f"gtFine/{split}/{city}/{name}_gtFine_instanceIds.png": mask(number, "I;16"),
                f"gtFine/{split}/{city}/{name}_gtFine_color.png": encode_mask(np.asarray(photograph(number))),
                f"gtFine/{split}/{city}/{name}_gtFine_polygons.json": "{}",
            },
        )
    return root


def ade20k(root: Path) -> Path:
    files: dict[str, bytes | int | str] = {"classes.json": '["other", "wall", "building", "sky"]'}
    for number in range(4):
        split = "training" if number < 3 else "validation"
        files[f"images/{split}/ADE_{number}.jpg"] = number
        files[f"annotations/{split}/ADE_{number}.png"] = number
    return write(root, files)


def generic(root: Path, count: int = 3, masks: str = "masks") -> Path:
    return write(
        root,
        {f"images/{n}.jpg": n for n in range(count)} | {f"{masks}/{n}.png": n for n in range(count)},
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_cityscapes_is_recognised_and_packed(tmp_path: Path, engine: str, make_engine_url: MakeUrl) -> None:
    root, url = cityscapes(tmp_path / "cityscapes"), make_engine_url(engine)
    meta = storeds.pack(root, url)
    assert declared(meta) == {"image": PICTURE, "mask": MASK, "split": TEXT, "key": TEXT}
    assert [record["split"] for record in records(url)] == ["train", "train", "val"]
    for record in records(url):
        stem = record["key"].removesuffix("_leftImg8bit.png")
        assert record["image"] == (root / f"leftImg8bit/{record['key']}").read_bytes()
        assert record["mask"] == (root / f"gtFine/{stem}_gtFine_labelIds.png").read_bytes()
    assert len(meta.notes) == 1
    assert meta.notes[0].startswith("ignored 9 files without the names of images and masks: gtFine/train")
    assert not meta.reasons
    assert storeds.verify(url).ok
    storeds.pack(root, url, overwrite=True, mask_suffix="_gtFine_instanceIds")
    assert [record["mask"] for record in records(url)] == [mask(number, "I;16") for number in range(3)]


def test_ade20k_is_recognised_with_its_class_names(tmp_path: Path) -> None:
    root = ade20k(tmp_path / "ade")
    meta = storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb")
    assert meta.attrs == {"classes": ["other", "wall", "building", "sky"]}
    found = records(f"lmdb://{tmp_path}/a.lmdb")
    assert [record["key"] for record in found] == [f"training/ADE_{n}.jpg" for n in range(3)] + ["validation/ADE_3.jpg"]
    assert [record["split"] for record in found] == ["training"] * 3 + ["validation"]
    assert [record["mask"] for record in found] == [mask(number) for number in range(4)]
    assert not meta.notes


@pytest.mark.parametrize("masks", ["masks", "annotations", "labels", "Mask"])
def test_a_folder_of_images_beside_masks_needs_its_kind(tmp_path: Path, masks: str) -> None:
    root = generic(tmp_path / "tree", masks=masks)
    with pytest.raises(ConfigError) as error:
        storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb")
    assert "--kind masks" in str(error.value)
    assert "--kind imagefolder" in str(error.value)
    meta = storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb", kind="masks")
    assert declared(meta) == {"image": PICTURE, "mask": MASK, "key": TEXT}
    assert meta.attrs == {}
    assert records(f"lmdb://{tmp_path}/a.lmdb") == [
        {"image": jpeg(n), "mask": mask(n), "key": f"{n}.jpg"} for n in range(3)
    ]
    as_classes = storeds.pack(root, f"lmdb://{tmp_path}/b.lmdb", kind="imagefolder")
    assert as_classes.attrs["classes"] == sorted(["images", masks])


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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"images/x.jpg": 5}, "images/x.jpg: has no mask: expected masks/x.png, or with another suffix"),
        ({"masks/y.png": 5}, "masks/y.png: is a mask without an image: expected images/y.jpg, or with another suffix"),
        (
            {"images/0.png": 0},
            "images/0.jpg: there are several images of this name: images/0.jpg, images/0.png; remove all but one",
        ),
        (
            {"masks/0.bmp": 0},
            "images/0.jpg: there are several masks of this name: masks/0.bmp, masks/0.png; remove all but one",
        ),
        ({"masks/1.png": b"PNG?"}, "images/1.jpg: field 'mask' cannot be read as an image (4 bytes beginning"),
        ({"masks/1.png": b""}, "images/1.jpg: field 'mask' is empty (0 bytes)"),
        (
            {"masks/1.png": mask(1, size=(95, 64))},
            "images/1.jpg: field 'mask': the mask has 95 × 64 pixels (width × height), the image 96 × 64",
        ),
        (
            {"masks/1.png": encode_mask(np.zeros((64, 96, 3), np.uint8))},
            "images/1.jpg: field 'mask': a mask has one channel, which holds class ids, not Pillow mode 'RGB'",
        ),
        (
            {"images/1.jpg": b"<html>"},
            "images/1.jpg: field 'image' cannot be read as an image (6 bytes beginning 3c 68 74 6d)",
        ),
    ],
)
def test_problems_are_reported_by_name(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    root = write(generic(tmp_path / "tree"), files)
    lines = problem_lines(root)
    assert any(line.strip().startswith(expected) for line in lines), lines
    packed = storeds.pack(root, f"lmdb://{tmp_path}/good.lmdb", kind="masks", on_bad="skip")
    assert packed.count == 3 - (expected[0:8] != "images/x" and expected[0:7] != "masks/y")
    assert sum(packed.reasons.values()) == len(lines)


def test_unnamed_class_ids_are_reported(tmp_path: Path) -> None:
    root = generic(tmp_path / "tree")
    ids = class_ids(1)
    ids[:3] = 255
    ids[3] = 9
    (root / "masks/1.png").write_bytes(encode_mask(ids, "P"))
    classes = ["sky", "road", "car", "tree"]
    assert problem_lines(root, classes=classes) == [
        "  images/1.jpg: its mask masks/1.png contains class ids without a name: 9; there are 4 classes, and 255 marks pixels "
        "without a class; correct classes= (--classes), ignore_index= (--option ignore_index=…) or the mask"
    ]
    (line,) = problem_lines(root, classes=classes, ignore_index=9)
    assert "without a name: 255; there are 4 classes, and 9 marks" in line
    ids[3] = 255
    (root / "masks/1.png").write_bytes(encode_mask(ids, "P"))
    assert storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb", kind="masks", classes=classes).count == 3
    meta = storeds.pack(root, f"lmdb://{tmp_path}/b.lmdb", kind="masks", classes=classes, ignore_index=255)
    assert meta.attrs == {"classes": classes, "ignore_index": 255}


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


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (None, {}, "no folder"),
        ({"a.txt": "a"}, {}, "contains no folder of images"),
        ({}, {"image_folder": "images", "mask_folder": "mask2"}, "contains no folder mask2"),
        ({}, {"image_folder": "images", "mask_folder": "../masks"}, "must be below the source"),
        ({}, {"image_folder": "/images", "mask_folder": "masks"}, "must be below the source"),
        ({}, {"mask_folder": "masks"}, "name both with image_folder= and mask_folder="),
        ({}, {"ignore_index": "x"}, "ignore_index='x'"),
        ({}, {"classes": ["a", "a"]}, "classes: 'a' is listed twice"),
        ({}, {"classes": "none.txt"}, "the class names in none.txt cannot be read: No such file"),
        ({}, {"label": True}, "has no option 'label'"),
        ({}, {"max_side": 32}, "scale and turn images, but not mask"),
        ({}, {"quality": 80}, "scale and turn images, but not mask"),
        ({}, {"mask_suffix": "_m"}, "no image in images has a mask in masks; .* and mask_suffix='_m'"),
        ({"images/0.jpg": 0, "masks/0_m.png": 0}, {}, r"\(--option mask_suffix=_mask\)"),
        (
            {"images/0.jpg": 0, "masks/0.png": 0, "labels/0.png": 0},
            {},
            r"images in masks, labels; say which .*=images .*=masks",
        ),
    ],
)
def test_what_cannot_be_packed_at_all(
    files: dict[str, Any] | None, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    root = tmp_path / "tree"
    if files is not None:
        write(root, files) if files else generic(root)
    with pytest.raises((ConfigError, StoreNotFoundError), match=message):
        storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb", kind="masks", **options)


def test_folders_and_suffixes_that_are_given(tmp_path: Path) -> None:
    root = write(tmp_path / "tree", {"images/0.jpg": 0, "masks/0_m.png": 0, "labels/0.png": 1})
    url = f"lmdb://{tmp_path}/a.lmdb"
    for folder, suffix, number in (("masks", "_m", 0), ("labels", "", 1)):
        options: Any = {"image_folder": "images", "mask_folder": folder, "mask_suffix": suffix}
        storeds.pack(root, url, kind="masks", overwrite=True, **options)
        assert [record["mask"] for record in records(url)] == [mask(number)]


def test_hidden_files_and_links_out_of_the_source(tmp_path: Path) -> None:
    root = generic(tmp_path / "tree")
    write(root, {"images/.x.jpg": 0, "masks/._0.png": b"x", "masks/.ipynb_checkpoints/1.png": 1})
    write(tmp_path, {"out.png": 0})
    os.symlink(tmp_path / "out.png", root / "masks/9.png")
    rows = open_source(root, kind="masks")
    assert rows.notes == [
        "left out 1 hidden folder (masks/.ipynb_checkpoints) and 2 hidden files (images/.x.jpg, masks/._0.png); "
        "include_hidden=True (--option include_hidden=true) includes them",
    ]
    *_, bad = items = list(rows.items(0))
    assert len(items) == 4
    assert isinstance(bad, Bad)
    assert bad.name == "masks/9.png"
    assert "allow_outside=True" in bad.reason


@pytest.mark.parametrize(
    ("name", "text", "classes"),
    [
        ("classes.txt", "sky\nroad\n\n", ["sky", "road"]),
        ("class_names.txt", "﻿sky\r\nroad", ["sky", "road"]),
        ("classes.json", '["sky", "road"]', ["sky", "road"]),
        ("id2label.json", '{"1": "road", "0": "sky"}', ["sky", "road"]),
        ("id2label.json", '{"1": "sky", "2": "road"}', ["other", "sky", "road"]),
    ],
)
def test_class_names_from_a_file(tmp_path: Path, name: str, text: str, classes: list[str]) -> None:
    root = write(generic(tmp_path / "tree"), {name: text})
    assert open_source(root, kind="masks").attrs == {"classes": classes}
    assert open_source(root, kind="masks", classes=["a"]).attrs == {"classes": ["a"]}
    assert open_source(root, kind="masks", classes=root / name).attrs == {"classes": classes}


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"classes.txt": "sky\n\nroad"}, "class id 1 has no name"),
        ({"classes.txt": ""}, "the list is empty"),
        ({"classes.txt": "a\na"}, "'a' is listed twice"),
        ({"classes.txt": b"\xff\xfe\xfa"}, "cannot be read"),
        ({"classes.json": "[1"}, "cannot be read: Expecting"),
        ({"classes.json": "[" * 100_000}, "cannot be read: maximum recursion"),
        ({"classes.json": "[1]"}, "class names are a list, or an object"),
        ({"id2label.json": '{"0": "a", "2": "b"}'}, "class id 1 has no name"),
        ({"id2label.json": '{"sky": "0"}'}, "class names are a list, or an object"),
        ({"classes.txt": "a", "id2label.json": "{}"}, "several files of class names, classes.txt, id2label.json"),
    ],
)
def test_bad_files_of_class_names(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    root = write(generic(tmp_path / "tree"), files)
    with pytest.raises(ConfigError, match=message):
        open_source(root, kind="masks")


def test_images_and_masks_in_each_split(tmp_path: Path) -> None:
    generic(tmp_path / "tree/train", 2)
    generic(tmp_path / "tree/test", 1)
    with pytest.raises(ConfigError, match="--kind masks"):
        open_source(tmp_path / "tree")
    storeds.pack(tmp_path / "tree", f"lmdb://{tmp_path}/a.lmdb", kind="masks")
    assert [(record["key"], record["split"]) for record in records(f"lmdb://{tmp_path}/a.lmdb")] == [
        ("test/0.jpg", "test"),
        ("train/0.jpg", "train"),
        ("train/1.jpg", "train"),
    ]


def test_resuming_needs_the_same_files(tmp_path: Path) -> None:
    root = generic(tmp_path / "tree")

    def fingerprint(**options: Any) -> Any:
        return Listing(open_source(root, kind="masks", **options)).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    assert fingerprint(classes=["a"]) != before
    (root / "masks/1.png").write_bytes(mask(1, "P"))
    assert fingerprint() != before


@pytest.mark.parametrize("classes", ["a, b,c,d", "names.txt"])
def test_the_command_line(classes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generic(tmp_path / "tree")
    Path("names.txt").write_text("a\nb\nc\nd\n")
    command = ["pack", "tree", "a.lmdb", "--kind", "masks", "--classes", classes, "--option", "ignore_index=7"]
    run = CliRunner().invoke(app, command)
    assert run.exit_code == 0, run.stderr
    assert storeds.info("a.lmdb").attrs == {"classes": ["a", "b", "c", "d"], "ignore_index": 7}
