"""Test that reading follows the verdict of the store, or the warnings of the decoder without one."""

from __future__ import annotations

import functools
import io
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from make_store import make_store
from photographs import by_pillow, jpeg, photograph, saved
from picture_stores import exif, picture_store
from storeds import Skipped, StoreDataset
from storeds.errors import DecodeError
from storeds.pictures import examine, repair
from storeds.transforms import RandomResizedCrop

DECODERS = ["pil", "tensor", "fast"]
SIZE = (96, 64)
WHOLE = jpeg(0, SIZE)
EOI = b"\xff\xd9"
Pair = tuple[bytes, str, float]


def judged(*pairs: Pair) -> str:
    """Return the URL of a store of pictures with these findings and shares, whatever their bytes are."""
    names = ("image", "image_finding", "image_recovered")
    return make_store({"image": "image"}, [dict(zip(names, pair, strict=True)) for pair in pairs])


unjudged = functools.partial(picture_store, check=False)


def pixels(image: Any) -> np.ndarray[Any, Any]:
    found = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    return found.squeeze(2) if found.ndim == 3 and found.shape[2] == 1 else found


def read(source: Any, **options: Any) -> tuple[Any, Any]:
    """Return the first sample and the report, with the policy that says nothing but by them."""
    dataset = StoreDataset(source, **{"on_error": "skip", "fields": ["image"], "seed": 1, **options})
    sample = dataset[0]
    return sample if isinstance(sample, Skipped) else sample[0], dataset.report()


