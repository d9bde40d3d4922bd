"""Decodes one picture for a sample: `look` at it, then `decode` all of it, or the windows that crops need."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from storeds.errors import ConfigError, DecodeError, StoredsError
from storeds.pictures.cuts import JpegCutter, JpegPart
from storeds.pictures.decoders import (
    COLOURS,
    as_pil,
    bad_picture,
    check_pixels,
    convert,
    decode_fast,
    decode_pil,
    decode_tensor,
    has_colours,
    jpeg_pixels,
    orientation_of,
    oriented,
    oriented_size,
    to_tensor,
)
from storeds.pictures.formats import decode_reason, structure_problem
from storeds.pictures.header import SOI, Header, coverage, parse, read_header
from storeds.pictures.verdict import Verdict, examine
from storeds.pictures.verdict import repair as repair_jpeg
from storeds.protocols import Array, Cropped, Cropper, CropRequest, Decoder, Repair, SampleContext, Window
from storeds.records.samples import ORIENTATIONS
from storeds.registry import DECODERS

if TYPE_CHECKING:
    import torch

__all__ = ["Picture", "PictureDecoder", "decode_windows", "draw_crops"]

_BUILT_IN = (decode_pil, decode_tensor, decode_fast)
_WINDOWED = (decode_tensor, decode_fast)  # can decode only the part of a picture that a window needs


class Picture(NamedTuple):
    """A picture before decoding.

    Attributes
    ----------
    blob : bytes
    header : Header, or None
        If it is a JPEG that simplejpeg decodes to the mode of the decoder.
    orientation : int
        The EXIF orientation, 1 to 8, by which that is rotated.
    is_known : bool
        Whether the store has a verdict that it is whole.
    damage : Verdict, or None
        What is known of its damage before decoding.
    may_crop : bool
        Whether a part of it may be enough for a crop.
    """

    blob: bytes
    header: Header | None
    orientation: int
    is_known: bool
    damage: Verdict | None
    may_crop: bool

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width after the rotation, if they are known before decoding."""
        return None if self.header is None else oriented_size(self.header, self.orientation)


