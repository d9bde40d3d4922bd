"""COCO in and out: nothing is lost on the way, and everything that is wrong is reported by name."""

from __future__ import annotations

import contextlib
import copy
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from typer.testing import CliRunner

import storeds
from photographs import jpeg
from shares import examples
from storeds.cli import app
from storeds.errors import ConfigError, RecordError, StoreNotFoundError
from storeds.ops.packing.sources import CocoSource, open_source
from storeds.readers import rasterised

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools

ENGINES = ("lmdb", "hdf5", "mongodb")
RUNNER = CliRunner()
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


def opened(path: Path) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(path))


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_json_comes_back(engine: str, make_engine_url: Callable[[str], str], tmp_path: Path) -> None:
    file = written(tmp_path / "in", annotated())
    url = make_engine_url(engine)
    packed = storeds.pack(file, url)
    assert packed.count == 3
    assert packed.attrs["classes"] == ["person", "dog", "toothbrush"]
    assert packed.attrs["category_ids"] == [1, 18, 90]
    assert packed.attrs["keypoint_names"] == ["nose", "left", "right"]
    assert packed.attrs["skeleton"] == [[1, 2], [1, 3]]
    assert exported(url, tmp_path / "out") == by_image(annotated())
    for name in ("a.jpg", "sub/b.jpg", "empty.jpg"):
        assert (tmp_path / "out/images" / name).read_bytes() == (tmp_path / "in" / name).read_bytes()


def test_the_fields_of_a_record(tmp_path: Path) -> None:
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(written(tmp_path, annotated()), url)
    with storeds.open_backend(url) as backend:
        fields = backend.meta.fields
        first, second, empty = backend.get_many(range(3))
    assert (fields["boxes"].role, fields["boxes"].format, fields["masks"].format) == ("boxes", "xywh", "coco")
    assert [fields[name].of for name in ("iscrowd", "area", "annotation_ids")] == ["boxes"] * 3
    assert not isinstance(first, RecordError)
    assert not isinstance(second, RecordError)
    assert not isinstance(empty, RecordError)
    assert (first["key"], first["image_id"]) == ("a.jpg", 42)
    assert first["boxes"].tolist() == [[10.5, 10, 19.5, 20.25], [40, 5, 40, 40]]
    assert first["labels"].tolist() == [1, 0]
    assert first["keypoints"].tolist() == [[[0, 0, 0]] * 3, [[41, 6, 2], [50.5, 20, 1], [0, 0, 0]]]
    assert second["iscrowd"].tolist() == [True, False]
    assert second["area"].tolist() == [50, 100]
    assert empty["boxes"].shape == (0, 4)
    assert empty["keypoints"].shape == (0, 3, 3)
    assert empty["masks"] == []


def test_pycocotools_reads_the_same_from_the_export(tmp_path: Path) -> None:
    url, document = f"lmdb://{tmp_path}/a.lmdb", annotated()
    document["annotations"][3]["segmentation"] = [[1, 1, 5, 1, 5, 5]]
    file = written(tmp_path, document)
    storeds.pack(file, url)
    storeds.export(url, tmp_path / "out", format="coco")
    before, after = opened(file), opened(tmp_path / "out/annotations.json")
    assert before.getAnnIds() == sorted(after.getAnnIds()) or sorted(before.getAnnIds()) == sorted(after.getAnnIds())
    with storeds.open_backend(url) as backend:
        for record in backend.get_many(range(3)):
            assert not isinstance(record, RecordError)
            truth = before.loadAnns(before.getAnnIds(imgIds=[record["image_id"]]))
            masks = rasterised(record["masks"], HEIGHT, WIDTH)
            assert [each["bbox"] for each in truth] == record["boxes"].tolist()
            for annotation, mask in zip(truth, masks, strict=True):
                np.testing.assert_array_equal(before.annToMask(annotation), mask)
                np.testing.assert_array_equal(after.annToMask(after.anns[annotation["id"]]), mask)


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


