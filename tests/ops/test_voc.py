"""Data sets of Pascal VOC: what `pack` reads is what the XML says, and everything wrong with a file is reported."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

import storeds
from _verdicts import unjudged
from photographs import jpeg
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.packing import Packed

ENGINES = ("lmdb", "hdf5", "mongodb")
WIDTH, HEIGHT = 96, 64
CAT = ("cat", "1", "1", "96", "64")
DOG = ("dog", "10", "20.5", "30", "40")


def put(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def element(
    name: str, *sides: str, more: str = "<pose>Left</pose><truncated>1</truncated><difficult>0</difficult>"
) -> str:
    box = "".join(
        f"<{side}>{text}</{side}>" for side, text in zip(("xmin", "ymin", "xmax", "ymax"), sides, strict=True)
    )
    return f"<object><name>{escape(name)}</name>{more}<bndbox>{box}</bndbox></object>"


def annotation(*objects: str, size: str = f"<width>{WIDTH}</width><height>{HEIGHT}</height><depth>3</depth>") -> str:
    head = "<folder>VOC2012</folder><filename>x.jpg</filename><path>/home/me/x.jpg</path>"
    source = "<source><database>made</database></source><segmented>0</segmented>"
    return f"<annotation>{head}{source}<size>{size}</size>{''.join(objects)}</annotation>"


def add(root: Path, name: str, text: str | None, *, picture: bytes | None = None) -> None:
    put(
        root / f"JPEGImages/{name}.jpg",
        jpeg(len(os.listdir(root)) if root.exists() else 0) if picture is None else picture,
    )
    if text is not None:
        put(root / f"Annotations/{name}.xml", text)


def data_set(root: Path) -> Path:
    """Write three images in two sets, and one in none."""
    for name, objects in {"a": [CAT], "b": [], "c": [DOG, CAT], "z": [CAT]}.items():
        add(root, name, annotation(*(element(*each) for each in objects)))
    put(root / "ImageSets/Main/train.txt", "a\nb\n")
    put(root / "ImageSets/Main/val.txt", "c\n")
    put(root / "ImageSets/Main/trainval.txt", "a\nb\nc\n")
    put(root / "ImageSets/Main/cat_train.txt", "a  1\nb -1\n")
    return root


def mask(size: tuple[int, int] = (WIDTH, HEIGHT), mode: str = "P") -> bytes:
    buffer = io.BytesIO()
    image = Image.fromarray(np.full(size[::-1], 8, np.uint8)).convert(mode)
    if mode == "P":
        image.putpalette(bytes(range(256)) * 3)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def packed(root: Path, **options: Any) -> tuple[Packed, list[dict[str, Any]]]:
    """Pack a data set; return what `pack` returns, and the records."""
    meta = storeds.pack(root, "memory://voc", kind="voc", overwrite=True, **options)
    with storeds.open_backend("memory://voc") as backend:
        return meta, unjudged(backend.get_many(range(len(backend))))


def problems(root: Path, **options: Any) -> str:
    """Return the message that lists what is wrong with a data set."""
    with pytest.raises(RecordError) as caught:
        packed(root, **options)
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_stores_the_boxes_of_the_xml(
    engine: str, tmp_path: Path, make_engine_url: Callable[[str], str]
) -> None:
    data_set(tmp_path / "VOC2012")
    url = make_engine_url(engine)
    meta = storeds.pack(tmp_path / "VOC2012", url)
    assert meta.attrs["classes"] == ["cat", "dog"]
    fields = meta.fields
    assert (fields["boxes"].role, fields["boxes"].format, fields["boxes"].relative) == ("boxes", "xyxy", False)
    assert fields["labels"].role == "labels"
    assert all(fields[name].of == "boxes" for name in ("difficult", "truncated", "objects"))
    with storeds.open_backend(url) as backend:
        a, b, c = found = list[Any](backend.get_many(range(len(backend))))
    assert [each["key"] for each in found] == [f"JPEGImages/{name}.jpg" for name in "abc"]
    assert [each["split"] for each in found] == ["train", "train", "val"]
    assert a["boxes"].tolist() == [[0, 0, 96, 64]]  # the whole picture
    assert b["boxes"].shape == (0, 4)
    assert c["boxes"].tolist() == [[9, 19.5, 30, 40], [0, 0, 96, 64]]
    assert c["labels"].tolist() == [1, 0]
    assert c["truncated"].tolist() == [True, True]
    assert c["difficult"].tolist() == [False, False]
    assert c["objects"] == [{"pose": "Left"}, {"pose": "Left"}]
    assert c["annotation"] == {"folder": "VOC2012", "source": {"database": "made"}, "segmented": "0"}
    assert c["image"] == (tmp_path / "VOC2012/JPEGImages/c.jpg").read_bytes()
    assert "1 image is in none of the lists Main/train, Main/val" in " ".join(meta.notes)


LISTS = {
    "Segmentation/train": "c\n",
    "Main/cat_train": "a  1\nb -1\nc  0\nnone -1\n",
    "Action/jumping_train": "a 1 -1\na 2  1\nb 1 -1\n",  # the image, the number of the person, and the flag
    "Main/cow_train": "a -1\n",
    "Main/gone": "c\nnone\n",
}


@pytest.mark.parametrize(
    ("image_set", "expected"),
    [
        ("all", "abcz"),
        ("train", "ab"),
        ("Segmentation/train", "c"),
        ("cat_train", "ac"),
        ("Action/jumping_train", "a"),
        (["val", "train"], "cab"),
        ("val, train", "cab"),
        ("tran", r"no list ImageSets/Main/tran.txt .*Main/train"),
        (["train", "trainval"], r"the lists Main/train and Main/trainval share images, such as a"),
        ("cow_train", r"no image is in the lists Main/cow_train, except with -1; choose others"),
        ("gone", r"ImageSets/Main/gone.txt line 2: there is no image JPEGImages/none\.\*"),
    ],
)
def test_sets_are_chosen(image_set: Any, expected: str, tmp_path: Path) -> None:
    data_set(tmp_path)
    for name, text in LISTS.items():
        put(tmp_path / f"ImageSets/{name}.txt", text)
    if len(expected) > 4:
        with pytest.raises((ConfigError, RecordError), match=expected):
            packed(tmp_path, image_set=image_set)
        return
    meta, records = packed(tmp_path, image_set=image_set)
    assert "".join(record["key"][-5] for record in records) == expected
    assert ("split" in meta.fields) == (len(expected) == 3 and image_set != "all")
    assert any(f"{4 - len(expected)} image" in note for note in meta.notes) == (image_set != "all")


def test_given_classes_keep_their_order(tmp_path: Path) -> None:
    root = data_set(tmp_path / "set")
    assert packed(root, classes=["dog", "cow", "cat"])[1][2]["labels"].tolist() == [0, 2]
    says = "JPEGImages/c.jpg: its annotation has classes that classes does not name: dog"
    assert says in problems(root, classes=["cat"])


def test_masks_are_packed_if_every_image_has_one(tmp_path: Path) -> None:
    data_set(tmp_path)
    for name in "ab":
        put(tmp_path / f"SegmentationClass/{name}.png", mask())
    meta, _ = packed(tmp_path)
    assert "mask" not in meta.fields
    assert any(note.startswith("2 of 3 images have a mask in SegmentationClass, and no mask") for note in meta.notes)
    meta, records = packed(tmp_path, image_set="train")
    assert meta.fields["mask"].role == "mask"
    assert [record["mask"] for record in records] == [mask()] * 2
    classes: Any = meta.attrs["mask_classes"]
    assert (classes[0], classes[8], len(classes), meta.attrs["ignore_index"]) == ("background", "cat", 21, 255)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (mask((9, 9)), "field 'mask': the mask has 9 × 9 pixels"),
        (mask(mode="RGB"), "'RGB'"),
        (None, "its mask SegmentationClass/a.png cannot be read: No such file"),
    ],
)
def test_faulty_masks_are_reported(content: bytes | None, says: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation())
    file = put(root / "SegmentationClass/a.png", content or b"")
    if content is None:
        file.unlink()
        file.symlink_to("nowhere")  # which is not a missing mask
    assert f"JPEGImages/a.jpg: {'' if content is None else 'field '}" in problems(root)
    assert says in problems(root)


FAULTS: Sequence[tuple[str, str]] = [
    ("<annotation>", "its annotation is not XML"),
    ("<annotations/>", "begins with <annotations> instead of <annotation>"),
    ('<!DOCTYPE a [<!ENTITY x "y">]><annotation/>', "has a DOCTYPE, which pack refuses"),
    (annotation(element("", "1", "1", "9", "9")), "object 1 has no name"),
    (annotation("<object><name>cat</name></object>"), "object 1 (cat) has bndbox/xmin ''; expected a number"),
    (annotation(element("cat", "1", "", "9", "9")), "object 1 (cat) has bndbox/ymin ''; expected a number"),
    (annotation(element("cat", "1", "x", "9", "9")), "has bndbox/ymin 'x'; expected a number"),
    (annotation(element("cat", "nan", "1", "9", "9")), "has a wrong bndbox: nan, 1, 9, 9"),
    (annotation(element("cat", "9", "1", "8", "9")), "has a wrong bndbox: 9, 1, 8, 9"),
    (
        annotation(element("cat", "0", "1", "8", "9")),
        "begins at 0, and the first pixel is 1; if these files count from 0, pass zero_based=True (--option zero_based",
    ),
    (annotation(element("cat", "1", "1", "97", "9")), "ends at 97, 9, beyond the 96 x 64 pixels"),
    (annotation(element("cat", "1", "1", "9", "9", more="<difficult>maybe</difficult>")), "has difficult 'maybe'"),
    (annotation(size="<width>64</width><height>96</height>"), "says that it has 64 x 96 pixels, and it has 96 x 64"),
    (annotation(size="<width/><height>96</height>"), "it has size/width ''; expected a number"),
    (annotation(size="<width>1e999</width><height>96</height>"), "says that it has inf x 96 pixels"),
    ("<annotation>" + "<a>" * 40 + "</a>" * 40 + "</annotation>", "nested more than 20 deep"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS)
def test_a_faulty_annotation_is_reported(text: str, says: str, tmp_path: Path) -> None:
    add(tmp_path / "set", "good", annotation(element(*DOG)))
    add(tmp_path / "set", "bad", text)
    message = problems(tmp_path / "set", classes=["cat", "dog"])
    assert "JPEGImages/bad.jpg: " in message
    assert says in message
    meta, _ = packed(tmp_path / "set", classes=["cat", "dog"], on_bad="skip")
    assert (meta.count, meta.left_out) == (1, 1)


def test_missing_and_doubled_files_are_reported(tmp_path: Path) -> None:
    root = data_set(tmp_path / "set")
    add(root, "lonely", None)
    put(root / "Annotations/gone.xml", annotation())
    put(root / "JPEGImages/a.png", b"")
    message = problems(root, image_set="all")
    assert "JPEGImages/lonely.jpg: has no annotation (Annotations/lonely.xml)" in message
    assert "Annotations/gone.xml: the annotation has no image (JPEGImages/gone.*)" in message
    assert "JPEGImages/a.jpg: several images have the same annotation: JPEGImages/a.jpg, JPEGImages/a.png" in message


@pytest.mark.parametrize("path", ["Annotations/a.xml", "SegmentationClass/a.png"])
def test_files_are_not_read_through_links_out_of_the_folder(path: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation(element(*CAT)))
    put(root / "SegmentationClass/a.png", mask())
    (root / path).rename(tmp_path / "outside")
    (root / path).symlink_to(tmp_path / "outside")
    assert f"{path}: is a link to {tmp_path}/outside, outside {root}" in problems(root)
    assert packed(root, allow_outside=True)[0].count == 1


def turned_picture(orientation: int, height: int = 40) -> tuple[bytes, Any]:
    """Return a white rectangle on black, and where it is in the picture as displayed."""
    pixels = np.zeros((height, 60), np.uint8)
    pixels[5:9, 20:50] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=100, exif=exif)
    return buffer.getvalue(), np.asarray(ImageOps.exif_transpose(Image.open(buffer))) > 128


def annotation_of(shown: Any, *, has_size: bool = True) -> str:
    """Return the annotation of a rectangle as seen, with the size of what was seen."""
    rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
    box = [str(number + 1) for number in (columns[0], rows[0], columns[-1], rows[-1])]
    size = f"<width>{shown.shape[1]}</width><height>{shown.shape[0]}</height>"
    text = annotation(element("cat", *box), size=size)
    return text if has_size else text.replace(f"<size>{size}</size>", "")


@pytest.mark.parametrize("orientation", [5, 6, 7, 8])
def test_boxes_are_turned_if_the_size_is_that_of_the_picture_as_displayed(orientation: int, tmp_path: Path) -> None:
    picture, shown = turned_picture(orientation)
    add(tmp_path, "a", annotation_of(shown), picture=picture)
    meta, (record,) = packed(tmp_path)
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    assert meta.notes == ()


@pytest.mark.parametrize(("orientation", "height", "has_size"), [
    *((orientation, 40, True) for orientation in range(1, 9)),
    *((orientation, 60, True) for orientation in range(1, 9)),
    *((orientation, 40, False) for orientation in range(1, 9)),
])  # fmt: skip
def test_boxes_and_masks_are_taken_as_stored(orientation: int, height: int, has_size: bool, tmp_path: Path) -> None:
    picture, _ = turned_picture(orientation, height)
    stored = np.asarray(Image.open(io.BytesIO(picture))) > 128
    add(tmp_path, "a", annotation_of(stored, has_size=has_size), picture=picture)
    buffer = io.BytesIO()
    Image.fromarray(stored.astype(np.uint8)).save(buffer, "PNG")
    put(tmp_path / "SegmentationClass/a.png", buffer.getvalue())
    meta, (record,) = packed(tmp_path)
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    # Turned together when read, the box is still around the pixels of the mask.
    dataset = storeds.StoreDataset("memory://voc", reader="sample", as_dict=True, reader_options={"orient": True})
    (left, top, right, bottom), inside = dataset[0]["boxes"][0].int().tolist(), dataset[0]["mask"].numpy() == 1
    assert inside[top:bottom, left:right].all()
    assert inside.sum() == (bottom - top) * (right - left)
    is_unproven = orientation > 1 and (orientation < 5 or height == 60 or not has_size)
    noted = [note for note in meta.notes if "1 picture has an EXIF orientation" in note]
    assert len(noted) == is_unproven


def test_the_folder_is_found_in_vocdevkit(tmp_path: Path) -> None:
    data_set(tmp_path / "VOCdevkit/VOC2012")
    assert packed(tmp_path)[0].id == packed(tmp_path / "VOCdevkit")[0].id
    assert "boxes" in storeds.pack(tmp_path, f"lmdb://{tmp_path}/s.lmdb").fields
    data_set(tmp_path / "VOCdevkit/VOC2007")
    for path, message in (
        (".", r"several data sets: .*VOC2007, .*VOC2012; pass one"),
        ("VOCdevkit/VOC2012/Annotations", "is no data set of Pascal VOC"),
        ("none", "no folder at"),
    ):
        with pytest.raises((ConfigError, StoreNotFoundError), match=message):
            packed(tmp_path / path)


@pytest.mark.parametrize("encoding", ["GB2312", "Shift_JIS", "euc-kr", "ISO-8859-1", "UTF-16"])
def test_annotations_in_other_encodings(encoding: str, tmp_path: Path) -> None:
    name = {"Shift_JIS": "猫", "euc-kr": "고양이", "ISO-8859-1": "Ärger"}.get(encoding, "狗")
    text = f'<?xml version="1.0" encoding="{encoding}"?>{annotation(element(name, "1", "1", "9", "9"))}'
    add(tmp_path, "a", None)
    put(tmp_path / "Annotations/a.xml", text.encode(encoding))
    assert packed(tmp_path)[0].attrs["classes"] == [name]


def test_a_doctype_or_bytes_of_another_encoding_are_refused_in_encodings_of_several_bytes(tmp_path: Path) -> None:
    head = '<?xml version="1.0" encoding="gb2312"?>'
    add(tmp_path, "a", None)
    add(tmp_path, "b", f'{head}<!DOCTYPE a [<!ENTITY b "c">]>{annotation()}')
    put(tmp_path / "Annotations/a.xml", f"{head}{annotation()}".encode() + b"\xff")
    says = problems(tmp_path)
    assert "has a DOCTYPE" in says
    assert "its annotation is not XML: 'gb2312' codec can't decode" in says


def test_coordinates_from_zero_are_stored_as_they_are(tmp_path: Path) -> None:
    add(tmp_path, "a", annotation(element("cat", "0", "0", "96", "64"), element("cat", "1.5", "2", "3", "4.25")))
    (record,) = packed(tmp_path, zero_based=True)[1]
    assert record["boxes"].tolist() == [[0, 0, 96, 64], [1.5, 2, 3, 4.25]]


side = st.integers(0, 1000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 1000)))


@given(boxes=st.lists(st.tuples(st.sampled_from(["cat", "a & b", "Ärger"]), side, side), max_size=6))
def test_random_annotations_read_as_written(boxes: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("set")
    # Thousandths of the width and height, from the first to the last pixel.
    rows = [(name, *(1 + x * 0.095 for x in xs), *(1 + y * 0.063 for y in ys)) for name, xs, ys in boxes]
    texts = [element(name, repr(left), repr(top), repr(right), repr(bottom)) for name, left, right, top, bottom in rows]
    add(root, "a", annotation(*texts))
    meta, (record,) = packed(root)
    classes: Any = meta.attrs["classes"]
    assert classes == sorted({row[0] for row in rows})
    assert [classes[label] for label in record["labels"]] == [row[0] for row in rows]
    assert record["boxes"].tolist() == [[left - 1, top - 1, right, bottom] for _, left, right, top, bottom in rows]
