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
from photographs import jpeg
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.packing.sources import VocSource
from storeds.protocols import Record

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


def records(source: Any) -> list[Record]:
    return [source.read(index) for index in range(len(source))]


def problems(root: Path, **options: Any) -> str:
    """Return the message that lists what is wrong with a data set."""
    with pytest.raises(RecordError) as caught:
        storeds.pack(root, f"lmdb://{root}.lmdb", **options)
    return str(caught.value)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_stores_the_boxes_of_the_xml(
    engine: str, tmp_path: Path, make_engine_url: Callable[[str], str]
) -> None:
    data_set(tmp_path / "VOC2012")
    url = make_engine_url(engine)
    packed = storeds.pack(tmp_path / "VOC2012", url)
    assert packed.attrs["classes"] == ["cat", "dog"]
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
    assert "1 image is in none of the lists Main/train, Main/val, and left out" in " ".join(packed.notes)


def test_fields_declare_their_roles(tmp_path: Path) -> None:
    fields = VocSource(data_set(tmp_path)).fields
    assert (fields["boxes"].role, fields["boxes"].format, fields["boxes"].relative) == ("boxes", "xyxy", False)
    assert fields["labels"].role == "labels"
    assert all(fields[name].of == "boxes" for name in ("difficult", "truncated", "objects"))


def test_sets_are_chosen(tmp_path: Path) -> None:
    data_set(tmp_path)
    put(tmp_path / "ImageSets/Segmentation/train.txt", "c\n")
    assert [each["key"][-5] for each in records(VocSource(tmp_path, image_set="Segmentation/train"))] == ["c"]
    everything = VocSource(tmp_path, image_set="all")
    assert [each["key"][-5] for each in records(everything)] == ["a", "b", "c", "z"]
    assert "split" not in everything.fields
    with pytest.raises(ConfigError, match=r"no list ImageSets/Main/tran.txt .*Main/train"):
        VocSource(tmp_path, image_set="tran")
    with pytest.raises(ConfigError, match=r"the lists Main/train and Main/trainval share 2 images \(a, b\)"):
        VocSource(tmp_path, image_set=["train", "trainval"])


def test_given_classes_keep_their_order(tmp_path: Path) -> None:
    source = VocSource(data_set(tmp_path / "set"), classes=["dog", "cow", "cat"])
    assert records(source)[2]["labels"].tolist() == [0, 2]
    says = "its annotation has classes that classes does not name: dog (Annotations/c.xml)"
    assert says in problems(tmp_path / "set", classes=["cat"])


def test_masks_are_packed_if_every_image_has_one(tmp_path: Path) -> None:
    data_set(tmp_path)
    for name in "ab":
        put(tmp_path / f"SegmentationClass/{name}.png", mask())
    source = VocSource(tmp_path)
    assert "mask" not in source.fields
    assert any(note.startswith("2 of 3 images have a mask in SegmentationClass, and no mask") for note in source.notes)
    source = VocSource(tmp_path, image_set="train")
    assert source.fields["mask"].role == "mask"
    assert [each["mask"] for each in records(source)] == [mask()] * 2
    classes: Any = source.attrs["mask_classes"]
    assert (classes[0], classes[8], len(classes), source.attrs["ignore_index"]) == ("background", "cat", 21, 255)
    url = f"hdf5://{tmp_path}/m.h5"
    assert storeds.pack(tmp_path, url, image_set="train").count == 2


@pytest.mark.parametrize(("size", "mode", "says"), [((9, 9), "P", "9 × 9 pixels"), ((WIDTH, HEIGHT), "RGB", "'RGB'")])
def test_faulty_masks_are_reported(size: tuple[int, int], mode: str, says: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation())
    put(root / "SegmentationClass/a.png", mask(size, mode))
    message = problems(root)
    assert "its mask SegmentationClass/a.png cannot be used" in message
    assert says in message