@pytest.mark.parametrize("engine", ENGINES)
def test_captions(engine: str, make_engine_url: Callable[[str], str], tmp_path: Path) -> None:
    url = make_engine_url(engine)
    storeds.pack(written(tmp_path / "in", CAPTIONS), url)
    with storeds.open_backend(url) as backend:
        assert "boxes" not in backend.meta.fields
        assert backend.meta.fields["captions"].role == "text"
        (record,) = backend.get_many([0])
        assert not isinstance(record, RecordError)
        assert record["captions"] == ["Zwei Hühner", "", "…"]
    assert exported(url, tmp_path / "out") == by_image(CAPTIONS)


def change(path: str, value: Any) -> Callable[[Any], None]:
    """Return what sets ``annotations.0.bbox`` or the like; the text "delete" removes it."""

    def apply(document: Any) -> None:
        *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        for part in parents:
            document = document[part]
        if value == "delete":
            del document[last]
        else:
            document[last] = value

    return apply


BAD: dict[str, tuple[Callable[[Any], None], str, str]] = {
    "missing picture": (change("images.2.file_name", "no.jpg"), "image 8 (no.jpg)", "its file is missing"),
    "image id twice": (change("images.2.id", 7), "image 7 (empty.jpg)", "another image has the same id: sub/b.jpg"),
    "file twice": (change("images.2.file_name", "./a.jpg"), "image 8 (./a.jpg)", "another image has the same file: image 42"),
    "outside": (change("images.2.file_name", "../a.jpg"), "image 8 (../a.jpg)", "leads out of"),
    "no file name": (change("images.2.file_name", "delete"), "images[2]", "no file_name"),
    "no image id": (change("images.2.id", None), "images[2]", "no id"),
    "no object": (change("images.2", 3), "images[2]", "an object"),
    "width is text": (change("images.2.width", "96"), "images[2]", "its width is not a positive whole number"),
    "other size": (change("images.2.width", 95), "image 8 (empty.jpg)", "96 × 64 pixels (width × height), not 95 × 64"),
    "turned": (lambda d: d["images"][2].update(width=64, height=96), "image 8 (empty.jpg)", "EXIF orientation"),
    "annotation id twice": (change("annotations.1.id", 900), "annotation 900 (a.jpg)", "another annotation has the same id"),
    "unknown image": (change("annotations.0.image_id", 999), "annotation 900", "its image is not in the list of images"),
    "no image": (change("annotations.0.image_id", "delete"), "annotation 900", "it has no image_id"),
    "image is a list": (change("annotations.0.image_id", [1]), "annotation 900", "whole numbers or text"),
    "no annotation": (change("annotations.0", "text"), "annotations[0]", "an annotation is an object"),
    "unknown category": (change("annotations.0.category_id", 2), "annotation 900 (a.jpg)", "has no name"),
    "no category": (change("annotations.0.category_id", "delete"), "annotation 900 (a.jpg)", "no category_id"),
    "negative box": (change("annotations.0.bbox", [1, 2, -3, 4]), "annotation 900 (a.jpg)", "negative width"),
    "NaN in a box": (change("annotations.0.bbox", [1, 2, float("nan"), 4]), "annotation 900 (a.jpg)", "not finite"),
    "infinite box": (change("annotations.0.bbox", [1, 2, float("inf"), 4]), "annotation 900 (a.jpg)", "not finite"),
    "box too large": (change("annotations.0.bbox", [10**400, 0.5, 3, 4]), "annotation 900 (a.jpg)", "its bbox is bad"),
    "side too large": (change("annotations.0.bbox", [0.5, 1, 10**400, 4]), "annotation 900 (a.jpg)", "its bbox is bad"),
    "box outside": (change("annotations.0.bbox", [96, 2, 3, 4]), "annotation 900 (a.jpg)", "lies outside the image"),
    "box of 3": (change("annotations.0.bbox", [96, 2, 3]), "annotation 900 (a.jpg)", "not 4 numbers"),
    "box of text": (change("annotations.0.bbox", ["1", 2, 3, 4]), "annotation 900 (a.jpg)", "not 4 numbers"),
    "null box": (change("annotations.0.bbox", None), "annotation 900 (a.jpg)", "no bbox"),
    "short polygon": (change("annotations.0.segmentation", [[1, 2, 3, 4]]), "annotation 900 (a.jpg)", "at least 6"),
    "odd polygon": (change("annotations.0.segmentation", [[1, 2, 3, 4, 5, 6, 7]]), "annotation 900 (a.jpg)", "even number"),
    "mask of text": (change("annotations.0.segmentation", "x"), "annotation 900 (a.jpg)", "its segmentation is bad"),
    "RLE of another size": (change("annotations.2.segmentation.size", [9, 9]), "annotation 5 (sub/b.jpg)", "of the image"),
    "RLE too short": (change("annotations.2.segmentation.counts", [9]), "annotation 5 (sub/b.jpg)", "counts add up to 9"),
    "keypoints too few": (change("annotations.1.keypoints", [1, 2, 2]), "annotation 901 (a.jpg)", "wrong length: 3 numbers"),
    "keypoints too large": (change("annotations.1.keypoints", [10**400] * 9), "annotation 901 (a.jpg)", "not a list of numbers"),
    "keypoints beyond float32": (change("annotations.1.keypoints", [1e39] * 9), "annotation 901 (a.jpg)", "too large for float32"),
    "box beyond float32": (change("annotations.0.bbox", [1, 2, 1e39, 4]), "annotation 900 (a.jpg)", "too large for float32"),
    "area is text": (change("annotations.0.area", "12"), "annotation 900 (a.jpg)", "its area is not a number: '12'"),
    "area is NaN": (change("annotations.0.area", float("nan")), "annotation 900 (a.jpg)", "its area is not a number: nan"),
    "area is a list": (change("annotations.0.area", [12]), "annotation 900 (a.jpg)", "its area is not a number: [12]"),
    "path of Windows": (change("images.2.file_name", "sub\\b.jpg"), "image 8 (sub\\b.jpg)", "folders are separated by /, and this path"),
    "keypoints of text": (change("annotations.1.keypoints", ["a"] * 9), "annotation 901 (a.jpg)", "not a list of numbers"),
    "caption is a number": (
        lambda d: d["annotations"].append({"id": 1, "image_id": 7, "caption": 3}), "annotation 1 (sub/b.jpg)", "not text",
    ),
    "panoptic": (
        lambda d: d["annotations"].append({"image_id": 7, "file_name": "b.png", "segments_info": []}),
        "annotations[4] (sub/b.jpg)",
        "panoptic",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_problem_is_reported_by_name_and_the_rest_is_packed_on_request(case: str, tmp_path: Path) -> None:
    spoil, name, reason = BAD[case]
    document = annotated()
    file = written(tmp_path, document)
    spoil(document)
    file.write_text(json.dumps(document))
    url = f"lmdb://{tmp_path}/a.lmdb"
    with pytest.raises(RecordError) as caught:
        storeds.pack(file, url)
    lines = str(caught.value).splitlines()[1:]
    assert any(f"instances.json {name}: " in line and reason in line for line in lines), lines
    assert not (tmp_path / "a.lmdb").exists()
    packed = storeds.pack(file, url, on_bad="skip")
    assert packed.left_out == sum(packed.reasons.values()) >= 1
    kept = exported(url, tmp_path / "out")
    assert all(each in document["annotations"] for each in kept["annotations"])
    assert all(each in document["images"] for each in kept["images"])
    assert len(kept["annotations"]) + len(kept["images"]) >= 4


def test_a_bad_image_is_one_problem(tmp_path: Path) -> None:
    document = annotated()
    file = written(tmp_path, document)
    document["images"][0]["width"] = 0
    file.write_text(json.dumps(document))
    (problem,) = CocoSource(file).problems
    assert str(problem) == "instances.json images[0]: its width is not a positive whole number: 0"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ([], "not an object"),
        ({"annotations": []}, "no list of images"),
        ({"images": 3, "annotations": []}, "images"),
        ({"images": [], "annotations": []}, "lists no image"),
        ({**annotated(), "categories": [{"id": 1}]}, "category 1 has no name"),
        ({**annotated(), "categories": [{"name": "x"}]}, "no id"),
        ({**annotated(), "categories": [{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]}, "have one id, 1"),
        ({**annotated(), "categories": 3}, "categories are a list"),
    ],
)
def test_a_file_that_is_not_coco(document: Any, why: str, tmp_path: Path) -> None:
    written(tmp_path, annotated())
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(document))
    with pytest.raises(ConfigError, match=why):
        open_source(file, kind="coco")


