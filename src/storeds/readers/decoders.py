"""The built-in decoders, which return stored bytes, a Pillow image, or a uint8 tensor.

simplejpeg decodes JPEGs by libjpeg-turbo wherever that gives the pixels that Pillow gives: it reports damage that
Pillow hides. It always runs with ``strict=True``, because it may otherwise return memory that was never written, such
as an earlier picture.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps

from storeds.errors import DecodeError
from storeds.jpeg import MAX_PIXELS
from storeds.jpeg.cuts import JpegCutter, JpegPart
from storeds.jpeg.markers import SOI, read_header
from storeds.records.roles import ORIENTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from storeds.jpeg.markers import Header
    from storeds.protocols import Array, CropRequest, Decoder, Window

__all__ = [
    "UNCHANGED",
    "any_orientation",
    "check_jpeg",
    "check_pixels",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_reason",
    "decode_tensor",
    "decode_windows",
    "divisor",
    "jpeg_pixels",
    "orientation_of",
    "oriented_size",
    "scaled_down",
    "to_tensor",
]

UNCHANGED = "unchanged"

_PNG_ORIENTED = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")

_ADDRESS = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>")
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_MODES = {"Gray": ("L", "GRAY"), "YCbCr": ("RGB", "RGB")}
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd(9|[0-7])")


def decode_reason(error: Exception) -> str:
    """Return why a decoder failed, without the memory address in Pillow's message: equal bytes give an equal text."""
    reason = f"{type(error).__name__}: {_ADDRESS.sub('', str(error))}"
    if isinstance(error, Warning):
        # Changing the filters here would not be thread-safe: they belong to the process.
        reason += (
            "; this is a warning, which this process turns into an error: warnings.filterwarnings('default', module='PIL') "
            "exempts Pillow's warnings"
        )
    return reason


def check_pixels(width: int, height: int, limit: int) -> None:
    """Raise DecodeError for a picture of more pixels than `limit`, before memory is allocated for it."""
    if width * height > limit:
        error = DecodeError(
            f"it claims {width:,} x {height:,} pixels, more than max_pixels={limit:,}; pass a larger max_pixels if that is right"
        )
        error.kind = "too_large"
        raise error


def decode_bytes(blob: bytes, mode: str) -> bytes:
    """Return the stored bytes unchanged."""
    return blob


def decode_pil(
    blob: bytes,
    mode: str,
    *,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    strict: bool = False,
    examined: bool = False,
) -> Image.Image:
    """Return the image in `mode`, fully loaded.

    Parameters
    ----------
    mode : str
        A Pillow mode. The image is converted as by ``PIL.Image.Image.convert``: CMYK and YCCK as their file says,
        palettes to their colours, alpha dropped. But 16-bit samples keep their upper 8 bits, where Pillow clips. Wider
        integers and floats outside 0 … 255 raise DecodeError. ``"unchanged"`` keeps the mode of the file: palette
        indices, alpha and 16 bits too.
    orient : bool
        Rotate the image according to its EXIF orientation.
    max_pixels : int
        Maximum number of pixels that the header may claim.
    strict : bool
        Raise ValueError for a JPEG that libjpeg-turbo warns of. By default, return what is there of the picture, as
        Pillow does.
    examined : bool
        `storeds.jpeg.examine` found the picture whole. Then `strict` needs no extra decode at an eighth of the size
        where Pillow must convert colours.

    Raises
    ------
    DecodeError
        The header claims too many pixels (before any memory is allocated), or `mode` cannot hold the values. For bytes
        that Pillow cannot decode, it raises its own errors.
    """
    try:
        opened = Image.open(io.BytesIO(blob))
    except Image.DecompressionBombError as error:
        refused = DecodeError(f"it claims more pixels than Pillow takes: {error}")
        refused.kind = "too_large"
        raise refused from None
    with opened as image:
        check_pixels(*image.size, max_pixels)
        whole = _by_simplejpeg(image, blob, mode, max_pixels) if strict and blob.startswith(SOI) else None
        if whole is not None:
            return ImageOps.exif_transpose(whole) if orient else whole
        if strict and not examined and blob.startswith(SOI):
            check_jpeg(blob)
        image.load()
        return _convert(ImageOps.exif_transpose(image) if orient else image, mode)


