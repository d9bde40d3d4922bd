"""The number of damaged pictures that decode silently with storeds, Pillow, simplejpeg and OpenCV.

Run as ``python -m benchmarks.silent``. It reads the random corpus of ``tests`` and prints a table in Markdown. A file is
damaged if Debian's ``djpeg`` reports it, if a part is missing, or if a checksum fails. It is silently wrong if its pixels
differ from those of the whole file, without an exception, a warning or a count.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageFile, features

from benchmarks._common import machine

_ROOT = Path(__file__).resolve().parents[1]
EOI = b"\xff\xd9"
STARTS_JPEG = b"\xff\xd8\xff"
_CHILD = "--of-one-way"


@dataclass
class Row:
    """Number of pictures of the corpus per outcome, for one method."""

    way: str
    silently_wrong: int = 0
    reported: int = 0
    whole_refused: int = 0

    def count(self, sample: Any, pixels: Any, reported: bool, whole: Callable[[], Any]) -> None:
        """Count one picture. `pixels` is None if the method rejected it; `whole` holds those of the undamaged file."""
        if not sample.damage:
            self.whole_refused += pixels is None or reported
        elif sample.is_visible and (pixels is None or reported):
            self.reported += 1
        elif sample.is_visible and not np.array_equal(pixels, whole()):
            self.silently_wrong += 1


def by_pillow(blob: bytes) -> Any:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


def by_appending(blob: bytes) -> Any:
    """Decode like scripts that check only the last two bytes."""
    return by_pillow(blob if blob.endswith(EOI) else blob + EOI)


def by_simplejpeg(blob: bytes) -> Any:
    return simplejpeg.decode_jpeg(blob, strict=True) if blob.startswith(STARTS_JPEG) else by_pillow(blob)


def by_opencv(blob: bytes) -> Any:
    pixels = cv2.imdecode(np.frombuffer(blob, np.uint8), cv2.IMREAD_COLOR)
    if pixels is None:
        raise ValueError("imdecode gave None")
    return pixels


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "simplejpeg, `strict=True`; Pillow for other formats": by_simplejpeg,
    "Pillow": by_pillow,
    "OpenCV, `imdecode`": by_opencv,
    "append `FF D9` where it is missing, then Pillow": by_appending,
    "Pillow with `LOAD_TRUNCATED_IMAGES`": by_pillow,
}


def count_decoder(way: str, samples: Sequence[Any]) -> Row:
    """Count the outcomes of a decoder. A Python warning counts as reported."""
    decode, row = DECODERS[way], Row(way)
    ImageFile.LOAD_TRUNCATED_IMAGES = "LOAD_TRUNCATED" in way
    for sample in samples:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pixels = _or_none(decode, sample.blob)
        row.count(sample, pixels, bool(caught), lambda whole=sample.whole: _or_none(decode, whole))
    return row


def _or_none(decode: Callable[[bytes], Any], blob: bytes) -> Any:
    try:
        return decode(blob)
    except Exception:  # damaged bytes make decoders raise errors of any type
        return None


def count_storeds(samples: Sequence[Any], folder: Path) -> Iterator[Row]:
    """Count the outcomes of storeds with a native and a foreign store, with min_recovered=0."""
    import _foreign_lmdb
    import storeds
    from _silence import DECODES, read_all, rgb

    with storeds.open_writer(f"lmdb://{folder}/native.lmdb", {"image": "image"}) as writer:
        writer.append({"image": sample.blob} for sample in samples)
    _foreign_lmdb.put(folder / "foreign", ((b"%08d" % at, sample.blob) for at, sample in enumerate(samples)))
    stores: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("its own store", f"lmdb://{folder}/native.lmdb", {}),
        ("another tool's LMDB", f"lmdb://{folder}/foreign", {"layout": "keyed"}),
    )
    for name, url, options in stores:
        for decode in DECODES:
            row = Row(f'**storeds**, {name}, `decode="{decode}"`')
            given = read_all(url, decode=decode, min_recovered=0.0, **options)
            for at, (sample, picture) in enumerate(zip(samples, given.pictures, strict=True)):
                pixels = None if picture is None else rgb(picture)
                row.count(sample, pixels, at in given.faults, lambda whole=sample.whole: by_pillow(whole))
            yield row


@contextmanager
def quiet() -> Iterator[None]:
    """Hide what C libraries print to standard error."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def in_child(way: str, seed: int, count: int) -> Row:
    """Count in a separate process, since `LOAD_TRUNCATED_IMAGES` applies to the whole process."""
    command = [sys.executable, "-m", "benchmarks.silent", "--seed", str(seed), "--count", str(count), _CHILD, way]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    return Row(**json.loads(done.stdout))


def print_table(rows: Sequence[Row], samples: Sequence[Any]) -> None:
    damaged, whole = sum(sample.is_visible for sample in samples), sum(not sample.damage for sample in samples)
    print(f"| way | silently wrong, of {damaged:,} damaged | reported or refused | whole ones refused, of {whole:,} |")
    print("|---|---|---|---|")
    for row in rows:
        print(f"| {row.way} | {row.silently_wrong:,} | {row.reported:,} | {row.whole_refused:,} |")


def versions() -> dict[str, str]:
    found = {name: version(name) for name in ("storeds", "pillow", "simplejpeg", "opencv-python-headless")}
    djpeg = subprocess.run(["djpeg", "-version"], capture_output=True, text=True, check=False).stderr
    pillow = features.version_feature("libjpeg_turbo") or ""
    return {**found, "djpeg": djpeg.split("(")[0].strip(), "libjpeg-turbo of Pillow": pillow}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seed", type=int, default=16)
    options.add_argument("--count", type=int, default=4000, help="pictures of the corpus")
    options.add_argument("--out", type=Path, default=Path("build/bench/silent.json"), help="where the JSON goes")
    options.add_argument("--check", action="store_true", help="exit with 1 when storeds gives one silently")
    options.add_argument(_CHILD, choices=DECODERS, help=argparse.SUPPRESS)
    given = options.parse_args()
    sys.path.insert(0, str(_ROOT / "tests" / "support"))
    from random_corpus import random_corpus

    with quiet():
        samples = random_corpus(given.seed, given.count)
        if given.of_one_way:
            row = count_decoder(given.of_one_way, samples)
    if given.of_one_way:
        print(json.dumps(asdict(row)))
        return 0
    with quiet(), tempfile.TemporaryDirectory() as folder:
        ours = list(count_storeds(samples, Path(folder)))
    rows = ours + [in_child(way, given.seed, given.count) for way in DECODERS]
    print_table(rows, samples)
    when = datetime.now(UTC).isoformat(timespec="seconds")
    body = {"when": when, "versions": versions(), "machine": machine(), "seed": given.seed, "count": given.count}
    print(f"\n{when}, {body['versions']}")
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps({**body, "rows": [asdict(row) for row in rows]}, indent=2) + "\n")
    return 1 if given.check and any(row.silently_wrong for row in ours) else 0


if __name__ == "__main__":
    raise SystemExit(main())
