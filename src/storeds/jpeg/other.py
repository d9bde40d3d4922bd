"""Examines pictures that are no JPEGs: by the structure of their format, and whether they decode."""

from __future__ import annotations

import io

from PIL import Image, ImageFile, UnidentifiedImageError

from storeds.jpeg.containers import check_bmp, check_boxes, check_codestream, check_gif, check_webp
from storeds.jpeg.finding import MAX_PIXELS
from storeds.jpeg.formats import sniff
from storeds.jpeg.png import check_png
from storeds.jpeg.tiff import check_tiff
from storeds.records.fields import Verdict

__all__ = ["check_other", "examine_other"]


def check_other(blob: bytes) -> Verdict | None:
    """Return the verdict on a picture that is no JPEG by its structure alone, which decodes nothing.

    PNG (with the checksum of every chunk), WebP, GIF, TIFF, BMP, AVIF, HEIC and JPEG 2000 are judged.

    Returns
    -------
    Verdict or None
        None for all other bytes: whether they are a picture only a decoder can say. Otherwise one of

        - ``intact``, ``trailing_data``: every part is there. Decode it. Data inside of a part may still make no sense;
          the decoder's error then is the reason, and `examine_other` gives the kind.
        - ``missing_eoi``, with `recovered` 1.0: only the end of a PNG or GIF is missing. It decodes as it is.
        - ``truncated_file``, ``truncated_header``, ``corrupt_data``: damage that nothing repairs. Of a PNG `recovered` is
          the share of its rows, otherwise 0.0. Pillow raises for such files or, where
          `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` is set, gives them without an error.

    Notes
    -----
    A pure function of the bytes that raises for none, but that the rows of a PNG are counted, in about the time of a
    decode, where Pillow would not miss them: while `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` is set. Time is proportional to
    the bytes. Thread-safe.
    """
    return _check(blob, inflate=ImageFile.LOAD_TRUNCATED_IMAGES)


def examine_other(blob: bytes) -> Verdict:
    """Return the verdict on a picture that is no JPEG: its structure, and whether it decodes.

    ``not_jpeg`` is what Pillow cannot open, or cannot decode and `check_other` cannot judge: HTML, zeros, nothing. While
    `PIL.ImageFile.LOAD_TRUNCATED_IMAGES` is set a decode proves nothing, so the structure decides alone, and pictures of
    other formats (ICO, TGA, …) are ``not_jpeg`` too.

    Raises for no bytes. Thread-safe; takes about the time of a decode, of a PNG of two.
    """
    found = _check(blob, inflate=True)
    if found is not None and not found.is_whole and found.kind != "missing_eoi":
        return found
    kind, problem = _decode(blob)
    if kind == "intact" and found is not None:
        return found
    if kind == "intact" and ImageFile.LOAD_TRUNCATED_IMAGES:
        kind, problem = "not_jpeg", "while PIL.ImageFile.LOAD_TRUNCATED_IMAGES is set, decoding it proves nothing"
    elif kind == "corrupt_data" and (found is None or not found.is_whole):
        kind = "not_jpeg" if found is None else "truncated_file"
    if kind == "intact":
        return Verdict("intact")
    what = found.reason if found is not None and found.reason else f"it is no JPEG but {sniff(blob)}"
    return Verdict(kind, 0.0, reason=f"{what}; {problem}")


def _check(blob: bytes, *, inflate: bool) -> Verdict | None:
    match sniff(blob):
        case "PNG":
            return check_png(blob, inflate=inflate)
        case "WebP":
            return check_webp(blob)
        case "GIF":
            return check_gif(blob)
        case "TIFF":
            return check_tiff(blob)
        case "BMP":
            return check_bmp(blob)
        case "AVIF" | "HEIC" | "HEIF":
            return check_boxes(blob)
        case "JPEG 2000":
            return check_codestream(blob) if blob.startswith(b"\xff\x4f") else check_boxes(blob)
    return None


def _decode(blob: bytes) -> tuple[str, str]:
    """Return the kind that a decode by Pillow gives `blob`, and why: ``intact`` too if the picture is too large for one."""
    try:
        image = Image.open(io.BytesIO(blob))
    except UnidentifiedImageError:  # its message shows a memory address
        return "not_jpeg", "Pillow cannot open it"
    except (Warning, Image.DecompressionBombError):  # a process may make errors of warnings
        return "intact", ""
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        return "not_jpeg", f"Pillow cannot open it: {type(error).__name__}: {error}"
    try:
        with image:
            if image.width * image.height <= MAX_PIXELS:
                image.load()
    except Warning:
        return "intact", ""
    except Exception as error:
        return "corrupt_data", f"it does not decode: {type(error).__name__}: {error}"
    return "intact", ""
