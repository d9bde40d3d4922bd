"""Reads COCO: which annotations belong to which image, and what is wrong with them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from storeds._utils.text import counted
from storeds.errors import ConfigError
from storeds.formats.coco.checks import check_numbers, check_shapes
from storeds.formats.coco.parsing import decode, parse
from storeds.formats.coco.pictures import file_name_of, find_by_name, find_pictures, unlisted_pictures
from storeds.formats.coco.records import (
    REST,
    CocoLayout,
    class_attrs,
    class_index,
    hull_of,
    is_caption,
    is_missing,
    listed_size,
    mask_of,
    to_record,
)
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.masks import taken_as_stored
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start
from storeds.layouts.files.walk import Root, show
from storeds.pictures import read_picture_header
from storeds.pictures.decoders import orientation_of
from storeds.protocols import Record
from storeds.records.canonical_json import canonical_json

__all__ = ["coco"]

_KEYS = ("bbox", "category_id", "segmentation", "keypoints", "iscrowd", "area", "id")
_ROUNDING = 1  # pixel


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
    document = parse(file, where)
    decoded = [decode(raw) for raw in document.pop("images")]
    entries = [entry for entry, _ in decoded]
    annotations = document.pop("annotations", [])
    if not entries:
        raise ConfigError(f"{where} lists no image")
    folder = find_pictures(file, root, entries)
    moved, found_by_name = ([], []) if root is None else find_by_name(entries, folder, where)
    decoded = [(entry, fault) for entry, (_, fault) in zip(moved or entries, decoded, strict=True)]
    pictures = Root(folder, allow_outside=allow_outside)
    categories = document.get("categories", [])
    listing = _Listing(where, pictures, *_read_categories(categories, where))
    for number, (entry, fault) in enumerate(decoded):
        listing.add_image(number, entry, file_name_of(entry), fault)
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
    notes += unlisted_pictures(listing.paths, folder, where)
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
    record = to_record(entry, decode(values["annotations"])[0], layout)
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
        annotation, fault = decode(raw)
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
            check_numbers(annotation)
            check_shapes(annotation, listed_size(image.entry), self._points.get(category))
        except (ValueError, OverflowError) as error:
            return str(error).replace(", row 0:", ":", 1)
        return None
