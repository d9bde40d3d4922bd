"""Damage store files in a child process, and compare what a user reads with the truth."""

from __future__ import annotations

import functools
import os
import resource
import signal
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import storeds
from _writing import fork
from make_store import make_store
from storeds.errors import ConfigError, RecordError, StoredsError
from storeds.protocols import Backend
from storeds.testing import frozen

DEADLINE = 60  # seconds per damage; longer means a hang, not a slow machine
_MEMORY = 1 << 30  # extra memory beyond this means an allocation of a damaged length

KINDS: dict[str, Any] = {
    "image": "image",
    "raw": "bytes",
    "name": "str",
    "label": "int",
    "weight": "float",
    "good": "bool",
    "fixed": {"kind": "array", "dtype": "<f4", "shape": [2, 3]},
    "ragged": {"kind": "array", "dtype": "<u2", "shape": [None, 2]},
    "note": "json",
}


@dataclass(frozen=True)
class Damage:
    """What becomes of the bytes of a file, and its name."""

    name: str
    apply: Callable[[bytes], bytes]


@dataclass(frozen=True)
class Truth:
    """The contents of an undamaged store, as values that compare bit for bit."""

    meta: Any
    records: list[Any]
    columns: dict[str, Any]


def records(count: int, size: int) -> Iterator[dict[str, Any]]:
    """Yield records of every kind with blobs of about `size` bytes."""
    noise = np.random.default_rng(7)
    for at in range(count):
        yield {
            "image": noise.bytes(size + at),
            "raw": noise.bytes(at % 3),
            "name": f"näme {at}\0",
            "label": at * 2**40 - 5,
            "weight": [0.5, float("nan"), float("-inf"), -0.0][at % 4] if at % 2 else at / 7,
            "good": at % 3 == 0,
            "fixed": noise.random((2, 3), np.float32),
            "ragged": noise.integers(0, 2**16, (at % 4, 2), np.uint16),
            "note": {"at": at, "tags": ["ä", None, 1.5]},
        }


def lmdb_nodes(data: bytes | bytearray) -> Iterator[tuple[int, bytes, int | None]]:
    """Yield of each node of an LMDB file the place of its entry, its key, and the place of the page number in it."""
    page, branch, leaf, large = 4096, 1, 2, 1
    for start in range(2 * page, len(data), page):
        number, _, kind, lower, _ = struct.unpack_from("<QHHHH", data, start)
        if number * page != start or kind not in (branch, leaf):
            continue
        for entry in range(start + 16, start + lower, 2):
            node = start + struct.unpack_from("<H", data, entry)[0]
            flags, size = struct.unpack_from("<HH", data, node + 4)
            value = node + 8 + size
            yield entry, bytes(data[node + 8 : value]), node if kind == branch else value if flags & large else None


def build(url: str, count: int, size: int) -> Truth:
    """Write a store, and return the contents that it must have from now on."""
    make_store(KINDS, records(count, size), url, attrs={"classes": ["cat", "dog"]})
    with storeds.open_backend(url) as backend:
        return Truth(backend.meta, list(map(value_of, read(backend))), columns(backend))


def read(backend: Backend) -> list[Any]:
    return backend.get_many(range(len(backend)))


def columns(backend: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in backend.meta.fields:
        try:
            found[name] = value_of(backend.column(name))
        except ConfigError:
            found[name] = "no column"
        except StoredsError as error:
            found[name] = error
    return found


def value_of(value: Any) -> Any:
    """Return a form that compares equal exactly for equal types and bits; an error as it is."""
    if isinstance(value, np.ndarray) and value.dtype == np.dtypes.StringDType():
        value = value.tolist()
    return value if isinstance(value, StoredsError) else frozen(value)


def judge(url: str, truth: Truth) -> str:
    """Open and read everything; return the name of an allowed outcome, or ``"WRONG …"``."""
    try:
        with storeds.open_backend(url) as backend:
            if backend.meta != truth.meta:
                return f"WRONG meta: {backend.meta}"
            return _judge_values(list(map(value_of, read(backend))), columns(backend), truth)
    except StoredsError as error:
        return _public_name(error) if str(error) else "WRONG: an error without a message"
    except BaseException as error:
        return f"WRONG exception {type(error).__name__}: {error}"


def _public_name(error: StoredsError) -> str:
    """Return the public class of an error, which may be of a private subclass."""
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ == StoredsError.__module__)


def _judge_values(found: list[Any], columns: dict[str, Any], truth: Truth) -> str:
    bad = [at for at, record in enumerate(found) if isinstance(record, RecordError)]
    for at, record in enumerate(found):
        if at not in bad and record != truth.records[at]:
            return f"WRONG record {at}: {record}"
    for name, column in columns.items():
        if not isinstance(column, StoredsError) and column != truth.columns[name]:
            return f"WRONG column {name}: {column}"
    refused = any(isinstance(column, StoredsError) for column in columns.values())
    return "some records" if bad else "some columns" if refused else "intact"


def survey(
    scheme: str,
    path: Path,
    truth: Truth,
    damages: Sequence[Damage],
    how: Callable[[str, Truth], str] = judge,
    may_die_of: Sequence[int] = (),
) -> Counter[str]:
    """Judge every damage in two child processes; return outcome → count. Fail on any wrong outcome or other death."""
    outcomes, wrong, started = Counter[str](), list[str](), []
    for number in range(2):
        said, rest = path.with_name(f"{path.name}.outcomes{number}"), damages[number::2]
        judge_rest = functools.partial(_judge_all, said, scheme, path, truth, how)
        started.append((fork(functools.partial(judge_rest, rest)), said, rest, judge_rest))
    for child, said, rest, judge_rest in started:
        while rest:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            lines = said.read_text().splitlines()
            outcomes.update(line.partition(":")[0] for line in lines)
            wrong += [f"{rest[at].name}: {line}" for at, line in enumerate(lines) if line.startswith("WRONG")]
            rest = rest[len(lines) :]
            if rest:
                outcomes["died"] += 1
                wrong += [f"{rest[0].name}: the process ended with {status}"] if status not in may_die_of else []
                rest = rest[1:]
                child = fork(functools.partial(judge_rest, rest)) if rest else child
    assert not wrong, "\n".join([f"{len(wrong)} damages ended badly", *wrong[:40]])
    assert sum(outcomes.values()) == len(damages)
    return outcomes


def _judge_all(
    said: Path,
    scheme: str,
    path: Path,
    truth: Truth,
    how: Callable[[str, Truth], str],
    damages: Sequence[Damage],
) -> None:
    said.write_text("")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY, used + _MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    data = path.read_bytes()
    with said.open("a", buffering=1) as lines:
        for number, damage in enumerate(damages):
            # A path for each: positions that `where=` found are kept by path.
            victim = said.with_suffix(f".{os.getpid()}-{number}")
            victim.write_bytes(damage.apply(data))
            signal.alarm(DEADLINE)
            lines.write(how(f"{scheme}://{victim}", truth).replace("\n", " ")[:300] + "\n")
            victim.unlink()
        signal.alarm(0)
