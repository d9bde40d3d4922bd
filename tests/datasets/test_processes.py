"""Datasets in the workers of DataLoaders, under every start method: rows, errors, deaths, pickles."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import multiprocessing.context
import os
import pickle
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from _processes import KilledReader, digest, loader, open_rows, refuse_squares
from _stores import (
    DEADLINE,
    ENGINES,
    START_METHODS,
    TRUTH,
    collection,
    handle_of,
    read_all,
    record,
    write,
    written,
)
from photographs import jpeg
from storeds import StoreDataset, StoreLoader, errors
from storeds.plugins import file_path


@pytest.fixture(scope="module")
def stores(mongodb: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Engine → URL of a store that holds `TRUTH`."""
    with written(mongodb, tmp_path_factory.mktemp("stores")) as urls:
        yield urls


class TestLoaders:
    """What comes out of a DataLoader is what the store holds: each index once, its bytes, its label."""

    @pytest.mark.share(1)
    @pytest.mark.parametrize("start_method", ["fork", "spawn"])
    def test_no_process_warns_with_warnings_as_errors(self, stores: dict[str, str], start_method: str) -> None:
        script = Path(__file__).parents[1].joinpath("support", "_processes.py")
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-X", "dev", script, start_method, *stores.values()],
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE,
            check=False,
        )
        assert (ended.stderr, ended.returncode) == ("", 0)
        assert ended.stdout.split() == [digest(TRUTH * len(stores))] * 2


class TestKilledWorkers:
    """A worker that is killed mid-epoch gives an error, not a hang, and harms nobody else."""

    @pytest.mark.share(3)
    @pytest.mark.parametrize(
        ("engine", "start_method"),
        [*((engine, "fork") for engine in ENGINES), ("lmdb", "spawn"), ("mongodb", "forkserver")],
    )
    def test_the_loader_raises_and_the_parent_reads_on(
        self, stores: dict[str, str], engine: str, start_method: str
    ) -> None:
        dataset = open_rows(stores[engine], KilledReader)
        dataset[0]
        kind, message = failure(lambda: list(loader(dataset, start_method, batch_size=1)))
        assert kind is RuntimeError
        assert re.search(r"DataLoader worker \(pid.* (killed by signal|exited unexpectedly)", message)
        assert read_all(dataset) == TRUTH
        others = open_rows(stores[engine])
        assert sorted(each for _, batch in loader(others, "fork") for each in batch) == TRUTH


class Pausing(Dataset[int]):
    """Numbers, of which the worker that makes the last one waits for ever, after it has written a file."""

    def __init__(self, paused: Path) -> None:
        self.paused = paused

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        if index == 3 and not self.paused.exists():
            self.paused.touch()
            signal.pause()
        return index


class TestWorkersKilledBetweenBatches:
    """The next batch of a StoreLoader is an error at once, whatever the start method; the pass after it has other workers."""

    @pytest.mark.share(3)
    @pytest.mark.parametrize("start_method", START_METHODS)
    @pytest.mark.parametrize("persistent", [True, False])
    def test_while_the_loop_computes(self, tmp_path: Path, start_method: str, persistent: bool) -> None:
        paused = tmp_path / "paused"
        loader = store_loader(Pausing(paused), start_method, persistent_workers=persistent)
        before = set(multiprocessing.active_children())
        batches = iter(loader)
        assert next(batches).tolist() == [0]
        deadline = time.monotonic() + DEADLINE
        while not paused.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        number, worker = killed(set(multiprocessing.active_children()) - before, 1)
        with pytest.raises(RuntimeError, match=rf"Worker {number} \(pid {worker}\) was killed by SIGKILL\."):
            next(batches)
        assert list(batches) == []
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]

    @pytest.mark.share(2)
    @pytest.mark.parametrize("start_method", START_METHODS)
    def test_between_two_passes(self, tmp_path: Path, start_method: str) -> None:
        paused = tmp_path / "paused"
        paused.touch()
        loader = store_loader(Pausing(paused), start_method, persistent_workers=True)
        before = set(multiprocessing.active_children())
        assert [batch.item() for batch in loader] == [0, 1, 2, 3]
        number, worker = killed(set(multiprocessing.active_children()) - before, 0)
        with pytest.raises(RuntimeError, match=rf"Worker {number} \(pid {worker}\) was killed by SIGKILL\."):
            next(iter(loader))
        for _ in range(2):
            assert [batch.item() for batch in loader] == [0, 1, 2, 3]


def store_loader(dataset: Any, start_method: str, **arguments: Any) -> StoreLoader:
    return StoreLoader(dataset, num_workers=2, multiprocessing_context=start_method, **arguments)


