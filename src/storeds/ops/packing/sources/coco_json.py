"""Reads the JSON file of COCO: its keys, and its images and annotations as JSON texts."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Mapping
from typing import Any

import msgspec

from storeds._utils.locations import nearest
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.packing.sources.base import show

__all__ = ["is_coco_file", "parse_coco", "parse_item", "read_coco"]

_LISTS = ("images", "annotations")
_PART = 1 << 24  # bytes that are decoded at once


def is_coco_file(path: str) -> bool:
    """Whether a JSON file is an object with the lists of COCO."""
    try:
        data = read_coco(path)
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        # msgspec refuses NaN, which COCO files of Python programs contain.
        return b'"annotations"' in data and b'"images"' in data and b'"path_list"' not in data
    lists = [name for name in (*_LISTS, "categories") if bytes(top.get(name, b""))[:1] == b"["]
    return "images" in lists and len(lists) > 1


def read_coco(path: str) -> bytes:
    """Return the bytes of a file as UTF-8 without a byte order mark; raises StoreNotFoundError."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        raise StoreNotFoundError(f"nothing exists at {show(path)}: {nearest(os.path.abspath(path))}") from None
    except OSError as error:
        raise StoreNotFoundError(f"{show(path)} cannot be read: {error.strerror}") from None
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):  # some programs of Windows write UTF-16
        return data.decode("utf-16", "replace").encode()
    return data.removeprefix(b"\xef\xbb\xbf")


def parse_coco(data: bytes, where: str) -> dict[str, Any]:
    """Return the keys of a file of COCO; images and annotations as lists of JSON texts, which take little memory."""
    _check_utf8(data, where)
    try:
        top: dict[str, Any] = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        _check_keys(top, where)
        return {
            key: msgspec.json.decode(value, type=list[msgspec.Raw] if key in _LISTS else Any)
            for key, value in top.items()
        }
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        found = json.loads(data)  # accepts NaN and names the line of an error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where} is not JSON at line {error.lineno} column {error.colno}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{where} is JSON that cannot be stored: {error}") from None
    if isinstance(found, dict):
        _check_keys(found, where)
        for key in _LISTS:
            if not isinstance(found.get(key, []), list):
                raise ConfigError(f"{where}: {key} is a {type(found[key]).__name__}, not a list")
            found[key] = [json.dumps(each).encode() for each in found.get(key, [])]
        return found
    raise ConfigError(f"{where} is JSON, but not an object with images and annotations, as COCO's files are")


def _check_utf8(data: bytes, where: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for start in range(0, len(data), _PART):
            decoder.decode(data[start : start + _PART])
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{where} is not UTF-8, as JSON is: it contains byte {error.object[error.start]:#04x}; save it as UTF-8"
        ) from None


def _check_keys(top: Mapping[str, Any], where: str) -> None:
    if "images" not in top:
        raise ConfigError(
            f"{where} has no list of images, as COCO's files have; its keys are {', '.join(map(repr, list(top)[:8]))}. A list "
            "of detections alone is no data set"
        )


def parse_item(raw: bytes | msgspec.Raw) -> Any:
    """Return one image or annotation."""
    try:
        return msgspec.json.decode(raw)
    except msgspec.MsgspecError:
        return json.loads(bytes(raw))