def test_json_that_is_broken(tmp_path: Path) -> None:
    file = written(tmp_path, annotated())
    file.write_text(file.read_text()[:-1])
    with pytest.raises(ConfigError, match="is not JSON at line 1"):
        open_source(file, kind="coco")


def test_other_encodings(tmp_path: Path) -> None:
    document = annotated()
    file = written(tmp_path, document)
    expected = [record(open_source(file), index) for index in range(3)]
    file.write_bytes(file.read_text().encode("utf-16"))
    assert [record(open_source(file), index) for index in range(3)] == expected
    for key in ("images", "categories"):
        document[key][0]["more"] = "caf\xe9"
        file.write_bytes(json.dumps(document, ensure_ascii=False).encode("latin-1"))
        with pytest.raises(ConfigError, match="is not UTF-8, as JSON is: it contains byte 0xe9"):
            open_source(file)


def record(source: Any, index: int) -> str:
    return repr(source.read(index))


def test_numbers_that_no_float_holds_and_flags_of_text_come_back(tmp_path: Path) -> None:
    document = annotated()
    document["annotations"][0]["area"] = 10**400
    document["annotations"][1]["iscrowd"] = "0"
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(written(tmp_path, document), url)
    found = {each["id"]: each for each in exported(url, tmp_path / "out")["annotations"]}
    assert found[900] == document["annotations"][0]
    assert found[901] == document["annotations"][1]
    crowd: Any = CocoSource(tmp_path / "instances.json").read(0)["iscrowd"]
    assert crowd.tolist() == [False, False]


