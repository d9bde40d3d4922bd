"""The source for data sets of Pascal VOC: in its folders, or with each XML file beside its picture, as labelImg saves them."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import numpy as np

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.formats.format import Format
from storeds.formats.turned import inverse, turned_points
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.masks import MaskFile, by_stem, taken_as_stored
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows, from_start, read_file
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, Walk, files_by_kind, folders_in, is_hidden, names_of, show
from storeds.pictures import read_picture_header
from storeds.pictures.decoders import orientation_of
from storeds.protocols import JSON, Array, Field, Record

__all__ = ["VOC", "voc"]

_IMAGES, _ANNOTATIONS, _SETS, _MASKS = "JPEGImages", "Annotations", "ImageSets", "SegmentationClass"
_BESIDE = {"image": IMAGE_SUFFIXES, "annotation": (".xml",)}
_OF_CLASS = re.compile(r".+_(train|val|trainval|test)")
_ABSENT = "-1"  # in lists about one class; 1 means present, 0 difficult
_DEEPEST = 20
_ROUNDING = 0.5  # pixels
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_OBJECT_FIELDS = ("name", "bndbox", "difficult", "truncated")
_LEFT_OUT = ("object", "size", "filename", "path")
_ENCODING = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)


def voc(
    path: str | os.PathLike[str],
    *,
    image_set: str | Sequence[str] | None = None,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    zero_based: bool = False,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a data set of Pascal VOC: pictures with boxes from XML files, and masks if every picture has one.

    Parameters
    ----------
    path : path
        The folder with ``JPEGImages`` and ``Annotations``, such as ``VOCdevkit/VOC2012``, or the folder that contains it. Or
        a folder where ``NAME.xml`` lies beside ``NAME.jpg``, also in folders below it.
    image_set : str or sequence of str, optional
        The lists of images to pack, which become the field ``split``: ``"train,val"``, ``"Segmentation/train"``. Names
        without a folder are in ``ImageSets/Main``. Of a list about one class, such as ``"cat_train"``, lines with -1 are
        left out. ``"all"`` packs every image of ``JPEGImages``. The default is all lists in ``ImageSets/Main`` that are
        not about one class, without ``trainval`` beside its parts; or every image if there are none.
    classes : sequence of str or path, optional
        The class names in the order of their labels. The default is the names in all annotations, sorted.
    zero_based : bool
        Coordinates count from 0, and xmax and ymax are edges. They are then stored as they are.
    allow_outside
        As for `~storeds.layouts.files.folders.imagefolder`.

    Notes
    -----
    VOC counts pixels from 1, and a box includes its last pixel: pixel k covers the range from k - 1 to k. A box is
    therefore stored as xmin - 1, ymin - 1, xmax, ymax, so that its sides are the edges of pixels.

    Boxes refer to the pixels as stored. If the `size` in a file is only that of the picture as its EXIF orientation
    displays it, its boxes are turned to the pixels as stored.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It has no such folders, a list does not exist, or two lists contain the same image.
    """
    top = _find(os.fspath(path))
    names = unique_classes(classes)
    sets = _sets(top, image_set)
    walk = Walk(Root(top, allow_outside=allow_outside), (*IMAGE_SUFFIXES, ".xml"))
    rows, bad, notes = _pair(top, walk, sets)
    has_split, has_masks = len(sets) > 1, any("mask" in row.values for row in rows)
    names = _names(rows) if names is None else names
    numbers = {name: number for number, name in enumerate(names)}
    attrs: dict[str, JSON] = {"classes": [*names]}
    if has_masks and set(names) <= set(_CLASSES):
        attrs |= {"mask_classes": ["background", *_CLASSES], "ignore_index": 255}
    unproven: set[str] = set()

    def finish(values: Record) -> Record:
        record, is_proven = _record(values, numbers, zero_based=zero_based)
        if not is_proven:
            unproven.add(values["key"])
        return record

    def late_notes() -> Iterator[str]:
        yield from taken_as_stored(unproven)

    flags = Field("array", "|b1", (None,), of="boxes")
    return Rows(
        fields={
            "image": Field("image", role="image"),
            "boxes": Field("array", "<f8", (None, 4), role="boxes", format="xyxy"),
            "labels": Field("array", "<i8", (None,), role="labels"),
            "difficult": flags,
            "truncated": flags,
            "objects": Field("json", of="boxes"),
            **({"mask": Field("image", role="mask")} if has_masks else {}),
            "annotation": Field("json"),
            **({"split": Field("str")} if has_split else {}),
            "key": Field("str"),
        },
        attrs={**attrs, "source": {"kind": "voc", "file": os.path.basename(top)}},
        items=from_start(lambda: [*rows, *bad]),
        finish=finish,
        notes=notes,
        late_notes=late_notes,
    )


