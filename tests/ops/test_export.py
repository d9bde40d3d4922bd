"""`export`: safe files, nothing lost silently, the command line."""

from __future__ import annotations

import contextlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools.coco import COCO

import storeds
from _packing import interrupt, storeds_command, storeds_json
from _writing import in_fork
from make_store import make_store
from mask_files import mask, write
from photographs import jpeg
from storeds.errors import ConfigError, RecordError, StoredsError, StoreExistsError

FIELDS: dict[str, Any] = {
    "image": {"kind": "image", "role": "image"},
    "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"},
    "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    "key": "str",
    "thumbnail": "bytes",
    "weather": "str",
}


def store(url: str, keys: list[str], fields: dict[str, Any] | None = None, **values: Any) -> str:
    declared = FIELDS if fields is None else fields
    boxes = np.array([[1, 2, 30, 40], [5.5, 6, 50, 60]], np.float32)
    same: dict[str, Any] = {"boxes": boxes, "labels": np.array([1, 0]), "thumbnail": b"x", "weather": "rain"}
    records = [{"image": jpeg(n), "mask": mask(n), "key": key, **same, **values} for n, key in enumerate(keys)]
    kept = ({name: record[name] for name in declared} for record in records)
    return make_store(declared, kept, url, attrs={"classes": ["cat", "dog"]})


def truth_of(out: Path) -> COCO:
    with contextlib.redirect_stdout(io.StringIO()):
        return COCO(str(out / "annotations.json"))


