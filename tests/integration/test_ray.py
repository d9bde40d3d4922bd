"""A Ray cluster packs a store whatever happens to its machines, and reads it; skipped without Ray."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import storeds
import storeds.ray
from _packing import storeds_command, storeds_json
from _writing import fork, wait_for
from make_store import make_store
from mask_files import write
from storeds import errors, ops
from storeds.backends.staging import active_writer

pytestmark = pytest.mark.filterwarnings("default")  # those of Ray are not ours


SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20}


class Slow:
    """A data set object whose items take a moment, and that notes which machine read which item."""

    def __init__(self, notes: Path, count: int) -> None:
        self.notes, self.count, self.pause = notes, count, 0.05

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        node = importlib.import_module("ray").get_runtime_context().get_node_id()
        with open(self.notes, "a") as file:
            file.write(f"{index} {node}\n")
        time.sleep(self.pause)
        return {"key": f"{index:03}", "n": index}

    def read(self) -> list[list[str]]:
        return [line.split() for line in self.notes.read_text().splitlines()] if self.notes.exists() else []


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster of two machines with a CPU each, to which this process is connected."""
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'storeds[ray]'")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    found = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={**SMALL, "include_dashboard": False}
    )
    try:
        found.add_node(**SMALL)
        ray.init(found.address)
        found.wait_for_nodes()
        yield found
    finally:
        ray.shutdown()
        found.shutdown()


def pictures(path: Path, count: int = 11) -> Path:
    return write(path, {f"class{n % 3}/{n:02}.jpg": n for n in range(count)})


def rows_of(url: Any, **options: Any) -> list[dict[str, Any]]:
    return ordered(storeds.ray.read(url, **options))


def ordered(dataset: Any) -> list[dict[str, Any]]:
    """Return the rows by number: Ray yields blocks as they end."""
    return sorted(dataset.take_all(), key=lambda row: int(row["n"]))


def test_packing_needs_a_cluster(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    url = f"lmdb://{tmp_path}/store/"
    with pytest.raises(errors.UnavailableError, match="no Ray cluster at auto: `ray start` starts one"):
        storeds.ray.pack(pictures(tmp_path / "source"), url)
    assert "UnavailableError: no Ray cluster" in storeds_command(
        "pack", tmp_path / "source", url, "--ray", "auto", code=4
    )


def test_ray_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "ray.data", None)
    for use in (
        lambda: storeds.ray.pack(tmp_path, f"lmdb://{tmp_path}/store/"),
        lambda: storeds.ray.read(tmp_path / "store"),
    ):
        with pytest.raises(errors.MissingDependencyError, match=r"pip install 'storeds\[ray\]'"):
            use()


@pytest.mark.parametrize("options", [{"part": "1/2"}, {"parts": 0}], ids=str)
def test_all_parts_are_written(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="packing with Ray writes all parts"):
        storeds.ray.pack(tmp_path, f"lmdb://{tmp_path}/store/", **options)


def test_a_part_waits_for_a_task_that_outlives_its_machine(tmp_path: Path) -> None:
    source, url = pictures(tmp_path / "source"), f"lmdb://{tmp_path}/store/"
    child = fork(lambda: storeds.pack(source, url, part="1/1", progress=lambda _: time.sleep(1)))
    while not any(
        map(active_writer, (tmp_path / "store/members" / name for name in staged(tmp_path / "store/members")))
    ):
        time.sleep(0.01)
    packed, _ = storeds.ray._pack_part((os.getcwd(), source, url, {}), "1/1")
    assert wait_for(child) == 0
    assert not isinstance(packed, errors.RecordError)
    assert (packed.count, packed.notes) == (11, ("an earlier run had written these records",))