def killed(workers: Iterable[Any], number: int) -> tuple[int, int]:
    """Kill one of the workers, and return its number and its process."""
    worker = sorted(workers, key=lambda each: (len(each.name), each.name))[number]
    # torch reports the death of a worker wherever the training process is when the signal comes, here at the latest.
    with suppress(RuntimeError):
        os.kill(worker.pid, signal.SIGKILL)
        if isinstance(worker, multiprocessing.context.ForkServerProcess):
            # join() would take its exit code out of the pipe that shows its end.
            multiprocessing.connection.wait([worker.sentinel])
        else:
            worker.join()
        time.sleep(0)
    return number, worker.pid


class TestPickles:
    """A pickled dataset is small, and opens nothing when it comes back."""

    @pytest.mark.parametrize("engine", ENGINES)
    def test_the_size_does_not_depend_on_the_count(self, make_engine_url: Callable[[str], str], engine: str) -> None:
        sizes = []
        for count in (10, 5000):
            url = make_engine_url(engine)
            write(url, [{"image": b"x", "label": at} for at in range(count)])
            dataset = open_rows(url)
            dataset.set_epoch(3)
            assert dataset[count - 1] == (b"x", count - 1, count - 1)
            assert len(dataset.targets) == count
            pickled = pickle.dumps(dataset)
            dataset.set_epoch(4)
            copy = pickle.loads(pickled)
            assert (handle_of(copy), copy.epoch, dataset.epoch) == (None, 3, 4)
            assert copy[:5] == dataset[:5]
            sizes.append(len(pickled))
        assert max(sizes) < 8192
        assert abs(sizes[1] - sizes[0]) <= 64


class TestErrors:
    """What goes wrong in a worker arrives in the parent as what it was."""

    @pytest.mark.share(3)
    @pytest.mark.parametrize(
        ("engine", "start_method"),
        [*((engine, "fork") for engine in ENGINES), ("hdf5", "spawn"), ("lmdb", "forkserver")],
    )
    def test_a_bad_sample_keeps_its_type_and_message(
        self, make_engine_url: Callable[[str], str], engine: str, start_method: str
    ) -> None:
        url = make_engine_url(engine)
        images = [jpeg(0), jpeg(1), b"no image at all", jpeg(3, (50, 50))]
        write(url, [{"image": image, "label": at} for at, image in enumerate(images)])
        damage(url, images[1])
        dataset = StoreDataset(url, transform=refuse_squares)
        batches = iter(loader(dataset, start_method, batch_size=1, shuffle=False, collate_fn=len))
        assert next(batches) == 1
        for position, kind, reason in (
            (1, errors.RecordError, "checksum does not match"),
            (2, errors.DecodeError, "cannot be decoded"),
            (3, errors.TransformError, "cannot take 50 × 50"),
        ):
            reported = failure(partial(next, batches))
            assert reported[0] is kind
            assert reason in reported[1]
            reported_without_workers = failure(partial(dataset.__getitem__, position))
            assert reported_without_workers[0] is kind
            assert reported_without_workers[1].partition("<")[0] in reported[1]  # Pillow goes on with an address

    @pytest.mark.parametrize("engine", ENGINES)
    def test_a_store_that_is_gone_is_unavailable(self, make_engine_url: Callable[[str], str], engine: str) -> None:
        url = make_engine_url(engine)
        write(url, [record(number) for number in range(8)])
        dataset = open_rows(url, on_error="replace")  # which is for bad samples
        remove(url)
        kind, message = failure(lambda: list(loader(dataset, "fork")))
        assert kind is errors.UnavailableError
        assert f"{dataset.url} was there when it was opened and is gone now" in message


def failure(read: Callable[[], object]) -> tuple[type[BaseException], str]:
    """Return type and message of what `read` raises, and let go of its frames.

    They hold the loader's iterator in a cycle, and torch takes ten seconds to shut down one that only the garbage
    collector finds.
    """
    try:
        read()
    except Exception as error:
        link: BaseException | None = error
        while link is not None:
            traceback.clear_frames(link.__traceback__)
            link.__traceback__, link = None, link.__context__
        return type(error), str(error)
    raise AssertionError("nothing was raised")


def damage(url: str, image: bytes) -> None:
    """Change one bit of a record's image, behind the store's back."""
    wrong = image[:-1] + bytes([image[-1] ^ 1])
    if url.startswith("mongodb"):
        with collection(url) as found:
            assert found.update_one({"image": image}, {"$set": {"image": wrong}}).modified_count == 1
        return
    path = Path(file_path(url)[0])
    content = path.read_bytes()
    assert image in content  # LMDB may leave a second copy in the slack of a page
    path.write_bytes(content.replace(image, wrong))


def remove(url: str) -> None:
    if url.startswith("mongodb"):
        with collection(url) as found:
            found.drop()
    else:
        os.unlink(file_path(url)[0])
