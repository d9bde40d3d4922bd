"""Decodes one picture: verdict, repair, and only the part that a crop needs."""

from __future__ import annotations

import functools
import inspect
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xxhash

from storeds.errors import ConfigError, DecodeError, StoredsError
from storeds.jpeg import Verdict, examine
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.formats import structure_problem
from storeds.jpeg.header import SOI, Header, check_scans, read_header
from storeds.protocols import Cropped, Cropper, CropRequest, Decoder, Note, SampleContext, Window
from storeds.readers.decoders import (
    as_pil,
    check_jpeg,
    check_pixels,
    decode_fast,
    decode_pil,
    decode_reason,
    decode_tensor,
    decode_windows,
    divisor,
    has_colours,
    jpeg_pixels,
    orientation_of,
    oriented,
    oriented_size,
    to_tensor,
)
from storeds.registry import DECODERS

__all__ = ["Part", "Picture", "PictureDecoder"]


_BUILT_IN = (decode_pil, decode_tensor, decode_fast)
_WINDOWED = (decode_tensor, decode_fast)  # can decode only the part of a picture that a window needs


_MAX_BITS = 21  # 32 MiB


class CheckedPictures:
    """The pictures that decoded without a warning, so that later epochs may skip rows that no crop needs.

    A set of 64-bit hashes of the bytes, so that a changed picture is checked again.

    Parameters
    ----------
    count : int
        Number of pictures. The set forgets some of very many.

    Notes
    -----
    Forked workers share it. A pickled copy starts empty. Thread-safe, since each slot is one aligned word. Unused slots
    take no memory.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        pairs = 1 << min(count.bit_length() + 1, _MAX_BITS)
        self._hashes = np.frombuffer(mmap.mmap(-1, 16 * pairs), np.uint64).reshape(pairs, 2)

    def __contains__(self, blob: bytes) -> bool:
        digest = xxhash.xxh3_64_intdigest(blob)
        first, second = self._hashes[digest & (len(self._hashes) - 1)]
        return bool(digest in (first, second))

    def add(self, blob: bytes) -> None:
        """Remember a picture, in place of another one if there is no free slot."""
        digest = xxhash.xxh3_64_intdigest(blob)
        pair = self._hashes[digest & (len(self._hashes) - 1)]
        pair[int(pair[0] != 0)] = digest

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._count,)


class Picture(NamedTuple):
    """A picture before decoding.

    Attributes
    ----------
    value : bytes
    header : Header, or None
        If it is a JPEG.
    is_known : bool
        Whether the store has a verdict that it is whole.
    damage : Verdict, or None
        What is known of its damage before decoding.
    """

    value: bytes
    header: Header | None
    is_known: bool
    damage: Verdict | None


class Part(NamedTuple):
    """What to decode of a picture: the crops, drawn for its size after the rotation of its EXIF orientation."""

    header: Header
    orientation: int
    crops: Sequence[CropRequest] = ()


@dataclass(frozen=True)
class PictureDecoder:
    """Decodes pictures with one set of options, which `storeds.readers.ImageReader` describes. Thread-safe.

    Parameters
    ----------
    decode, repair, min_recovered, orient, max_pixels, strided
        As for `ImageReader`.
    cropper : Cropper, optional
        The crop with which the transforms begin. Only a part of the picture is decoded, where that is enough.
    count : int
        Number of pictures in the store.
    """

    decode: str | Decoder
    repair: bool
    min_recovered: float
    orient: bool
    max_pixels: int
    strided: bool = False
    cropper: Cropper | None = None
    count: int = 0
    _function: Decoder = field(init=False, repr=False, compare=False)
    _decoder: Decoder = field(init=False, repr=False, compare=False)
    _checked: CheckedPictures | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function: Decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        checked = CheckedPictures(self.count) if self.cropper is not None and function in _WINDOWED else None
        parts = {"_function": function, "_decoder": self._with_options(function), "_checked": checked}
        for name, value in parts.items():
            object.__setattr__(self, name, value)

    def _with_options(self, decoder: Decoder) -> Decoder:
        """Return the decoder with the options that it accepts. With `orient` it must accept that option."""
        accepted = _parameters(decoder)
        if self.orient and "orient" not in accepted and self.decode != "bytes":
            raise ConfigError(f"decoder {self.decode!r} does not support orient; pil, tensor and fast do")
        options = {"orient": self.orient, "max_pixels": self.max_pixels, "strided": self.strided}
        options = {name: value for name, value in options.items() if name in accepted}
        return functools.partial(decoder, **options) if options else decoder

    def __call__(self, value: bytes, mode: str, stored: Verdict | None, context: SampleContext) -> Any:
        """Decode a picture, or the part of it that a crop needs; raises DecodeError.

        Parameters
        ----------
        value : bytes
        mode : str
        stored : Verdict or None
            The verdict in the store.
        context : SampleContext
            Receives a note of a repair, and draws the crop.
        """
        if self.decode == "bytes":
            return self._decoder(value, mode)
        picture = self.inspect(value, stored)
        part = None if self.cropper is None else self.part(picture)
        if part is not None and self.cropper is not None:
            # Drawn once, also for pictures of which all must be decoded: a transform would draw other windows.
            crops = self.cropper.crops(*oriented_size(part.header, part.orientation), context.generator)
            part = Part(part.header, part.orientation, crops) if crops else None
        return self.decode_image(picture, mode, part, context)

    def inspect(self, value: bytes, stored: Verdict | None) -> Picture:
        """Return a picture with what is known of it before decoding; raises DecodeError if it is too large."""
        header = read_header(value)
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
        is_built_in = self._function in _BUILT_IN
        verdict = stored
        # A strict decode finds the damage of a JPEG. Pillow does not find all damage of other formats.
        if verdict is None and (not is_built_in if value.startswith(SOI) else structure_problem(value).reason):
            verdict = examine(value)
        if verdict is None or verdict.is_whole:
            return Picture(value, header, is_known=stored is not None, damage=None)
        # A third-party decoder may support formats that `examine` does not know.
        is_damaged = verdict.finding != "not_jpeg" or is_built_in
        return Picture(value, header, is_known=False, damage=verdict if is_damaged else None)

    def part(self, picture: Picture) -> Part | None:
        """Return the header and orientation of a picture if a part of it may be enough for the crops, otherwise None."""
        value, header, is_known, damage = picture
        if self._checked is None or header is None or not header.in_one_scan or damage is not None:
            return None
        if not is_known and self._function is not decode_fast and value not in self._checked:
            return None
        orientation = orientation_of(value, header) if self.orient else 1
        return None if orientation is None else Part(header, orientation)

    def decode_image(self, picture: Picture, mode: str, part: Part | None, context: SampleContext) -> Any:
        """Decode a picture. With `part` return a `Cropped` with the windows of its crops.

        A picture that nobody knows to be damaged is decoded strictly. Damage that this finds is handled like damage that was
        known before: what is left is repaired and noted, or DecodeError is raised.
        """
        value, damage = picture.value, picture.damage
        if damage is None and self._function in _BUILT_IN:
            try:
                image = self._strictly(picture, mode, part)
            except (StoredsError, MemoryError):
                raise
            except Exception:  # including warnings of libjpeg, which may be about the header only
                found = examine(value)
                damage = None if found.is_whole else found
            else:
                return image if part is None or isinstance(image, Cropped) else _cropped(image, part.crops)
        note = None if damage is None else self._note_of(value, damage)
        try:
            image = self._decoder(value if damage is None else repair_jpeg(value), mode)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # damaged bytes make decoders raise errors of any type
            kind = DecodeError.kind if damage is None else damage.finding
            raise _refused(
                f"the image cannot be decoded ({_beginning(value)}): {decode_reason(error)}", kind
            ) from error
        if note is not None:
            context.notes.append(note)
        return image if part is None else _cropped(image, part.crops)

    def _strictly(self, picture: Picture, mode: str, part: Part | None) -> Any:
        """Decode the image, or the windows of the crops; raise an error of any type if it may be damaged."""
        value, header, is_known, _ = picture
        images = None if part is None else self._windows(picture, mode, part)
        if images is not None:
            return Cropped(images)
        orientation = part.orientation if part is not None else orientation_of(value, header) if self.orient else 1
        if header is not None and orientation is not None and has_colours(header, mode):
            pixels = jpeg_pixels(value, header, shortcuts=self._function is decode_fast)
            if self._function is decode_pil:
                image: Any = as_pil(pixels, value, orient=self.orient)
            else:
                image = to_tensor(oriented(pixels, orientation), self.strided)
        else:
            if value.startswith(SOI) and not is_known:
                check_jpeg(value, header)
            image = self._decoder(value, mode)
        if value.startswith(SOI) and not is_known:
            # libjpeg does not notice a missing scan. With a single scan, it notices all damage.
            if header is None or not header.in_one_scan:
                check_scans(value)
            elif self._checked is not None:
                self._checked.add(value)
        return image

    def _windows(self, picture: Picture, mode: str, part: Part) -> tuple[Any, ...] | None:
        """Decode the windows of the crops of a picture that is known to be whole; None if all of it must be decoded."""
        value, header, is_known, _ = picture
        assert self._checked is not None
        if not is_known and value not in self._checked:
            if all(divisor(window, size) == 1 for window, size in part.crops):
                return None
            # Decoding at a fraction of the size gives different pixels. They must not depend on what was read before.
            check_jpeg(value, header)
            self._checked.add(value)
        return decode_windows(self._function, value, mode, part.header, part.crops, orientation=part.orientation)

    def _note_of(self, value: bytes, damage: Verdict) -> Note:
        """Return the note of a repair; raise DecodeError if the options do not allow to repair this damage."""
        reason = damage.reason or f"the store's verdict: {damage.finding}"
        if damage.recovered == 0.0:
            raise _refused(f"the image cannot be decoded ({_beginning(value)}): {reason}", damage.finding)
        if not self.repair:
            what = f"and repair is off; {damage.share} of it is there: {reason}"
            raise _refused(f"the image is damaged, {what}", damage.finding)
        if not damage.recovered >= self.min_recovered:
            least = f"less than min_recovered={self.min_recovered}"
            raise _refused(f"the image is damaged: {damage.share} of it is there, {least}; {reason}", damage.finding)
        return Note(damage.finding, f"a damaged picture was repaired; {damage.share} of it is there: {reason}")


def _cropped(image: Any, crops: Sequence[CropRequest]) -> Cropped:
    """Cut the windows of crops out of a whole image, a tensor."""
    return Cropped(tuple(_cut(image, window) for window, _ in crops))


def _cut(image: Any, window: Window) -> Any:
    """Cut a window out of a tensor. Outside the image it is zero."""
    top, left, height, width = window
    first_row, first_column = max(top, 0), max(left, 0)
    inside = image[:, first_row : max(top + height, 0), first_column : max(left + width, 0)]
    if inside.shape[1:] == (height, width):
        return inside
    padded = image.new_zeros((len(image), height, width))
    row, column = first_row - top, first_column - left
    padded[:, row : row + inside.shape[1], column : column + inside.shape[2]] = inside
    return padded


def _beginning(value: bytes) -> str:
    return f"{len(value)} bytes beginning {value[:4].hex(' ')}" if value else "it is empty"


def _parameters(decoder: Decoder) -> list[str]:
    try:
        return list(inspect.signature(decoder).parameters)
    except ValueError:  # a built-in function has no signature
        return []


def _refused(reason: str, kind: str) -> DecodeError:
    error = DecodeError(reason)
    error.kind = kind
    return error
