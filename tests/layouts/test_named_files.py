"""A file is a name, and rows have ranges: patterns over folders of HDF5 files, and over rows that lie end to end."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import storeds
from make_store import make_store
from storeds import StoreDataset, StoreLoader, errors, open_backend

STEPS = [5, 6, 7]
EPISODES = {"*": "episode_{episode}.hdf5::**[]"}


def write(path: Path, datasets: Mapping[str, Any], **how: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, data in datasets.items():
            file.create_dataset(name, data=data, **how)


def samples(*given: Any, **arguments: Any) -> list[Any]:
    dataset = StoreDataset(*given, **arguments)
    return [dataset[at] for at in range(len(dataset))]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of three episodes, whose actions are (episode, step)."""
    for episode, steps in enumerate(STEPS):
        actions = np.stack([np.full(steps, episode), np.arange(steps)], axis=1)
        datasets = {"action": actions, "observations/top": np.zeros((steps, 4, 4, 3), "u1"), "patient": f"p{episode}"}
        write(tmp_path / f"data/episode_{episode}.hdf5", datasets)
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("where", "columns"),
    [
        ("", EPISODES),
        ("/*.hdf5", EPISODES),
        ("/..", {"*": "data/episode_{episode}.hdf5::**[]"}),
        ("", {"action": "episode_{episode}.hdf5::action[]", "patient": "episode_{episode}.hdf5::patient"}),
    ],
    ids=["a folder", "a glob", "below a folder", "each field"],
)
def test_the_name_of_a_file_is_a_field(folder: Path, where: str, columns: dict[str, str]) -> None:
    expected = [(episode, step) for episode, steps in enumerate(STEPS) for step in range(steps)]
    with open_backend(f"{folder}{where}", columns=columns) as store:
        records: Any = store.get_many(range(len(store)))
        assert [(each["episode"], each["step"]) for each in records] == expected
        assert [tuple(each["action"].tolist()) for each in records] == expected
        assert [each["patient"] for each in records] == [f"p{episode}" for episode, _ in expected]
        revived = pickle.loads(pickle.dumps(store))
        assert revived.get_many([17], ["action"])[0]["action"].tolist() == [2, 6]


def test_windows_and_folds_stay_in_a_file(folder: Path) -> None:
    arguments: Any = {"columns": EPISODES, "reader": "sequence", "reader_options": {"windows": {"action": "0:4"}}}
    windows: Any = StoreDataset(folder, as_dict=True, **arguments)
    assert len(windows) == sum(STEPS)
    assert all(len(set(sample["action"][:, 0].tolist())) == 1 for sample in windows)
    parts = [
        {int(each["episode"]) for each in samples(folder, fold=fold, as_dict=True, columns=EPISODES, reader="array")}
        for fold in ({"of": 3, "take": 1, "group_by": "episode"}, {"of": 3, "without": 1, "group_by": "episode"})
    ]
    assert parts[0].isdisjoint(parts[1])
    assert parts[0] | parts[1] == {0, 1, 2}


@pytest.mark.parametrize("which", ["take", "without"])
def test_files_without_a_name_stay_together_by_file(folder: Path, which: str) -> None:
    fold = {"of": 3, which: 0, "group_by": "file"}
    taken: Any = StoreDataset(f"{folder}/*.hdf5", reader="array", fields=["action"], as_dict=True, fold=fold)
    counts = np.bincount([int(sample["action"][0]) for sample in taken], minlength=3).tolist()
    assert [each in (0, steps) for each, steps in zip(counts, STEPS, strict=True)] == [True] * 3
    assert sum(map(bool, counts)) == (1 if which == "take" else 2)


def test_files_are_paired_by_their_names(tmp_path: Path) -> None:
    for number in range(1, 13):
        write(tmp_path / f"img/image_{number}.h5", {"img": np.full((4, 4), number, "f8")})
        if number != 5:
            write(tmp_path / f"mask/mask_{number}.h5", {"mask": np.full((4, 4), number, "u1")})
    columns = {"img": "img/image_{}.h5::img", "mask": "mask/mask_{}.h5::mask"}
    found = open_backend(tmp_path, columns=columns).get_many(range(12))
    assert [each["key"] for each in found if isinstance(each, dict)] == [str(n) for n in range(1, 13) if n != 5]
    assert all(each["img"][0, 0] == each["mask"][0, 0] for each in found if isinstance(each, dict))
    assert isinstance(found[4], errors.RecordError)
    assert "mask_5.h5" in str(found[4])


