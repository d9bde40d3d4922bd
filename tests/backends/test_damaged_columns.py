"""Stores with ranges that were flipped, zeroed or exchanged: each way to read gives the truth, or an error with a name.

Each engine's store is damaged 6 times; `make test-full` (``STOREDS_TEST_FULL``) does it 1,000 times.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import storeds
from _traps_format import exit_code
from shares import FULL
from storeds.errors import RecordError, StoredsError
from storeds.protocols import SupportsBatchArrays

COPIES = 1000 if FULL else 6
COUNT = 3000
FIELDS = {"image": "image", "label": "int", "weight": "float", "good": "bool", "key": "str", "note": "json"}
ALONE = ["label", "weight", "good", "key", "note"]


def record(at: int) -> dict[str, Any]:
    text = f"{at:05d}" * (4 + at % 9)
    return {"image": b"%d" % at, "label": at, "weight": at / 7, "good": at % 3 == 0, "key": text, "note": [at, text]}


RECORDS = [record(at) for at in range(COUNT)]
SOME = list(range(0, COUNT, 7))


@pytest.fixture(scope="module", params=["hdf5", "lmdb"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    path = tmp_path_factory.mktemp("whole") / "store"
    with storeds.open_writer(f"{request.param}://{path}", FIELDS) as writer:
        writer.append(RECORDS)
    return request.param, path.read_bytes()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with one to three ranges flipped, zeroed, exchanged or copied."""
    spoilt = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        size = chance.choice([1, 8, 64, 512, 4096])
        a, b = (chance.randrange(len(data) - size) // size * size for _ in range(2))
        kind = chance.choice(["bit", "zero", "exchange", "copy"])
        if kind == "bit":
            spoilt[a] ^= 1 << chance.randrange(8)
        elif kind == "zero":
            spoilt[a : a + size] = bytes(size)
        else:
            first, second = bytes(spoilt[a : a + size]), bytes(spoilt[b : b + size])
            spoilt[a : a + size] = second
            if kind == "exchange":
                spoilt[b : b + size] = first
    return bytes(spoilt)


def records_of(backend: Any, fields: list[str] | None) -> bool:
    for start in range(0, COUNT, 500):
        part = range(start, start + 500)
        for at, found in zip(part, backend.get_many(part, fields), strict=True):
            if isinstance(found, RecordError):
                continue
            if any(
                found[name] != RECORDS[at][name] for name in fields or FIELDS
            ):  # its verdict depends on the image alone
                return False
    return True


def arrays_of(backend: Any, fields: list[str]) -> bool:
    found = backend.get_arrays(SOME, fields) if isinstance(backend, SupportsBatchArrays) else {}
    return all(found[name].tolist() == [RECORDS[at][name] for at in SOME] for name in found)


def column_of(backend: Any, name: str) -> bool:
    return bool(backend.column(name).tolist() == [each[name] for each in RECORDS])


def targets_of(backend: Any) -> bool:
    return list(storeds.StoreDataset(backend, decode="bytes").targets) == list(range(COUNT))


def where_of(backend: Any) -> bool:
    dataset = storeds.StoreDataset(backend, fields=["label"], reader="array", where={"label": [700, 2900]})
    return [int(label) for (label,) in dataset[:]] == [700, 2900]


def ways() -> Iterator[Callable[[Any], bool]]:
    """Yield each way to read a store; it says whether what it read is the truth."""
    for fields in (None, ["label", "key"], *([name] for name in ALONE)):
        yield partial(records_of, fields=fields)
    yield partial(arrays_of, fields=["label", "good"])
    for name in ("label", "weight", "good", "key"):
        yield partial(column_of, name=name)
    yield targets_of
    yield where_of


def nothing_is_wrong(url: str) -> bool:
    for way in ways():
        # Each with a handle of its own, so that no way profits from what another one checked.
        with suppress(StoredsError), storeds.open_backend(url) as backend:
            if not way(backend):
                print(f"wrong: {way}")
                return False
    return True


def test_damage_is_an_error_or_harms_nothing(whole: tuple[str, bytes], tmp_path: Path) -> None:
    engine, data = whole
    seed = secrets.randbits(32)
    print(f"\nseed {seed}")
    chance = random.Random(seed)
    outcomes: Counter[int] = Counter()
    for number in range(COPIES):
        path = tmp_path / f"store{number}"  # positions that `where=` found are kept by path
        url = f"{engine}://{path}" + ("?read=safe" if engine == "lmdb" else "")
        path.write_bytes(damaged(data, chance))
        outcomes[exit_code(partial(nothing_is_wrong, url))] += 1
        path.unlink()
    assert set(outcomes) == {0}, outcomes
