"""The built-in decoders, which return stored bytes, a Pillow image, or a uint8 tensor.

simplejpeg decodes JPEGs by libjpeg-turbo wherever that gives the pixels that Pillow gives: it reports damage that
Pillow hides. It always runs with ``strict=True``, because it may otherwise return memory that was never written, such
as an earlier picture.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import numpy as np
import simplejpeg
from PIL import ExifTags, Image, ImageOps

from storeds.errors import DecodeError
from storeds.jpeg import MAX_PIXELS
from storeds.jpeg.cuts import JpegCutter, JpegPart
from storeds.jpeg.formats import open_picture, warn_of_truncated_images
from storeds.jpeg.header import read_header
from storeds.records.samples import ORIENTATIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from storeds.jpeg.header import Header
    from storeds.protocols import Array, CropRequest, Decoder, Window

__all__ = [
    "UNCHANGED",
    "as_pil",
    "bad_picture",
    "check_pixels",
    "convert",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_tensor",
    "decode_windows",
    "divisor",
    "has_colours",
    "jpeg_pixels",
    "orientation_of",
    "oriented",
    "oriented_size",
    "to_tensor",
    "upright",
]

UNCHANGED = "unchanged"

_PNG_ORIENTED = (b"eXIf", b"Raw profile type exif", b"XML:com.adobe.xmp")

_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
# Number of components → Pillow's mode, and the colours to which simplejpeg decodes.
_COLOURS = {1: ("L", "GRAY"), 3: ("RGB", "RGB")}
_REST = re.compile(r"Corrupt JPEG data: \d+ extraneous bytes before marker 0xd(9|[0-7])")


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
    with _opened(blob, max_pixels) as image:
        check_pixels(*image.size, max_pixels)
        return convert(upright(image) if orient else image, mode)


def _opened(blob: bytes, load_up_to: int = 0) -> Image.Image:
    try:
        return open_picture(blob, load_up_to)
    except Image.DecompressionBombError as error:
        raise bad_picture(
            f"it claims more pixels than Pillow takes of this format ({error}); if that is right, set "
            "PIL.Image.MAX_IMAGE_PIXELS in every process that reads it, for example in a worker_init_fn",
            "too_large",
        ) from None


def as_pil(pixels: Array, blob: bytes, *, orient: bool) -> Image.Image:
    """Return the pixels of a JPEG as the image that `decode_pil` returns, with the metadata of the file."""
    image = Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels)
    with _opened(blob) as opened:
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
    return mode in (_COLOURS.get(header.components, (None,))[0], UNCHANGED) and header.components in _COLOURS


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
        blob, colorspace=_COLOURS[header.components][1], fastdct=shortcuts, fastupsample=shortcuts, strict=True
    )
    return pixels


# --- Windows ---


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
    if not has_colours(header, mode):
        return None
    shortcuts, cutter = decoder is decode_fast, JpegCutter(blob, header)
    images = []
    for crop in crops:
        by = divisor(crop) if shortcuts else 1
        window = _scaled_down(_stored_window(crop.window, header, orientation), by, header)
        pixels = _window_pixels(cutter, blob, header, window, by, shortcuts=shortcuts)
        if pixels is None:
            return None
        images.append(to_tensor(oriented(pixels, orientation), strided=True))
    return tuple(images)


def divisor(crop: CropRequest) -> int:
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
    cutter: JpegCutter, blob: bytes, header: Header, window: Window, by: int, *, shortcuts: bool
) -> Array | None:
    """Return the pixels of a window in the picture that is `by` times smaller; None if all of it must be decoded."""
    top, left, height, width = window
    part = cutter.part(by * top, by * left, by * (top + height), by * (left + width))
    if part is None:
        if by == 1:
            return None
        part = JpegPart(blob, 0, 0, header.height, header.width, ends_early=False)
    rows, columns = -(-part.height // by), -(-part.width // by)
    # simplejpeg raises for the expected warning as well, so the pixels go into a buffer of our own.
    pixels = np.empty((rows, columns, header.components), np.uint8)
    try:
        simplejpeg.decode_jpeg(
            part.blob,
            colorspace=_COLOURS[header.components][1],
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
