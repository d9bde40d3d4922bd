"""What one flipped bit costs: the share of a photograph that is recovered, without and with restart markers.

Run as ``python -m benchmarks.recovery``. It crops photographs of 500 pixels from those of scikit-image and scikit-learn,
adds restart markers with ``jpegtran`` (Debian's libjpeg-turbo-progs), flips one random bit in the data of a scan,
repairs the picture and compares its pixels with those of the whole one. It prints a table in Markdown.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from benchmarks._common import machine
from benchmarks.photos import QUALITY, crop, pictures
from storeds.jpeg import inspect_jpeg, repair
from storeds.jpeg.markers import parse

_PHOTOS = 28
_WAYS = {
    "none": (),
    "every 2 MCUs": ("-restart", "2B"),
    "every 4 MCUs": ("-restart", "4B"),
    "every 8 MCUs": ("-restart", "8B"),
    "every row": ("-restart", "1"),
}
_TARGET = 0.98  # mean share recovered with 2 to 8 MCUs between markers
_MEASURED = ("every 2 MCUs", "every 4 MCUs", "every 8 MCUs")
_STRETCH = 60  # bytes that a disk loses or overwrites


@dataclass
class Row:
    """Results for one interval between restart markers. The lists hold one value per trial."""

    markers: str
    size: float
    trials: int = 0
    warned: int = 0
    found: int = 0
    found_by_codes: int = 0
    missed: int = 0
    recovered: list[float] = field(default_factory=list)
    equal_if_found: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)
    equal_by_pillow: list[float] = field(default_factory=list)

    def count(self, whole: bytes, blob: bytes, *, deep: bool) -> None:
        """Count one trial."""
        self.trials += 1
        finding = inspect_jpeg(blob)
        warned = _warns(blob)
        equal = _equal(whole, repair(blob, finding))
        self.warned += warned
        self.found += finding.is_damaged
        self.missed += warned and not finding.is_damaged
        self.found_by_codes += finding.is_damaged or (deep and inspect_jpeg(blob, deep=True).is_damaged)
        self.equal.append(equal)
        if finding.is_damaged:
            assert finding.recovered is not None
            self.recovered.append(finding.recovered)
            self.equal_if_found.append(equal)
            self.equal_by_pillow.append(_equal(whole, blob))

    def to_json(self) -> dict[str, Any]:
        """Return counts and means."""
        means = {name: float(np.mean(values)) for name, values in asdict(self).items() if isinstance(values, list)}
        return asdict(self) | means


def _warns(blob: bytes) -> bool:
    try:
        simplejpeg.decode_jpeg(blob, strict=True)
    except ValueError:
        return True
    return False


def _pixels(blob: bytes) -> Any:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image)


def _equal(whole: bytes, blob: bytes) -> float:
    """Return the share of equal pixels, 0 if Pillow cannot decode `blob`."""
    expected = _pixels(whole)
    try:
        got = _pixels(blob)
    except Exception:  # damaged bytes make Pillow raise errors of any type
        return 0.0
    return float((expected == got).all(axis=2).mean()) if expected.shape == got.shape else 0.0


def flipped(blob: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy with one flipped bit in the data of its scan."""
    scan = parse(blob).scans[0]
    at = int(rng.integers(scan.start, scan.stop))
    return blob[:at] + bytes((blob[at] ^ 1 << int(rng.integers(8)),)) + blob[at + 1 :]


def overwritten(blob: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy with `_STRETCH` bytes of its scan replaced by noise."""
    scan = parse(blob).scans[0]
    at = int(rng.integers(scan.start, scan.stop - _STRETCH))
    return blob[:at] + rng.bytes(_STRETCH) + blob[at + _STRETCH :]


def lost(blob: bytes, rng: np.random.Generator) -> bytes:
    """Return a copy that lacks a twentieth of the bytes of its scan."""
    scan = parse(blob).scans[0]
    size = (scan.stop - scan.start) // 20
    at = int(rng.integers(scan.start, scan.stop - size))
    return blob[:at] + blob[at + size :]


DAMAGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "one flipped bit": flipped,
    f"{_STRETCH} bytes overwritten by noise": overwritten,
    "a twentieth of the bytes lost": lost,
}


def photographs(count: int, rng: np.random.Generator) -> list[bytes]:
    """Return photographs of 500 pixels as JPEGs."""
    sources = pictures()
    names, blobs = sorted(sources), []
    for number in range(count):
        buffer = io.BytesIO()
        crop(sources[names[number % len(names)]], rng).save(buffer, "JPEG", quality=QUALITY)
        blobs.append(buffer.getvalue())
    return blobs


def with_markers(blob: bytes, options: tuple[str, ...]) -> bytes:
    """Return the picture with optimised tables and, with `options`, restart markers."""
    command = ["jpegtran", "-optimize", "-copy", "all", *options]
    return subprocess.run(command, input=blob, capture_output=True, check=True).stdout


def measure(damage: str, trials: int, seed: int, *, deep: bool) -> list[Row]:
    """Return a row for each interval. Trial n damages photograph n modulo their number."""
    rng = np.random.default_rng(seed)
    originals = photographs(_PHOTOS, rng)
    rows = []
    for markers, options in _WAYS.items():
        blobs = [with_markers(blob, options) for blob in originals]
        row = Row(markers, sum(map(len, blobs)) / sum(map(len, originals)))
        for number in range(trials):
            whole = blobs[number % len(blobs)]
            row.count(whole, DAMAGES[damage](whole, rng), deep=deep)
        rows.append(row)
    return rows


def print_table(damage: str, rows: list[Row], *, deep: bool) -> None:
    codes = "found by following the codes | " if deep else ""
    print(f"\n{damage}, {rows[0].trials:,} trials each\n")
    print(
        f"| restart markers | size | found by `examine` | {codes}recovered | pixels equal | pixels equal, Pillow alone |"
    )
    print("|" + " -- |" * (7 if deep else 6))
    for row in rows:
        shares = [f"{value / row.trials:.1%}" for value in (row.found, row.found_by_codes)[: 1 + deep]]
        means = [np.mean(values) for values in (row.recovered, row.equal_if_found, row.equal_by_pillow)]
        print("|", " | ".join([row.markers, f"{row.size:.3f}", *shares, *(f"{mean:.4f}" for mean in means)]), "|")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--trials", type=int, default=2000, help="per interval between markers")
    options.add_argument("--seed", type=int, default=18)
    options.add_argument("--deep", action="store_true", help="also follow the codes of pictures that look whole; slow")
    options.add_argument("--damage", choices=DAMAGES, action="append", help="only this damage; may be repeated")
    options.add_argument("--out", type=Path, default=Path("build/bench/recovery.json"), help="where the JSON goes")
    options.add_argument(
        "--check",
        action="store_true",
        help="exit with 1 if `examine` misses a warning of libjpeg, or a mean share is below 0.98",
    )
    given = options.parse_args()
    results, met = {}, True
    for damage in given.damage or DAMAGES:
        rows = measure(damage, given.trials, given.seed, deep=given.deep)
        print_table(damage, rows, deep=given.deep)
        results[damage] = [row.to_json() for row in rows]
        met = met and not any(row.missed for row in rows)
        if damage == "one flipped bit":
            met = met and all(np.mean(row.recovered) >= _TARGET for row in rows if row.markers in _MEASURED)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    body = {"when": when, "machine": machine(), "seed": given.seed, "results": results}
    given.out.write_text(json.dumps(body, indent=2) + "\n")
    print(f"\n{when}, target {'met' if met else 'missed'}")
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