@pytest.mark.parametrize("where", ["info", "annotations"])
def test_json_that_is_nested_without_end(where: str, tmp_path: Path) -> None:
    document = annotated()
    document[where] = [["DEEP"]]
    file = written(tmp_path, document)
    file.write_text(file.read_text().replace('"DEEP"', "[" * 100_000 + "]" * 100_000))
    with pytest.raises(ConfigError, match=r"instances.json is JSON that cannot be stored: maximum recursion depth"):
        open_source(file)


def test_the_source_is_detected_and_finds_its_pictures(tmp_path: Path) -> None:
    file = written(tmp_path, annotated(), name="annotations/instances_val2017.json", images="val2017")
    source = open_source(file)
    assert isinstance(source, CocoSource)
    assert len(source) == 3
    (tmp_path / "val2017").rename(tmp_path / "elsewhere")
    with pytest.raises(StoreNotFoundError, match="--root"):
        open_source(file)
    assert len(open_source(file, root=tmp_path / "elsewhere")) == 3
    with pytest.raises(StoreNotFoundError, match="is not a folder"):
        open_source(file, root=tmp_path / "nowhere")


@pytest.mark.parametrize(
    "name", ["instances.json", "images/_annotations.coco.json", "annotations/instances_train.json"]
)
def test_a_folder_with_annotations_is_not_packed_without_them(name: str, tmp_path: Path) -> None:
    file = written(tmp_path / "set", annotated(), name=name, images="images")
    for folder in (tmp_path / "set", file.parent):
        with pytest.raises(ConfigError, match=rf"contains the annotations of COCO in .*; pack .*{file.name}"):
            open_source(folder)
    assert len(open_source(tmp_path / "set/images", kind="flat")) == 3


