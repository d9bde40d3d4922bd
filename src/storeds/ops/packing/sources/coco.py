"""A source for COCO: pictures, and one JSON file with the boxes, masks, keypoints or captions of all of them."""

from __future__ import annotations

import codecs
import json
import math
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import numpy as np
import xxhash

from storeds._utils.locations import nearest
from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.jpeg import read_picture_header
from storeds.ops.coco_records import REST, CocoLayout, is_caption, is_number, to_record
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    BadItem,
    Fingerprint,
    Problem,
    Root,
    backslash_hint,
    class_notes,
    is_hidden,
    is_text,
    path_fault,
    read_file,
    show,
)
from storeds.protocols import JSON, Field, Record
from storeds.records.fields import canonical_json
from storeds.records.roles import check_boxes, check_coco_masks, check_values

__all__ = ["CocoSource", "is_coco_file"]

_LISTS = ("images", "annotations")
_BOX = Field("array", "<f8", (None, 4), role="boxes", format="xywh")
_PART = 1 << 24  # bytes that are decoded at once
_LARGEST = float(np.finfo(np.float32).max)  # readers return float32
_TRIED = 20  # images that are looked for in each folder that may be the root


class CocoSource:
    """A file of COCO annotations, and the folder of its pictures.

    Parameters
    ----------
    path : path
        The JSON file of detection, segmentation, keypoints or captions.
    root : path, optional
        The folder that the paths in ``file_name`` are relative to. The default is the first of these with pictures of the
        file: its own folder, ``images`` in it, for ``annotations/instances_val2017.json``, ``val2017`` beside it, and the
        folder above.
    allow_outside : bool
        Allow paths that leave `root`: through ``..``, as absolute paths, or through a link.

    Notes
    -----
    A record is an image. An image without annotations is a record with 0 boxes. A bad annotation is a problem of its own:
    with ``on_bad="skip"`` its image is packed without it. Annotations keep their order within an image. An image without
    ``file_name``, as in LVIS, is named by its ``coco_url``: ``train2017/1.jpg``, or ``1.jpg`` if no such file exists.

    Raises
    ------
    StoreNotFoundError
        The file or `root` does not exist, or no picture is found.
    ConfigError
        It is not a file of COCO, or two categories have one id.
    """

    thread_safe = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
    ) -> None:
        file = os.fspath(path)
        where = show(os.path.basename(file))
        data = _read(file)
        document = _document(data, where)
        images, annotations = document.pop("images"), document.pop("annotations", [])
        categories = _Categories(document.get("categories", []), where)
        listing, folder = _images_and_folder(images, file, root, where)
        listing.find(Root(folder, allow_outside=allow_outside))
        found = _Annotations(listing, categories, where)
        for number, raw in enumerate(annotations):
            found.add(number, raw)
        self._root, self._where = folder, where
        self._images, self._sizes = listing.good, listing.sizes
        self._rows = [found.of_image.get(image["id"], []) for image in self._images]
        self._layout = CocoLayout(found.keys(), categories.index, found.points, listing.id_kind)
        self.fields: Mapping[str, Field] = self._layout.fields
        self.attrs: Mapping[str, JSON] = {
            **categories.attrs(),
            REST: document,
            "source": {"kind": "coco", "file": where},
        }
        try:
            canonical_json(dict(self.attrs))
        except ValueError as error:
            raise ConfigError(
                f"{where}: its categories, or keys such as info, cannot be stored: {error}; correct or remove them"
            ) from None
        self.problems: Sequence[Problem] = (*listing.problems, *found.problems)
        self.notes: tuple[str, ...] = (*class_notes(categories.names), *listing.notes(folder))
        if not self._images and not self.problems:
            raise ConfigError(f"{where} lists no image")
        fingerprint = Fingerprint()
        for image, state in zip(self._images, listing.states, strict=True):
            fingerprint.add(image["file_name"], *state)
        fingerprint.add(xxhash.xxh3_128_hexdigest(data))
        self.fingerprint: JSON = fingerprint.finish("coco", len(self._images))

    def __len__(self) -> int:
        return len(self._images)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return _name(self._where, self._images[index])

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index] + sum(map(len, self._rows[index]))

    def read(self, index: int, /) -> Record:
        # docstring inherited
        image = self._images[index]
        blob = read_file(os.path.join(self._root, image["file_name"]))
        header = read_picture_header(blob)
        size = None if header is None else (header.height, header.width)
        listed = _size_of(image)
        if size is not None and listed is not None and size != listed:
            raise BadItem(_other_size(blob, size, listed, self._where))
        record = {"image": blob, **to_record(image, [_item(raw) for raw in self._rows[index]], self._layout)}
        try:
            if listed is None:  # the annotations were not compared with a size yet
                check_values(record, self.fields, size)
            canonical_json(record[REST])
        except ValueError as error:
            raise BadItem(f"its annotations cannot be stored: {error}") from None
        return record


