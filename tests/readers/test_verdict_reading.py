"""Test that reading follows the verdict of the store, or the warnings of the decoder without one."""

from __future__ import annotations

import functools
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from photographs import jpeg, photograph
from picture_stores import exif, memory_store, picture_store, saved
from storeds import Skipped, StoreDataset, open_backend
from storeds.errors import DecodeError
from storeds.jpeg import examine, repair
from storeds.readers import decode_pil, decode_windows
from storeds.transforms import RandomResizedCrop

DECODERS = ["pil", "tensor", "fast"]
SIZE = (96, 64)
WHOLE = jpeg(0, SIZE)
EOI = b"\xff\xd9"
Pair = tuple[bytes, str, float]


def judged(*pairs: Pair) -> str:
    """Return the URL of a store of pictures with these findings and shares, whatever their bytes are."""
    names = ("image", "image_finding", "image_recovered")
    return memory_store({"image": "image"}, [dict(zip(names, pair, strict=True)) for pair in pairs])


unjudged = functools.partial(picture_store, check=False)


def pixels(image: Any) -> np.ndarray[Any, Any]:
    found = image.permute(1, 2, 0).numpy() if isinstance(image, torch.Tensor) else np.asarray(image)
    return found.squeeze(2) if found.ndim == 3 and found.shape[2] == 1 else found


def by_pillow(blob: bytes, mode: str = "RGB") -> np.ndarray[Any, Any]:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert(mode))


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


DAMAGED = {
    "cut, and ended": cut(WHOLE) + EOI,
    "zeroed": zeroed(jpeg(1, SIZE)),
    "cut progressive, and ended": cut(jpeg(0, SIZE, progressive=True)) + EOI,
    "cut with restart markers, and ended": cut(jpeg(0, SIZE, restart_marker_blocks=3)) + EOI,
    "cut": cut(WHOLE),
    "cut progressive": cut(jpeg(0, SIZE, progressive=True)),
}
OTHER_JPEGS = {
    "grayscale": photograph(1, SIZE).convert("L"),
    "CMYK": photograph(1, SIZE).convert("CMYK"),
}
DAMAGED |= {f"zeroed {name}": zeroed(saved(image, "JPEG")) for name, image in OTHER_JPEGS.items()}


# --- Without a verdict ---


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("mode", ["RGB", "L", "unchanged"])
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", DAMAGED)
def test_damage_that_only_the_decoder_finds_is_reported(name: str, check: bool, mode: str, decode: str) -> None:
    url = picture_store([DAMAGED[name]], check=check)
    finding = "corrupt_data" if DAMAGED[name].endswith(EOI) else "truncated_scan"
    assert examine(DAMAGED[name]).finding == finding
    _, report = read(url, decode=decode, mode=mode, min_recovered=0.0)
    assert (report.repaired if finding == "truncated_scan" else report.bad) == {finding: 1}
    _, report = read(url, decode=decode, mode=mode, min_recovered=1.0)
    assert report.bad == {finding: 1}
    sample, report = read(url, decode=decode, mode=mode, repair=False)
    assert isinstance(sample, Skipped)
    assert report.bad == {finding: 1}


@pytest.mark.parametrize("decode", DECODERS)
def test_a_custom_decoder_gets_no_damaged_picture_silently(decode: str) -> None:
    def mine(blob: bytes, mode: str) -> Any:
        return decode_pil(blob, mode)

    _, report = read(unjudged([DAMAGED["zeroed"]]), decode=mine, min_recovered=0.0)
    assert sum(report.repaired.values()) + sum(report.bad.values()) == 1


@pytest.mark.parametrize("decode", ["tensor", "fast"])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_crop_above_the_damage_does_not_hide_it(name: str, decode: str) -> None:
    crop = RandomResizedCrop(8, scale=(0.01, 0.02))
    url = unjudged([DAMAGED[name]] * 8)
    dataset = StoreDataset(url, decode=decode, transform=crop, seed=1, min_recovered=0.0, on_error="skip")
    for at in range(8):
        dataset[at]
    report = dataset.report()
    assert sum(report.repaired.values()) + sum(report.bad.values()) == 8


def jfif(blob: bytes) -> bytes:
    return blob[:11] + b"\x09" + blob[12:]


ODD_BUT_WHOLE = {
    "an unknown JFIF revision": jfif(WHOLE),
    "bytes after the end": WHOLE + b"\0" * 40,
    "fill bytes before a marker": WHOLE[:2] + b"\xff\xff" + WHOLE[2:],
    "a comment": WHOLE[:2] + b"\xff\xfe\x00\x06abcd" + WHOLE[2:],
    "progressive": jpeg(0, SIZE, progressive=True),
    "restart markers": jpeg(0, SIZE, restart_marker_blocks=2),
}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("name", ODD_BUT_WHOLE)
def test_a_whole_picture_has_no_note_and_pillow_s_pixels(name: str, check: bool, decode: str) -> None:
    blob = ODD_BUT_WHOLE[name]
    sample, report = read(picture_store([blob], check=check), decode=decode, min_recovered=1.0)
    assert (report.repaired, report.bad) == ({}, {})
    if decode != "fast":
        assert (pixels(sample) == by_pillow(blob)).all()


