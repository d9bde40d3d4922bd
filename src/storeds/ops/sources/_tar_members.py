"""Walks the headers of a tar file: where each member lies, and where the file stops making sense."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Member", "TarDamage", "members"]

_BLOCK = 512
_AFTER = 64 * _BLOCK  # archives are filled up with zeros to a multiple of twenty blocks
_REGULAR = b"0\x007"
_BODILESS = b"123456"
_KINDS = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a device",
    ord("4"): "a device",
    ord("6"): "a FIFO",
    ord("S"): "a sparse file",
}
_FOLDER, _LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL = b"5LKxg"
# A path is 4096 bytes at most; what claims more is damage, and would have to be held in memory.
_LARGEST_EXTRA = 1 << 20
_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class TarDamage(Exception):  # noqa: N818  # always caught and told as a problem
    """From `offset` on, a file cannot be read as tar."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a tar file.

    Attributes
    ----------
    name : str
        As written; bytes that are no UTF-8 are surrogate escapes.
    offset, size : int
        Where its bytes lie.
    odd : str or None
        What it is, if no regular file.
    """

    name: str
    offset: int
    size: int
    odd: str | None


def members(descriptor: int, length: int) -> Iterator[Member]:
    """Yield the files of the tar in `descriptor`, folders left out; reads headers only.

    Formats are ustar, GNU (long names, large numbers) and pax.

    Raises
    ------
    TarDamage
        The file ends early or a header is damaged; what came before stands.
    """
    start, common = 0, dict[str, bytes]()
    while True:
        header = _header(descriptor, start)
        if header is None:
            return
        at, own = start, dict[str, bytes]()
        while header[156] in (_LONG_NAME, _LONG_LINK, _PAX, _PAX_GLOBAL):
            size = _size(header, at, {})
            extra = _extra(descriptor, at + _BLOCK, size)
            _take(header[156], extra, own, common, at)
            at += _BLOCK + _padded(size)
            following = _header(descriptor, at)
            if following is None:
                if header[156] == _PAX_GLOBAL:
                    return
                raise TarDamage(at, "the archive ends after a header that announces a member")
            header = following
        size = _size(header, at, {**common, **own})
        offset = at + _BLOCK
        odd = _odd(header[156], own)
        # The size that links and the like carry is not that of any bytes behind their headers.
        start = offset + (0 if header[156] in _BODILESS else _padded(size))
        name = _name(header, {**common, **own})
        if odd is None and offset + size > length:
            raise TarDamage(offset, f"the file ends within {name.encode('utf-8', 'backslashreplace').decode()!r}")
        if header[156] != _FOLDER and not (header[156] == 0 and name.endswith("/")):
            yield Member(name, offset, size, odd)


def _header(descriptor: int, offset: int) -> bytes | None:
    """Return the header block at `offset`, or None for the mark of the archive's end."""
    block = os.pread(descriptor, _BLOCK, offset)
    if not offset:
        for magic, what in _MAGIC.items():
            if block.startswith(magic):
                raise TarDamage(0, f"it is compressed ({what}); decompress it, for members to be found at their places")
    if len(block) < _BLOCK:
        what = "within a header" if block else "without the mark that closes an archive"
        raise TarDamage(offset, f"the file ends {what}: it was cut short")
    if not block.strip(b"\0"):
        if os.pread(descriptor, _AFTER, offset).strip(b"\0"):
            raise TarDamage(
                offset, "more follows the mark that closes the archive; put each archive in a file of its own"
            )
        return None
    stored = _number(block[148:156])
    # Some old programs added up signed bytes.
    total = sum(block) - sum(block[148:156]) + 256
    signed = total - 256 * sum(byte > 127 for byte in (*block[:148], *block[156:])) if stored != total else total
    if stored not in (total, signed):
        raise TarDamage(offset, "there is no tar header; the file is damaged" if offset else "it is no tar file")
    return block


def _number(field: bytes) -> int | None:
    if field[0] & 0x80:  # GNU's form of what takes more than eleven octal digits
        return int.from_bytes(field[1:], "big") if field[0] == 0x80 else None
    digits = field.split(b"\0", 1)[0].strip()
    if not digits:
        return 0
    return int(digits, 8) if all(byte in b"01234567" for byte in digits) else None


def _size(header: bytes, offset: int, pax: dict[str, bytes]) -> int:
    size = _number(header[124:136])
    written = pax.get("size")
    if written is not None:
        size = int(written) if written.isdigit() and len(written) < 20 else None
    if size is None or size < 0:
        raise TarDamage(offset, "the size in a header is no number")
    return size


def _extra(descriptor: int, offset: int, size: int) -> bytes:
    if size > _LARGEST_EXTRA:
        raise TarDamage(offset, f"a name or an extended header of {size} bytes")
    extra = os.pread(descriptor, size, offset)
    if len(extra) < size:
        raise TarDamage(offset, "the file ends within an extended header: it was cut short")
    return extra


def _take(kind: int, extra: bytes, own: dict[str, bytes], common: dict[str, bytes], offset: int) -> None:
    if kind == _LONG_NAME:
        own["path"] = extra.split(b"\0", 1)[0]
    elif kind in (_PAX, _PAX_GLOBAL):
        (own if kind == _PAX else common).update(_pax(extra, offset))


def _pax(extra: bytes, offset: int) -> Iterator[tuple[str, bytes]]:
    while extra.strip(b"\0"):
        digits, space, _ = extra.partition(b" ")
        length = int(digits) if space and digits.isdigit() and len(digits) < 8 else 0
        name, equals, value = extra[len(digits) + 1 : length - 1].partition(b"=")
        if not equals or length > len(extra) or extra[length - 1 : length] != b"\n":
            raise TarDamage(offset, "an extended header is damaged")
        yield name.decode("utf-8", "replace"), value
        extra = extra[length:]


def _odd(kind: int, own: dict[str, bytes]) -> str | None:
    if any(name.startswith("GNU.sparse.") for name in own):
        return _KINDS[ord("S")]
    if kind in _REGULAR:
        return None
    return _KINDS.get(kind, f"of the unknown type {chr(kind)!r}")


def _name(header: bytes, pax: dict[str, bytes]) -> str:
    name = pax.get("path")
    if name is None:
        name = header[:100].split(b"\0", 1)[0]
        prefix = header[345:500].split(b"\0", 1)[0]
        if prefix and header[257:263] == b"ustar\0":  # in GNU's own format these bytes hold other things
            name = prefix + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
