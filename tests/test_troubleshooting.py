"""Each message in docs/troubleshooting.md: another library really raises or prints it.

That storeds does not in the same situation is tested where its packages are, except where the situation is a small limit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pytest
import torch

from make_store import make_store
from photographs import jpeg

PAGE = Path(__file__).parents[1] / "docs" / "troubleshooting.md"
COUNT = 40


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a new working directory with ``data.h5``, in compressed rows that repeat their own number, and ``data.lmdb``."""
    with h5py.File(tmp_path / "data.h5", "w") as file:
        rows = np.arange(2000).repeat(500).reshape(2000, 500)
        file.create_dataset("x", data=rows, chunks=(1, 500), compression="gzip")
    lmdb.open(str(tmp_path / "data.lmdb")).close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


READERS = """
import lmdb, os
os.remove("data.lmdb/lock.mdb")
environment = lmdb.open("data.lmdb", max_readers=1)
transactions = [environment.begin() for _ in range(300)]
"""
MAP = """
import lmdb
with lmdb.open("x.lmdb", map_size=1 << 15).begin(write=True) as txn:
    for number in range(100):
        txn.put(b"%d" % number, bytes(4000))
"""
LOCKED = """
import fcntl, h5py
other = open("data.h5", "rb")
fcntl.flock(other, fcntl.LOCK_EX)  # as a writer in another process does
h5py.File("data.h5")
"""
CURSOR = """
database.a.insert_many([{} for _ in range(100)])
cursor = database.a.find(batch_size=10)
next(cursor)
database.command("killCursors", "a", cursors=[cursor.cursor_id])  # as the server does after ten minutes
list(cursor)
"""
COLLATE = "import torch; torch.utils.data.default_collate([{}, torch.zeros(3)])"
BROKEN = jpeg(0)[: len(jpeg(0)) // 2]
RAISED = {
    # The heading on the page, which is part of the error or its type, and the program that raises it.
    "h5py objects cannot be pickled": 'import h5py, pickle; pickle.dumps(h5py.File("data.h5"))',
    "found <class 'NoneType'>": COLLATE.format("None"),
    "stack expects each tensor to be equal size": COLLATE.format("torch.zeros(2)"),
    "The given NumPy array is not writable": (
        'import numpy, torch; torch.from_numpy(numpy.frombuffer(b"12345678", "uint8"))'
    ),
    "unable to lock file": LOCKED,
    "Indexing elements must be in increasing order": 'import h5py; h5py.File("data.h5")["x"][[3, 1, 3]]',
    "VLEN strings do not support embedded NULLs": (
        'import h5py; h5py.File("s.h5", "w")["image"] = b"\\xff\\xd8\\x00\\x01"'
    ),
    "truncated file: eof": 'import h5py, os; os.truncate("data.h5", 100_000); h5py.File("data.h5")',
    "is already open in this process": 'import lmdb; first = lmdb.open("data.lmdb"); lmdb.open("data.lmdb")',
    "MDB_READERS_FULL": READERS,
    "MDB_MAP_FULL": MAP,
    "CursorNotFound": CURSOR,
    "BSON document too large": 'database.a.insert_one({"x": bytes(17 << 20)})',
    "image file is truncated": f"import io; from PIL import Image; Image.open(io.BytesIO({BROKEN!r})).load()",
    "can't pickle Environment objects": 'import lmdb, pickle; pickle.dumps(lmdb.open("data.lmdb"))',
}
NEWER = {"can't pickle Environment objects": "cannot pickle 'Environment' object"}
"""What newer releases say instead of the heading."""

# Programs that need a process of their own, because they fork, or limit or kill processes.
IN_BATCHES = """
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 300
    def __getitem__(self, index):
        {body}

if __name__ == "__main__":
    try:
        batches = list(DataLoader(Numbers(), batch_size={batch_size}, num_workers=1))
    except RuntimeError as error:
        print(error)
"""
FEW_FILES = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))"
KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does when memory runs out"
FORKS = """
import os, h5py, numpy as np
rows = h5py.File(open("data.h5", "rb"), "r")["x"]
rows[0]
children = []
for number in range(4):
    children.append(os.fork())
    if not children[-1]:
        wanted = np.random.default_rng(number).integers(0, 2000, 3000)
        print("right rows" if all(rows[row][0] == row for row in wanted) else "wrong row", flush=True)
        os._exit(0)
for child in children:
    os.waitpid(child, 0)
"""
WORKERS = """
import gc, multiprocessing, os
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
    print(len(multiprocessing.active_children()), "workers after an error", flush=True)
for worker in multiprocessing.active_children():
    worker.kill()
os._exit(0)  # without the pause
"""
MONGODB_FORK = """
import os, pymongo
client = pymongo.MongoClient({uri!r})
client.admin.command("ping")
if not os.fork():
    client.admin.command("ping")
    os._exit(0)
os.wait()
"""
PRINTED: dict[str, tuple[str, str]] = {
    # The heading on the page: the program, and a pattern of what it prints.
    "wrong data with HDF5 and workers": (FORKS, "wrong row|Can't synchronously read data"),
    "DataLoader worker is killed, exited unexpectedly": (
        IN_BATCHES.format(body=KILLED, batch_size=1),
        r"DataLoader worker \(pid.*\) (is killed|exited unexpectedly)",
    ),
    "a pause of 5 seconds for each worker, after an error": (
        WORKERS,
        "0 workers after an error\n2 workers after an error",
    ),
    "MongoClient opened before fork": (MONGODB_FORK, "MongoClient opened before fork"),
}
LIMITED = {"received 0 items of ancdata, Too many open files", "Bus error, unable to allocate shared memory"}
ELSEWHERE = {"LMDB is slow on NFS"}  # no NFS server here


