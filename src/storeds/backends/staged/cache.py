"""The folder of local copies: an entry for each store, which one process of the machine fills."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import xxhash

from storeds._utils.text import byte_size
from storeds.errors import ConfigError, StoredsError, UnavailableError

__all__ = ["Entry", "Kept", "StageCache"]

_LOG = logging.getLogger("storeds")
_NOTE, _LOCK, _REPAIR = "stage.json", "lock", "repair.lock"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?B)?")
_UNITS = {None: 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


class Kept(NamedTuple):
    """A local copy: its name in the cache, the store that it is of, its bytes, whether it is complete, and repairs.

    ``repaired`` counts the files that were damaged here, and copied again.
    """

    name: str
    url: str
    bytes: int
    is_complete: bool
    repaired: int = 0


@dataclass(frozen=True)
class StageCache:
    """Where local copies are.

    Parameters
    ----------
    path : Path
        Absolute.
    limit : int or None
        Bytes that all copies together may have.
    """

    path: Path
    limit: int | None = None

    @classmethod
    def of(cls, given: Any) -> StageCache:
        """Return the cache that the argument ``stage`` names: a path, or ``{path, limit}``; raises ConfigError."""
        table = dict(given) if isinstance(given, dict) else {"path": given}
        unknown = table.keys() - {"path", "limit"}
        path = table.get("path") or os.environ.get("STOREDS_STAGE")
        if unknown or not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise ConfigError(f"stage is a folder of this machine, or a table of path and limit, not {given!r}")
        return cls(Path(os.path.abspath(os.path.expanduser(path))), _bytes_of(table.get("limit")))

    def entry(self, url: str, name: str) -> Entry:
        """Return the entry of a store; `name` is what its folder begins with."""
        kind = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[-60:] or "store"
        return Entry(self, self.path / f"{kind}-{xxhash.xxh3_64_hexdigest(url.encode())}", url)

    def kept(self) -> list[Kept]:
        """Return the copies that are there, by name. Other folders there are none of ours."""
        found = []
        for note in sorted(self.path.glob(f"*/{_NOTE}")):
            with contextlib.suppress(OSError, ValueError):
                body = json.loads(note.read_text())
                size, repaired = _size_of(note.parent), int(body.get("repaired", 0))
                found.append(Kept(note.parent.name, body["url"], size, bool(body["complete"]), repaired))
        return found

    def locals(self, name: str) -> list[str]:
        """Return what to open of a copy: its file, or its last version."""
        note = Entry(self, self.path / name, "").read_note()
        return [str(note["local"])] if "local" in note else [f"{self.path / name / 'store'}"]

    def remove(self, name: str) -> Kept:
        """Remove a copy; raises ConfigError for a name that is none."""
        chosen = next((each for each in self.kept() if each.name == name), None)
        if chosen is None:
            names = ", ".join(each.name for each in self.kept()) or "none"
            raise ConfigError(f"{self.path} has no copy {name!r}; its copies: {names}")
        with Entry(self, self.path / name, chosen.url).locked():
            shutil.rmtree(self.path / name)
        return chosen

    def check_room(self, needed: int, url: str) -> None:
        """Raise StoredsError unless `needed` more bytes fit on the disk and into the limit."""
        free = shutil.disk_usage(self.path).free
        used = sum(each.bytes for each in self.kept())
        if self.limit is not None and used + needed > self.limit:
            raise StoredsError(
                f"{url} needs {byte_size(needed)}, and of the limit of {byte_size(self.limit)} of {self.path} are "
                f"{byte_size(max(self.limit - used, 0))} left: {byte_size(used + needed - self.limit)} are missing. Raise the "
                "limit, or remove copies: storeds stage --list, --remove NAME"
            )
        if needed > free:
            raise StoredsError(
                f"{url} needs {byte_size(needed)}, and the disk of {self.path} has {byte_size(free)} free: "
                f"{byte_size(needed - free)} are missing. Make room, or choose another folder"
            )


@dataclass(frozen=True)
class Entry:
    """The local copy of one store."""

    cache: StageCache
    folder: Path
    url: str

    @contextlib.contextmanager
    def locked(self, *, to_repair: bool = False) -> Iterator[None]:
        """Let one process of the machine at a time fill the entry, or repair what it has; the others wait."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(self.folder / (_REPAIR if to_repair else _LOCK), "ab") as lock:
                if not _is_locked_now(lock):
                    _LOG.info("%s: waiting until another process has copied it to %s", self.url, self.folder)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                yield
        except StoredsError:
            raise
        except OSError as error:
            raise UnavailableError(f"{self.url} cannot be staged in {self.folder}: {error}") from None

    def lock_now(self) -> IO[bytes] | None:
        """Return the locked file if no process works on the entry; closing it, in every process that has it, unlocks it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = open(self.folder / _LOCK, "ab")  # noqa: SIM115  # the caller closes it
        if _is_locked_now(lock):
            return lock
        lock.close()
        return None

    def note(self, **what: Any) -> None:
        """Write down what the entry is now, besides what was written before."""
        self.write(_NOTE, {**self.read_note(), "url": self.url, **what})

    def count_repair(self) -> None:
        """Count a file that was damaged here, and copied again."""
        self.note(repaired=int(self.read_note().get("repaired", 0)) + 1)

    def write(self, name: str, content: Any) -> None:
        """Write a small file, in one step."""
        fresh = self.folder / f"{name}.{os.getpid()}.fresh"
        fresh.write_text(json.dumps(content))
        os.replace(fresh, self.folder / name)

    def read_note(self) -> dict[str, Any]:
        """Return what `note` wrote; empty if nothing is there."""
        try:
            body = json.loads((self.folder / _NOTE).read_text())
        except (OSError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}


def _is_locked_now(lock: IO[bytes]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _size_of(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(root, file)).st_size
    return total


def _bytes_of(text: Any) -> int | None:
    if text is None:
        return None
    found = _SIZE.fullmatch(str(text).strip())
    if found is None or isinstance(text, bool):
        raise ConfigError(f"stage: limit is a number of bytes, such as '500GB', not {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])
