"""`sequence`: reads windows of episodes: around each step, some rows of each field."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._utils.arguments import check_int
from storeds.errors import ConfigError, DecodeError, suggest
from storeds.pictures.decoders import bad_picture
from storeds.pictures.header import MAX_PIXELS
from storeds.protocols import Backend, Field, Record
from storeds.readers.channels import channels_first, channels_of
from storeds.readers.choice import Fields, choose, label_of, target_of
from storeds.readers.elements import Element, Facts, stacked
from storeds.readers.images import bind_images
from storeds.readers.options import Decode, Modes, PictureOptions
from storeds.readers.reader import ElementReader
from storeds.readers.rows import PADDED, Part, Window
from storeds.readers.runs import runs_of
from storeds.records.shapes import ChannelAxis, Channels

__all__ = ["sequence"]

_EPISODES = ("episode", "video", "trajectory")
_RANGE = re.compile(r"(-?\d+):(-?\d+)")
_NOW = (0,)


def sequence(
    fields: Fields = (),
    *,
    decode: Decode | None = None,
    mode: Modes = "RGB",
    channels: Mapping[str, Channels] | None = None,
    repair: bool = True,
    min_recovered: float = 0.5,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    windows: Mapping[str, Sequence[int] | str] | None = None,
    stride: int = 1,
    ends: str = "pad",
    by: str | None = None,
) -> SequenceSpec:
    """One step of an episode → windows of the fields around it, for robots, series and videos.

    Sample *i* is step *i* of the store, which holds the steps of an episode one after another. A window never reaches into
    another episode. Reads only the rows that the windows have.

    Parameters
    ----------
    fields : sequence of str, or mapping of str to str, optional
        Elements of a sample. Default: those of `windows` and, if there is one, the label. An element without a window has
        the value of its step.
    windows : mapping of str to sequence of int or str
        Element → offsets in steps: ``{"image": [-1, 0], "action": "0:16"}``. Its values get one more dimension, in front.
        Images of one shape become a uint8 tensor of shape (rows, channels, height, width), numbers and arrays a tensor,
        others a list.
    stride : int
        How many steps one offset is.
    ends : str
        ``"pad"``: where a window leaves the episode, the nearest row is repeated, and the element ``<name>_is_pad`` is True
        there (bool, one for each row). ``"drop"``: only steps whose windows all lie inside are samples.
    by : str, optional
        Field of kind int or str that all steps of an episode share. Default: ``episode``, ``video`` or ``trajectory``.
    channels : mapping of str to str, optional
        Elements that are arrays of pixels, and where their channels are stored, ``"last"`` or ``"first"``: they become
        tensors with channels before height and width. Other arrays keep their shape.
    decode, mode, repair, min_recovered, orient, max_pixels
        For each image, as for `image`; by default images are tensors.

    Notes
    -----
    Fields with the same window are read in one storage call a batch. Where these all have a fixed size, no record is made:
    rows are copied from the arrays of the batch.
    """
    options = PictureOptions(decode, mode, channels, repair, min_recovered, orient, max_pixels)
    check_int("stride", stride, 1)
    if channels is not None and not isinstance(channels, Mapping):
        raise ConfigError("channels is a table of element → 'last' or 'first' here: {'image': 'last'}")
    if ends not in ("pad", "drop"):
        raise ConfigError(f"unknown ends {ends!r}; {suggest(ends, ('pad', 'drop'), 'ends')}")
    if not isinstance(windows, Mapping) or not windows:
        raise ConfigError(
            "reader 'sequence' needs windows, element → offsets in steps: "
            "reader_options={'windows': {'image': [-1, 0], 'action': '0:16'}}"
        )
    steps = {name: tuple(each * stride for each in _offsets(name, offsets)) for name, offsets in windows.items()}
    return SequenceSpec(fields, options, steps, by, ends == "pad")


@dataclass(frozen=True)
class SequenceSpec:
    """The options of `sequence`."""

    fields: Fields
    options: PictureOptions
    windows: Mapping[str, tuple[int, ...]]
    by: str | None
    is_padded: bool

    def bind(self, view: Backend, /) -> ElementReader:
        """Return the reader of a store; raises ConfigError if it does not fit."""
        declared = dict(view.meta.fields)
        by = self._by(view)
        chosen = choose(view, self.fields, lambda: (*dict.fromkeys((*self.windows, *label_of(declared))),), declared)
        for name in self.windows:
            if name not in (names := [each.name for each in chosen]):
                raise ConfigError(f"windows names {name!r}; {suggest(name, names, 'elements of a sample')}")
            if next(each for each in chosen if each.name == name).path is None:
                raise ConfigError(
                    f"windows names {name!r}, which is the number of a sample and has no rows: leave it out"
                )
        data, images = bind_images(view, chosen, self.options)
        parts: dict[tuple[int, ...], list[str]] = {}
        elements: list[Element] = []
        for each in chosen:
            if each.path is None:
                elements.append(each)
                continue
            offsets, inner = self.windows.get(each.name, _NOW), images.get(each.name)
            position, axis = self.options.channels_of(each.name), None
            if inner is None and position is not None:  # an array of any dtype and number of channels
                axis = channels_of(each.name, each.declared, position)
            parts.setdefault(offsets, [])
            found = each.as_kind(
                WindowElement,
                inner=inner,
                part=[*parts].index(offsets),
                is_window=each.name in self.windows,
                axis=axis,
            )
            parts[offsets] += found.needs
            elements.append(found)
        self.options.check(elements)
        for name, offsets in self.windows.items() if self.is_padded else ():
            part, flag = [*parts].index(offsets), Field("bool")
            elements.append(WindowElement(name=f"{name}{PADDED}", source=PADDED, declared=flag, path=None, part=part))
        number = next((n for n in ("step", "frame") if n in declared and declared[n].kind == "int"), None)
        rows = Window(
            runs_of(view, by, number),
            tuple(Part(offsets, tuple(dict.fromkeys(fields))) for offsets, fields in parts.items()),
            self.is_padded,
        )
        return ElementReader("sequence", rows, tuple(elements), data, target_of(chosen, (data,)))

    def _by(self, view: Backend) -> str:
        """Return the field that the steps of an episode share."""
        declared = view.meta.fields
        by = self.by or next((name for name in _EPISODES if name in declared), None)
        if by is None or by not in declared:
            raise ConfigError(
                f"reader 'sequence' needs a field that distinguishes the episodes, and {view.url} has "
                f"{'no ' + repr(by) if by else 'neither episode, video nor trajectory'}; "
                f"{suggest(by or 'episode', declared, 'fields')}; name it with by="
            )
        if declared[by].kind not in ("int", "str"):
            raise ConfigError(f"by={by!r} is a field of kind {declared[by].kind}; expected int or str")
        return by


@dataclass(frozen=True, kw_only=True)
class WindowElement(Element):
    """The rows of a window: a tensor of numbers, arrays or decoded images, or a list.

    Parameters
    ----------
    part : int
        The place of the window among those of the sample.
    is_window : bool
        Whether the value is all rows, or only the first one.
    axis : str or None
        Where the channels of images are stored, if they come first in the tensor.
    """

    part: int
    is_window: bool = True
    axis: ChannelAxis | None = None

    @property
    def options(self) -> tuple[str, ...]:
        # docstring inherited
        return super().options if self.axis is None else (*super().options, "channels")

    def value(self, rows: Sequence[Record], facts: Facts) -> Any:
        # docstring inherited
        import torch

        window = rows[self.part]
        if self.inner is not None:
            images = self._images(window, self.inner, facts)
            return images if self.is_window else images[0]
        values = window[self.source]
        if self.is_copy:
            values = copy.deepcopy(values)
        if not isinstance(values, np.ndarray) and (self.declared.is_scalar or self.declared.is_fixed):
            values = np.asarray(values)
        if self.axis is not None:
            values = np.ascontiguousarray(channels_first(values, self.axis))
        found = torch.from_numpy(values) if isinstance(values, np.ndarray) else values
        return found if self.is_window else found[0]

    def _images(self, window: Record, inner: Element, facts: Facts) -> Any:
        images: list[Any] = []
        for at in range(len(window[self.source])):
            try:
                images.append(inner.value([{name: window[name][at] for name in self.needs}], facts))
            except DecodeError as error:
                raise bad_picture(f"{self._name_of(at)}: {error}", error.kind) from error.__cause__
        return stacked(images, self._name_of)

    def _name_of(self, at: int) -> str:
        return f"row {at} of the window of {self.name!r}"


def _offsets(name: str, given: Any) -> tuple[int, ...]:
    """Return the offsets of a window: integers, or a range such as ``"0:16"``."""
    if isinstance(given, str):
        match = _RANGE.fullmatch(given)
        found = tuple(range(int(match[1]), int(match[2]))) if match else ()
    else:
        found = tuple(given) if isinstance(given, Sequence) else ()
    if not found or any(isinstance(each, bool) or not isinstance(each, int) for each in found):
        raise ConfigError(f"windows: {name!r} has offsets such as [-1, 0] or '0:16', got {given!r}")
    return found
