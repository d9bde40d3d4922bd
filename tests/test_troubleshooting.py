"""Each message in docs/troubleshooting.md: another library really prints it, and storeds does not in the same situation."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

import storeds
from storeds.errors import FormatError

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
COUNT = 40
TESTED: set[str] = set()


def reproduces(heading: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Note that a test reproduces the message in a heading of the page."""
    TESTED.add(heading)
    return lambda test: test


def output_of(program: str, folder: Path, *, before: tuple[str, ...] = ()) -> str:
    """Run a Python program in a process of its own; return everything that it prints."""
    (folder / "program.py").write_text(program)
    command = [*before, sys.executable, "-W", "always", "program.py"]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=150, check=False
    )
    return done.stdout


def jpeg() -> bytes:
    file = io.BytesIO()
    Image.effect_noise((160, 120), 40).convert("RGB").save(file, "JPEG")
    return file.getvalue()


def write_store(folder: Path, engine: str) -> str:
    """Write a small store of pictures; return its URL."""
    url = f"{engine}://{folder}/photos.{engine}"
    picture = jpeg()
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append({"image": picture, "label": n} for n in range(COUNT))
    return url


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_store(tmp_path_factory.mktemp("store"), "lmdb")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Return a folder with ``data.h5``, in compressed rows that repeat their own number, and ``data.lmdb``."""
    program = """
import h5py, lmdb, numpy as np
with h5py.File("data.h5", "w") as file:
    file.create_dataset("x", data=np.arange(2000).repeat(500).reshape(2000, 500), chunks=(1, 500), compression="gzip")
with lmdb.open("data.lmdb") as environment, environment.begin(write=True) as txn:
    txn.put(b"0", b"value")
"""
    assert output_of(program, tmp_path) == ""
    return tmp_path


def read_all(dataset: storeds.StoreDataset, results: Any) -> None:
    results.put([label for _, label in dataset[:]])


def labels_in_a_process(dataset: storeds.StoreDataset, method: str) -> list[int]:
    """Return the labels that a child process reads, which `method` starts."""
    context: Any = multiprocessing.get_context(method)
    results = context.Queue()
    child = context.Process(target=read_all, args=(dataset, results))
    child.start()
    labels: list[int] = results.get(timeout=150)
    child.join()
    return labels


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ('import lmdb, pickle; pickle.dumps(lmdb.open("data.lmdb"))', "cannot pickle 'Environment' object"),
        ('import h5py, pickle; pickle.dumps(h5py.File("data.h5"))', "h5py objects cannot be pickled"),
    ],
)
@reproduces("can't pickle Environment objects")
@reproduces("h5py objects cannot be pickled")
def test_open_handles_cannot_be_pickled(files: Path, program: str, message: str) -> None:
    assert message in output_of(program, files)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_a_dataset_that_was_read_from_works_in_a_spawned_process(engine: str, tmp_path: Path) -> None:
    dataset = storeds.StoreDataset(write_store(tmp_path, engine))
    assert dataset[3][1] == 3
    assert len(pickle.dumps(dataset)) < 20_000
    assert labels_in_a_process(dataset, "spawn") == list(range(COUNT))


@reproduces("wrong data with HDF5 and workers")
def test_a_forked_hdf5_file_gives_wrong_rows(files: Path) -> None:
    program = """
import os, h5py, numpy as np
rows = h5py.File(open("data.h5", "rb"), "r")["x"]
rows[0]
children = []
for number in range(4):
    children.append(os.fork())
    if not children[-1]:
        for row in np.random.default_rng(number).integers(0, 2000, 3000):
            try:
                if rows[row][0] != row:
                    print("wrong row", flush=True)
                    break
            except OSError as error:
                print(error, flush=True)
                break
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""
    output = output_of(program, files)
    assert "wrong row" in output or "Can't synchronously read data" in output


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_forked_workers_read_the_right_records(engine: str, tmp_path: Path) -> None:
    dataset = storeds.StoreDataset(write_store(tmp_path, engine))
    assert dataset[3][1] == 3  # the handle is open when the workers start
    for _ in range(2):
        assert labels_in_a_process(dataset, "fork") == list(range(COUNT))


