"""Reads the annotations of Pascal VOC: one XML file for each picture, with one ``object`` for each box."""

from __future__ import annotations

import codecs
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from storeds._utils.text import some
from storeds.ops.packing.sources.base import BadItem
from storeds.protocols import JSON

__all__ = ["Annotation", "parse_annotation"]

_MOST_BYTES = 16 << 20
_DEEPEST = 20
_SIDES = ("xmin", "ymin", "xmax", "ymax")
_LEFT_OUT = ("object", "size", "filename", "path")
_OWN_FIELDS = ("name", "bndbox", "difficult", "truncated")
_SHOWN = 5  # faults of one file
_ENCODING = re.compile(rb"""\s*<\?xml[^>]*?\sencoding\s*=\s*["']([A-Za-z0-9._-]+)["']""")
_MULTIBYTE = frozenset(
    ("gb2312", "gbk", "gb18030", "big5", "big5hkscs", "cp950", "shift_jis", "cp932", "euc_jp", "euc_kr", "cp949")
)


@dataclass
class Annotation:
    """What one XML file says.

    Parameters
    ----------
    size : (int, int) or None
        Height and width, if the file has them.
    names : list of str
        The class of each object.
    boxes : list of list of float
        xmin, ymin, xmax, ymax of each object, as written.
    difficult, truncated : list of bool
        Of each object.
    objects : list of dict
        What else each object says: its pose, its parts.
    rest : dict
        What else the file says: its source, its owner.
    """

    size: tuple[int, int] | None = None
    names: list[str] = field(default_factory=list)
    boxes: list[list[float]] = field(default_factory=list)
    difficult: list[bool] = field(default_factory=list)
    truncated: list[bool] = field(default_factory=list)
    objects: list[JSON] = field(default_factory=list)
    rest: dict[str, JSON] = field(default_factory=dict)


class _Builder(ElementTree.TreeBuilder):
    """Builds the tree, and refuses a DOCTYPE, which can define entities that grow without limit or read other files."""

    def doctype(self, name: str, pubid: str | None, system: str | None) -> None:
        raise BadItem("its annotation has a DOCTYPE, which pack refuses because it can define entities; remove it")


def parse_annotation(blob: bytes, path: str) -> Annotation:
    """Return what the bytes of the XML file at `path` say; raises `BadItem` that lists what is wrong."""
    root = _tree(blob, path)
    found, faults = Annotation(), list[str]()
    try:
        found.size = _size(root)
    except BadItem as fault:
        faults.append(str(fault))
    for number, element in enumerate(root.findall("object"), 1):
        name = _text(element, "name")
        where = f"object {number}{f' ({name})' if name else ''}"
        try:
            if not name:
                raise BadItem("has no name")
            row = _box(element)
            flags = [_flag(element, each) for each in ("difficult", "truncated")]
        except BadItem as fault:
            faults.append(f"{where} {fault}")
            continue
        found.names.append(name)
        found.boxes.append(row)
        found.difficult.append(flags[0])
        found.truncated.append(flags[1])
        found.objects.append(_json_of(element, _OWN_FIELDS))
    if faults:
        more = f" and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise BadItem(f"its annotation is wrong: {'; '.join(faults[:_SHOWN])}{more} ({path})")
    rest = _json_of(root, _LEFT_OUT)
    found.rest = rest if isinstance(rest, dict) else {}
    return found


def _tree(blob: bytes, path: str) -> Element:
    if len(blob) > _MOST_BYTES:
        raise BadItem(f"its annotation has more than {_MOST_BYTES >> 20} MiB ({path})")
    if b"<!ENTITY" in blob or b"<!DOCTYPE" in blob:
        raise BadItem(
            f"its annotation has a DOCTYPE, which pack refuses because it can define entities; remove it ({path})"
        )
    parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314  # entities are refused
    try:
        parser.feed(_decoded(blob, path))
        root: Element = parser.close()
    except BadItem as fault:
        raise BadItem(f"{fault} ({path})") from None
    except (ElementTree.ParseError, ValueError, LookupError) as error:
        raise BadItem(f"its annotation is not XML: {error} ({path})") from None
    if root.tag != "annotation":
        raise BadItem(f"its annotation begins with <{root.tag}> instead of <annotation> ({path})")
    return root


def _decoded(blob: bytes, path: str) -> bytes | str:
    """Return XML as text if its encoding has several bytes per character, which expat cannot decode."""
    declared = _ENCODING.match(blob)
    if declared is None:
        return blob
    encoding = declared[1].decode()
    try:
        if codecs.lookup(encoding).name in _MULTIBYTE:
            return blob.decode(encoding)
    except UnicodeDecodeError as error:
        raise BadItem(
            f"its annotation is not {encoding}, as its first line says: {error.reason} at byte {error.start} ({path})"
        ) from None
    except LookupError:  # expat may know it
        pass
    return blob


def _text(element: Element, name: str) -> str:
    return (element.findtext(name) or "").strip()


def _size(root: Element) -> tuple[int, int] | None:
    """Return height and width, or None without ``size``."""
    size = root.find("size")
    if size is None:
        return None
    try:
        height, width = (int(_text(size, name)) for name in ("height", "width"))
    except ValueError:
        texts = ", ".join(f"{name} {_text(size, name)!r}" for name in ("width", "height"))
        raise BadItem(f"size has {texts}; expected two whole numbers") from None
    return height, width


def _box(element: Element) -> list[float]:
    box = element.find("bndbox")
    if box is None:
        raise BadItem("has no bndbox")
    missing = [side for side in _SIDES if not _text(box, side)]
    if missing:
        raise BadItem(f"has a bndbox without {some(missing)}")
    row = [_number(_text(box, side), side) for side in _SIDES]
    for low, high in ((0, 2), (1, 3)):
        if row[high] < row[low]:
            raise BadItem(f"has a negative size: {_SIDES[high]} {row[high]:g} is below {_SIDES[low]} {row[low]:g}")
    return row


def _number(text: str, side: str) -> float:
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadItem(f"has {side} {text!r}, which is not a finite number")
    return value


def _flag(element: Element, name: str) -> bool:
    """Return a flag that is 0 or 1; a missing one is 0."""
    text = _text(element, name)
    if text not in ("", "0", "1"):
        raise BadItem(f"has {name} {text!r}; expected 0 or 1")
    return text == "1"


def _json_of(element: Element, left_out: tuple[str, ...] = (), depth: int = 0) -> Any:
    """Return the children of an element as an object, or its text. A tag that repeats becomes a list."""
    if depth > _DEEPEST:
        raise BadItem(f"its annotation is nested more than {_DEEPEST} deep")
    if not len(element) and depth:
        return (element.text or "").strip()
    found: dict[str, list[Any]] = {}
    for child in _children(element, left_out):
        found.setdefault(child.tag, []).append(_json_of(child, (), depth + 1))
    return {tag: values[0] if len(values) == 1 else values for tag, values in found.items()}


def _children(element: Element, left_out: tuple[str, ...]) -> Iterator[Element]:
    return (child for child in element if child.tag not in left_out)
