"""Folders, masks and tar shards, and the records that are read from them: cases of `pack`, and of stores of files."""

from __future__ import annotations

import tarfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from _source_files import tar
from mask_files import encode_mask, mask
from photographs import jpeg
from storeds.protocols import Field

IMAGE, MASK, PLAIN = Field("image", role="image"), Field("image", role="mask"), Field("image")
INT, STR, FLOAT, JSON = Field("int"), Field("str"), Field("float"), Field("json")
LABEL, TEXT, TEXTS = Field("int", role="label"), Field("str", role="text"), Field("json", role="text")
LABELS = Field("array", "<i8", (None,), "labels")
FLAGS = Field("array", "|b1", (None,), of="boxes")


class SourceCase(NamedTuple):
    """A data set, and what `pack` makes of it.

    Parameters
    ----------
    files : mapping
        Path → its bytes or text; a number stands for a photograph, or its mask.
    fields : dict
        The fields of the store, in order.
    records : dict
        Field → its value in each record. Without ``image``, each image is the file that the key names.
    source : str
        What is packed, below the folder of the files.
    options : dict
        Of `pack`.
    bad : tuple of str
        How the reports of bad items begin.
    notes : tuple of str
        How the notes begin.
    attrs : dict
        The attributes, without ``source``.
    """

    files: Mapping[str, Any]
    fields: dict[str, Field]
    records: dict[str, list[Any]]
    source: str = "."
    options: dict[str, Any] = {}  # no case changes it
    bad: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    attrs: dict[str, Any] = {}


PHOTOS = {f"{n}.jpg": n for n in range(4)}
MASKS = {f"m/{n}.png": n for n in range(4)}
FOLDER = {"image": PLAIN, "label": INT, "key": STR}