@reproduces("unable to lock file")
def test_a_file_that_is_open_elsewhere_cannot_be_opened_for_writing(files: Path) -> None:
    program = """
import h5py, subprocess, sys
file = h5py.File("data.h5")
subprocess.run([sys.executable, "-c", 'import h5py; h5py.File("data.h5", "r+")'])
"""
    assert "unable to lock file" in output_of(program, files)


def test_a_published_file_is_read_while_its_replacement_is_written(tmp_path: Path) -> None:
    url = f"hdf5://{tmp_path}/x.h5"
    for value in (1, 2):
        with storeds.open_writer(url, {"label": "int"}, overwrite=True) as writer:
            writer.append([{"label": value}])
            if value == 2:
                with storeds.open_backend(url) as backend:
                    assert backend.get_many([0])[0] == {"label": 1}
    with storeds.open_backend(url) as backend:
        assert backend.get_many([0])[0] == {"label": 2}


@reproduces("Indexing elements must be in increasing order")
def test_h5py_refuses_a_shuffled_batch_and_storeds_reads_it(files: Path) -> None:
    assert "Indexing elements must be in increasing order" in output_of(
        'import h5py; h5py.File("data.h5")["x"][[3, 1, 3]]', files
    )
    with storeds.open_backend(f"hdf5://{files}/data.h5", layout="parallel") as backend:
        records = backend.get_many([3, 1, 3])
    assert [int(record["x"][0]) for record in records if isinstance(record, dict)] == [3, 1, 3]


@reproduces("VLEN strings do not support embedded NULLs")
def test_pictures_in_hdf5_strings(tmp_path: Path) -> None:
    program = 'import h5py; h5py.File("s.h5", "w")["image"] = b"\\xff\\xd8\\x00\\x01"'
    assert "VLEN strings do not support embedded NULLs" in output_of(program, tmp_path)
    with storeds.open_writer(f"hdf5://{tmp_path}/x.h5", {"image": "bytes"}) as writer:
        writer.append([{"image": b"\xff\xd8\x00\x01"}])
    with storeds.open_backend(f"hdf5://{tmp_path}/x.h5") as backend:
        assert backend.get_many([0])[0] == {"image": b"\xff\xd8\x00\x01"}


@reproduces("is already open in this process")
def test_one_lmdb_is_opened_for_training_and_validation(files: Path, store: str) -> None:
    program = 'import lmdb; first = lmdb.open("data.lmdb"); lmdb.open("data.lmdb")'
    assert "is already open in this process" in output_of(program, files)
    train, val = storeds.StoreDataset(store), storeds.StoreDataset(store)
    assert (train[1][1], val[2][1]) == (1, 2)


@reproduces("MDB_READERS_FULL")
def test_readers_of_lmdb_need_no_slots(files: Path, store: str) -> None:
    program = """
import lmdb, os
os.remove("data.lmdb/lock.mdb")
environment = lmdb.open("data.lmdb", max_readers=1)
transactions = [environment.begin() for _ in range(300)]
"""
    assert "MDB_READERS_FULL" in output_of(program, files)
    datasets = [storeds.StoreDataset(store) for _ in range(300)]
    assert [dataset[0][1] for dataset in datasets] == [0] * 300


@reproduces("MDB_MAP_FULL")
def test_a_writer_of_lmdb_grows_its_map(tmp_path: Path) -> None:
    program = """
import lmdb
with lmdb.open("x.lmdb", map_size=1 << 15).begin(write=True) as txn:
    for number in range(100):
        txn.put(b"%d" % number, bytes(4000))
"""
    assert "MDB_MAP_FULL" in output_of(program, tmp_path)
    with storeds.open_writer(f"lmdb://{tmp_path}/y.lmdb", {"x": "bytes"}) as writer:
        writer.append({"x": bytes(1 << 20)} for _ in range(20))
    with storeds.open_backend(f"lmdb://{tmp_path}/y.lmdb") as backend:
        assert len(backend) == 20


@reproduces("MongoClient opened before fork")
def test_a_mongodb_client_is_used_after_a_fork(tmp_path: Path, mongodb: str, mongodb_database: str) -> None:
    program = f"""
import os, pymongo
client = pymongo.MongoClient({mongodb!r})
client.admin.command("ping")
if not os.fork():
    client.admin.command("ping")
    os._exit(0)
os.wait()
"""
    assert "MongoClient opened before fork" in output_of(program, tmp_path)
    head, _, options = mongodb_database.partition("?")
    url = f"{head}/photos" + (f"?{options}" if options else "")
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append({"image": jpeg(), "label": n} for n in range(8))
    dataset = storeds.StoreDataset(url)
    assert dataset[3][1] == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert labels_in_a_process(dataset, "fork") == list(range(8))