FAULTS: Sequence[tuple[str, str]] = [
    ("<annotation>", "its annotation is not XML"),
    ("<annotations/>", "begins with <annotations> instead of <annotation>"),
    ('<!DOCTYPE a [<!ENTITY x "y">]><annotation/>', "has a DOCTYPE, which pack refuses"),
    (annotation(element("", "1", "1", "9", "9")), "object 1 has no name"),
    (annotation("<object><name>cat</name></object>"), "object 1 (cat) has no bndbox"),
    (annotation(element("cat", "1", "", "9", "9")), "object 1 (cat) has a bndbox without ymin"),
    (annotation(element("cat", "1", "x", "9", "9")), "has ymin 'x', which is not a finite number"),
    (annotation(element("cat", "nan", "1", "9", "9")), "has xmin 'nan', which is not a finite number"),
    (annotation(element("cat", "9", "1", "8", "9")), "has a negative size: xmax 8 is below xmin 9"),
    (
        annotation(element("cat", "0", "1", "8", "9")),
        "has xmin 0, and the first pixel is 1; if these files count from 0",
    ),
    (annotation(element("cat", "1", "1", "97", "9")), "has xmax 97, beyond the width of 96 pixels"),
    (annotation(element("cat", "1", "1", "9", "9", more="<difficult>maybe</difficult>")), "has difficult 'maybe'"),
    (annotation(size="<width>64</width><height>96</height>"), "says that it has 64 x 96 pixels, and it has 96 x 64"),
    (annotation(size="<width/><height>96</height>"), "size has width '', height '96'; expected two whole numbers"),
    ("<annotation>" + "<a>" * 40 + "</a>" * 40 + "</annotation>", "nested more than 20 deep"),
]


@pytest.mark.parametrize(("text", "says"), FAULTS)
def test_a_faulty_annotation_is_reported(text: str, says: str, tmp_path: Path) -> None:
    add(tmp_path / "set", "good", annotation(element(*DOG)))
    add(tmp_path / "set", "bad", text)
    message = problems(tmp_path / "set", classes=["cat", "dog"])
    assert "JPEGImages/bad.jpg: " in message
    assert says in message
    packed = storeds.pack(tmp_path / "set", f"lmdb://{tmp_path}/s.lmdb", classes=["cat", "dog"], on_bad="skip")
    assert (packed.count, packed.left_out) == (1, 1)


def test_a_doctype_in_another_encoding_is_refused(tmp_path: Path) -> None:
    text = '<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE a [<!ENTITY x "y">]><annotation>&x;</annotation>'
    add(tmp_path / "set", "a", None)
    put(tmp_path / "set/Annotations/a.xml", text.encode("utf-16"))
    assert "has a DOCTYPE, which pack refuses" in problems(tmp_path / "set")


def test_missing_and_doubled_files_are_reported(tmp_path: Path) -> None:
    root = data_set(tmp_path / "set")
    add(root, "lonely", None)
    put(root / "Annotations/gone.xml", annotation())
    put(root / "JPEGImages/a.png", b"")
    message = problems(root, image_set="all")
    assert "JPEGImages/lonely.jpg: has no annotation (Annotations/lonely.xml)" in message
    assert "Annotations/gone.xml: the annotation has no image (JPEGImages/gone.*)" in message
    assert "JPEGImages/a.jpg: another image has the same annotation: JPEGImages/a.png" in message
    put(root / "ImageSets/Main/val.txt", "c\nnone\n")
    assert "ImageSets/Main/val.txt line 2: there is no image JPEGImages/none.*" in problems(root)


@pytest.mark.parametrize("path", ["Annotations/a.xml", "SegmentationClass/a.png"])
def test_files_are_not_read_through_links_out_of_the_folder(path: str, tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation(element(*CAT)))
    put(root / "SegmentationClass/a.png", mask())
    (root / path).rename(tmp_path / "outside")
    (root / path).symlink_to(tmp_path / "outside")
    assert f"JPEGImages/a.jpg: its file {path}: the path leads through a link" in problems(root)
    assert len(VocSource(root, allow_outside=True)) == 1


