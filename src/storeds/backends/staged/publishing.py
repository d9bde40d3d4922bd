"""`CloudVersions`: a versioned store in the cloud that is written on this machine, file by file, and then uploaded."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from storeds.backends.staged.copying import check_native, copy_file
from storeds.backends.staged.mirror import Mirror
from storeds.backends.staged.remote import Objects
from storeds.backends.versions.document import Version
from storeds.backends.versions.folder import VersionFolder, is_of_storeds
from storeds.backends.versions.place import Leftover
from storeds.errors import StoreExistsError

__all__ = ["CloudVersions"]

_FOLDERS = {"member": "members", "column": "columns", "version": "versions"}


@dataclass(frozen=True)
class CloudVersions(Mirror):
    """A versioned store in the cloud, as it is written.

    Members and columns are uploaded before the version that has them, each in one step, and a version only if its number is
    free. So an upload that breaks off leaves files that no version has, which the next run uses and `clean` finds.
    """

    remote: Objects
    same: set[str] = field(default_factory=set, compare=False, repr=False)
    """Members that are there as they are here."""

    def publish(self, number: int, text: str) -> bool:
        # docstring inherited
        version = Version.from_text(text, self.url)
        columns = {f"{name}.npy" for member in version.members for name in member.files}
        for name in sorted(columns - self.remote.states("columns").keys()):
            self._upload(f"columns/{name}", Path(self.column_path(name.removesuffix(".npy"))))
        base = self.version(number - 1).members if number > 1 else ()
        published = {(member.name, member.build) for member in base}
        for member in version.members:
            is_known = (member.name, member.build) in published or member.name in self.same
            was_written_here = VersionFolder.has_member(self, member.name)
            if was_written_here and not is_known:
                self.deliver(member.name)
        return self.remote.put(f"versions/{number:08}.json", text.encode())

    def deliver(self, name: str) -> None:
        # docstring inherited
        self._upload(f"members/{name}", Path(self.member_path(name)))
        self.same.add(name)

    def _upload(self, name: str, path: Path) -> None:
        if not self.remote.put(name, path):
            raise StoreExistsError(
                f"{self.url} has another file {name}: another process has written the same records meanwhile. Remove the copy "
                f"of this machine, storeds stage --remove {self.entry.folder.name}, and repeat the call"
            )

    # --- Members ---

    def has_member(self, name: str) -> bool:
        # docstring inherited
        return super().has_member(name) or name in self.remote.states("members")

    def fetch(self, name: str) -> None:
        # docstring inherited
        path = Path(self.member_path(name))
        if not path.exists():
            copy_file(self.remote, f"members/{name}", path, self._check, lambda _: None)
            self.same.add(name)

    def _check(self, path: Path) -> None:
        check_native(self.engine, path, self.url)

    # --- Leftovers ---

    def leftovers(
        self, members: Collection[str], columns: Collection[str], numbers: Collection[int], former: Collection[str]
    ) -> Iterator[Leftover]:
        # docstring inherited
        wanted = {*members, *(f"{name}.npy" for name in columns), *(f"{number:08}.json" for number in numbers)}
        for kind, folder in _FOLDERS.items():
            for name, state in self.remote.states(folder).items():
                if name not in wanted and (is_of_storeds(name) or name in former):
                    yield Leftover(kind, f"{folder}/{name}", state.size, state.time)

    def remove(self, leftover: Leftover) -> None:
        # docstring inherited
        self.remote.remove(leftover.path)
