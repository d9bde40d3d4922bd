"""The built-in decoders, which return stored bytes, a Pillow image, or a uint8 tensor.

simplejpeg decodes JPEGs by libjpeg-turbo wherever that gives the pixels that Pillow gives: it reports damage that
Pillow hides. It always runs with ``strict=True``, because it may otherwise return memory that was never written, such
as an earlier picture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps

from storeds.errors import DecodeError
from storeds.pictures.formats import open_picture, warn_of_truncated_images
from storeds.pictures.header import MAX_PIXELS, read_header
from storeds.records.samples import ORIENTATIONS

if TYPE_CHECKING:
    import torch

    from storeds.pictures.header import Header
    from storeds.protocols import Array

__all__ = [
    "COLOURS",
    "UNCHANGED",
    "as_pil",
    "bad_picture",
    "check_pixels",
    "convert",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_tensor",
    "grey_step",
    "has_colours",
    "jpeg_pixels",
    "orientation_of",
    "oriented",
    "oriented_size",
    "to_tensor",
    "upright",
]

UNCHANGED = "unchanged"

_PNG = b"\x89PNG\r\n\x1a\n"
_TIFF = (b"II*\0", b"MM\0*")
_BITS_PER_SAMPLE = 258
_PNG_ORIENTED = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
COLOURS = {1: ("L", "GRAY"), 3: ("RGB", "RGB")}
"""Number of components → Pillow's mode, and the colours to which simplejpeg decodes."""


def bad_picture(reason: str, kind: str) -> DecodeError:
    """Return the error of a picture, with the kind under which reports count it."""
    error = DecodeError(reason)
    error.kind = kind
    return error


def check_pixels(width: int, height: int, limit: int) -> None:
    """Raise DecodeError for a picture of more pixels than `limit`, before memory is allocated for it."""
    if width * height > limit:
        claim = f"it claims {width:,} x {height:,} pixels, more than max_pixels={limit:,}"
        raise bad_picture(f"{claim}; pass a larger max_pixels if that is right", "too_large")


def decode_bytes(blob: bytes, mode: str) -> bytes:
    """Return the stored bytes unchanged."""
    return blob


