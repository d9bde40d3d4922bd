"""A source for data sets of YOLO: pictures, and text files with one object a line."""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from storeds._utils.settings import in_words
from storeds._utils.text import counted, some
from storeds.config.files import read_mapping
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.formats.turned import inverse, turned_centres, turned_keypoints, turned_points
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.rows import Bad, BadItem, Row, Rows, from_start, read_file
from storeds.layouts.files.walk import IMAGE_SUFFIXES, Root, Walk, path_fault, show
from storeds.pictures.decoders import orientation_of
from storeds.pictures.formats import read_picture_header
from storeds.protocols import JSON, Field, Record

__all__ = ["SPLITS", "TOLERANCE", "labels_of", "yolo"]

SPLITS = ("train", "val", "valid", "test", "minival")
TOLERANCE = 1e-3
"""How far a coordinate may lie outside [0, 1]: half a unit of the last of three decimals, and some more."""

_SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|minival)(\d{4})?")
_OTHER_TEXT = re.compile(r"(classes|notes|labels|train|val|valid|test|readme.*)\.txt", re.I)
_MOST_KEYPOINTS = 100_000  # of an object


def yolo(
    path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    classes: Sequence[str] | str | os.PathLike[str] | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a data set of YOLO: the data.yaml of Ultralytics, or a folder with ``images`` and ``labels``.

    Parameters
    ----------
    path : path
        The data.yaml, or the folder. A folder with a data.yaml is read as that file says.
    root : path, optional
        The folder that paths in a data.yaml are relative to; by default its ``path``, or its own folder.
    classes : sequence of str or path, optional
        The class names in the order of their numbers, or a file of them. The default is what data.yaml or classes.txt
        says.
    allow_outside
        As for `~storeds.layouts.files.folders.imagefolder`.

    Raises
    ------
    StoreNotFoundError
        The file or the folder does not exist.
    ConfigError
        The data.yaml is not one of YOLO; no class names are given; a split has no images, or no image has labels.
    """
    data = _describe(os.fspath(path), None if root is None else os.fspath(root), classes)
    below = Root(data.root, allow_outside=allow_outside)
    listing = _Listing(data, below, Walk(below, known=(".txt",)))
    labels = _LabelFile(listing.task(), len(data.classes), data.yaml.kpt_shape)
    has_splits = len({split for _, split, _ in listing.images}) > 1
    # Key → lines left out of its label file, boxes without an area, and keypoints that are perhaps not labelled.
    repeated, flat, unplaced = dict[str, int](), dict[str, int](), dict[str, int]()

    def items() -> Iterator[Row | Bad]:
        for key, split, has_labels in listing.images:
            text = below.file(labels_of(key), "its label file") if has_labels else b""
            yield Row(key, {"image": below.file(key), "labels": text, "split": split, "key": key})
        yield from listing.bad

    def finish(values: Record) -> Record:
        blob, split, key = values["image"], values["split"], str(values["key"])
        objects, lines = labels.parse(values["labels"], labels_of(key))
        for which, number in zip((repeated, flat, unplaced), lines, strict=True):
            if number:
                which[key] = number
        return {
            "image": blob,
            **_as_stored(objects, blob),
            **({"split": split} if has_splits else {}),
            "key": key,
        }

    def late_notes() -> Iterator[str]:
        if repeated:
            lines = counted(sum(repeated.values()), "repeated line is", "repeated lines are")
            yield f"{lines} left out of label files, such as {labels_of(min(repeated))}"
        if flat:
            boxes = counted(sum(flat.values()), "box has", "boxes have")
            yield f"{boxes} no width or no height, such as in {labels_of(min(flat))}"
        if unplaced:
            points = counted(sum(unplaced.values()), "keypoint is", "keypoints are")
            yield (
                f"{points} 0 0, such as in {labels_of(min(unplaced))}; without a visibility, nothing tells whether they are "
                "labelled"
            )

    fields = {"image": Field("image", role="image"), **labels.fields, **({"split": Field("str")} if has_splits else {})}
    flips: dict[str, JSON] = {"flip_idx": data.yaml.flip_idx}
    attrs: dict[str, JSON] = {
        "classes": list(data.classes),
        **(flips if data.yaml.kpt_shape and isinstance(data.yaml.flip_idx, list) else {}),
        "source": {"kind": "yolo", "file": os.path.basename(data.file)},
    }
    return Rows(
        fields={**fields, "key": Field("str")},
        attrs=attrs,
        items=from_start(items),
        finish=finish,
        notes=[*data.notes, *listing.notes()],
        late_notes=late_notes,
    )


def labels_of(key: str) -> str:
    """Return the label file of an image: in ``labels`` in place of the last ``images``, or beside the image."""
    before, found, after = f"/{key}".rpartition("/images/")
    stem = posixpath.splitext(f"{before}/labels/{after}" if found else f"/{key}")[0]
    return f"{stem}.txt"[1:]


# What a data.yaml, or the folders, say


class _Yaml(msgspec.Struct):
    """The keys of a data.yaml."""

    path: str | None = None
    train: str | list[str] | None = None
    val: str | list[str] | None = None
    validation: str | list[str] | None = None
    valid: str | list[str] | None = None
    test: str | list[str] | None = None
    minival: str | list[str] | None = None
    names: list[str | int] | dict[str | int, str | int] | None = None
    nc: Any = None
    kpt_shape: tuple[Annotated[int, msgspec.Meta(ge=1, le=_MOST_KEYPOINTS)], Literal[2, 3]] | None = None
    flip_idx: Any = None


@dataclass
class _DataSet:
    """What a data.yaml or a folder says.

    Parameters
    ----------
    root : str
        The folder that keys are relative to.
    file : str
        What describes the data set, for messages and attributes.
    parts : dict
        Split → folders of images and lists of them, as written. The split is empty without splits.
    classes : list of str
        Class names.
    yaml : _Yaml
    notes : list of str
        What the user may not expect.
    """

    root: str
    file: str
    parts: dict[str, list[str]]
    classes: list[str]
    yaml: _Yaml
    notes: list[str]


def _describe(path: str, root: str | None, classes: Any) -> _DataSet:
    """Return what describes the data set at `path`, a data.yaml or a folder."""
    if root is not None and not os.path.isdir(root):
        raise StoreNotFoundError(f"root={root!r} is not a folder")
    file, folder = path, os.path.dirname(os.path.abspath(path))
    if os.path.isdir(path):
        files = (os.path.join(path, name) for name in ("data.yaml", "data.yml"))
        file, folder = next(filter(os.path.isfile, files), ""), path
    shown, notes = show(file or path), list[str]()
    try:
        yaml = msgspec.convert(read_mapping(file) if file else {}, _Yaml)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half a surrogate pair
        raise ConfigError(
            f"{shown} is not as Ultralytics reads it: {in_words(str(error))}; quote names such as 'no'"
        ) from None
    if yaml.validation and not yaml.val:
        yaml.val = yaml.validation
        notes.append("validation is read as val, as Ultralytics reads it")
    given = {split: getattr(yaml, split) for split in SPLITS if getattr(yaml, split)}
    parts = {split: [each] if isinstance(each, str) else list(each) for split, each in given.items()}
    base = root or (_base(shown, folder, yaml.path, parts) if yaml.path and parts else folder)
    if not parts:
        if not os.path.isdir(os.path.join(base, "images")):
            raise ConfigError(
                f"{shown} names no images: expected a data.yaml with train, val or test, the folders of the images, and "
                "names; or folders images and labels"
            )
        parts = _parts_in(base)
    for split, entries in parts.items():
        entries[:] = [_moved(base, entry) for entry in entries]
        # Ultralytics reads the test split only when it is asked to, and many files name one that is not there.
        if split == "test" and not any(os.path.exists(os.path.join(base, entry)) for entry in entries):
            notes.append(f"{split} is {some(entries)}, which does not exist, and is left out")
            entries.clear()
    names = _class_names(shown, base, yaml, classes)
    kept = {split: entries for split, entries in parts.items() if entries}
    return _DataSet(os.path.abspath(base), file or path, kept, names, yaml, notes)


def _moved(base: str, entry: str) -> str:
    """Return an entry as Ultralytics reads it: ``../train/images`` (Roboflow) lies in the root if it is not beside it."""
    return entry[3:] if entry.startswith("../") and not os.path.exists(os.path.join(base, entry)) else entry


def _base(shown: str, folder: str, given: str, parts: Mapping[str, list[str]]) -> str:
    """Return the folder that ``path`` in a data.yaml names."""
    # The last is a data set that was moved together with its data.yaml.
    tried = dict.fromkeys([os.path.normpath(os.path.join(folder, given)), os.path.abspath(given), folder])
    for base in tried:
        if any(os.path.exists(os.path.join(base, _moved(base, entry))) for entry in chain(*parts.values())):
            return base
    raise ConfigError(
        f"{shown}: path is {show(given)}, and no images are there (tried {', '.join(map(show, tried))}); pass root= "
        "(--option root=…) if the data set is elsewhere"
    )


def _parts_in(folder: str) -> dict[str, list[str]]:
    """Return the splits of a folder with ``images``: its sub-folders if all have names of splits."""
    entries = [entry for entry in os.scandir(os.path.join(folder, "images")) if not entry.name.startswith(".")]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    is_split = all(_SPLIT_FOLDER.fullmatch(name) for name in names)
    if not names or not is_split or any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries):
        return {"": ["images"]}
    return {name: [f"images/{name}"] for name in names}


def _class_names(shown: str, base: str, yaml: _Yaml, classes: Any) -> list[str]:
    """Return the class names: those that the caller gives, those of the data.yaml, or those of classes.txt."""
    given: Any = yaml.names if classes is None else classes
    if not given:
        files = [os.path.join(base, name) for name in ("classes.txt", "labels/classes.txt")]
        given = next(filter(os.path.isfile, files), None)
    if isinstance(given, dict):
        by_number = {str(number): name for number, name in given.items()}
        given = [by_number.get(str(number)) for number in range(len(by_number))]
        if None in given:
            raise ConfigError(f"{shown}: the keys of names are {some(by_number)}; expected 0 to {len(given) - 1}")
    if not given:
        raise ConfigError(
            f"{shown} gives no class names; name them in data.yaml, in classes.txt (one name a line), or with classes= "
            "(--classes cat,dog)"
        )
    names = unique_classes(given if isinstance(given, (str, os.PathLike)) else list(map(str, given))) or []
    if classes is None and isinstance(yaml.nc, int) and yaml.nc != len(names):
        raise ConfigError(f"{shown}: nc is {yaml.nc}, but names has {len(names)}")
    return names


# Images and their label files


class _Listing:
    """Lists the images of a data set, and what is wrong with them and with the names of their label files.

    Attributes
    ----------
    images : list of (str, str, bool)
        The key of each good image, its split, and whether it has a label file.
    bad : list of Bad
    """

    def __init__(self, data: _DataSet, root: Root, walk: Walk) -> None:
        self._data, self._root, self._walk = data, root, walk
        self.images: list[tuple[str, str, bool]] = []
        self.bad: list[Bad] = []
        self._twice = Counter[tuple[str, str]]()
        self._folders: dict[str, None] = {}  # of labels that belong to folders of images
        splits: dict[str, str] = {}  # key → split
        for split, entries in data.parts.items():
            found = [each for entry in entries for each in self._in(split, entry)]
            if not found:
                raise ConfigError(f"{data.file}: {split or 'the folder'} has no images in {some(entries)}")
            for each in found:
                if isinstance(each, Bad):
                    self.bad.append(each)
                elif each in splits:
                    self._twice[splits[each], split] += 1
                else:
                    splits[each] = split
        for key, split in splits.items():
            self._add(key, split)
        self._add_lone_labels(set(map(labels_of, splits)))
        if self.images and not any(has_labels for *_, has_labels in self.images):
            key = self.images[0][0]
            raise ConfigError(
                f"{data.file}: none of the {counted(len(self.images), 'image')} has a label file; expected, for example, "
                f"{labels_of(key)} for {key}; kind='flat' (--kind flat) packs images without labels"
            )

    def _in(self, split: str, entry: str) -> Iterator[str | Bad]:
        """Yield the keys of the images in a folder, or in a list with one path a line."""
        path = os.path.join(self._root.path, entry)
        relative = posixpath.normpath(os.path.relpath(path, self._root.path).replace(os.sep, "/"))
        fault = path_fault(entry) or (self._root.path_fault(relative) if relative != "." else None)
        if fault is None and not os.path.isdir(path) and not (entry.lower().endswith(".txt") and os.path.isfile(path)):
            fault = (
                f"nothing exists at {show(path)}; it is a folder of images or a .txt list of them, relative to path; pass "
                "root= (--option root=…) if the data set is elsewhere"
            )
        if fault is not None:
            raise ConfigError(f"{self._data.file}: {split} is {show(entry)}: {fault}")
        if not os.path.isdir(path):
            yield from self._listed(path, relative)
            return
        top = "" if relative == "." else relative
        self._folders[posixpath.dirname(labels_of(posixpath.join(top, "x")))] = None
        for each in self._walk.files(top):
            yield each if isinstance(each, Bad) else each[0]

    def _listed(self, path: str, relative: str) -> Iterator[str | Bad]:
        try:
            lines = read_file(path).decode("utf-8-sig").splitlines()
        except (BadItem, UnicodeDecodeError) as error:
            raise ConfigError(f"the list {show(path)} cannot be read: {error}") from None
        for number, line in enumerate(lines, 1):
            written = line.strip()
            below = posixpath.join(posixpath.dirname(relative), written) if written.startswith("./") else written
            if os.path.isabs(below):
                below = os.path.relpath(below, self._root.path).replace(os.sep, "/")
            key = posixpath.normpath(below)
            fault = self._root.path_fault(key)
            if fault is None and not key.lower().endswith(IMAGE_SUFFIXES):
                fault = f"ends in none of {' '.join(IMAGE_SUFFIXES)}"
            if written and (fault or not self._walk.hidden.skips(key, below=True)):
                yield Bad(f"{relative} line {number} ({show(written)})", fault) if fault else key

    def _add(self, key: str, split: str) -> None:
        labels = labels_of(key)
        # A broken link is no missing file: reading it reports why.
        has_labels = os.path.lexists(os.path.join(self._root.path, labels))
        fault = self._root.path_fault(labels) if has_labels else None
        if fault is None:
            self.images.append((key, split, has_labels))
        else:
            self.bad.append(Bad(key, f"its label file {labels}: {fault}"))

    def _add_lone_labels(self, known: set[str]) -> None:
        """Report label files without an image, in the folders that belong to folders of images."""
        walk = Walk(self._root, (".txt",))
        for folder in self._folders:
            found = walk.files(folder) if os.path.isdir(os.path.join(self._root.path, folder)) else ()
            for each in found:
                if isinstance(each, Bad):
                    self.bad.append(each)
                elif each[0] not in known and not _OTHER_TEXT.fullmatch(posixpath.basename(each[0])):
                    self.bad.append(
                        Bad(each[0], "no image has this label file: the names differ in more than .jpg and .txt")
                    )

    def task(self) -> _Task:
        """Return what the first line of all label files describes."""
        if self._data.yaml.kpt_shape is not None:
            return "keypoints"
        for key, _, has_labels in self.images:
            text = b""
            with suppress(BadItem):  # reading the item reports it
                text = read_file(os.path.join(self._root.path, labels_of(key))) if has_labels else b""
            if text.strip():
                first = text.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
                return "polygons" if len(first.split()) > 6 else "boxes"
        return "boxes"

    def notes(self) -> Iterator[str]:
        """Yield sentences about what the user may not expect."""
        yield from self._walk.notes()
        unlabelled = sum(not has_labels for *_, has_labels in self.images)
        if unlabelled:
            yield f"{counted(unlabelled, 'image has', 'images have')} no label file, and so no objects"
        for (first, again), count in self._twice.items():
            where = f"in {first} and in {again}" if first != again else f"twice in {first or 'the folder'}"
            yield f"{counted(count, 'image is', 'images are')} {where}, and packed once{f', in {first}' if first else ''}"


# Lines of label files

_Task = Literal["boxes", "polygons", "keypoints"]


@dataclass(frozen=True)
class _LabelFile:
    """How the label files of one data set are read.

    Parameters
    ----------
    task : str
        What every line describes.
    classes : int
        Number of classes.
    keypoints : (int, int) or None
        For keypoints: how many each object has, and 2 or 3 values for each.
    """

    task: _Task
    classes: int
    keypoints: tuple[int, int] | None = None

    @property
    def fields(self) -> dict[str, Field]:
        """The fields of the objects, in the order of a record."""
        fields = {
            "boxes": Field("array", "<f8", (None, 4), role="boxes", format="cxcywh", relative=True),
            "labels": Field("array", "<i8", (None,), role="labels"),
        }
        if self.task == "polygons":
            fields["masks"] = Field("json", role="mask", format="coco", relative=True)
        if self.keypoints is not None:
            fields["keypoints"] = Field("array", "<f8", (None, *self.keypoints), role="keypoints", relative=True)
        return fields

    def parse(self, blob: bytes, name: str) -> tuple[Record, tuple[int, int, int]]:
        """Return the objects in the bytes of file `name`; raises `BadItem`.

        The numbers are those of lines that were there before, of boxes without an area, and of keypoints at 0 0 that have
        no visibility.
        """
        try:
            text = blob.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise BadItem(f"its label file is not text: byte {error.start} is not UTF-8 ({name})") from None
        found: dict[tuple[float, ...], None] = {}
        count = 0
        for number, line in enumerate(text.split("\n"), 1):
            texts = line.split()
            if texts:
                count += 1
                try:
                    found[self._row(texts)] = None
                except BadItem as fault:
                    raise BadItem(f"{fault} ({name} line {number})") from None
        record, unplaced = self._record(list(found)), 0
        if self.keypoints is not None and self.keypoints[1] == 2:
            unplaced = int((record["keypoints"] == 0).all(-1).sum())
        return record, (count - len(found), int((record["boxes"][:, 2:] == 0).any(1).sum()), unplaced)

    def _row(self, texts: Sequence[str]) -> tuple[float, ...]:
        """Return the numbers of one line; raises `BadItem`."""
        points, values = self.keypoints or (0, 0)
        is_wrong, what = len(texts) != 5, "the first line of the data set is a box, of 5: class, x, y, width, height"
        if self.task == "polygons":
            is_wrong = len(texts) < 7 or len(texts) % 2 == 0
            what = "the first line of the data set is a polygon, of a class and three or more points x y"
        elif self.task == "keypoints":
            is_wrong = len(texts) != 5 + points * values
            what = f"kpt_shape asks for a box of 5, and {values} for each of {points} keypoints"
        if is_wrong:
            raise BadItem(f"a line has {len(texts)} values; {what}")
        try:
            row = tuple(map(float, texts))
        except ValueError as error:
            raise BadItem(f"a value is not a number: {error}") from None
        if not row[0].is_integer() or not 0 <= row[0] < self.classes:
            raise BadItem(f"class {texts[0]} has no name: there are {self.classes} classes, and the first is 0")
        places = row[1:]
        if values == 3:  # a keypoint of visibility 0 has no place
            triples = [row[start : start + 3] for start in range(5, len(row), 3)]
            places = (*row[1:5], *(value for x, y, seen in triples if seen for value in (x, y)))
        for value in places:
            if not -TOLERANCE <= value <= 1 + TOLERANCE:
                pixels = ", so these are perhaps pixels" if value > 2 else ""
                raise BadItem(f"a coordinate is {value:g}, outside 0 to 1{pixels}")
        return row

    def _record(self, rows: Sequence[tuple[float, ...]]) -> Record:
        boxes = [_hull(row[1:]) if self.task == "polygons" else row[1:5] for row in rows]
        record: Record = {
            "boxes": np.array(boxes, np.float64).reshape(-1, 4),
            "labels": np.array([row[0] for row in rows], np.int64),
        }
        if self.task == "polygons":
            record["masks"] = [[list(row[1:])] for row in rows]
        if self.keypoints is not None:
            points = [row[5:] for row in rows]
            record["keypoints"] = np.array(points, np.float64).reshape(-1, *self.keypoints)
        return record


def _hull(points: Sequence[float]) -> tuple[float, float, float, float]:
    """Return the box around a polygon, as centre and size."""
    left, right, top, bottom = min(points[::2]), max(points[::2]), min(points[1::2]), max(points[1::2])
    return (left + right) / 2, (top + bottom) / 2, right - left, bottom - top


def _as_stored(objects: Record, blob: bytes) -> Record:
    """Return the objects of a picture for its pixels as stored: label files refer to the picture as EXIF displays it."""
    orientation = orientation_of(blob) or 1
    header = read_picture_header(blob) if orientation > 1 and len(objects["boxes"]) else None
    if header is None:
        return objects
    back = inverse(orientation)
    turned = {**objects, "boxes": turned_centres(objects["boxes"], back)}
    if "masks" in objects:
        turned["masks"] = [
            [turned_points(np.reshape(polygon, (-1, 2)), back).ravel().tolist() for polygon in polygons]
            for polygons in objects["masks"]
        ]
    if "keypoints" in objects:
        shown = (header.width, header.height) if orientation > 4 else (header.height, header.width)
        turned["keypoints"] = turned_keypoints(objects["keypoints"], back, shown)
    return turned
