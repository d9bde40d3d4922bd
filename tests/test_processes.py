"""Stores in many processes at once: every start method of DataLoader, forks while threads read, closing, descriptors."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import pickle
import secrets
import select
import shutil
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pymongo
import pytest
import xxhash
from _gate import Gate
from _processes import (
    Row,
    loader,
    numbers,
    open_rows,
    read_until_told,
    refuse_squares,
    row,
    rows,
    take_number,
)
from conftest import with_path
from photographs import jpeg
from pymongo.uri_parser import parse_uri
from torch.utils.data import ConcatDataset

import storeds
from storeds import StoreDataset, errors
from storeds._url import file_path
from storeds.backends.base import HandleBackend

# Each forkserver worker would import torch anew, which takes longer than all of its reading.
multiprocessing.set_forkserver_preload(["torch", "storeds.dataset", "_processes"])

ENGINES = ("lmdb", "hdf5", "mongodb")
CHUNKED = "hdf5-chunked"  # as h5repack leaves a store: read through a live libhdf5 file
START_METHODS = ("fork", "spawn", "forkserver")
COUNT = 64
DEADLINE = 60.0


def record(number: int) -> dict[str, Any]:
    size = (number * 397) % 9000  # none at all, below a page and above it
    return {"image": np.random.default_rng(number).bytes(size), "label": number * 7 % 13}


TRUTH = [row((record(number)["image"], record(number)["label"], number)) for number in range(COUNT)]


@pytest.fixture(scope="module")
def stores(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Engine → URL of a store that holds `TRUTH`."""
    folder = tmp_path_factory.mktemp("stores")
    database = f"storeds_test_{secrets.token_hex(6)}"
    urls = {engine: f"{engine}://{folder}/store.{engine}" for engine in ("lmdb", "hdf5")}
    urls["mongodb"] = with_path(with_path(mongodb, database), "store")
    for url in urls.values():
        write(url, [record(number) for number in range(COUNT)])
    urls[CHUNKED] = f"hdf5://{folder}/chunked.hdf5"
    rewrite_chunked(folder / "store.hdf5", folder / "chunked.hdf5")
    yield urls
    with pymongo.MongoClient(mongodb) as client:
        client.drop_database(database)


def write(url: str, records: Sequence[dict[str, Any]]) -> None:
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append(records)


def rewrite_chunked(source: Path, target: Path) -> None:
    """Copy a store with plain h5py, every dataset chunked and compressed."""
    with h5py.File(source) as old, h5py.File(target, "w") as new:

        def copy(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                new.create_dataset(name, data=item[()], chunks=True, compression="gzip").attrs.update(item.attrs)

        new.attrs.update(old.attrs)
        old.visititems(copy)


def read_all(dataset: StoreDataset) -> list[Row]:
    return [row(sample) for sample in dataset[:]]


def holds_handle(dataset: StoreDataset) -> bool:
    assert isinstance(dataset.backend, HandleBackend)
    return dataset.backend._ticket.entry is not None


class TestLoaders:
    """What comes out of a DataLoader is what the store holds: each index once, its bytes, its label."""

    @pytest.mark.parametrize("persistent", [False, True], ids=["fresh-workers", "persistent-workers"])
    @pytest.mark.parametrize("used", [False, True], ids=["unused-before", "used-before"])
    @pytest.mark.parametrize(
        ("engine", "start_method"),
        [*((engine, method) for engine in ENGINES for method in START_METHODS), (CHUNKED, "fork")],
    )
    def test_every_row_is_right(
        self, stores: dict[str, str], engine: str, start_method: str, used: bool, persistent: bool
    ) -> None:
        dataset = open_rows(stores[engine])
        if used:
            assert read_all(dataset) == TRUTH
        assert holds_handle(dataset) == used
        batches = loader(dataset, start_method, persistent_workers=persistent)
        readers, orders = set(), []
        for _ in range(2 if persistent else 1):
            found = list(batches)
            readers |= {pid for pid, _ in found}
            orders.append([each for _, batch in found for each in batch])
            assert sorted(orders[-1]) == TRUTH
        assert os.getpid() not in readers
        assert len(readers) == 2
        assert TRUTH not in orders
        if used:
            assert read_all(dataset) == TRUTH

    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_one_loader_takes_from_all_engines_at_once(self, stores: dict[str, str], start_method: str) -> None:
        datasets = [open_rows(url) for url in stores.values()]
        for dataset in datasets:
            assert read_all(dataset) == TRUTH
        everything = ConcatDataset[Any](datasets)
        found = [each for _, batch in loader(everything, start_method, batch_size=16) for each in batch]
        assert sorted(found) == sorted(TRUTH * len(datasets))

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_two_loaders_over_one_store_run_side_by_side(self, stores: dict[str, str], engine: str) -> None:
        first, second = open_rows(stores[engine]), open_rows(stores[engine])
        first[0]
        pairs = list(zip(loader(first, "fork"), loader(second, "fork"), strict=True))
        for side in (0, 1):
            assert sorted(each for pair in pairs for each in pair[side][1]) == TRUTH
        first.close()
        assert read_all(second) == TRUTH

    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_no_process_says_a_word_with_warnings_as_errors(self, stores: dict[str, str], start_method: str) -> None:
        script = Path(__file__).with_name("_processes.py")
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-X", "dev", script, start_method, *stores.values()],
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE,
            check=False,
        )
        expected = xxhash.xxh3_128_hexdigest(repr(TRUTH).encode())
        assert (ended.stderr, ended.returncode) == ("", 0)
        assert ended.stdout.split() == [expected] * 2 * len(stores)


