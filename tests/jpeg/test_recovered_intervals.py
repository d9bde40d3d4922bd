"""Test that damage in a JPEG with restart markers costs the intervals that it touches, and no others.

The oracle is Pillow: it decodes the repaired and the undamaged picture, and each interval is compared.
"""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg

import jpeg_oracle
import storeds
from jpeg_intervals import DAMAGES, SHIFTS, Marked, equal_units
from jpeg_truth import decode
from photographs import photograph
from shares import SEED, share
from storeds.errors import RecordError
from storeds.jpeg import examine, inspect_jpeg, place_parts, repair

SIZE = (205, 141)  # neither side is a multiple of an MCU
COLOURS: dict[str, dict[str, Any]] = {
    "4:4:4": {"subsampling": 0},
    "4:2:2": {"subsampling": 1},
    "4:2:0": {"subsampling": 2},
    "gray": {},
}
INTERVALS: dict[str, dict[str, Any]] = {
    "2": {"restart_marker_blocks": 2},
    "4": {"restart_marker_blocks": 4},
    "8": {"restart_marker_blocks": 8},
    "7, which divides no row": {"restart_marker_blocks": 7},
    "a row": {"restart_marker_rows": 1},
    "three rows": {"restart_marker_rows": 3},
}
TRIALS = 10
LOST = -1


def marked(colour: str, interval: str, number: int = 0) -> Marked:
    image = photograph(number, SIZE)
    buffer = io.BytesIO()
    options = COLOURS[colour] | INTERVALS[interval]
    (image.convert("L") if colour == "gray" else image).save(buffer, "JPEG", quality=85, optimize=True, **options)
    blob = buffer.getvalue()
    at = blob.index(b"\xff\xdd\x00\x04")
    return Marked(blob, int.from_bytes(blob[at + 4 : at + 6]))


CASES = [
    (damage, colour, interval, trial)
    for damage in DAMAGES
    for colour in COLOURS
    for interval in INTERVALS
    for trial in range(TRIALS)
]


def named(case: tuple[str, str, str, int]) -> str:
    return ", ".join(map(str, case))


def damaged(case: tuple[str, str, str, int]) -> tuple[Marked, bytes]:
    damage, colour, interval, trial = case
    whole = marked(colour, interval, trial % 4)
    return whole, DAMAGES[damage](whole, random.Random(f"{SEED} {case}"))


def shares_of_pixels(whole: Marked, blob: bytes) -> tuple[float, float]:
    """Return the share of the MCUs that are equal, and the share in intervals of which every MCU is equal."""
    equal = equal_units(whole, blob)
    starts = np.arange(0, equal.size, whole.interval)
    sizes = np.diff([*starts, equal.size])
    return float(equal.mean()), float(sizes[np.logical_and.reduceat(equal, starts)].sum() / equal.size)


@pytest.mark.parametrize("case", share(CASES, 150), ids=named)
def test_the_share_is_what_equals_the_whole_picture(case: tuple[str, str, str, int]) -> None:
    whole, blob = damaged(case)
    verdict = examine(blob)
    if verdict.is_whole:  # see `test_what_libjpeg_reports_is_damage`
        return
    if verdict.kind == "truncated_scan" and not verdict.exact:  # a multiple of 8 intervals is missing somewhere
        return
    equal, in_whole_intervals = shares_of_pixels(whole, repair(blob))
    one = whole.interval / whole.units
    # What is equal by chance, and what was right before the damage in its interval, does not count.
    assert verdict.recovered <= equal + 1.001 * one, verdict
    assert verdict.recovered >= in_whole_intervals - 1.001 * one, verdict


@pytest.mark.parametrize("case", share([case for case in CASES if case[0] in SHIFTS], 40), ids=named)
def test_a_repaired_picture_has_no_fewer_intervals_than_libjpeg_finds(case: tuple[str, str, str, int]) -> None:
    whole, blob = damaged(case)
    try:
        found, _ = shares_of_pixels(whole, blob)
    except OSError:  # Pillow refuses it
        found = 0.0
    equal, _ = shares_of_pixels(whole, repair(blob))
    assert equal >= found - 1.001 * whole.interval / whole.units


