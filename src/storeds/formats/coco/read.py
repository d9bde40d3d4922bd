"""A source for COCO: pictures, and one JSON file with the boxes, masks, keypoints or captions of all of them."""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import msgspec

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.formats.coco.records import (
    REST,
    CocoLayout,
    class_attrs,
    class_index,
    hull_of,
    is_caption,
    is_missing,
    is_number,
    listed_size,
    mask_of,
    to_record,
)
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.masks import taken_as_stored
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start, read_file
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, is_hidden, show
from storeds.pictures import read_picture_header
from storeds.pictures.decoders import orientation_of
from storeds.protocols import Field, Record
from storeds.records.annotations import LARGEST, check_boxes, check_keypoints
from storeds.records.canonical_json import canonical_json
from storeds.records.segmentations import check_coco_masks

__all__ = ["coco"]

_LISTS = ("images", "annotations")
_KEYS = ("bbox", "category_id", "segmentation", "keypoints", "iscrowd", "area", "id")
_BOX = Field("array", "<f8", (None, 4), role="boxes", format="xywh")
_ROUNDING = 1  # pixel
_BASE = re.compile(r".*[/\\]|[?#].*")  # what lies around the name of a file in a path or a URL
_TRIED = 20  # images that are looked for in each folder that may be the root


def coco(
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a file of COCO annotations, and of the folder of its pictures.

    Parameters
    ----------
    path : path
        The JSON file of detection, segmentation, keypoints or captions.
    root : path, optional
        The folder that the paths in ``file_name`` are relative to. A picture that is not there, because ``file_name`` is a path
        of another machine or a URL, is found by its name if one file below `root` has it. The default is the first of these with pictures of the
        file: its own folder, ``images`` in it, for ``annotations/instances_val2017.json``, ``val2017`` beside it, and the
        folder above.
    allow_outside : bool
        Allow paths that leave `root`: through ``..``, as absolute paths, or through a link.

    Notes
    -----
    A record is an image. An image without annotations is a record with 0 boxes. A bad annotation is a bad item of its own:
    with ``on_bad="skip"`` its image is packed without it. Annotations keep their order within an image.

    Raises
    ------
    StoreNotFoundError
        The file or `root` does not exist, or no picture is found.
    ConfigError
        It is not a file of COCO, two categories have one id, or two with objects have one name.
    """
    file = os.fspath(path)
    where = show(os.path.basename(file))
    document = _parse(file, where)
    decoded = [_decoded(raw) for raw in document.pop("images")]
    entries = [entry for entry, _ in decoded]
    annotations = document.pop("annotations", [])
    if not entries:
        raise ConfigError(f"{where} lists no image")
    folder = _find_pictures(file, root, entries)
    moved, found_by_name = ([], []) if root is None else _found_by_name(entries, folder, where)
    decoded = [(entry, fault) for entry, (_, fault) in zip(moved or entries, decoded, strict=True)]
    pictures = Root(folder, allow_outside=allow_outside)
    categories = document.get("categories", [])
    listing = _Listing(where, pictures, *_read_categories(categories, where))
    for number, (entry, fault) in enumerate(decoded):
        listing.add_image(number, entry, _file_name(entry), fault)
    for number, raw in enumerate(annotations):
        listing.add_annotation(number, bytes(raw))
    layout = listing.layout()
    same = list(_same_names(categories, listing.used, where))
    attrs = {**class_attrs(categories), REST: document, "source": {"kind": "coco", "file": where}}
    try:
        canonical_json(attrs)
    except ValueError as error:
        raise ConfigError(
            f"{where}: its categories, or keys such as info, cannot be stored: {error}; correct or remove them"
        ) from None

    def items() -> Iterator[Row | Bad]:
        for image in listing.items:
            if isinstance(image, Bad):
                yield image
                continue
            rows = b"[" + b",".join(image.rows) + b"]"
            blob = pictures.file(image.entry["file_name"])
            yield Row(image.name, {"image": blob, "entry": image.entry, "annotations": rows})

    notes = [*class_notes([row["name"] for row in categories]), *same, *listing.notes(), *found_by_name]
    notes += _unlisted(listing.paths, folder, where)
    turned: set[str] = set()
    return Rows(
        fields=layout.fields,
        attrs=attrs,
        items=from_start(items),
        finish=partial(_finish, layout=layout, where=where, turned=turned),
        notes=notes,
        late_notes=partial(taken_as_stored, turned),
    )


def _finish(values: Record, *, layout: CocoLayout, where: str, turned: set[str]) -> Record:
    """Return the record of an image; raises `BadItem`. The key of one that EXIF turns goes to `turned`."""
    entry: Any = values["entry"]
    header, listed = read_picture_header(values["image"]), listed_size(entry)
    if header is not None and listed not in (None, (header.height, header.width)):
        is_turned = listed == (header.width, header.height)
        why = "; if its EXIF orientation turns it, store it upright: its annotations are those of the turned picture"
        raise BadItem(
            f"the picture has another size than in {where}: {header.width} × {header.height} pixels (width × height), not "
            f"{entry['width']} × {entry['height']}, so its annotations do not fit{why if is_turned else ''}"
        )
    record = to_record(entry, _decoded(values["annotations"])[0], layout)
    orientation = orientation_of(values["image"]) or 1
    if header is not None and orientation > 1 and len(record.get("boxes", ())):
        right, bottom = (record["boxes"][:, :2] + record["boxes"][:, 2:]).max(0) - _ROUNDING
        is_beyond = right > header.width or bottom > header.height
        if orientation > 4 and is_beyond and right <= header.height and bottom <= header.width:
            raise BadItem(
                f"its boxes fit the picture as its EXIF orientation displays it, {header.height} × {header.width} pixels (width "
                f"× height), not as it is stored, {header.width} × {header.height}: store it upright"
            )
        turned.add(record["key"])
    return {"image": values["image"], **record}


def _parse(file: str, where: str) -> dict[str, Any]:
    """Return the keys of a file of COCO; images and annotations as lists of JSON texts, which take little memory."""
    try:
        data = read_file(file).removeprefix(b"\xef\xbb\xbf")
    except BadItem as error:
        raise StoreNotFoundError(f"{show(file)} {error}") from None
    try:
        data.decode()
        document = _split(data)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{where} is not JSON in UTF-8 that can be stored: {error}") from None
    if not isinstance(document, dict) or "images" not in document:
        found = some(map(repr, document), 8) if isinstance(document, dict) else f"a {type(document).__name__}"
        raise ConfigError(
            f"{where} is no object with lists of images and annotations, as COCO's files are, but {found}"
        )
    for key in _LISTS:
        if not isinstance(document.get(key, []), list):
            raise ConfigError(f"{where}: {key} is a {type(document[key]).__name__}, not a list")
    return document


def _split(data: bytes) -> Any:
    """Return the JSON in `data`, with the items of `_LISTS` as JSON texts."""
    try:
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kinds: dict[str, Any] = dict.fromkeys(_LISTS, list[msgspec.Raw])
        return {key: msgspec.json.decode(value, type=kinds.get(key, Any)) for key, value in top.items()}
    except msgspec.MsgspecError:
        document = json.loads(data)  # accepts NaN and names the line of an error
    for key in _LISTS if isinstance(document, dict) else ():
        if isinstance(document.get(key), list):
            document[key] = [json.dumps(each).encode() for each in document[key]]
    return document


def _decoded(raw: Any) -> tuple[Any, str | None]:
    """Return the value of a JSON text, and why it cannot be stored."""
    try:
        return msgspec.json.decode(raw), None
    except msgspec.MsgspecError:
        found = json.loads(bytes(raw))
    try:
        canonical_json(found)
    except ValueError as error:  # NaN, or half a character
        return found, f"it cannot be stored: {error}"
    return found, None  # it has an integer of more than 64 bits


def _find_pictures(file: str, root: str | os.PathLike[str] | None, entries: Sequence[Any]) -> str:
    """Return the folder of the pictures."""
    if root is not None:
        if not os.path.isdir(root):
            raise StoreNotFoundError(f"root={os.fspath(root)!r} is not a folder")
        return os.fspath(root)
    own = os.path.dirname(os.path.abspath(file))
    above, part = os.path.dirname(own), os.path.splitext(os.path.basename(file))[0].rpartition("_")[2]
    inside = (os.path.join(base, name) for base in (own, above) for name in ("images", part, f"images/{part}"))
    folders = [own, *inside, above]
    names = list(islice(filter(None, map(_file_name, entries)), _TRIED))
    for folder in folders:
        if any(os.path.isfile(os.path.join(folder, name)) for name in names):
            return folder
    if not names:
        return own
    raise StoreNotFoundError(
        f"no picture of {show(os.path.basename(file))}, such as {show(names[0])}, is in any of "
        f"{', '.join(map(show, folders))}; pass the folder of the pictures as root= (--option root=…)"
    )


def _file_name(entry: Any) -> str | None:
    name = entry.get("file_name") if isinstance(entry, dict) else None
    return name if isinstance(name, str) else None


def _found_by_name(entries: Sequence[Any], root: str, where: str) -> tuple[list[Any], list[str]]:
    """Return the entries of images with the paths of their files, and notes: files that are elsewhere are found by their names."""
    names = [name for name in map(_file_name, entries) if name is not None]
    missing = {name: _BASE.sub("", name) for name in names if not os.path.lexists(os.path.join(root, name))}
    if not missing:
        return [], []
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for folder, _, files in os.walk(root):
        for each in files:
            by_name[each].append(os.path.relpath(os.path.join(folder, each), root))
    wanted, listed = Counter(missing.values()), set(names)
    places = {name: by_name[base] for name, base in missing.items() if base in by_name}
    found = {
        name: paths[0]
        for name, paths in places.items()
        if len(paths) == wanted[missing[name]] == 1 and paths[0] not in listed
    }
    notes = []
    if found:
        first = next(iter(found.items()))
        notes.append(
            f"{counted(len(found), 'file_name is', 'file_names are')} of another place, and found by name below {show(root)}: "
            f"{show(first[0])} is {show(first[1])}"
        )
    if len(found) < len(missing):
        lost = sorted(map(show, missing.keys() - found.keys()))
        notes.append(
            f"{counted(len(lost), 'file_name')} of {where} {'is' if len(lost) == 1 else 'are'} not below {show(root)}, and no single "
            f"file there has the same name: {some(lost)}; edit file_name"
        )
    return [
        {**each, "file_name": found.get(name, name)} if (name := _file_name(each)) else each for each in entries
    ], notes


def _unlisted(paths: Mapping[str, Any], root: str, where: str) -> Iterator[str]:
    """Yield a sentence about pictures beside those of the file that it does not list."""
    unlisted = []
    for folder in sorted({posixpath.dirname(path) for path in paths}):
        at = os.path.join(root, folder)
        for name in sorted(os.listdir(at)) if os.path.isdir(at) else ():
            path = posixpath.join(folder, name)
            if name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name) and path not in paths:
                unlisted.append(show(path))
    if unlisted:
        number = counted(len(unlisted), "image file is", "image files are")
        yield f"{number} in {show(root)}, but not in {where}, and left out: {some(unlisted)}"


def _read_categories(rows: Any, where: str) -> tuple[dict[Any, int], dict[Any, int]]:
    """Return the class index of each category by its id, and the number of its keypoints where it names them."""
    index = dict[Any, str]()
    for row in rows if isinstance(rows, list) else [rows]:
        own, name = (row.get("id"), row.get("name")) if isinstance(row, dict) else (None, None)
        if type(own) not in (int, str) or not isinstance(name, str) or not name:
            raise ConfigError(
                f"{where}: a category has an id, a whole number or text, and a name, not {repr(row)[:80]}"
            )
        if own in index:
            raise ConfigError(f"{where}: categories {index[own]!r} and {name!r} have one id, {own!r}")
        index[own] = name
    return class_index(rows), {row["id"]: len(row["keypoints"]) for row in _posed(rows)}


def _same_names(categories: Sequence[Mapping[str, Any]], used: set[Any], where: str) -> Iterator[str]:
    """Yield a sentence for each name of several categories, of which at most one has objects; else raise ConfigError."""
    by_name: dict[str, list[Any]] = {}
    for row in categories:
        by_name.setdefault(row["name"], []).append(row["id"])
    for name, ids in by_name.items():
        shown = " and ".join(map(repr, ids))
        if len(used.intersection(ids)) > 1:
            raise ConfigError(
                f"{where}: categories {shown} have one name, {name!r}, and each has objects; rename one, or give all these "
                "objects one category_id"
            )
        if len(ids) > 1:
            yield f"categories {shown} have one name, {name!r}, and are one class; at most one of them has objects"


def _posed(categories: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in categories if isinstance(row.get("keypoints"), list) and row["keypoints"]]


@dataclass(slots=True)
class _Image:
    """An image of a file, and its good annotations as JSON texts."""

    name: str
    entry: dict[str, Any]
    rows: list[bytes] = field(default_factory=list)


class _Listing:
    """The images of a file with their annotations, and what is wrong with them.

    Parameters
    ----------
    where : str
        The file in messages.
    root : Root
        The folder of the pictures.
    index, points : dict
        As `_read_categories` returns them.

    Attributes
    ----------
    items : list of _Image or Bad
    paths : dict
        The normalised path of each picture → the id of its image.
    used : set
        The ids of categories that good annotations have.
    """

    def __init__(self, where: str, root: Root, index: dict[Any, int], points: dict[Any, int]) -> None:
        self.items: list[_Image | Bad] = []
        self.paths: dict[str, Any] = {}
        self._where, self._root, self._index, self._points = where, root, index, points
        self._images: dict[Any, _Image | None] = {}  # by id; None for a bad image
        self._id_kind: type | None = None
        self._keys: set[str] = {"bbox", "category_id"} if index else set()
        self._ids: set[Any] = set()
        self._most_points = max(points.values(), default=0)
        self.used: set[Any] = set()
        self._objects = self._unmasked = self._flat = 0

    def layout(self) -> CocoLayout:
        """Return the fields that the good annotations need."""
        ids = "str" if self._id_kind is str else "int"
        return CocoLayout(frozenset(self._keys), self._index, self._most_points, ids)

    def add_image(self, number: int, entry: Any, name: str | None, fault: str | None) -> None:
        """Add ``images[number]``, whose file is called `name`, or report what is wrong with it."""
        own = entry.get("id") if isinstance(entry, dict) else None
        shown = f"images[{number}]" if name is None or own is None else f"image {show(str(own)[:40])} ({show(name)})"
        fault = fault or self._image_fault(entry, own, name)
        if name is not None and fault is None:
            image = _Image(f"{self._where} {shown}", entry)
            self.items.append(image)
            self._images[own], self._id_kind = image, type(own)
            self.paths[posixpath.normpath(name)] = own
            return
        self.items.append(Bad(f"{self._where} {shown}", str(fault)))
        if isinstance(own, (int, str)):
            self._images.setdefault(own, None)

    def _image_fault(self, entry: Any, own: Any, name: str | None) -> str | None:
        if not isinstance(entry, dict):
            return f"an image is an object with id and file_name, not {type(entry).__name__}"
        is_id = isinstance(own, str) or (type(own) is int and -(2**63) <= own < 2**63)
        if not is_id or self._id_kind not in (None, type(own)):
            what = "text" if self._id_kind is str else "a whole number" if self._id_kind else "a whole number or text"
            return f"its id is {repr(own)[:40]}, not {what}"
        if name is None:
            return "it has no file_name"
        first, again = self._images.get(own), self.paths.get(posixpath.normpath(name))
        if first is not None:
            return f"another image has the same id: {show(first.entry['file_name'])}"
        return self._root.path_fault(name) if again is None else f"another image has the same file: image {again}"

    def add_annotation(self, number: int, raw: bytes) -> None:
        """Add ``annotations[number]``, or report what is wrong with it."""
        annotation, fault = _decoded(raw)
        own, of = (annotation.get("id"), annotation.get("image_id")) if isinstance(annotation, dict) else (None, None)
        is_known = type(of) in (int, str) and of in self._images
        image = self._images[of] if is_known else None
        if is_known and image is None:
            return  # the image was reported
        fault = fault or self._annotation_fault(annotation, image)
        if image is None or fault is not None:
            shown = f"annotations[{number}]" if own is None else f"annotation {show(str(own)[:40])}"
            file = "" if image is None else f" ({show(image.entry['file_name'])})"
            self.items.append(Bad(f"{self._where} {shown}{file}", str(fault)))
            return
        if own is not None:
            self._ids.add(own)
        if is_caption(annotation):
            self._keys.add("caption")
        else:
            self._add_keys(annotation)
        image.rows.append(raw)

    def _add_keys(self, annotation: Mapping[str, Any]) -> None:
        """Note which keys an annotation has. An empty value is a missing one, and keypoints that are all 0 are unknown."""
        box: Any = annotation.get("bbox")
        points, mask = annotation.get("keypoints"), mask_of(annotation.get("segmentation"))
        given = {**annotation, "segmentation": mask, "keypoints": points if points and any(points) else None}
        self._keys.update(key for key in _KEYS if not is_missing(given.get(key)))
        self._most_points = max(self._most_points, len(points or ()) // 3)
        self._objects += 1
        self._unmasked += not mask
        self._flat += not is_missing(box) and 0 in box[2:] and (any(box) or hull_of(mask) is None)
        self.used.add(annotation["category_id"])

    def notes(self) -> Iterator[str]:
        """Yield sentences about values that the annotations lack."""
        if "segmentation" in self._keys and self._unmasked:
            yield (
                f"{self._unmasked:,} of {counted(self._objects, 'object')} have no segmentation, and so an empty mask in the "
                "field masks"
            )
        if self._flat:
            yield f"{counted(self._flat, 'box has', 'boxes have')} no width or no height"

    def _annotation_fault(self, annotation: Any, image: _Image | None) -> str | None:
        if not isinstance(annotation, dict):
            return f"an annotation is an object, not {type(annotation).__name__}"
        own, of = annotation.get("id"), annotation.get("image_id")
        if isinstance(own, (list, dict, float, bool)) or isinstance(of, (list, dict, float, bool)):
            return "its id and image_id are whole numbers or text"
        if image is None:
            return "it has no image_id" if of is None else f"its image is not in the list of images: image_id {of!r}"
        if own in self._ids:
            return "another annotation has the same id"
        if "segments_info" in annotation:
            return "it belongs to panoptic segmentation, whose masks are pictures; pack these with kind='masks' (--kind masks)"
        if is_caption(annotation):
            return None if isinstance(annotation["caption"], str) else "its caption is not text"
        category = annotation.get("category_id")
        if type(category) not in (int, str) or category not in self._index:
            return f"its category has no name in the list of categories: category_id {repr(category)[:40]}"
        try:
            _check_numbers(annotation)
            _check_shapes(annotation, listed_size(image.entry), self._points.get(category))
        except (ValueError, OverflowError) as error:
            return str(error).replace(", row 0:", ":", 1)
        return None


def _check_numbers(annotation: Mapping[str, Any]) -> None:
    """Raise ValueError for an area or a mark of crowds that is there, and cannot be read."""
    area, crowd = annotation.get("area"), annotation.get("iscrowd")
    if not is_missing(area) and type(area) is not int and not is_number(area):
        raise ValueError(f"its area is not a number: {repr(area)[:60]}")
    if not is_missing(crowd) and crowd not in (0, 1, "0", "1"):
        raise ValueError(f"its iscrowd is not 0 or 1: {repr(crowd)[:60]}")


def _check_shapes(annotation: Mapping[str, Any], size: tuple[int, int] | None, named: int | None) -> None:
    """Raise ValueError for a mask, a box or keypoints that cannot be stored; `named` is the number of points if it is known."""
    mask, box, points = mask_of(annotation.get("segmentation")), annotation.get("bbox"), annotation.get("keypoints")
    check_coco_masks("segmentation", [mask], size)
    if is_missing(box) and hull_of(mask) is None:
        raise ValueError("it has no bbox, and no segmentation to take it from")
    if not is_missing(box):
        if not isinstance(box, list) or bool in map(type, box):
            raise ValueError(f"its bbox is 4 numbers, not {repr(box)[:60]}")
        if not _is_inside(box, size or (LARGEST, LARGEST)):
            check_boxes("bbox", [box], _BOX, size)
    if not is_missing(points):
        if not isinstance(points, list) or not points or len(points) != 3 * (named or len(points) // 3):
            count = f" of {named} points" if named else ""
            raise ValueError(f"its keypoints are not a list of x, y and visibility{count}: {repr(points)[:60]}")
        check_keypoints("keypoints", [points[at : at + 3] for at in range(0, len(points), 3)])


def _is_inside(box: Any, size: tuple[float, float]) -> bool:
    """Whether a box is good beyond doubt, as nearly all are: `check_boxes` takes 20 times as long."""
    try:
        left, top, width, height = box
        inside: bool = min(left, top, width, height) >= 0 and left + width <= size[1] and top + height <= size[0]
    except (TypeError, ValueError, OverflowError):
        return False
    return inside