def test_coordinates_from_zero_are_stored_as_they_are(tmp_path: Path) -> None:
    add(tmp_path, "a", annotation(element("cat", "0", "0", "96", "64"), element("cat", "1.5", "2", "3", "4.25")))
    (record,) = records(VocSource(tmp_path, zero_based=True))
    assert record["boxes"].tolist() == [[0, 0, 96, 64], [1.5, 2, 3, 4.25]]


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
    (record,) = records(source := VocSource(tmp_path))
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    assert source.notes == ()


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
    packed = storeds.pack(tmp_path, f"lmdb://{tmp_path}/store.lmdb", kind="voc")
    with storeds.open_backend(packed_url := f"lmdb://{tmp_path}/store.lmdb") as backend:
        record: Any = backend.get_many([0])[0]
    assert record["boxes"].tolist() == [[20, 5, 50, 9]]
    # Turned together when read, the box is still around the pixels of the mask.
    dataset = storeds.StoreDataset(packed_url, reader="sample", as_dict=True, reader_options={"orient": True})
    (left, top, right, bottom), inside = dataset[0]["boxes"][0].int().tolist(), dataset[0]["mask"].numpy() == 1
    assert inside[top:bottom, left:right].all()
    assert inside.sum() == (bottom - top) * (right - left)
    is_unproven = orientation > 1 and (orientation < 5 or height == 60 or not has_size)
    noted = [note for note in packed.notes if "1 picture has an EXIF orientation" in note]
    assert len(noted) == is_unproven


def test_the_folder_is_found_in_vocdevkit(tmp_path: Path) -> None:
    data_set(tmp_path / "VOCdevkit/VOC2012")
    assert len(VocSource(tmp_path)) == len(VocSource(tmp_path / "VOCdevkit")) == 3
    assert storeds.pack(tmp_path, f"lmdb://{tmp_path}/s.lmdb").count == 3
    data_set(tmp_path / "VOCdevkit/VOC2007")
    with pytest.raises(ConfigError, match=r"several data sets: .*VOC2007, .*VOC2012; pass one"):
        VocSource(tmp_path)
    with pytest.raises(ConfigError, match=r"is no data set of Pascal VOC"):
        VocSource(tmp_path / "VOCdevkit/VOC2012/Annotations")
    with pytest.raises(StoreNotFoundError):
        VocSource(tmp_path / "none")


side = st.integers(0, 1000).flatmap(lambda low: st.tuples(st.just(low), st.integers(low, 1000)))


