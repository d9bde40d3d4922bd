"""Stores in the formats of other tools, one for each layout and variant, with their expected records."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lz4.frame
import numpy as np

from _foreign_lmdb import basicsr, caffe, datum, encoded, numpy_to_msgpack, ocr, pickled, put, tensorpack
from _traps_lmdb import atoms, open_catalyst, uniter_images

__all__ = ["CASES", "COUNT", "JPEGS", "NAMED", "NUMBERS", "Case"]

COUNT = 24
NUMBERS = range(COUNT)
MP4 = b"\0\0\0\x18ftypisom\0\0\2\0isomiso2"


def picture(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (3, 4, 5), np.uint8)


def vary(number: int) -> np.ndarray[Any, Any]:
    return np.full((2, 1 + number % 3), number, ">f4")


def strided(number: int) -> np.ndarray[Any, Any]:
    return picture(number).transpose(1, 2, 0)


@dataclass(frozen=True)
class Case:
    """A way to write a store, the layout that reads it, and the expected records."""

    layout: str
    write: Callable[[Path], Path]
    record: Callable[[int], dict[str, Any]]
    options: dict[str, Any] | None = None


JPEGS = [encoded(number) for number in NUMBERS]
PNGS = [encoded(number, "PNG") for number in NUMBERS]
NAMED = sorted((f"lsun/{n * 37 % 101:03}/é{n}.jpg", JPEGS[n]) for n in NUMBERS)

CASES: dict[str, Case] = {
    "tuples": Case(
        "pickled",
        lambda path: pickled(path, [(JPEGS[n], n * 7 % 13) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n * 7 % 13},
    ),
    "old-pickles-in-one-file": Case(
        "pickled",
        lambda path: pickled(path, [(JPEGS[n], float(n), f"é{n}") for n in NUMBERS], protocol=2, folder=False),
        lambda n: {"image": JPEGS[n], "score": float(n), "text": f"é{n}"},
        {"fields": "image,score,text"},
    ),
    "bare-arrays": Case(
        "pickled", lambda path: pickled(path, [picture(n) for n in NUMBERS]), lambda n: {"array": picture(n)}
    ),
    "tuples-of-arrays": Case(
        "pickled",
        lambda path: pickled(path, [(vary(n), np.arange(4) * n, picture(n).T) for n in NUMBERS]),
        lambda n: {"low": vary(n).astype("<f4"), "mid": np.arange(4) * n, "ref": np.ascontiguousarray(picture(n).T)},
        {"fields": ["low", "mid", "ref"]},
    ),
    "mappings-in-a-named-database": Case(
        "pickled",
        lambda path: pickled(path, [{"Image": JPEGS[n], "Boxes": [[n, 1.5]]} for n in NUMBERS], database=b"train"),
        lambda n: {"image": JPEGS[n], "boxes": [[n, 1.5]]},
        {"database": "train"},
    ),
    "pickles-alone": Case(
        "pickled",
        lambda path: put(path, [(b"%06d" % n, pickle.dumps([n, bool(n % 2)])) for n in NUMBERS]),
        lambda n: {"label": n, "flag": bool(n % 2)},
    ),
    "ocr": Case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"wörd {n}") for n in NUMBERS]),
        lambda n: {"image": PNGS[n], "label": f"wörd {n}"},
    ),
    "ocr-without-labels": Case(
        "ocr", lambda path: ocr(path, [(PNGS[n], None) for n in NUMBERS]), lambda n: {"image": PNGS[n]}
    ),
    "keyed": Case(
        "keyed",
        lambda path: put(path, [(key.encode(), blob) for key, blob in NAMED[::-1]], folder=False),
        lambda n: {"image": NAMED[n][1], "key": NAMED[n][0]},
    ),
    "basicsr": Case(
        "keyed",
        lambda path: basicsr(
            path, {f"{(n * 7) % COUNT:04}_s n.png": PNGS[n] for n in range(1, COUNT)} | {"x.png": PNGS[0]}
        ),
        lambda n: (
            {"image": PNGS[n + 1], "key": f"{((n + 1) * 7) % COUNT:04}_s n"}
            if n < COUNT - 1
            else {"image": PNGS[0], "key": "x"}
        ),
    ),
    "datum-encoded": Case(
        "caffe",
        lambda path: caffe(path, [datum(JPEGS[n], n - 3, encoded=True) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n - 3, "key": f"{n:08}_n{n}.jpg"},
    ),
    "datum-raw": Case(
        "caffe",
        lambda path: caffe(path, [datum(picture(n).tobytes(), n, (3, 4, 5)) for n in NUMBERS]),
        lambda n: {"pixels": picture(n), "class_id": n, "name": f"{n:08}_n{n}.jpg"},
        {"fields": "pixels,class_id,name"},
    ),
    "datum-floats": Case(
        "caffe",
        lambda path: caffe(
            path, [datum(label=n, shape=(1, 1, n % 2 + 1), floats=[0.5] * (n % 2 + 1), packed=n > 9) for n in NUMBERS]
        ),
        lambda n: {"array": np.full((1, 1, n % 2 + 1), 0.5, "f4"), "label": n, "key": f"{n:08}_n{n}.jpg"},
    ),
    "tensorpack-pickle": Case(
        "tensorpack",
        # As its ILSVRC12 files: the encoded bytes lie in an array.
        lambda path: tensorpack(path, [[np.frombuffer(JPEGS[n], np.uint8), n] for n in NUMBERS], pickle.dumps),
        lambda n: {"image": JPEGS[n], "label": n},
    ),
    "tensorpack-msgpack": Case(
        "tensorpack",
        lambda path: tensorpack(path, [[picture(n), np.int64(n)] for n in NUMBERS], numpy_to_msgpack, folder=False),
        lambda n: {"array": picture(n), "label": n},
    ),
}


CASES |= {
    "protocol-5-in-one-file": Case(
        "pickled",
        lambda path: pickled(path, [(strided(n), bytearray(JPEGS[n])) for n in NUMBERS], protocol=5, folder=False),
        lambda n: {"array": np.ascontiguousarray(strided(n)), "image": JPEGS[n]},
    ),
    "bytearrays": Case(
        "pickled",
        lambda path: pickled(path, [[bytearray(JPEGS[n]), bytearray(b"\xff" * n)] for n in NUMBERS], protocol=2),
        lambda n: {"image": JPEGS[n], "bytes": b"\xff" * n},
    ),
    "bytes-under-names": Case(
        "pickled",
        lambda path: pickled(path, JPEGS, names=[f"n/{n * 7 % COUNT}.jpg".encode() for n in NUMBERS]),
        lambda n: {"image": JPEGS[n]},
    ),
    "pickles-alone-under-names": Case(
        "pickled",
        lambda path: put(path, [(f"n{n:03}/é".encode(), pickle.dumps((JPEGS[n], n))) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "label": n},
    ),
    "pickles-alone-from-1-without-zeros": Case(
        "pickled",
        lambda path: put(path, [(b"%d" % (n + 1), pickle.dumps((JPEGS[n], n))) for n in NUMBERS], folder=False),
        lambda n: {"image": JPEGS[n], "label": n},
    ),
    "keys-are-numbers": Case(
        "pickled",
        lambda path: pickled(path, [n / 2 for n in NUMBERS], keys=[int(n) for n in reversed(NUMBERS)]),
        lambda n: {"value": (COUNT - 1 - n) / 2},
    ),
    "keys-are-an-array-of-numbers": Case(
        "pickled",
        lambda path: pickled(path, [bool(n % 3) for n in NUMBERS], keys=np.array(NUMBERS)[::-1]),
        lambda n: {"flag": bool((COUNT - 1 - n) % 3)},
    ),
    "keys-are-an-array-of-text": Case(
        "pickled",
        lambda path: pickled(path, [f"w{n}" for n in NUMBERS], keys=np.array([str(n) for n in NUMBERS])),
        lambda n: {"text": f"w{n}"},
    ),
    "keys-are-an-array-of-bytes": Case(
        "pickled",
        lambda path: pickled(path, [f"w{n}" for n in NUMBERS], keys=np.array([b"%d" % n for n in NUMBERS])),
        lambda n: {"text": f"w{n}"},
    ),
    "ocr-from-0-in-one-file": Case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"w{n}") for n in NUMBERS], start=0, folder=False),
        lambda n: {"image": PNGS[n], "label": f"w{n}"},
    ),
    "ocr-interrupted": Case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"w{n}") for n in NUMBERS], counted=False),
        lambda n: {"image": PNGS[n], "label": f"w{n}"},
        {"partial": True},
    ),
    "ocr-interrupted-without-zeros-in-a-named-database": Case(
        "ocr",
        lambda path: ocr(path, [(PNGS[n], f"w{n}") for n in NUMBERS], counted=False, form="", database=b"train"),
        lambda n: {"image": PNGS[n], "label": f"w{n}"},
        {"partial": True, "database": "train"},
    ),
    "lsun": Case(
        "keyed",
        lambda path: put(path, [(b"%040x" % (n * 0x9E3779B97F4A7C15), encoded(n, "WEBP")) for n in NUMBERS]),
        lambda n: {"image": encoded(n, "WEBP"), "key": f"{n * 0x9E3779B97F4A7C15:040x}"},
    ),
    "keyed-in-a-named-database": Case(
        "keyed",
        lambda path: put(path, [(key.encode(), blob) for key, blob in NAMED], database=b"val"),
        lambda n: {"image": NAMED[n][1], "key": NAMED[n][0]},
        {"database": "val"},
    ),
    "keys-that-are-no-text": Case(
        "keyed",
        lambda path: put(path, [(b"\xff" + bytes([n]), JPEGS[n]) for n in NUMBERS]),
        lambda n: {"image": JPEGS[n], "key": f"\\xff{chr(n)}"},
    ),
    "datum-in-a-named-database-in-one-file": Case(
        "caffe",
        lambda path: caffe(path, [datum(PNGS[n], n, encoded=True) for n in NUMBERS], database=b"train", folder=False),
        lambda n: {"image": PNGS[n], "label": n, "key": f"{n:08}_n{n}.jpg"},
        {"database": "train"},
    ),
    "tensorpack-in-a-named-database": Case(
        "tensorpack",
        lambda path: tensorpack(path, [[JPEGS[n], n] for n in NUMBERS], pickle.dumps, database=b"train"),
        lambda n: {"image": JPEGS[n], "label": n},
        {"database": "train"},
    ),
}


def frames(number: int) -> list[bytes]:
    """Return the frames of a clip; all clips together have `COUNT` frames of 1 to 7 each."""
    lengths = (3, 7, 1, 5, 6, 2)
    start = sum(lengths[:number])
    return JPEGS[start : start + lengths[number]]


def frame_record(position: int) -> dict[str, Any]:
    video, frame = next((v, f) for v in range(6) for f in range(len(frames(v))) if frames(v)[f] == JPEGS[position])
    return {"image": JPEGS[position], "video": video, "frame": frame, "label": video * 2}


def graph_record(number: int) -> dict[str, Any]:
    return {name: np.asarray(value) if hasattr(value, "numpy") else value for name, value in atoms(number).items()}


def numbers_entry(number: int) -> dict[str, Any]:
    return {"features": np.full((1 + number % 4, 3), number, "<f2"), "name": f"é{number}"}


def json_value(number: int) -> bytes:
    entry = {"photo": base64.b64encode(JPEGS[number]).decode(), "box": [number, 0.5], "tags": ["a"] * (number % 2)}
    return gzip.compress(json.dumps(entry).encode())


CASES |= {
    "graphs": Case("pickled", lambda path: Path(open_catalyst(path, COUNT).removeprefix("lmdb://")), graph_record),
    "old-graphs": Case(
        "pickled",
        lambda path: Path(open_catalyst(path, COUNT, version=1, protocol=2).removeprefix("lmdb://")),
        graph_record,
    ),
    "pickles-of-protocol-0-with-class-names": Case(
        "pickled",
        lambda path: put(
            path,
            [
                *((b"%d" % n, pickle.dumps((JPEGS[n], n), 0)) for n in NUMBERS),
                (b"classes", pickle.dumps(["a"], 0)),
                (b"length", pickle.dumps(COUNT, 0)),
            ],
        ),
        lambda n: {"image": JPEGS[n], "label": n},
    ),
    "json-in-gzip-with-images-in-base64": Case(
        "json",
        lambda path: put(path, [(b"%05d" % n, json_value(n)) for n in NUMBERS]),
        lambda n: {"photo": JPEGS[n], "box": np.array([n, 0.5]), "tags": ["a"] * (n % 2)},
    ),
    "msgpack-in-lz4": Case(
        "msgpack",
        lambda path: put(
            path,
            [(f"n/{n:02}".encode(), lz4.frame.compress(numpy_to_msgpack(numbers_entry(n)))) for n in NUMBERS],
        ),
        numbers_entry,
    ),
    "npz": Case(
        "npz",
        lambda path: Path(
            uniter_images(
                path, {f"{n:02}.npz": {"conf": np.arange(n + 1.0), "size": np.int64(n)} for n in NUMBERS}, compress=True
            ).removeprefix("lmdb://")
        ),
        lambda n: {"conf": np.arange(n + 1.0), "size": n},
    ),
    "frames-and-a-label": Case(
        "frames",
        lambda path: put(path, [(b"%d" % n, pickle.dumps((frames(n), n * 2))) for n in range(6)]),
        frame_record,
    ),
    "films": Case(
        "keyed",
        lambda path: put(path, [(b"%02d.mp4" % n, MP4 + bytes([n])) for n in NUMBERS]),
        lambda n: {"video": MP4 + bytes([n]), "key": f"{n:02}.mp4"},
    ),
}