def cut(whole: bytes) -> bytes:
    """Return a JPEG without the last third of its data."""
    return whole[: -(len(whole) - whole.rindex(b"\xff\xda")) // 3].rstrip(b"\xff")


def zeroed(whole: bytes) -> bytes:
    """Return a JPEG with zeros in the middle of its data, at whole bytes, which leaves the structure as it was."""
    middle = whole.index(b"\xff\xda") + (len(whole) - whole.index(b"\xff\xda")) // 2
    return whole[:middle] + bytes(60) + whole[middle + 60 :]


def jfif(blob: bytes) -> bytes:
    return blob[:11] + b"\x09" + blob[12:]


def flipped(blob: bytes, at: int) -> bytes:
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


PROGRESSIVE = jpeg(0, SIZE, progressive=True)
RESTARTS = jpeg(0, SIZE, restart_marker_blocks=3)
CMYK = saved(photograph(1, SIZE).convert("CMYK"), "JPEG")
FILES = {kind: saved(photograph(2, SIZE), kind) for kind in ("PNG", "WebP", "GIF", "TIFF")}
PNG = FILES["PNG"]

# What `examine` finds in them; all the same with a verdict in the store and without one.
WHOLE_ONES: dict[str, tuple[bytes, str]] = {
    "an unknown JFIF revision": (jfif(WHOLE), "intact"),
    "bytes after the end": (WHOLE + b"\0" * 40, "trailing_data"),
    "fill bytes before a marker": (WHOLE[:2] + b"\xff\xff" + WHOLE[2:], "intact"),
    "progressive": (PROGRESSIVE, "intact"),
    "restart markers": (RESTARTS, "intact"),
    **{kind: (blob, "intact") for kind, blob in FILES.items()},
}
CUT: dict[str, tuple[bytes, str]] = {
    "cut": (cut(WHOLE), "truncated_scan"),
    "cut progressive": (cut(PROGRESSIVE), "truncated_scan"),
    "no end marker": (WHOLE[:-2], "missing_eoi"),
    "PNG without its end chunk": (PNG[:-7], "missing_eoi"),
}
CORRUPT: dict[str, tuple[bytes, str]] = {
    "cut, and ended": (cut(WHOLE) + EOI, "corrupt_data"),
    "zeroed": (zeroed(jpeg(1, SIZE)), "corrupt_data"),
    "zeroed CMYK": (zeroed(CMYK), "corrupt_data"),
    "cut progressive, and ended": (cut(PROGRESSIVE) + EOI, "corrupt_data"),
    "without its last scan": (PROGRESSIVE[: PROGRESSIVE.rindex(b"\xff\xda")] + EOI, "corrupt_data"),
    "PNG with a wrong checksum": (flipped(PNG, PNG.index(b"IDAT") + 900), "corrupt_data"),
    **{f"half a {kind}": (FILES[kind][: len(FILES[kind]) // 2], "corrupt_data") for kind in ("PNG", "GIF", "TIFF")},
    "half a WebP": (FILES["WebP"][: len(FILES["WebP"]) // 2], "not_jpeg"),
    "no pixel": (WHOLE[:40], "truncated_header"),
    "HTML": (b"<html></html>", "not_jpeg"),
    "no bytes": (b"", "not_jpeg"),
}
JPEGS = {name: blob for name, (blob, _) in (CUT | CORRUPT).items() if blob[:2] == WHOLE[:2] and len(blob) > 40}


@pytest.mark.parametrize(
    ("name", "check", "decode"),
    [
        (name, check, DECODERS[(at + check) % 3])
        for at, name in enumerate(WHOLE_ONES | CUT | CORRUPT)
        for check in (False, True)
    ],
)
def test_damage_is_reported_and_whole_pictures_are_untouched(name: str, check: bool, decode: str) -> None:
    blob, finding = (WHOLE_ONES | CUT | CORRUPT)[name]
    url = picture_store([blob], check=check)
    assert examine(blob).finding == finding
    is_whole, is_complete = name in WHOLE_ONES, examine(blob).recovered == 1.0
    for mode in ("RGB", "L", "unchanged"):
        sample, report = read(url, decode=decode, mode=mode, min_recovered=0.0)
        assert report.repaired == ({finding: 1} if name in CUT else {})
        assert report.bad == ({finding: 1} if name in CORRUPT else {})
        if is_complete and decode != "fast" and mode == "RGB":
            assert (pixels(sample) == by_pillow(repair(blob))).all()
    for options in ({"min_recovered": 1.0}, {"repair": False}):
        _, report = read(url, decode=decode, **options)
        is_given = is_whole or (is_complete and "repair" not in options)
        assert report.bad == ({} if is_given else {finding: 1})


@pytest.mark.parametrize(
    ("finding", "share"),
    [("truncated_header", 0.0), ("corrupt_data", 0.0), ("truncated_scan", float("nan")), ("truncated_scan", -1.0)],
)
def test_a_verdict_without_a_valid_share_is_an_error_without_decoding(finding: str, share: float) -> None:
    sample, report = read(judged((WHOLE, finding, share)), min_recovered=0.0)
    assert isinstance(sample, Skipped)
    assert report.bad == {finding: 1}


@pytest.mark.parametrize("decode", DECODERS)
def test_a_verdict_of_damage_counts_although_the_bytes_look_whole(decode: str) -> None:
    url = judged((WHOLE, "truncated_scan", 0.62))
    sample, report = read(url, decode=decode)
    assert report.repaired == {"truncated_scan": 1}
    assert pixels(sample).shape == (64, 96, 3)
    for options in ({"min_recovered": 0.7}, {"repair": False}):
        sample, report = read(url, decode=decode, **options)
        assert isinstance(sample, Skipped)
        assert report.bad == {"truncated_scan": 1}


def test_the_message_has_the_share_and_the_reason() -> None:
    with pytest.raises(DecodeError, match=r"\d % of it is there, less than min_recovered=0\.99; it is cut at byte"):
        StoreDataset(unjudged([cut(WHOLE)]), min_recovered=0.99)[0]
    with pytest.raises(DecodeError, match=r"cannot be decoded \(13 bytes beginning 3c 68 74 6d\)"):
        StoreDataset(unjudged([b"<html></html>"]))[0]
    with pytest.raises(DecodeError, match="the image is damaged, and repair is off"):
        StoreDataset(unjudged([cut(WHOLE)]), repair=False)[0]
    with pytest.raises(DecodeError, match=r"32\.1 % of it is there, .*; the store's verdict: truncated_scan"):
        StoreDataset(judged((WHOLE, "truncated_scan", 0.321)))[0]


@pytest.mark.parametrize("name", [name for name in JPEGS if not name.startswith(("zeroed ", "without"))])  # no warnings
def test_a_wrong_intact_verdict_does_not_hide_damage(name: str) -> None:
    url = judged(*[(JPEGS[name], "intact", 1.0)] * 2)
    for decode, transform in itertools.product(DECODERS, (None, RandomResizedCrop(8, scale=(0.9, 1.0)))):
        dataset = StoreDataset(url, decode=decode, transform=transform, seed=1, min_recovered=0.0, on_error="skip")
        for at in range(2):
            dataset[at]
        report = dataset.report()
        assert sum(report.repaired.values()) + sum(report.bad.values()) == 2


def test_bytes_are_returned_whatever_the_verdict() -> None:
    sample, report = read(judged((WHOLE[:500], "truncated_header", 0.0)), decode="bytes")
    assert (sample, report.repaired, report.bad) == (WHOLE[:500], {}, {})


@pytest.mark.parametrize("decode", ["tensor", "fast"])
@pytest.mark.parametrize("size", [60, 20])  # of 20 pixels, `fast` decodes less at once
def test_pictures_without_a_verdict_have_the_same_pixels_in_every_epoch(decode: str, size: int) -> None:
    blobs = [jpeg(number, (80, 120)) for number in range(6)]
    crop = RandomResizedCrop(size, scale=(0.2, 0.6))
    dataset = StoreDataset(unjudged([*blobs, cut(blobs[0])]), decode=decode, transform=crop, seed=1, min_recovered=0.0)
    first = dataset[:]
    for one, other in zip(dataset[:], first, strict=True):
        assert torch.equal(one[0], other[0])
    assert dataset.report().repaired == {"truncated_scan": 2}


# --- Pillow images ---


@pytest.mark.parametrize("check", [False, True])
def test_a_pillow_image_keeps_what_its_file_says_about_it(check: bool) -> None:
    profile = b"not a profile, but bytes of one"
    blob = jpeg(0, SIZE, exif=exif(6), icc_profile=profile, dpi=(72, 72), comment=b"of a comment")
    backend = picture_store([blob], check=check)
    for mode in ("RGB", "unchanged", "L"):
        sample, _ = read(backend, mode=mode)
        with Image.open(io.BytesIO(blob)) as image:
            expected = image.convert("RGB" if mode == "unchanged" else mode)
        assert type(sample) is Image.Image
        assert (sample.mode, sample.size, sample.info) == (expected.mode, expected.size, expected.info)
        assert sample.getexif()[0x0112] == 6
        assert sample.tobytes() == expected.tobytes()
        sample.putpixel((0, 0), 0 if mode == "L" else (1, 2, 3))  # it may be written to
    turned, _ = read(backend, reader_options={"orient": True})
    assert turned.size == (64, 96)
    assert (pixels(turned) == np.rot90(by_pillow(blob), -1)).all()
    assert 0x0112 not in turned.getexif()


@pytest.mark.parametrize("check", [False, True])
def test_a_custom_decoder_may_support_other_formats(check: bool) -> None:
    url = picture_store([b"mine: 1 2 3"], check=check)
    sample, report = read(url, decode=lambda blob, mode: blob.split()[1:])
    assert (sample, report.bad) == ([b"1", b"2", b"3"], {})