@dataclass(frozen=True)
class PictureDecoder:
    """Decodes pictures with one set of options. Keeps nothing between pictures, so it is thread-safe.

    Parameters
    ----------
    decoder : str or Decoder
        ``pil``, ``tensor``, ``fast``, a registered name, or a function.
    mode, repair, min_recovered, orient, max_pixels, strided
        As for `storeds.readers.image`.

    Raises
    ------
    ConfigError
        The decoder is unknown, or does not rotate pictures.
    """

    decoder: str | Decoder
    mode: str
    repair: bool
    min_recovered: float
    orient: bool
    max_pixels: int
    strided: bool = False
    _function: Decoder = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        function: Any = DECODERS.get(self.decoder) if isinstance(self.decoder, str) else self.decoder
        if self.orient and function not in _BUILT_IN:
            raise ConfigError(f"decoder {self.decoder!r} does not support orient; pil, tensor and fast do")
        object.__setattr__(self, "_function", function)

    def look(self, blob: bytes, verdict: Verdict | None) -> Picture:
        """Return a picture with what is known of it before decoding; raises DecodeError if it is too large.

        Parameters
        ----------
        blob : bytes
        verdict : Verdict or None
            The verdict in the store.
        """
        is_built_in, header, orientation = self._function in _BUILT_IN, read_header(blob), None
        if header is not None:
            check_pixels(header.width, header.height, self.max_pixels)
            orientation = orientation_of(blob, header) if self.orient else 1
            if orientation is None or not (is_built_in and has_colours(header, self.mode)):
                header = None
        found = verdict
        # Pillow hides the warnings of libjpeg, and does not find all damage of other formats.
        if found is None and header is None and (blob.startswith(SOI) or structure_problem(blob)[0]):
            found = examine(blob)
        is_damaged = found is not None and not found.is_whole
        if found is not None and found.finding == "not_jpeg" and not is_built_in:
            is_damaged = False  # a decoder of the user may support formats that `examine` does not know
        is_known = verdict is not None and not is_damaged
        # Without a verdict, `decode_tensor` decodes all of a picture, which is the fastest way to judge it.
        is_enough = (is_known and self._function in _WINDOWED) or self._function is decode_fast
        may_crop = is_enough and header is not None and header.in_one_scan and not is_damaged
        return Picture(blob, header, orientation or 1, is_known, found if is_damaged else None, may_crop)

    def decode(self, picture: Picture, crops: Sequence[CropRequest] = ()) -> tuple[Any, Repair | None]:
        """Return the decoded picture, and how it was repaired; raises DecodeError.

        A picture that is not known to be damaged is decoded strictly. Damage that this finds is handled like damage that
        was known before: what is left is repaired, or DecodeError is raised.

        Parameters
        ----------
        picture : Picture
        crops : sequence of CropRequest
            What `draw_crops` drew. Then the result is a `Cropped` with their windows.
        """
        blob, damage = picture.blob, picture.damage
        if damage is None and self._function in _BUILT_IN:
            try:
                return self._strictly(picture, crops), None
            except (StoredsError, MemoryError):
                raise
            except Exception:  # including warnings of libjpeg, which may be about the header only
                found = examine(blob)
                damage = None if found.is_whole else found
        repair = None if damage is None else self._repair_of(blob, damage)
        try:
            image = self._leniently(blob if damage is None else repair_jpeg(blob))
        except (StoredsError, MemoryError):
            raise
        except Exception as error:  # damaged bytes make decoders raise errors of any type
            kind = DecodeError.kind if damage is None else damage.finding
            raise bad_picture(
                f"the image cannot be decoded ({_beginning(blob)}): {decode_reason(error)}", kind
            ) from error
        return _cropped(image, crops), repair

    def of_pixels(self, pixels: Array) -> Any:
        """Return pixels, channels × height × width, as this decoder returns a file of them; other decoders get a PNG.

        Parameters
        ----------
        pixels : array
            uint8, or uint16 of a single channel.

        Raises
        ------
        DecodeError
            The array does not have three dimensions, the first of 1, 3 or 4 channels, or has no pixels.
        """
        if pixels.ndim != 3 or len(pixels) not in (1, 3, 4) or not pixels.size:
            raise DecodeError(
                f"an array of shape {pixels.shape} is no image of 1, 3 or 4 channels with pixels; reader='array' reads it"
            )
        rows = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        image = Image.fromarray(rows[..., 0] if rows.shape[2] == 1 else rows)
        image = convert(image, self.mode)
        if self._function is decode_pil:
            return image
        if self._function in _WINDOWED:
            return to_tensor(np.array(image), self.strided)
        file = io.BytesIO()
        image.save(file, "PNG", compress_level=1)
        return self._function(file.getvalue(), self.mode)

    def _strictly(self, picture: Picture, crops: Sequence[CropRequest]) -> Any:
        """Decode the image, or the windows of the crops; raise an error of any type if it may be damaged."""
        blob, header, orientation, is_known = picture[:4]
        if header is None:
            return _cropped(self._leniently(blob), crops)
        # Without a verdict, `decode_fast` decodes all of a picture, at the smaller scale that is enough for the crop.
        if crops and (is_known or any(_divisor(crop) > 1 for crop in crops)):
            windows = decode_windows(
                self._function, blob, self.mode, header, crops, orientation=orientation, is_whole=is_known
            )
            if windows is not None:
                return Cropped(windows)
        pixels = jpeg_pixels(blob, header, shortcuts=self._function is decode_fast)
        if not (
            is_known or header.in_one_scan
        ):  # libjpeg does not notice a missing scan, but all damage of a single one
            found = parse(blob)
            if found.ending != "eoi" or coverage(found, found.scans) < 1.0:
                raise ValueError(found.reason or "its scans lack some coefficients")
        if self._function is decode_pil:
            return as_pil(pixels, blob, orient=self.orient)
        return _cropped(to_tensor(oriented(pixels, orientation), self.strided), crops)

    def _leniently(self, blob: bytes) -> Any:
        """Decode the whole picture by a decoder that reports no warnings."""
        if self._function not in _BUILT_IN:
            return self._function(blob, self.mode)
        options: dict[str, Any] = {"strided": self.strided} if self._function in _WINDOWED else {}
        decode: Any = self._function
        return decode(blob, self.mode, orient=self.orient, max_pixels=self.max_pixels, **options)

    def _repair_of(self, blob: bytes, damage: Verdict) -> Repair:
        """Return what a repair is reported as; raise DecodeError if the options do not allow to repair this damage."""
        reason = damage.reason or f"the store's verdict: {damage.finding}"
        if damage.recovered == 0.0:
            raise bad_picture(f"the image cannot be decoded ({_beginning(blob)}): {reason}", damage.finding)
        if not self.repair:
            what = f"and repair is off; {damage.share} of it is there: {reason}"
            raise bad_picture(f"the image is damaged, {what}", damage.finding)
        if not damage.recovered >= self.min_recovered:
            least = f"less than min_recovered={self.min_recovered}"
            raise bad_picture(f"the image is damaged: {damage.share} of it is there, {least}; {reason}", damage.finding)
        return Repair(damage.finding, f"a damaged picture was repaired; {damage.share} of it is there: {reason}")