def _pair(top: str, walk: Walk, sets: Mapping[str, str]) -> tuple[list[Row], list[Bad], list[str]]:
    """Return the images in `sets`, or all, with their annotations and masks; what is wrong; and notes."""
    bad: list[Bad] = []
    ignored: list[str] = []
    is_beside = not _is_voc(top)
    of_images, of_annotations = ("", "") if is_beside else (f"{_IMAGES}/", f"{_ANNOTATIONS}/")
    images, annotations, masks = _beside(walk, bad, ignored) if is_beside else _in_folders(top, walk, bad, ignored)
    chosen = _listed(top, sets, images, bad) if sets else dict.fromkeys((*images, *annotations), "")
    rows: list[Row] = []
    masked: list[MaskFile] = []
    for stem, split in chosen.items():
        found, texts = images.get(stem, []), annotations.get(stem, [])
        if len(found) == 1 and texts:
            ((key, file),) = found
            texts[0][1].what = "its annotation"
            named = {"split": split} if len(sets) > 1 else {}
            rows.append(Row(key, {"image": file, "annotation": texts[0][1], **named, "key": key}))
            masked += [MaskFile(mask, name) for name, mask in masks.get(stem, ())[:1]]
        elif not found and not sets:
            bad.append(Bad(texts[0][0], f"the annotation has no image ({of_images}{stem}.*)"))
        elif len(found) == 1:
            bad.append(Bad(found[0][0], f"has no annotation ({of_annotations}{stem}.xml)"))
        elif found:
            several = some(name for name, _ in found)
            bad.append(Bad(found[0][0], f"several images have the same annotation: {several}; rename all but one"))
    if not rows and not bad:
        where = f"the lists {some(sets)}, except with {_ABSENT}; choose others with image_set= (--option image_set=…)"
        raise ConfigError(f"{show(top)}: no image is in {where if images else _IMAGES}")
    notes = [*walk.notes(), *(() if is_beside else _others(top, ignored))]
    left_out = len(images.keys() - chosen.keys())
    if left_out:
        notes.append(
            f"{counted(left_out, 'image is', 'images are')} in none of the lists {some(sets)}, or only with {_ABSENT}, and left "
            "out; image_set='all' (--option image_set=all) packs every image"
        )
    if masked and len(masked) == len(rows):
        rows = [Row(row.name, {**row.values, "mask": mask}) for row, mask in zip(rows, masked, strict=True)]
    elif masks:
        notes.append(
            f"{len(masked):,} of {counted(len(rows), 'image')} {'has' if len(masked) == 1 else 'have'} a mask in {_MASKS}, and no "
            "mask is packed; image_set='Segmentation/train,Segmentation/val' (--option image_set=…) chooses images that have one"
        )
    return rows, bad, notes


_ByStem: TypeAlias = dict[str, list[tuple[str, File]]]


def _in_folders(top: str, walk: Walk, bad: list[Bad], ignored: list[str]) -> list[_ByStem]:
    """Return images, annotations and masks by their stems; files of other suffixes go to `ignored`."""
    folders = ((_IMAGES, IMAGE_SUFFIXES), (_ANNOTATIONS, (".xml",)), (_MASKS, (".png",)))
    return [
        by_stem(walk, folder, suffixes, bad, ignored) if os.path.isdir(os.path.join(top, folder)) else {}
        for folder, suffixes in folders
    ]


def _beside(walk: Walk, bad: list[Bad], ignored: list[str]) -> list[_ByStem]:
    """Return the same of a folder where annotations lie beside images, and no masks."""
    images, annotations = _ByStem(), _ByStem()
    for stem, found in by_stem(walk, "", (*IMAGE_SUFFIXES, ".xml"), bad, ignored).items():
        for each in found:
            kind = annotations if each[0].lower().endswith(".xml") else images
            kind.setdefault(stem, []).append(each)
    return [images, annotations, {}]


def _others(top: str, ignored: Sequence[str]) -> Iterator[str]:
    """Yield sentences about files and folders of a data set that nothing reads."""
    others = [name for name in folders_in(top) if name not in (_IMAGES, _ANNOTATIONS, _SETS, _MASKS)]
    if others:
        yield f"left out {counted(len(others), 'folder')} beside those of images, annotations and masks: {some(map(show, others))}"
    if ignored:
        yield f"left out {counted(len(ignored), 'file')} in a folder of other files: {some(map(show, ignored))}"