def test_every_heading_of_the_page_is_reproduced() -> None:
    headings = [line[4:].replace("`", "") for line in PAGE.read_text().splitlines() if line.startswith("### ")]
    assert sorted(headings) == sorted([*RAISED, *PRINTED, *LIMITED, *ELSEWHERE])


@pytest.fixture
def every_warning_is_raised() -> Iterator[None]:
    torch.set_warn_always(True)  # otherwise, once in a process
    yield
    torch.set_warn_always(False)


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.usefixtures("files", "every_warning_is_raised")
@pytest.mark.parametrize("heading", RAISED)
def test_another_library_raises_the_message(heading: str, request: pytest.FixtureRequest) -> None:
    names = {"database": request.getfixturevalue("database")} if "database" in RAISED[heading] else {}
    with pytest.raises(Exception) as raised:
        exec(RAISED[heading], names)
    assert NEWER.get(heading, heading) in repr(raised.value)


def output_of(program: str, folder: Path, *, before: tuple[str, ...] = ()) -> str:
    """Run a Python program in a process of its own; return everything that it prints."""
    (folder / "program.py").write_text(program)
    command = [*before, sys.executable, "-W", "always", "program.py"]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=500, check=False
    )
    return done.stdout


@pytest.mark.parametrize("heading", PRINTED)
def test_another_library_prints_the_message(heading: str, files: Path, request: pytest.FixtureRequest) -> None:
    program, message = PRINTED[heading]
    if program == MONGODB_FORK:
        program = program.format(uri=request.getfixturevalue("mongodb"))
    assert re.search(message, output_of(program, files))


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Write a small store of pictures; return its URL."""
    url = f"lmdb://{tmp_path}/photos.lmdb"
    return make_store({"image": "image", "label": "int"}, ({"image": jpeg(0), "label": n} for n in range(COUNT)), url)


def test_batches_that_are_kept_take_no_file_descriptors(tmp_path: Path, store: str) -> None:
    program = f"""
{FEW_FILES}
{IN_BATCHES.format(body="return torch.zeros(2)", batch_size=1)}
import storeds
dataset = storeds.StoreDataset({store!r}, transform="ToTensor")
print(sum(len(list(storeds.StoreLoader(dataset, start_method="thread", batch_size=1, num_workers=1))) for _ in range(2)))
"""
    printed = output_of(program, tmp_path)
    assert re.search("Too many open files|received 0 items of ancdata", printed)
    assert f"{2 * COUNT}\n" in printed


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can replace /dev/shm by a small one")
def test_shared_memory_is_full(tmp_path: Path, store: str) -> None:
    small = ("unshare", "-m", "bash", "-c", 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"', "bash")
    program = f"""
{IN_BATCHES.format(body="return torch.zeros(3, 224, 224)", batch_size=10)}
import storeds
dataset = storeds.StoreDataset({store!r}, transform=[{{"name": "Resize", "size": [224, 224]}}, "ToTensor"])
for start_method in ("thread", "fork"):
    loader = storeds.StoreLoader(dataset, batch_size=20, num_workers=1, start_method=start_method)
    print(sum(len(labels) for _, labels in loader))
"""
    printed = output_of(program, tmp_path, before=small)
    if "mount:" in printed or "unshare:" in printed:
        pytest.skip(f"this container may not mount: {printed}")
    assert re.search("Bus error|unable to allocate shared memory", printed)
    assert f"{COUNT}\n{COUNT}\n" in printed