def _by_simplejpeg(image: Image.Image, blob: bytes, mode: str, max_pixels: int) -> Image.Image | None:
    """Decode an opened JPEG with simplejpeg; return None if Pillow must decode it. Raise ValueError for damage."""
    pixels = jpeg_pixels(blob, image.mode if mode == UNCHANGED else mode, max_pixels)
    if pixels is None:
        return None
    whole = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    whole.info = image.info
    return whole


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if mode in (UNCHANGED, image.mode):
        return image.copy()
    if mode not in ("I", "F", *_SIXTEEN_BITS):
        _check_range(image, mode)
    if image.mode in _SIXTEEN_BITS and mode not in ("I", "F", *_SIXTEEN_BITS):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # otherwise Pillow warns
    return image.convert(mode)


def _check_range(image: Image.Image, mode: str) -> None:
    """Raise DecodeError for values that Pillow would clip to 0 … 255. An image in 0 … 1 would become black."""
    if image.mode not in ("F", "I"):
        return
    low, high = (float(end) for end in image.getextrema())  # type: ignore[arg-type]  # of one band
    if low < 0 or high > 255 or (image.mode == "F" and 0 < high <= 1):
        error = DecodeError(
            f"the image has values from {low:g} to {high:g}, which mode {mode!r} would clip to 0 … 255: read it with "
            f"mode={image.mode!r} or 'unchanged', and scale it in a transform"
        )
        error.kind = "out_of_range"
        raise error


def decode_tensor(
    blob: bytes,
    mode: str,
    *,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    strided: bool = False,
    strict: bool = False,
    examined: bool = False,
) -> torch.Tensor:
    """Return the pixels of `decode_pil` as a tensor of shape (channels, height, width), which owns its memory.

    The dtype is uint8. For images of another depth in mode ``"unchanged"``, ``"I"`` or ``"F"`` it is uint16, int32 or
    float32. simplejpeg decodes whole JPEGs, to the same pixels.

    Parameters
    ----------
    strided : bool
        Keep the channels last in memory, as the decoder writes them, which saves a copy.
    strict, examined : bool
        As for `decode_pil`.
    """
    pixels = _pixels(blob, mode, max_pixels, orient=orient, strict=strict)
    if pixels is None:
        image = decode_pil(blob, mode, orient=orient, max_pixels=max_pixels, strict=strict, examined=examined)
        pixels = np.array(image)
    return to_tensor(pixels, strided)


def decode_fast(
    blob: bytes,
    mode: str,
    *,
    orient: bool = False,
    max_pixels: int = MAX_PIXELS,
    strided: bool = False,
    strict: bool = False,
    examined: bool = False,
) -> torch.Tensor:
    """Return nearly the same as `decode_tensor`, with libjpeg-turbo's fast DCT and fast upsampling.

    On photographs values differ by 1.3 of 256 levels on average, by at most 8 in 99 of 100 pixels, and by up to 69
    where colours change sharply. Anything but a whole JPEG is exact.
    """
    pixels = _pixels(blob, mode, max_pixels, orient=orient, strict=strict, shortcuts=True)
    if pixels is not None:
        return to_tensor(pixels, strided)
    return decode_tensor(
        blob, mode, orient=orient, max_pixels=max_pixels, strided=strided, strict=strict, examined=examined
    )


def _pixels(
    blob: bytes, mode: str, max_pixels: int, *, orient: bool, strict: bool, shortcuts: bool = False
) -> Array | None:
    """Return the pixels that simplejpeg decodes; None if Pillow must decode."""
    orientation = orientation_of(blob) if orient else 1
    if orientation is None:
        return None
    try:
        pixels = jpeg_pixels(blob, mode, max_pixels, shortcuts=shortcuts)
    except ValueError:
        if strict:
            raise
        return None
    return pixels if pixels is None else _oriented(pixels, orientation)


