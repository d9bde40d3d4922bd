"""Restart markers change no coefficient and no metadata. The oracles are Pillow, and Debian's ``djpeg`` and ``jpegtran``."""

from __future__ import annotations

import io
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from jpeg_encodings import ENCODINGS, RARE, encode, exif_with_thumbnail, sampled, save, with_segment
from jpeg_truth import anatomy
from photographs import by_pillow, jpeg, photograph
from storeds import errors
from storeds.pictures import RestartMarker, Verdict, examine, is_ready

ADDED, HAD = "added", "had them"
MARKERS = bytes(range(0xD0, 0xD8))


@pytest.fixture(scope="module")
def marker() -> RestartMarker:
    return RestartMarker.find()


@pytest.fixture
def every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put markers into small pictures too, whatever they cost."""
    monkeypatch.setattr("storeds.pictures.restarts._FEWEST_PIXELS", 0)
    monkeypatch.setattr("storeds.pictures.restarts._GROWTH", 1000.0)


def mark(marker: RestartMarker, blob: bytes) -> tuple[bytes, str]:
    """Return the marked picture and the outcome, after comparing it with the original."""
    before = examine(blob)
    marked = marker.mark(blob, before)
    if marked.outcome == ADDED:
        assert coefficients(marked.blob) == coefficients(blob)
        assert np.array_equal(by_pillow(marked.blob), by_pillow(blob))
        assert metadata(marked.blob) == metadata(blob)
        assert examine(marked.blob) == before
        assert is_cuttable(marked.blob)
        assert is_ready(marked.blob)
        assert marker.mark(marked.blob, before) == (marked.blob, HAD)
    else:
        assert marked.blob is blob
    return marked.blob, marked.outcome


def coefficients(blob: bytes) -> bytes:
    """Return the coefficients in the one form in which jpegtran writes them: sequential, without restart markers."""
    command = ["jpegtran", "-copy", "none", "-optimize"]
    return subprocess.run(command, input=blob, capture_output=True, check=True).stdout


def metadata(blob: bytes) -> tuple[Any, ...]:
    """Return what Pillow finds in the application segments and comments, and what follows the picture."""
    with Image.open(io.BytesIO(blob)) as image:
        kept = {
            name: image.info.get(name) for name in ("dpi", "exif", "icc_profile", "comment", "jfif_density", "adobe")
        }
        segments = list(image.applist)  # type: ignore[attr-defined]  # of JPEGs alone
    return kept, segments, blob[anatomy(blob).parts[-1].stop :]


def is_cuttable(blob: bytes) -> bool:
    """Whether the restart markers are complete, in order, and at the same places in each row."""
    about = anatomy(blob)
    if about.process not in ("baseline", "extended") or len(about.scans) != 1:
        return False
    (columns, rows), scan = about.mcus, about.scans[0]
    (restart,) = (part for part in about.parts if part.marker == 0xDD)
    interval = int.from_bytes(blob[restart.stop - 2 : restart.stop])
    found = bytes(each[1] for each in re.findall(rb"\xff[\xd0-\xd7]", blob[scan.start : scan.stop]))
    expected = -(-columns * rows // interval) - 1
    return columns % interval == 0 and found == (MARKERS * (expected // 8 + 1))[:expected]


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(st.integers(1, 600), st.integers(1, 300)),
    st.sampled_from(["444", "422", "420", "440", "411", "grey"]),
    st.integers(5, 100),
    st.booleans(),
)
@pytest.mark.usefixtures("every_picture")
def test_any_picture_keeps_its_coefficients(
    marker: RestartMarker, size: tuple[int, int], subsampling: str, quality: int, progressive: bool
) -> None:
    image = photograph(quality, (200, 150)).resize(size)
    if subsampling in ("440", "411"):
        blob = sampled(image, subsampling)
    elif subsampling == "grey":
        blob = save(image.convert("L"), quality=quality, progressive=progressive)
    else:
        named = ":".join(subsampling)
        blob = save(image, quality=quality, progressive=progressive, subsampling=named)
    assert mark(marker, blob)[1] == ADDED


@pytest.mark.usefixtures("every_picture")
@pytest.mark.parametrize("encoding", sorted(ENCODINGS | RARE))
def test_every_encoding_is_marked_or_kept_with_a_reason(marker: RestartMarker, encoding: str) -> None:
    blob = encode(encoding)
    _, outcome = mark(marker, blob)
    if outcome not in (ADDED, HAD):
        assert re.match(r"several pictures|lossless|.*arithmetic|libjpeg warns|jpegtran refuses it: \w", outcome), (
            outcome
        )


LARGE = jpeg(0, (448, 240))
LARGE_PROGRESSIVE = jpeg(0, (448, 240), progressive=True)


@pytest.mark.parametrize(
    ("blob", "outcome"),
    [
        (encode("two pictures (MPO)"), "several pictures in one file"),
        (encode("4:4:4"), "too small"),
        (jpeg(0, (448, 240), restart_marker_blocks=4), HAD),
        (jpeg(0, (448, 240), restart_marker_rows=1), ADDED),
        (LARGE + b"more of the file", ADDED),
        # Coded again it would look whole, because jpegtran does not notice that a scan is missing.
        (LARGE_PROGRESSIVE[: anatomy(LARGE_PROGRESSIVE).scans[-2].stop] + b"\xff\xd9", "damaged"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_left_alone_has_a_reason(marker: RestartMarker, blob: bytes, outcome: str) -> None:
    assert mark(marker, blob)[1] == marker.mark(blob, None).outcome == outcome


@pytest.mark.parametrize("progressive", [False, True])
def test_metadata_stays_byte_for_byte(marker: RestartMarker, progressive: bool) -> None:
    exif = exif_with_thumbnail(jpeg(2, (32, 24)))
    options: dict[str, Any] = {"exif": exif, "icc_profile": b"profile" * 20_000, "comment": b"ends \xff\xd9 here"}
    blob = jpeg(0, (448, 240), quality=70, dpi=(300, 144), progressive=progressive, **options)
    blob = with_segment(with_segment(blob, 0xE5, jpeg(1, (40, 30))), 0xFE, b"first")
    marked, outcome = mark(marker, blob)
    assert outcome == ADDED
    with Image.open(io.BytesIO(marked)) as image:
        assert image.info["dpi"] == (300, 144)
        assert image.info["exif"] == exif
        assert not image.info.get("progressive")


def test_damaged_pictures_and_other_formats_are_kept(marker: RestartMarker) -> None:
    for blob in (LARGE[:9000], LARGE[:-2], LARGE[:300], b"\xff\xd8", b"", b"not a picture", save(photograph(), "PNG")):
        for verdict in (examine(blob), Verdict("intact", 1.0), None):
            kept = marker.mark(blob, verdict)
            assert kept.blob is blob
            assert kept.outcome in ("damaged", "no JPEG")


def test_markers_out_of_order_make_no_picture_ready() -> None:
    blob = jpeg(0, (448, 240), restart_marker_blocks=4)
    at = blob.index(b"\xff\xd1", next(part for part in anatomy(blob).parts if part.kind == "data").start)
    assert is_ready(blob)
    assert not is_ready(blob[: at + 1] + b"\xd2" + blob[at + 2 :])
    assert not is_ready(jpeg(0, (448, 240), restart_marker_blocks=3))  # 3 does not divide 28
    assert not is_ready(jpeg(0, (448, 240), restart_marker_blocks=4, progressive=True))
    assert not is_ready(LARGE)
    frame = blob.index(b"\xff\xc0")
    no_factors = bytearray(blob)
    no_factors[frame + 11 : frame + 20 : 3] = bytes(3)
    assert is_ready(bytes(no_factors)) is False


@pytest.mark.parametrize(("size", "quality"), [((500, 375), 40), ((375, 500), 88), ((1984, 1488), 75)])
def test_pictures_grow_little(marker: RestartMarker, size: tuple[int, int], quality: int) -> None:
    blob = save(photograph(2, (300, 225)).resize(size), quality=quality)
    marked, outcome = mark(marker, blob)
    assert outcome in (ADDED, "would grow too much")
    assert len(marked) <= len(blob) * (1.02 if max(size) > 1000 else 1.03)
    if quality >= 75:
        assert outcome == ADDED


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, r"needs the program jpegtran.*apt install libjpeg-turbo-progs"),
        ("cat", "writes no sequential JPEG"),
        ("echo broken >&2; exit 1", "jpegtran refuses it: broken"),
    ],
)
def test_a_program_that_cannot_be_used_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, message: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere" if body is None else f"{script(tmp_path, body)}:{os.environ['PATH']}")
    with pytest.raises(errors.ConfigError, match=message):
        RestartMarker.find()


def test_a_killed_program_is_an_error_and_not_a_reason(tmp_path: Path) -> None:
    killed = RestartMarker(f"{script(tmp_path, 'kill -9 $$')}/jpegtran")
    with pytest.raises(errors.StoredsError, match=r"was ended by signal \d+; resume=True"):
        killed.mark(LARGE, None)


def test_a_program_that_changes_pixels_changes_nothing(tmp_path: Path) -> None:
    real = shutil.which("jpegtran")
    for change in (f'exec {real} -flip horizontal "$@"', f'exec {real} -grayscale "$@"'):
        kept = RestartMarker(f"{script(tmp_path, change)}/jpegtran").mark(LARGE, None)
        assert (kept.blob, kept.outcome) == (LARGE, "decodes to other pixels")


def script(folder: Path, body: str) -> Path:
    """Write a program named jpegtran that runs `body`; return its folder."""
    program = folder / "jpegtran"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder
