"""The reader `sample`: what it reads of each role, renamed elements, paths into JSON, and bad values."""

from __future__ import annotations

import copy
import functools
import io
import json
import pickle
import secrets
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Subset

from make_store import make_store
from mask_files import FORMS, as_grey, encode_mask
from photographs import by_pillow, saved
from picture_stores import exif
from storeds import Backend, Skipped, StoreDataset, StoreLoader, open_backend, open_writer
from storeds.errors import ConfigError, DecodeError, RecordError
from storeds.readers import decode_windows, sample
from storeds.testing import ReaderTests

PHOTOGRAPH = {"kind": "image", "role": "image"}
MASK = {"kind": "image", "role": "mask"}
BOXES = {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes", "format": "xyxy"}
LABELS = {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"}
RNG = np.random.default_rng(7)


def photograph(width: int = 40, height: int = 30, form: str = "JPEG", **options: Any) -> bytes:
    pixels = RNG.integers(0, 255, (height, width, 3)).astype(np.uint8)
    return saved(Image.fromarray(pixels), form, **options)


def ids(width: int = 40, height: int = 30, most: int = 200) -> np.ndarray[Any, Any]:
    return RNG.integers(0, most, (height, width)).astype(np.uint8)


def test_the_default_elements_are_those_with_a_role() -> None:
    fields = {"key": "str", "labels": LABELS, "image": PHOTOGRAPH, "mask": MASK, "boxes": BOXES, "other": "int"}
    mask = ids()
    record = {
        "key": "a",
        "labels": np.array([1]),
        "image": photograph(),
        "mask": saved(Image.fromarray(mask)),
        "boxes": np.array([[1, 2, 3, 4]], np.float32),
        "other": 5,
    }
    dataset = StoreDataset(make_store(fields, [record], attrs={"classes": ["cat", "dog"]}), as_dict=True)
    sample = dataset[0]
    assert list(sample) == ["image", "mask", "boxes", "labels"]
    assert sample["image"].shape == (3, 30, 40)
    assert sample["mask"].dtype == torch.uint8
    assert np.array_equal(sample["mask"], mask)
    assert sample["boxes"].tolist() == [[1, 2, 3, 4]]
    assert sample["labels"].tolist() == [1]
    assert (dataset.reader.data, dataset.reader.target) == ("image", "labels")
    assert "reader=sample" in repr(dataset)


def test_elements_can_be_renamed_and_one_field_can_be_two_elements() -> None:
    url = make_store({"image": "image", "label": "int"}, [{"image": photograph(), "label": 3}])
    dataset = StoreDataset(url, fields={"pixel_values": "image", "labels": "label", "again": "label"}, as_dict=True)
    assert dataset.reader.fields == ("pixel_values", "labels", "again")
    assert set(dataset.reader.stored) == {"image", "label", "image_finding", "image_recovered"}
    assert (dataset.reader.data, dataset.reader.target) == ("pixel_values", "labels")
    assert (dataset[0]["labels"], dataset[0]["again"]) == (3, 3)
    assert dataset.targets == [3]


def mask_of(blob: Any, kind: Any = MASK, image: bytes | None = None, **settings: Any) -> Any:
    """Return the element of a mask that is stored beside a photograph of 40 × 30."""
    url = make_store({"image": PHOTOGRAPH, "mask": kind}, [{"image": image or photograph(), "mask": blob}])
    return StoreDataset(url, **{"fields": ["image", "mask"], **settings})[0][1]


def grey_png(values: np.ndarray[Any, Any], bits: int) -> bytes:
    # Pillow writes few bits for palettes only, so the colour type changes to grey here.
    image = Image.frombytes("P", (40, 30), values.tobytes())
    image.putpalette([0] * 768)
    return as_grey(saved(image, bits=bits), bits)


@pytest.mark.parametrize(
    ("encode", "most"),
    [
        *((functools.partial(encode_mask, form=form), {"1": 2, "I;16": 60_000}.get(form, 200)) for form in FORMS),
        *((functools.partial(write, bits=bits), 1 << bits) for write in (grey_png,) for bits in (2, 4)),
    ],
    ids=[*FORMS, "PNG 2", "PNG 4"],
)
def test_masks_keep_their_class_ids(encode: Any, most: int) -> None:
    values = RNG.integers(0, most, (30, 40)).astype(np.uint16 if most > 256 else np.uint8)
    blob = encode(values)
    # The mode of a mask is for colours: it changes no ids.
    for mode in ("RGB", {"mask": "L"}, {"mask": "1"}, {"mask": "P"}):
        mask = mask_of(blob, mode=mode)
        assert mask.dtype == (torch.int32 if most > 256 else torch.uint8)
        assert np.array_equal(mask, values)


def test_boxes_are_in_pixels_and_kept_in_their_format() -> None:
    boxes = {**BOXES, "format": "cxcywh", "relative": True}
    rows = np.full((1, 4), 0.5, np.float32)
    records = [{"image": photograph(), "boxes": each} for each in (rows, rows[:0])]
    url = make_store({"image": PHOTOGRAPH, "boxes": boxes}, records)
    dataset, other = (
        StoreDataset(url, reader="sample", reader_options={"box_format": each}) for each in (None, "xyxy")
    )
    assert dataset[0][1].tolist() == [[20, 15, 20, 15]]
    assert other[0][1].tolist() == [[10, 7.5, 30, 22.5]]
    assert dataset[1][1].shape == (0, 4)


OBJECTS = [{"bbox": [1, 2, 3, 4], "category": "dog"}, {"bbox": [5, 6, 7, 8], "category": "cat"}]
ROLES = {"boxes": {"role": "boxes", "format": "xywh"}, "labels": {"role": "labels", "classes": ["cat", "dog"]}}
PATHS = {"image": "image", "boxes": "objects[].bbox", "labels": "objects[].category", "width": "size.width"}


def nested(objects: Any = OBJECTS, size: Any = None) -> str:
    record = {"image": photograph(), "objects": objects, "size": size or {"width": 40}}
    return make_store({"image": "image", "objects": "json", "size": "json"}, [record])


def test_paths_lead_into_json() -> None:
    dataset = StoreDataset(nested(), fields=PATHS, roles=ROLES, as_dict=True)
    sample = pickle.loads(pickle.dumps(dataset))[0]
    assert sample["boxes"].tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert sample["labels"].tolist() == [1, 0]
    assert sample["width"] == 40
    assert set(dataset.reader.stored) == {"image", "objects", "size", "image_finding", "image_recovered"}


@pytest.mark.parametrize(
    ("objects", "says"),
    [
        ([{"bbox": [1, 2, 3, -4], "category": "cat"}], "negative height"),
        ([{"bbox": [900, 2, 3, 4], "category": "cat"}], "outside the image"),
        ([{"bbox": [1, 2, 3, 4], "category": "cow"}], "'cow' is no class.*the classes are cat, dog"),
        ([{"bbox": [1, 2, 3, 4]}], r"path 'objects\[\].category, item 0': there is no 'category'"),
        ({"bbox": 1}, r"\[\] needs a list in {'bbox': 1}"),
    ],
)
def test_bad_values_name_record_field_and_reason(objects: Any, says: str) -> None:
    url = nested(objects)
    with pytest.raises(RecordError, match=f"^record 0 of {url}: .*{says}"):
        StoreDataset(url, fields=PATHS, roles=ROLES)[0]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"fields": {"boxes": "objcts[].bbox"}}, "has no field 'objcts.*did you mean"),
        ({"fields": {"boxes": "image.bbox"}}, "of kind image: only values of kind json have parts"),
        ({"roles": {"imag": "image"}}, "roles names 'imag', which is no element of a sample; did you mean 'image'"),
        ({"decode": "bytes", "transforms": ["RandomHorizontalFlip"]}, "decode it, which decode='bytes' does not"),
        ({"roles": {"image": "picture"}}, "'image' has an unknown role 'picture'"),
        ({"roles": {"image": "boxes"}}, "role 'boxes' needs kind array, json, not image"),
        ({"reader": "array", "roles": {"size": "text"}}, "reader 'array' takes no roles"),
        ({"reader": "array", "transforms": ["RandomHorizontalFlip"]}, "transforms is for whole samples"),
    ],
)
def test_bad_settings_are_explained(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StoreDataset(nested(), **settings)


def test_arrays_are_tensors_whatever_decodes_images() -> None:
    fields = {"image": {"kind": "array", "dtype": "uint8", "shape": [8, 8, 3]}, "kind": "int"}
    url = make_store(fields, [{"image": np.full((8, 8, 3), 7, "u1"), "kind": 5}])
    for decode in (None, "tensor"):
        image, label = StoreDataset(url, roles={"image": "image", "kind": "label"}, decode=decode)[0]
        assert (image.shape, int(image.max()), label) == ((3, 8, 8), 7, 5)


@pytest.mark.parametrize(
    ("mask", "image", "error", "says"),
    [
        (saved(Image.fromarray(ids(39))), photograph(), RecordError, "mask has 39 × 30"),
        (photograph(), photograph(), RecordError, "not Pillow mode 'RGB'"),
        (b"\x89PNG no", photograph(), DecodeError, ""),
        (
            saved(Image.fromarray(ids(30, 40))),
            photograph(exif=exif(6)),
            RecordError,
            "mask has 30 × 40 .*, the image 40 × 30; .* as stored, before any EXIF orientation",
        ),
    ],
)
def test_bad_masks_name_record_field_and_reason(mask: bytes, image: bytes, error: Any, says: str) -> None:
    with pytest.raises(error, match=f"^record 0 of memory://store-.*: field 'mask': .*{says}"):
        mask_of(mask, "image", image, roles={"mask": "mask"})


def test_a_mask_that_lacks_pixels_is_not_repaired() -> None:
    """What a repair fills is grey, 128, which would be a class."""
    whole = saved(Image.fromarray(ids(160, 120, 3)), "JPEG")
    image, options = photograph(160, 120), {"min_recovered": 0.1}
    with pytest.raises(DecodeError, match="field 'mask': the image is damaged"):
        mask_of(whole[: int(len(whole) * 0.9)], image=image, reader_options=options)
    only_the_end_marker_is_missing = mask_of(whole[:-2], image=image, reader_options=options)
    assert np.array_equal(only_the_end_marker_is_missing, np.asarray(Image.open(io.BytesIO(whole))))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_turns_everything(orientation: int) -> None:
    """The mask, stored as an array, marks the pixels of the box; afterwards it still does."""
    blob = photograph(form="PNG" if orientation % 2 else "JPEG", exif=exif(orientation))
    mask = np.zeros((30, 40), np.uint8)
    mask[4:10, 5:25] = 1
    fields = {
        "image": PHOTOGRAPH,
        "mask": {"kind": "array", "dtype": "uint8", "shape": [None, None], "role": "mask"},
        "boxes": BOXES,
    }
    record = {"image": blob, "mask": mask, "boxes": np.array([[5, 4, 25, 10]], np.float32)}
    dataset = StoreDataset(make_store(fields, [record]), reader="sample", reader_options={"orient": True})
    image, turned, boxes = dataset[0]
    assert image.shape[1:] == turned.shape == ((40, 30) if orientation > 4 else (30, 40))
    rows, columns = np.nonzero(np.asarray(turned))
    assert boxes.tolist() == [[columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]]
    whole = StoreDataset(make_store(fields, [{**record, "boxes": np.zeros((0, 4), np.float32)}]))[0]
    assert whole[0].shape == (3, 30, 40)


CROPS: list[Any] = [
    {"name": "RandomResizedCrop", "size": 60, "scale": [0.1, 0.5]},
    {"name": "RandomCrop", "size": [40, 64], "padding": 3},
    {"name": "CenterCrop", "size": [50, 30]},
]


@pytest.mark.parametrize("decode", ["tensor", "pil"])
@pytest.mark.parametrize("crop", CROPS, ids=lambda crop: crop["name"])
def test_a_crop_drawn_before_decoding_gives_the_same(crop: Any, decode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first transform that does nothing keeps the reader from drawing the crop."""
    windows = []

    def counted(*args: Any, **options: Any) -> Any:
        windows.append(args)
        return decode_windows(*args, **options)

    monkeypatch.setattr("storeds.pictures.decode.decode_windows", counted)
    fields = {"image": PHOTOGRAPH, "other": PHOTOGRAPH, "mask": MASK, "boxes": BOXES}
    boxes = np.array([[10, 10, 200, 150], [0, 0, 5, 5]], np.float32)
    record = {"boxes": boxes, "mask": saved(Image.fromarray(ids(320, 240)))}
    records = [{"image": photograph(320, 240), "other": photograph(320, 240), **record} for _ in range(4)]
    png = {**records[0], "other": photograph(320, 240, "PNG")}
    another = {**records[1], "other": photograph(240, 320)}
    url = make_store(fields, [*records, png])
    drawn = StoreDataset(url, decode=decode, transforms=[crop], seed=3)[:]
    assert len(windows) == (8 if decode == "tensor" else 0)
    whole = StoreDataset(url, decode=decode, transforms=[nothing, crop], seed=3)
    for one, other in zip(drawn, whole[:], strict=True):
        assert len(one) == 4
        for element, expected in zip(one, other, strict=True):
            assert np.array_equal(np.asarray(element), np.asarray(expected))
    with pytest.raises(RecordError, match="record 0 .*'other' has 240 × 320 pixels"):
        StoreDataset(make_store(fields, [another]), decode=decode, transforms=[crop], seed=3)[0]


def nothing(sample: dict[str, Any], generator: torch.Generator | None = None) -> dict[str, Any]:
    return sample


@pytest.mark.parametrize("target", ["species", "colour"])
def test_classes_are_those_of_the_target(target: str) -> None:
    names = {"species": ["cat", "dog"], "colour": ["blue", "green", "red"]}
    record: dict[str, Any] = {"image": photograph(), "species": "dog", "colour": "red"}
    url = make_store({"image": "image", "species": "str", "colour": "str"}, [record], attrs={"classes": names})
    for classes, given in ((names[target], {}), (names[target][::-1], {"classes": names[target][::-1]})):
        roles = {"label": {"role": "label", **given}}
        dataset = StoreDataset(url, fields={"image": "image", "label": target}, roles=roles)
        assert dataset.classes == classes
        assert dataset[0][1] == dataset.targets[0] == classes.index(record[target])
        chosen = StoreDataset(url, fields={"label": target}, roles=roles, where={target: record[target]})
        assert chosen.targets == dataset.targets


def test_decoders_of_single_elements() -> None:
    colours = np.zeros((30, 40, 3), np.uint8)
    colours[:, 20:] = (0, 255, 0)
    record = {"image": photograph(), "mask": saved(Image.fromarray(colours)), "raw": photograph()}
    url = make_store({"image": PHOTOGRAPH, "mask": "image", "raw": PHOTOGRAPH}, [record])
    settings: dict[str, Any] = {"fields": ["image", "mask", "raw"], "roles": {"mask": "mask"}}
    image, mask, raw = StoreDataset(url, **settings, decode={"image": "pil", "mask": is_green, "raw": "bytes"})[0]
    assert isinstance(image, Image.Image)
    assert raw == record["raw"]
    assert np.array_equal(mask, colours[..., 1] // 255)
    with pytest.raises(ConfigError, match="decode names 'msk', which is not an image of a sample; did you mean 'mask'"):
        StoreDataset(url, **settings, decode={"msk": "pil"})


def is_green(blob: bytes, mode: str) -> np.ndarray[Any, Any]:
    return by_pillow(blob)[..., 1] // 255


def test_images_of_kind_array() -> None:
    pixels = RNG.integers(0, 255, (30, 40, 3)).astype(np.uint8)
    fields = {"x": {"kind": "array", "dtype": "uint8", "shape": [None, None, 3]}}
    url = make_store(fields, [{"x": pixels}])
    flip = {"name": "RandomHorizontalFlip", "p": 1}
    for roles in (None, {"x": "image"}):
        (image,) = StoreDataset(url, roles=roles, transforms=[flip])[0]
        assert np.array_equal(image, pixels[:, ::-1].transpose(2, 0, 1))
    floats = make_store({"x": {**fields["x"], "dtype": "float32"}}, [{"x": pixels.astype(np.float32)}])
    with pytest.raises(ConfigError, match=r"none is of kind image: it has x \(array\)\. .*roles=\{'x': 'image'\}"):
        StoreDataset(floats, transforms=[flip])
    (image,) = StoreDataset(floats, roles={"x": "image"}, transforms=[flip])[0]
    assert np.array_equal(image, pixels[:, ::-1].transpose(2, 0, 1))
    with pytest.raises(
        ConfigError, match="channels names 'y', which is not an array image of a sample; the array images are x"
    ):
        StoreDataset(url, roles={"x": "image"}, channels={"y": "last"})


@pytest.mark.parametrize(("name", "rows"), [("boxes", [[-1e300, -1e300, 1e300, 1e300]]), ("points", [[1e39, 0]])])
def test_writers_and_readers_have_one_limit_of_coordinates(name: str, rows: Any) -> None:
    fields: dict[str, Any] = {"image": PHOTOGRAPH, "boxes": "json", "points": "json"}
    roles: dict[str, Any] = {"boxes": "boxes", "points": "keypoints"}
    good = {"image": photograph(), "boxes": [[0, 0, 9, 9], [-1e30, 0, 5, 5]], "points": [[-1e30, 1]]}
    fault = rf"record 1 .*field '{name}', row 0: \[.*\] is not finite, or too large for float32"
    declared = {**fields, **{each: {"kind": "json", "role": role} for each, role in roles.items()}}
    url = f"memory://limit-{secrets.token_hex(8)}"
    with open_writer(url, declared) as writer:
        writer.append([good])
        with pytest.raises(RecordError, match=fault):
            writer.append([{**good, name: rows}])
    half = {"kind": "json", "role": "keypoints", "relative": True}
    fractions = [[1e29, 0]]  # times the size of the largest image, a float32
    share = make_store({"image": PHOTOGRAPH, "points": half}, [{"image": good["image"], "points": fractions}])
    assert torch.isfinite(StoreDataset(share)[0][1]).all()
    with pytest.raises(RecordError, match="too large"):
        make_store({"image": PHOTOGRAPH, "points": half}, [{"image": good["image"], "points": [[1e31, 0]]}])
    assert StoreDataset(url)[0][1].tolist() == torch.tensor(good["boxes"]).tolist()
    url = make_store(fields, [good, {**good, name: rows}])
    dataset = StoreDataset(url, roles=roles, fields=list(fields))
    assert dataset[0][2].tolist() == torch.tensor(good["points"]).tolist()
    with pytest.raises(RecordError, match=fault):
        dataset[1]


HUGE = 10**400  # which no float can hold
TRIANGLE, EVERYTHING = [[1, 1, 5, 5, 3, 9]], {"size": [16, 16], "counts": [256]}
POLYGONS = {"role": "mask", "format": "coco"}
BAD_ROWS: dict[str, tuple[Any, Any, Any, str]] = {  # a role, a good value, a bad one, and the reason
    "no list": ({"of": "boxes"}, ["a"], None, ": .*one row for each box is a list, not NoneType"),
    "two rows of one box": ({"of": "boxes"}, ["a"], ["a", "b"], " has 2 rows, and field 'boxes' has 1 boxes"),
    "no points": ("keypoints", [[1, 1, 2]], [[1, 2, 2, 3, 4, 2], None], ": .*keypoints are x, y and perhaps a visibility"),
    "class": ("labels", ["cat"], ["cow"], ": .*'cow' is no class"),
    "number of a class": ("labels", [1], [2], ": .*class 2 has no name: the 2 classes are cat, dog"),
    "huge label": ("labels", [1], [HUGE], ""),
    "huge polygon": (POLYGONS, [TRIANGLE], [[[1, 1, HUGE, 5, 3, 9]]], ""),
    "infinities": (POLYGONS, [TRIANGLE], [[[1, 1, float("inf"), 5, float("-inf"), 9]]], ""),
    "huge size": (POLYGONS, [EVERYTHING], [{**EVERYTHING, "size": [HUGE, 16]}], ""),
    "huge counts": (POLYGONS, [EVERYTHING], [{**EVERYTHING, "counts": [HUGE]}], ""),
    "huge box": ("boxes", [[1, 1, 5, 5]], [[1, 1, HUGE, 5]], ""),
    "huge keypoint": ("keypoints", [[1, 1, 2]], [[1, HUGE, 2]], ""),
}  # fmt: skip


@pytest.mark.parametrize(("role", "good", "bad", "says"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_make_one_sample_bad_and_name_record_field_and_reason(
    role: Any, good: Any, bad: Any, says: str
) -> None:
    image, box = saved(Image.new("RGB", (16, 16))), np.array([[1, 1, 5, 5]], np.float32)
    kind, stored = ("json", copy.copy) if role == {"of": "boxes"} else ("str", json.dumps)
    records = [{"image": image, "boxes": box, "rows": stored(value)} for value in (good, bad, good)]
    fields = {"image": "image", "boxes": BOXES, "rows": kind}
    url = make_store(fields, records, attrs={"classes": ["cat", "dog"]})
    elements = ["image", "rows"] if role == "boxes" else list(fields)
    settings: dict[str, Any] = {"reader": "sample", "fields": elements, "roles": {"rows": role}}
    skipping = StoreDataset(url, on_error="skip", **settings)
    assert [isinstance(sample, Skipped) for sample in skipping[:]] == [False, True, False]
    with pytest.raises(RecordError, match=f"^record 1 of {url}: field 'rows'{says}"):
        StoreDataset(url, **settings)[1]


def test_keypoints_in_json_go_with_their_boxes() -> None:
    fields = {
        "image": PHOTOGRAPH,
        "boxes": {"kind": "json", "role": "boxes"},
        "points": {"kind": "json", "role": "keypoints"},
    }
    boxes = [[0, 0, 9, 9], [10, 10, 30, 20], [31, 21, 40, 30]]
    points = [[[box[0], box[1], 2], [20, 15, 1]] for box in boxes]
    image = photograph()
    records = [(boxes, points), (boxes, points[0]), ([], []), (boxes, [])]
    url = make_store(fields, [{"image": image, "boxes": each, "points": its} for each, its in records])
    dataset = StoreDataset(url, transforms=[{"name": "CenterCrop", "size": [10, 20]}], as_dict=True)
    assert dataset[0]["boxes"].tolist() == [[0, 0, 20, 10]]
    assert dataset[0]["points"].tolist() == [[[0, 0, 2], [10, 5, 1]]]
    assert dataset[1]["points"].tolist() == [[0, 0, 0], [10, 5, 1]]  # of the whole sample
    assert [len(dataset[at]["points"]) for at in (2, 3)] == [0, 0]
    without = StoreDataset(
        url, transforms=[{"name": "CenterCrop", "size": [1, 1]}, {"name": "FilterBoxes", "min_area": 2}]
    )
    (batch,) = StoreLoader(Subset(without, [0, 2]), batch_size=2)
    assert batch[2].values.shape == (2, 0, 2, 3)
    with pytest.raises(RecordError, match="field 'points' has 2 rows, and field 'boxes' has 3 boxes"):
        make_store(fields, [{"image": image, "boxes": boxes, "points": points[:2]}])


class TestKit(ReaderTests):
    """All that `storeds.testing` asks of a reader."""

    refuses: ClassVar[dict[str, Any] | None] = {"number": "int"}

    @pytest.fixture
    def reader(self) -> Any:
        return sample()

    @pytest.fixture
    def backend(self) -> Backend:
        record = {"image": photograph(), "mask": saved(Image.fromarray(ids())), "key": "a"}
        return open_backend(make_store({"image": PHOTOGRAPH, "mask": MASK, "key": "str"}, [record] * 3))

    def comparable(self, sample: Any) -> Any:
        return {name: np.asarray(value).tolist() for name, value in sample.values.items()}, sample.size
