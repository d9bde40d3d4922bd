"""Tells which paths lie below a folder, which names can be kept, and which files are images by name."""

from __future__ import annotations

import os
import posixpath

__all__ = ["IMAGE_SUFFIXES", "Root", "file_state", "is_text", "show", "text_fault"]

# Those of torchvision's ImageFolder, whose letters may be capitals.
IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

_ALLOW = "pass allow_outside=True (--allow-outside) to take it all the same"


def is_text(name: str) -> bool:
    """Whether a name has a UTF-8 form, as every text in a store must."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def show(name: str) -> str:
    r"""Return `name` such that it can be printed: bytes that are no UTF-8 as ``\xff``."""
    try:
        return os.fsencode(name).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:
        return name.encode("utf-8", "backslashreplace").decode()


def text_fault(path: str) -> str | None:
    """Return what keeps `path` from being the path of a file and a key, or None."""
    if not path:
        return "no path is given"
    if "\0" in path:
        return "its path holds a NUL character"
    if not is_text(path):
        return "its path is no valid UTF-8"
    return None


def file_state(path: str) -> tuple[int, int]:
    """Return (size, mtime in ns) of the file at `path`, zeros if it cannot be looked at: reading it will say why."""
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns


class Root:
    """A folder that paths should not leave.

    Parameters
    ----------
    path : str
        The folder.
    allow_outside : bool
        Whether they may all the same.
    """

    def __init__(self, path: str, *, allow_outside: bool) -> None:
        self.path = os.path.abspath(path)
        self._real = os.path.realpath(self.path)
        self._allow = allow_outside
        self._folders: dict[str, bool] = {}

    def link_fault(self, path: str) -> str | None:
        """Return why the link at `path` must not be followed, or None."""
        if self._allow:
            return None
        real = os.path.realpath(path)
        return None if self._holds(real) else f"is a link to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def path_fault(self, path: str) -> str | None:
        """Return why `path`, as written in a list, must not be opened, or None."""
        if self._allow:
            return None
        if os.path.isabs(path):
            return f"the path is absolute, and paths are taken below {show(self.path)}; {_ALLOW}"
        if posixpath.normpath(path).split("/", 1)[0] == "..":
            return f"the path leads out of {show(self.path)}; {_ALLOW}"
        folder, name = os.path.split(os.path.join(self.path, path))
        # Resolving every folder on the way of every file would take longer than reading small files.
        if folder not in self._folders:
            self._folders[folder] = self._holds(os.path.realpath(folder))
        whole = os.path.join(folder, name)
        if self._folders[folder] and name not in ("", ".", "..") and not os.path.islink(whole):
            return None
        real = os.path.realpath(whole)
        if self._holds(real):
            return None
        return f"the path leads, by a link, to {show(real)}, outside {show(self.path)}; {_ALLOW}"

    def _holds(self, real: str) -> bool:
        return real == self._real or real.startswith(self._real.rstrip("/") + "/")