def orientation_of(blob: bytes, header: Header | None = None) -> int | None:
    """Return the EXIF orientation of a JPEG, 1 to 8; None if only decoding tells."""
    header = header or read_header(blob)
    if header is None:
        return None
    if not header.has_exif:
        return 1
    try:
        with Image.open(io.BytesIO(blob)) as image:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata make Pillow raise errors of any type
        return None
    return orientation if orientation in ORIENTATIONS else 1


def any_orientation(blob: bytes, header: Header | None = None) -> int:
    """Return the EXIF orientation, 1 to 8, by which a decoder with ``orient=True`` rotates a picture of any format."""
    known = orientation_of(blob, header)
    if known is not None:
        return known
    if blob.startswith(b"\x89PNG") and not any(name in blob for name in _PNG_ORIENTED):
        return 1  # otherwise Pillow decodes the picture in search of a late chunk
    with Image.open(io.BytesIO(blob)) as image:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    return orientation if orientation in ORIENTATIONS else 1


def _oriented(pixels: Array, orientation: int) -> Array:
    """Return the pixels, (height, width, channels), as `PIL.ImageOps.exif_transpose` rotates them."""
    if orientation == 1:
        return pixels
    swap, reverse_rows, reverse_columns = ORIENTATIONS[orientation]
    rotated = pixels.swapaxes(0, 1) if swap else pixels
    # A tensor has no negative strides.
    return np.ascontiguousarray(rotated[:: -1 if reverse_rows else 1, :: -1 if reverse_columns else 1])


def oriented_size(header: Header, orientation: int) -> tuple[int, int]:
    """Return (height, width) of the rotated picture."""
    swap, _, _ = ORIENTATIONS[orientation]
    return (header.width, header.height) if swap else (header.height, header.width)


def _stored_window(window: Window, header: Header, orientation: int) -> Window:
    """Return where a window of the rotated picture is in the stored one."""
    top, left, height, width = window
    swap, reverse_rows, reverse_columns = ORIENTATIONS[orientation]
    full_height, full_width = oriented_size(header, orientation)
    top = full_height - top - height if reverse_rows else top
    left = full_width - left - width if reverse_columns else left
    return (left, top, width, height) if swap else (top, left, height, width)


def decode_windows(
    decoder: Decoder, blob: bytes, mode: str, header: Header, crops: Sequence[CropRequest], *, orientation: int = 1
) -> tuple[torch.Tensor, ...] | None:
    """Decode the windows of a whole picture. Return None if the picture must be decoded completely.

    This is so, for example, if a window reaches beyond an edge of the picture.

    `decode_fast` decodes a window at a half, a quarter or an eighth of its size, if the crop needs no more pixels. This
    finds no damage outside the windows, so use it only for pictures that are known to be whole.
    """
    full_height, full_width = oriented_size(header, orientation)
    for (top, left, height, width), _ in crops:
        if top < 0 or left < 0 or top + height > full_height or left + width > full_width:
            return None
    shortcuts, cutter = decoder is decode_fast, JpegCutter(blob, header)
    images = []
    for window, size in crops:
        by = divisor(window, size) if shortcuts else 1
        stored = scaled_down(_stored_window(window, header, orientation), by, header.height, header.width)
        pixels = _window_pixels(cutter, blob, mode, header, stored, by, shortcuts=shortcuts)
        if pixels is None:
            return None
        images.append(to_tensor(_oriented(pixels, orientation), strided=True))
    return tuple(images)


def _window_pixels(
    cutter: JpegCutter, blob: bytes, mode: str, header: Header, window: Window, by: int, *, shortcuts: bool
) -> Array | None:
    """Return the pixels of a window in the picture that is `by` times smaller; None if all of it must be decoded."""
    top, left, height, width = window
    part = cutter.part(by * top, by * left, by * (top + height), by * (left + width))
    if part is None:
        if by == 1:
            return None
        part = JpegPart(blob, 0, 0, header.height, header.width, ends_early=False)
    pixels = _part_pixels(part, mode, header, by, shortcuts=shortcuts)
    if pixels is None:
        return None
    top, left = top - part.top // by, left - part.left // by
    return pixels[top : top + height, left : left + width]


