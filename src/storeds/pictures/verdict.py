"""Judges a picture by its structure and one strict decode, and repairs a JPEG that ends early.

libjpeg fills in whatever is missing and only warns. It does not notice a missing scan, so the structure is checked first.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import simplejpeg

from storeds.pictures.formats import decode_problem, decode_reason, format_of_picture, open_picture, structure_problem
from storeds.pictures.header import EOI, MAX_PIXELS, SOI, Scan, Structure, coverage, parse, without_harmless
from storeds.protocols import Array, Record
from storeds.records.verdict_fields import UNCHECKED, verdict_fields

__all__ = ["Verdict", "examine", "pillow_pixels", "repair", "set_verdict"]

_WHOLE = ("intact", "trailing_data")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of examining one picture.

    Parameters
    ----------
    finding : str
        ``intact``, ``trailing_data`` (a whole picture followed by other bytes: no damage), ``missing_eoi`` (only the end
        marker is missing), ``truncated_scan`` (the file ends early), ``truncated_header`` (it ends before any pixel),
        ``corrupt_data`` (data are missing or wrong, and the loss may be anywhere), or ``not_jpeg`` (no picture that Pillow
        opens either).
    recovered : float
        The share of the picture that is there, 0 to 1, never more than the truth by more than an MCU or two. For
        progressive JPEGs, the share of the coefficients, where each missing bit of precision halves a coefficient.
    reason : str
        One sentence that describes the damage and its place; neither stored nor compared.
    """

    finding: str
    recovered: float
    reason: str = field(default="", compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether the picture has no damage."""
        return self.finding in _WHOLE

    @property
    def share(self) -> str:
        """`recovered` for people: ``62 %``. Rounded down, so that only a complete picture is 100 %."""
        if math.isnan(self.recovered):
            return "an unknown part"
        return f"{math.floor(1000 * self.recovered) / 10:g} %"

    @classmethod
    def of(cls, record: Record, image: str) -> Self | None:
        """Return the stored verdict on field `image` of a record, or None if it has none or was not examined."""
        finding, recovered = verdict_fields(image)
        kind = record.get(finding, UNCHECKED)
        return None if kind == UNCHECKED else cls(kind, record[recovered])


def set_verdict(record: Record, image: str, verdict: Verdict | None) -> None:
    """Store the verdict on field `image` in a record; None stands for a picture that was not examined."""
    finding, recovered = verdict_fields(image)
    record[finding] = UNCHECKED if verdict is None else verdict.finding
    record[recovered] = math.nan if verdict is None else verdict.recovered


def examine(blob: bytes) -> Verdict:
    """Judge a picture: a JPEG by its structure and one strict decode, any other by whether Pillow decodes it.

    A pure function that raises for no bytes. Thread-safe. Takes about half the time of a decode for a whole JPEG, and some
    decodes for one that is cut.
    """
    if not blob.startswith(SOI):
        return _examine_other(blob)
    found = parse(blob)
    if not found.process and found.ending == "stray" and _is_jpeg_ls(blob, found.end):
        return Verdict("not_jpeg", 0.0, "it is not a JPEG but JPEG-LS")
    if found.ending != "eoi":
        return _examine_cut(blob)
    if not found.scans:
        return Verdict("truncated_header", 0.0, f"it ends at byte {found.end - len(EOI)} without a picture")
    problem = _too_large(found)
    if not problem and coverage(found, found.scans) < 1.0:
        problem = f"its {len(found.scans)} scans lack some coefficients"
    if not problem and found.has_junk:
        problem = "surplus bytes are between two of its segments"
    if not problem and (len(found.scans) == 1 or found.pixels <= MAX_PIXELS):
        problem = _warning(blob, found)
    if problem:
        return Verdict("corrupt_data", 0.0, problem)
    if found.end == len(blob) or (found.multi_picture and blob.startswith(SOI, found.end)):
        return Verdict("intact", 1.0)
    reason = f"{len(blob) - found.end:,} bytes follow the picture, which ends at byte {found.end}"
    return Verdict("trailing_data", 1.0, reason)


def repair(blob: bytes) -> bytes:
    """Return a JPEG that ends early up to its last whole part, followed by an end marker.

    No pixel is guessed: what is there decodes to the same pixels. Returns the identical object for any other bytes, and
    for a JPEG that has its end marker or ends before any pixel. Decodes nothing.
    """
    data = bytes(blob)
    if not data.startswith(SOI) or parse(data).ending == "eoi":
        return blob
    kept, found = _cut_back(data)
    return kept + EOI if found.ending == "cut" and found.scans else blob


def _examine_other(blob: bytes) -> Verdict:
    """Judge a picture that is not a JPEG: by one full decode, and by what Pillow does not check."""
    problem, opens = decode_problem(blob)
    if not opens:
        return Verdict("not_jpeg", 0.0, f"it is not a JPEG but {format_of_picture(blob)}; {problem}")
    structure, has_all_pixels = structure_problem(blob)
    if has_all_pixels and not problem:
        return Verdict("missing_eoi", 1.0, structure)
    problem = structure or problem
    return Verdict("corrupt_data", 0.0, problem) if problem else Verdict("intact", 1.0)


def _is_jpeg_ls(blob: bytes, at: int) -> bool:
    """Return whether a JPEG-LS frame header begins at `at`. Its marker alone may be a fill byte with one wrong bit."""
    header = blob[at : at + 10]
    return len(header) == 10 and header[1] == 0xF7 and int.from_bytes(header[2:4]) == 8 + 3 * header[9]


# --- Files that end early ---

_ZERO_RUN = 2  # so many zeros at the end may be space that was never written
_ENDS_EARLY = "Corrupt JPEG data: premature end of data segment"
_CUT = re.compile(rf"{_ENDS_EARLY}|Corrupt JPEG data: found marker 0xd9 instead of RST\d")
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
# Without ff they contain no marker. Each is longer than what a decoder reads ahead, and than what leaves a pixel unchanged.
_NOISES = tuple(np.random.default_rng(seed).integers(0, 255, 256, np.uint8).tobytes() for seed in range(3))


def _cut_back(blob: bytes) -> tuple[bytes, Structure]:
    """Return a JPEG without end marker up to its last whole part, and its structure.

    Many zeros at the end may be data of a flat picture. They count as missing, since nobody can tell.
    """
    found = parse(blob)
    stripped = blob.rstrip(b"\x00")
    if len(blob) - len(stripped) >= _ZERO_RUN:
        blob, found = stripped, parse(stripped)
    kept = blob[: found.end].rstrip(b"\xff") if found.in_scan else blob[: found.end]
    return kept, found


def _examine_cut(blob: bytes) -> Verdict:
    """Judge a JPEG without an end marker."""
    kept, found = _cut_back(blob)
    if found.ending != "cut":
        return Verdict("corrupt_data", 0.0, found.reason)
    if not found.scans:
        return Verdict("truncated_header", 0.0, f"it is cut {found.reason}, before any pixel")
    where = f"it is cut at byte {len(kept):,}, {found.reason}, number {len(found.scans)}"
    if len(kept) + _ZERO_RUN <= len(blob):
        where += f"; {len(blob) - len(kept):,} zero bytes follow"
    problem = _too_large(found)
    if problem or found.pixels > MAX_PIXELS:
        return Verdict("truncated_scan", 0.0, f"{where}; {problem or 'it is too large to decode'}")
    problem = _warning(kept + EOI, found)
    # Data that end early before the file does are damage of another kind: a marker among them, for example.
    if found.has_junk or (problem and not (found.in_scan and _CUT.match(problem))):
        return Verdict("corrupt_data", 0.0, f"{where}; {problem or 'and has surplus bytes before'}")
    share = coverage(found, found.scans)
    # A decoder cannot tell where arithmetic codes end.
    is_complete = share == 1.0 and not problem and not (found.in_scan and found.is_arithmetic)
    if found.in_scan and not is_complete:
        before, units = coverage(found, found.scans[:-1]), found.grid(found.scans[-1].places).units
        agreed = _agreed(kept, found)
        is_complete = agreed == units and share == 1.0 and found.is_arithmetic
        share = before + (share - before) * min(agreed, units - 1) / units
    if is_complete:
        reason = f"all of the picture is there, but there is no end marker at byte {len(kept)}"
        return Verdict("missing_eoi", 1.0, reason)
    return Verdict("truncated_scan", share, where)


def _agreed(kept: bytes, found: Structure) -> int:
    """Return how many MCUs of the last scan do not depend on the bytes that follow the cut."""
    scan = found.scans[-1]
    grid = found.grid(scan.places)
    most = grid.units
    if scan.interval:  # after a restart marker nothing depends on the bytes before it
        most = min((len(_RESTART.findall(kept, scan.start)) + 1) * scan.interval, most)
    kept = without_harmless(kept, found)  # simplejpeg would raise for the header
    try:
        first, side = _pixels(kept + EOI, found)
        others = [_pixels(kept + noise + EOI, found)[0] for noise in _NOISES]
    except (ValueError, OSError):
        return 0
    rows, columns = np.any([(first != other).any(axis=2) for other in others], axis=0).nonzero()
    units = rows * side // grid.height * grid.columns + columns * side // grid.width
    return int(units.min(initial=most))


def _pixels(blob: bytes, found: Structure) -> tuple[Array, int]:
    """Decode whatever is there; return the pixels and the side in pixels of what each stands for, 1 or 8.

    A pixel depends on one MCU of each scan only: colours are not smoothed. In the scans of a sequential file, data that
    differ show at an eighth of the size.
    """
    side = 8 if found.is_sequential else 1
    count = len(found.components)
    is_grey = count == 1 or (side == 8 and len(found.scans[-1].places) == count == 3)
    colour, channels = ("GRAY", 1) if is_grey else ("CMYK", 4) if count == 4 else ("RGB", 3)
    # simplejpeg leaves pixels that it does not decode unwritten, so the buffer is zeroed here.
    pixels = np.zeros((-(-found.height // side), -(-found.width // side), channels), np.uint8)
    options = _SMALL if side == 8 else {}
    try:
        simplejpeg.decode_jpeg(blob, colorspace=colour, fastupsample=True, buffer=pixels, strict=False, **options)
    except ValueError as error:
        if not str(error).startswith(_REFUSALS):
            raise
        return pillow_pixels(blob)[:, :, :1], 1  # the first component has all pixels, the others are smoothed
    return pixels, side


# --- Strict decoding ---

# Limit of pixels times scans, the work of decoding a progressive file: twice a phone's largest picture in ten scans.
_MAX_WORK = 1 << 31
# Processes that libjpeg-turbo decodes to 8-bit samples.
_PROCESSES = frozenset(
    ("baseline", "extended", "progressive", "lossless", "extended, arithmetic", "progressive, arithmetic")
)
# Decodes at an eighth of the size. simplejpeg ignores min_factor without a minimum size.
_SMALL = {"min_height": 1, "min_width": 1, "min_factor": 8}
# A restart interval that no picture of fewer MCUs reaches.
_MOST_MCUS, _INTERVAL = 0xFFFF, b"\xff\xdd\x00\x04\xff\xff"
# Messages with which simplejpeg refuses a kind of JPEG, whatever its data. Pillow may decode it.
_REFUSALS = (
    "Unsupported",
    "Fractional sampling",
    "Not implemented",
    "Sorry, arithmetic",
    "tjDecompressHeader",
    "Could not",
)
# Warnings that change no pixel and hide later ones, because libjpeg keeps the first.
_HARMLESS = (
    "Warning: unknown JFIF revision",
    "Unknown Adobe color transform",
    "Corrupt JPEG data: bad ICC marker",
    "Invalid SOS parameters for sequential JPEG",
)


def _too_large(found: Structure) -> str:
    """Return why a picture is not decoded: its header claims more than its data can hold, or than a decoder should do."""
    scans, size = found.scans, f"{found.width} x {found.height} pixels"
    if len(scans) * found.pixels > _MAX_WORK:
        return f"{len(scans)} scans of {size} are more than any real picture has"
    bits = 8 * (scans[0].stop - scans[0].start)
    if not found.is_arithmetic and found.pixels > 64 * bits and found.grid(scans[0].places).units > bits:
        return f"a frame of {size} has more MCUs than the first scan has bits"
    return ""


def _warning(blob: bytes, found: Structure) -> str:
    """Return libjpeg's first warning or error about the data, or an empty text.

    Pillow hides libjpeg's warnings; simplejpeg raises on each. It decodes at an eighth of the size, which follows every
    code in half the time, and releases the GIL.
    """
    if found.precision == 12 and found.process in _PROCESSES - {"baseline"}:
        return ""  # only a decoder of the user can read it
    if found.process not in _PROCESSES or found.precision != 8:
        return f"no decoder accepts {found.process} JPEGs of {found.precision} bits"
    message = _decode(_slowed(blob, found), found)
    if message.startswith(_HARMLESS):
        message = _decode(_slowed(without_harmless(blob, found), found), found)
    return _decode_by_pillow(blob, found) if message.startswith(_REFUSALS) else message


def _slowed(blob: bytes, found: Structure) -> bytes:
    """Return a JPEG for which libjpeg-turbo does not use its fast Huffman decoder, which passes over invalid codes."""
    is_fast = found.is_sequential and not found.is_arithmetic and len(found.scans) == 1 and not found.interval
    if not is_fast or found.grid(found.scans[0].places).units > _MOST_MCUS:
        return blob
    return SOI + _INTERVAL + blob[len(SOI) :]


def _decode(blob: bytes, found: Structure) -> str:
    """Decode strictly; return the error or an empty text."""
    is_lossless = found.process == "lossless"  # has no smaller size
    colour = {1: "GRAY", 4: "CMYK"}.get(len(found.components), "RGB" if is_lossless else "GRAY")
    try:
        simplejpeg.decode_jpeg(blob, colorspace=colour, strict=True, **({} if is_lossless else _SMALL))
    except ValueError as error:
        return str(error) or "it does not decode"
    return ""


def _decode_by_pillow(blob: bytes, found: Structure) -> str:
    """Return what is wrong with a JPEG of a kind that simplejpeg refuses, such as CMYK with subsampled colours.

    Pillow hides libjpeg's warnings. But noise after whole data changes no pixel, and noise in place of their end does. An
    error on such a changed copy says nothing of the file.
    """
    if found.pixels > MAX_PIXELS:
        return ""  # read only if the user allows so many pixels
    try:
        image = pillow_pixels(blob)
    except Exception as error:  # damaged bytes make Pillow raise errors of any type
        return f"no decoder accepts it: {decode_reason(error)}"
    if not all(_has_restarts(blob, found, scan) for scan in found.scans):
        return "a restart marker is missing or out of order"
    if found.is_arithmetic:
        return ""  # a decoder cannot tell where its data end
    if any(_shows(image, _with_noise(blob, found, noise), on_error=False) for noise in _NOISES):
        return _ENDS_EARLY
    # The last bytes of several scans may change no pixel, and those of a restart interval may have its marker among them.
    if found.is_sequential and len(found.scans) == 1 and not found.scans[0].interval:
        end = min(found.scans[0].stop, len(blob) - len(EOI))
        if not _shows(image, blob[: end - 4] + _NOISES[1] + EOI, on_error=True):
            return "surplus bytes follow its data"
    return ""


def _has_restarts(blob: bytes, found: Structure, scan: Scan) -> bool:
    """Return whether a scan has all of its restart markers, in order."""
    count = -(-found.grid(scan.places).units // scan.interval) - 1 if scan.interval else 0
    markers = b"".join(_RESTART.findall(blob, scan.start, scan.stop)[:count])
    return markers == b"".join(b"\xff%c" % (0xD0 + number % 8) for number in range(count))


def _with_noise(blob: bytes, found: Structure, noise: bytes) -> bytes:
    """Return a JPEG with noise after the data of each restart interval and of each scan."""
    parts, at = [], 0
    for scan in found.scans:
        data = blob[scan.start : scan.stop].rstrip(b"\xff")  # fill bytes belong to the marker that follows
        data = _RESTART.sub(lambda marker: noise + marker[0], data)
        parts += [blob[at : scan.start], data, noise]
        at = scan.stop
    return b"".join([*parts, blob[at:]])


def _shows(image: Array, changed: bytes, *, on_error: bool) -> bool:
    """Return whether a changed file has other pixels than `image`, or `on_error` if Pillow refuses it."""
    try:
        return not np.array_equal(image, pillow_pixels(changed))
    except Exception:  # of any type
        return on_error


def pillow_pixels(blob: bytes) -> Array:
    """Decode a JPEG with Pillow."""
    with open_picture(blob) as image:
        return np.asarray(image)