def _find(path: str) -> str:
    """Return the folder of the data set at `path`: itself, or one inside, also below a folder ``VOCdevkit``."""
    if not os.path.isdir(path):
        raise StoreNotFoundError(f"no folder at {show(path)}; expected one with {_IMAGES} and {_ANNOTATIONS}")
    tops = [top for top in (path, os.path.join(path, "VOCdevkit")) if os.path.isdir(top)]
    inside = [os.path.join(top, name) for top in tops for name in folders_in(top)]
    found = [path] if _is_voc(path) else list(filter(_is_voc, inside))
    if not found and files_by_kind(path, _BESIDE).keys() == _BESIDE.keys():
        found = [path]
    if not found:
        raise ConfigError(
            f"{show(path)} is no data set of Pascal VOC: it has no folders {_IMAGES} and {_ANNOTATIONS}, and no XML files beside "
            "pictures"
        )
    if len(found) > 1:
        raise ConfigError(f"{show(path)} contains several data sets: {some(map(show, found))}; pass one of them")
    return os.path.abspath(found[0])


def _is_voc(path: str) -> bool:
    return all(os.path.isdir(os.path.join(path, name)) for name in (_IMAGES, _ANNOTATIONS))


def _sets(top: str, given: str | Sequence[str] | None) -> dict[str, str]:
    """Return the lists to pack, such as ``Main/train``, and their files; none for every image."""
    folders = folders_in(os.path.join(top, _SETS)) if os.path.isdir(os.path.join(top, _SETS)) else []
    files = {
        f"{folder}/{file[:-4]}": f"{_SETS}/{folder}/{file}"
        for folder in folders
        for file in sorted(os.listdir(os.path.join(top, _SETS, folder)))
        if file.lower().endswith(".txt") and not is_hidden(file)
    }
    order = {name: number for number, name in enumerate(("train", "val", "test"))}
    known = sorted(files, key=lambda name: order.get(name.partition("/")[2].lower(), len(order)))
    sets = [name if "/" in name else f"Main/{name}" for name in names_of(given)]
    if given is None:
        sets = [name for name in known if name.startswith("Main/") and not _OF_CLASS.fullmatch(name)]
        if {"main/train", "main/val"} <= {name.lower() for name in sets}:
            sets = [name for name in sets if name.lower() != "main/trainval"]
    elif sets == ["Main/all"]:
        return {}
    for name in sets:
        if name not in files:
            raise ConfigError(f"no list {_SETS}/{name}.txt is in {show(top)}; {suggest(name, known, 'lists')}")
    return {name: files[name] for name in sets}


def _listed(top: str, sets: Mapping[str, str], images: Container[str], bad: list[Bad]) -> dict[str, str]:
    """Return the images in the lists, each with the name of its split; those that do not exist go to `bad`."""
    listed_in: dict[str, str] = {}
    for chosen, file in sets.items():
        try:
            lines = read_file(os.path.join(top, file)).decode("utf-8-sig", "backslashreplace").splitlines()
        except BadItem as error:
            raise ConfigError(f"{show(top)}: the list {file} {error}") from None
        for number, line in enumerate(lines, 1):
            words = [line.strip()] if line.strip() in images else line.split()
            if not words or (len(words) > 1 and words[-1] == _ABSENT):
                continue
            earlier = listed_in.setdefault(words[0], chosen)
            if earlier != chosen:
                raise ConfigError(
                    f"{show(top)}: the lists {earlier} and {chosen} share images, such as {words[0]}; choose lists with "
                    "image_set= (--option image_set=train,val)"
                )
            if words[0] not in images:
                bad.append(Bad(f"{file} line {number}", f"there is no image {_IMAGES}/{words[0]}.*"))
    return {stem: name.rpartition("/")[2] for stem, name in listed_in.items()}


def _names(rows: Sequence[Row]) -> list[str]:
    """Return the names of classes in all annotations, sorted."""
    names: set[str] = set()
    for row in rows:
        try:
            names.update(_parse(row.values["annotation"].read())[1])
        except BadItem:  # reading the row reports it
            continue
    return sorted(names)


def _record(values: Record, numbers: Mapping[str, int], *, zero_based: bool) -> tuple[Record, bool]:
    """Return the record of an image, and False if its boxes may refer to the picture as displayed."""
    size, names, boxes, annotated = _parse(values["annotation"])
    unnamed = sorted(set(names).difference(numbers))
    if unnamed:
        raise BadItem(f"its annotation has classes that classes does not name: {some(unnamed)}")
    header, is_proven = read_picture_header(values["image"]), True
    if header is not None:  # `pack` reports pictures that cannot be read
        stored, swapped = (header.height, header.width), (header.width, header.height)
        orientation = orientation_of(values["image"]) or 1
        # As stored, like the mask, unless the size in the file is only that of the picture as displayed.
        is_turned = orientation > 4 and stored != swapped == size
        shown = swapped if is_turned else stored
        if size not in (None, shown):
            sizes = f"{size[1]:g} x {size[0]:g} pixels, and it has {shown[1]} x {shown[0]}"
            raise BadItem(f"its annotation says that it has {sizes}")
        # Tools that show a picture turned may still write its size as stored.
        is_proven = orientation == 1 or is_turned or not names
        _check_range(names, boxes, shown, 0 if zero_based else 1)
    if not zero_based:
        boxes[:, :2] -= 1
    if header is not None and is_turned:
        corners = turned_points(boxes.reshape(-1, 2, 2), inverse(orientation), shown)
        boxes = np.concatenate([corners.min(1), corners.max(1)], axis=1)
    labels = np.array([numbers[name] for name in names], np.int64)
    return {**values, **annotated, "boxes": boxes, "labels": labels}, is_proven