@given(boxes=st.lists(st.tuples(st.sampled_from(["cat", "a & b", "Ärger"]), side, side), max_size=6))
def test_random_annotations_read_as_written(boxes: list[Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    root = tmp_path_factory.mktemp("set")
    # Thousandths of the width and height, from the first to the last pixel.
    rows = [(name, *(1 + x * 0.095 for x in xs), *(1 + y * 0.063 for y in ys)) for name, xs, ys in boxes]
    texts = [element(name, repr(left), repr(top), repr(right), repr(bottom)) for name, left, right, top, bottom in rows]
    add(root, "a", annotation(*texts))
    source = VocSource(root)
    (record,) = records(source)
    classes: Any = source.attrs["classes"]
    assert classes == sorted({row[0] for row in rows})
    assert [classes[label] for label in record["labels"]] == [row[0] for row in rows]
    assert record["boxes"].tolist() == [[left - 1, top - 1, right, bottom] for _, left, right, top, bottom in rows]


def test_files_of_time_zero_and_broken_links_are_not_missing(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name in ("a", "b"):
        add(root, name, annotation(element(*CAT)))
        put(root / f"SegmentationClass/{name}.png", mask())
        for path in (f"Annotations/{name}.xml", f"SegmentationClass/{name}.png"):
            os.utime(root / path, (0, 0))
    assert storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb").fields["mask"].role == "mask"
    (root / "SegmentationClass/b.png").unlink()
    (root / "SegmentationClass/b.png").symlink_to("nowhere.png")
    assert "JPEGImages/b.jpg: cannot be read: No such file" in problems(root)


def test_an_annotation_with_a_suffix_in_capitals_is_explained(tmp_path: Path) -> None:
    root = tmp_path / "set"
    for name in ("a", "b"):
        add(root, name, annotation(element(*CAT)))
    (root / "Annotations/a.xml").rename(root / "Annotations/a.XML")
    assert "a.jpg: has no annotation (Annotations/a.xml); rename Annotations/a.XML" in problems(root)


def test_masks_of_no_image_and_empty_lists_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "set"
    add(root, "a", annotation(element(*CAT)))
    put(root / "SegmentationClass/a.PNG", mask())
    assert "no mask is packed: no file in SegmentationClass belongs to an image" in VocSource(root).notes[0]
    put(root / "ImageSets/Main/train.txt", "")
    with pytest.raises(ConfigError, match=r"no image is listed; the lists Main/train are empty; choose others"):
        VocSource(root)


def test_lists_of_one_class_pack_the_images_that_have_it(tmp_path: Path) -> None:
    data_set(tmp_path)
    put(tmp_path / "ImageSets/Main/cat_train.txt", "a  1\nb -1\nc  0\nnone -1\n")
    source = VocSource(tmp_path, image_set="cat_train")
    assert [each["key"][-5] for each in records(source)] == ["a", "c"]
    assert any(note.startswith("1 image has -1 in Main/cat_train") for note in source.notes)
    assert any(note.startswith("1 image is in none of the lists Main/cat_train") for note in source.notes)
    put(tmp_path / "ImageSets/Main/cow_train.txt", "a -1\n")
    with pytest.raises(ConfigError, match=r"Main/cow_train are empty, or say of each image .*-1"):
        VocSource(tmp_path, image_set="cow_train")


def test_lists_of_persons_pack_images_with_any_person_that_has_it(tmp_path: Path) -> None:
    data_set(tmp_path)  # as ImageSets/Action: the image, the number of the person, and the flag
    put(tmp_path / "ImageSets/Action/jumping_train.txt", "a 1 -1\na 2  1\nb 1 -1\n")
    source = VocSource(tmp_path, image_set="Action/jumping_train")
    assert [each["key"][-5] for each in records(source)] == ["a"]
    assert any(note.startswith("1 image has -1 in Action/jumping_train") for note in source.notes)


def test_lists_with_a_suffix_in_capitals(tmp_path: Path) -> None:
    data_set(tmp_path)
    for name in ("train", "val"):
        (tmp_path / f"ImageSets/Main/{name}.txt").rename(tmp_path / f"ImageSets/Main/{name.upper()}.TXT")
    (tmp_path / "ImageSets/Main/trainval.txt").unlink()
    source = VocSource(tmp_path)
    assert {each["key"][-5]: each["split"] for each in records(source)} == {"a": "TRAIN", "b": "TRAIN", "c": "VAL"}


@pytest.mark.parametrize("encoding", ["GB2312", "gbk", "Shift_JIS", "euc-kr", "big5"])
def test_annotations_in_encodings_of_several_bytes(encoding: str, tmp_path: Path) -> None:
    name = {"Shift_JIS": "猫", "euc-kr": "고양이"}.get(encoding, "狗")
    text = f'<?xml version="1.0" encoding="{encoding}"?>{annotation(element(name, "1", "1", "9", "9"))}'
    add(tmp_path, "a", None)
    put(tmp_path / "Annotations/a.xml", text.encode(encoding))
    assert VocSource(tmp_path).attrs["classes"] == [name]


def test_a_doctype_or_bytes_of_another_encoding_are_refused_in_encodings_of_several_bytes(tmp_path: Path) -> None:
    head = '<?xml version="1.0" encoding="gb2312"?>'
    add(tmp_path, "a", None)
    add(tmp_path, "b", f'{head}<!DOCTYPE a [<!ENTITY b "c">]>{annotation()}')
    put(tmp_path / "Annotations/a.xml", f"{head}{annotation()}".encode() + b"\xff")
    says = problems(tmp_path)
    assert "has a DOCTYPE" in says
    assert "its annotation is not gb2312" in says
