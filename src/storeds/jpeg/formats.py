"""Says what bytes that are no JPEG are."""

from __future__ import annotations

__all__ = ["sniff"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
    (b"II+\x00", "TIFF"),
    (b"MM\x00+", "TIFF"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "JPEG 2000"),
    (b"\xff\x4f\xff\x51", "JPEG 2000"),
    (b"\xff\x0a", "JPEG XL"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "JPEG XL"),
    (b"%PDF", "PDF"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"\x00\x00\x01\x00", "ICO"),
    (b"8BPS", "PSD"),
    (b"\x93NUMPY", "NPY"),
    (b"qoif", "QOI"),
)
_BRANDS = {b"avif": "AVIF", b"avis": "AVIF", b"heic": "HEIC", b"heix": "HEIC", b"mif1": "HEIF"}
_TEXT = (
    ((b"<!doctype html", b"<html", b"<head", b"<body"), "HTML"),
    ((b"<?xml", b"<svg", b"<error"), "XML"),
    ((b"{", b"["), "JSON"),
)


def sniff(blob: bytes) -> str:
    """Return the name of the format of `blob`, ``empty``, ``zeros``, ``text`` or ``unknown``."""
    if not blob:
        return "empty"
    head = blob[:512]
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    if head[4:8] == b"ftyp":
        return _BRANDS.get(head[8:12], "MP4")
    if not head.strip(b"\x00"):
        return "zeros"
    return _sniff_text(head)


def _sniff_text(head: bytes) -> str:
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    for openings, name in _TEXT:
        if start.startswith(openings):
            return name
    return "text" if _is_text(head) else "unknown"


def _is_text(head: bytes) -> bool:
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(head) - error.start > 3:  # else a character may just be cut in two where the head ends
            return False
        text = head[: error.start].decode("utf-8")
    return bool(text) and all(character.isprintable() or character.isspace() for character in text)
