"""What a format of files is: one object for each, which names how it is read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from storeds.formats.writing import Exporter, ExportFolder
from storeds.layouts.files.rows import Rows
from storeds.protocols import Meta

__all__ = ["Format"]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A kind of files, or of Python objects, that `storeds.pack` reads or `storeds.export` writes.

    Attributes
    ----------
    about : str
        What it is, in one line, for ``storeds formats``.
    read : callable or None
        ``read(source, **options)`` returns the `Rows` of a source; None if `pack` does not read it.
    write : callable or None
        ``write(meta, folder)`` returns the `Exporter` of a store, which writes to an `ExportFolder`; None if `export`
        does not write it.
    detect : callable or None
        Of a plug-in: ``detect(path)`` returns whether a file or folder that storeds does not recognise is certainly of
        this format, so that `pack` needs no ``kind``.
    takes_objects : bool
        The source may be something else than a path.
    encodes : bool
        `read` encodes the pictures itself: it takes `max_side` and `quality`, and its rows say `is_encoded`.
    """

    about: str
    read: Callable[..., Rows] | None = None
    write: Callable[[Meta, ExportFolder], Exporter] | None = None
    detect: Callable[[str], bool] | None = None
    takes_objects: bool = False
    encodes: bool = False
