"""COCO in and out: nothing is lost on the way, and everything that is wrong is reported by name."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import storeds
from _packing import Source, records_of
from _source_files import sides_of, turned_picture
from make_store import make_store
from mask_files import write
from photographs import jpeg
from shares import examples
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.formats import open_source
from storeds.layouts.files.detect import is_coco_file

WIDTH, HEIGHT = 96, 64


def annotated() -> dict[str, Any]:
    """Return a data set of three photographs with every kind of annotation, and keys that storeds does not know."""
    box = {"iscrowd": 0, "license": "mine"}
    triangle, square = [[10.5, 10, 30, 10, 20, 30.25]], [[40, 5, 80, 5, 80, 45, 40, 45], [1, 1, 9, 1, 9, 9]]
    crowd = {"size": [HEIGHT, WIDTH], "counts": [100, 50, HEIGHT * WIDTH - 150]}
    return {
        "info": {"description": "made", "year": 2026, "version": 1.5},
        "licenses": [{"id": 1, "name": "BSD"}],
        "more": {"nested": [1, None, "x"]},
        "images": [
            {"id": 42, "file_name": "a.jpg", "width": WIDTH, "height": HEIGHT, "license": 1, "flickr_url": "http://x/é"},
            {"id": 7, "file_name": "sub/b.jpg", "width": WIDTH, "height": HEIGHT, "date_captured": None},
            {"id": 8, "file_name": "empty.jpg", "width": WIDTH, "height": HEIGHT},
        ],
        "annotations": [
            {"id": 900, "image_id": 42, "category_id": 18, "bbox": [10.5, 10, 19.5, 20.25], "area": 203.1, **box,
             "segmentation": triangle},
            {"id": 901, "image_id": 42, "category_id": 1, "bbox": [40, 5, 40, 40], "area": 1600, "iscrowd": 0,
             "segmentation": square, "keypoints": [41, 6, 2, 50.5, 20, 1, 0, 0, 0], "num_keypoints": 2},
            {"id": 5, "image_id": 7, "category_id": 90, "bbox": [0, 0, 96, 64], "area": 50, "iscrowd": 1,
             "segmentation": crowd, "attributes": {"truncated": True, "score": 0.125}},
            {"id": 6, "image_id": 7, "category_id": 90, "bbox": [-3.5, 60, 10, 10]},
        ],
        "categories": [
            {"id": 1, "name": "person", "supercategory": "being", "keypoints": ["nose", "left", "right"],
             "skeleton": [[1, 2], [1, 3]]},
            {"id": 18, "name": "dog", "supercategory": "animal"},
            {"id": 90, "name": "toothbrush"},
        ],
    }  # fmt: skip


def written(folder: Path, document: Any, *, name: str = "instances.json", images: str = "") -> Path:
    """Write the JSON and the pictures it names, and return the path of the JSON."""
    for number, image in enumerate(document.get("images", [])):
        file = folder / images / str(image.get("file_name"))
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(number, (WIDTH, HEIGHT)))
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def by_image(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document with annotations sorted by the place of their image: the order of an export."""
    places = {image["id"]: place for place, image in enumerate(document["images"])}
    found = sorted(document.get("annotations", []), key=lambda each: places[each["image_id"]])
    return {"annotations": found, **{key: value for key, value in document.items() if key != "annotations"}}


def exported(url: str, out: Path) -> Any:
    storeds.export(url, out, format="coco", overwrite=True)
    return json.loads((out / "annotations.json").read_text())


def read(path: Path, **options: Any) -> tuple[list[Any], list[str]]:
    """Return the records of a source, and what is wrong with its other items."""
    source = Source(path, **options)
    return source.records, source.bad


CAPTIONS: dict[str, Any] = {
    "info": {},
    "images": [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}],
    "annotations": [
        {"id": 10, "image_id": 2, "caption": "A cat. "},
        {"id": -1, "image_id": 1, "caption": "Zwei Hühner"},
        {"image_id": 1, "caption": "", "worker": 3},
        {"id": "x", "image_id": 1, "caption": "…"},
    ],
}


