"""Reads folders of frames, each a video; and says which folders of videos are classes."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from storeds.errors import ConfigError
from storeds.formats.format import Format
from storeds.layouts.files.folders import class_labels, class_notes
from storeds.layouts.files.rows import Bad, File, Row, Rows, from_start
from storeds.layouts.files.walk import Hidden, Root, Walk, folders_in, show
from storeds.protocols import JSON, Field

__all__ = ["FRAMES", "frames", "label_of", "video_fields", "video_labels"]


def frames(
    path: str | os.PathLike[str],
    *,
    label: bool | None = None,
    classes: Sequence[str] | os.PathLike[str] | None = None,
    allow_outside: bool = False,
) -> Rows:
    """Rows of a folder of videos, each a folder of images ordered by the numbers in their names. Images keep their bytes.

    Parameters
    ----------
    path : path
        The folder. If it contains folders of videos, these are their classes: ``root/class/video/0001.jpg``.
    label, classes, allow_outside
        As for `~storeds.formats.videos.videos`.

    Raises
    ------
    StoreNotFoundError
        The folder does not exist.
    ConfigError
        It contains no folders of images.
    """
    walk = Walk(Root(path, allow_outside=allow_outside))
    folders_in(os.fspath(path))
    bad, found = list[Bad](), dict[str, list[tuple[str, File]]]()
    for each in walk.files(""):
        if isinstance(each, Bad):
            bad.append(each)
        else:
            found.setdefault(os.path.dirname(each[0]), []).append(each)
    if not (found or bad) or "" in found:
        held = "images beside them" if "" in found else "none"
        raise ConfigError(f"{path}: expected folders of images, one per video, but there are {held}")
    tops: list[tuple[str, File] | Bad] = [*((key, each[0][1]) for key, each in found.items()), *bad]
    labels, names = video_labels(os.fspath(path), tops, walk.hidden, label=label, classes=classes)
    rows = [
        Row(name, {"image": file, **label_of(labels, key), "video": number, "frame": frame, "key": key})
        for number, (key, each) in enumerate(found.items())
        for frame, (name, file) in enumerate(sorted(each, key=lambda one: _natural(one[0])))
    ]
    return Rows(
        fields=video_fields(labels),
        attrs={} if labels is None else {"classes": list[JSON](names)},
        items=from_start(lambda: [*rows, *bad]),
        notes=[*(class_notes(names) if classes is None else ()), *walk.notes()],
    )


def video_labels(
    root: str,
    found: Sequence[tuple[str, File] | Bad],
    hidden: Hidden,
    *,
    label: bool | None,
    classes: Sequence[str] | os.PathLike[str] | None,
) -> tuple[dict[str, int] | None, list[str]]:
    """Return the label of each folder in `root`, or None if videos have no labels; and the class names."""
    names = [each[0] for each in found if not isinstance(each, Bad)]
    outside, inside = [name for name in names if "/" not in name], [name for name in names if "/" in name]
    if outside and (inside if label is None else label):
        raise ConfigError(
            f"{show(root)} contains videos that are in no folder, which would give their class, such as {show(outside[0])}; pass "
            "label=False (--no-label) to pack all without labels"
        )
    if inside if label is None else label:
        return class_labels(root, folders_in(root, hidden), classes)
    if classes is not None:
        raise ConfigError(
            f"{show(root)}: classes= (--classes) names the folders of videos, and no folder is a class here"
        )
    return None, []


def label_of(labels: Mapping[str, int] | None, key: str) -> dict[str, int]:
    """Return the field of the label of a video, if videos have labels."""
    return {} if labels is None else {"label": labels[key.split("/", 1)[0]]}


def video_fields(labels: Mapping[str, int] | None) -> dict[str, Field]:
    """Return the fields of a frame of a video."""
    label = {} if labels is None else {"label": Field("int")}
    return {"image": Field("image"), **label, "video": Field("int"), "frame": Field("int"), "key": Field("str")}


def _natural(path: str) -> list[tuple[int, str]]:
    """Return a sort key that puts 2 before 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


FRAMES = Format(about="a folder of videos, each a folder of images", read=frames)
