"""The images that a file of COCO lists, the folder of their pictures, and what is wrong with them."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote, urlsplit

from storeds._utils.text import counted, some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import (
    IMAGE_SUFFIXES,
    Problem,
    Root,
    backslash_hint,
    is_hidden,
    is_text,
    path_fault,
    show,
)
from storeds.ops.packing.sources.coco_json import parse_item

__all__ = ["CocoImages", "find_images", "image_name", "listed_size"]

_TRIED = 20  # images that are looked for in each folder that may be the root


def image_name(where: str, image: Mapping[str, Any]) -> str:
    """Return the name of an image for messages."""
    return f"{where} image {image['id']} ({show(image['file_name'])})"


def listed_size(image: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return height and width in the file, if it has both."""
    height, width = image.get("height"), image.get("width")
    return None if height is None or width is None else (height, width)


class CocoImages:
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
            self._add(number, parse_item(raw))
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
            self.problems.append(Problem(image_name(self._where, image), f"another image has the same id: {first}"))
            return
        self.by_id[own] = image
        path = posixpath.normpath(name)
        if path in self._numbers:
            self.problems.append(
                Problem(image_name(self._where, image), f"another image has the same file: image {self._numbers[path]}")
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
                self.problems.append(Problem(image_name(self._where, image), fault))
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


def find_images(
    rows: Sequence[Any], file: str, root: str | os.PathLike[str] | None, where: str
) -> tuple[CocoImages, str]:
    """Return the images and the folder of their pictures. LVIS names images by URLs, with or without the last folder."""
    listing = CocoImages(rows, where, 2)
    folders = _folders(file, root)
    if listing.has_urls and not _contain(folders, listing.names):
        shorter = CocoImages(rows, where, 1)
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