def with_values_that_no_column_holds() -> dict[str, Any]:
    document = annotated()
    document["annotations"][0]["area"] = 10**400
    document["annotations"][1]["iscrowd"] = "0"
    document["images"][2]["width"] = "96"
    return document


def test_the_fields_of_a_record(tmp_path: Path) -> None:
    file = written(tmp_path, annotated())
    rows, fields = open_source(file), open_source(file).fields
    assert {name: rows.attrs[name] for name in ("classes", "category_ids", "keypoint_names", "skeleton")} == {
        **{"classes": ["person", "dog", "toothbrush"], "category_ids": [1, 18, 90]},
        **{"keypoint_names": ["nose", "left", "right"], "skeleton": [[1, 2], [1, 3]]},
    }
    assert (fields["boxes"].role, fields["boxes"].format, fields["masks"].format) == ("boxes", "xywh", "coco")
    assert [fields[name].of for name in ("iscrowd", "area", "annotation_ids")] == ["boxes"] * 3
    (first, second, empty), bad = read(file)
    assert not bad
    assert (first["key"], first["image_id"], first["labels"].tolist()) == ("a.jpg", 42, [1, 0])
    assert first["boxes"].tolist() == [[10.5, 10, 19.5, 20.25], [40, 5, 40, 40]]
    assert first["keypoints"].tolist() == [[[0, 0, 0]] * 3, [[41, 6, 2], [50.5, 20, 1], [0, 0, 0]]]
    assert (second["iscrowd"].tolist(), second["area"].tolist()) == ([True, False], [50, 100])
    assert (empty["boxes"].shape, empty["keypoints"].shape, empty["masks"]) == ((0, 4), (0, 3, 3), [])
    (captioned, _), _ = read(written(tmp_path / "captions", CAPTIONS))
    assert (captioned["captions"], "boxes" in captioned) == (["Zwei Hühner", "", "…"], False)
    (odd, *_), _ = read(written(tmp_path / "odd", with_values_that_no_column_holds()))
    assert odd["iscrowd"].tolist() == [False, False]


def rewritten(source: str, target: str, change: Callable[[Any], Any], *, without: str = "", **attrs: Any) -> Any:
    """Copy a store with its first record changed, and perhaps without a field; return that record."""
    with storeds.open_backend(source) as backend:
        meta, records = backend.meta, backend.get_many(range(len(backend)))
    change(records[0])
    kept = [name for name in meta.fields if name != without]
    rows = ({name: record[name] for name in kept} for record in records)  # type: ignore[index]
    make_store({name: meta.fields[name] for name in kept}, rows, target, attrs={**meta.attrs, **attrs})
    return records[0]


OF_OBJECTS = ("boxes", "labels", "masks", "keypoints", "iscrowd", "area", "annotation_ids")


# What is changed after packing → how, and the fields that the error names.
CHANGED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a box": (lambda record: record.update(boxes=record["boxes"] + 1), "boxes"),
    "a label": (lambda record: record.update(labels=record["labels"][::-1]), "labels"),
    "keypoints": (lambda record: record.update(keypoints=record["keypoints"] * 2), "keypoints"),
    "crowd": (lambda record: record.update(iscrowd=~record["iscrowd"]), "iscrowd"),
    "a row less": (
        lambda record: record.update({name: record[name][1:] for name in OF_OBJECTS}),
        "boxes, labels, masks",
    ),
}


