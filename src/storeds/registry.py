"""Finds backends, layouts, readers, decoders and formats by name: built in, registered at run time, or from entry points.

Names map to import strings, as in fsspec, so a module is imported only when it is used. An unusable entry point of
another package only causes a warning, as in xarray.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storeds.errors import ConfigError, MissingDependencyError, suggest

__all__ = [
    "BACKENDS",
    "DECODERS",
    "FORMATS",
    "LAYOUTS",
    "READERS",
    "Registry",
    "register_backend",
    "register_decoder",
    "register_format",
    "register_layout",
    "register_reader",
]


_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")  # URLs are read in lower case


@dataclass(frozen=True)
class _Known:
    target: Any
    """An object, or its import string ``package.module:name``."""
    needs: str
    """The package that the user must install for it."""
    origin: str
    """``built in``, ``registered`` or the name of a distribution."""


@dataclass
class Registry:
    """The names of one kind of plug-in.

    Parameters
    ----------
    what : str
        The kind, for messages: ``backend``.
    group : str
        The entry-point group.
    expected : str
        What a plug-in registers, for messages.
    fits : callable
        Whether an object is that.
    table : str
        The import string of a function that returns further built-in names, each with its import string and the package it needs.
    """

    what: str
    group: str
    _known: dict[str, _Known] = field(default_factory=dict)
    expected: str = "a class, a function"
    fits: Callable[[Any], bool] = callable
    table: str = ""
    _scanned: bool = False

    def add(self, name: str, target: Any, *, needs: str = "", clobber: bool = False) -> None:
        """Register `target`, an object or its import string; raises ConfigError if the name is taken or it does not fit."""
        if not isinstance(target, str) and not self.fits(target):
            raise ConfigError(f"{self.what} {name!r} is {self.expected} or package.module:name, not {target!r}")
        if not clobber and name in self._all():
            raise ConfigError(
                f"{self.what} {name!r} exists already ({self._known[name].origin}); pass clobber=True to replace it"
            )
        self._known[name] = _Known(target, needs, "registered")

    def get(self, name: str) -> Any:
        """Return the object registered as `name`, importing it if necessary.

        Raises
        ------
        ConfigError
            The name is unknown; the message lists the known names and the nearest match. Or a third-party plug-in
            cannot be loaded.
        MissingDependencyError
            The module needs a package that is not installed; the message names it.
        """
        known = self._all().get(name)
        if known is None:
            raise ConfigError(f"unknown {self.what} {name!r}; {suggest(name, self._all(), f'{self.what}s')}")
        if not isinstance(known.target, str):
            return known.target
        try:
            found = import_object(known.target)
        except ImportError as error:
            hint = f"; install {known.needs}" if known.needs else ""
            raise MissingDependencyError(
                f"{self.what} {name!r} ({known.origin}) cannot be imported: {error}{hint}"
            ) from error
        except Exception as error:  # a third-party package may raise anything during its import
            raise ConfigError(
                f"{self.what} {name!r} ({known.origin}) cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if not self.fits(found):
            raise ConfigError(f"{self.what} {name!r} ({known.origin}) must be {self.expected}, not {found!r}")
        return found

    def names(self) -> list[str]:
        """Return every known name, sorted."""
        return sorted(self._all())

    def is_built_in(self, name: str) -> bool:
        """Whether `name` belongs to storeds itself."""
        return self._known[name].origin == "built in"

    def describe(self) -> Iterator[dict[str, str]]:
        """Yield the name, origin, required package and import state of each known name."""
        for name in self.names():
            known = self._known[name]
            try:
                self.get(name)
                state = "ok"
            except Exception as error:  # a third-party package may raise anything
                state = f"{type(error).__name__}: {error}"
            yield {"name": name, "origin": known.origin, "needs": known.needs, "state": state}

    def _all(self) -> dict[str, _Known]:
        # Without a lock, which a fork may copy locked: threads that scan at once register the same names.
        faults = [] if self._scanned else list(self._scan())
        is_first, self._scanned = not self._scanned, True
        # Warn after the scan: a warning filter may raise, which must not interrupt the scan.
        for fault in faults if is_first else ():
            warnings.warn(fault, RuntimeWarning, stacklevel=4)
        return self._known

    def _scan(self) -> Iterator[str]:
        """Register the table and the entry points of other packages; yield a message for each unusable one."""
        from importlib.metadata import entry_points  # a tenth of the time of `import storeds`

        for name, (target, needs) in import_object(self.table)().items() if self.table else ():
            self._known.setdefault(name, _Known(target, needs, "built in"))
        for point in entry_points(group=self.group):
            origin = point.dist.name if point.dist else "entry point"
            plugin = _Known(point.value, origin, origin)
            known = self._known.setdefault(point.name, plugin)
            if known != plugin:
                yield f"{self.what} {point.name!r} of {origin} is ignored: {known.origin} has that name"


def import_object(path: str) -> Any:
    """Return the object at ``package.module:name``; raises ImportError."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ImportError(f"{path!r} must read package.module:name")
    try:
        return getattr(importlib.import_module(module), name)
    except AttributeError:
        raise ImportError(f"module {module!r} has no {name!r}") from None


_REMOVED = {
    "Source": "DatasetSettings",
    "ThreadLoader": 'StoreLoader(dataset, start_method="thread")',
    "register_source": "register_format(name, storeds.formats.Format(about=…, read=function))",
}


def export_lazily(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package: it imports a module when one of the names listed for it is first used."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name in _REMOVED:  # of an AttributeError, an import would drop the text
            raise ImportError(f"{package}.{name} was removed: use {_REMOVED[name]}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{module_of[name]}"), name)

    return find