def test_pictures_that_the_file_does_not_list_are_counted(tmp_path: Path) -> None:
    file = written(tmp_path, annotated())
    (tmp_path / "other.jpg").write_bytes(jpeg(0))
    (tmp_path / "sub/more.png").write_bytes(jpeg(0))
    (tmp_path / "notes.txt").write_text("x")
    packed = storeds.pack(file, f"lmdb://{tmp_path}/a.lmdb")
    assert packed.notes == (
        f"2 image files in {tmp_path} are not listed in instances.json, and left out: other.jpg, sub/more.png",
    )


def test_a_byte_order_mark_and_nan_elsewhere(tmp_path: Path) -> None:
    document = annotated()
    file = written(tmp_path, document)
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert storeds.pack(file, f"lmdb://{tmp_path}/a.lmdb").count == 3
    document["annotations"][0]["score"] = float("nan")
    file.write_text(json.dumps(document))
    with pytest.raises(RecordError, match=r"image 42 \(a.jpg\): its annotations cannot be stored: JSON has no nan"):
        storeds.pack(file, f"lmdb://{tmp_path}/b.lmdb")


def test_nan_beside_images_and_annotations_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path, {**annotated(), "info": {"version": float("nan")}})
    with pytest.raises(ConfigError, match=r"instances.json: its categories, or keys such as info, .* JSON has no nan"):
        open_source(file)


def test_text_as_ids_of_images(tmp_path: Path) -> None:
    document = annotated()
    for each in (*document["images"], *document["annotations"]):
        key = "id" if "file_name" in each else "image_id"
        each[key] = f"n{each[key]}"
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(written(tmp_path, document), url)
    assert exported(url, tmp_path / "out") == by_image(document)


