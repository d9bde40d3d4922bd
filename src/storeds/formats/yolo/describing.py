"""What describes a data set of YOLO: the data.yaml of Ultralytics, or its folders."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import msgspec

from storeds._utils.settings import in_words
from storeds._utils.text import some
from storeds.config.files import read_mapping
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.class_names import unique_classes
from storeds.layouts.files.walk import IMAGE_SUFFIXES, show

__all__ = ["SPLITS", "DataSet", "describe"]

SPLITS = ("train", "val", "valid", "test", "minival")
_SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|minival)(\d{4})?")
_MOST_KEYPOINTS = 100_000  # of an object


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
class DataSet:
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


def describe(path: str, root: str | None, classes: Any) -> DataSet:
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
    return DataSet(os.path.abspath(base), file or path, kept, names, yaml, notes)


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
