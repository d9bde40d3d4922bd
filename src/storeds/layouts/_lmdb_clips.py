"""Recognises values that are lists of frames, each an encoded image: one value is one video clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from storeds._unpickle import unpickle
from storeds.errors import MissingDependencyError
from storeds.layouts._embedded import is_image
from storeds.layouts._lmdb_decode import decode_msgpack, decompress
from storeds.layouts._lmdb_entries import sample_records
from storeds.layouts._lmdb_env import Look

__all__ = ["WHOLE", "clips_of", "frames_part", "load_either"]

WHOLE = -1
_GLANCES = 4
_FEW = 3  # fewer images in every value may as well be a pair, such as a picture and its mask


def load_either(value: memoryview, *, views: bool = False) -> Any:
    """Return what a pickle, or else msgpack, holds; raises ValueError."""
    # A pickle of protocol 2 and later begins with 0x80 and its protocol, and ends with a full stop.
    is_pickle = len(value) > 2 and value[0] == 0x80 and value[1] <= 5 and value[-1] == 0x2E
    return unpickle(value, views=views) if is_pickle else decode_msgpack(decompress(value))


def clips_of(look: Look) -> Literal["certain", "possible"] | None:
    """Return whether the values are lists of frames: certainly so where their lengths differ, or other parts stand beside."""
    if "clips" not in look.memo:
        look.memo["clips"] = _clips_of(look)
    found: Literal["certain", "possible"] | None = look.memo["clips"]
    return found


def _clips_of(look: Look) -> Literal["certain", "possible"] | None:
    try:
        values = [load_either(value, views=True) for _, value in sample_records(look, _GLANCES)]
    except (ValueError, MissingDependencyError):
        return None
    parts = {frames_part(value) for value in values}
    if len(parts) != 1 or None in parts:
        return None
    (part,) = parts
    if part != WHOLE:
        return "certain"
    lengths = {len(value) for value in values}
    if len(lengths) > 1:
        return "certain"
    return "possible" if min(lengths) >= _FEW else None


def frames_part(value: Any) -> Any:
    """Return where in a value its frames lie: `WHOLE`, an index or a key; None where there is no list of images, or several."""
    if _are_frames(value):
        return WHOLE
    if isinstance(value, Mapping):
        found = [name for name, part in value.items() if _are_frames(part)]
    elif isinstance(value, (list, tuple)):
        found = [at for at, part in enumerate(value) if _are_frames(part)]
    else:
        return None
    return found[0] if len(found) == 1 else None


def _are_frames(value: Any) -> bool:
    if not isinstance(value, (list, tuple)) or not value:
        return False
    return all(isinstance(item, (bytes, memoryview)) and is_image(item) for item in value)