@pytest.mark.parametrize("compression", [None, "gzip"])
def test_few_of_many_files_are_open_while_threads_read(tmp_path: Path, compression: str | None) -> None:
    count = 150
    for number in range(count):
        write(tmp_path / f"d/{number}.h5", {"x": np.full((4, 3), number)}, compression=compression)
    before = len(os.listdir("/proc/self/fd"))
    store = open_backend(tmp_path / "d", columns={"x": "{number}.h5::x[]"})
    wrong: list[Any] = []

    def read(seed: int) -> None:
        chance = np.random.default_rng(seed)
        for _ in range(4):
            positions = chance.integers(0, 4 * count, 64).tolist()
            for at, record in zip(positions, store.get_many(positions), strict=True):
                if not isinstance(record, dict) or record["x"].tolist() != [at // 4] * 3:
                    wrong.append((at, record))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    # 64 files of h5py, and as many descriptors, and those of the rows that were read last
    assert len(os.listdir("/proc/self/fd")) - before < 230
    store.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_workers_read_what_was_opened(folder: Path) -> None:
    dataset = StoreDataset(folder, columns=EPISODES, reader="array", as_dict=True)
    loader = StoreLoader(dataset, batch_size=4, num_workers=2, shuffle=True, seed=1)
    found = [
        row for batch in loader for row in zip(batch["episode"].tolist(), batch["action"][:, 0].tolist(), strict=True)
    ]
    assert sorted(found) == [(episode, episode) for episode, steps in enumerate(STEPS) for _ in range(steps)]


@pytest.mark.parametrize("change", ["grows", "goes", "comes"])
def test_a_changed_file_is_noticed(folder: Path, change: str) -> None:
    store = open_backend(folder, columns=EPISODES)
    pickled = pickle.dumps(store)
    store.close()
    if change == "grows":
        write(
            folder / "episode_1.hdf5",
            {"action": np.zeros((9, 2), int), "observations/top": np.zeros((9, 4, 4, 3), "u1"), "patient": "p1"},
        )
    elif change == "goes":
        (folder / "episode_1.hdf5").unlink()
    else:
        write(
            folder / "episode_3.hdf5",
            {"action": np.zeros((2, 2), int), "observations/top": np.zeros((2, 4, 4, 3), "u1"), "patient": "p3"},
        )
    with pytest.raises(errors.UnavailableError):
        pickle.loads(pickled).get_many([6])
    assert len(open_backend(folder, columns=EPISODES)) == {"grows": 21, "goes": 12, "comes": 20}[change]


def test_a_file_that_is_replaced_between_two_reads_is_noticed(folder: Path) -> None:
    store: Any = open_backend(folder, columns={"action": "episode_{episode}.hdf5::action[]"})
    assert store.get_many([0], ["action"])[0]["action"].tolist() == [0, 0]
    write(folder / "episode_2.hdf5", {"action": np.full((7, 2), 9)})
    with pytest.raises(errors.UnavailableError, match=r"episode_2\.hdf5 was replaced while in use or changed"):
        store.get_many([17])


@pytest.mark.parametrize(
    ("where", "columns", "message"),
    [
        ("", {"a": "{x}.h5::action[]"}, r"no file matches .*: \S+ holds episode_0\.hdf5"),
        ("", {"a": "{e}.hdf5::action[]", "b": "{e}.hdf5::nothing[]"}, r"episode_0\.hdf5::/ has no 'nothing'"),
        ("", {"a": "action[]", "b": "{e}.hdf5::b"}, "is a folder: each place"),
        ("/episode_1.hdf5", {"a": "{e}.hdf5::action[]"}, "name the folder that holds them"),
        ("", {"a": "{e}.hdf5::nothing[]"}, "no dataset has rows"),
        ("", {"a": "{e}.hdf5::{e}/x"}, "is there twice"),
    ],
)
def test_what_fits_no_file_is_an_error(folder: Path, where: str, columns: dict[str, str], message: str) -> None:
    with pytest.raises(errors.StoredsError, match=message):
        open_backend(f"{folder}{where}", columns=columns)


def test_folders_join_and_other_ways_to_read_them_are_errors(folder: Path) -> None:
    both: Any = open_backend([folder, f"{folder}/*_1.hdf5"], columns=EPISODES)
    with both:
        assert both.column("episode").tolist() == [0] * 5 + [1] * 6 + [2] * 7 + [1] * 6
    with pytest.raises(errors.ConfigError, match="leave out layout='per_episode'"):
        open_backend(folder, columns=EPISODES, layout="per_episode")
    with pytest.raises(errors.FormatError, match=r"columns=\{'\*': '\{file\}\.hdf5::\*\*\[\]'\}"):
        open_backend(folder)


def test_verify_and_info_take_a_folder_of_files(folder: Path) -> None:
    options = {"columns": EPISODES}
    assert storeds.verify(folder, options=options).ok
    assert storeds.info(folder, options=options).count == sum(STEPS)


def test_the_files_of_stores_on_servers_and_disks_are_told_apart(folder: Path, mongodb: str) -> None:
    url = make_store({"x": "int"}, [{"x": 1}], f"{mongodb}/files_{os.getpid()}/x")
    other = make_store({"x": "int"}, [{"x": 2}], f"lmdb://{folder}/x.lmdb")
    both: Any = open_backend([url, other])
    with both:
        assert len({*both.column("file").tolist()}) == 2


def test_a_file_that_differs_is_an_error(folder: Path) -> None:
    write(
        folder / "episode_1.hdf5", {"action": np.zeros((6, 3), "f4"), "observations/top": np.zeros((6, 4, 4, 3), "u1")}
    )
    with pytest.raises(
        errors.FormatError, match=r"episode_1\.hdf5::/action holds float32 \[6, 3\], unlike field 'action'"
    ):
        open_backend(folder, columns=EPISODES)


# Ranges.

LENGTHS = np.array([3, 0, 5, 2])
ENDS = np.cumsum(LENGTHS)
STARTS = ENDS - LENGTHS


@pytest.fixture
def flat(tmp_path: Path) -> Path:
    table = np.zeros(10, [("t", "f4"), ("p", "i2")])
    table["t"], table["p"] = np.arange(10) / 10, np.arange(10)
    write(tmp_path / "a.h5", {"id": np.arange(4), "x": np.arange(10.0), "table": table})
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file.create_dataset("wide", data=np.arange(20).reshape(10, 2), chunks=(4, 2), compression="gzip")
        file["n"], file["ends"], file["starts"], file["indptr"] = LENGTHS, ENDS, STARTS, np.append(0, ENDS)
        file["real"], file["half"] = ENDS.astype("f8"), ENDS / 2
        file["endless"] = np.append(ENDS[:-1], np.inf)
        file["both"] = np.stack([STARTS, ENDS], axis=1)
    return tmp_path / "a.h5"


@pytest.mark.parametrize(
    "ranges",
    [
        "ends: ends",
        "ends: real",
        "lengths: n",
        "offsets: indptr",
        "starts: starts, ends: ends",
        "starts: starts, lengths: n",
        "starts: both/0, ends: both/1",
    ],
)
def test_a_record_is_a_range_of_rows(flat: Path, ranges: str) -> None:
    columns = {"id": "id[]", "x": f"x[{ranges}]", "wide": f"wide[{ranges}]", "t": f"table/t[{ranges}]"}
    with open_backend(flat, columns=columns) as store:
        records: Any = store.get_many([2, 0, 1, 3])
        for record in records:
            rows = slice(STARTS[record["id"]], ENDS[record["id"]])
            np.testing.assert_array_equal(record["x"], np.arange(10.0)[rows])
            np.testing.assert_array_equal(record["wide"], np.arange(20).reshape(10, 2)[rows])
            np.testing.assert_array_equal(record["t"], (np.arange(10) / 10).astype("f4")[rows])
        used = {part.split()[1].partition("/")[0] for part in ranges.split(", ")}
        assert not used & {each.partition(" ")[0] for each in store.unread()}  # type: ignore[attr-defined]


def test_opening_offers_the_ranges_that_fit(flat: Path) -> None:
    with h5py.File(flat, "a") as file:
        for name in ("ends", "real", "half", "endless", "both", "starts", "indptr", "table", "wide"):
            del file[name]
    with pytest.raises(errors.ConfigError, match=r"columns=\{'id': 'id\[\]', 'x': 'x\[lengths: n\]'\}\)  # 4 records"):
        open_backend(flat)


def test_opening_offers_the_column_of_several_lengths_that_fits(tmp_path: Path) -> None:
    lengths = np.stack([LENGTHS, LENGTHS[::-1] + 1], axis=1)  # as RETURNN writes those of inputs and targets
    write(tmp_path / "a.h5", {"inputs": np.zeros((10, 2)), "targets": np.arange(14), "seqLengths": lengths})
    line = r"'inputs': 'inputs\[lengths: seqLengths/0\]', 'targets': 'targets\[lengths: seqLengths/1\]'"
    with pytest.raises(errors.ConfigError, match=line):
        open_backend(tmp_path / "a.h5")


def test_ranges_that_share_their_rows_take_no_more_memory_than_the_file_can_hold(tmp_path: Path) -> None:
    count = 4_000_000
    write(tmp_path / "a.h5", {"x": np.zeros(count, "u1"), "starts": np.zeros(50_000, int), "n": np.full(50_000, count)})
    with open_backend(tmp_path / "a.h5", columns={"x": "x[starts: starts, lengths: n]"}) as store:
        (last,) = store.get_many([49_999], ["x"])
        assert isinstance(last, dict)
        assert len(last["x"]) == count
        with pytest.raises(errors.FormatError, match="more than .* can hold"):
            store.get_many(range(50_000))


def test_an_index_of_nwb_bounds_its_column(tmp_path: Path) -> None:
    write(tmp_path / "a.nwb", {"units/id": np.arange(4), "units/times": np.arange(10.0), "units/times_index": ENDS})
    with h5py.File(tmp_path / "a.nwb", "a") as file:
        file["units/times_index"].attrs["neurodata_type"] = "VectorIndex"
    with open_backend(tmp_path / "a.nwb", columns={"*": "units/**[]"}) as store:
        assert store.get_many([2]) == [{"id": 2, "times": pytest.approx([3, 4, 5, 6, 7])}]


def test_ranges_of_each_file(tmp_path: Path) -> None:
    for number in range(3):
        write(
            tmp_path / f"d/{number}.h5",
            {"x": np.arange(6) + 10 * number, "n": np.array([2 + number, 1, 3 - number])},
        )
    with open_backend(tmp_path / "d", columns={"x": "{session}.h5::x[lengths: n]"}) as store:
        found: Any = store.get_many(range(9))
        assert [each["x"].tolist() for each in found[6:]] == [[20, 21, 22, 23], [24], [25]]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("x[ends: nothing]", "has no 'nothing'"),
        ("x[ends: half]", "holds one whole number for each record"),
        ("x[ends: endless]", "holds one whole number for each record"),
        ("x[length: n]", "a range has starts, ends, lengths, offsets"),
        ("x[starts: starts, ends: indptr]", "have 4 and 5 rows"),
        ("x[starts: starts]", "a range has ends, lengths or offsets"),
        ("x[ends: ends, size: n]", "a range has starts, ends, lengths, offsets"),
        ("x[ends: ends][]", "x"),
    ],
)
def test_ranges_that_say_nothing_are_errors(flat: Path, place: str, message: str) -> None:
    with pytest.raises((errors.ConfigError, errors.FormatError), match=message):
        open_backend(flat, columns={"id": "id[]", "x": place})


def test_a_range_that_leaves_its_dataset_is_a_bad_record_and_spare_rows_are_reported(flat: Path) -> None:
    with h5py.File(flat, "a") as file:
        file["far"], file["few"], file["back"] = np.array([3, 3, 8, 15]), np.array([3, 3, 8, 9]), ENDS[::-1]
    with open_backend(flat, columns={"far": "x[ends: far]", "back": "x[ends: back]"}) as store:
        found = store.get_many(range(4))
        assert [isinstance(each, errors.RecordError) for each in found] == [False, True, True, True]
        assert "its range is rows 8 to 15, of 10" in str(found[3])
        assert not any("in no range" in each for each in store.unread())  # type: ignore[attr-defined]
    few: Any = open_backend(flat, columns={"x": "x[ends: few]"})
    with few as store:
        assert "1 rows of x[ends: few], which are in no range" in store.describe().unread
