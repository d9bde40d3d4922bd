"""How many damaged pictures decoders return silently, on the random corpus of ``tests``. Needs ``djpeg`` and OpenCV.

A file is damaged if Debian's ``djpeg`` reports it, if a part is missing, or if a checksum fails. It is silently wrong if
its pixels differ from those of the whole file, without an exception, a warning or a count.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageFile

from benchmarks._common import ROOT, Result, Run, entry, figure, in_fresh_process

EOI, STARTS_JPEG = b"\xff\xd9", b"\xff\xd8\xff"
SEED = 16


def by_pillow(blob: bytes) -> Any:
    with Image.open(io.BytesIO(blob)) as image:
        return np.asarray(image.convert("RGB"))


def by_appending(blob: bytes) -> Any:
    """Decode like scripts that check only the last two bytes."""
    return by_pillow(blob if blob.endswith(EOI) else blob + EOI)


def by_simplejpeg(blob: bytes) -> Any:
    import simplejpeg

    return simplejpeg.decode_jpeg(blob, strict=True) if blob.startswith(STARTS_JPEG) else by_pillow(blob)


def by_opencv(blob: bytes) -> Any:
    import cv2

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


class Counts:
    """Pictures of the corpus by outcome: silently wrong, reported or rejected, and whole ones rejected."""

    def __init__(self) -> None:
        self.wrong = self.reported = self.whole_refused = 0

    def add(self, sample: Any, pixels: Any, reported: bool, whole: Callable[[bytes], Any]) -> None:
        """Count one picture. `pixels` is None if the way rejected it; `whole` decodes the undamaged file."""
        if not sample.damage:
            self.whole_refused += pixels is None or reported
        elif sample.is_visible and (pixels is None or reported):
            self.reported += 1
        elif sample.is_visible and not np.array_equal(pixels, whole(sample.whole)):
            self.wrong += 1

    def list(self) -> list[int]:
        return [self.wrong, self.reported, self.whole_refused]


def corpus(count: int) -> Sequence[Any]:
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    from jpeg_corpus import random_corpus

    found: Sequence[Any] = random_corpus(SEED, count)
    return found


def count_decoder(way: str, count: int) -> list[int]:
    """Count the outcomes of a decoder, in this process: `LOAD_TRUNCATED_IMAGES` applies to all of it."""
    found, ImageFile.LOAD_TRUNCATED_IMAGES = Counts(), "LOAD_TRUNCATED" in way

    def decode(blob: bytes) -> Any:
        try:
            return DECODERS[way](blob)
        except Exception:  # damaged bytes make decoders raise errors of any type
            return None

    with quiet():
        for sample in corpus(count):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                pixels = decode(sample.blob)
            found.add(sample, pixels, bool(caught), decode)
    return found.list()


def count_storeds(samples: Sequence[Any], folder: Path) -> Iterator[tuple[str, list[int]]]:
    """Count the outcomes of storeds with a native and a foreign store, with ``min_recovered=0``."""
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
            found, given = Counts(), read_all(url, decode=decode, min_recovered=0.0, **options)
            for at, (sample, picture) in enumerate(zip(samples, given.pictures, strict=True)):
                found.add(sample, None if picture is None else rgb(picture), at in given.faults, by_pillow)
            yield f'storeds, {name}, `decode="{decode}"`', found.list()


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


@entry(
    "silent",
    "Damaged pictures of 4,000 that storeds, Pillow, simplejpeg and OpenCV each return silently or report",
)
def silent(run: Run) -> Iterator[Result]:
    count = run.count(4000, 20)
    with quiet():
        samples = corpus(count)
        ours = list(count_storeds(samples, run.folder))
    run.setup |= {
        "damaged": sum(each.is_visible for each in samples),
        "whole": sum(not each.damage for each in samples),
    }
    others = [(way, in_fresh_process(count_decoder, way, count)) for way in DECODERS]
    for way, (wrong, reported, refused) in (*ours, *others):
        most = 0.0 if way.startswith("storeds") else None
        detail = f"{reported:,} reported or rejected; {refused:,} whole ones rejected"
        yield figure(way, "silently wrong", [wrong], most=most, detail=detail)