@pytest.mark.parametrize("case", CHANGED)
def test_fields_changed_after_packing_are_never_exported_as_they_were(case: str, tmp_path: Path) -> None:
    apply, names = CHANGED[case]
    packed, changed, plain = (f"lmdb://{tmp_path}/{name}.lmdb" for name in ("packed", "changed", "plain"))
    storeds.pack(written(tmp_path / "in", annotated()), packed)
    rewritten(packed, changed, apply)
    with pytest.raises(RecordError, match=rf"record 0 .*its {names}.* differ from .*write the store without 'coco'"):
        storeds.export(changed, tmp_path / "out", format="coco")
    record = rewritten(packed, plain, apply, without="coco")
    found = [each for each in exported(plain, tmp_path / "out")["annotations"] if each["image_id"] == 42]
    assert [each["bbox"] for each in found] == record["boxes"].tolist()
    assert [each["category_id"] for each in found] == [[1, 18, 90][label] for label in record["labels"]]


def test_changed_masks_names_and_pictures_are_not_exported_as_they_were(tmp_path: Path) -> None:
    packed, masked, renamed, small = (f"lmdb://{tmp_path}/{number}.lmdb" for number in range(4))
    storeds.pack(written(tmp_path / "in", annotated()), packed)
    masks = [[[2, 2, 9, 2, 9, 9]], [[3, 3, 9, 3, 9, 9]]]
    rewritten(packed, masked, lambda record: record.update(masks=masks))
    rows = exported(masked, tmp_path / "out")["annotations"]
    assert [each["segmentation"] for each in rows if each["image_id"] == 42] == masks
    rewritten(packed, renamed, lambda record: None, classes=["a", "b", "c"])
    with pytest.raises(ConfigError, match="attribute 'classes' differs from the categories"):
        exported(renamed, tmp_path / "out")
    images = [{**each, "width": WIDTH, "height": HEIGHT} for each in CAPTIONS["images"]]
    storeds.pack(written(tmp_path / "in", {**CAPTIONS, "images": images}, name="captions.json"), small, max_side=32)
    image = exported(small, tmp_path / "out")["images"][0]
    assert (image["width"], image["height"]) == (32, 21)


EMPTY: Any = (None, [], "", [[]], [[], []], [[0, 0, 0, 0, 0, 0]], {"size": [HEIGHT, WIDTH], "counts": []})


