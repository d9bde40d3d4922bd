"""Each system call of opening and reading a file fails once: the right result, or an error of ours that names the store."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import lmdb
import pytest

import storeds
from storeds.errors import RecordError, StoredsError, UnavailableError
from storeds.plugins import POOL
from storeds.testing import assert_same

CODES = (errno.EIO, errno.EMFILE, errno.ENOMEM, errno.ESTALE)
FIELDS = {"image": "image", "blob": "bytes", "label": "int", "key": "str"}
SUFFIX = {"lmdb": "lmdb", "hdf5": "h5"}


def write(engine: str, folder: Path) -> str:
    url = f"{engine}://{folder}/x.{SUFFIX[engine]}"
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append({"image": b"\xff" * 9000, "blob": b"b" * 300, "label": at, "key": f"k{at}"} for at in range(60))
    return url


def reads(url: str) -> Any:
    with storeds.open_backend(url) as backend:
        found = backend.get_many(range(len(backend)), list(FIELDS))
        return [str(each) if isinstance(each, RecordError) else [each[name] for name in FIELDS] for each in found]


def few_fields(url: str) -> Any:
    with storeds.open_backend(url) as backend:
        return backend.get_many([50, 3, 20], ["label", "key"])


def columns(url: str) -> Any:
    with storeds.open_backend(url) as backend:
        return [backend.column(name).tolist() for name in ("key", "label")]  # type: ignore[attr-defined]  # not in the protocol


def info(url: str) -> Any:
    return storeds.info(url).count


def selects(url: str) -> Any:
    return storeds.StoreDataset(url, reader="array", fields=["label"], where={"label": [3, 40]})[:]


WAYS: dict[str, Callable[[str], Any]] = {each.__name__: each for each in (reads, few_fields, columns, info, selects)}


def fault(way: Callable[[str], Any], url: str, expected: Any) -> str | None:
    """Return what is wrong with the outcome of a read in which a call failed."""
    path = url.partition("://")[2]
    try:
        found = way(url)
    except StoredsError as error:
        return None if path in str(error) else f"not named: {error}"
    except BaseException as error:
        return f"bare {type(error).__name__}: {error}"
    if found == expected:
        return None
    wrong = [one for one, right in zip(found, expected, strict=True) if one != right]
    return None if all(isinstance(one, str) and url in one for one in wrong) else f"wrong: {wrong[0]}"


# A library that comes before libc sees the calls of Python, of LMDB and of HDF5

SHIM = Path(__file__).parent.parent / "support" / "fail_calls.c"


def fail_each(folder: str) -> None:
    """Fail each call of each way, and print the names of the calls and the faults."""
    shim = ctypes.CDLL(None)
    shim.failed_call.restype = ctypes.c_char_p
    failed, faults = set(), []
    for engine in SUFFIX:
        url = f"{engine}://{folder}/x.{SUFFIX[engine]}"
        for way in WAYS.values():
            expected = way(url)
            POOL.close_all()
            shim.arm(folder.encode(), 0, 0)
            way(url)
            for at in range(1, shim.disarm() + 1, 1 if way is few_fields else 4):
                # Ways differ in what they do after opening, so that each call of opening fails in every way of failing.
                for code in CODES if way is few_fields else CODES[at // 4 % 4 :][:1]:
                    POOL.close_all()
                    shim.arm(folder.encode(), at, code)
                    wrong = fault(way, url, expected)
                    shim.disarm()
                    name = shim.failed_call().decode()
                    failed.add(f"{engine} {name.removesuffix('64')}")
                    faults += [(way.__name__, at, name, errno.errorcode[code], wrong)] if wrong else []
    print(json.dumps([sorted(failed), faults]))


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_call_of_a_library_that_fails_is_an_error_of_the_store(tmp_path: Path) -> None:
    library, folder = tmp_path / "fail_calls.so", tmp_path / "stores"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(SHIM), "-ldl"], check=True)
    for engine in SUFFIX:
        write(engine, folder)
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_failing_calls as t; t.fail_each({str(folder)!r})"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    failed, faults = json.loads(done.stdout.splitlines()[-1])
    assert faults == []
    assert {"hdf5 open", "hdf5 stat", "hdf5 fstat", "hdf5 pread", "hdf5 flock"} <= set(failed)
    assert {"lmdb open", "lmdb stat", "lmdb fstat", "lmdb pread", "lmdb mmap"} <= set(failed)


# Files that another program has open for writing

WRITERS = {
    "append": "file = h5py.File(path, 'a')",
    "append without locks": "file = h5py.File(path, 'a', locking=False)",
    "change": "file = h5py.File(path, 'a'); file.attrs['a'] = 1; file.flush()",
    "append, latest": "file = h5py.File(path, 'a', libver='latest')",
    "swmr": "file = h5py.File(path, 'a', libver='latest'); file.swmr_mode = True",
    "write": "file = h5py.File(path, 'w')",
    "flock": "import fcntl; file = open(path, 'r+b'); fcntl.flock(file, fcntl.LOCK_EX)",
}


# Nothing in an old file of another tool shows a writer that takes no lock.
@pytest.mark.parametrize(("how", "kind"), [*((how, "native") for how in WRITERS), ("append", "foreign")])
def test_an_hdf5_file_that_is_open_for_writing_elsewhere_is_unavailable(tmp_path: Path, how: str, kind: str) -> None:
    url = write("hdf5", tmp_path)
    path = Path(url.partition("://")[2])
    if kind == "foreign" or "latest" in WRITERS[how]:  # only a file of the latest format marks that it is open
        with h5py.File(path, "w", libver="latest" if "latest" in WRITERS[how] else None) as file:
            file["x"], file["y"] = [[1, 2]] * 9, [3] * 9
    program = f"import h5py, sys; path = {str(path)!r}; {WRITERS[how]}; print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            for where in (url, path):
                with pytest.raises(
                    UnavailableError, match=rf"{path} is (locked: another|open for writing in another) program"
                ):
                    storeds.open_backend(where)
        finally:
            writer.kill()


def test_an_hdf5_store_that_was_open_when_its_program_died_says_how_to_go_on(tmp_path: Path) -> None:
    url = write("hdf5", tmp_path)
    program = f"import h5py, os; file = h5py.File({url.partition('://')[2]!r}, 'a'); os._exit(0)"
    subprocess.run([sys.executable, "-c", program], check=True)
    with pytest.raises(UnavailableError, match="or that program died.* run `h5clear --status`"):
        storeds.open_backend(url)


@pytest.mark.parametrize("kind", ["native", "foreign"])
def test_an_lmdb_file_that_another_program_writes_opens_as_it_was_committed(tmp_path: Path, kind: str) -> None:
    url = write("lmdb", tmp_path)
    path = url.partition("://")[2]
    if kind == "foreign":
        path = f"{tmp_path}/other.lmdb"
        with lmdb.open(path, subdir=False) as env, env.begin(write=True) as txn:
            for at in range(60):
                txn.put(b"%04d" % at, b"\xff\xd8\xff" + bytes([at]) * 90)
    with storeds.open_backend(path) as backend:
        committed = backend.get_many(range(len(backend)))
    POOL.close_all()
    program = (
        f"import lmdb, sys; env = lmdb.open({path!r}, subdir=False); txn = env.begin(write=True); "
        "[txn.put(b'%05d' % at, bytes(5000)) for at in range(50)]; print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            with storeds.open_backend(path) as backend:
                assert_same(backend.get_many(range(len(backend))), committed)
        finally:
            writer.kill()
