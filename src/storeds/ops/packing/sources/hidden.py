"""Leaves out what systems and tools hide among images: .git, .ipynb_checkpoints, __MACOSX, ._0001.jpg and the like."""

from __future__ import annotations

from collections.abc import Iterable

from storeds._utils.text import counted, some

__all__ = ["Hidden", "is_hidden"]

# Written by macOS, Windows and network drives, without a leading dot.
_LITTER = frozenset(
    (
        "__macosx",
        "@eadir",
        "#recycle",
        "$recycle.bin",
        "lost+found",
        "system volume information",
        "thumbs.db",
        "ehthumbs.db",
        "desktop.ini",
    )
)
_NAMED = 4


def is_hidden(name: str) -> bool:
    """Whether the name of a file or folder begins with a dot, or is one that systems and network drives leave."""
    return (name.startswith(".") and name not in (".", "..")) or name.lower() in _LITTER


class Hidden:
    """Decides which files and folders are left out for being hidden, and counts them.

    Parameters
    ----------
    include : bool
        Take them all the same.
    """

    def __init__(self, *, include: bool = False) -> None:
        self.include = include
        self._folders: dict[str, None] = {}
        self._files: list[str] = []
        self._count = 0

    def folder(self, path: str) -> bool:
        """Whether the folder at `path`, below the root, is left out; only its own name counts."""
        if self.include or not is_hidden(path.rsplit("/", 1)[-1]):
            return False
        self._folders[path] = None
        return True

    def file(self, path: str) -> bool:
        """Whether the file at `path`, below the root, is left out; only its own name counts."""
        return self._leave_out(path, [path.rsplit("/", 1)[-1]])

    def listed(self, path: str) -> bool:
        """Whether a path that a list names is left out: it or a folder on its way is hidden."""
        return self._leave_out(path, path.split("/"))

    def _leave_out(self, path: str, names: Iterable[str]) -> bool:
        if self.include or not any(map(is_hidden, names)):
            return False
        self._count += 1
        if len(self._files) < _NAMED:
            self._files.append(path)
        return True

    def notes(self) -> tuple[str, ...]:
        """Return what was left out, as a sentence; nothing if nothing was."""
        parts = []
        if self._folders:
            parts.append(f"{counted(len(self._folders), 'hidden folder')} ({some(sorted(self._folders), _NAMED)})")
        if self._count:
            more = ", …" if self._count > len(self._files) else ""
            parts.append(f"{counted(self._count, 'hidden file')} ({some(sorted(self._files), _NAMED)}{more})")
        if not parts:
            return ()
        return (f"left out {' and '.join(parts)}; include_hidden=True (--include-hidden) takes them",)