def test_the_command(tmp_path: Path) -> None:
    file, url = written(tmp_path, annotated()), f"lmdb://{tmp_path}/a.lmdb"
    done = RUNNER.invoke(app, ["pack", str(file), url, "--kind", "coco", "--root", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["count"] == 3
    done = RUNNER.invoke(app, ["export", url, str(tmp_path / "out"), "--format", "coco", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["left_out"] == {}
    assert json.loads((tmp_path / "out/annotations.json").read_text()) == by_image(annotated())


# Random annotation sets

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
    "area": st.one_of(NUMBER, st.none()),
    "iscrowd": st.one_of(st.sampled_from([0, 1, 2, True, False, None]), TEXT),
    "segmentation": st.one_of(st.none(), st.lists(POLYGON, max_size=2), RLE),
    "keypoints": st.one_of(st.none(), st.lists(POINT, min_size=6, max_size=6)),
    "num_keypoints": st.integers(0, 2),
    "caption": TEXT,
}


@st.composite
def documents(draw: st.DrawFn) -> Any:
    number = draw(st.integers(1, 4))
    images = [
        {"id": each * 3, "file_name": f"{each}.jpg", "width": WIDTH, "height": HEIGHT, **draw(MORE)}
        for each in range(number)
    ]
    categories = [
        {"id": own, "name": f"c{own}", **draw(MORE)}
        for own in draw(st.sets(st.integers(-5, 99), min_size=1, max_size=3))
    ]
    categories = [{key: value for key, value in each.items() if key != "keypoints"} for each in categories]
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
    return {"images": images, "annotations": annotations, "categories": categories, "info": draw(VALUE)}


@pytest.mark.parametrize("engine", ENGINES)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents())
def test_random_annotations_come_back(
    engine: str, make_engine_url: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    folder = tmp_path_factory.mktemp("random")
    given = copy.deepcopy(document)
    url = make_engine_url(engine)
    storeds.pack(written(folder, document), url)
    assert exported(url, folder / "out") == by_image(given)


def test_a_split_that_pack_adds_replaces_no_key_of_the_file(tmp_path: Path) -> None:
    document = annotated()
    document["images"][0]["split"] = "train2014"
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(written(tmp_path, document), url, split={"train": 0.5, "val": 0.5})
    done = storeds.export(url, tmp_path / "out", format="coco")
    images = json.loads((tmp_path / "out/annotations.json").read_text())["images"]
    assert images[0] == document["images"][0]
    assert images[1]["split"] in ("train", "val")
    assert list(done.left_out) == ["split"]


def test_a_changed_file_is_not_resumed(tmp_path: Path) -> None:
    file, url = written(tmp_path, annotated()), f"lmdb://{tmp_path}/a.lmdb"

    def interrupt(state: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storeds.pack(file, url, commit_every=1, progress=interrupt)
    content = file.read_text()
    file.write_text(content.replace('"toothbrush"', '"brush"'))
    with pytest.raises(ConfigError, match=r"plan.source.xxh3 was .*\(a hash of the source: its files or annotations"):
        storeds.pack(file, url, commit_every=1, resume=True)
    file.write_text(content)
    assert storeds.pack(file, url, commit_every=1, resume=True).id == storeds.pack(file, f"hdf5://{tmp_path}/b.h5").id


def lvis() -> dict[str, Any]:
    """Return a document like those of LVIS, whose images have a URL and no name."""
    document = annotated()
    for image, url in zip(
        document["images"], ("train2017/a%20b.jpg", "train2017/b.jpg?x=1", "val2017/c.jpg"), strict=True
    ):
        del image["file_name"]
        image["coco_url"] = f"http://images.cocodataset.org/{url}"
    return document


@pytest.mark.parametrize("flat", [False, True])
def test_names_from_urls(flat: bool, tmp_path: Path) -> None:
    document = lvis()
    names = [
        each.rpartition("/")[2] if flat else each for each in ("train2017/a b.jpg", "train2017/b.jpg", "val2017/c.jpg")
    ]
    for number, name in enumerate(names):
        target = tmp_path / "images" / name if flat else tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(jpeg(number, (WIDTH, HEIGHT)))
    file = tmp_path / "annotations/lvis_v1_val.json"
    file.parent.mkdir()
    file.write_text(json.dumps(document))
    root = tmp_path / "images" if flat else tmp_path
    for given_root in (None, root):
        source = CocoSource(file, root=given_root)
        assert [source.read(index)["key"] for index in range(len(source))] == names
        assert not source.problems
    url = f"lmdb://{tmp_path}/a.lmdb"
    storeds.pack(file, url)
    images = exported(url, tmp_path / "out")["images"]
    assert images == [{**image, "file_name": name} for image, name in zip(document["images"], names, strict=True)]


def test_names_from_urls_do_not_leave_the_root(tmp_path: Path) -> None:
    document = lvis()
    (tmp_path / "secret").mkdir()
    for name in ("passwd.jpg", "secret/passwd.jpg"):
        (tmp_path / name).write_bytes(jpeg(0, (WIDTH, HEIGHT)))
    (tmp_path / "root").mkdir()
    urls = ("http://x/../../passwd.jpg", "file:///%2e%2e/passwd.jpg", "http://[/..")
    for image, url in zip(document["images"], urls, strict=True):
        image["coco_url"] = url
    file = tmp_path / "instances.json"
    file.write_text(json.dumps(document))
    source = open_source(file, root=tmp_path / "root")
    assert len(source) == 0
    says = [problem.reason for problem in source.problems]
    assert "no file_name, and its coco_url 'http://[/..' names no file" in " ".join(says)
    assert len(says) == 3


def test_two_urls_of_one_file(tmp_path: Path) -> None:
    document = lvis()
    document["images"][2]["coco_url"] = "http://x/val2017/b.jpg"
    for name in ("a b.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(jpeg(0, (WIDTH, HEIGHT)))
    file = tmp_path / "lvis.json"
    file.write_text(json.dumps(document))
    (problem,) = open_source(file).problems
    assert "another image has the same file: image 7" in problem.reason
