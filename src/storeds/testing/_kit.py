"""What all parts of the backends' conformance kit share: the subclass's promises, and short ways to write and open."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from storeds._writer import StoreWriter
from storeds.backends import memory
from storeds.protocols import JSON, Backend, Meta, Record
from storeds.stores import open_backend, open_writer
from storeds.testing._values import FIELDS, frozen, kept, make_records

__all__ = ["Kit", "MakeUrl", "Written", "assert_same", "reference_id"]

MakeUrl = Callable[[], str]


@dataclass(frozen=True)
class Written:
    """A published store and the list it must equal."""

    url: str
    records: list[Record]
    meta: Meta


class Kit:
    """Base of the kit's parts; see `BackendTests` for what a subclass states."""

    options: ClassVar[Mapping[str, Any]] = {}

    @pytest.fixture
    def make_url(self) -> MakeUrl:
        """Return a function that names a new, empty target at every call; a subclass overrides this fixture."""
        raise NotImplementedError(f"{type(self).__name__} needs a fixture make_url; see storeds.testing.BackendTests")

    @pytest.fixture
    def written(self, make_url: MakeUrl) -> Written:
        """Return a published store that holds every kind of field."""
        url, records = make_url(), make_records(24)
        return Written(url, kept(records), self.write(url, FIELDS, records))

    def open(self, url: str) -> Backend:
        """Open a store with the subclass's options."""
        return open_backend(url, **self.options)

    def writer(self, url: str, fields: Mapping[str, Any], **how: Any) -> StoreWriter:
        """Open a writer with the subclass's options."""
        # `suspend` and `flush` are not in the protocol; every writer that can resume has them.
        return open_writer(url, fields, **how, **self.options)  # type: ignore[return-value]

    def write(
        self,
        url: str,
        fields: Mapping[str, Any],
        records: Iterable[Record],
        *,
        attrs: Mapping[str, JSON] | None = None,
        **how: Any,
    ) -> Meta:
        """Write and publish a whole store."""
        writer = self.writer(url, fields, **how)
        writer.append(records)
        return writer.publish(attrs)


def assert_same(got: object, expected: object) -> None:
    """Fail unless both are equal in type and bit by bit."""
    assert frozen(got) == frozen(expected)


def reference_id(fields: Mapping[str, Any], records: Iterable[Record], attrs: Mapping[str, JSON] | None = None) -> str:
    """Return the `Meta.id` that the reference engine gives this content."""
    name = f"kit-{secrets.token_hex(8)}"
    writer = open_writer(f"memory://{name}", fields)
    writer.append(records)
    meta = writer.publish(attrs)
    del memory._STORES[name]
    return meta.id