def _part_pixels(part: JpegPart, mode: str, header: Header, by: int, *, shortcuts: bool) -> Array | None:
    """Decode a part of a picture, `by` times smaller; return None if the whole picture must be decoded."""
    height, width = -(-part.height // by), -(-part.width // by)
    try:
        own_mode, name = _MODES.get(_jpeg_header(part.blob)[2], ("", ""))
        if own_mode != mode:
            return None
        # simplejpeg raises for the expected warning as well, so the pixels go into a buffer of our own.
        pixels = np.empty((height, width, 1 if name == "GRAY" else 3), np.uint8)
        simplejpeg.decode_jpeg(
            part.blob,
            colorspace=name,
            fastdct=shortcuts,
            fastupsample=shortcuts,
            min_height=height,
            min_width=width,
            min_factor=by,
            buffer=pixels,
            strict=True,
        )
    except ValueError as error:
        rest = _REST.fullmatch(str(error)) if part.ends_early else None
        return pixels if rest and (header.interval or rest[1] == "9") else None
    return pixels


def divisor(window: Window, size: tuple[int, int]) -> int:
    """Return the factor, 1, 2, 4 or 8, by which an image may be decoded smaller so that the window keeps `size` pixels."""
    return next(by for by in (8, 4, 2, 1) if by == 1 or (window[2] >= by * size[0] and window[3] >= by * size[1]))


def scaled_down(window: Window, by: int, height: int, width: int) -> Window:
    """Return a window of a picture of `height` × `width` pixels in the picture that is decoded `by` times smaller."""
    if by == 1:
        return window
    height, width = -(-height // by), -(-width // by)
    top, left = min(round(window[0] / by), height - 1), min(round(window[1] / by), width - 1)
    return top, left, min(max(round(window[2] / by), 1), height - top), min(max(round(window[3] / by), 1), width - left)


def to_tensor(pixels: Array, strided: bool) -> torch.Tensor:
    """Return pixels of shape (height, width) or (height, width, channels) as a tensor with the channels first."""
    import torch

    if not pixels.dtype.isnative:
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
    if pixels.ndim == 2:
        return torch.from_numpy(pixels[None])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor if strided else tensor.contiguous()


def jpeg_pixels(blob: bytes, mode: str, max_pixels: int, *, shortcuts: bool = False) -> Array | None:
    """Decode a JPEG with simplejpeg to uint8 pixels of shape (height, width, channels).

    Returns None, so that Pillow decodes, if the bytes are not a JPEG, or if its colours are not those of `mode`.

    Parameters
    ----------
    shortcuts : bool
        Use libjpeg-turbo's fast DCT and fast upsampling of colours, which give slightly different pixels.

    Raises
    ------
    ValueError
        libjpeg-turbo fails on the file or warns of damage.
    """
    if not blob.startswith(b"\xff\xd8"):
        return None
    height, width, colour = _jpeg_header(blob)
    own_mode, name = _MODES.get(colour, ("", ""))
    if own_mode != mode or height * width > max_pixels:
        return None
    pixels: Array = simplejpeg.decode_jpeg(
        blob, colorspace=name, fastdct=shortcuts, fastupsample=shortcuts, strict=True
    )
    return pixels


def _jpeg_header(blob: bytes) -> tuple[int, int, str]:
    """Return height, width and colour space. The last is empty for a subsampling that simplejpeg does not know."""
    try:
        height, width, colour, _ = simplejpeg.decode_jpeg_header(blob, strict=True)
    except KeyError:  # the header is valid, but simplejpeg has no name for its subsampling
        return 0, 0, ""
    return height, width, colour


def check_jpeg(blob: bytes) -> None:
    """Raise ValueError for a JPEG that libjpeg-turbo fails on or warns of. Decodes at an eighth of the size."""
    simplejpeg.decode_jpeg(blob, colorspace="GRAY", min_height=1, min_width=1, min_factor=8, strict=True)
