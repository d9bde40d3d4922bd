"""A source for data sets in the folders of Pascal VOC: JPEGImages, Annotations, ImageSets and SegmentationClass."""

from __future__ import annotations

import json
import os
import posixpath
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError, suggest
from storeds.jpeg.formats import read_picture_header
from storeds.ops.packing.sources.base import (
    BadItem,
    Fingerprint,
    KeyedSource,
    Problem,
    Root,
    StringArray,
    file_state,
    is_hidden,
    read_file,
    show,
)
from storeds.ops.packing.sources.columns import check_classes
from storeds.ops.packing.sources.mask_checks import MaskCheck
from storeds.ops.packing.sources.old_folders import FoundFile, Walk
from storeds.ops.packing.sources.text import open_text
from storeds.ops.packing.sources.turned import exif_orientation, inverse, turned_points
from storeds.ops.packing.sources.voc_xml import Annotation, parse_annotation
from storeds.protocols import JSON, Array, Field, Record
from storeds.records.roles import check_boxes

__all__ = ["VocSource", "find_voc_folders"]

_IMAGES, _ANNOTATIONS, _SETS, _MASKS = "JPEGImages", "Annotations", "ImageSets", "SegmentationClass"
_OF_CLASS = re.compile(r".+_(train|val|trainval|test)")
_NOT_THERE = "-1"  # in lists about one class; 1 means present, 0 difficult
_ROUNDING = 0.5  # pixels
_VOC = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable", "dog"),
    *("horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
_BOXES = Field("array", "<f8", (None, 4), role="boxes", format="xyxy")


class VocSource(KeyedSource):
    """A data set of Pascal VOC: pictures with boxes from XML files, and masks if every picture has one.

    Parameters
    ----------
    path : path
        The folder with ``JPEGImages`` and ``Annotations``, such as ``VOCdevkit/VOC2012``, or the folder that contains it.
    image_set : str or sequence of str, optional
        The lists of images to pack, which become the field ``split``: ``"train,val"``, ``"Segmentation/train"``. Names
        without a folder are in ``ImageSets/Main``. Of a list about one class, such as ``"cat_train"``, lines with -1 are
        left out. ``"all"`` packs every image of ``JPEGImages``. The default is all
        lists in ``ImageSets/Main`` that are not about one class, without ``trainval`` beside its parts; or every image
        if there are none.
    classes : sequence of str or path, optional
        The class names in the order of their labels. The default is the names in all annotations, sorted.
    zero_based : bool
        Coordinates count from 0, and xmax and ymax are edges. They are then stored as they are.
    allow_outside : bool
        Follow links that lead out of the folder.
    include_hidden : bool
        Include hidden files and folders.

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

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        image_set: str | Sequence[str] | None = None,
        classes: Sequence[str] | os.PathLike[str] | None = None,
        zero_based: bool = False,
        allow_outside: bool = False,
        include_hidden: bool = False,
    ) -> None:
        given = check_classes(classes, "auto")
        self._root, self._zero_based = _find(os.fspath(path)), zero_based
        root = Root(self._root, allow_outside=allow_outside)
        walk = Walk(root, include_hidden=include_hidden)
        listing = _Listing(root, walk, image_set)
        self._keys, self._sizes, self._splits = listing.keys, listing.sizes, listing.splits
        self._parts = [name.rpartition("/")[2] for name in listing.sets]
        self._notes = tuple(listing.notes())
        self._unproven: set[str] = set()  # pictures that were read, and may have been annotated as displayed
        self.problems: Sequence[Problem] = (*walk.problems, *listing.problems)
        self._has_masks = bool(len(self)) and listing.masks == len(self)
        self._mask_check = MaskCheck()
        if given is None:
            given = self._names()
        self._numbers = {name: number for number, name in enumerate(given)}
        self.fields: Mapping[str, Field] = self._fields()
        self.attrs: Mapping[str, JSON] = self._attrs(given)
        listing.fingerprint.add(json.dumps([given, zero_based, self._parts, self._has_masks]))
        self.fingerprint: JSON = listing.fingerprint.finish("voc", len(self))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is left out, and how many of the pictures that were read have boxes that may refer to another orientation."""
        if not self._unproven:
            return self._notes
        count = counted(len(self._unproven), "picture has", "pictures have")
        return (
            *self._notes,
            f"{count} an EXIF orientation ({some(sorted(self._unproven))}), and no size that tells whether the boxes refer to the "
            "picture as displayed: they are taken to refer to the pixels as stored, as masks do",
        )

    def _fields(self) -> dict[str, Field]:
        flags = Field("array", "|b1", (None,), of="boxes")
        return {
            "image": Field("image", role="image"),
            "boxes": _BOXES,
            "labels": Field("array", "<i8", (None,), role="labels"),
            "difficult": flags,
            "truncated": flags,
            "objects": Field("json", of="boxes"),
            **({"mask": Field("image", role="mask")} if self._has_masks else {}),
            "annotation": Field("json"),
            **({"split": Field("str")} if len(self._parts) > 1 else {}),
            "key": Field("str"),
        }

    def _attrs(self, classes: Sequence[str]) -> dict[str, JSON]:
        attrs: dict[str, JSON] = {"classes": list(classes)}
        if self._has_masks and set(classes) <= set(_VOC):
            attrs |= {"mask_classes": ["background", *_VOC], "ignore_index": 255}
        return {**attrs, "source": {"kind": "voc", "file": os.path.basename(self._root)}}

    def _names(self) -> list[str]:
        """Return the names of classes in all annotations, sorted."""
        names: set[str] = set()
        for index in range(len(self)):
            try:
                names.update(self._annotation(index).names)
            except BadItem:  # `read` reports it
                continue
        return sorted(names)

    def _read(self, path: str) -> bytes:
        return read_file(os.path.join(self._root, path.replace("/", os.sep)))

    def _annotation(self, index: int) -> Annotation:
        path = _beside(self._keys[index], _ANNOTATIONS, ".xml")
        try:
            blob = self._read(path)
        except BadItem as fault:
            raise BadItem(f"its annotation {fault} ({path})") from None
        return parse_annotation(blob, path)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        found, blob = self._annotation(index), self._read(key)
        record: Record = {
            "image": blob,
            "boxes": self._boxes(found, blob, key),
            "labels": self._labels(found, key),
            "difficult": np.array(found.difficult, bool),
            "truncated": np.array(found.truncated, bool),
            "objects": found.objects,
        }
        if self._has_masks:
            path = _beside(key, _MASKS, ".png")
            record["mask"] = self._read(path)
            fault = self._mask_check.fault(record["mask"], path)
            if fault is not None:
                raise BadItem(f"its mask {show(path)} {fault}")
        record["annotation"] = found.rest
        if len(self._parts) > 1:
            record["split"] = self._parts[self._splits[index]]
        record["key"] = key
        return record

    def _labels(self, found: Annotation, key: str) -> Array:
        unnamed = sorted(set(found.names).difference(self._numbers))
        if unnamed:
            path = _beside(key, _ANNOTATIONS, ".xml")
            raise BadItem(f"its annotation has classes that classes does not name: {some(unnamed)} ({path})")
        return np.array([self._numbers[name] for name in found.names], np.int64)

    def _boxes(self, found: Annotation, blob: bytes, key: str) -> Array:
        """Return the boxes as left, top, right and bottom edge of the pixels as stored; raises `BadItem`."""
        rows = np.array(found.boxes, np.float64).reshape(-1, 4)
        header = read_picture_header(blob)
        if header is None:  # `pack` reports pictures that cannot be read
            return rows
        stored = header.height, header.width
        orientation = exif_orientation(blob)
        # As stored, like the mask, unless the size in the file is only that of the picture as displayed.
        is_turned = orientation > 4 and found.size == stored[::-1] != stored
        shown = stored[::-1] if is_turned else stored
        if found.size not in (None, shown):
            sizes = f"{found.size[1]} x {found.size[0]}", f"{shown[1]} x {shown[0]}"
            raise BadItem(f"its annotation says that it has {sizes[0]} pixels, and it has {sizes[1]}")
        if orientation > 1 and (orientation < 5 or found.size is None or stored == stored[::-1]) and len(rows):
            self._unproven.add(key)
        self._check_range(found, shown)
        if not self._zero_based:
            rows[:, :2] -= 1
        if is_turned:
            corners = turned_points(rows.reshape(-1, 2, 2), inverse(orientation), shown)
            rows = np.concatenate([corners.min(1), corners.max(1)], axis=1)
        try:
            return check_boxes("boxes", rows, _BOXES, stored)
        except ValueError as error:
            raise BadItem(str(error)) from None

    def _check_range(self, found: Annotation, shown: tuple[int, int]) -> None:
        first = 0 if self._zero_based else 1
        for number, (name, row) in enumerate(zip(found.names, found.boxes, strict=True), 1):
            where = f"object {number} ({name}) of its annotation"
            for at, side in enumerate(("xmin", "ymin")):
                if row[at] < first - _ROUNDING:
                    hint = (
                        ""
                        if self._zero_based or row[at] < -_ROUNDING
                        else ("; if these files count from 0, pass zero_based=True (--zero-based)")
                    )
                    raise BadItem(f"{where} has {side} {row[at]:g}, and the first pixel is {first}{hint}")
            for at, side, most, what in ((2, "xmax", shown[1], "width"), (3, "ymax", shown[0], "height")):
                if row[at] > most + _ROUNDING:
                    raise BadItem(f"{where} has {side} {row[at]:g}, beyond the {what} of {most} pixels")


class _Listing:
    """Lists the images to pack, with their set, and what is missing."""

    def __init__(self, folder: Root, walk: Walk, image_set: str | Sequence[str] | None) -> None:
        root = folder.path
        self._root, self._folder, self._walk = root, folder, walk
        self.keys, self.sizes, self.splits = StringArray(), array("q"), array("q")
        self.problems: list[Problem] = []
        self.fingerprint = Fingerprint()
        self.masks = self._left_out = 0
        self._negative = 0  # images that are left out because the lists say that their class is not there
        by_name = self._images()
        self._files = self._known()
        self.sets = self._chosen(image_set)
        if self.sets:
            self._add_sets(by_name)
        else:
            for found in by_name.values():
                self._add(found, 0)
            self._report_annotations(by_name)
        if not len(self.keys) and not self.problems and not walk.problems:
            absent = ", or say of each image that it is not of the class (-1)" if self._negative else ""
            named = f"; the lists {some(self.sets)} are empty{absent}; choose others with image_set= (--image-set)"
            raise ConfigError(
                f"{show(root)}: no image is listed{named}"
                if by_name and self.sets
                else f"{show(root)} contains no images in {_IMAGES}"
            )

    def notes(self) -> Iterator[str]:
        """Yield sentences about what is left out."""
        if self._left_out:
            yield (
                f"{counted(self._left_out, 'image is', 'images are')} in none of the lists {some(self.sets)}, and left out; "
                "image_set='all' (--image-set all) packs every image"
            )
        if self._negative:
            yield (
                f"{counted(self._negative, 'image has', 'images have')} -1 in {some(self.sets)}, for a class that is not there, "
                f"and {'is' if self._negative == 1 else 'are'} left out"
            )
        if 0 < self.masks < len(self.keys):
            yield (
                f"{self.masks:,} of {counted(len(self.keys), 'image')} {'has' if self.masks == 1 else 'have'} a mask in {_MASKS}, "
                "and no mask is packed; image_set='Segmentation/train,Segmentation/val' (--image-set) chooses images that "
                "have one"
            )
        if not self.masks and len(self.keys) and self._contains_masks():
            yield (
                f"no mask is packed: no file in {_MASKS} belongs to an image; expected, for example, "
                f"{_beside(self.keys[0], _MASKS, '.png')}"
            )
        yield from self._walk.hidden.notes()

    def _contains_masks(self) -> bool:
        try:
            return any(not is_hidden(name) for name in os.listdir(os.path.join(self._root, _MASKS)))
        except OSError:
            return False

    def _images(self) -> dict[str, FoundFile]:
        """Return the images by their path below JPEGImages without suffix, and report those with the same one."""
        by_name: dict[str, FoundFile] = {}
        twice: dict[str, list[str]] = {}
        for found in self._walk.files(_IMAGES):
            name = _name_of(found[0])
            if name in by_name:
                twice.setdefault(name, [by_name[name][0]]).append(found[0])
            else:
                by_name[name] = found
        for name, keys in twice.items():
            for key in keys:
                others = some(other for other in keys if other != key)
                self.problems.append(Problem(key, f"another image has the same annotation: {others}; rename one"))
            del by_name[name]
        self._twice = set(twice)
        return by_name

    def _chosen(self, given: str | Sequence[str] | None) -> list[str]:
        """Return the sets to pack, such as ``Main/train``; none for every image."""
        known = list(self._files)
        if given is None:
            sets = [name for name in known if name.startswith("Main/") and not _OF_CLASS.fullmatch(name)]
            whole = {"main/train", "main/val"} <= {name.lower() for name in sets}
            return [name for name in sets if not (whole and name.lower() == "main/trainval")]
        names = [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)
        if names == ["all"]:
            return []
        sets = [name if "/" in name else f"Main/{name}" for name in names]
        for name in sets:
            if name not in known:
                raise ConfigError(
                    f"no list {_SETS}/{name}.txt is in {show(self._root)}; {suggest(name, known, 'lists')}"
                )
        return sets

    def _known(self) -> dict[str, str]:
        """Return the sets that exist, with their files: train, val and test first, then the others by name."""
        top = os.path.join(self._root, _SETS)
        found = {
            f"{folder}/{file[:-4]}": f"{_SETS}/{folder}/{file}"
            for folder in (sorted(os.listdir(top)) if os.path.isdir(top) else ())
            if os.path.isdir(os.path.join(top, folder))
            for file in sorted(os.listdir(os.path.join(top, folder)))  # of a.TXT and a.txt, the latter comes last
            if file.lower().endswith(".txt") and not file.startswith(".")
        }
        order = {name: number for number, name in enumerate(("train", "val", "test"))}
        names = sorted(found, key=lambda name: order.get(name.partition("/")[2].lower(), len(order)))
        return {name: found[name] for name in names}

    def _add_sets(self, by_name: Mapping[str, FoundFile]) -> None:
        set_of: dict[str, str] = {}
        added: set[str] = set()
        negative: set[str] = set()
        shared: dict[tuple[str, str], list[str]] = {}
        for number, chosen in enumerate(self.sets):
            file = self._files[chosen]
            for line, name, is_negative in self._listed(file, by_name):
                if is_negative:
                    negative.add(name)
                    continue
                earlier = set_of.setdefault(name, chosen)
                if earlier != chosen:
                    shared.setdefault((earlier, chosen), []).append(name)
                elif name not in by_name:
                    self.problems.append(Problem(f"{file} line {line}", f"there is no image {_IMAGES}/{name}.*"))
                elif name not in added:
                    added.add(name)
                    self._add(by_name[name], number)
        for (first, second), names in shared.items():
            raise ConfigError(
                f"{show(self._root)}: the lists {first} and {second} share {counted(len(names), 'image')} ({some(names)}); "
                "choose lists with image_set= (--image-set train,val)"
            )
        left_out = by_name.keys() - set_of.keys()
        self._negative = len(left_out & negative)
        self._left_out = len(left_out) - self._negative

    def _listed(self, file: str, by_name: Mapping[str, FoundFile]) -> Iterator[tuple[int, str, bool]]:
        """Yield each image that a list names: the number of its line, its name, and whether it is without the class."""
        with open_text(os.path.join(self._root, file), None) as opened:
            for line, text in enumerate(opened, 1):
                words = [text.strip()] if text.strip() in by_name else text.split() or [""]
                if words[0] and words[0] not in self._twice:
                    yield line, words[0], len(words) > 1 and words[-1] == _NOT_THERE

    def _add(self, found: FoundFile, number: int) -> None:
        key, size, mtime = found
        annotation = _beside(key, _ANNOTATIONS, ".xml")
        own = self._state(annotation)
        if own is None:
            upper = _beside(key, _ANNOTATIONS, ".XML")
            hint = f"; rename {upper}" if self._state(upper) is not None else ""
            self.problems.append(Problem(key, f"has no annotation ({annotation}){hint}"))
            return
        mask_path = _beside(key, _MASKS, ".png")
        mask = self._state(mask_path)
        for path in (annotation,) if mask is None else (annotation, mask_path):
            fault = self._folder.path_fault(path)
            if fault is not None:
                self.problems.append(Problem(key, f"its file {path}: {fault}"))
                return
        self.masks += mask is not None
        mask = mask or (0, 0)
        self.keys.append(key)
        self.sizes.append(size + own[0] + mask[0])
        self.splits.append(number)
        self.fingerprint.add(key, size, mtime, *own, *mask, number)

    def _state(self, path: str) -> tuple[int, int] | None:
        """Return (size, mtime in ns) of a file, zeros for a broken link, which reading reports, and None without one."""
        whole = os.path.join(self._root, path)
        state = file_state(whole)
        return state if state[1] or os.path.lexists(whole) else None

    def _report_annotations(self, by_name: Mapping[str, FoundFile]) -> None:
        """Report annotations without an image."""
        texts = Walk(Root(self._root, allow_outside=True), (".xml",))
        for path, _, _ in texts.files(_ANNOTATIONS):
            name = _name_of(path)
            if name not in by_name and name not in self._twice:
                self.problems.append(Problem(path, f"the annotation has no image ({_IMAGES}/{name}.*)"))


def _name_of(path: str) -> str:
    """Return a path below its first folder, without suffix."""
    return posixpath.splitext(path.partition("/")[2])[0]


def _beside(key: str, folder: str, suffix: str) -> str:
    """Return the annotation or mask of an image."""
    return f"{folder}/{_name_of(key)}{suffix}"


def find_voc_folders(path: str) -> list[str]:
    """Return the folders of VOC at `path`: itself, or those inside, also below a folder ``VOCdevkit``."""
    if _is_voc(path):
        return [path]
    found = []
    for top in (path, os.path.join(path, "VOCdevkit")):
        try:
            found += [each for name in sorted(os.listdir(top)) if _is_voc(each := os.path.join(top, name))]
        except OSError:
            continue
    return found


def _is_voc(path: str) -> bool:
    return all(os.path.isdir(os.path.join(path, name)) for name in (_IMAGES, _ANNOTATIONS))


def _find(path: str) -> str:
    if not os.path.isdir(path):
        raise StoreNotFoundError(f"no folder at {show(path)}; expected one with {_IMAGES} and {_ANNOTATIONS}")
    found = find_voc_folders(path)
    if not found:
        raise ConfigError(f"{show(path)} is no data set of Pascal VOC: it has no folders {_IMAGES} and {_ANNOTATIONS}")
    if len(found) > 1:
        raise ConfigError(f"{show(path)} contains several data sets: {some(map(show, found))}; pass one of them")
    return os.path.abspath(found[0])
