"""One user writes, another reads: the records, the ids and the samples are those of a local file."""

from __future__ import annotations

from pathlib import Path

import pytest

import storeds
from _processes import loader, open_rows
from _stores import TRUTH, read_all, record, write
from integration._places import KINDS, Place, rows, write_rows
from make_store import make_store
from storeds.testing import FIELDS, frozen, kept, make_records

MEBIBYTE = 1 << 20
RECORDS = make_records(40)


@pytest.mark.parametrize("place", KINDS[-2:], indirect=True)  # the kit reads a server alone
def test_every_kind_of_value_comes_back_and_the_id_is_that_of_a_file(place: Place, tmp_path: Path) -> None:
    local = f"lmdb://{tmp_path}/same.lmdb"
    for url in (local, place.url()):
        make_store(FIELDS, RECORDS, url)
    for preference in ("primary", "secondaryPreferred"):
        # A secondary may lag behind the publish, unless the read waits for the majority.
        url = place.url(user="reader", readPreference=preference, readConcernLevel="majority")
        with storeds.open_backend(url) as backend:
            assert backend.meta.id == storeds.info(local).id
            asked = [39, 0, 7, 7, *range(40)]
            assert frozen(backend.get_many(asked)) == frozen([kept(RECORDS[at]) for at in asked])


@pytest.mark.parametrize("place", KINDS[-1:], indirect=True)  # the others read by the same queries
def test_a_batch_of_many_replies_comes_back_whole(place: Place) -> None:
    records = rows(200, MEBIBYTE)
    write_rows(records, place.url())
    with storeds.open_backend(place.url(user="reader")) as backend:
        found = backend.get_many(range(199, -1, -1), ["image", "label"])
    # Not one comparison of it all, whose failure pytest would print.
    assert [each == records[199 - at] for at, each in enumerate(found)] == [True] * 200


@pytest.mark.parametrize("place", KINDS[-1:], indirect=True)  # the kit starts processes in other ways
def test_two_workers_read_every_row(place: Place) -> None:
    write(place.url(), [record(number) for number in range(len(TRUTH))])
    dataset = open_rows(place.url(user="reader"))
    assert read_all(dataset) == TRUTH
    found = list(loader(dataset, "fork"))
    assert len({pid for pid, _ in found}) == 2
    assert sorted(each for _, batch in found for each in batch) == TRUTH
