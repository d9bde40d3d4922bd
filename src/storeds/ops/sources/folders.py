"""Folders of images: one sub-folder a class, as torchvision's ImageFolder reads them, or none."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence

from storeds.errors import ConfigError, StoreNotFoundError
from storeds.ops.sources._hidden import is_hidden
from storeds.ops.sources._labels import class_notes
from storeds.ops.sources._packed import Fingerprint, Texts
from storeds.ops.sources._paths import IMAGE_SUFFIXES, Root, show
from storeds.ops.sources._walk import Found, Walk
from storeds.ops.sources.base import Problem, read_file
from storeds.protocols import JSON, Field, Record

__all__ = ["FlatFolderSource", "ImageFolderSource"]

_SUFFIXES = " ".join(IMAGE_SUFFIXES)


class _Folder:
    """Images below a folder, named by their paths."""

    def __init__(self, root: str) -> None:
        self._root = os.path.abspath(root)
        self._keys, self._sizes = Texts(), array("q")
        self._fingerprint = Fingerprint()
        self.problems: Sequence[Problem] = ()
        self.notes: Sequence[str] = ()

    def _take(self, found: Iterable[Found], label: int) -> int:
        before = len(self._keys)
        for key, size, mtime in found:
            self._keys.append(key)
            self._sizes.append(size)
            self._fingerprint.add(key, size, mtime, label)
        return len(self._keys) - before

    def _finish(self, kind: str, walk: Walk, notes: Iterable[str] = ()) -> None:
        self.fingerprint: JSON = self._fingerprint.finish(kind, len(self._keys))
        del self._fingerprint  # it does not pickle
        self.problems, self.notes = tuple(walk.problems), (*notes, *walk.hidden.notes())

    def __len__(self) -> int:
        return len(self._keys)

    def name(self, index: int, /) -> str:
        # docstring inherited
        return self._keys[index]

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._sizes[index]

    def _image(self, key: str) -> bytes:
        return read_file(os.path.join(self._root, key.replace("/", os.sep)))


class ImageFolderSource(_Folder):
    """A folder with one sub-folder per class, in the order and with the labels of torchvision's ImageFolder.

    Parameters
    ----------
    root : path
        The folder. Images beside the class folders have no class and are left out, as ImageFolder leaves them out.
    allow_outside : bool
        Whether links may lead out of it.
    allow_empty : bool
        Whether a class may have no image.
    include_hidden : bool
        Whether to take hidden files, and hidden folders as classes: ``.git``, ``.ipynb_checkpoints``, ``__MACOSX``.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It has no sub-folders, or one of them has no images.
    """

    fields: Mapping[str, Field] = {"image": Field("image"), "label": Field("int"), "key": Field("str")}

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        allow_outside: bool = False,
        allow_empty: bool = False,
        include_hidden: bool = False,
    ) -> None:
        super().__init__(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        classes = sorted(_folders_in(os.fspath(root), walk))
        if not classes:
            raise ConfigError(f"{root} has no sub-folders; expected one per class, each with its images{_said(walk)}")
        self._labels = array("q")
        empty = []
        for label, name in enumerate(classes):
            told = len(walk.problems)
            count = self._take(walk.files(name), label)
            self._labels.extend([label] * count)
            if not count and len(walk.problems) == told:
                empty.append(name)
        if empty and not allow_empty:
            names = ", ".join(map(show, empty[:8])) + (f" and {len(empty) - 8} more" if len(empty) > 8 else "")
            raise ConfigError(
                f"{root}: no images in {names}; remove these folders, put images ({_SUFFIXES}) in, or pass allow_empty=True (--allow-empty)"
            )
        # A class whose name is no text is told as a problem; it keeps its place, or all labels after it would change.
        names_as_json: list[JSON] = [show(name) for name in classes]
        self.attrs: Mapping[str, JSON] = {"classes": names_as_json}
        self._finish("imagefolder", walk, class_notes(classes))

    def strata(self) -> Iterator[tuple[str, int]]:
        """Yield the key and the label of each item."""
        return zip(self._keys, self._labels, strict=True)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        return {"image": self._image(key), "label": self._labels[index], "key": key}


class FlatFolderSource(_Folder):
    """A folder with images, also in folders below it, that have no labels.

    Parameters
    ----------
    root : path
        The folder.
    allow_outside : bool
        Whether links may lead out of it.
    include_hidden : bool
        Whether to take hidden files and folders.

    Raises
    ------
    StoreNotFoundError
        There is no such folder.
    ConfigError
        It holds no images.
    """

    fields: Mapping[str, Field] = {"image": Field("image"), "key": Field("str")}

    def __init__(
        self, root: str | os.PathLike[str], *, allow_outside: bool = False, include_hidden: bool = False
    ) -> None:
        super().__init__(os.fspath(root))
        walk = Walk(Root(self._root, allow_outside=allow_outside), include_hidden=include_hidden)
        _folders_in(os.fspath(root))
        if not self._take(walk.files(""), -1) and not walk.problems:
            raise ConfigError(f"{root} holds no images ({_SUFFIXES}), in no folder below it either{_said(walk)}")
        self.attrs: Mapping[str, JSON] = {}
        self._finish("flat", walk)

    def read(self, index: int, /) -> Record:
        # docstring inherited
        key = self._keys[index]
        return {"image": self._image(key), "key": key}


def _folders_in(root: str, walk: Walk | None = None) -> list[str]:
    """Return the names of the folders in `root`, links to folders among them; raises if it is none itself."""
    names: list[str] = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                try:
                    if entry.is_dir() and not _is_left_out(entry.name, walk):
                        names.append(entry.name)
                except OSError as error:  # a link that leads to itself
                    if walk is not None:
                        walk.problems.append(Problem(show(entry.name), f"cannot be looked at: {error.strerror}"))
    except NotADirectoryError:
        raise ConfigError(f"{root} is a file; expected a folder of images, or of one folder per class") from None
    except OSError as error:
        raise StoreNotFoundError(f"no folder at {root}: {error.strerror}") from None
    return names


def _is_left_out(name: str, walk: Walk | None) -> bool:
    return is_hidden(name) if walk is None else walk.hidden.folder(name)


def _said(walk: Walk) -> str:
    return "".join(f"; {note}" for note in walk.hidden.notes())
