"""Allows one writer at a time per MongoDB store: a lease in the meta collection that its owner keeps renewing."""

from __future__ import annotations

import datetime
import logging
import secrets
import threading
import weakref
from typing import Any

import pymongo
from pymongo.errors import DuplicateKeyError

from storeds.backends.handles import HandleRef
from storeds.backends.mongodb.client import CLIENTS, ClientOpener, Location, knows_server, leased_database
from storeds.backends.mongodb.collections import meta_collection
from storeds.backends.staging import Owner
from storeds.errors import StoredsError, StoreExistsError

__all__ = ["LEASE_ID", "WriterLease", "live_writer"]

LEASE_ID = "writer"  # in the meta collection, whose other ids are UUIDs
_SECONDS = 60  # longer than an election; after a crash, the next writer waits this long
_RENEWAL = _SECONDS / 3
_PATIENCE = 2.0  # seconds for releasing a lease, which otherwise expires
_HELD: set[str] = set()  # tokens of this process's open writers
_LOG = logging.getLogger("storeds")


class WriterLease:
    """The exclusive right to write one store. A thread renews it, so a caller that pauses keeps it.

    Attributes
    ----------
    token : str
        A fencing token: part of the name of the writer's collection, and of its entry in the meta collection.
    """

    def __init__(self, location: Location, opener: ClientOpener) -> None:
        self._location = location
        self.token = secrets.token_hex(6)
        self._ref: HandleRef[Any] = CLIENTS.ref(self, opener)
        self._is_lost = False
        self._stopped = threading.Event()
        _HELD.add(self.token)
        weakref.finalize(self, _HELD.discard, self.token).atexit = False

    def take(self, database: Any) -> None:
        """Acquire the lease and start renewing it; raises StoreExistsError while another writer is alive."""
        metas = self._metas(database)
        while True:
            held = metas.find_one({"_id": LEASE_ID}) or {}
            if held and held["token"] != self.token:
                self._check_free(held, _now(database))
            # If another writer renews or takes the lease in between, this update matches nothing.
            seen = {"_id": LEASE_ID, "token": held.get("token"), "renewed": held.get("renewed")}
            own = {"token": self.token, "owner": Owner.here().to_json(), "seconds": _SECONDS}
            change = {"$set": own, "$currentDate": {"renewed": True}}
            try:
                if metas.update_one(seen, change, upsert=not held).matched_count or not held:
                    break
            except DuplicateKeyError:
                continue
        threading.Thread(
            target=_renew, args=(self._stopped, weakref.ref(self)), name="storeds-writer-lease", daemon=True
        ).start()

    def _check_free(self, held: dict[str, Any], now: datetime.datetime) -> None:
        owner = Owner.from_json(held.get("owner"))
        if owner is not None and owner.is_here:
            if held["token"] in _HELD:
                raise StoreExistsError(
                    f"{self._location.url} is being written by another writer of this process; close that one first"
                )
            return
        age = (now - held["renewed"]).total_seconds()
        if age > held["seconds"] or (owner is not None and owner.has_ended):
            return
        raise StoreExistsError(
            f"{self._location.url} is being written by {owner or 'another writer'}, which renewed its lease {max(0, age):.0f} s ago. Wait until it "
            f"ends, or end it; if it is dead, its lease ends in {held['seconds'] - age:.0f} s, and then resume=True (--resume) "
            "continues its work and overwrite=True (--overwrite) drops it"
        )

    def renew(self, database: Any) -> None:
        """Renew the lease; raises StoredsError if another writer has taken it."""
        own = {"_id": LEASE_ID, "token": self.token}
        if not self._metas(database).update_one(own, {"$currentDate": {"renewed": True}}).matched_count:
            raise self.lost(database)

    def check(self, database: Any) -> None:
        """Raise StoredsError if the last renewal found that another writer has taken the lease."""
        if self._is_lost:
            raise self.lost(database)

    def lost(self, database: Any) -> StoredsError:
        """Return the error for a write that another writer's lease forbids."""
        self._is_lost = True
        held = self._metas(database).find_one({"_id": LEASE_ID}) or {}
        taker = Owner.from_json(held.get("owner")) or "another writer, which has ended"
        return StoredsError(
            f"{self._location.url}: this writer did not renew its lease of {_SECONDS} s in time, and the write was "
            f"taken over by {taker}; records written since then are lost, and this writer cannot publish"
        )

    def release(self) -> None:
        """Release the lease for the next writer; if the server is unreachable, the lease expires instead."""
        self._stopped.set()
        _HELD.discard(self.token)
        if self._ref.closed:
            return
        try:
            with self._ref.lease() as client:
                known = knows_server(client)
            if known:
                with leased_database(self._ref, self._location) as database, pymongo.timeout(_PATIENCE):
                    self._metas(database).delete_one({"_id": LEASE_ID, "token": self.token})
        except StoredsError as error:
            _LOG.debug("the lease of %s was not released: %s", self._location.url, error)
        finally:
            self._ref.close()

    def _renew_once(self) -> None:
        try:
            with leased_database(self._ref, self._location) as database, pymongo.timeout(_RENEWAL / 2):
                self.renew(database)
        except StoredsError as error:
            if not self._stopped.is_set():
                _LOG.debug("the lease of %s was not renewed: %s", self._location.url, error)

    def _metas(self, database: Any) -> Any:
        return database[meta_collection(self._location.collection)]


def _renew(stopped: threading.Event, lease: weakref.ref[WriterLease]) -> None:
    while not stopped.wait(_RENEWAL):
        held = lease()
        if held is None or held._is_lost:
            return
        held._renew_once()
        del held


def live_writer(database: Any, name: str) -> Owner | None:
    """Return the process that is writing the store `name`, or None if it is dead or its lease has expired."""
    held = database[meta_collection(name)].find_one({"_id": LEASE_ID})
    owner = Owner.from_json(held.get("owner")) if held else None
    if held is None or owner is None or (owner.has_ended if not owner.is_here else held["token"] not in _HELD):
        return None
    return owner if (_now(database) - held["renewed"]).total_seconds() <= held["seconds"] else None


def _now(database: Any) -> datetime.datetime:
    """Return the server's time, which decides when leases expire."""
    try:
        now: datetime.datetime = database.command("hello")["localTime"]
    except NotImplementedError:  # mongomock, which uses this process's clock
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return now