@reproduces("CursorNotFound")
@reproduces("BSON document too large")
def test_cursors_expire_and_documents_have_a_limit(tmp_path: Path, mongodb: str, mongodb_database: str) -> None:
    program = f"""
import pymongo
database = pymongo.MongoClient({mongodb!r})["troubleshooting"]
database.a.drop()
database.a.insert_many([{{}} for _ in range(100)])
cursor = database.a.find(batch_size=10)
next(cursor)
database.command("killCursors", "a", cursors=[cursor.cursor_id])  # as the server does after ten minutes
for action in (lambda: list(cursor), lambda: database.a.insert_one({{"x": bytes(17 << 20)}})):
    try:
        action()
    except pymongo.errors.PyMongoError as error:
        print(type(error).__name__, error)
database.client.drop_database("troubleshooting")
"""
    output = output_of(program, tmp_path)
    assert "CursorNotFound" in output
    assert "BSON document too large" in output
    head, _, options = mongodb_database.partition("?")
    url = f"{head}/large" + (f"?{options}" if options else "")
    with storeds.open_writer(url, {"x": "bytes"}) as writer:
        writer.append([{"x": bytes(17 << 20)}])
    with storeds.open_backend(url) as backend:
        assert backend.get_many([0])[0] == {"x": bytes(17 << 20)}