@pytest.mark.parametrize("empty", EMPTY, ids=str)
def test_an_empty_segmentation_is_a_missing_one(empty: Any, tmp_path: Path) -> None:
    document, polygon = annotated(), [[10, 10, 30, 10, 20, 30]]
    for annotation in document["annotations"]:
        annotation["segmentation"] = empty
    assert "masks" not in open_source(written(tmp_path, document)).fields
    for masks in (polygon, [*polygon, []]):
        document["annotations"][0]["segmentation"] = masks
        file = written(tmp_path, document)
        assert open_source(file).notes[0].startswith("3 of 4 objects have no segmentation, and so an empty mask")
        assert [record["masks"] for record in read(file)[0]] == [[polygon, []], [[], []], []]
    storeds.pack(file, f"lmdb://{tmp_path}/a.lmdb")
    assert exported(f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out") == by_image(document)


@pytest.mark.parametrize("box", [None, [], "", [0, 0, 0, 0], [None] * 4], ids=str)
def test_a_missing_box_is_that_around_its_mask(box: Any, tmp_path: Path) -> None:
    document = annotated()
    for annotation in document["annotations"][:3]:
        annotation["bbox"] = box
    file = written(tmp_path, document)
    (first, second, _), bad = read(file)
    assert bad == []
    assert first["boxes"].tolist() == [[10.5, 10, 19.5, 20.25], [1, 1, 79, 44]]
    assert second["boxes"].tolist()[0] == [1, 0, 2, HEIGHT]  # rows 36 to 63 of one column, and 0 to 21 of the next
    storeds.pack(file, f"lmdb://{tmp_path}/a.lmdb")
    assert exported(f"lmdb://{tmp_path}/a.lmdb", tmp_path / "out") == by_image(document)


def test_other_empty_values_are_missing(tmp_path: Path) -> None:
    document = annotated()
    document["annotations"][0] |= {"keypoints": [], "area": "", "iscrowd": ""}
    document["annotations"][1] |= {"keypoints": [0] * 9, "num_keypoints": 0}
    document["annotations"][3]["bbox"] = [5, 5, 0, 0]
    file = written(tmp_path, document)
    assert "1 box has no width or no height" in open_source(file).notes
    (first, *_), bad = read(file)
    assert bad == []
    assert "keypoints" not in first
    assert first["area"].tolist()[0] == 19.5 * 20.25
    assert first["iscrowd"].tolist()[0] is False


def test_categories_of_one_name_are_one_class_or_an_error(tmp_path: Path) -> None:
    document = annotated()
    document["categories"].insert(0, {"id": 0, "name": "dog", "supercategory": "none"})  # as Roboflow writes it
    file, url = written(tmp_path, document), f"lmdb://{tmp_path}/a.lmdb"
    rows = open_source(file)
    assert (rows.attrs["classes"], rows.attrs["category_ids"]) == (["dog", "person", "toothbrush"], [0, 1, 90])
    assert rows.notes[0].startswith("categories 0 and 18 have one name, 'dog', and are one class")
    assert read(file)[0][0]["labels"].tolist() == [0, 1]
    storeds.pack(file, url)
    assert exported(url, tmp_path / "out") == by_image(document)
    document["annotations"][3]["category_id"] = 0
    with pytest.raises(ConfigError, match="categories 0 and 18 have one name, 'dog', and each has objects; rename one"):
        open_source(written(tmp_path, document))


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_picture_that_exif_turns_is_counted(orientation: int, tmp_path: Path) -> None:
    picture, _, stored = turned_picture(orientation)
    (height, width), (left, top, right, bottom) = stored.shape, sides_of(stored)
    box = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [left, top, right - left, bottom - top]}
    entry = {"id": 1, "file_name": "a.jpg", "width": width, "height": height}
    document = {"images": [entry], "annotations": [box], "categories": [{"id": 1, "name": "x"}]}
    write(tmp_path, {"a.jpg": picture})
    meta = storeds.pack(written(tmp_path, document), f"lmdb://{tmp_path}/a.lmdb")
    assert [note[:38] for note in meta.notes] == ["1 picture has an EXIF orientation (a.j"] * (orientation > 1)
    box["bbox"] = [0, 0, height, width]  # fits the picture only as it is displayed
    (line,) = [*read(written(tmp_path, document))[1], ""][:1]
    assert ("fit the picture as its EXIF orientation displays it" in line) == (orientation > 4)