def draw_crops(cropper: Cropper | None, pictures: Collection[Picture], context: SampleContext) -> Sequence[CropRequest]:
    """Draw the crops with which the transforms begin, if a part of each picture may be enough; otherwise nothing.

    They are for the size of the pictures after the rotation of their EXIF orientation. They are drawn once, also for
    pictures of which all turns out to be needed: a transform would draw other windows.
    """
    if cropper is None or not all(picture.may_crop for picture in pictures):
        return ()
    size, *others = {picture.size for picture in pictures} or {None}
    return () if others or size is None else cropper.crops(*size, context.generator)


def _cropped(image: Any, crops: Sequence[CropRequest]) -> Any:
    """Cut the windows of crops out of a whole image, a tensor. Without crops, return the image."""
    return Cropped(tuple(_cut(image, window) for window, _ in crops)) if crops else image


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


def _beginning(blob: bytes) -> str:
    return f"{len(blob)} bytes beginning {blob[:4].hex(' ')}" if blob else "it is empty"


# --- Windows ---

# The warning of libjpeg-turbo about data that go on after the last line of a part.
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd(9|[0-7])")


def decode_windows(
    decoder: Decoder,
    blob: bytes,
    mode: str,
    header: Header,
    crops: Sequence[CropRequest],
    *,
    orientation: int = 1,
    is_whole: bool = True,
) -> tuple[torch.Tensor, ...] | None:
    """Decode the windows of a picture. Return None if the picture must be decoded completely at its own scale.

    This is so, for example, if a window reaches beyond an edge of the picture.

    `decode_fast` decodes a window at a half, a quarter or an eighth of its size, if the crop needs no more pixels.

    Parameters
    ----------
    is_whole : bool
        Whether the picture is known to be whole. Otherwise all of it is decoded at that scale, and damage anywhere gives
        None.
    """
    full_height, full_width = oriented_size(header, orientation)
    for (top, left, height, width), _ in crops:
        if top < 0 or left < 0 or top + height > full_height or left + width > full_width:
            return None
    if not has_colours(header, mode):
        return None
    shortcuts, cutter = decoder is decode_fast, JpegCutter(blob, header) if is_whole else None
    images = []
    for crop in crops:
        by = _divisor(crop) if shortcuts else 1
        window = _scaled_down(_stored_window(crop.window, header, orientation), by, header)
        pixels = _window_pixels(cutter, blob, header, window, by, shortcuts=shortcuts)
        if pixels is None:
            return None
        images.append(to_tensor(oriented(pixels, orientation), strided=True))
    return tuple(images)


def _divisor(crop: CropRequest) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image may be decoded smaller so that the window keeps its size."""
    (_, _, height, width), (rows, columns) = crop
    return next(by for by in (8, 4, 2, 1) if by == 1 or (height >= by * rows and width >= by * columns))


def _stored_window(window: Window, header: Header, orientation: int) -> Window:
    """Return where a window of the rotated picture is in the stored one."""
    top, left, height, width = window
    swap, reverse_rows, reverse_columns = ORIENTATIONS[orientation]
    full_height, full_width = oriented_size(header, orientation)
    top = full_height - top - height if reverse_rows else top
    left = full_width - left - width if reverse_columns else left
    return (left, top, width, height) if swap else (top, left, height, width)


def _scaled_down(window: Window, by: int, header: Header) -> Window:
    """Return a window of a picture in the picture that is decoded `by` times smaller."""
    if by == 1:
        return window
    height, width = -(-header.height // by), -(-header.width // by)
    top, left = min(round(window[0] / by), height - 1), min(round(window[1] / by), width - 1)
    return top, left, min(max(round(window[2] / by), 1), height - top), min(max(round(window[3] / by), 1), width - left)


def _window_pixels(
    cutter: JpegCutter | None, blob: bytes, header: Header, window: Window, by: int, *, shortcuts: bool
) -> Array | None:
    """Return the pixels of a window in the picture that is `by` times smaller; None if all of it must be decoded."""
    top, left, height, width = window
    part = None if cutter is None else cutter.part(by * top, by * left, by * (top + height), by * (left + width))
    if part is None:
        if by == 1 and cutter is not None:
            return None
        part = JpegPart(blob, 0, 0, header.height, header.width, ends_early=False)
    rows, columns = -(-part.height // by), -(-part.width // by)
    # simplejpeg raises for the expected warning as well, so the pixels go into a buffer of our own.
    pixels = np.empty((rows, columns, header.components), np.uint8)
    try:
        simplejpeg.decode_jpeg(
            part.blob,
            colorspace=COLOURS[header.components][1],
            fastdct=shortcuts,
            fastupsample=shortcuts,
            min_height=rows,
            min_width=columns,
            min_factor=by,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        rest = _REST.fullmatch(str(error)) if part.ends_early else None
        if rest is None or not (header.interval or rest[1] == "9"):
            return None
    top, left = top - part.top // by, left - part.left // by
    return pixels[top : top + height, left : left + width]