@reproduces("image file is truncated")
def test_a_cut_picture_is_repaired_or_reported(tmp_path: Path) -> None:
    whole = jpeg()
    url = f"lmdb://{tmp_path}/x.lmdb"
    cut = whole[: len(whole) * 3 // 4]
    with pytest.raises(OSError, match="image file is truncated"):
        Image.open(io.BytesIO(cut)).load()
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append([{"image": cut, "label": 0}, {"image": whole[: len(whole) // 4], "label": 1}])
    dataset = storeds.StoreDataset(url, min_recovered=0.5)
    assert dataset[0][0].size == (160, 120)
    with pytest.raises(storeds.errors.RecordError, match=re.escape(str(tmp_path))):
        dataset[1]


IN_BATCHES = """
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 300
    def __getitem__(self, index):
        {body}

if __name__ == "__main__":
    {before}
    batches = list(DataLoader(Numbers(), batch_size={batch_size}, num_workers=1))
"""


@reproduces("a pause of 5 seconds for each worker, after an error")
def test_workers_outlive_an_error(tmp_path: Path) -> None:
    program = """
import gc, multiprocessing
from torch.utils.data import DataLoader
from storeds import StoreLoader

class Bad:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        raise LookupError("bad")

gc.disable()
for loader in StoreLoader(Bad(), num_workers=2), DataLoader(Bad(), num_workers=2):
    try:
        list(loader)
    except LookupError:
        pass
    print(len(multiprocessing.active_children()), "workers after an error")
"""
    found = output_of(program, tmp_path)
    assert [line for line in found.splitlines() if "workers" in line] == [
        "0 workers after an error",
        "2 workers after an error",
    ], found


@reproduces("received 0 items of ancdata, Too many open files")
def test_kept_batches_use_up_file_descriptors(tmp_path: Path, store: str) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
    bare = IN_BATCHES.format(body="return torch.zeros(2)", before=limit, batch_size=1)
    assert re.search("Too many open files|received 0 items of ancdata", output_of(bare, tmp_path))
    program = f"""
{limit}
import storeds
dataset = storeds.StoreDataset({store!r}, transform="ToTensor")
print(len(list(storeds.ThreadLoader(dataset, batch_size=1, num_workers=1))) + len(list(storeds.ThreadLoader(dataset, batch_size=1, num_workers=1))))
"""
    assert f"{2 * COUNT}\n" in output_of(program, tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can replace /dev/shm by a small one")
@reproduces("Bus error, unable to allocate shared memory")
def test_shared_memory_is_full(tmp_path: Path, store: str) -> None:
    small = ("unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "bash")
    bare = IN_BATCHES.format(body="return torch.zeros(3, 224, 224)", before="pass", batch_size=10)
    output = output_of(bare, tmp_path, before=small)
    if "mount:" in output or "unshare:" in output:
        pytest.skip(f"this container may not mount: {output}")
    assert re.search("Bus error|unable to allocate shared memory", output)
    program = f"""
import storeds
dataset = storeds.StoreDataset({store!r}, transform=[{{"name": "Resize", "size": [224, 224]}}, "ToTensor"])
for kind in (storeds.ThreadLoader, storeds.StoreLoader):
    print(sum(len(labels) for _, labels in kind(dataset, batch_size=20, num_workers=1)))
"""
    assert f"{COUNT}\n{COUNT}\n" in output_of(program, tmp_path, before=small)


@reproduces("DataLoader worker is killed, exited unexpectedly")
def test_a_killed_worker_is_reported(tmp_path: Path) -> None:
    body = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out"
    bare = IN_BATCHES.format(body=body, before="pass", batch_size=1)
    assert re.search(r"DataLoader worker \(pid.*\) (is killed|exited unexpectedly)", output_of(bare, tmp_path))


def test_a_pickled_dataset_is_small_whatever_the_number_of_records(tmp_path: Path) -> None:
    sizes = []
    for count in (10, 20_000):
        url = f"lmdb://{tmp_path}/{count}.lmdb"
        with storeds.open_writer(url, {"label": "int"}) as writer:
            writer.append({"label": n} for n in range(count))
        sizes.append(len(pickle.dumps(storeds.StoreDataset(url, reader="array"))))
    assert sizes[1] - sizes[0] < 200


@reproduces("found <class 'NoneType'>")
def test_a_batch_without_its_bad_samples(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="found <class 'NoneType'>"):
        torch.utils.data.default_collate([None, torch.zeros(2)])
    url = f"lmdb://{tmp_path}/x.lmdb"
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append([{"image": picture, "label": n} for n, picture in enumerate([jpeg(), b"no picture", jpeg()])])
    dataset = storeds.StoreDataset(url, transform="ToTensor", on_error="skip")
    [(_, labels)] = storeds.StoreLoader(dataset, batch_size=3)
    assert labels.tolist() == [0, 2]
    assert dataset.report().skipped == 1


@reproduces("stack expects each tensor to be equal size")
def test_pictures_of_different_sizes(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        torch.utils.data.default_collate([torch.zeros(2), torch.zeros(3)])
    url = f"lmdb://{tmp_path}/x.lmdb"
    with storeds.open_writer(url, {"x": {"kind": "array", "dtype": "float32", "shape": [None]}}) as writer:
        writer.append({"x": np.zeros(size, "float32")} for size in (2, 3))
    dataset = storeds.StoreDataset(url, reader="array", fields=["x"])
    [(padded,)] = storeds.StoreLoader(dataset, batch_size=2, collate_fn=storeds.collate)
    assert padded.values.shape == (2, 3)


@reproduces("The given NumPy array is not writable")
def test_arrays_are_writable(tmp_path: Path) -> None:
    program = 'import numpy, torch; torch.from_numpy(numpy.frombuffer(b"12345678", "uint8"))'
    assert "The given NumPy array is not writable" in output_of(program, tmp_path)
    url = f"hdf5://{tmp_path}/x.h5"
    with storeds.open_writer(url, {"x": {"kind": "array", "dtype": "float32", "shape": [3]}}) as writer:
        writer.append([{"x": np.zeros(3, "float32")}])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (x,) = storeds.StoreDataset(url, reader="array", fields=["x"])[0]
    x += 1


@reproduces("truncated file: eof")
def test_a_cut_hdf5_file(files: Path) -> None:
    whole = (files / "data.h5").read_bytes()
    (files / "data.h5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="truncated file: eof"):
        h5py.File(files / "data.h5")
    with pytest.raises(FormatError, match=r"data\.h5"):
        storeds.open_backend(f"hdf5://{files}/data.h5")


def headings() -> Iterator[str]:
    for line in PAGE.read_text().splitlines():
        if line.startswith("### "):
            yield line.removeprefix("### ").replace("`", "")


def test_every_heading_of_the_page_is_reproduced() -> None:
    untested = {"LMDB is slow on NFS"}  # no NFS server here
    assert set(headings()) == TESTED | untested