def _other_size(blob: bytes, size: tuple[int, int], listed: tuple[int, int], where: str) -> str:
    turned = size == listed[::-1]
    why = (
        "; if its EXIF orientation turns it, store it upright: its annotations are those of the turned picture"
        if turned
        else ""
    )
    return (
        f"the picture has another size than in {where}: {size[1]} × {size[0]} pixels (width × height), not {listed[1]} × "
        f"{listed[0]}, so its annotations do not fit{why}"
    )


def _name(where: str, image: Mapping[str, Any]) -> str:
    return f"{where} image {image['id']} ({show(image['file_name'])})"


def _size_of(image: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width in the file, if it has both."""
    height, width = image.get("height"), image.get("width")
    return None if height is None or width is None else (height, width)


def is_coco_file(path: str) -> bool:
    """Whether a JSON file is an object with the lists of COCO."""
    try:
        data = _read(path)
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (
        msgspec.MsgspecError,
        UnicodeDecodeError,
        RecursionError,
    ):  # NaN, which COCO files of Python programs contain, is an error
        return b'"annotations"' in data and b'"images"' in data and b'"path_list"' not in data
    lists = [name for name in (*_LISTS, "categories") if bytes(top.get(name, b""))[:1] == b"["]
    return "images" in lists and len(lists) > 1


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise StoreNotFoundError(f"nothing exists at {show(path)}: {nearest(os.path.abspath(path))}") from None
    except OSError as error:
        raise StoreNotFoundError(f"{show(path)} cannot be read: {error.strerror}") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # some programs of Windows write UTF-16
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(b"\xef\xbb\xbf")


def _document(data: bytes, where: str) -> dict[str, Any]:
    """Return the keys of a file of COCO; images and annotations as lists of JSON texts, which take little memory."""
    _check_utf8(data, where)
    try:
        top: dict[str, Any] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        _check_keys(top, where)
        return {
            key: msgspec.json.decode(value, type=list[msgspec.Raw] if key in _LISTS else Any)
            for key, value in top.items()
        }
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        found = json.loads(data)  # accepts NaN and names the line of an error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{where} is JSON that cannot be stored: {error}") from None
    if isinstance(found, dict):
        _check_keys(found, where)
        for key in _LISTS:
            if not isinstance(found.get(key, []), list):
                raise ConfigError(f"{where}: {key} is a {type(found[key]).__name__}, not a list")
            found[key] = [json.dumps(each).encode() for each in found.get(key, [])]
        return found
    raise ConfigError(f"{where} is JSON, but not an object with images and annotations, as COCO's files are")


def _check_utf8(data: bytes, where: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _PART):
            decoder.decode(data[start : start + _PART])
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8, as JSON is: it contains byte {error.object[error.start]:#04x}; save it as UTF-8"
        ) from None


def _check_keys(top: Mapping[str, Any], where: str) -> None:
    if "images" not in top:
        raise ConfigError(
            f"{where} has no list of images, as COCO's files have; its keys are {', '.join(map(repr, list(top)[:8]))}. A list "
            "of detections alone is no data set"
        )


def _item(raw: bytes | msgspec.Raw) -> Any:
    """Return one image or annotation."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw))


class _Categories:
    """The classes of a file.

    Parameters
    ----------
    rows : list of dict
        ``categories``.
    where : str
        The file in messages.

    Attributes
    ----------
    index : dict
        Category id → class index.
    points : dict
        Category id → how many keypoints it has, where it names them.
    """

    def __init__(self, rows: Any, where: str) -> None:
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{where}: categories are a list of objects with id and name")
        self.rows: list[dict[str, Any]] = rows
        self.index: dict[Any, int] = {}
        self.points: dict[Any, int] = {}
        for number, row in enumerate(rows):
            own, name = row.get("id"), row.get("name")
            if isinstance(own, bool) or not isinstance(own, (int, str)):
                raise ConfigError(f"{where}: categories[{number}] has no id, a whole number or text: {row}")
            if not isinstance(name, str) or not name:
                raise ConfigError(f"{where}: category {own!r} has no name; add it, so that its boxes have a class")
            if own in self.index:
                raise ConfigError(
                    f"{where}: categories {rows[self.index[own]].get('name')!r} and {name!r} have one id, {own!r}"
                )
            self.index[own] = number
            if isinstance(row.get("keypoints"), list) and row["keypoints"]:
                self.points[own] = len(row["keypoints"])

    @property
    def names(self) -> list[str]:
        """The class names, in order."""
        return [row["name"] for row in self.rows]

    def attrs(self) -> dict[str, JSON]:
        """Return the attributes of the store."""
        if not self.rows:
            return {}
        names: list[JSON] = list(self.names)
        attrs: dict[str, JSON] = {"classes": names, "category_ids": list(self.index)}
        posed = [row for row in self.rows if row["id"] in self.points]
        if posed:
            most = max(posed, key=lambda row: len(row["keypoints"]))
            attrs["keypoint_names"] = most["keypoints"]
            if isinstance(most.get("skeleton"), list):
                attrs["skeleton"] = most["skeleton"]
        return attrs


class _Images:
    """The images of a file, and what is wrong with them.

    Parameters
    ----------
    rows : iterable of JSON texts
        ``images``.
    where : str
        The file in messages.
    url_parts : int
        How many parts of ``coco_url`` are the name of an image without ``file_name``: 2 in ``train2017/1.jpg``.
    """

    def __init__(self, rows: Iterable[Any], where: str, url_parts: int) -> None:
        self._where, self._url_parts = where, url_parts
        self.has_urls = False  # whether an image is named by its URL alone
        self.problems: list[Problem] = []
        self.good: list[dict[str, Any]] = []
        self.states: list[tuple[int, int]] = []
        self.by_id: dict[Any, dict[str, Any]] = {}
        self.bad: set[Any] = set()  # ids of images that are reported and not in by_id
        self._numbers: dict[str, Any] = {}
        for number, raw in enumerate(rows):
            self._add(number, _item(raw))
        kinds = {type(own) for own in self.by_id}
        if len(kinds) > 1:
            one = [next(own for own in self.by_id if type(own) is kind) for kind in (int, str)]
            raise ConfigError(
                f"{where}: the ids of images are whole numbers or text, not both: {one[0]!r} and {one[1]!r}"
            )
        self.id_kind = "str" if kinds == {str} else "int"

    def _add(self, number: int, image: Any) -> None:
        if isinstance(image, dict) and image.get("file_name") is None and isinstance(image.get("coco_url"), str):
            self.has_urls = True
            image["file_name"] = _name_in(image["coco_url"], self._url_parts)
        fault = _image_fault(image)
        if fault is not None:
            self.problems.append(Problem(f"{self._where} images[{number}]", fault))
            if isinstance(image, dict) and isinstance(image.get("id"), (int, str)):
                self.bad.add(image["id"])
            return
        own, name = image["id"], image["file_name"]
        if own in self.by_id:
            first = show(self.by_id[own]["file_name"])
            self.problems.append(Problem(_name(self._where, image), f"another image has the same id: {first}"))
            return
        self.by_id[own] = image
        path = posixpath.normpath(name)
        if path in self._numbers:
            self.problems.append(
                Problem(_name(self._where, image), f"another image has the same file: image {self._numbers[path]}")
            )
            return
        self._numbers[path] = own
        self.good.append(image)

    @property
    def names(self) -> Iterator[str]:
        """The paths of the good images."""
        return (image["file_name"] for image in self.good)

    @property
    def sizes(self) -> list[int]:
        """The bytes of each picture."""
        return [size for size, _ in self.states]

    def find(self, root: Root) -> None:
        """Keep the images whose files exist below `root`, and report the others."""
        there = []
        for image in self.good:
            fault = root.path_fault(image["file_name"])
            if fault is None:
                try:
                    status = os.stat(os.path.join(root.path, image["file_name"]))
                except OSError as error:
                    hint = backslash_hint(image["file_name"])
                    fault = f"its file is missing: {error.strerror} in {show(root.path)}{hint}"
            if fault is not None:
                self.problems.append(Problem(_name(self._where, image), fault))
                continue
            there.append(image)
            self.states.append((status.st_size, status.st_mtime_ns))
        self.good = there

    def notes(self, root: str) -> tuple[str, ...]:
        """Return a sentence about pictures beside those of the file that it does not list."""
        unlisted = []
        for folder in sorted({posixpath.dirname(path) for path in self._numbers}):
            try:
                names = sorted(os.listdir(os.path.join(root, folder)))
            except OSError:
                continue
            for name in names:
                is_image = name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name)
                if is_image and posixpath.normpath(posixpath.join(folder, name)) not in self._numbers:
                    unlisted.append(show(posixpath.join(folder, name)))
        if not unlisted:
            return ()
        return (
            f"{counted(len(unlisted), 'image file')} in {show(root)} {'is' if len(unlisted) == 1 else 'are'} not listed in "
            f"{self._where}, and left out: {some(unlisted)}",
        )


