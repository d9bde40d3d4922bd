"""Judges the structure of GIF, WebP, BMP, and files made of boxes (AVIF, HEIC, JPEG 2000)."""

from __future__ import annotations

from storeds.records.fields import Verdict

__all__ = ["check_bmp", "check_codestream", "check_gif", "check_isobmff", "check_webp"]


def _whole(blob: bytes, end: int) -> Verdict:
    surplus = len(blob) - end
    if surplus <= 0:
        return Verdict("intact")
    return Verdict("trailing_data", reason=f"{surplus:,} bytes follow the picture, which ends at byte {end}")


def _cut(blob: bytes, where: str, *, begun: bool = True) -> Verdict:
    """Return the verdict on a cut file; `begun` tells whether it holds the first pixel."""
    reason = f"it is cut at byte {len(blob)}, {where}"
    return Verdict("truncated_file", 0.0, False, reason) if begun else Verdict("truncated_header", 0.0, reason=reason)


def _corrupt(reason: str) -> Verdict:
    return Verdict("corrupt_data", 0.0, exact=False, reason=reason)


_TRAILER, _EXTENSION, _IMAGE = 0x3B, 0x21, 0x2C
_ANIMATED = (b"\x0bNETSCAPE2.0", b"\x0bANIMEXTS1.0")
_CONTROL = b"\xf9"  # comes before an image


def check_gif(blob: bytes) -> Verdict:
    """Judge a file with the signature of a GIF."""
    if len(blob) < 13:
        return _cut(blob, "in its header", begun=False)
    at = 13 + _color_table(blob[10])
    images, more = 0, False
    while at < len(blob):
        label, start = blob[at], at
        if label == _TRAILER:
            return _whole(blob, at + 1) if images else _corrupt(f"it ends at byte {at} without a picture")
        if label == _EXTENSION:
            more = more or blob.startswith(_ANIMATED, at + 2) or (images > 0 and blob[at + 1 : at + 2] == _CONTROL)
            at = _skip_blocks(blob, at + 2)
        elif label == _IMAGE:
            table = _color_table(blob[at + 9]) if at + 9 < len(blob) else 0
            at = _skip_blocks(blob, at + 11 + table)
            images += at > 0
        elif label == 0:  # some writers leave a zero between blocks
            at += 1
        else:
            return _corrupt(f"the byte at {at} does not begin a block")
        if not at:
            return _cut(blob, f"in a block that begins at byte {start}", begun=images > 0 or label == _IMAGE)
    if images == 1 and not more and at == len(blob):
        return Verdict("missing_eoi", reason=f"all of the picture is there, but there is no trailer at byte {at}")
    return _cut(blob, "before its trailer", begun=images > 0)


def _color_table(flags: int) -> int:
    return 3 << (flags & 7) + 1 if flags & 0x80 else 0


def _skip_blocks(blob: bytes, at: int) -> int:
    """Return the end of the sub-blocks that begin at `at`; 0 if the file ends first."""
    size = len(blob)
    while at < size:
        length = blob[at]
        at += length + 1
        if not length:
            return at
    return 0


def check_webp(blob: bytes) -> Verdict:
    """Judge a file with the signature of a WebP."""
    end = 8 + int.from_bytes(blob[4:8], "little")
    at, images = 12, 0
    while at + 8 <= min(end, len(blob)):
        name, start = blob[at : at + 4], at + 8
        stop = start + int.from_bytes(blob[at + 4 : start], "little")
        if stop > end:
            return _corrupt(f"chunk {name!r} at byte {at} ends after the declared end of the file, byte {end}")
        if name in (b"VP8 ", b"VP8L", b"ANMF"):
            images += 1
            problem = _frame_problem(blob, name, start, stop) if stop <= len(blob) else ""
            if problem:
                return _corrupt(problem)
        at = stop + (stop & 1)
    if end > len(blob):
        return _cut(blob, f"and its header says that it ends at byte {end}", begun=images > 0)
    return _whole(blob, end + (end & 1)) if images else _corrupt(f"it ends at byte {end} without a picture")


