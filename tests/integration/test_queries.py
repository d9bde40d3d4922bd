"""What the server is asked: selection by an index where there is one, and never for blobs that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymongo
import pytest
from pymongo.database import Database

import storeds
from conftest import with_path
from integration._epochs import Rows
from integration._places import Place

Row = dict[str, Any]


@pytest.fixture
def profiled(standalone: str) -> Iterator[tuple[Place, Database[Row]]]:
    """A place on a server that keeps every query it was asked, and that server's database."""
    place = Place.at(standalone, standalone, "profiled")
    with pymongo.MongoClient[Row](with_path(standalone, "admin")) as client:
        database = client["profiled"]
        yield place, database
        database.command("profile", 0)
        client.drop_database("profiled")


def finds(database: Database[Row], collection: str) -> list[Row]:
    """Return what was found out about each query on a collection since the profiler was on."""
    database.command("profile", 0)
    return list(database["system.profile"].find({"op": "query", "ns": f"profiled.{collection}"}).sort("ts", 1))


def test_where_reads_one_column_and_no_blob(profiled: tuple[Place, Database[Row]]) -> None:
    place, database = profiled
    rows = Rows(300, 1024)
    rows.write(place.url("all"))
    database.command("profile", 2)
    dataset = storeds.StoreDataset(place.url("all"), reader="array", where={"label": rows.label(7)})
    expected = [number for number in range(rows.count) if rows.label(number) == rows.label(7)]
    assert len(dataset) == len(expected) > 0
    asked = [row for row in finds(database, f"{place.prefix}_all") if row["nreturned"] > 1]
    assert sum(row["nreturned"] for row in asked) == rows.count + 1  # the build comes with the page
    assert {name for row in asked for name in row["command"]["projection"]} == {"label", "_build"}


def test_a_batch_is_asked_for_by_its_ids_alone(profiled: tuple[Place, Database[Row]]) -> None:
    place, database = profiled
    rows = Rows(300, 1024)
    rows.write(place.url("all"))
    dataset = storeds.StoreDataset(place.url("all"), reader="array")
    dataset[[5, 250, 5, 7]]
    database.command("profile", 2)
    dataset[[9, 200, 9, 11]]
    (asked,) = finds(database, f"{place.prefix}_all")
    assert asked["command"]["filter"] == {"_id": {"$in": [9, 11, 200]}}
    assert asked["planSummary"] == "IXSCAN { _id: 1 }"
    assert not asked.get("cursorid")


def test_an_index_of_what_no_field_is_or_of_a_blob_is_refused(standalone: str) -> None:
    place = Place.at(standalone, standalone)
    for index, message in ((["labl"], "label"), (["image"], "image")):
        with pytest.raises(storeds.errors.ConfigError, match=message):
            storeds.open_writer(place.url(), {"image": "image", "label": "int"}, index=index)
    with pytest.raises(storeds.errors.ConfigError, match="for MongoDB"):
        storeds.open_writer("lmdb:///nowhere/x.lmdb", {"label": "int"}, index=["label"])
