"""A random corpus of pictures in many encodings and formats, whole and damaged, with the facts about each damage.

`random_corpus` depends only on its seed. Nothing here uses `storeds`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from PIL import Image

import jpeg_oracle
from jpeg_corpus import DAMAGES, Damaged, Sample
from jpeg_encodings import ENCODINGS, OTHERS, RARE, stored
from photographs import jpeg, photograph

__all__ = ["random_corpus"]

_OFTEN = {
    "cut in a scan": 4,
    "ended early": 4,
    "bit flip in a scan": 2,
    "zero-filled tail": 2,
    "a huge frame": 0,
    "": 1,
}
_RARE_PERCENT = 5
_CRASHING = ("PNG, animated", "lossless, grayscale")  # Pillow 13, where LOAD_TRUNCATED_IMAGES is set


def _cut_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.choice((chance.randrange(len(whole)), len(whole) - chance.randrange(1, 12)))
    return f"cut at {at}", whole[:at], at


def _zeroed_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.randrange(len(whole) // 4, len(whole))
    return f"zeros from {at}", whole[:at] + bytes(len(whole) - at), None


def _flip_in_file(whole: bytes, chance: random.Random) -> Damaged:
    at = chance.randrange(8, len(whole))
    return f"byte {at}", whole[:at] + bytes((whole[at] ^ 1 << chance.randrange(8),)) + whole[at + 1 :], None


def _without_a_chunk(whole: bytes, chance: random.Random) -> Damaged:
    kind, kept, at = chance.choice((b"IDAT", b"IEND")), [whole[:8]], 8
    while at < len(whole):
        end = at + 12 + int.from_bytes(whole[at : at + 4])
        kept += [whole[at:end]] if whole[at + 4 : at + 8] != kind else []
        at = end
    return kind.decode(), b"".join(kept), None


def _jpeg_sample(chance: random.Random) -> Sample:
    encoders = RARE if chance.randrange(100) < _RARE_PERCENT else ENCODINGS
    encoding = chance.choice([name for name in encoders if name not in _CRASHING])
    whole = encoders[encoding](_photograph(chance))
    if chance.random() < 0.26:
        return Sample(encoding, "", whole, "", whole)
    (damage,) = chance.choices(list(DAMAGES), [_OFTEN.get(name, 1) for name in DAMAGES])
    found = list(DAMAGES[damage](whole, chance))
    return Sample(encoding, damage, whole, *chance.choice(found)) if found else _jpeg_sample(chance)


def _other_sample(chance: random.Random) -> Sample:
    encoding = chance.choice([name for name in OTHERS if name not in _CRASHING])
    whole = OTHERS[encoding](_photograph(chance))
    damages: dict[str, Callable[[bytes, random.Random], Damaged]] = {"cut": _cut_file, "bit flip": _flip_in_file}
    damages["zeros to the end"] = _zeroed_file
    if encoding.startswith("PNG"):
        damages["a chunk is missing"] = _without_a_chunk
    damage = chance.choice(["", "", "cut", *damages])
    if not damage:
        return Sample(encoding, "", whole, "", whole)
    return Sample(encoding, damage, whole, *damages[damage](whole, chance))


def _photograph(chance: random.Random) -> Image.Image:
    edge = chance.choice((40, 100, 160, 230))
    return photograph(chance.randrange(400), (chance.randrange(24, edge + 1), chance.randrange(24, min(edge, 190) + 1)))


def _no_picture(chance: random.Random) -> Sample:
    blobs = (b"", bytes(100), b"<!DOCTYPE html><html><body>404", b"Not Found", b"\x80" + chance.randbytes(50))
    return Sample("none", "no picture", jpeg(0), "", chance.choice((*blobs, stored("jpeg-ls"))))


def random_corpus(seed: int, count: int = 4000) -> list[Sample]:
    """Return the first `count` samples of a seed, about a quarter of them whole."""
    chance = random.Random(seed)
    makers: Sequence[Callable[[random.Random], Sample]] = (_jpeg_sample, _other_sample, _no_picture)
    samples = [chance.choices(makers, (84, 14, 2))[0](chance) for _ in range(count)]
    jpeg_oracle.examine_all(sample.blob for sample in samples if sample.is_jpeg and sample.damage)
    return samples
