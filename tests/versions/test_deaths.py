"""Deaths and many hands: a version is there as a whole or not at all, and what was begun ends by doing it again."""

from __future__ import annotations

import importlib
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import storeds
from _writing import die_at_command, die_at_file_operation, fork, wait_for
from conftest import with_path
from make_store import make_store
from shares import FULL, SEED
from storeds import errors, ops

FIELDS = {"n": "int", "key": "str"}


def source(*numbers: int) -> str:
    return make_store(FIELDS, ({"n": number, "key": f"k{number}"} for number in numbers))


def numbers(url: str) -> list[int]:
    with storeds.open_backend(url) as backend:
        return [row["n"] for row in backend.get_many(range(len(backend)))]  # type: ignore[index]  # none is bad


OPERATIONS: dict[str, Callable[[str], object]] = {
    "append": lambda url: storeds.append(url, source(7, 8)),
    "edit": lambda url: storeds.edit(url, set={"k1": {"n": 11}}, drop=["k2"]),
    "compact": lambda url: ops.compact(url),
    "clean": lambda url: ops.clean(url, older_than=0, yes=True),
}
AFTER = {"append": [0, 1, 2, 3, 7, 8], "edit": [0, 11, 3], "compact": [0, 1, 2, 3], "clean": [0, 1, 2, 3]}


def prepare(url: str) -> None:
    for part in ([0, 1], [2, 5, 3]):
        storeds.append(url, source(*part))
    storeds.edit(url, drop=["k5"])


def repeat_and_clean(operation: str, url: str) -> set[str]:
    """Check the store that a death left, repeat the operation, and clean; return the members and columns that are needed."""
    assert numbers(url) in ([0, 1, 2, 3], AFTER[operation])
    assert storeds.verify(url, workers=0).ok
    try:
        OPERATIONS[operation](url)
    except (errors.StoreExistsError, errors.ConfigError):  # it was done
        assert numbers(url) == AFTER[operation]
    assert numbers(url) == AFTER[operation]
    before = storeds.info(url).id
    ops.clean(url, older_than=0, yes=True)
    assert storeds.info(url).id == before
    (last,) = ops.log(url)
    return {name for member in last.members for name in (member.name, *member.files)}


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_death_at_any_file_operation_leaves_the_version_of_before_or_the_new_one(
    operation: str, engine: str, tmp_path: Path
) -> None:
    prepared, work = tmp_path / "prepared", tmp_path / "store"
    prepare(f"{engine}://{prepared}/")
    url, status, step = f"{engine}://{work}/", -signal.SIGKILL, 1 if FULL else 3
    number = SEED % step + 1 - step
    while status == -signal.SIGKILL:
        number += step
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(prepared, work)
        status = die_at_file_operation(lambda: OPERATIONS[operation](url), "store", number)
        kept = repeat_and_clean(operation, url)
        left = [path for path in work.rglob("*") if path.is_file() and path.suffix != ".json"]
        assert {path.stem if path.suffix == ".npy" else path.name for path in left} == kept
    assert status == 0
    assert number > 5


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_death_at_any_command_leaves_the_version_of_before_or_the_new_one(
    operation: str, mongodb_database: str, database: Any
) -> None:
    url, status, step = with_path(mongodb_database, "store/"), -signal.SIGKILL, 1 if FULL else 5
    prepare(url)
    prepared = {name: list(database[name].find()) for name in database.list_collection_names()}
    number = SEED % step + 1 - step
    while status == -signal.SIGKILL:
        number += step
        for name in database.list_collection_names():
            database.drop_collection(name)
        for name, documents in prepared.items():
            database[name].insert_many(documents)
        status = die_at_command(lambda: OPERATIONS[operation](url), number)
        kept = repeat_and_clean(operation, url)
        left = {name.removeprefix("store.members.") for name in database.list_collection_names()}
        left |= {part["_id"].partition("/")[0] for part in database["store.columns"].find()}
        assert left == kept | {"store.columns", "store.versions"}
        assert database["store.versions"].count_documents({}) == 1
    assert status == 0
    assert number > 10


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_processes_append_and_edit_at_once_and_nothing_is_lost_or_doubled(
    engine: str, make_engine_url: Callable[[str], str]
) -> None:
    url, hands, times = with_path(make_engine_url(engine), ""), 8, 50 if FULL else 4
    storeds.append(url, source(-1))

    def hand(first: int) -> None:
        for number in range(first, first + times):
            storeds.append(url, source(number))

    pids = [fork(lambda first=at * times: hand(first)) for at in range(hands)]  # type: ignore[misc]  # mypy cannot infer it
    assert [wait_for(pid) for pid in pids] == [0] * hands
    found = Counter(numbers(url))
    assert found == Counter(range(-1, hands * times))
    assert [each.number for each in ops.log(url)] == list(range(hands * times + 1, 0, -1))


def test_two_edits_at_once_are_one_edit_and_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"lmdb://{tmp_path}/store/"
    storeds.append(url, source(1, 2, 3))
    editing: Any = importlib.import_module("storeds.ops.editing")
    first: Any = editing.next_version

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(editing, "next_version", first)
        storeds.edit(url, drop=["k1"])  # another hand
        return first(*arguments, **options)

    monkeypatch.setattr(editing, "next_version", late)
    with pytest.raises(errors.StoreExistsError, match="version 2, edit by .* nothing was changed: edit again"):
        storeds.edit(url, drop=["k2"])
    assert numbers(url) == [2, 3]


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_damage_of_what_a_version_says_is_an_error_and_older_versions_open(engine: str, tmp_path: Path) -> None:
    url, folder = f"{engine}://{tmp_path}/store/", tmp_path / "store"
    storeds.append(url, source(1, 2, 3))
    storeds.edit(url, set={"k1": {"n": 9}}, drop=["k2"])
    for path in [folder / "versions" / "00000002.json", *(folder / "columns").iterdir()]:
        data = path.read_bytes()
        for at in range(0, len(data), 1 if FULL else 7):
            path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            try:
                found = numbers(url)
            except (errors.FormatError, errors.UnavailableError):
                found = [9, 3]
            assert found == [9, 3]  # a column that no value comes from, such as the checksums, harms no reader
        path.write_bytes(data)
    (folder / "versions" / "00000002.json").write_text("{}")
    with pytest.raises(errors.FormatError, match=r"does not match its checksum; open an older one with \?version="):
        storeds.open_backend(url)
    assert numbers(f"{url}?version=1") == [1, 2, 3]


def test_a_store_of_another_engine_than_its_url_says_is_refused(tmp_path: Path) -> None:
    storeds.append(f"hdf5://{tmp_path}/store/", source(1))
    for use in (storeds.open_backend, ops.log, lambda url: storeds.append(url, source(2))):
        with pytest.raises(errors.ConfigError, match="is a versioned store of hdf5: write hdf5://"):
            use(f"lmdb://{tmp_path}/store/")
    assert numbers(f"{tmp_path}/store") == [1]
