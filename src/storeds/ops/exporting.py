"""Exports a store to files that other programs read, in one atomic step. The formats are those of `storeds.formats`."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from storeds import registry
from storeds._utils.text import counted
from storeds.backends.opening import open_backend
from storeds.backends.staging import reporting
from storeds.backends.view import stores_in
from storeds.errors import ConfigError, RecordError, StoredsError, StoreExistsError, StoreNotFoundError, suggest
from storeds.formats.format import Format
from storeds.formats.writing import Differences, Exporter, ExportFolder
from storeds.ops.copy import read_batches
from storeds.ops.progress import ProgressHook
from storeds.ops.verdicts import VerdictCounts, damaged_kinds
from storeds.protocols import Backend, Meta

__all__ = ["Exported", "export"]

_PARTIAL = ".partial"
_MARKER = ".storeds-export.json"
_LOG = logging.getLogger("storeds")


@dataclass(frozen=True)
class Exported:
    """The result of `export`.

    Attributes
    ----------
    path : str
        The new folder.
    format : str
    count : int
        Number of records, which are all in the export.
    files, bytes : int
        What was written.
    left_out : dict
        Field, or part of one → why the export does not contain it.
    notes : tuple of str
        What differs from the store, as sentences: files that got another name than their key.
    """

    path: str
    format: str
    count: int
    files: int
    bytes: int
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON."""
        return {**asdict(self), "notes": list(self.notes)}