def _frame_problem(blob: bytes, name: bytes, start: int, stop: int) -> str:
    """Return what is wrong with the frame between two positions, or an empty text."""
    if name == b"ANMF":
        at = start + 16
        while at + 8 <= stop:
            end = at + 8 + int.from_bytes(blob[at + 4 : at + 8], "little")
            if end > stop:
                return f"a chunk at byte {at} ends after the frame that contains it"
            if blob[at : at + 4] in (b"VP8 ", b"VP8L"):
                return _frame_problem(blob, blob[at : at + 4], at + 8, end)
            at = end + (end & 1)
        return f"the frame at byte {start} has no picture"
    if name == b"VP8L":
        return "" if blob[start : start + 1] == b"\x2f" else f"the data at byte {start} are not a lossless frame"
    if blob[start + 3 : start + 6] != b"\x9d\x01\x2a":
        return f"the data at byte {start} are not a frame"
    first = int.from_bytes(blob[start : start + 3], "little") >> 5
    return "" if start + 10 + first <= stop else f"the frame at byte {start} ends within its first partition"


_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)
_RAW, _BITFIELDS, _ALPHA_BITFIELDS = 0, 3, 6


def check_bmp(blob: bytes) -> Verdict | None:
    """Judge a file with the signature of a BMP; return None if it is something else."""
    header = int.from_bytes(blob[14:18], "little")
    if len(blob) < 18:
        return _cut(blob, "in its header", begun=False)
    if header not in _BMP_HEADERS:  # a text may begin with BM
        return None
    if len(blob) < 14 + header:
        return _cut(blob, "in its header", begun=False)
    start = int.from_bytes(blob[10:14], "little")
    end = start + _bmp_size(blob, header)
    if end > len(blob):
        return _cut(blob, f"and its pixels end at byte {end}", begun=len(blob) > start)
    declared = int.from_bytes(blob[2:6], "little")  # many writers store a wrong value
    return _whole(blob, max(end, min(declared, len(blob)))) if len(blob) - end > 3 else Verdict("intact")


def _bmp_size(blob: bytes, header: int) -> int:
    """Return the number of bytes of the pixels."""
    if header == 12:
        width, height = int.from_bytes(blob[18:20], "little"), int.from_bytes(blob[20:22], "little")
        bits, compression, size = int.from_bytes(blob[24:26], "little"), _RAW, 0
    else:
        width, height = (int.from_bytes(blob[at : at + 4], "little", signed=True) for at in (18, 22))
        bits = int.from_bytes(blob[28:30], "little")
        compression, size = (int.from_bytes(blob[at : at + 4], "little") for at in (30, 34)) if header >= 40 else (0, 0)
    if compression in (_RAW, _BITFIELDS, _ALPHA_BITFIELDS):
        return (width * bits + 31) // 32 * 4 * abs(height)
    return size


def check_isobmff(blob: bytes) -> Verdict:
    """Judge a file made of boxes."""
    at, names = 0, []
    while at + 8 <= len(blob):
        size, name = int.from_bytes(blob[at : at + 4], "big"), blob[at + 4 : at + 8]
        head = 8
        if size == 1:
            size, head = int.from_bytes(blob[at + 8 : at + 16], "big"), 16
        names.append(name)
        stop = len(blob) if size == 0 else at + size
        if stop > len(blob):
            begun = name in (b"mdat", b"jp2c") or b"mdat" in names
            return _cut(blob, f"in box {name!r}, which begins at byte {at}", begun=begun)
        if name == b"jp2c":
            return check_codestream(blob, at + head)
        if stop < at + head:
            return _corrupt(f"the bytes at {at} are not a box")
        at = stop
    if b"mdat" not in names and b"idat" not in blob:
        return _cut(blob, "before its picture", begun=False)
    return Verdict("intact")


def check_codestream(blob: bytes, at: int = 0) -> Verdict:
    """Judge the JPEG 2000 codestream that begins at `at` by its tiles and its end marker."""
    at += 2
    begun = False
    while at + 2 <= len(blob):
        marker = blob[at : at + 2]
        if marker == b"\xff\xd9":
            return _whole(blob, at + 2) if begun else _corrupt(f"it ends at byte {at} without a picture")
        if marker[0] != 0xFF:
            return _corrupt(f"the bytes at {at} are not a marker")
        if marker == b"\xff\x90":
            begun = True
            size = int.from_bytes(blob[at + 6 : at + 10], "big")
            if size == 0:  # the last part extends to the end marker
                break
            at += max(size, 12)
        else:
            at += 2 + max(int.from_bytes(blob[at + 2 : at + 4], "big"), 2)
    else:
        return _cut(blob, "before its end marker", begun=begun)
    return Verdict("intact") if blob.endswith(b"\xff\xd9") else _cut(blob, "before its end marker")