def _built_in(package: str, rows: Iterable[tuple[str, str, str]]) -> dict[str, _Known]:
    """Return the entries for rows of name, import string within `package`, and required package."""
    return {name: _Known(f"storeds.{package}.{target}", needs, "built in") for name, target, needs in rows}


FOREIGN: dict[str, str] = {
    "files": "storeds.layouts.files:FILES",
    "hdf5": "storeds.layouts.hdf5:FOREIGN_HDF5",
    "lmdb": "storeds.layouts.lmdb:FOREIGN_LMDB",
    "mongodb": "storeds.layouts.mongodb:FOREIGN_MONGODB",
    "mongodb+srv": "storeds.layouts.mongodb:FOREIGN_MONGODB",
}
"""Scheme → the import string of what opens an engine's stores of other tools, as what they certainly are."""

_BACKENDS = (
    ("lmdb", "lmdb.reading:LMDB", "lmdb"),
    ("hdf5", "hdf5.reading:HDF5", "h5py"),
    ("mongodb", "mongodb.reading:MONGODB", "pymongo"),
    ("mongodb+srv", "mongodb.reading:MONGODB", "pymongo"),
    ("memory", "memory:MEMORY", ""),
)
_READERS = (
    ("image", "images:image", ""),
    ("array", "arrays:array", ""),
    ("sample", "samples:sample", ""),
    ("video", "videos:video", ""),
    ("sequence", "sequences:sequence", ""),
    ("patch", "patches:patch", ""),
)
_DECODERS = (
    ("bytes", "decoders:decode_bytes", ""),
    ("pil", "decoders:decode_pil", ""),
    ("tensor", "decoders:decode_tensor", ""),
    ("fast", "decoders:decode_fast", ""),
)
_FORMATS = (
    ("imagefolder", "images:IMAGEFOLDER", ""),
    ("flat", "images:FLAT", ""),
    ("masks", "images:MASKS", ""),
    ("tar", "images:TAR", ""),
    ("csv", "lists:CSV", ""),
    ("jsonl", "lists:JSONL", ""),
    ("coco", "coco:COCO", ""),
    ("yolo", "yolo:YOLO", ""),
    ("voc", "voc:VOC", ""),
    ("table", "tables:TABLE", "pyarrow"),
    ("dataset", "objects:DATASET", ""),
    ("store", "stores:STORE", ""),
    ("folder", "folder:FOLDER", ""),
    ("videos", "videos:VIDEOS", ""),
    ("frames", "frames:FRAMES", ""),
)
BACKENDS = Registry(
    "backend",
    "storeds.backends",
    _built_in("backends", _BACKENDS) | _built_in("layouts", [("files", "files:FILES", "")]),
)
LAYOUTS = Registry("layout", "storeds.layouts", table="storeds.layouts.presets:layouts")
READERS = Registry("reader", "storeds.readers", _built_in("readers", _READERS))
DECODERS = Registry("decoder", "storeds.decoders", _built_in("pictures", _DECODERS))
FORMATS = Registry(
    "format",
    "storeds.formats",
    _built_in("formats", _FORMATS),
    expected="a storeds.formats.Format",
    fits=lambda target: hasattr(target, "read") and hasattr(target, "write"),
)


def register_backend(scheme: str, target: Any, *, needs: str = "", clobber: bool = False) -> None:
    """Make ``scheme://…`` URLs open with `target`.

    Parameters
    ----------
    scheme : str
        The scheme in lower case.
    target : type or str
        A class that implements `storeds.Backend` and is called as ``target(url, **options)``, or its import string
        ``"package.module:name"``. A backend that can write also has a static method
        ``sink(url, **options)``, which returns a `storeds.plugins.Sink`.
    needs : str
        The package to install if the import fails.
    clobber : bool
        Replace an existing scheme.
    """
    if not _SCHEME.fullmatch(scheme):
        raise ConfigError(f"{scheme!r} is not a valid scheme: it must match {_SCHEME.pattern}")
    BACKENDS.add(scheme, target, needs=needs, clobber=clobber)


def register_layout(backend: str, name: str, target: Any, *, needs: str = "", clobber: bool = False) -> None:
    """Make ``open_backend(url, layout=name)`` open URLs of `backend` with `target`, a class as for a backend."""
    LAYOUTS.add(f"{backend}/{name}", target, needs=needs, clobber=clobber)


def register_reader(name: str, target: Callable[..., Any] | str, *, needs: str = "", clobber: bool = False) -> None:
    """Make ``StoreDataset(reader=name)`` use ``target(**options)``, which returns a `storeds.plugins.ReaderSpec`.

    If the user names the elements of samples, these are its argument ``fields``.
    """
    READERS.add(name, target, needs=needs, clobber=clobber)


def register_decoder(name: str, target: Callable[..., Any] | str, *, needs: str = "", clobber: bool = False) -> None:
    """Make ``decode=name`` use `target`, which implements `storeds.plugins.Decoder`."""
    DECODERS.add(name, target, needs=needs, clobber=clobber)


def register_format(name: str, target: Any, *, needs: str = "", clobber: bool = False) -> None:
    """Make ``pack(…, kind=name)`` read, and ``export(…, format=name)`` write, what `target` describes.

    Parameters
    ----------
    name : str
    target : Format or str
        A `storeds.formats.Format`, or its import string ``"package.module:NAME"``.
    needs, clobber
        As for `register_backend`.
    """
    FORMATS.add(name, target, needs=needs, clobber=clobber)