def export(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    path: str | os.PathLike[str],
    *,
    format: str,
    overwrite: bool = False,
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Exported:
    """Export the store at `url` to a new folder of files. Pictures keep their bytes.

    Parameters
    ----------
    url : str or list of str
        As for `open_backend`.
    path : path
        The new folder. It appears when it is complete.
    format : str
        ``"coco"``: the pictures in ``images/``, and ``annotations.json``. ``"yolo"``: the pictures in ``images/``, a text
        file for each in ``labels/``, and ``data.yaml``. ``"folder"``: pictures in folders of classes, or in ``images/`` and
        ``masks/``, and everything else in ``metadata.jsonl``; `pack` of it gives an equal store. Or the
        name of a `Format` of a plug-in.
    overwrite : bool
        Replace a folder that an earlier export wrote. Other folders are never replaced.
    layout, options : str, mapping, optional
        Of the store, as for `open_backend`.
    progress : callable, optional
        Called with a `Progress` after each batch.

    Returns
    -------
    Exported
        What was written, and which fields have no place in the format. These are logged as warnings too.

    Raises
    ------
    ConfigError
        The format is unknown, or the store lacks a field that it needs.
    StoreExistsError
        The folder exists.
    RecordError
        A record is bad. No folder is left.

    Notes
    -----
    Names of files are the keys of the records. A key that is no usable name, such as ``../a.jpg``, is made safe, and
    ``Exported.notes`` counts these. The folder contains ``.storeds-export.json``, which names the store.
    """
    write = _writer(format)
    target = Path(os.path.abspath(path))
    with open_backend(url, layout=layout, **(options or {})) as backend:
        _check_target(target, backend, overwrite=overwrite)
        folder = target.with_name(f".{target.name}.{secrets.token_hex(4)}{_PARTIAL}")
        if not os.path.isdir(target.parent):
            raise StoreNotFoundError(
                f"{target} cannot be created: there is no folder {target.parent}; create it first, or pass another path"
            )
        with reporting(str(target), target.parent):
            folder.mkdir()
            try:
                out = ExportFolder(folder)
                with closing(out):
                    left_out, notes = _write(write(backend.meta, out), backend, progress)
                if format != "folder":
                    notes = (*notes, *_notes_on_damage(backend, format))
                done = Exported(str(target), format, len(backend), out.files, out.bytes, left_out, notes)
                marker = {"format": format, "store": backend.url, "id": backend.meta.id, "count": done.count}
                (folder / _MARKER).write_text(json.dumps(marker) + "\n")
                _publish(folder, target, backend, overwrite=overwrite)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    for name, why in done.left_out.items():
        _LOG.warning("%s: %s is not in the export: %s", target, name, why)
    for note in done.notes:
        _LOG.warning("%s: %s", target, note)
    return done


def _writer(name: str) -> Callable[[Meta, ExportFolder], Exporter]:
    """Return what writes a format; raises ConfigError if nothing does."""
    names = registry.FORMATS.names()
    found: Format | None = registry.FORMATS.get(name) if name in names else None
    if found is not None and found.write is not None:
        return found.write
    known = []
    for each in names:
        with suppress(StoredsError):  # `storeds plugins` tells why a plug-in does not load
            known += [each] if registry.FORMATS.get(each).write is not None else []
    raise ConfigError(f"export writes no format {name!r}; {suggest(name, known, 'formats')}")


def _write(exporter: Exporter, backend: Backend, progress: ProgressHook | None) -> Differences:
    position = 0
    for records, state in read_batches(backend, 0):
        for record in records:
            try:
                exporter.add(position, record)
            except ValueError as error:
                raise RecordError.at(backend.url, position, str(error)) from None
            position += 1
        if progress is not None:
            progress(state)
    return exporter.finish()


def _notes_on_damage(backend: Backend, format: str) -> Iterator[str]:
    """Yield a sentence about damaged pictures, which look whole in the export if they were repaired."""
    damaged = sum(damaged_kinds(VerdictCounts.of(backend).kinds).values())
    if damaged:
        yield (
            f"{counted(damaged, 'picture')} of the store {'is' if damaged == 1 else 'are'} damaged or repaired, which format "
            f"{format!r} cannot say; format 'folder' (--format folder) keeps what was lost"
        )


def _check_target(target: Path, backend: Backend, *, overwrite: bool) -> None:
    """Raise an error if `target` must not be replaced, or contains the store itself."""
    if not os.path.lexists(target):
        return
    if target.is_dir() and not target.is_symlink() and not any(target.iterdir()):
        return
    if not overwrite:
        raise StoreExistsError(
            f"{target} exists; pass another path, or overwrite=True (--overwrite) to replace an earlier export"
        )
    if target.is_symlink():
        raise StoreExistsError(
            f"{target} is a symbolic link to {os.path.realpath(target)}, which overwrite=True does not replace; pass that path"
        )
    if not (target / _MARKER).is_file():
        raise StoreExistsError(
            f"{target} was not written by an export (it has no {_MARKER}), so overwrite=True does not replace it; pass another "
            "path, or delete it"
        )
    for member in stores_in(backend):
        if _is_inside(member.url, target):
            raise ConfigError(
                f"{target} contains the store {member.url}, which replacing would delete; pass another path"
            )


def _is_inside(url: str, folder: Path) -> bool:
    """Whether the file of a store is below `folder`."""
    scheme, _, path = url.partition("://")  # that of an open store: without options
    if scheme not in ("lmdb", "hdf5"):
        return False
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _publish(folder: Path, target: Path, backend: Backend, *, overwrite: bool) -> None:
    """Rename `folder` to `target`, and remove the earlier export there. Nothing else is replaced."""
    try:
        os.rename(folder, target)  # also replaces an empty folder
        return
    except OSError:
        if not os.path.lexists(target):
            raise
    _check_target(target, backend, overwrite=overwrite)  # again: another program may have created it meanwhile
    if _exchange(folder, target):
        shutil.rmtree(folder, ignore_errors=True)
        return
    old = folder.with_suffix(".old")
    os.rename(target, old)
    try:
        os.rename(folder, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def _exchange(folder: Path, target: Path) -> bool:
    """Exchange two folders in one step, so that a death never leaves `target` absent; return whether the system can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    if rename is None:
        return False
    names = os.fsencode(folder), os.fsencode(target)
    return bool(rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