def _images_and_folder(
    rows: Sequence[Any], file: str, root: str | os.PathLike[str] | None, where: str
) -> tuple[_Images, str]:
    """Return the images and the folder of their pictures. LVIS names images by URLs, with or without the last folder."""
    listing = _Images(rows, where, 2)
    folders = _folders(file, root)
    if listing.has_urls and not _contain(folders, listing.names):
        shorter = _Images(rows, where, 1)
        listing = shorter if _contain(folders, shorter.names) else listing
    return listing, _root_of(file, folders, listing.names)


def _name_in(url: str, parts: int) -> str | None:
    """Return the last parts of the path in a URL, None without any. They never lead out of a folder."""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError:  # an address of IPv6 without its end
        return None
    names = [name for name in path.split("/") if name not in ("", ".", "..")]
    return "/".join(names[-parts:]) or None


def _image_fault(image: Any) -> str | None:
    if not isinstance(image, dict):
        return f"an image is an object with id and file_name, not {type(image).__name__}"
    own, name = image.get("id"), image.get("file_name")
    is_id = isinstance(own, str) or (isinstance(own, int) and not isinstance(own, bool) and -(2**63) <= own < 2**63)
    if not is_id or (isinstance(own, str) and not is_text(own)):
        return f"it has no id, a whole number or text: {str(own)[:40]}"
    if not isinstance(name, str):
        url = image.get("coco_url")
        return "it has no file_name" + (
            f", and its coco_url {url[:80]!r} names no file" if isinstance(url, str) else ""
        )
    fault = path_fault(name)
    if fault is not None:
        return fault
    for key in ("width", "height"):
        value = image.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            return f"its {key} is not a positive whole number: {str(value)[:40]}"
    return None


