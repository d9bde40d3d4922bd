"""Decodes one picture: verdict, repair, and only the part that a crop needs."""

from __future__ import annotations

import functools
import inspect
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xxhash

from storeds.errors import ConfigError, DecodeError, StoredsError
from storeds.jpeg import Verdict, check_other, examine, sniff, triage
from storeds.jpeg import repair as repair_jpeg
from storeds.jpeg.markers import SOI, Header, parse, read_header
from storeds.protocols import Cropped, Cropper, CropRequest, Decoder, Note, SampleContext, Window
from storeds.readers.decoders import (
    check_jpeg,
    check_pixels,
    decode_fast,
    decode_pil,
    decode_reason,
    decode_tensor,
    decode_windows,
    divisor,
    orientation_of,
    oriented_size,
)
from storeds.registry import DECODERS

__all__ = ["Part", "Picture", "PictureDecoder"]


_BUILT_IN = (decode_pil, decode_tensor, decode_fast)  # with strict=True they raise for warnings of libjpeg
_WINDOWED = (decode_tensor, decode_fast)  # can decode only the part of a picture that a window needs
_LOOKS_WHOLE = "the verdict in its store says so, although its bytes look whole now"


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
    verdict : Verdict, or None
        If it is known before decoding.
    is_damaged : bool
        Whether `verdict` demands a repair before decoding.
    """

    value: bytes
    header: Header | None
    verdict: Verdict | None
    is_damaged: bool


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
    _strict: Callable[..., Any] | None = field(init=False, repr=False, compare=False)
    _checked: CheckedPictures | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function: Decoder = DECODERS.get(self.decode) if isinstance(self.decode, str) else self.decode
        decoder = self._with_options(function)
        # A Decoder of a user takes no `strict`; the built-in ones do.
        strict = functools.partial(decoder, strict=True) if function in _BUILT_IN else None  # type: ignore[call-arg]
        checked = CheckedPictures(self.count) if self.cropper is not None and function in _WINDOWED else None
        parts = {"_function": function, "_decoder": decoder, "_strict": strict, "_checked": checked}
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
        return self.decode_part(picture, mode, self._drawn(picture, context), context)

    def inspect(self, value: bytes, stored: Verdict | None) -> Picture:
        """Return a picture with what is known of it before decoding; raises DecodeError if it is too large."""
        header = read_header(value)
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
        verdict = stored or self._before_decoding(value)
        if verdict is None or verdict.is_whole:
            return Picture(value, header, verdict, is_damaged=False)
        # A third-party decoder may support formats that `examine` does not know.
        return Picture(value, header, verdict, is_damaged=verdict.kind != "not_jpeg" or self._strict is not None)

    def part(self, picture: Picture) -> Part | None:
        """Return the header and orientation of a picture if a part of it may be enough for the crops, otherwise None."""
        value, header, verdict, is_damaged = picture
        if self._checked is None or header is None or not header.in_one_scan or is_damaged:
            return None
        if verdict is None and self._function is not decode_fast and value not in self._checked:
            return None
        orientation = orientation_of(value, header) if self.orient else 1
        return None if orientation is None else Part(header, orientation)

    def decode_part(self, picture: Picture, mode: str, part: Part | None, context: SampleContext) -> Any:
        """Decode a picture. With `part` return a `Cropped` with the windows of its crops."""
        if picture.is_damaged:
            assert picture.verdict is not None
            return self._repaired(picture.value, mode, picture.verdict, context)
        image = self._judged(picture, mode, part, context)
        return image if part is None or isinstance(image, Cropped) else _cropped(image, part.crops)

    def _judged(
        self,
        picture: Picture,
        mode: str,
        part: Part | None,
        context: SampleContext,
    ) -> Any:
        """Decode a picture that no verdict calls damaged; repair it if its decoder finds damage."""
        value, header, verdict, _ = picture
        if self._strict is not None:
            try:
                return self._whole(value, mode, header, verdict, part)
            except (StoredsError, MemoryError):
                raise
            except Exception:  # including warnings of libjpeg, which may be about the header only
                verdict = examine(value)
                if not verdict.is_whole and verdict.kind != "not_jpeg":
                    return self._repaired(value, mode, verdict, context)
        return self._decoded(value, value, mode, verdict)

    def _before_decoding(self, value: bytes) -> Verdict | None:
        """Return the verdict on a picture without a stored one, or None if decoding will find the damage."""
        if not value.startswith(SOI):
            return check_other(value)
        return None if self._strict is not None else examine(value)

    def _drawn(self, picture: Picture, context: SampleContext) -> Part | None:
        """Draw the crops that the transform begins with, if a part of the picture may be enough for them."""
        part = self.part(picture)
        if part is None or self.cropper is None:
            return None
        # Drawn once, also for pictures of which all must be decoded: a transform would draw other windows.
        crops = self.cropper.crops(*oriented_size(part.header, part.orientation), context.generator)
        return Part(part.header, part.orientation, crops) if crops else None

    def _whole(self, value: bytes, mode: str, header: Header | None, verdict: Verdict | None, part: Part | None) -> Any:
        """Decode the image, or the part that the crops need; raise an error of any type if it may be damaged."""
        assert self._strict is not None
        if self._is_known(value, verdict, part):
            images = None
            if part is not None:
                images = decode_windows(
                    self._function, value, mode, part.header, part.crops, orientation=part.orientation
                )
            return self._strict(value, mode, examined=True) if images is None else Cropped(images)
        image = self._strict(value, mode)
        # libjpeg does not notice a missing scan. With a single scan, it notices all damage.
        in_one_scan = header is not None and header.in_one_scan
        if not in_one_scan and triage(value).is_damaged:
            raise ValueError("its structure is damaged")
        if self._checked is not None and in_one_scan:
            self._checked.add(value)
        return image

    def _is_known(self, value: bytes, verdict: Verdict | None, part: Part | None) -> bool:
        """Return whether a picture is known to be whole; raise ValueError if a check here finds damage."""
        if verdict is not None or part is None or self._checked is None:
            return verdict is not None
        if value in self._checked:
            return True
        if all(divisor(window, size) == 1 for window, size in part.crops):
            return False
        # Decoding at a fraction of the size gives different pixels. They must not depend on what was read before.
        check_jpeg(value)
        self._checked.add(value)
        return True

    def _repaired(self, value: bytes, mode: str, verdict: Verdict, context: SampleContext) -> Any:
        """Repair and decode a damaged picture, and note it; raise DecodeError if the options do not allow it."""
        reason = verdict.reason or _visible_damage(value, verdict.kind) or _LOOKS_WHOLE
        if not self.repair:
            raise _refused(f"the image is damaged, and repair is off: {reason}", verdict.kind)
        if verdict.recovered == 0.0 and verdict.exact:
            raise _refused(f"the image cannot be decoded ({_beginning(value)}): {reason}", verdict.kind)
        if verdict.recovered < self.min_recovered:
            raise _refused(
                f"the image is damaged: {verdict.share} of it is there, "
                f"less than min_recovered={self.min_recovered}; {reason}",
                verdict.kind,
            )
        image = self._decoded(value, repair_jpeg(value), mode, verdict)
        context.notes.append(
            Note(verdict.kind, f"a damaged picture was repaired; {verdict.share} of it is there: {reason}")
        )
        return image

    def _decoded(self, value: bytes, blob: bytes, mode: str, verdict: Verdict | None) -> Any:
        """Decode `blob`, which is `value` or a repaired copy of it."""
        try:
            return self._decoder(blob, mode)
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # damaged bytes make decoders raise errors of any type
            kind = DecodeError.kind if verdict is None or verdict.is_whole else verdict.kind
            what = f"{_beginning(value)}, {sniff(value)}" if kind == "not_jpeg" and value else _beginning(value)
            raise _refused(f"the image cannot be decoded ({what}): {decode_reason(error)}", kind) from error


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


def _visible_damage(value: bytes, kind: str) -> str:
    """Return the damage that the structure of a picture shows, or an empty text; `kind` is its stored verdict."""
    if value.startswith(SOI):
        structure = parse(value)
        if structure.ending == "cut" and kind == "missing_eoi":
            return f"there is no end marker at byte {structure.end}"
        pixels = "" if structure.scans else ", before any pixel"
        return f"it is cut {structure.reason}{pixels}" if structure.ending == "cut" else structure.reason
    found = check_other(value)
    if found is None:
        return f"it is not a JPEG but {sniff(value)}"
    return "" if found.is_whole else found.reason


def _parameters(decoder: Decoder) -> list[str]:
    try:
        return list(inspect.signature(decoder).parameters)
    except ValueError:  # a built-in function has no signature
        return []


def _refused(reason: str, kind: str) -> DecodeError:
    error = DecodeError(reason)
    error.kind = kind
    return error