@pytest.mark.parametrize("interval", [name for name in INTERVALS if name != "three rows"])  # which has four intervals
@pytest.mark.parametrize("colour", COLOURS)
def test_intervals_after_a_loss_stay_at_their_places(colour: str, interval: str) -> None:
    whole = marked(colour, interval)
    markers = whole.markers
    # Without the bytes from the middle of one interval to the middle of one five later, libjpeg shifts the rest by five.
    blob = whole.blob[: markers[1] - 5] + whole.blob[markers[6] - 5 :]
    repaired = repair(blob)
    equal = equal_units(whole, repaired)
    lost = slice(whole.interval, 7 * whole.interval)
    assert equal[: lost.start].all()
    assert equal[lost.stop :].all()
    assert not equal[lost.start + whole.interval : lost.stop - whole.interval].all()
    assert len(whole.markers) == len(Marked(repaired, whole.interval).markers)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_lost_interval_is_grey_and_decodes_without_a_warning(colour: str) -> None:
    whole = marked(colour, "4")
    blob = whole.blob[: whole.markers[8]] + whole.blob[whole.markers[11] :]
    repaired = repair(blob)
    simplejpeg.decode_jpeg(repaired, strict=True)
    lost = ~equal_units(whole, repaired)
    assert lost.nonzero()[0].tolist() == list(range(9 * 4, 12 * 4))
    assert examine(blob).recovered == pytest.approx(1 - 12 / whole.units)
    (columns, _), (width, height) = whole.about.mcus, whole.about.mcu
    pixels = decode(repaired, "YCbCr").reshape(SIZE[1], SIZE[0], -1)
    for unit in range(9 * 4, 12 * 4):
        top, left = unit // columns * height, unit % columns * width
        inner = pixels[top + 2 : top + height - 2, left + 2 : left + width - 2]
        assert (inner == 128).all()


@pytest.mark.parametrize("interval", ["2", "8", "a row", "three rows"])
def test_a_wrong_number_of_a_marker_costs_nothing(interval: str) -> None:
    whole = marked("4:2:0", interval)
    for at in whole.markers:
        for wrong in (0xD0, 0xD5, 0x53, 0xD9):
            if whole.blob[at + 1] == wrong or (at == whole.markers[-1] and wrong in (0x53, 0xD9)):
                continue
            blob = whole.blob[: at + 1] + bytes((wrong,)) + whole.blob[at + 2 :]
            verdict = examine(blob)
            assert verdict.kind == "corrupt_data"
            assert verdict.recovered == 1.0
            assert repair(blob) == whole.blob


def test_pictures_with_all_markers_are_whole() -> None:
    for colour in COLOURS:
        for interval in INTERVALS:
            whole = marked(colour, interval).blob
            assert inspect_jpeg(whole, deep=True).kind == "intact"
            assert repair(whole) is whole


# Damage that touches at most two intervals of one scan.
SMALL = ["a flipped bit", *(damage for damage in DAMAGES if "marker" in damage and not damage.startswith("cut"))]
PROGRESSIVE = [(damage, scan, trial) for damage in SMALL for scan in range(10) for trial in range(TRIALS)]


@pytest.mark.parametrize("case", share(PROGRESSIVE, 30), ids=lambda case: ", ".join(map(str, case)))
def test_damage_in_one_scan_of_a_progressive_picture_costs_few_blocks(case: tuple[str, int, int]) -> None:
    damage, scan, trial = case
    buffer = io.BytesIO()
    photograph(trial % 4, SIZE).save(buffer, "JPEG", progressive=True, restart_marker_blocks=5)
    whole = Marked(buffer.getvalue(), 5, scan)
    blob = DAMAGES[damage](whole, random.Random(f"{SEED} {case}"))
    repaired = repair(blob)
    assert equal_units(whole, repaired).mean() > 0.9
    assert repair(repaired) == repaired
    assert damage == "a flipped bit" or not examine(blob).is_whole


FLIPS = [(colour, interval, trial) for colour in COLOURS for interval in INTERVALS for trial in range(80)]