class _Annotations:
    """The annotations of a file by image, as JSON texts, and what is wrong with them."""

    def __init__(self, images: _Images, categories: _Categories, where: str) -> None:
        self._images, self._categories, self._where = images, categories, where
        self._good = {image["id"] for image in images.good}
        self._ids: set[Any] = set()
        self._keys: set[str] = {"bbox", "category_id"} if categories.rows else set()
        self._first_points = 0
        self.points = max(categories.points.values(), default=0)
        self.of_image: dict[Any, list[bytes]] = {}
        self.problems: list[Problem] = []

    def keys(self) -> frozenset[str]:
        """Return the keys of all good annotations that have a field of their own."""
        return frozenset(self._keys)

    def add(self, number: int, raw: Any) -> None:
        """Add ``annotations[number]``, or report what is wrong with it."""
        annotation = _item(raw)
        of = annotation.get("image_id") if isinstance(annotation, dict) else None
        if isinstance(of, (int, str)) and of in self._images.bad and of not in self._images.by_id:
            return  # the image was reported
        fault = self._fault(annotation)
        if fault is not None:
            self.problems.append(Problem(self._name(number, annotation), fault))
            return
        own, image = annotation.get("id"), annotation["image_id"]
        if own is not None:
            self._ids.add(own)
        if image not in self._good:  # the image was reported
            return
        if is_caption(annotation):
            self._keys.add("caption")
        else:
            self._keys.update(key for key, value in annotation.items() if key in _KEYS and value is not None)
            self._keys.update(("bbox", "category_id"))
        self.of_image.setdefault(image, []).append(bytes(raw))

    def _name(self, number: int, annotation: Any) -> str:
        if not isinstance(annotation, dict):
            return f"{self._where} annotations[{number}]"
        own = annotation.get("id")
        called = f"annotations[{number}]" if own is None else f"annotation {str(own)[:40]}"
        try:
            image = self._images.by_id.get(annotation.get("image_id"))
        except TypeError:  # a list or an object
            image = None
        return f"{self._where} {called}" + ("" if image is None else f" ({show(image['file_name'])})")

    def _fault(self, annotation: Any) -> str | None:
        if not isinstance(annotation, dict):
            return f"an annotation is an object, not {type(annotation).__name__}"
        own, image = annotation.get("id"), annotation.get("image_id")
        if isinstance(own, (list, dict, float)) or isinstance(image, (list, dict, float)):
            return "its id and image_id are whole numbers or text"
        if own is not None and own in self._ids:
            return "another annotation has the same id"
        if image is None:
            return "it has no image_id"
        if image not in self._images.by_id:
            return f"its image is not in the list of images: image_id {image!r}"
        if "segments_info" in annotation:
            return "it belongs to panoptic segmentation, whose masks are pictures; pack these with kind='masks' (--kind masks)"
        if is_caption(annotation):
            said = annotation["caption"]
            return None if isinstance(said, str) and is_text(said) else "its caption is not text"
        return self._instance_fault(annotation, _size_of(self._images.by_id[image]))

    def _instance_fault(self, annotation: Mapping[str, Any], size: tuple[int, int] | None) -> str | None:
        category = annotation.get("category_id")
        if category is None:
            return "it has no category_id"
        if isinstance(category, (list, dict, float, bool)) or category not in self._categories.index:
            return f"its category has no name in the list of categories: category_id {str(category)[:40]}"
        return (
            _mask_fault(annotation.get("segmentation"), size)
            or _box_fault(annotation, size)
            or self._points_fault(annotation.get("keypoints"), category)
            or _area_fault(annotation.get("area"))
        )

    def _points_fault(self, points: Any, category: Any) -> str | None:
        if points is None:
            return None
        if not isinstance(points, list) or not all(map(is_number, points)):
            return "its keypoints are not a list of numbers x, y, visibility, …"
        if _is_too_large(points):
            return "one of its keypoints is too large for float32, which readers return; fix it, or leave the keypoints out"
        expected = 3 * (self._categories.points.get(category) or self._first_points or len(points) // 3)
        if len(points) != expected or not points:
            count = (
                f"{expected // 3} points, as its category has" if category in self._categories.points else "its points"
            )
            return f"its keypoints have a wrong length: {len(points)} numbers, not x, y and visibility of {count}"
        if category not in self._categories.points:
            self._first_points = expected // 3
        self.points = max(self.points, expected // 3)
        return None


_KEYS = ("bbox", "category_id", "segmentation", "keypoints", "iscrowd", "area", "id")


def _box_fault(annotation: Mapping[str, Any], size: tuple[int, int] | None) -> str | None:
    box = annotation.get("bbox")
    if box is None:
        mask = annotation.get("segmentation")
        if "bbox" not in annotation and isinstance(mask, list) and any(mask):
            return None
        return "it has no bbox"
    if not isinstance(box, list) or len(box) != 4 or not all(type(each) in (float, int) for each in box):
        return f"its bbox is not 4 numbers, left, top, width and height: {str(box)[:60]}"
    try:
        left, top, width, height = box
        is_inside = left >= 0 and top >= 0 and width >= 0 and height >= 0
        if is_inside and size is not None and left + width <= size[1] and top + height <= size[0]:
            return None  # as nearly all are; what follows takes 20 times as long
        check_boxes("bbox", [box], _BOX, size)
        if _is_too_large([*box, left + width, top + height]):
            return f"its bbox is too large for float32, which readers return: {str(box)[:60]}"
    except (ValueError, OverflowError) as error:  # a whole number that no float holds
        return f"its bbox is bad: {str(error).removeprefix(_ROW)}"
    return None


def _area_fault(area: Any) -> str | None:
    if area is None or (type(area) is int) or (isinstance(area, float) and math.isfinite(area)):
        return None
    return f"its area is not a number: {str([area])[1:-1][:60]}"


def _is_too_large(numbers: Sequence[float]) -> bool:
    return bool(numbers) and max(max(numbers), -min(numbers)) > _LARGEST


def _mask_fault(mask: Any, size: tuple[int, int] | None) -> str | None:
    if mask is None:
        return None
    try:
        check_coco_masks("segmentation", [mask], size)
    except ValueError as error:
        return f"its segmentation is bad: {str(error).removeprefix(_MASK_ROW)}"
    return None


_ROW, _MASK_ROW = "field 'bbox', row 0: ", "field 'segmentation', row 0: "


def _folders(file: str, root: str | os.PathLike[str] | None) -> list[str]:
    """Return the folders in which the pictures of a file may be; raises StoreNotFoundError if `root` does not exist."""
    if root is not None:
        if not os.path.isdir(root):
            raise StoreNotFoundError(f"root={os.fspath(root)!r} is not a folder")
        return [os.fspath(root)]
    own = os.path.dirname(os.path.abspath(file))
    part = os.path.splitext(os.path.basename(file))[0].rpartition("_")[2]
    above = os.path.dirname(own)
    inside = (os.path.join(base, name) for base in (own, above) for name in ("images", part, f"images/{part}"))
    return [own, *inside, above]


def _contain(folders: Sequence[str], names: Iterator[str]) -> list[str]:
    """Return the folders with one of the first pictures."""
    tried = list(islice(names, _TRIED))
    return [folder for folder in folders if any(os.path.isfile(os.path.join(folder, name)) for name in tried)]


def _root_of(file: str, folders: Sequence[str], names: Iterator[str]) -> str:
    """Return the folder of the pictures; raises StoreNotFoundError if it is not clear."""
    if len(folders) == 1:
        return folders[0]
    first = next(names, None)
    if first is None:
        return folders[0]
    found = _contain(folders, chain([first], names))
    if not found:
        raise StoreNotFoundError(
            f"no picture of {show(os.path.basename(file))}, such as {show(first)}, is in any of {', '.join(map(show, folders))}"
            f"{backslash_hint(first)}; pass the folder of the pictures as root= (--root)"
        )
    return found[0]