def staged(folder: Path) -> list[str]:
    """Return the names of the stores that are being written."""
    return [path.name.removeprefix(".").removesuffix(".partial") for path in folder.glob(".*.partial")]


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_the_parts_of_a_cluster_have_the_id_of_one_process(
    cluster: Any, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, seen = pictures(tmp_path / "source"), list[tuple[int, int]]()
    whole = storeds.pack(source, tmp_path / "whole.lmdb")
    monkeypatch.chdir(tmp_path)
    packed = storeds.ray.pack(
        "source", f"{engine}://store/", progress=lambda each: seen.append((each.done, each.total))
    )
    assert (packed.id, packed.count, packed.build) == (whole.id, 11, "version 1")
    assert packed.findings == storeds.pack(source, tmp_path / "again.lmdb").findings
    assert seen == [(1, 2), (2, 2)]
    assert len(storeds.ray.read(f"{engine}://store/").materialize().get_internal_block_refs()) == 2
    with pytest.raises(errors.StoreExistsError, match=r"part \d/2: .* has these records already"):
        storeds.ray.pack(source, f"{engine}://store/")


@contextmanager
def dying_machine(cluster: Any, source: Slow) -> Iterator[Callable[[], list[int]]]:
    """Add a machine, and kill it when it has written some of a part. Gives what returns the items that it has read."""
    node = cluster.add_node(**SMALL)
    cluster.wait_for_nodes()

    def read_there() -> list[int]:
        return [int(index) for index, name in source.read() if name == node.node_id]

    def kill() -> None:  # items in a row: before, it looks at single ones
        while sum(two == one + 1 for one, two in itertools.pairwise(read_there())) < 5:
            time.sleep(0.01)
        cluster.remove_node(node, allow_graceful=False)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    yield read_there
    killer.join()


@pytest.mark.parametrize("retries", [3, 0])
def test_a_machine_that_dies_loses_nothing(cluster: Any, retries: int, tmp_path: Path) -> None:
    source, url = Slow(tmp_path / "notes", 120), f"lmdb://{tmp_path}/store/"
    importlib.import_module("ray.cloudpickle").register_pickle_by_value(sys.modules[__name__])
    with dying_machine(cluster, source) as read_there:
        if retries:
            packed = storeds.ray.pack(source, url, parts=3, commit_every=1)
        else:
            with pytest.raises(errors.UnavailableError, match=r"part \d/3: "):
                storeds.ray.pack(source, url, parts=3, commit_every=1, retries=0)
    lost = read_there()
    assert lost[-1] % 40 < 30  # it was killed midway
    if not retries:
        packed = storeds.ray.pack(source, url, parts=3, commit_every=1)
    assert lost[-1] + 1 in [int(index) for index, _ in source.read()[-120:]]
    source.pause = 0
    whole = storeds.pack(source, tmp_path / "whole.lmdb")
    assert (packed.id, packed.count, packed.build) == (whole.id, 120, "version 1")
    assert storeds.verify(url).ok
    assert rows_of(url) == [{"key": f"{n:03}", "n": n} for n in range(120)]


class Unavailable(Slow):
    """A data set object that cannot be read at first, as a server that starts."""

    def __len__(self) -> int:
        if len(self.read()) < 2:
            self.notes.open("a").write("0 none\n")
            raise errors.UnavailableError("the server starts")
        return super().__len__()


def test_a_part_whose_source_is_unavailable_is_tried_again(cluster: Any, tmp_path: Path) -> None:
    importlib.import_module("ray.cloudpickle").register_pickle_by_value(sys.modules[__name__])
    url = f"hdf5://{tmp_path}/store/"
    with pytest.raises(errors.UnavailableError, match="part 1/1: the server starts"):
        storeds.ray.pack(Unavailable(tmp_path / "a", 3), url, parts=1, retries=0)
    assert storeds.ray.pack(Unavailable(tmp_path / "b", 3), url, parts=1, retries=2).count == 3


def test_bad_items_are_reported_with_their_parts_and_the_other_parts_stay(cluster: Any, tmp_path: Path) -> None:
    source, url = pictures(tmp_path / "source"), f"lmdb://{tmp_path}/store/"
    bad = [source / "class0/00.jpg", source / "class2/08.jpg"]
    for path in bad:
        path.write_bytes(b"")
    with pytest.raises(errors.RecordError) as caught:
        storeds.ray.pack(source, url, parts=4)
    text = str(caught.value)
    assert type(caught.value) is errors.RecordError
    assert "part 1/4: 1 of 2 items cannot be packed" in text
    assert "part 4/4: 1 of 3 items cannot be packed" in text
    assert len(ops.members.unpublished_parts(ops.growing.folder_of(url)).popitem()[1]) == 2
    problems: list[Any] = []
    packed = storeds.ray.pack(source, url, on_bad="skip", on_problem=problems.append)  # goes on with four parts
    assert (packed.count, packed.left_out, sum(packed.reasons.values())) == (9, 2, 2)
    assert sorted(each.name for each in problems) == ["class0/00.jpg", "class2/08.jpg"]
    assert packed.id == storeds.pack(source, tmp_path / "whole.lmdb", on_bad="skip").id


def test_the_command_line_packs_on_a_cluster(cluster: Any, tmp_path: Path) -> None:
    source, url = pictures(tmp_path / "source"), f"hdf5://{tmp_path}/store/"
    done = storeds_json("pack", source, url, "--ray", cluster.address)
    assert (done["count"], done["id"]) == (11, storeds.pack(source, tmp_path / "whole.h5").id)


FIELDS: dict[str, Any] = {
    "key": "str",
    "blob": "bytes",
    "n": "int",
    "x": "float",
    "flag": "bool",
    "fixed": {"kind": "array", "dtype": "<f4", "shape": [2, 3]},
    "ragged": {"kind": "array", "dtype": "|u1", "shape": [None, 2]},
    "notes": "json",
}


def record(n: int) -> dict[str, Any]:
    return {
        **{"key": f"ключ {n}", "blob": b"\0" * (n % 5), "n": 2**62 + n, "x": n / 7, "flag": n % 2 == 0},
        **{"fixed": np.full((2, 3), n, "<f4"), "ragged": np.full((n % 4, 2), n % 256, "|u1")},
        "notes": {"b": [n, None], "a": {"deep": True}},
    }


def assert_equal(row: dict[str, Any], n: int) -> None:
    expected = record(n)
    assert list(row) == list(FIELDS)
    for name, value in expected.items():
        if isinstance(value, np.ndarray):
            assert (row[name].dtype, row[name].shape) == (value.dtype, value.shape)
            assert np.array_equal(row[name], value)
        elif name == "notes":
            assert json.loads(row[name]) == value
        else:
            assert row[name] == value


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_every_record_is_read_once(cluster: Any, engine: str, tmp_path: Path) -> None:
    plain = make_store(FIELDS, map(record, range(50)), f"{engine}://{tmp_path}/plain.{engine}")
    url = f"{engine}://{tmp_path}/store/"
    for start, stop in ((0, 20), (20, 21), (21, 50)):
        each = make_store(FIELDS, map(record, range(start, stop)), f"{engine}://{tmp_path}/{start}.{engine}")
        ops.merge(url, each, move=True)
    for store in (plain, url):
        dataset = storeds.ray.read(store)
        assert dataset.count() == 50
        for n, row in enumerate(ordered(dataset)):
            assert_equal(row, n)
    (tmp_path / "drop.txt").write_text("".join(f"ключ {n}\n" for n in (0, 20, 49)))
    kept = storeds.ray.read(url, fields=["n"])
    ops.edit(url, drop=tmp_path / "drop.txt", set={"ключ 7": {"x": 0.5}})
    assert [row["n"] - 2**62 for row in ordered(kept)] == [*range(50)]  # the version that was opened
    rows = rows_of(url, fields=["x", "n"])
    assert [row["n"] - 2**62 for row in rows] == [n for n in range(50) if n not in (0, 20, 49)]
    assert {row["n"] - 2**62: row["x"] for row in rows}[7] == 0.5


def test_a_bad_record_raises_and_an_unknown_field_too(cluster: Any, tmp_path: Path) -> None:
    url = make_store(
        {"n": "int", "blob": "bytes"},
        ({"n": n, "blob": bytes([n]) * 999} for n in range(9)),
        f"lmdb://{tmp_path}/a.lmdb",
    )
    data = (tmp_path / "a.lmdb").read_bytes()
    (tmp_path / "a.lmdb").write_bytes(data.replace(b"\5" * 999, b"\5" * 998 + b"\6"))
    with pytest.raises(errors.RecordError, match="record 5 of lmdb://"):
        rows_of(url)
    with pytest.raises(errors.ConfigError, match="has no field 'm'"):
        storeds.ray.read(url, fields=["m"])


def test_an_empty_store_is_a_dataset_without_rows(cluster: Any, tmp_path: Path) -> None:
    url = make_store(FIELDS, (), f"lmdb://{tmp_path}/empty.lmdb")
    assert storeds.ray.read(url).count() == 0
    assert rows_of(url) == []
