"""The built-in decoders: stored bytes, a Pillow image, or a uint8 tensor, under one rule for modes."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageOps

from storeds._utils.roi import Window, Windowed, divisor, scaled_down
from storeds.errors import DecodeError
from storeds.jpeg import MAX_PIXELS
from storeds.jpeg.markers import SOI
from storeds.readers.simplejpeg import check_jpeg, jpeg_pixels, jpeg_upper_pixels

if TYPE_CHECKING:
    import torch

    from storeds.jpeg.markers import Header
    from storeds.protocols import Array, Decoder

__all__ = [
    "UNCHANGED",
    "check_pixels",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_reason",
    "decode_tensor",
    "decode_window",
    "to_tensor",
]

UNCHANGED = "unchanged"

_ADDRESS = re.compile(r" ?<_io\.BytesIO object at 0x[0-9a-f]+>")
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")


def decode_reason(error: Exception) -> str:
    """Return why a decoder failed, the same text for the same bytes: Pillow shows a memory address."""
    reason = f"{type(error).__name__}: {_ADDRESS.sub('', str(error))}"
    if isinstance(error, Warning):
        # Not ignored here: filters belong to the whole process, and changing them for a moment is not thread-safe.
        reason += (
            "; only a warning, which this process makes an error of: warnings.filterwarnings('default', module='PIL') "
            "exempts Pillow's"
        )
    return reason


def check_pixels(width: int, height: int, limit: int) -> None:
    """Raise `DecodeError` for a frame beyond `limit`, before anything is allocated for it."""
    if width * height > limit:
        error = DecodeError(
            f"it claims {width:,} x {height:,} pixels, more than max_pixels={limit:,}; pass a larger max_pixels if it is real"
        )
        error.kind = "too_large"
        raise error


def decode_bytes(blob: bytes, mode: str) -> bytes:
    """Return the stored bytes untouched."""
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
        A Pillow mode, to which the image is converted as ``PIL.Image.Image.convert`` does (CMYK and YCCK as their
        file says, palettes by their colours, alpha dropped), but that 16-bit samples keep their upper 8 bits, where
        Pillow clips; wider integers and floats that do not fit 0 … 255 are refused. ``"unchanged"`` leaves the image in the mode of its file: palette indices, alpha and 16 bits too.
    orient : bool
        Turn the image as its EXIF orientation says.
    max_pixels : int
        The most pixels that its header may claim.
    strict : bool
        Raise ValueError for a JPEG that libjpeg-turbo warns of. By default what there is of the picture is returned, as by
        Pillow, which ignores the warnings of its libjpeg.
    examined : bool
        With `strict`, leave out the decode at an eighth of the size that hears the warnings where Pillow must decode,
        because colours are converted: `storeds.jpeg.examine` has called the picture whole.

    Raises
    ------
    DecodeError
        It claims more; nothing was allocated. Or `mode` cannot hold its values. Pillow raises its own errors for bytes that it cannot decode.
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
    """Return an opened JPEG decoded by simplejpeg, or None if Pillow is to; raises ValueError for a damaged one."""
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
        image = image.convert("RGBA")  # else Pillow warns
    return image.convert(mode)


def _check_range(image: Image.Image, mode: str) -> None:
    """Refuse values that Pillow would cut to 0 … 255: of an image in 0 … 1, black would be left."""
    if image.mode not in ("F", "I"):
        return
    low, high = (float(end) for end in image.getextrema())  # type: ignore[arg-type]  # of one band
    if low < 0 or high > 255 or (image.mode == "F" and 0 < high <= 1):
        error = DecodeError(
            f"the image has values from {low:g} to {high:g}, which mode {mode!r} would cut to 0 … 255: read it with "
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
    """Return the pixels of `decode_pil` as a tensor, shape (channels, height, width), owning its memory.

    uint8, or for images of another depth that `mode` leaves so (``"unchanged"``, ``"I"``, ``"F"``) uint16, int32 or
    float32. simplejpeg decodes what it decodes to the same pixels: whole JPEGs.

    Parameters
    ----------
    strided : bool
        Leave the pixels in memory as the decoder does, channels last, instead of copying them into order.
    strict, examined : bool
        As for `decode_pil`.
    """
    pixels = None if orient else _pixels(blob, mode, max_pixels, strict=strict)
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
    """Return nearly what `decode_tensor` does, by libjpeg-turbo's fast DCT and fast upsampling.

    On photographs values differ by 1.3 levels of 256 on average, by 8 or less in 99 of 100, and by up to 69 where colours
    change sharply. What is no whole JPEG is exact.
    """
    pixels = None if orient else _pixels(blob, mode, max_pixels, strict=strict, shortcuts=True)
    if pixels is not None:
        return to_tensor(pixels, strided)
    return decode_tensor(
        blob, mode, orient=orient, max_pixels=max_pixels, strided=strided, strict=strict, examined=examined
    )


def _pixels(blob: bytes, mode: str, max_pixels: int, *, strict: bool, shortcuts: bool = False) -> Array | None:
    try:
        return jpeg_pixels(blob, mode, max_pixels, shortcuts=shortcuts)
    except ValueError:
        if strict:
            raise
        return None


def decode_window(
    decoder: Decoder, blob: bytes, mode: str, header: Header, window: Window, size: tuple[int, int]
) -> Windowed | None:
    """Return the part of a whole picture that a window needs, as a built-in decoder decodes it; None if it must be decoded whole.

    Parameters
    ----------
    size : (int, int)
        What the window will be resized to: a decoder that takes shortcuts leaves out pixels which that does not need.
    """
    shortcuts = decoder is decode_fast
    by = divisor(window, size) if shortcuts else 1
    pixels = jpeg_upper_pixels(blob, mode, header, window[0] + window[2], shortcuts=shortcuts, divisor=by)
    if pixels is None:
        return None
    return Windowed(to_tensor(pixels, strided=True), scaled_down(window, by, *pixels.shape[:2]))


def to_tensor(pixels: Array, strided: bool) -> torch.Tensor:
    """Return pixels, shape (height, width) or (height, width, channels), as a tensor with the channels first."""
    import torch

    if not pixels.dtype.isnative:
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
    if pixels.ndim == 2:
        return torch.from_numpy(pixels[None])
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    return tensor if strided else tensor.contiguous()