class TestEpochs:
    """`set_epoch` reaches workers that live through many epochs."""

    @pytest.mark.parametrize("copied", [False, True], ids=["", "copied"])
    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_persistent_workers_draw_anew_and_as_without_workers(
        self, stores: dict[str, str], start_method: str, copied: bool
    ) -> None:
        dataset = open_rows(stores["lmdb"], seed=11, transform=take_number)
        if copied:
            dataset = pickle.loads(pickle.dumps(dataset))
        batches = loader(dataset, start_method, persistent_workers=True, collate_fn=numbers)
        drawn, expected = [], []
        for epoch in (0, 1, 7, 0):
            dataset.set_epoch(epoch)
            drawn.append(sorted(each for batch in batches for each in batch))
            expected.append(numbers(dataset[:]))
        assert drawn == expected
        assert drawn[0] == drawn[3]
        assert len({tuple(each) for each in drawn}) == 3

    def test_a_copy_has_an_epoch_of_its_own(self, stores: dict[str, str]) -> None:
        dataset = open_rows(stores["lmdb"])
        dataset.set_epoch(3)
        copy = pickle.loads(pickle.dumps(dataset))
        dataset.set_epoch(4)
        assert (dataset.epoch, copy.epoch) == (4, 3)


class TestForks:
    """`os.fork` at any moment: the child reads, the parent goes on."""

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_while_eight_threads_read(
        self, stores: dict[str, str], engine: str, tmp_path: Path, brisk_threads: None
    ) -> None:
        dataset, other = open_rows(stores[engine]), another_handle(stores[engine], tmp_path)

        def read() -> None:
            assert read_all(dataset) == TRUTH

        def open_and_close() -> None:
            mine = open_rows(other)
            assert mine[5] == (record(5)["image"], TRUTH[5][2], 5)
            mine.close()

        with running([*[read] * 7, open_and_close]) as rounds:
            for _ in range(FORKS):
                before = min(rounds)
                in_fork(lambda: check_in_child(dataset, other))
            while min(rounds) <= before:  # all of them go on after the last fork
                assert read_all(dataset) == TRUTH

    @pytest.mark.parametrize("engine", ["lmdb", "hdf5", CHUNKED])
    def test_by_code_that_runs_no_hooks(self, stores: dict[str, str], engine: str) -> None:
        dataset = open_rows(stores[engine])
        dataset[0]
        in_fork(lambda: check_in_child(dataset, stores[engine]), ctypes.PyDLL(None).fork)
        assert read_all(dataset) == TRUTH

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_of_a_fork(self, stores: dict[str, str], engine: str) -> None:
        dataset = open_rows(stores[engine])
        dataset[0]

        def check() -> None:
            check_in_child(dataset, stores[engine])
            in_fork(lambda: check_in_child(dataset, stores[engine]))
            assert read_all(dataset) == TRUTH

        in_fork(check)
        assert read_all(dataset) == TRUTH

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_children_read_on_when_their_parent_closes(self, stores: dict[str, str], engine: str) -> None:
        dataset = open_rows(stores[engine])
        dataset[0]
        context = multiprocessing.get_context("fork")
        ours, theirs = zip(*(context.Pipe() for _ in range(3)), strict=True)
        children = [context.Process(target=read_until_told, args=(pipe, dataset, TRUTH)) for pipe in theirs]
        for child in children:
            child.start()
        assert [answer(pipe) for pipe in ours] == ["reading"] * 3
        dataset.close()
        for pipe in ours:
            pipe.send("stop")
        assert [answer(pipe) for pipe in ours] == [True] * 3
        for child in children:
            child.join(DEADLINE)
            assert child.exitcode == 0
            child.close()
        for pipe in (*ours, *theirs):
            pipe.close()
        with pytest.raises(errors.ClosedError):
            dataset[0]

    @pytest.mark.parametrize("opening", [False, True], ids=["in-a-read", "in-an-open"])
    def test_a_server_that_does_not_answer_holds_up_no_fork(
        self, stores: dict[str, str], mongodb: str, opening: bool
    ) -> None:
        host, port = address = parse_uri(mongodb)["nodelist"][0]
        with Gate(address) as gate:
            url = stores["mongodb"].replace(f"{host}:{port}", f"127.0.0.1:{gate.port}")
            dataset = open_rows(f"{url}{'&' if '?' in url else '?'}directConnection=true")
            if not opening:
                dataset[0]
            found: list[Row] = []
            gate.shut()
            thread = threading.Thread(target=lambda: found.extend(read_all(dataset)))
            thread.start()
            assert gate.withheld.wait(DEADLINE)
            # The child may use neither the parent's connection nor the lock that the parent's thread holds.
            in_fork(lambda: check_in_child(open_rows(stores["mongodb"]), stores["mongodb"]))
            assert found == []
            assert thread.is_alive()
            gate.open()
            thread.join(DEADLINE)
            assert found == TRUTH
            dataset.close()
            wait_for_threads(besides=gate.threads)