def test_a_header_warning_hides_no_damage() -> None:
    for decode in DECODERS:
        _, report = read(unjudged([jfif(DAMAGED["cut, and ended"])]), decode=decode, min_recovered=0.0)
        assert report.bad == {"corrupt_data": 1}
        _, report = read(unjudged([jfif(cut(WHOLE))]), decode=decode, min_recovered=0.0)
        assert report.repaired == {"truncated_scan": 1}


def test_missing_scans_are_found_although_libjpeg_is_silent() -> None:
    whole = jpeg(0, SIZE, progressive=True)
    last = whole.rindex(b"\xff\xda")
    for decode in DECODERS:
        _, report = read(unjudged([whole[:last] + EOI]), decode=decode)
        assert report.bad == {"corrupt_data": 1}


# --- With one ---


@pytest.mark.parametrize("decode", DECODERS)
def test_an_intact_verdict_gives_the_same_pixels(decode: str) -> None:
    for name, blob in ODD_BUT_WHOLE.items():
        finding = "intact" if "after" not in name else "trailing_data"
        sample, report = read(judged((blob, finding, 1.0)), decode=decode)
        assert (report.repaired, report.bad) == ({}, {})
        if decode != "fast":
            assert (pixels(sample) == by_pillow(blob)).all()


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


def test_a_store_that_was_repaired_reads_what_is_left() -> None:
    for options in ({}, {"progressive": True}, {"restart_marker_blocks": 3}):
        blob = cut(jpeg(0, SIZE, **options))
        url = judged((repair(blob), "truncated_scan", 0.62))
        sample, report = read(url, decode="tensor")
        assert report.repaired == {"truncated_scan": 1}
        assert (pixels(sample) == by_pillow(repair(blob))).all()


def test_the_message_has_the_share_and_the_reason() -> None:
    with pytest.raises(DecodeError, match=r"\d % of it is there, less than min_recovered=0\.99; it is cut at byte"):
        StoreDataset(unjudged([cut(WHOLE)]), min_recovered=0.99)[0]
    with pytest.raises(DecodeError, match=r"32\.1 % of it is there, .*; the store's verdict: truncated_scan"):
        StoreDataset(judged((WHOLE, "truncated_scan", 0.321)))[0]


@pytest.mark.parametrize("finding", ["truncated_header", "corrupt_data"])
def test_a_verdict_of_no_share_is_an_error_without_decoding(finding: str) -> None:
    sample, report = read(judged((WHOLE, finding, 0.0)), min_recovered=0.0)
    assert isinstance(sample, Skipped)
    assert report.bad == {finding: 1}


@pytest.mark.parametrize("share", [float("nan"), -1.0])
def test_a_verdict_without_a_valid_share_is_never_enough(share: float) -> None:
    _, report = read(judged((WHOLE, "truncated_scan", share)), min_recovered=0.0)
    assert report.bad == {"truncated_scan": 1}


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("name", [name for name in DAMAGED if not name.startswith("zeroed ")])  # Pillow decodes these
def test_a_wrong_intact_verdict_does_not_hide_damage(name: str, decode: str) -> None:
    url = judged(*[(DAMAGED[name], "intact", 1.0)] * 2)
    for transform in (None, RandomResizedCrop(8, scale=(0.9, 1.0))):
        dataset = StoreDataset(url, decode=decode, transform=transform, seed=1, min_recovered=0.0, on_error="skip")
        for at in range(2):
            dataset[at]
        report = dataset.report()
        assert sum(report.repaired.values()) + sum(report.bad.values()) == 2


def test_bytes_are_returned_whatever_the_verdict() -> None:
    sample, report = read(judged((WHOLE[:500], "truncated_header", 0.0)), decode="bytes")
    assert (sample, report.repaired, report.bad) == (WHOLE[:500], {}, {})


def test_verdicts_add_no_elements_to_samples() -> None:
    dataset = StoreDataset(picture_store([WHOLE]), decode="tensor", as_dict=True)
    assert list(dataset[0]) == ["image", "label"]
    assert dataset.reader.target == "label"


@pytest.mark.parametrize("decode", ["tensor", "fast"])
def test_later_epochs_of_a_foreign_store_draw_the_crop_first_and_give_the_same(
    decode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*args: Any, **options: Any) -> Any:
        calls.append(args)
        return decode_windows(*args, **options)

    monkeypatch.setattr("storeds.readers.pictures.decode_windows", counted)
    blobs = [jpeg(number, (80, 120)) for number in range(6)]
    crop = RandomResizedCrop(
        60, scale=(0.2, 0.6)
    )  # no smaller than the picture, of which `fast` would decode less at once
    dataset = StoreDataset(unjudged([*blobs, cut(blobs[0])]), decode=decode, transform=crop, seed=1, min_recovered=0.0)
    first = dataset[:]
    assert not calls
    dataset = pickle.loads(pickle.dumps(dataset))  # which begins again
    for one, other in zip(dataset[:], first, strict=True):
        assert torch.equal(one[0], other[0])
    assert not calls
    for one, other in zip(dataset[:], first, strict=True):
        assert torch.equal(one[0], other[0])
    assert len(calls) == len(blobs)
    assert dataset.report().repaired == {"truncated_scan": 2}


