"""Test PNG, WebP, GIF, TIFF, BMP and others: whole files are intact, and every cut is named."""

from __future__ import annotations

import functools
import io
import struct
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import skimage
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageSequence

import storeds
from photographs import photograph
from shares import examples
from storeds import errors
from storeds.jpeg import Verdict, check_other, examine

SIZE = (24, 18)


def saved(image: Image.Image, form: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(pixels: Any, *, interlaced: bool = False, pieces: int = 1, level: int = 6) -> bytes:
    """Return RGB `pixels` as a PNG, written here because Pillow interlaces none."""
    height, width, _ = pixels.shape
    starts = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
    passes = [pixels[y::dy, x::dx] for x, y, dx, dy in (starts if interlaced else ((0, 0, 1, 1),))]
    rows = zlib.compress(b"".join(b"\0" + row.tobytes() for part in passes for row in part), level)
    step = -(-len(rows) // pieces)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlaced)
    data = b"".join(chunk(b"IDAT", rows[at : at + step]) for at in range(0, len(rows), step))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"tEXt", b"a\0b") + chunk(b"IEND", b"")


def tiled_tiff(image: Image.Image) -> bytes:
    """Return a TIFF of tiles of 16 x 16, big-endian."""
    columns, rows = -(-image.width // 16), -(-image.height // 16)
    boxes = [(16 * x, 16 * y, 16 * x + 16, 16 * y + 16) for y in range(rows) for x in range(columns)]
    tiles = [image.convert("L").crop(box).tobytes() for box in boxes]
    count, start = len(tiles), 8 + 2 + 9 * 12 + 4
    places = [start + 8 * count + 256 * n for n in range(count)]
    numbers = [(256, image.width), (257, image.height), (258, 8), (259, 1), (262, 1), (322, 16), (323, 16)]
    entries = [struct.pack(">HHII", tag, 4, 1, value) for tag, value in numbers]
    entries += [struct.pack(">HHII", tag, 4, count, start + n * 4 * count) for n, tag in enumerate((324, 325))]
    head = b"MM\0*" + struct.pack(">IH", 8, len(entries)) + b"".join(entries) + bytes(4)
    return head + struct.pack(f">{2 * count}I", *places, *[256] * count) + b"".join(tiles)


@functools.cache
def files() -> dict[str, bytes]:
    image = photograph(0, SIZE)
    more = {"save_all": True, "append_images": [photograph(n, SIZE) for n in (1, 2)]}
    sixteen = Image.fromarray(np.asarray(image)[:, :, 0].astype(np.uint16) * 257)
    rgb = np.asarray(image)
    return {
        "png": saved(image, "PNG"),
        "png, 16 bits": saved(sixteen, "PNG"),
        "png, palette": saved(image.quantize(16), "PNG"),
        "png, bits": saved(image.convert("1"), "PNG"),
        "png, interlaced": png(rgb, interlaced=True),
        "png, pieces": png(rgb, pieces=9),
        "png, animated": saved(image, "PNG", **more),
        "webp": saved(image, "WEBP"),
        "webp, lossless": saved(image, "WEBP", lossless=True),
        "webp, alpha": saved(image.convert("RGBA"), "WEBP"),
        "webp, animated": saved(image, "WEBP", **more),
        "gif": saved(image, "GIF"),
        "gif, animated": saved(image, "GIF", loop=0, **more),
        "tiff": saved(image, "TIFF"),
        "tiff, lzw": saved(image, "TIFF", compression="tiff_lzw"),
        "tiff, deflate": saved(image, "TIFF", compression="tiff_adobe_deflate"),
        "tiff, jpeg": saved(image, "TIFF", compression="jpeg"),
        "tiff, fax": saved(image.convert("1"), "TIFF", compression="group4"),
        "tiff, tiles": tiled_tiff(image),
        "tiff, pages": saved(image, "TIFF", **more),
        "tiff, big": saved(image, "TIFF", big_tiff=True),
        "bmp": saved(image, "BMP"),
        "bmp, palette": saved(image.quantize(16), "BMP"),
        "avif": saved(image, "AVIF"),
        "jpeg 2000": saved(image, "JPEG2000"),
        "jpeg 2000, codestream": saved(image, "JPEG2000", no_jp2=True),
    }


NAMES = list(files())


def frames(blob: bytes) -> list[Any]:
    """Return the pixels of every frame, as Pillow decodes them."""
    with Image.open(io.BytesIO(blob)) as image:
        return [np.asarray(frame.convert("RGBA")) for frame in ImageSequence.Iterator(image)]


def same(blob: bytes, other: bytes) -> bool:
    one, two = frames(blob), frames(other)
    return len(one) == len(two) and all(map(np.array_equal, one, two))


@pytest.mark.parametrize("name", NAMES)
def test_whole_files_are_intact(name: str) -> None:
    assert examine(files()[name]) == check_other(files()[name]) == Verdict("intact")


@pytest.mark.parametrize("truncated_too", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_cut_that_loses_pixels_is_damage(
    name: str, truncated_too: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where the process makes Pillow give cut pictures without an error."""
    whole = files()[name]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_too)
    claimed = []
    for end in range(len(whole)):
        for verdict in (examine(whole[:end]), check_other(whole[:end])):
            if verdict is not None and (verdict.is_whole or verdict.kind == "missing_eoi"):
                claimed.append(end)
            elif verdict is not None and verdict.kind != "not_jpeg":
                assert verdict.kind in ("truncated_file", "truncated_header")
                assert verdict.recovered < 1.0
                assert f"{end}" in verdict.reason
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", False)
    if name == "gif, animated":
        assert claimed == []
    assert all(same(whole[:end], whole) for end in claimed)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("level", [0, 9])
@pytest.mark.parametrize("pieces", [1, 5])
def test_of_a_cut_png_the_share_of_its_rows_is_exact(level: int, pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.random.default_rng(0).integers(1, 256, (40, 16, 3), np.uint8)  # no zeros, which Pillow fills with
    whole = png(rgb, pieces=pieces, level=level)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    compared = 0
    for end in range(41, whole.index(b"tEXt")):
        verdict = examine(whole[:end])
        with Image.open(io.BytesIO(whole[:end])) as image:
            try:
                there = int((np.asarray(image) == rgb).all(axis=(1, 2)).sum())
            except OSError:  # Pillow wants some chunks whole even then
                continue
        compared += 1
        assert (verdict.recovered, verdict.exact) == (there / 40, True), end
        assert verdict.kind == ("missing_eoi" if there == 40 else "truncated_file")
    assert compared > 200


def test_of_a_cut_interlaced_png_it_is_the_share_of_the_pixels_of_whole_rows() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = png(rgb, interlaced=True, level=0)
    share = [examine(whole[:end]).recovered for end in range(whole.index(b"tEXt"))]
    assert share == sorted(share)
    assert examine(whole[: len(whole) // 2]).recovered == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("png")])
def test_a_changed_byte_of_a_png_is_always_damage(name: str) -> None:
    whole = files()[name]
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        for verdict in (examine(changed), check_other(changed)):
            assert verdict is None or not verdict.is_whole, at


def test_a_failed_checksum_is_named_with_its_place_and_the_rows_before_it() -> None:
    rgb = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    whole = png(rgb, pieces=4, level=0)
    at = [n for n in range(len(whole)) if whole.startswith(b"IDAT", n)][2] - 4
    verdict = examine(whole[: at + 100] + b"\0\0\0" + whole[at + 103 :])
    assert (verdict.kind, verdict.exact) == ("corrupt_data", False)
    assert verdict.recovered == pytest.approx(0.5, abs=0.03)
    assert f"the checksum of chunk IDAT, bytes {at} to " in verdict.reason


@pytest.mark.parametrize("truncated_too", [False, True])
def test_a_png_with_valid_chunks_and_too_few_rows_is_damage(
    truncated_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = png(np.zeros((6, 8, 3), np.uint8))
    high = short[:8] + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 12, 8, 2, 0, 0, 0)) + short[33:]
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_too)
    verdict = examine(high)
    assert (verdict.kind, verdict.recovered) == ("corrupt_data", 0.5)
    assert "150 bytes of rows, but 300 are expected" in verdict.reason
    if truncated_too:
        assert check_other(high) == verdict


def test_a_gif_without_its_trailer_loses_no_pixel() -> None:
    verdict = examine(files()["gif"][:-1])
    assert (verdict.kind, verdict.recovered, verdict.exact) == ("missing_eoi", 1.0, True)
    assert "no trailer at byte" in verdict.reason


@pytest.mark.parametrize("name", ["png", "png, animated", "gif", "webp", "webp, alpha", "bmp", "jpeg 2000"])
def test_bytes_after_a_picture_are_not_damage(name: str) -> None:
    verdict = examine(files()[name] + b"<!-- cached -->")
    assert (verdict.kind, verdict.recovered, verdict.is_whole) == ("trailing_data", 1.0, True)
    assert "15 bytes follow the picture" in verdict.reason


@pytest.mark.parametrize("name", ["gif", "tiff, lzw", "webp", "avif", "jpeg 2000"])
def test_a_complete_structure_must_also_decode(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    whole = files()[name]
    broken = {examine(whole[:at] + bytes(4) + whole[at + 4 :]).kind for at in range(12, len(whole) - 4, 7)}
    assert "corrupt_data" in broken
    capfd.readouterr()


def test_a_tiff_whose_directories_lead_in_a_circle_is_damage() -> None:
    whole = files()["tiff, tiles"]
    at = 8 + 2 + 9 * 12
    verdict = examine(whole[:at] + struct.pack(">I", 8) + whole[at + 4 :])
    assert (verdict.kind, verdict.reason) == ("corrupt_data", "its directory at byte 8 refers back to itself")


def test_a_whole_file_of_a_kind_that_pillow_cannot_open_is_not_jpeg() -> None:
    whole = files()["bmp"]
    verdict = examine(whole[:28] + struct.pack("<H", 2) + whole[30:])
    assert (verdict.kind, verdict.recovered) == ("not_jpeg", 0.0)
    assert "Unsupported BMP pixel depth (2)" in verdict.reason


@pytest.mark.parametrize("truncated_too", [False, True])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("decode", ["pil", "tensor", "fast"])
def test_a_reader_names_the_damage_of_every_cut_file(
    decode: str, check: bool, truncated_too: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_too)
    url = f"memory://cut-{decode}-{check}-{truncated_too}"
    with storeds.open_writer(url, {"image": "image"}, check=check, overwrite=True) as writer:
        writer.append({"image": whole[: len(whole) * part // 10]} for whole in files().values() for part in (3, 6, 10))
    dataset = storeds.StoreDataset(url, decode=decode, reader_options={"min_recovered": 1.0})
    for number, name in enumerate(files()):
        for place in (0, 1):
            with pytest.raises(errors.DecodeError) as caught:
                dataset[3 * number + place]
            assert caught.value.kind in ("truncated_file", "truncated_header"), name
        dataset[3 * number + 2]


@pytest.mark.parametrize(
    "blob", [b"", b"\0" * 600, b"<html>404</html>", b"BMW is a make of cars, not a bitmap", b"\x89PNG", b"II*"]
)
@pytest.mark.parametrize("truncated_too", [False, True])
def test_other_bytes_are_not_jpeg(blob: bytes, truncated_too: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", truncated_too)
    assert check_other(blob) is None
    assert (examine(blob).kind, examine(blob).recovered) == ("not_jpeg", 0.0)


def test_other_formats_are_judged_by_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    blob = saved(photograph(0, SIZE), "PPM")
    assert check_other(blob) is None
    assert examine(blob) == Verdict("intact")
    assert examine(blob[:-1]).kind == "not_jpeg"
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert examine(blob).kind == examine(blob[:-1]).kind == "not_jpeg"


def test_the_files_of_other_packages_are_intact() -> None:
    """Many programs wrote these. Pillow cannot open one of them, a TIFF of floating-point colours."""
    matplotlib = pytest.importorskip("matplotlib")
    folders = (Path(skimage.__file__).parent / "data", Path(matplotlib.__file__).parent / "mpl-data")
    suffixes = (".png", ".gif", ".webp", ".tif", ".tiff", ".bmp")
    paths = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes]
    assert len(paths) > 30
    for path in paths:
        blob = path.read_bytes()
        assert check_other(blob) == Verdict("intact"), path
        assert examine(blob).kind == ("not_jpeg" if path.name == "multipage_rgb.tif" else "intact"), path


@settings(max_examples=examples(300))
@given(st.sampled_from(NAMES), st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=9)), max_size=4), st.data())
def test_no_bytes_raise(name: str, changes: list[tuple[int, bytes]], data: st.DataObject) -> None:
    blob = files()[name]
    for at, put in changes:
        blob = blob[:at] + put + blob[at + len(put) :]
    blob = blob[: data.draw(st.integers(0, len(blob)))]
    verdict = check_other(blob)
    assert verdict is None or Verdict.from_text(verdict.to_text()) is not None


def overlapping(size: int) -> bytes:
    """Return a TIFF whose directories all list the same strips."""
    entries = (struct.pack("<HHHIII", 1, 273, 4, size // 8, 8, at + 18) for at in range(8, size - 18, 18))
    return b"II*\0" + struct.pack("<I", 8) + b"".join(entries) + bytes(64)


# Files of about `size` bytes that say the same as often as they can.
HOSTILE: dict[str, Callable[[int], bytes]] = {
    "chunks": lambda size: files()["png"][:33] + chunk(b"teSt", b"") * (size // 12),
    "sub-blocks": lambda size: files()["gif"][:781] + b"," + bytes(9) + b"\x08" + b"\x01a" * (size // 2),
    "zeros": lambda size: files()["gif"][:781] + bytes(size),
    "directories": overlapping,
    "boxes": lambda size: files()["avif"][:32] + b"\0\0\0\x08free" * (size // 8),
    "markers": lambda size: files()["jpeg 2000, codestream"][:2] + b"\xff\x64\0\x02" * (size // 4),
    "frames": lambda size: b"RIFF" + struct.pack("<I", size) + b"WEBP" + b"ANMF\0\0\0\0" * (size // 8),
    "a frame behind the end": lambda size: b"RIFF\xf0\xff\xff\xffWEBPANMF\0\xff\xff\xff" + bytes(64),
    "rows": lambda size: png(np.zeros((1, 1, 3), np.uint8))[:33] + chunk(b"IDAT", zlib.compress(bytes(200 * size))),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_is_proportional_to_the_bytes(name: str) -> None:
    blob = HOSTILE[name](1_600_000)
    begin = time.process_time()
    verdict = examine(blob)
    assert time.process_time() - begin < 3
    assert not verdict.is_whole
