"""Reports that a store can be read in several ways: what each gives, and the argument that selects it."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from storeds._utils.text import counted
from storeds.errors import ConfigError, RecordError, StoredsError
from storeds.protocols import Backend, Field

__all__ = ["AmbiguousError", "Reading", "ambiguous", "given_by", "shown_value"]

_FIELDS = 6
_LONGEST = 48  # characters of a value
_BYTES = 12


@dataclass(frozen=True)
class Reading:
    """One way to read a store.

    Attributes
    ----------
    argument : str
        The argument that selects it, as a user writes it: ``"layout='parallel'"``, ``"sample='file'"``.
    why : str
        Why it fits.
    open : callable
        Opens the store in this way.
    """

    argument: str
    why: str
    open: Callable[[], Backend]


class AmbiguousError(ConfigError):
    """A store can be read in several ways, and no option says which; `readings` are these ways.

    Layouts raise it from their constructor and from ``guess_can_open``. Detection adds the readings of other layouts.
    """

    readings: tuple[Reading, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args  # a reading opens a store, so it cannot be pickled


def ambiguous(url: str, readings: Sequence[Reading]) -> AmbiguousError:
    """Return the error that describes each reading of the store at `url`, which is redacted, in one line."""
    lines = [f"\n  {reading.argument}: {_given(reading)} ({reading.why})" for reading in readings]
    error = AmbiguousError(f"{url} can be read in {len(lines)} ways; pass the argument of one of them:{''.join(lines)}")
    error.readings = tuple(readings)
    return error


def _given(reading: Reading) -> str:
    try:
        return given_by(reading.open)
    except StoredsError as error:
        return "cannot be opened: " + str(error).partition("\n")[0]


def given_by(opener: Callable[[], Backend]) -> str:
    """Describe the result of one way to read a store: its number of records, their fields, and the first one."""
    with opener() as backend:
        fields = backend.meta.fields
        names = list(fields)[:_FIELDS]
        described = ", ".join(_shown_field(name, fields[name]) for name in names)
        more = f" and {len(fields) - len(names)} more fields" if len(fields) > len(names) else ""
        count = len(backend)
        first = _first(backend, names) if count else ""
        return f"{counted(count, 'record')} of {described}{more}{first}"


def _first(backend: Backend, names: Sequence[str]) -> str:
    (record,) = backend.get_many([0], names)
    if isinstance(record, RecordError):
        return f"; the first is bad: {record.reason}"
    return f"; the first: {_shown_record(record)}"


def _shown_record(record: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={shown_value(value)}" for name, value in record.items())


def _shown_field(name: str, field: Field) -> str:
    if field.kind != "array":
        return f"{name} ({field.kind})"
    shape = ", ".join("?" if size is None else str(size) for size in field.shape or ())
    return f"{name} ({np.dtype(field.dtype).name} [{shape}])"


def shown_value(value: Any) -> str:
    """Return the beginning of a value, in one short line."""
    if isinstance(value, np.ndarray):
        first = ", ".join(str(item) for item in value.reshape(-1)[:3].tolist())
        return f"{value.dtype.name} {list(value.shape)} [{first}{', …' if value.size > 3 else ''}]"
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value[:_BYTES])
        return f"{len(value)} bytes {data!r}{'…' if len(value) > _BYTES else ''}"
    text = reprlib.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