DELETED = object()
# What is wrong → where in the document, what is there instead, and the reason; the first two parts name the bad item.
BAD: dict[str, tuple[str, Any, str]] = {
    "missing picture": ("images.2.file_name", "no.jpg", "cannot be read: No such file"),
    "image id twice": ("images.2.id", 7, "another image has the same id: "),
    "file twice": ("images.2.file_name", "./a.jpg", "another image has the same file: image"),
    "outside": ("images.2.file_name", "../../a.jpg", "leads out of"),
    "no file name": ("images.2.file_name", DELETED, "no file_name"),
    "no image id": ("images.2.id", None, "its id is None, not a whole number"),
    "no object": ("images.2", 3, "an object"),
    "other size": ("images.2.width", 95, "96 × 64 pixels (width × height), not 95 × 64"),
    "NaN beside": ("images.2.score", float("nan"), "it cannot be stored: JSON has no nan"),
    "annotation id twice": ("annotations.1.id", 900, "another annotation has the same id"),
    "unknown image": ("annotations.0.image_id", -9, "its image is not in the list of images"),
    "no image": ("annotations.0.image_id", DELETED, "it has no image_id"),
    "no annotation": ("annotations.0", "text", "an annotation is an object"),
    "unknown category": ("annotations.0.category_id", 2, "has no name"),
    "negative box": ("annotations.0.bbox", [1, 2, -3, 4], "negative width"),
    "half a character": ("annotations.0.caption", "\ud800", "it cannot be stored: text with a lone surrogate"),
    "box too large": ("annotations.0.bbox", [10**400, 0.5, 3, 4], "rows of 4 numbers"),
    "box outside": ("annotations.0.bbox", [96, 2, 3, 4], "lies outside the image"),
    "null box": ("annotations.3.bbox", None, "no bbox"),
    "image id is true": ("annotations.0.image_id", True, "its id and image_id are whole numbers or text"),
    "side of a box is true": ("annotations.0.bbox", [1, 2, True, 4], "its bbox is 4 numbers"),
    "crowd is text": ("annotations.0.iscrowd", "false", "its iscrowd is not 0 or 1: 'false'"),
    "short polygon": ("annotations.0.segmentation", [[1, 2, 3, 4]], "at least 6"),
    "RLE of another size": ("annotations.2.segmentation.size", [9, 9], "of the image"),
    "keypoints too few": ("annotations.1.keypoints", [1, 2, 2], "not a list of x, y and visibility of 3 points: [1, 2, 2]"),
    "area is text": ("annotations.0.area", "12", "its area is not a number: '12'"),
    "caption is a number": ("annotations.0", {"id": 1, "image_id": 7, "caption": 3}, "not text"),
    "panoptic": ("annotations.0", {"image_id": 7, "file_name": "b.png", "segments_info": []}, "panoptic"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_problem_is_reported_by_name_and_nothing_else_is_lost(case: str, tmp_path: Path) -> None:
    path, value, reason = BAD[case]
    file, document = written(tmp_path, annotated()), annotated()
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = document
    for part in parents:
        place = place[part]
    if value is DELETED:
        del place[last]
    else:
        place[last] = value
    file.write_text(json.dumps(document))
    kind, index, *_ = path.split(".")
    bad = document[kind].pop(int(index))
    names = [f"{kind}[{index}]", *(f"{kind[:-1]} {bad.get('id')}{end}" for end in " :" if isinstance(bad, dict))]
    problems: list[str] = []
    url = f"lmdb://{tmp_path}/a.lmdb"
    packed = storeds.pack(file, url, on_bad="skip", on_problem=lambda problem: problems.append(str(problem)))
    (line,) = problems
    assert reason in line
    assert any(f"instances.json {name}" in line for name in names), line
    assert (packed.left_out, sum(packed.reasons.values())) == (1, 1)
    assert exported(url, tmp_path / "out") == by_image(document)


def with_categories(categories: Any) -> dict[str, Any]:
    return {**annotated(), "categories": categories}


NOT_COCO: list[tuple[Any, str]] = [
    ([], "is no object with lists of images and annotations, as COCO's files are, but a list"),
    ({"images": 3, "annotations": []}, "images"),
    ({"images": [], "annotations": []}, "lists no image"),
    (with_categories([{"id": 1}]), "a category has an id, a whole number or text, and a name, not"),
    (with_categories([{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]), "have one id, 1"),
    (with_categories(3), "a category has an id"),
    ({**annotated(), "info": {"version": float("nan")}}, "its categories, or keys such as info, .* JSON has no nan"),
    ({**annotated(), "annotations": ["DEEP"]}, "is not JSON in UTF-8 that can be stored: maximum recursion depth"),
    ("BROKEN", "is not JSON in UTF-8 that can be stored: .*: line 1 column"),
]


@pytest.mark.parametrize(("document", "why"), NOT_COCO, ids=[why[:40] for _, why in NOT_COCO])
def test_a_file_that_is_not_coco(document: Any, why: str, tmp_path: Path) -> None:
    file, deep = written(tmp_path, annotated()), "[" * 100_000 + "]" * 100_000
    file.write_text(json.dumps(document).replace('"DEEP"', deep).replace('"BROKEN"', '{"images": ['))
    with pytest.raises(ConfigError, match=why):
        open_source(file, kind="coco")


@pytest.mark.parametrize(("encoding", "byte"), [("utf-8-sig", None), ("utf-16", "0xff"), ("latin-1", "0xe9")])
def test_a_file_is_utf_8(encoding: str, byte: str | None, tmp_path: Path) -> None:
    document = annotated()
    document["categories"][0]["more"] = "café"
    file = written(tmp_path, document)
    file.write_text(json.dumps(document, ensure_ascii=False), encoding=encoding)
    if byte is None:
        assert (len(read(file)[0]), read(file)[1]) == (3, [])
        return
    with pytest.raises(ConfigError, match=f"is not JSON in UTF-8 that can be stored: .* byte {byte}"):
        open_source(file, kind="coco")


def test_the_source_is_detected_and_finds_its_pictures(tmp_path: Path) -> None:
    file = written(tmp_path, annotated(), name="annotations/instances_val2017.json", images="val2017")
    write(tmp_path / "val2017", {"other.jpg": 0, "sub/more.png": 0, "notes.txt": ""})
    assert len(read(file)[0]) == 3
    note = open_source(file).notes[-1]
    assert note.startswith("2 image files are in ")
    assert note.endswith("but not in instances_val2017.json, and left out: other.jpg, sub/more.png")
    (tmp_path / "val2017").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFoundError, match=r"pass the folder of the pictures as root= \(--option root=…\)"):
        open_source(file)
    assert len(read(file, root=tmp_path / "elsewhere")[0]) == 3
    with pytest.raises(StoreNotFoundError, match="is not a folder"):
        open_source(file, root=tmp_path / "nowhere")
    with pytest.raises(StoreNotFoundError, match="No such file"):
        open_source(tmp_path / "none.json", kind="coco")


KEYS = ("info", "licenses", "images", "annotations", "categories")


@pytest.mark.parametrize("order", [KEYS, ("info", "annotations", "images", "licenses", "categories")], ids=" ".join)
def test_a_large_file_is_recognised_by_its_ends(order: tuple[str, ...], tmp_path: Path) -> None:
    document = annotated()
    for key in ("images", "annotations"):
        document[key] = document[key] * 5000
    file, text = tmp_path / "large.json", json.dumps({key: document[key] for key in order})
    with file.open("w") as opened:
        opened.write(text[: 1 << 21])
        opened.seek(1 << 27)
        opened.write(text[1 << 21 :])
    tracemalloc.start()
    assert is_coco_file(str(file))
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_other_json_files_stop_no_pack(tmp_path: Path) -> None:
    root = write(tmp_path / "set", {"cat/1.jpg": 0, "cat/1.json": '{"image_id": 1, "shapes": [', "dog/1.jpg": 1})
    with open(root / "large.json", "wb") as file:
        file.truncate(4 << 30)
    (root / "detections.json").write_text(json.dumps(annotated()["annotations"]))
    (root / "closed.json").touch(0)
    assert storeds.pack(root, f"lmdb://{tmp_path}/a.lmdb").count == 2


@pytest.mark.parametrize(
    "name", ["instances.json", "images/_annotations.coco.json", "annotations/instances_train.json"]
)
def test_a_folder_with_annotations_is_not_packed_without_them(name: str, tmp_path: Path) -> None:
    file = written(tmp_path / "set", annotated(), name=name, images="images")
    for folder in (tmp_path / "set", file.parent):
        with pytest.raises(ConfigError, match=rf"contains the annotations of COCO in .*; pack .*{file.name}"):
            open_source(folder)
    assert len(read(tmp_path / "set/images", kind="flat")[0]) == 3


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBER = st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False, allow_infinity=False))
VALUE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**60), 2**60), st.floats(-1e9, 1e9), TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXT, inner, max_size=3)),
    max_leaves=6,
)
KNOWN = {"id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "keypoints", "caption"}
MORE = st.dictionaries(
    TEXT.filter(lambda key: key not in KNOWN | {"file_name", "width", "height", "segments_info"}), VALUE, max_size=3
)
POINT = st.one_of(st.integers(-(2**60), 2**60), st.floats(-3e38, 3e38))  # readers return float32
INSIDE = st.one_of(st.integers(0, 60), st.floats(0, 60))
POLYGON = st.lists(INSIDE, min_size=6, max_size=6)
RLE = st.integers(0, HEIGHT * WIDTH).map(lambda run: {"size": [HEIGHT, WIDTH], "counts": [run, HEIGHT * WIDTH - run]})
OPTIONAL: dict[str, st.SearchStrategy[Any]] = {
    "area": st.one_of(NUMBER, st.none(), st.just(10**400)),  # which no column holds
    "iscrowd": st.sampled_from([0, 1, True, False, None, "", "0", "1"]),
    "segmentation": st.one_of(st.none(), st.lists(POLYGON, max_size=2), RLE),
    "keypoints": st.one_of(st.none(), st.lists(POINT, min_size=6, max_size=6)),
    "num_keypoints": st.integers(0, 2),
    "caption": TEXT,
}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    """Draw a data set with ids of numbers or of text, of objects or of captions, and with keys that storeds does not know."""
    number = draw(st.integers(1, 4))
    name_id = draw(st.sampled_from([lambda own: own * 3, lambda own: f"n{own}"]))
    images = [
        {"id": name_id(own), "file_name": f"{own}.jpg", "width": WIDTH, "height": HEIGHT, **draw(MORE)}
        for own in range(number)
    ]
    images[-1]["width"] = draw(st.sampled_from([WIDTH, str(WIDTH)]))
    categories = [
        {"id": own, "name": f"c{own}", **draw(MORE)}
        for own in draw(st.sets(st.integers(-5, 99), min_size=1, max_size=3))
    ]
    annotations = []
    for own in range(draw(st.integers(0, 6))):
        annotation: dict[str, Any] = {
            "image_id": draw(st.sampled_from(images))["id"],
            "category_id": draw(st.sampled_from(categories))["id"],
            "bbox": draw(st.lists(INSIDE, min_size=4, max_size=4)),
            **draw(st.fixed_dictionaries({}, optional=OPTIONAL)),
            **draw(MORE),
        }
        if draw(st.booleans()):
            annotation["id"] = draw(st.sampled_from([own, f"id{own}", 2**70 + own, -1 - own]))
        annotations.append(annotation)
    document = {"images": images, "annotations": annotations, "categories": categories, "info": draw(VALUE)}
    if draw(st.booleans()):  # captions alone
        del document["categories"]
        document["annotations"] = [
            {"image_id": each["image_id"], "caption": draw(TEXT), **draw(MORE)} for each in annotations
        ]
    return document


@settings(max_examples=examples(40))
@given(documents())
def test_random_annotations_come_back(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    folder = tmp_path_factory.mktemp("random")
    storeds.pack(written(folder, document), "memory://random-coco", overwrite=True)
    assert exported("memory://random-coco", folder / "out") == by_image(document)
    for image in document["images"]:
        name = image["file_name"]
        assert (folder / "out/images" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize(
    "form", ["data/images/train/{}", "http://localhost:8080/data/{}?d=1", "C:\\a b\\{}", "/data/{}"]
)
def test_pictures_of_another_place_are_found_by_their_names_below_root(form: str, tmp_path: Path) -> None:
    names = ["a.jpg", "b.jpg", "c.jpg"]
    write(tmp_path / "images", {"x/a.jpg": jpeg(0), "b.jpg": jpeg(1), "x/c.jpg": jpeg(2), "y/c.jpg": jpeg(3)})
    images = [{"id": n, "file_name": form.format(name), "width": 96, "height": 64} for n, name in enumerate(names)]
    path = tmp_path / "instances.json"
    path.write_text(json.dumps({"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}))
    meta = storeds.pack(path, "memory://moved", root=tmp_path / "images", on_bad="skip", overwrite=True)
    records = records_of("memory://moved")
    assert [(each["key"], each["image"]) for each in records] == [("x/a.jpg", jpeg(0)), ("b.jpg", jpeg(1))]
    found, lost = (note for note in meta.notes if "file_name" in note)
    assert "2 file_names are of another place, and found by name" in found
    assert "no single file there has the same name" in lost