FORKS = 20


def another_handle(url: str, folder: Path) -> str:
    """Return a URL of the same records that leads to another handle."""
    if url.startswith("mongodb"):
        return f"{url}{'&' if '?' in url else '?'}appName=another"
    path, _ = file_path(url)
    return url.replace(path, shutil.copy(path, folder))


def check_in_child(dataset: StoreDataset, url: str) -> None:
    """Read with what was inherited, and with a dataset of the child's own."""
    for each in (dataset, open_rows(url)):
        assert read_all(each) == TRUTH
        each.close()


def in_fork(check: Callable[[], None], fork: Callable[[], int] = os.fork) -> None:
    """Run `check` in a forked child; a child that fails or hangs fails the test."""
    pid = fork()
    if pid == 0:
        status = 1
        try:
            check()
            status = 0
        except BaseException:
            os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(status)
    ended = os.pidfd_open(pid)
    try:
        if not select.select([ended], [], [], DEADLINE)[0]:
            os.kill(pid, signal.SIGKILL)
            pytest.fail(f"the forked child hung for {DEADLINE} s")
    finally:
        os.close(ended)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.fixture
def brisk_threads() -> Iterator[None]:
    """Let threads take turns often: more interleavings, and the main thread gets its turn among busy ones."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(interval)


@contextlib.contextmanager
def running(targets: Sequence[Callable[[], None]]) -> Iterator[list[int]]:
    """Call each target over and over in a thread; yields how often each has returned. The first failure is raised."""
    stop, failures, rounds = threading.Event(), list[BaseException](), [0] * len(targets)

    def run(at: int) -> None:
        try:
            while not stop.is_set() and not failures:
                targets[at]()
                rounds[at] += 1
        except BaseException as error:
            failures.append(error)
            rounds[at] = sys.maxsize

    threads = [threading.Thread(target=run, args=(at,)) for at in range(len(targets))]
    for thread in threads:
        thread.start()
    try:
        yield rounds
    finally:
        stop.set()
        for thread in threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()
    for failure in failures:
        raise failure


def answer(pipe: Any) -> Any:
    assert pipe.poll(DEADLINE), f"no answer from a child within {DEADLINE} s"
    return pipe.recv()


class TestOneFileTwice:
    """Two datasets in one process that lead to the same file or collection."""

    @pytest.fixture(
        params=[(engine, link) for engine in ("lmdb", "hdf5", CHUNKED) for link in ("symlink", "hard link")]
        + [("mongodb", "same"), ("mongodb", "other host name")],
        ids=" ".join,
    )
    def pair(
        self, request: pytest.FixtureRequest, stores: dict[str, str], tmp_path: Path
    ) -> tuple[StoreDataset, StoreDataset]:
        engine, how = request.param
        return open_rows(stores[engine]), open_rows(alias(stores[engine], how, tmp_path))

    def test_both_read_and_closing_one_leaves_the_other(self, pair: tuple[StoreDataset, StoreDataset]) -> None:
        first, second = pair
        assert read_all(first) == read_all(second) == TRUTH
        first.close()
        assert read_all(second) == TRUTH
        with pytest.raises(errors.ClosedError):
            first[0]
        again = open_rows(first.url)
        assert read_all(again) == TRUTH
        second.close()
        assert read_all(again) == TRUTH

    def test_one_is_opened_and_closed_while_threads_read_the_other(
        self, pair: tuple[StoreDataset, StoreDataset], brisk_threads: None
    ) -> None:
        first, second = pair

        def read() -> None:
            assert read_all(second) == TRUTH

        with running([read] * 4):
            for _ in range(20):
                first = open_rows(first.url)
                assert first[3] == (record(3)["image"], TRUTH[3][2], 3)
                first.close()

    def test_closing_waits_for_the_reads_of_other_threads(
        self, pair: tuple[StoreDataset, StoreDataset], brisk_threads: None
    ) -> None:
        first, second = pair
        for _ in range(10):
            first = open_rows(first.url)
            with pytest.raises(errors.ClosedError), running([lambda it=first: check(it)] * 4) as rounds:  # type: ignore[misc]
                while not sum(rounds):
                    second[0]
                first.close()
        assert read_all(second) == TRUTH

    def test_a_child_reads_through_the_other_name(self, pair: tuple[StoreDataset, StoreDataset]) -> None:
        first, second = pair
        first[0]
        in_fork(lambda: check_in_child(second, first.url))
        assert read_all(first) == read_all(second) == TRUTH

    def test_both_serve_workers(self, pair: tuple[StoreDataset, StoreDataset]) -> None:
        both = ConcatDataset[Any](pair)
        pair[0][0]
        for start_method in ("fork", "forkserver"):
            found = [each for _, batch in loader(both, start_method, batch_size=16) for each in batch]
            assert sorted(found) == sorted(TRUTH * 2)


def check(dataset: StoreDataset) -> None:
    assert read_all(dataset) == TRUTH


def alias(url: str, how: str, folder: Path) -> str:
    """Return another URL of the same store."""
    if how == "same":
        return url
    if how == "other host name":
        return url.replace("127.0.0.1", "localhost")
    path, _ = file_path(url)
    other = folder / "alias"
    if how == "symlink":
        other.symlink_to(path)
    else:
        other.hardlink_to(path)
    return url.replace(path, str(other))


class TestDescriptors:
    """A dataset that is gone holds nothing: no file, no socket, no thread."""

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_none_is_left_after_reading(self, stores: dict[str, str], engine: str) -> None:
        before = descriptors()
        dataset = open_rows(stores[engine])
        assert read_all(dataset) == TRUTH
        assert descriptors() != before
        del dataset
        assert descriptors() == before

    @pytest.mark.parametrize("start_method", START_METHODS)
    @pytest.mark.parametrize("engine", ENGINES)
    def test_none_is_left_after_a_loader(self, stores: dict[str, str], engine: str, start_method: str) -> None:
        spent = open_rows(stores[engine])
        list(loader(spent, start_method))  # starts what multiprocessing keeps: its servers
        del spent
        before = descriptors()
        dataset = open_rows(stores[engine])
        dataset[0]
        batches = loader(dataset, start_method, persistent_workers=True)
        for _ in range(2):
            assert len(list(batches)) == COUNT // 4
        del dataset, batches
        assert descriptors() == before

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_none_is_taken_by_a_dataset_that_was_not_read(self, stores: dict[str, str], engine: str) -> None:
        before = descriptors()
        dataset = open_rows(stores[engine])
        assert descriptors() == before
        dataset.close()


def descriptors() -> dict[str, str]:
    """Return what this process has open, once what is unreachable has been let go."""
    gc.collect()
    wait_for_threads()
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found[name] = os.readlink(f"/proc/self/fd/{name}")
    return found


class TestKilledWorkers:
    """A worker that is killed mid-epoch gives an error, not a hang, and harms nobody else."""

    @pytest.mark.parametrize(
        ("engine", "start_method"),
        [*((engine, "fork") for engine in ENGINES), ("lmdb", "spawn"), ("mongodb", "forkserver")],
    )
    def test_the_loader_raises_and_the_parent_reads_on(
        self, stores: dict[str, str], engine: str, start_method: str
    ) -> None:
        dataset = open_rows(stores[engine])
        dataset[0]
        batches = iter(loader(dataset, start_method, batch_size=1))
        (reader, _), read = next(batches), 1
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* (killed by signal|exited unexpectedly)"):  # noqa: PT012
            os.kill(reader, signal.SIGKILL)
            for _ in batches:
                read += 1
        assert read < COUNT
        del batches
        assert read_all(dataset) == TRUTH
        assert sorted(each for _, batch in loader(dataset, "fork") for each in batch) == TRUTH


class TestPickles:
    """A pickled dataset is small, and opens nothing when it comes back."""

    @pytest.mark.parametrize("engine", ["memory", "lmdb"])
    def test_the_size_does_not_depend_on_the_count(self, make_engine_url: Callable[[str], str], engine: str) -> None:
        sizes = []
        for count in (10, 100_000):
            url = make_engine_url(engine)
            write(url, [{"image": b"x", "label": at} for at in range(count)])
            dataset = open_rows(url)
            assert dataset[count - 1] == (b"x", count - 1, count - 1)
            assert len(dataset.targets) == count
            sizes.append(len(pickle.dumps(dataset)))
        assert max(sizes) < 8192
        assert abs(sizes[1] - sizes[0]) <= 64

    @pytest.mark.parametrize("engine", [*ENGINES, CHUNKED])
    def test_unpickling_opens_nothing(self, stores: dict[str, str], engine: str) -> None:
        dataset = open_rows(stores[engine])
        assert read_all(dataset) == TRUTH
        pickled = pickle.dumps(dataset)
        assert isinstance(dataset.backend, HandleBackend)
        pool = dataset.backend.pool
        before = os.listdir("/proc/self/fd"), threading.enumerate(), len(pool)
        copy = pickle.loads(pickled)
        assert (os.listdir("/proc/self/fd"), threading.enumerate(), len(pool)) == before
        assert not holds_handle(copy)
        assert len(copy) == COUNT
        assert read_all(copy) == TRUTH


class TestErrors:
    """What goes wrong in a worker arrives in the parent as what it was."""

    @pytest.mark.parametrize(
        ("engine", "start_method"),
        [*((engine, "fork") for engine in ENGINES), ("hdf5", "spawn"), ("lmdb", "forkserver")],
    )
    def test_a_bad_sample_keeps_its_type_and_message(
        self, make_engine_url: Callable[[str], str], mongodb: str, engine: str, start_method: str
    ) -> None:
        url = make_engine_url(engine)
        images = [jpeg(0), jpeg(1), b"no image at all", jpeg(3, (50, 50))]
        write(url, [{"image": image, "label": at} for at, image in enumerate(images)])
        damage(url, mongodb, images[1])
        dataset = StoreDataset(url, transform=refuse_squares)
        batches = iter(loader(dataset, start_method, batch_size=1, shuffle=False, collate_fn=len))
        assert next(batches) == 1
        for position, kind, reason in (
            (1, errors.RecordError, "checksum does not match"),
            (2, errors.DecodeError, "cannot be decoded"),
            (3, errors.TransformError, "cannot take 50 × 50"),
        ):
            with pytest.raises(kind) as caught:
                next(batches)
            assert type(caught.value) is kind
            with pytest.raises(kind) as without_workers:
                dataset[position]
            assert str(without_workers.value) in str(caught.value)
            assert reason in str(caught.value)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_store_that_is_gone_is_unavailable(
        self, make_engine_url: Callable[[str], str], mongodb: str, engine: str
    ) -> None:
        url = make_engine_url(engine)
        write(url, [record(number) for number in range(8)])
        dataset = open_rows(url)
        remove(url, mongodb)
        for start_method in ("fork", "forkserver"):
            with pytest.raises(errors.UnavailableError, match="was there when it was opened and is gone") as caught:
                list(loader(dataset, start_method))
            assert type(caught.value) is errors.UnavailableError
            assert dataset.url in str(caught.value)


def damage(url: str, mongodb: str, image: bytes) -> None:
    """Change one bit of a record's image, behind the store's back."""
    wrong = image[:-1] + bytes([image[-1] ^ 1])
    if url.startswith("mongodb"):
        with pymongo.MongoClient(mongodb) as client:
            collection = client[url.split("/")[-2]][url.split("/")[-1].partition("?")[0]]
            assert collection.update_one({"image": image}, {"$set": {"image": wrong}}).modified_count == 1
        return
    path = Path(file_path(url)[0])
    content = path.read_bytes()
    assert content.count(image) == 1
    path.write_bytes(content.replace(image, wrong))


def remove(url: str, mongodb: str) -> None:
    if url.startswith("mongodb"):
        with pymongo.MongoClient(mongodb) as client:
            client[url.split("/")[-2]].drop_collection(url.split("/")[-1].partition("?")[0])
    else:
        os.unlink(file_path(url)[0])


def wait_for_threads(besides: Sequence[threading.Thread] = ()) -> None:
    """Wait until no thread but the main one runs: PyMongo's close their sockets as they end."""
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and thread not in besides:
            thread.join(DEADLINE)
            assert not thread.is_alive(), f"{thread} lives on"