def decode_pil(blob: bytes, mode: str, *, orient: bool = False, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Return the image in `mode`, fully loaded. Of a damaged JPEG, what is there, as Pillow does.

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

    Raises
    ------
    DecodeError
        The header claims too many pixels (before any memory is allocated), or `mode` cannot hold the values. For bytes
        that Pillow cannot decode, it raises its own errors.
    """
    warn_of_truncated_images()
    try:
        opened = open_picture(blob, max_pixels)
    except Image.DecompressionBombError:
        raise bad_picture(
            f"it claims more pixels than max_pixels={max(max_pixels, MAX_PIXELS):,}; pass a larger max_pixels if that is right",
            "too_large",
        ) from None
    with opened as image:
        check_pixels(*image.size, max_pixels)
        return convert(upright(image) if orient else image, mode)


def as_pil(pixels: Array, blob: bytes, *, orient: bool) -> Image.Image:
    """Return the pixels of a JPEG as the image that `decode_pil` returns, with the metadata of the file."""
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    with open_picture(blob) as opened:
        image.info = opened.info
    return upright(image) if orient else image


def upright(image: Image.Image) -> Image.Image:
    """Return an image rotated by its EXIF orientation, or the image itself if that cannot be read."""
    try:
        image.getexif()
    except Exception:  # damaged metadata make Pillow raise errors of any type
        return image
    return ImageOps.exif_transpose(image)


def convert(image: Image.Image, mode: str) -> Image.Image:
    """Return a copy of an image in `mode`, see `decode_pil`."""
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
    values = np.asarray(image)
    low, high = float(values.min()), float(values.max())  # NaN where a value is
    if not (low >= 0 and high <= 255) or (image.mode == "F" and 0 < high <= 1):
        raise bad_picture(
            f"the image has values from {low:g} to {high:g}, which mode {mode!r} would clip to 0 … 255: read it with "
            f"mode={image.mode!r} or 'unchanged', and scale it in a transform",
            "out_of_range",
        )


def decode_tensor(
    blob: bytes, mode: str, *, orient: bool = False, max_pixels: int = MAX_PIXELS, strided: bool = False
) -> torch.Tensor:
    """Return the pixels of `decode_pil` as a tensor of shape (channels, height, width), which owns its memory.

    The dtype is uint8. For images of another depth in mode ``"unchanged"``, ``"I"`` or ``"F"`` it is uint16, int32 or
    float32. simplejpeg decodes whole JPEGs, to the same pixels. With `strided`, the channels stay last in memory.
    """
    return _tensor(blob, mode, orient, max_pixels, strided, shortcuts=False)


def decode_fast(
    blob: bytes, mode: str, *, orient: bool = False, max_pixels: int = MAX_PIXELS, strided: bool = False
) -> torch.Tensor:
    """Return nearly the same as `decode_tensor`, with libjpeg-turbo's fast DCT and fast upsampling.

    On photographs values differ by 1.3 of 256 levels on average, by at most 8 in 99 of 100 pixels, and by up to 69
    where colours change sharply. Anything but a whole JPEG is exact.
    """
    return _tensor(blob, mode, orient, max_pixels, strided, shortcuts=True)


def _tensor(blob: bytes, mode: str, orient: bool, max_pixels: int, strided: bool, *, shortcuts: bool) -> torch.Tensor:
    header = read_header(blob)
    orientation = orientation_of(blob, header) if orient and header is not None else 1
    if header is not None and orientation is not None and has_colours(header, mode):
        check_pixels(header.width, header.height, max_pixels)
        with contextlib.suppress(ValueError):  # damaged: Pillow decodes what is there
            return to_tensor(oriented(jpeg_pixels(blob, header, shortcuts=shortcuts), orientation), strided)
    return to_tensor(np.array(decode_pil(blob, mode, orient=orient, max_pixels=max_pixels)), strided)


def orientation_of(blob: bytes, header: Header | None = None) -> int | None:
    """Return the EXIF orientation of a picture, 1 to 8; None if it cannot be read. Pass a JPEG's header if it is known."""
    header = header or read_header(blob)
    if header is not None and not header.has_exif:
        return 1
    if blob.startswith(b"\x89PNG") and not any(name in blob for name in _PNG_ORIENTED):
        return 1  # otherwise Pillow decodes the picture in search of a late chunk
    try:
        with open_picture(blob) as image:
            orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # damaged metadata make Pillow raise errors of any type
        return None
    return orientation if orientation in ORIENTATIONS else 1


def oriented(pixels: Array, orientation: int) -> Array:
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


def to_tensor(pixels: Array, strided: bool) -> torch.Tensor:
    """Return pixels of shape (height, width) or (height, width, channels) as a tensor with the channels first."""
    import torch

    if not pixels.dtype.isnative:
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
    if pixels.ndim == 2:
        return torch.from_numpy(pixels[None])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor if strided else tensor.contiguous()


def has_colours(header: Header, mode: str) -> bool:
    """Return whether simplejpeg decodes a JPEG to the pixels of this mode; otherwise Pillow must convert them."""
    return mode in (COLOURS.get(header.components, (None,))[0], UNCHANGED) and header.components in COLOURS


def jpeg_pixels(blob: bytes, header: Header, *, shortcuts: bool = False) -> Array:
    """Decode a JPEG of one or three components with simplejpeg to uint8 pixels of shape (height, width, channels).

    Parameters
    ----------
    shortcuts : bool
        Use libjpeg-turbo's fast DCT and fast upsampling of colours, which give slightly different pixels.

    Raises
    ------
    ValueError
        libjpeg-turbo fails on the file or warns of damage.
    """
    pixels: Array = simplejpeg.decode_jpeg(
        blob, colorspace=COLOURS[header.components][1], fastdct=shortcuts, fastupsample=shortcuts, strict=True
    )
    return pixels


def grey_step(mode: str, blob: bytes) -> int:
    """Return the number by which Pillow multiplies the samples of a grey PNG or TIFF of 2 or 4 bits; 1 for other pictures."""
    bits = 8
    if mode == "L" and blob.startswith(_PNG) and blob[12:16] == b"IHDR" and blob[25:26] == b"\0":
        bits = blob[24]
    elif mode == "L" and blob.startswith(_TIFF):
        with open_picture(blob) as opened:
            tags: Mapping[int, Any] = getattr(opened, "tag_v2", {}) if opened.mode == "L" else {}
            bits = tags.get(_BITS_PER_SAMPLE, (8,))[0]
    return {2: 85, 4: 17}.get(bits, 1)
