"""Describes a data set of YOLO: what its data.yaml, or its folders, say."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from storeds._utils.text import some
from storeds.config.files import read_mapping
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import IMAGE_SUFFIXES, show
from storeds.ops.packing.sources.columns import check_classes
from storeds.ops.packing.sources.text import open_text
from storeds.protocols import JSON

__all__ = ["SPLITS", "YoloData", "is_yolo_file", "is_yolo_folder", "open_yolo_data"]

SPLITS = ("train", "val", "valid", "test", "minival")
_YAML = (".yaml", ".yml")
_SPLIT_FOLDER = re.compile(r"(train|val|valid|validation|test|minival)(\d{4})?")
_MOST_KEYPOINTS = 100_000  # of an object
_CLASS_FILES = ("classes.txt", "labels/classes.txt")
_HOW = "name them in data.yaml, in classes.txt (one name a line), or with classes= (--classes cat,dog)"


@dataclass
class YoloData:
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
    keypoints : (int, int), optional
        ``kpt_shape``.
    attrs : dict
        Further attributes of the store.
    notes : list of str
        What the user may not expect.
    """

    root: str
    file: str
    parts: dict[str, list[str]]
    classes: list[str]
    keypoints: tuple[int, int] | None = None
    attrs: dict[str, JSON] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def is_yolo_file(path: str) -> bool:
    """Whether a YAML file names classes and a split."""
    if not path.lower().endswith(_YAML):
        return False
    try:
        found = read_mapping(path)
    except (ConfigError, StoreNotFoundError):
        return False
    return "names" in found and any(split in found for split in SPLITS)


def is_yolo_folder(path: str) -> bool:
    """Whether a folder has a data.yaml of YOLO, or ``images`` and ``labels`` with text files."""
    return _yaml_in(path) is not None or _has_labels(path)


def _has_labels(path: str) -> bool:
    labels = os.path.join(path, "labels")
    if not os.path.isdir(os.path.join(path, "images")) or not os.path.isdir(labels):
        return False
    try:
        inside = sorted(os.scandir(labels), key=lambda entry: entry.name)
        folders = [labels, *(entry.path for entry in inside if entry.is_dir())][:8]
        return any(name.lower().endswith(".txt") for folder in folders for name in os.listdir(folder))
    except OSError:
        return False


def _yaml_in(folder: str) -> str | None:
    """Return the only YAML file in `folder` that describes a data set of YOLO; data.yaml comes first."""
    try:
        names = sorted(name for name in os.listdir(folder) if name.lower().endswith(_YAML))
    except OSError:
        return None
    found = [path for name in names if is_yolo_file(path := os.path.join(folder, name))]
    preferred = [path for path in found if os.path.basename(path).lower().startswith("data.")]
    chosen = preferred or found
    return chosen[0] if len(chosen) == 1 else None


def open_yolo_data(path: str, root: str | None, classes: list[str] | None) -> YoloData:
    """Return what describes the data set at `path`.

    Parameters
    ----------
    path : str
        A data.yaml, or a folder.
    root : str or None
        The folder that paths in a data.yaml are relative to.
    classes : list of str or None
        The class names, if the caller gives them.

    Raises
    ------
    StoreNotFoundError
        `root` is no folder.
    ConfigError
        It is no data set of YOLO, or gives no class names.
    """
    if root is not None and not os.path.isdir(root):
        raise StoreNotFoundError(f"root={root!r} is not a folder")
    if not os.path.isdir(path):
        return _from_yaml(path, root, classes)
    described = _yaml_in(path)
    if described is not None:
        return _from_yaml(described, root, classes)
    for name in ("data.yaml", "data.yml"):
        if os.path.isfile(broken := os.path.join(path, name)):
            read_mapping(broken)  # raises ConfigError if it is not YAML
    if not os.path.isdir(os.path.join(path, "images")):
        raise ConfigError(
            f"{show(path)} is no data set of YOLO: expected a data.yaml with names and train, or folders images and labels"
        )
    return YoloData(os.path.abspath(path), path, _parts_in(path), classes or _class_file(path))


def _parts_in(folder: str) -> dict[str, list[str]]:
    """Return the splits of a folder with ``images``: its sub-folders if all have names of splits."""
    entries = [entry for entry in os.scandir(os.path.join(folder, "images")) if not entry.name.startswith(".")]
    names = sorted(entry.name for entry in entries if entry.is_dir())
    is_split = all(_SPLIT_FOLDER.fullmatch(name) for name in names)
    if not names or not is_split or any(entry.name.lower().endswith(IMAGE_SUFFIXES) for entry in entries):
        return {"": ["images"]}
    return {name: [f"images/{name}"] for name in names}


