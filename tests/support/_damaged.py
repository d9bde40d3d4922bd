"""Photographs with every kind of damage, the kinds that must be found in each, and a store of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import storeds
from photographs import jpeg, photograph, saved

__all__ = ["PICTURES", "Picture", "write"]


class Picture(NamedTuple):
    """One blob: what `verify` says, the verdict on it, how much is there, whether it can be repaired."""

    blob: bytes
    reported: str | None
    finding: str
    recovered: float | None  # None: some of it, and how much is not what these tests are about
    repaired: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether readers return what is there."""
        return self.recovered != 0.0 and self.reported != "too_large"


def _huge(whole: bytes) -> bytes:
    at = whole.index(b"\xff\xc0")
    return whole[: at + 5] + b"\xff\xdc\xff\xdc" + whole[at + 9 :]


def _scan(whole: bytes) -> int:
    """Return where the first scan's data begin."""
    at = whole.index(b"\xff\xda")
    return at + 2 + int.from_bytes(whole[at + 2 : at + 4], "big")


_PNG = saved(photograph(5))
_PROGRESSIVE = jpeg(4, progressive=True)
PICTURES: dict[str, Picture] = {
    "whole": Picture(jpeg(0), None, "intact", 1.0),
    "no end": Picture(jpeg(1)[:-2], "missing_eoi", "missing_eoi", 1.0, True),
    "half": Picture(jpeg(2)[: len(jpeg(2)) * 2 // 3], "truncated_scan", "truncated_scan", None, True),
    "filled up": Picture(jpeg(0)[:-300] + bytes(300), "truncated_scan", "truncated_scan", None, True),
    "no pixel": Picture(jpeg(3)[: _scan(jpeg(3))], "truncated_scan", "truncated_scan", 0.0),
    "no scan": Picture(jpeg(3)[:200], "truncated_header", "truncated_header", 0.0),
    "coarse": Picture(_PROGRESSIVE[: len(_PROGRESSIVE) // 2], "truncated_scan", "truncated_scan", None, True),
    "stray": Picture(jpeg(5)[:900] + b"\xff\xc8" + jpeg(5)[902:], "corrupt_data", "corrupt_data", 0.0),
    "trailing": Picture(jpeg(1) + b"<!-- cached -->", "trailing_data", "trailing_data", 1.0),
    "png": Picture(_PNG, None, "intact", 1.0),
    "half a png": Picture(_PNG[: len(_PNG) // 2], "corrupt_data", "corrupt_data", 0.0),
    "page": Picture(b"<html>404</html>", "not_jpeg", "not_jpeg", 0.0),
    "empty": Picture(b"", "not_jpeg", "not_jpeg", 0.0),
    "huge": Picture(_huge(jpeg(2)), "too_large", "corrupt_data", 0.0),
}


def write(url: str, pictures: Mapping[str, Picture] = PICTURES, **options: Any) -> storeds.Meta:
    """Write a store with a record for each picture."""
    with storeds.open_writer(url, {"key": "str", "image": "image", "label": "int"}, **options) as writer:
        rows = enumerate(pictures.items())
        writer.append({"key": key, "image": picture.blob, "label": n} for n, (key, picture) in rows)
        meta: storeds.Meta = writer.publish({"classes": ["only"], "note": {"deep": [1, None]}})
    return meta
