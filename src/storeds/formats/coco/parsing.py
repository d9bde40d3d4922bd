"""Parses the JSON of COCO: images and annotations stay texts, of which a file has millions."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from storeds._utils.text import some
from storeds.errors import ConfigError, StoreNotFoundError
from storeds.layouts.files.rows import BadItem, read_file
from storeds.layouts.files.walk import show
from storeds.records.canonical_json import canonical_json

__all__ = ["decode", "parse"]

_LISTS = ("images", "annotations")


def parse(file: str, where: str) -> dict[str, Any]:
    """Return the keys of a file of COCO; images and annotations as lists of JSON texts, which take little memory."""
    try:
        data = read_file(file).removeprefix(b"\xef\xbb\xbf")
    except BadItem as error:
        raise StoreNotFoundError(f"{show(file)} {error}") from None
    try:
        data.decode()
        document = _split(data)
    except (RecursionError, ValueError) as error:
        raise ConfigError(f"{where} is not JSON in UTF-8 that can be stored: {error}") from None
    if not isinstance(document, dict) or "images" not in document:
        found = some(map(repr, document), 8) if isinstance(document, dict) else f"a {type(document).__name__}"
        raise ConfigError(
            f"{where} is no object with lists of images and annotations, as COCO's files are, but {found}"
        )
    for key in _LISTS:
        if not isinstance(document.get(key, []), list):
            raise ConfigError(f"{where}: {key} is a {type(document[key]).__name__}, not a list")
    return document


def _split(data: bytes) -> Any:
    """Return the JSON in `data`, with the items of `_LISTS` as JSON texts."""
    try:
        top = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        kinds: dict[str, Any] = dict.fromkeys(_LISTS, list[msgspec.Raw])
        return {key: msgspec.json.decode(value, type=kinds.get(key, Any)) for key, value in top.items()}
    except msgspec.MsgspecError:
        document = json.loads(data)  # accepts NaN and names the line of an error
    for key in _LISTS if isinstance(document, dict) else ():
        if isinstance(document.get(key), list):
            document[key] = [json.dumps(each).encode() for each in document[key]]
    return document


def decode(raw: Any) -> tuple[Any, str | None]:
    """Return the value of a JSON text, and why it cannot be stored."""
    try:
        return msgspec.json.decode(raw), None
    except msgspec.MsgspecError:
        found = json.loads(bytes(raw))
    try:
        canonical_json(found)
    except ValueError as error:  # NaN, or half a character
        return found, f"it cannot be stored: {error}"
    return found, None  # it has an integer of more than 64 bits