def test_coco_of_a_store_with_roles(tmp_path: Path) -> None:
    url = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg", "sub/b.jpg", "c"])
    done = storeds.export(url, tmp_path / "out", format="coco")
    assert (done.count, done.files, list(done.left_out)) == (3, 4, ["thumbnail"])
    found = json.loads((tmp_path / "out/annotations.json").read_text())
    names = [image["file_name"] for image in found["images"]]
    assert names == ["a.jpg", "sub/b.jpg", "c.jpg"]
    assert [(tmp_path / "out/images" / name).read_bytes() for name in names] == [jpeg(0), jpeg(1), jpeg(2)]
    assert found["categories"] == [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
    assert found["images"][0] == {"id": 1, "file_name": "a.jpg", "width": 96, "height": 64, "weather": "rain"}
    second = {"id": 2, "image_id": 1, "category_id": 1, "bbox": [5.5, 6, 44.5, 54], "area": 44.5 * 54, "iscrowd": 0}
    assert found["annotations"][1] == second
    assert [each["id"] for each in found["annotations"]] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("format", ["coco", "folder", "yolo"])
@pytest.mark.parametrize(
    "keys",
    [
        ["a-00000002.jpg", "a.jpg", "a.jpg", "./a.jpg", "b", "b/c.jpg", "b.jpg"],
        ["a.jpg", "a-00000002.jpg", "a.png", "../a.jpg", "images/a.jpg"],  # YOLO has one label file for a.jpg and a.png
        ["../../x.jpg", "/etc/x.jpg", "..", "", ".", "a\0b.jpg", "x" * 300, "a/" * 3000 + "x.jpg", "é\x1b[31m.png"],
    ],
    ids=["equal", "alike", "hostile"],
)
def test_equal_names_stay_apart_and_none_leaves_the_folder(keys: list[str], format: str, tmp_path: Path) -> None:
    mask_field = {"mask": {"kind": "image", "role": "mask"}} if format == "folder" else {}
    url, out = store(f"lmdb://{tmp_path}/a.lmdb", keys, {**FIELDS, **mask_field}), tmp_path / "out"
    done = storeds.export(url, out, format=format)
    assert {path.name for path in tmp_path.iterdir()} == {"a.lmdb", "out"}
    pictures = [path.read_bytes() for path in out.rglob("*") if path.suffix in (".jpg", ".png")]
    masks = [mask(number) for number in range(len(keys)) if mask_field]
    assert sorted(pictures) == sorted([*(jpeg(number) for number in range(len(keys))), *masks])
    assert any(" no usable name for a file, or another file has it" in note for note in done.notes)
    if format == "coco":
        images = json.loads((out / "annotations.json").read_text())["images"]
        for number, image in enumerate(images):
            assert (out / "images" / image["file_name"]).read_bytes() == jpeg(number)
    if format == "yolo":
        assert len(list((out / "labels").rglob("*.txt"))) == len(keys)
    if format == "folder":
        assert storeds.pack(out, f"lmdb://{tmp_path}/b.lmdb").id == storeds.info(url).id


@pytest.mark.parametrize("same", [True, False])
def test_ids_that_repeat_in_several_stores_stay_apart(same: bool, tmp_path: Path) -> None:
    urls = [f"lmdb://{tmp_path}/{number}.lmdb" for number in range(2)]
    for number, url in enumerate(urls):
        rows = [{"id": 5 + row, "image_id": 1, "category_id": 3, "bbox": [number, row, 9, 9]} for row in range(2)]
        images = [{"id": 1, "file_name": "a.jpg", "width": 96, "height": 64}]
        file: dict[str, Any] = {"images": images, "annotations": rows, "categories": [{"id": 3, "name": "cat"}]}
        file |= {} if same else {"info": {"number": number}}
        storeds.pack(write(tmp_path / f"{number}", {"a.jpg": number, "a.json": json.dumps(file)}) / "a.json", url)
    done = storeds.export(urls, tmp_path / "out", format="coco")
    read = truth_of(tmp_path / "out")
    assert (len(read.imgs), len(read.anns)) == (2, 4)
    boxes = [[each["bbox"] for each in read.imgToAnns[number]] for number in read.imgs]
    assert boxes == [[[number, 0, 9, 9], [number, 1, 9, 9]] for number in range(2)]
    assert list(done.left_out) == ([] if same else ["coco"])
    assert all("coco" not in image for image in read.imgs.values())
    assert "1 image got another id, because an earlier one has it: 1" in done.notes
    assert "2 annotations got another id, because an earlier one has it: 5, 6" in done.notes


def test_a_folder_is_replaced_only_on_request_and_only_if_an_export_wrote_it(tmp_path: Path) -> None:
    url, out, mine, link = (
        store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"]),
        *map(tmp_path.joinpath, ("out", "mine", "link")),
    )
    out.mkdir()
    storeds.export(url, out, format="coco")
    with pytest.raises(StoreExistsError, match="--overwrite"):
        storeds.export(url, out, format="coco")
    write(out, {"more": "x"})
    storeds.export(url, out, format="coco", overwrite=True)
    assert not (out / "more").exists()
    link.symlink_to("out")
    before = sorted(out.rglob("*"))
    for folder, says in (
        (write(mine, {"work.txt": "x"}), "was not written by an export"),
        (link, f"is a symbolic link to {out}.* pass that path"),
    ):
        with pytest.raises(StoreExistsError, match=says):
            storeds.export(url, folder, format="coco", overwrite=True)
    (out / "link.lmdb").symlink_to(tmp_path / "a.lmdb")
    inside = store(f"lmdb://{out}/b.lmdb", ["a.jpg"])
    with pytest.raises(ConfigError, match="contains the store"):
        storeds.export(inside, out, format="coco", overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"a.lmdb", "out", "mine", "link"}
    assert (link.is_symlink(), set(before) <= set(out.rglob("*"))) == (True, True)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_appears_during_the_export_stays(overwrite: bool, tmp_path: Path) -> None:
    url, out = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"]), tmp_path / "out"

    def appear(_: object) -> None:
        out.mkdir(exist_ok=True)
        (out / "work.txt").write_text("mine")

    with pytest.raises(StoreExistsError):
        storeds.export(url, out, format="coco", overwrite=overwrite, progress=appear)
    assert [path.name for path in out.iterdir()] == ["work.txt"]
    assert {path.name for path in tmp_path.iterdir()} == {"a.lmdb", "out"}


def test_a_failed_export_leaves_nothing(tmp_path: Path) -> None:
    url = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"], image=b"no picture")
    for format in ("coco", "yolo"):
        with pytest.raises(StoredsError, match="record 0 of .*size of its picture"):
            storeds.export(url, tmp_path / "out", format=format)
    with pytest.raises(StoredsError, match="create"):
        storeds.export(url, tmp_path / "no/such/out", format="coco")
    with pytest.raises(KeyboardInterrupt):
        storeds.export(url, tmp_path / "out", format="folder", progress=interrupt)
    assert {path.name for path in tmp_path.iterdir()} == {"a.lmdb"}


@pytest.mark.parametrize(("format", "source"), [("coco", "annotations.json"), ("folder", ""), ("yolo", "")])
def test_the_command_exports_what_pack_reads(format: str, source: str, tmp_path: Path) -> None:
    url, out = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"]), tmp_path / "out"

    command = ("export", url, out, "--format", format)
    shown = storeds_command(*command).replace("\n", " ")
    assert f"1 record as {format}, " in shown
    assert ("thumbnail is not in the export" in shown) == (format != "folder")
    storeds_command(*command, code=3)
    assert storeds_json(*command, "--overwrite")["count"] == 1
    assert storeds_json("pack", out / source, f"{tmp_path}/b.lmdb")["count"] == 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_coco_of_every_form_of_a_role(tmp_path: Path) -> None:
    array: dict[str, Any] = {"kind": "array", "dtype": "float32"}
    fields: dict[str, Any] = {
        "image": "image",
        "boxes": {
            **array,
            "dtype": "float64",
            "shape": [None, 4],
            "role": "boxes",
            "format": "cxcywh",
            "relative": True,
        },
        "labels": {"kind": "json", "role": "labels"},
        "masks": {**array, "dtype": "uint8", "shape": [None, 64, 96], "role": "mask"},
        "keypoints": {**array, "shape": [None, 2, 2], "role": "keypoints"},
        "caption": {"kind": "str", "role": "text"},
        "depth": {**array, "dtype": "uint16", "shape": [64, 96], "role": "mask"},
        "truncated": {**array, "dtype": "bool", "shape": [None], "of": "boxes"},
        "weather": "str",
        "score": "float",
    }
    masks = np.zeros((2, 64, 96), np.uint8)
    masks[0, 3:9, 5:70] = 1
    masks[1] = 255
    record = {
        "image": jpeg(0),
        "boxes": np.array([[0.5, 0.5, 0.25, 0.5], [0.25, 0.25, 0.5, 0.5]]),
        "labels": ["dog", "bird"],
        "masks": masks,
        "keypoints": np.array([[[1, 2], [3, 4]], [[5, 6], [7.5, 8]]], np.float32),
        "caption": "two animals",
        "depth": np.zeros((64, 96), np.uint16),
        "truncated": np.array([True, False]),
        "weather": "rain",
        "score": float("nan"),
    }
    url = make_store(fields, [record], attrs={"keypoint_names": ["head", "tail"]})
    done = storeds.export(url, tmp_path / "out", format="coco")
    assert list(done.left_out) == ["depth"]
    assert done.notes == ("1 number that is NaN or infinite became null, as JSON has none",)
    coco = truth_of(tmp_path / "out")
    said = {"caption": "two animals", "weather": "rain", "score": None}
    assert coco.imgs[1] == {"id": 1, "file_name": "00000000.jpg", "width": 96, "height": 64, **said}
    categories = [(each["name"], each["keypoints"]) for each in coco.loadCats([1, 2])]
    assert categories == [("dog", ["head", "tail"]), ("bird", ["head", "tail"])]
    first, second = coco.loadAnns(coco.getAnnIds())
    found = [(each["bbox"], each["category_id"], each["truncated"], each["area"]) for each in (first, second)]
    assert found == [([36, 16, 24, 32], 1, True, np.count_nonzero(masks[0])), ([0, 0, 48, 32], 2, False, masks[1].size)]
    assert (second["keypoints"], second["num_keypoints"]) == ([5, 6, 2, 7.5, 8, 2], 2)
    np.testing.assert_array_equal(coco.annToMask(first), masks[0])
    np.testing.assert_array_equal(coco.annToMask(second), masks[1] > 0)
    assert storeds.pack(tmp_path / "out/annotations.json", "memory://b", overwrite=True).attrs["classes"] == [
        "dog",
        "bird",
    ]


def test_masks_without_boxes_get_the_boxes_around_them(tmp_path: Path) -> None:
    masks = {"kind": "json", "role": "mask", "format": "coco", "relative": True}
    square = [[0.25, 0.25, 0.5, 0.25, 0.5, 0.5, 0.25, 0.5]]
    url = make_store({"image": "image", "masks": masks}, [{"image": jpeg(0), "masks": [square, []]}])
    done = storeds.export(url, tmp_path / "out", format="coco")
    (one,) = truth_of(tmp_path / "out").dataset["annotations"]
    assert one["segmentation"] == [[24, 16, 48, 16, 48, 32, 24, 32]]
    assert (one["bbox"], one["area"]) == ([24, 16, 24, 16], 24 * 16)
    assert done.notes == ("1 object with neither a box nor a mask left out",)


def test_a_store_of_captions_becomes_annotations_with_captions(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [{"image": jpeg(0), "texts": ["a cat", "a dog"]}, {"image": jpeg(1), "texts": []}]
    url = make_store({"image": "image", "texts": {"kind": "json", "role": "text"}}, records)
    storeds.export(url, tmp_path / "out", format="coco")
    said = truth_of(tmp_path / "out").loadAnns([1, 2])
    assert [(each["image_id"], each["caption"]) for each in said] == [(1, "a cat"), (1, "a dog")]


def test_a_missing_mask_beside_a_box_is_not_exported_as_an_empty_one(tmp_path: Path) -> None:
    masks = {"kind": "json", "role": "mask", "format": "coco"}
    url = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"], {**FIELDS, "masks": masks}, masks=[[], [[0.0] * 6]])
    storeds.export(url, tmp_path / "out", format="coco")
    found = truth_of(tmp_path / "out").dataset["annotations"]
    assert [("segmentation" in each, each["area"]) for each in found] == [(False, 29 * 38), (False, 44.5 * 54)]


@pytest.mark.parametrize("format", ["coco", "yolo"])
def test_formats_without_room_for_damage_say_so(tmp_path: Path, format: str) -> None:
    objects = {"boxes": np.array([[1, 2, 9, 9]], np.float32), "labels": np.array([0])}
    blobs = (jpeg(0), jpeg(1)[: len(jpeg(1)) // 2])
    fields = {name: FIELDS[name] for name in ("image", "boxes", "labels")}
    url = make_store(fields, [{"image": blob, **objects} for blob in blobs], attrs={"classes": ["cat"]})
    done = storeds.export(url, tmp_path / "out", format=format)
    assert [note for note in done.notes if "1 picture of the store is damaged or repaired" in note]


PLAIN = {"image": "image", "weather": "str"}
MASKED = {name: FIELDS[name] for name in ("image", "labels")} | {
    "masks": {"kind": "json", "role": "mask", "format": "coco"}
}
UNEQUAL = "record 0 .*'labels' describes 2 objects, and the record has 1"


UNFIT: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("koko", PLAIN, ConfigError, "the formats are coco"),
    ("coco", PLAIN, ConfigError, "role boxes.* --role"),
    ("yolo", PLAIN, ConfigError, "role boxes.* --role"),
    ("coco", MASKED, RecordError, UNEQUAL),
    ("yolo", MASKED, RecordError, UNEQUAL),
]


@pytest.mark.parametrize("case", UNFIT, ids=lambda case: f"{case[0]}: {case[-1][:20]}")
def test_stores_that_do_not_fit_a_format(case: tuple[str, Any, type[Exception], str], tmp_path: Path) -> None:
    format, fields, error, message = case
    url = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"], fields, masks=[[[1, 1, 9, 1, 9, 9]]])
    with pytest.raises(error, match=message):
        storeds.export(url, tmp_path / "out", format=format)
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user, as root")
def test_an_output_without_permission_says_so(tmp_path: Path) -> None:
    url, folder = store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"]), tmp_path / "folder"
    page = storeds.ops.show(url)

    def become_another_user_and_write() -> None:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        with pytest.raises(ConfigError, match="out cannot be written: .*; allow this user to write"):
            storeds.export(url, folder / "out", format="folder")
        with pytest.raises(ConfigError, match="page.html cannot be written: .*; allow this user to write"):
            page.save(folder / "page.html")

    storeds.export(url, tmp_path / "first", format="folder")  # imports what another user may not read
    folder.mkdir()
    for parent in (tmp_path, *tmp_path.parents):
        if parent.owner() == "root" and parent.stat().st_mode & 0o055 != 0o055:
            parent.chmod(0o755)  # of pytest
    for mode in (0o500, 0):
        folder.chmod(mode)
        in_fork(become_another_user_and_write)


def test_a_page_replaces_the_file_behind_a_symbolic_link(tmp_path: Path) -> None:
    page = storeds.ops.show(store(f"lmdb://{tmp_path}/a.lmdb", ["a.jpg"]))
    (tmp_path / "real").write_text("old")
    for name, start in (("link.html", b"<!"), ("link.png", b"\x89PNG")):
        (tmp_path / name).symlink_to("real")
        page.save(tmp_path / name)
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "real").read_bytes().startswith(start)