FOLDERS = {
    "classes": SourceCase(
        {"zebra/b.jpg": 0, "zebra/a.JPEG": 1, "zebra/deep/d.png": 2, "apple/10.jpg": 3, "apple/9.jpg": 4, "beside.txt": ""},
        FOLDER,
        {
            "key": ["apple/10.jpg", "apple/9.jpg", "zebra/a.JPEG", "zebra/b.jpg", "zebra/deep/d.png"],
            "label": [0, 0, 1, 1, 1],
        },
        attrs={"classes": ["apple", "zebra"]},
        notes=("left out 1 file that no class folder contains: beside.txt",),
    ),
    "an empty class keeps its label": SourceCase(
        {"a/1.jpg": 0, "b/.keep": "", "c/1.jpg": 1},
        FOLDER,
        {"key": ["a/1.jpg", "c/1.jpg"], "label": [0, 2]},
        options={"allow_empty": True},
        attrs={"classes": ["a", "b", "c"]},
    ),
    "numbers as classes, hidden files, annotations": SourceCase(
        {"1/a.jpg": 0, "2/a.jpg": 1, "10/a.jpg": 2, ".git/x.jpg": 3, "1/._a.jpg": "", "1/a.xml": "", "__MACOSX/x": ""},
        FOLDER,
        {"label": [0, 1, 2], "key": ["1/a.jpg", "10/a.jpg", "2/a.jpg"]},
        notes=(
            "classes are sorted as text, as ImageFolder sorts them, so labels are not the numbers in their names",
            "left out 2 hidden folders (.git, __MACOSX) and 1 hidden file (1/._a.jpg); rename",
            "left out 1 file that may describe the images: 1 *.xml, such as 1/a.xml",
        ),
        attrs={"classes": ["1", "10", "2"]},
    ),
    "no classes": SourceCase(
        {"b.jpg": 0, "A.JPG": 1, "more/c.jpg": 2, "read.me": ""},
        {"image": PLAIN, "key": STR},
        {"key": ["A.JPG", "b.jpg", "more/c.jpg"]},
        options={"kind": "flat"},
        notes=("left out 1 file of other kinds: 1 *.me, such as read.me",),
    ),
    "frames": SourceCase(
        {f"walk/{name}/{n}.jpg": n % 5 for name in ("b", "a") for n in (1, 10, 2)},
        {"image": PLAIN, "label": INT, "video": INT, "frame": INT, "key": STR},
        {
            **{"image": [jpeg(1), jpeg(2), jpeg(0)] * 2, "video": [0, 0, 0, 1, 1, 1], "frame": [0, 1, 2] * 2},
            **{"key": ["walk/a"] * 3 + ["walk/b"] * 3, "label": [0] * 6},
        },
        options={"kind": "frames"},
        attrs={"classes": ["walk"]},
    ),
}  # fmt: skip
CITY = {
    f"{folder}/{split}/x/{number}_{end}.png": number if end == "gtFine_labelIds" else encode_mask(np.eye(9, dtype="u1"))
    for number, split in enumerate(("train", "val"))
    for folder, end in (("leftImg8bit", "leftImg8bit"), ("gtFine", "gtFine_labelIds"), ("gtFine", "gtFine_color"))
}
CITY |= {f"leftImg8bit/{split}/x/{n}_leftImg8bit.png": jpeg(n) for n, split in enumerate(("train", "val"))}
SEGMENTED = {"image": IMAGE, "mask": MASK, "split": STR, "key": STR}
OF_MASKS = {
    "Cityscapes": SourceCase(
        CITY,
        SEGMENTED,
        {
            **{"image": [jpeg(0), jpeg(1)], "mask": [mask(0), mask(1)], "split": ["train", "val"]},
            "key": ["train/x/0_leftImg8bit.png", "val/x/1_leftImg8bit.png"],
        },
        notes=("ignored 2 files without the names of images and masks: gtFine/train",),
    ),
    "ADE20K": SourceCase(
        {
            **{f"{top}/{split}/1.{end}": 1 for split in ("training", "validation") for top, end in (("images", "jpg"), ("annotations", "png"))},
            "classes.txt": "other\nwall\nsky\nsea\n",
        },
        SEGMENTED,
        {"image": [jpeg(1)] * 2, "mask": [mask(1)] * 2, "split": ["training", "validation"]},
        options={"kind": "masks"},
        attrs={"classes": ["other", "wall", "sky", "sea"]},
    ),
    "in each split": SourceCase(
        {f"{split}/{folder}": 1 for split in ("test", "train") for folder in ("images/1.jpg", "masks/1.png")},
        SEGMENTED,
        {"image": [jpeg(1)] * 2, "mask": [mask(1)] * 2, "split": ["test", "train"], "key": ["test/1.jpg", "train/1.jpg"]},
    ),
    "other names, and everything wrong": SourceCase(
        {
            **{f"photos/{n}_rgb.jpg": n for n in range(6)},
            **{"photos/5_rgb.png": 5, "labels/0_m.png": 0, "labels/1_m.gif": encode_mask(np.full((64, 96), 2, "u1"), "P", "GIF")},
            **{"labels/2_m.png": mask(2, size=(9, 9)), "labels/3_m.png": encode_mask(np.zeros((64, 96, 3), "u1"))},
            **{"labels/5_m.png": 1, "labels/7_m.png": 1, "labels/notes.txt": "", "names.txt": "a\nb\nc\nd\n"},
            **{"photos/8_rgb.jpg": 0, "labels/8_m.png": encode_mask(np.full((64, 96), 9, "u1"))},
            **{"photos/9_rgb.jpg": 0, "labels/9_m.png": "PNG?"},
        },
        {"image": IMAGE, "mask": MASK, "key": STR},
        {"image": [jpeg(0), jpeg(1)], "key": ["0_rgb.jpg", "1_rgb.jpg"]},
        options={
            **{"kind": "masks", "image_folder": "photos", "mask_folder": "labels", "image_suffix": "_rgb"},
            **{"mask_suffix": "_m", "ignore_index": 250, "classes": ["a", "b", "c", "d"]},
        },
        bad=(
            "photos/2_rgb.jpg: field 'mask': the mask has 9 × 9 pixels",
            "photos/3_rgb.jpg: field 'mask': a mask has one channel, which holds class ids, not Pillow mode 'RGB'",
            "photos/4_rgb.jpg: has no mask: expected labels/4_m.png, or with another suffix",
            "photos/5_rgb.jpg: there are several images of this name: photos/5_rgb.jpg, photos/5_rgb.png; remove all but one",
            "photos/8_rgb.jpg: its mask labels/8_m.png contains class ids without a name: 9; there are 4 classes, and 250",
            "photos/9_rgb.jpg: its mask labels/9_m.png cannot be read: ",
            "labels/7_m.png: is a mask without an image: expected photos/7_rgb.jpg, or with another suffix",
        ),
        notes=(
            "ignored 1 file without the names of images and masks: labels/notes.txt",
            "left out 1 name beside the folders of images and masks: names.txt",
        ),
        attrs={"classes": ["a", "b", "c", "d"], "ignore_index": 250},
    ),
}  # fmt: skip
OUTSIDE = ("/abs.jpg", "../up.jpg", "a/../../up.jpg")
LONG = "l" * 90 + "/" + "m" * 90
MEMBERS = {
    **{"./0.jpg": jpeg(0), "./0.cls": b"3\n", "./0.json": b'{"a": [1, null]}', "0.txt": "Größe".encode(), "0.seg.png": jpeg(2)},
    **{f"{LONG}.CLS": b"-4", f"{LONG}.JPG": jpeg(1), f"{LONG}.json": b"[]", f"{LONG}.txt": b"", f"{LONG}.seg.PNG": jpeg(3)},
}  # fmt: skip
TARS = {
    **{
        f"members, {form}": SourceCase(
            {"a.tar": tar(MEMBERS, form)},
            {**FOLDER, "json": JSON, "seg_png": PLAIN, "txt": STR},
            {
                **{"image": [jpeg(0), jpeg(1)], "label": [3, -4], "key": ["0", LONG], "txt": ["Größe", ""]},
                **{"json": [{"a": [1, None]}, []], "seg_png": [jpeg(2), jpeg(3)]},
            },
            source="a.tar",
        )
        for form in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
    },
    "one more member leaves the others whole": SourceCase(
        {"a.tar": tar({f"{n}.{end}": jpeg(n) if end == "jpg" else b"%d" % n for n in range(3) for end in ("jpg", "cls")} | {"1.txt": b"x"})},
        FOLDER,
        {"image": [jpeg(n) for n in range(3)], "label": [0, 1, 2]},
        source="a.tar",
        notes=("left out .txt, which 1 of 3 samples have; extensions= (--option extensions=jpg,cls,…)",),
    ),
    "shards, and what is wrong in them": SourceCase(
        {
            "x-08.tar": tar({"0.jpg": jpeg(0), "0.cls": b"1", "1.jpg": jpeg(1), "2.cls": b"3", "__MACOSX/._1.jpg": b""}),
            "x-09.tar": tar({"0.jpg": jpeg(0), "0.cls": b"1", "3.jpg": jpeg(2), "3.cls": b"cat", **dict.fromkeys((*OUTSIDE, "plain", "end."), b"")}),
            "x-10.tar": tar({"4.jpg": jpeg(3), "4.cls": b"7", "4.PNG": b""}),
            "x-11.tar": tar({"5.jpg": jpeg(3)})[:700],
            "x-12.tar": b"\x1f\x8b" + bytes(900),
        },
        FOLDER,
        {"image": [jpeg(0), jpeg(3)], "label": [1, 7], "key": ["0", "4"]},
        source="x-{08..12}.tar",
        bad=(
            *(f"x-09.tar: {name}: its name is absolute or leads out of the archive" for name in OUTSIDE),
            *(f"x-09.tar: {name}: its name has no extension such as 0001.jpg, so it belongs to no sample" for name in ("plain", "end.")),
            "x-10.tar: 4.PNG: is the second member of its sample for the field image",
            "x-11.tar: is damaged, cut short or not a tar file: no valid member at byte 0 (the file ends within '5.jpg')",
            "x-12.tar: is compressed; decompress it",
            "x-08.tar: 1: has no .cls, which others have; extensions= (--option extensions=jpg,…)",
            "x-08.tar: 2: has no image (jpg, ",
            "x-09.tar: 0: its key is already in x-08.tar; pass key_with_shard=True (--option key_with_shard=true)",
            "x-09.tar: 3: its .cls contains 'cat'; expected an integer",
        ),
        notes=("left out 1 hidden file (__MACOSX/._1.jpg)",),
    ),
    "keys with their shard": SourceCase(
        {f"x{n}.tar": tar({"0.jpg": jpeg(n), "0.cls": b"%d" % n}) for n in (1, 2)},
        FOLDER,
        {"image": [jpeg(1), jpeg(2)], "label": [1, 2], "key": ["x1/0", "x2/0"]},
        source="x{1..2}.tar",
        options={"key_with_shard": True},
    ),
    "members that cannot be parsed": SourceCase(
        {"a.tar": tar({f"{n}.{end}": data for n, text in enumerate((b"{}", b"\xff", b"[NaN]", b"[" * 100_000)) for end, data in (("jpg", jpeg(n)), ("json", text))})},
        {"image": PLAIN, "key": STR, "json": JSON},
        {"image": [jpeg(0)], "json": [{}]},
        source="a.tar",
        options={"label": False},
        bad=(
            "a.tar: 1: its .json is not UTF-8 at byte 0",
            "a.tar: 2: its .json cannot be stored as JSON: JSON has no nan",
            "a.tar: 3: its .json cannot be stored as JSON: maximum recursion",
        ),
    ),
}  # fmt: skip
