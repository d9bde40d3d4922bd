"""Versioned stores in MongoDB: their names, what `clean` leaves alone, damage, and servers that are lost."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import storeds
from _writing import in_fork
from conftest import with_path
from make_store import make_store
from storeds import errors, ops
from storeds.backends.mongodb.versions import VersionCollections
from storeds.ops.growing import folder_of

FIELDS = {"n": "int", "key": "str"}
GONE = "mongodb://user:hush@127.0.0.1:1/db/train/?serverSelectionTimeoutMS=50&timeoutMS=300"


@pytest.fixture
def url(mongodb_database: str) -> str:
    """A store of two versions: 1, 2, 3, and then 9, 3."""
    found = with_path(mongodb_database, "train/")
    storeds.append(found, rows(1, 2, 3))
    storeds.edit(found, set={"k1": {"n": 9}}, drop=["k2"])
    return found


def rows(*values: int, url: str | None = None) -> str:
    return make_store(FIELDS, ({"n": value, "key": f"k{value}"} for value in values), url)


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def numbers(backend: Any) -> list[int]:
    return [row["n"] for row in backend.get_many(range(len(backend)))]


def test_a_slash_names_a_versioned_store_and_a_url_without_it_the_collection(url: str, mongodb_database: str) -> None:
    collection = rows(7, url=with_path(mongodb_database, "train"))
    assert numbers(storeds.open_backend(collection)) == [7]
    assert numbers(storeds.open_backend(url)) == [9, 3]
    with pytest.raises(errors.ConfigError, match="names a versioned store"):
        storeds.open_writer(url, FIELDS)
    with pytest.raises(errors.ConfigError, match="version"):
        storeds.open_backend(with_option(collection, "version=1"))
    with pytest.raises(errors.StoreNotFoundError, match="has the versioned stores train"):
        storeds.open_backend(with_path(mongodb_database, "trian/"))


def test_the_version_is_an_option_beside_those_of_the_server(url: str) -> None:
    for options in ("version=1&maxPoolSize=3", "maxPoolSize=3&version=1"):
        backend: Any = storeds.open_backend(with_option(url, options))
        assert numbers(backend) == [1, 2, 3]
        # The members have the options of the store.
        assert backend.stores[0].describe().settings["max_pool_size"] == 3
    assert numbers(storeds.open_backend(url, version=1)) == [1, 2, 3]
    with pytest.raises(errors.ConfigError, match="maxPolSize"):
        storeds.open_backend(with_option(url, "version=1&maxPolSize=3"))
    with pytest.raises(errors.StoreNotFoundError, match="no version 5; it has 1 to 2"):
        storeds.open_backend(with_option(url, "version=5"))


def test_a_reader_keeps_its_version_in_forks_and_pickles(url: str) -> None:
    backend = storeds.open_backend(url)
    assert numbers(backend) == [9, 3]
    storeds.append(url, rows(4))

    def check() -> None:
        assert numbers(backend) == numbers(pickle.loads(pickle.dumps(backend))) == [9, 3]
        assert numbers(storeds.open_backend(url)) == [9, 3, 4]

    in_fork(check)
    check()


def test_clean_removes_nothing_but_what_this_store_left(url: str, database: Any) -> None:
    own = {name: database[name].count_documents({}) for name in database.list_collection_names()}
    name = "0123456789abcdef"
    others = ["train", "train.members", f"train.members.{name}.mine", "train.members.mine", f"trains.members.{name}"]
    others += [f"train.members.members.{name}", "train.versions.old"]
    for each in others:
        database[each].insert_one({"_id": "meta"})
    database["train.versions"].insert_one({"_id": "about"})
    database["train.columns"].insert_one({"_id": name})
    database[f"train.members.{name}"].insert_one({"_id": "meta"})  # nobody knows how old it is
    database[f"train.members.{name}.partial.0123456789ab"].insert_one({"_id": 0})  # no writer has it
    young = ops.clean(url, older_than=3600).files
    assert [each.path for each in young] == [f"train.members.{name}.partial.0123456789ab"]
    assert {each.path for each in ops.clean(url, older_than=0, yes=True).files} >= {"train.versions/1"}
    own["train.versions"] = 2
    kept = dict.fromkeys([*others, f"train.members.{name}"], 1) | own
    kept["train.columns"] = database["train.columns"].count_documents({})
    assert {each: database[each].count_documents({}) for each in database.list_collection_names()} == kept
    assert database["train.columns"].find_one({"_id": name})
    assert numbers(storeds.open_backend(url)) == [9, 3]
    assert ops.clean(url, older_than=0).files == []


def test_damage_is_an_error_and_older_versions_open(url: str, database: Any) -> None:
    versions, columns = database["train.versions"], database["train.columns"]
    (last,) = ops.log(url)[0].members
    for name in (last.columns["n"], last.dropped):
        part = columns.find_one({"_id": f"{name}/000000"})
        columns.update_one({"_id": part["_id"]}, {"$set": {"_data": b"x"}})
        with pytest.raises(errors.FormatError, match=f"column {name} does not match its name"):
            numbers(storeds.open_backend(url))
        columns.delete_one({"_id": part["_id"]})
        with pytest.raises(errors.UnavailableError, match=f"column {name} is gone"):
            numbers(storeds.open_backend(url))
        columns.insert_one(part)
    for change in ({"$set": {"_version": "{}"}}, {"$unset": {"_version": True}}):
        versions.update_one({"_id": 2}, change)
        with pytest.raises(errors.FormatError, match=r"does not match its checksum; open an older one with \?version="):
            storeds.open_backend(url)
    assert numbers(storeds.open_backend(with_option(url, "version=1"))) == [1, 2, 3]


@pytest.mark.parametrize(
    "column", [np.arange(1000), np.array(["ä" * at for at in range(100)], np.dtypes.StringDType())]
)
def test_a_large_column_lies_in_parts(column: Any, url: str, database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.backends.mongodb.versions._PART", 1000)
    place = VersionCollections(url)
    name = place.put(column)
    assert place.put(column) == name
    assert place.get(name).tolist() == column.tolist()
    assert database["train.columns"].count_documents({"_id": {"$regex": name}}) > 8
    database["train.columns"].delete_one({"_id": f"{name}/000003"})
    with pytest.raises(errors.FormatError, match="does not match its name"):
        place.get(name)


def test_a_version_is_published_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = VersionCollections(url)
    monkeypatch.setattr("secrets.token_hex", lambda _: "one")
    assert place.publish(3, "text")
    assert place.publish(3, "text")  # the reply to the first attempt was lost
    monkeypatch.setattr("secrets.token_hex", lambda _: "another")
    assert not place.publish(3, "text")
    monkeypatch.setattr("storeds.backends.mongodb.versions._MOST_TEXT", 3)
    with pytest.raises(errors.ConfigError, match="storeds compact"):
        place.publish(4, "text")


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_a_place_names_the_members_that_are_there(engine: str, make_engine_url: Callable[[str], str]) -> None:
    place = folder_of(with_path(make_engine_url(engine), ""))
    assert place.member_names() == []
    names = [place.member_name(stem) for stem in ("b-1-of-2", "b-2-of-2", "a")]
    for name in names:
        rows(1, url=place.member_url(name))
    assert place.member_names() == sorted(names)
    assert place.has_member(names[0])
    assert not place.has_member(place.member_name("c"))


def test_collections_are_merged_by_copying(url: str, mongodb_database: str) -> None:
    other = rows(5, url=with_path(mongodb_database, "other"))
    with pytest.raises(errors.ConfigError, match="cannot be moved"):
        ops.merge(url, other, move=True)
    ops.merge(url, other)
    assert numbers(storeds.open_backend(url)) == [9, 3, 5]
    assert numbers(storeds.open_backend(other)) == [5]
    with pytest.raises(errors.ConfigError, match="is no store of mongodb"):
        ops.merge(url, rows(6))


CALLS: dict[str, Callable[[str], object]] = {
    "open": storeds.open_backend,
    "append": lambda url: storeds.append(url, rows(1)),
    "edit": lambda url: storeds.edit(url, drop=["k1"]),
    "log": ops.log,
    "compact": ops.compact,
    "clean": ops.clean,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_gone_is_one_error_without_the_password(call: str) -> None:
    with pytest.raises(errors.UnavailableError, match=r"mongodb://user:\*\*\*@127.0.0.1:1/db/train/") as raised:
        CALLS[call](GONE)
    assert "hush" not in "".join(traceback.format_exception(raised.value))


def test_no_message_has_the_password() -> None:
    for call in (ops.log, lambda url: storeds.append(url, rows(1))):
        with pytest.raises(errors.ConfigError) as raised:
            call(GONE.replace("/?", "?"))
        assert "hush" not in "".join(traceback.format_exception(raised.value))
    assert "hush" not in repr(VersionCollections(GONE))