def _check_range(names: Sequence[str], boxes: Array, size: tuple[int, int], first: int) -> None:
    for number, (name, (left, top, right, bottom)) in enumerate(zip(names, boxes.tolist(), strict=True), 1):
        where = f"object {number} ({name}) of its annotation"
        low = min(left, top)
        if low < first - _ROUNDING:
            hint = "; if these files count from 0, pass zero_based=True (--option zero_based=true)"
            may_be = first and low >= -_ROUNDING
            raise BadItem(f"{where} begins at {low:g}, and the first pixel is {first}{hint if may_be else ''}")
        if right > size[1] + _ROUNDING or bottom > size[0] + _ROUNDING:
            raise BadItem(f"{where} ends at {right:g}, {bottom:g}, beyond the {size[1]} x {size[0]} pixels")


def _parse(blob: bytes) -> tuple[tuple[float, float] | None, list[str], Array, Record]:
    """Return what an XML file says: height and width, the classes, the boxes as written, and other fields."""
    root = _tree(blob)
    size = None
    if not {_text(root, "size/height"), _text(root, "size/width")} <= {"", "0"}:
        size = _number(root, "size/height", "it"), _number(root, "size/width", "it")
    names, boxes, flags, objects = [], [], dict[str, list[bool]](difficult=[], truncated=[]), []
    for number, element in enumerate(root.findall("object"), 1):
        name = _text(element, "name")
        where = f"object {number}{f' ({name})' if name else ''}"
        if not name:
            raise BadItem(f"its annotation is wrong: {where} has no name")
        left, top, right, bottom = row = [_number(element, f"bndbox/{side}", where) for side in _SIDES]
        if not (left <= right and top <= bottom):  # or NaN
            raise BadItem(f"its annotation is wrong: {where} has a wrong bndbox: {', '.join(f'{at:g}' for at in row)}")
        for flag, values in flags.items():
            text = _text(element, flag)
            if text not in ("", "0", "1"):
                raise BadItem(f"its annotation is wrong: {where} has {flag} {text!r}; expected 0 or 1")
            values.append(text == "1")
        names.append(name)
        boxes.append(row)
        objects.append(_json_of(element, _OBJECT_FIELDS))
    rest = {
        **{flag: np.array(values, bool) for flag, values in flags.items()},
        "objects": objects,
        "annotation": _json_of(root, _LEFT_OUT),
    }
    return size, names, np.array(boxes, np.float64).reshape(-1, 4), rest


def _tree(blob: bytes) -> Element:
    declared = _ENCODING.match(blob)
    try:
        # Expat knows few encodings, and none with several bytes per character except UTF-8 and UTF-16. It reads no other
        # files, and limits how far entities grow.
        root = ElementTree.fromstring(blob.decode(declared[1].decode()) if declared else blob)  # noqa: S314
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadItem(f"its annotation is not XML: {error}") from None
    if root.tag != "annotation":
        raise BadItem(f"its annotation begins with <{root.tag}> instead of <annotation>")
    return root


def _text(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number(element: Element, path: str, where: str) -> float:
    text = _text(element, path)
    try:
        return float(text)
    except ValueError:
        raise BadItem(f"its annotation is wrong: {where} has {path} {text!r}; expected a number") from None


def _json_of(element: Element, left_out: tuple[str, ...] = (), depth: int = 1) -> Any:
    """Return the children of an element as an object. One without children is its text; a tag that repeats, a list.

    Attributes are keys that begin with ``@``, and text beside these or beside children is the key ``#text``.
    """
    if depth > _DEEPEST:
        raise BadItem(f"its annotation is nested more than {_DEEPEST} deep")
    found: dict[str, list[Any]] = {f"@{name}": [value] for name, value in element.attrib.items()}
    texts = [text for each in (element.text, *(child.tail for child in element)) if (text := (each or "").strip())]
    if texts:
        found["#text"] = [" ".join(texts)]
    for child in element:
        if child.tag not in left_out:
            is_object = len(child) or child.attrib
            value = _json_of(child, depth=depth + 1) if is_object else (child.text or "").strip()
            found.setdefault(child.tag, []).append(value)
    return {tag: values[0] if len(values) == 1 else values for tag, values in found.items()}


VOC = Format(about="Pascal VOC: pictures, and an XML file with the boxes of each", read=voc)