@pytest.mark.parametrize("decode", ["tensor", "fast"])
def test_samples_are_the_same_in_the_first_epoch_in_later_ones_and_in_a_native_store(decode: str) -> None:
    blobs = [jpeg(number, (160, 240)) for number in range(6)]
    crop = RandomResizedCrop(16)
    damaged = cut(blobs[0])
    dataset = StoreDataset(unjudged([*blobs, damaged]), decode=decode, transform=crop, seed=1, min_recovered=0.0)
    epochs = [dataset[:], dataset[:]]
    stored = StoreDataset(picture_store([*blobs, damaged]), decode=decode, transform=crop, seed=1, min_recovered=0.0)[:]
    for one, two, other in zip(*epochs, stored, strict=True):
        assert torch.equal(one[0], two[0])
        assert torch.equal(one[0], other[0])
    assert dataset.report().repaired == {"truncated_scan": 2}


class Changing:
    """A backend of one picture whose bytes change."""

    def __init__(self) -> None:
        self.inner = open_backend(unjudged([WHOLE]))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __enter__(self) -> Changing:
        return self

    def __exit__(self, *error: object) -> None:
        self.inner.close()


def test_a_checked_picture_that_changes_is_judged_again() -> None:
    backend = Changing()
    dataset = StoreDataset(backend, decode="tensor", transform=RandomResizedCrop(8), seed=1, min_recovered=0.0)
    for blob, repairs in ((WHOLE, 0), (cut(WHOLE), 1), (WHOLE, 1)):
        backend.inner = open_backend(unjudged([blob]))
        dataset[:]
        assert sum(dataset.report().repaired.values()) == repairs


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


# --- Other formats ---


def file(kind: str) -> bytes:
    return saved(photograph(2, SIZE), kind)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("kind", ["PNG", "WebP", "GIF", "TIFF"])
def test_a_cut_file_of_another_format_has_a_named_damage(kind: str, check: bool, decode: str) -> None:
    whole = file(kind)
    _, report = read(picture_store([whole], check=check), decode=decode)
    assert (report.repaired, report.bad) == ({}, {})
    _, report = read(picture_store([whole[: len(whole) // 2]], check=check), decode=decode)
    assert sum(report.bad.values()) == 1
    assert report.bad.keys() <= {"corrupt_data", "not_jpeg"}


@pytest.mark.parametrize("check", [False, True])
def test_a_png_without_its_end_chunk_has_all_its_pixels(check: bool) -> None:
    for decode in DECODERS:
        sample, report = read(picture_store([file("PNG")[:-7]], check=check), decode=decode, min_recovered=1.0)
        assert report.repaired == {"missing_eoi": 1}
        assert (pixels(sample) == by_pillow(file("PNG"))).all()


@pytest.mark.parametrize("check", [False, True])
def test_a_checksum_of_a_png_that_fails_is_damage(check: bool) -> None:
    blob = bytearray(file("PNG"))
    blob[blob.index(b"IDAT") + 900] ^= 1
    for decode in DECODERS:
        _, report = read(picture_store([bytes(blob)], check=check), decode=decode)
        assert report.bad == {"corrupt_data": 1}


@pytest.mark.parametrize("check", [False, True])
def test_other_bytes_are_an_error_of_kind_not_jpeg(check: bool) -> None:
    for decode in DECODERS:
        for blob in (b"<html></html>", b"", bytes(500)):
            _, report = read(picture_store([blob], check=check), decode=decode)
            assert report.bad == {"not_jpeg": 1}


@pytest.mark.parametrize("check", [False, True])
def test_a_custom_decoder_may_support_other_formats(check: bool) -> None:
    url = picture_store([b"mine: 1 2 3"], check=check)
    sample, report = read(url, decode=lambda blob, mode: blob.split()[1:])
    assert (sample, report.bad) == ([b"1", b"2", b"3"], {})


def test_load_truncated_images_hides_no_damage_of_a_jpeg(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    monkeypatch.setattr("storeds.jpeg.formats._warned", False)
    for blob in (WHOLE[:-300], *DAMAGED.values()):
        for decode in DECODERS:
            _, report = read(unjudged([blob]), decode=decode, min_recovered=0.0)
            assert sum(report.repaired.values()) + sum(report.bad.values()) == 1
    assert sum("LOAD_TRUNCATED_IMAGES" in record.message for record in caplog.records) == 1