def _class_file(folder: str) -> list[str]:
    for name in _CLASS_FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            with open_text(path, None) as opened:
                lines = [line.strip() for line in opened.read().rstrip().splitlines()]
            if not all(lines):
                raise ConfigError(f"{show(path)} line {lines.index('') + 1} is empty; expected a class name a line")
            found = check_classes(lines, "auto")
            return found or []
    raise ConfigError(f"{show(folder)} gives no class names; {_HOW}")


def _from_yaml(path: str, root: str | None, classes: list[str] | None) -> YoloData:
    found = read_mapping(path)
    shown = show(path)
    parts = {split: _entries(shown, split, found[split]) for split in SPLITS if found.get(split)}
    if not parts:
        raise ConfigError(f"{shown} names no images: expected train, val or test, with names (of classes)")
    names = classes if classes is not None else _names(shown, found)
    base = _root_of(path, found.get("path"), parts) if root is None else root
    notes: list[str] = []
    for split, entries in parts.items():
        entries[:] = [_moved(base, entry) for entry in entries]
        # Ultralytics reads the test split only when it is asked to, and many files name one that is not there.
        if split == "test" and not any(os.path.exists(os.path.join(base, entry)) for entry in entries):
            notes.append(f"{split} is {some(entries)}, which does not exist, and is left out")
            entries.clear()
    keypoints = _keypoints(shown, found.get("kpt_shape"))
    attrs: dict[str, JSON] = {}
    if keypoints is not None and isinstance(found.get("flip_idx"), list):
        attrs["flip_idx"] = found["flip_idx"]
    kept = {split: entries for split, entries in parts.items() if entries}
    return YoloData(os.path.abspath(base), path, kept, names, keypoints, attrs, notes)


def _entries(shown: str, split: str, value: Any) -> list[str]:
    entries = value if isinstance(value, list) else [value]
    if not all(isinstance(entry, str) for entry in entries):
        raise ConfigError(
            f"{shown}: {split} is the path of a folder or a list, or several in a YAML list, not {value!r}"
        )
    return list(entries)


def _moved(base: str, entry: str) -> str:
    """Return an entry as Ultralytics reads it: ``../train/images`` (Roboflow) lies in the root if it is not beside it."""
    if entry.startswith("../") and not os.path.exists(os.path.join(base, entry)):
        return entry[3:]
    return entry


def _root_of(path: str, given: Any, parts: Mapping[str, list[str]]) -> str:
    """Return the folder that ``path`` in a data.yaml names."""
    folder = os.path.dirname(os.path.abspath(path))
    if given is None or given == "":
        return folder
    if not isinstance(given, str):
        raise ConfigError(f"{show(path)}: path is the folder of the data set, not {given!r}")
    # The last is a data set that was moved together with its data.yaml.
    tried = [os.path.normpath(os.path.join(folder, given)), os.path.abspath(given), folder]
    listed = [entry for entries in parts.values() for entry in entries]
    for base in dict.fromkeys(tried):
        if any(os.path.exists(os.path.join(base, _moved(base, entry))) for entry in listed):
            return base
    raise ConfigError(
        f"{show(path)}: path is {show(given)}, and no images are there (tried {', '.join(map(show, dict.fromkeys(tried)))}); "
        "pass root= (--root) if the data set is elsewhere"
    )


def _names(shown: str, found: Mapping[str, Any]) -> list[str]:
    given = found.get("names")
    if isinstance(given, dict):
        numbers = [int(key) if isinstance(key, int) or str(key).isdecimal() else None for key in given]
        if sorted(number for number in numbers if number is not None) != list(range(len(given))):
            raise ConfigError(f"{shown}: the keys of names are {some(map(str, given))}; expected 0 to {len(given) - 1}")
        by_number = dict(zip(numbers, given.values(), strict=True))
        given = [by_number[number] for number in range(len(by_number))]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{shown}: no class names are in names; {_HOW}")
    for number, name in enumerate(given):
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            raise ConfigError(f"{shown}: YAML reads the name of class {number} as {name!r}; put it in quotation marks")
    names = check_classes([str(name) for name in given], "auto") or []
    if isinstance(found.get("nc"), int) and found["nc"] != len(names):
        raise ConfigError(f"{shown}: nc is {found['nc']}, but names has {len(names)}")
    return names


def _keypoints(shown: str, shape: Any) -> tuple[int, int] | None:
    if shape is None:
        return None
    is_shape = isinstance(shape, list) and len(shape) == 2 and all(type(number) is int for number in shape)
    if not is_shape or not 1 <= shape[0] <= _MOST_KEYPOINTS or shape[1] not in (2, 3):
        raise ConfigError(
            f"{shown}: kpt_shape is [number of keypoints from 1 to {_MOST_KEYPOINTS:,}, 2 or 3], not {shape!r:.60}"
        )
    return shape[0], shape[1]
