"""Where the channels of arrays that are images are, and moving them to the front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import numpy as np

from storeds.errors import ConfigError
from storeds.protocols import Array, Field
from storeds.records.shapes import ChannelAxis, Channels, layout_of

__all__ = ["channels_first", "channels_of", "check_channels"]


def check_channels(channels: Channels | Mapping[str, Channels] | None) -> None:
    """Raise ConfigError for a position of channels that is not ``first`` or ``last``."""
    for each in channels.values() if isinstance(channels, Mapping) else (channels or "first",):
        if each not in get_args(Channels):
            raise ConfigError(f"channels must be 'first' or 'last', not {each!r}")


def channels_of(name: str, declared: Field, given: Channels | None) -> ChannelAxis:
    """Return where the channels of an element are; raise ConfigError if it holds no images, or if that is ambiguous.

    Parameters
    ----------
    name : str
    declared : Field
    given : str or None
        What the user says.
    """
    shape = declared.shape
    if declared.kind != "array" or shape is None or len(shape) < 2:
        what = f"arrays of shape {shape}" if shape is not None else f"values of kind {declared.kind}"
        raise ConfigError(
            f"element {name!r} holds {what}, which are not images: images have at least a height and a width. Leave "
            "out decode and channels, or name another element, for example channels={'image': 'last'} or "
            "transform={'image': …}"
        )
    if given is not None and len(shape) == 2:
        raise ConfigError(f"channels: element {name!r} has shape {shape}, a single channel; do not pass channels")
    found: ChannelAxis | None = given or layout_of(shape)
    if found is None:
        raise ConfigError(
            f"element {name!r} holds arrays of shape {shape}, which does not show where the channels are: pass "
            f"channels='last' if it is (…, height, width, channels), channels='first' if it is (…, channels, height, "
            f"width), or channels={{{name!r}: …}} for one of several elements"
        )
    return found


def channels_first(array: Array, axis: ChannelAxis | None) -> Array:
    """Return a view with the last three dimensions channels, height and width; the array itself without an axis."""
    if axis == "last":
        return np.moveaxis(array, -1, -3)
    return np.expand_dims(array, -3) if axis == "none" else array
