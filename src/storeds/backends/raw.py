"""The reading side of a storage engine: how to open its stores, and to read rows. `storeds.backends.store.Store` does the rest."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from storeds._utils.settings import Settings
from storeds.protocols import Array, Description, Meta
from storeds.records.codec import Fault, Rows
from storeds.records.tables import Stacked
from storeds.records.verifier import Verifier

__all__ = ["BackendOptions", "Fault", "HandleOpener", "Opener", "RawStore", "Rows", "Stacked"]

H = TypeVar("H")


class BackendOptions(Settings, frozen=True, kw_only=True):
    """Options of a backend, from the URL's ``?…`` or from keywords; a subclass declares its own.

    A subclass is a `msgspec.Struct`, and ``parsers`` may name a function for each option that is no plain value.
    """


class RawStore(Protocol):
    """One open store, as its engine sees it: it reads rows, and verifies, sorts and names nothing.

    `Store` makes it of a handle, and calls it only while it leases that handle, in several threads at once. Methods with a body
    are optional; an implementation inherits them.
    """

    meta: Meta
    verifier: Verifier | None = None
    """The seals and checksums of a native store, see `storeds.plugins.native_meta`. None if nothing seals the records."""

    @property
    def build(self) -> str:
        """The state of the store now; reading raises UnavailableError when it is not that of the opened store."""
        return self.meta.build

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        """Return records at positions that ascend strictly, in one storage call.

        Parameters
        ----------
        positions : list of int
        fields : tuple of str or None
            Of a native store: None for whole records, or the fields to read by themselves, see `reads_fields`. Of any other store:
            the fields.
        """
        ...

    reads_fields: ClassVar[bool] = False
    """Whether `read` of a native store can read some fields without the others."""

    has_flat_columns: ClassVar[bool] = False
    """Whether columns of numbers are read as fast as records. Then records of numbers alone need no seals either."""

    def column(self, name: str) -> Sequence[Iterable[bytes]] | None:
        """Return the bytes of a column of a native store, and for text then those of its bounds, each in pieces.

        None if the engine keeps no columns. Raises FormatError if it is not there.
        """
        return None

    def values(self, name: str) -> Array | None:
        """Return a column of a store that nothing seals; None if its records must be read."""
        return None

    def stacked(self, positions: Array, fields: Sequence[str], *, whole: bool) -> Stacked | None:
        """Return fields of fixed size as arrays; with `whole`, with what verifies the records. None if that is not possible."""
        return None

    def arrays(self, positions: list[int], fields: tuple[str, ...]) -> Rows | None:
        """Return the same as `read`, without reading large arrays; None if the store reads only whole records.

        In place of each large array stands a ``storeds.records.parts.StoredArray``. Of a native store, a
        ``storeds.backends.blocks.StoredBytes`` stands in place of each array, or of the whole packed record. `Store` reads them
        while it leases the handle.
        """
        return None

    def keys(self) -> Array | None:
        """Return the key of each record, of a store whose records have keys and perhaps no field of them; None otherwise."""
        return None

    def select(self, where: Mapping[str, Sequence[Any]]) -> Array | None:
        """Return the ascending int64 positions of records whose fields have one of these values; None to compare columns."""
        return None

    def check(self) -> None:
        """Raise FormatError unless the store is complete; called once, where the user opens it, and not in each worker."""
        return

    def unread(self) -> Iterable[str]:
        """Return the parts of the store that no record holds, each with a reason."""
        return ()

    def name(self, position: int) -> str:
        """Return what else names a record in messages, such as its ``_id``; ``""`` if nothing does."""
        return ""

    def describe(self) -> Description:
        """Return what the store says of itself, without `unread`."""
        return Description()


class HandleOpener(Protocol[H]):
    """How to open a handle. It holds configuration only, so that it pickles.

    A *handle* is what is open: a file, an environment, a client. Openers with equal keys share one, with the settings of the
    first. It is used and closed only in the process that opened it.
    """

    @property
    def may_wait(self) -> bool:
        """Whether reading may wait for a network: then a fork does not wait for it, and the child keeps the handle unused."""
        return False

    @property
    def url(self) -> str:
        """The store, secrets removed."""
        ...

    def key(self) -> Hashable:
        """Return the identity of the handle. A setting that changes what is read belongs in it, one that changes speed does not."""
        ...

    def open(self) -> H: ...

    def close(self, handle: H, /) -> None: ...

    def is_current(self, handle: H, /) -> bool:
        """Whether a handle that was opened earlier still shows what is stored."""
        return True


class Opener(HandleOpener[H], Protocol[H]):
    """Where a store is, and how to open it."""

    def attach(self, handle: H, /) -> RawStore:
        """Return the store that is read through a handle; raises FormatError if it is none."""
        ...

    def settled(self, raw: Any, /) -> Opener[H]:
        """Return the opener for later processes, which may hold what was found when the user opened the store."""
        return self

    def renew(self) -> bool:
        """Replace a damaged store by what it is a copy of; return whether it is intact now. False if it is no copy."""
        return False