def test_what_libjpeg_reports_is_damage() -> None:
    blobs = [damaged(("a flipped bit", *case))[1] for case in share(FLIPS, 60)]
    for blob, seen in zip(blobs, jpeg_oracle.examine_all(blobs), strict=True):
        if seen.is_damaged:
            assert not examine(blob).is_whole, seen.complaints


def silent_flip(whole: bytes) -> tuple[int, int]:
    """Return the byte and the bit of a flip that changes pixels, and that no check of the picture alone can find."""
    scan = Marked(whole, 1).start
    for at in range(scan + 40, len(whole) - 40):
        for bit in range(8):
            blob = whole[:at] + bytes((whole[at] ^ 1 << bit,)) + whole[at + 1 :]
            if inspect_jpeg(blob, deep=True).kind == "intact" and (decode(blob) != decode(whole)).any():
                return at, bit
    raise AssertionError("every flip is found")


@pytest.mark.parametrize("url", ["lmdb://{}/store.lmdb", "hdf5://{}/store.h5"])
def test_the_store_reports_a_flipped_bit_that_leaves_a_valid_picture(tmp_path: Path, url: str) -> None:
    whole = marked("4:2:0", "4").blob
    at, bit = silent_flip(whole)
    with storeds.open_writer(url.format(tmp_path), {"image": "image"}) as writer:
        writer.append([{"image": whole}])
    (file,) = [path for path in tmp_path.iterdir() if path.suffix in (".lmdb", ".h5")]
    data = bytearray(file.read_bytes())
    data[data.index(whole) + at] ^= 1 << bit
    file.write_bytes(data)
    dataset = storeds.StoreDataset(url.format(tmp_path), fields=("image",))
    with dataset.backend, pytest.raises(RecordError, match="checksum"):
        dataset[0]


@pytest.mark.parametrize(
    ("markers", "count", "places"),
    [
        ("d0 d1 d2 d3", 5, [0, 1, 2, 3, 4]),
        ("d0 d7 d2 d3", 5, [0, 1, 2, 3, 4]),  # a wrong number
        ("d0 53 d2 d3", 5, [0, 1, 2, 3, 4]),  # no restart marker any more
        ("d0 d5 d1 d2 d3", 5, [0, 1, LOST, 2, 3, 4]),  # a marker too many
        ("d0 53 d1 d2 d3", 5, [0, 1, LOST, 2, 3, 4]),
        ("d0 d2 d3 d4", 6, [0, 1, 3, 4, 5]),  # an interval is missing
        ("d0 d6 d7 d0 d1", 11, [0, 1, 7, 8, 9, 10]),
        ("d0 d3 d4 d5", 15, [0, 1, 12, 13, 14]),  # 2 + 8 are missing
        ("d0 d3 d4 d6 d7", 17, [0, 1, LOST, LOST, 15, 16]),  # 3 + 8, at one of two places
        ("d0 d1 d1 d2 d3", 5, [0, 1, LOST, LOST, 3, 4]),  # one marker is wrong, but which?
    ],
)
def test_places_follow_from_numbers(markers: str, count: int, places: list[int]) -> None:
    found = place_parts(bytes.fromhex(markers), count, has_end=True, is_whole=lambda part, place: True)
    assert found == places


def test_a_multiple_of_eight_is_missing_where_a_part_is_damaged() -> None:
    markers = bytes.fromhex("d0 d1 d2 d3")
    found = place_parts(markers, 13, has_end=True, is_whole=lambda part, place: part != 1)
    assert found == [0, 1, 10, 11, 12]
    found = place_parts(markers, 13, has_end=True, is_whole=lambda part, place: part not in (1, 2))
    assert found == [0, 1, LOST, 11, 12]
    assert place_parts(markers, 13, has_end=True, is_whole=lambda part, place: True) == [0, 1, 2, 3, 4]


def test_parts_after_a_gap_have_no_place_without_the_end() -> None:
    found = place_parts(bytes.fromhex("d0 d3 d4"), 20, has_end=False, is_whole=lambda part, place: True)
    assert found == [0, 1, LOST, LOST]
