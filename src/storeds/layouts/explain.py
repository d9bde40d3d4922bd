"""The one error for a foreign store that is not certainly of a known kind: what is in it, and lines to paste that open it."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from storeds._utils.text import counted, printable
from storeds.errors import ConfigError, FormatError, RecordError, StoredsError
from storeds.protocols import Backend, Field

__all__ = ["shown_value", "undecided"]

_ENTRIES = 10
_FIELDS = 6
_LONGEST = 48  # characters of a value
_BYTES = 12


def undecided(
    url: str,
    source: str,
    entries: Iterable[str],
    ways: Iterable[Mapping[str, Any]],
    opener: Callable[[Mapping[str, Any]], Backend],
    why: str = "",
    otherwise: str = "Name the place of each field with columns=, as docs/patterns.md explains",
) -> StoredsError:
    """Return the error for a store that nothing certain says how to read.

    Parameters
    ----------
    url : str
        Names the store in the message; without secrets.
    source : str
        What a user passes to open it: its path or URL, without secrets.
    entries : iterable of str
        Names in the store, each with what it is. Only the first ten are used.
    ways : iterable of mapping
        The arguments of `storeds.open_backend` for each way that fits the structure of the store, such as
        ``{"columns": {"image": "{label}/images[]"}}``. Those that cannot open it are left out.
    opener : callable
        Opens the store with such arguments.
    why : str
        What is wrong, if that is known.
    otherwise : str
        What to do if no way opens it.

    Returns
    -------
    ConfigError or FormatError
        A ConfigError shows a line to paste for each way. A FormatError says that there is none.
    """
    listed = [printable(entry) for entry, _ in zip(entries, range(_ENTRIES + 1), strict=False)]
    more = "\n  …" if len(listed) > _ENTRIES else ""
    holds = "".join(f"\n  {entry}" for entry in listed[:_ENTRIES]) + more if listed else " nothing"
    lines = []
    for way in ways:
        with contextlib.suppress(StoredsError):
            given = "".join(f", {name}={value!r}" for name, value in way.items())
            lines.append(f"\n  storeds.open_backend({source!r}{given})  # {_result(opener(way))}")
    start = f"{url}: {why or 'storeds cannot tell what a record is'}. It holds:{holds}"
    if not lines:
        return FormatError(f"{start}\n{otherwise}")
    advice = "Paste the line that is right; StoreDataset and configs take the same arguments"
    return ConfigError(f"{start}\n{advice}:{''.join(lines)}")


def _result(opened: Backend) -> str:
    """Describe the result of one way to read a store: its number of records, their fields, and the first one."""
    with opened as backend:
        fields = backend.meta.fields
        names = list(fields)[:_FIELDS]
        described = ", ".join(_shown_field(name, fields[name]) for name in names)
        more = f" and {len(fields) - len(names)} more fields" if len(fields) > len(names) else ""
        first = _first(backend, names) if len(backend) else ""
        return f"{counted(len(backend), 'record')} of {described}{more}{first}"


def _first(backend: Backend, names: Sequence[str]) -> str:
    (record,) = backend.get_many([0], names)
    if isinstance(record, RecordError):
        return f"; the first is bad: {printable(record.reason)}"
    return "; the first: " + ", ".join(f"{name}={shown_value(value)}" for name, value in record.items())


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
        return f"{len(value)} bytes {bytes(value[:_BYTES])!r}{'…' if len(value) > _BYTES else ''}"
    text = reprlib.repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
