"""What workers send: small tensors inline, larger ones in memory that the training process is sent once.

Imports private modules, because loaders do not show which memory a worker sends.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, default_collate

import storeds
from _processes import end_workers
from storeds import StoreDataset, StoreLoader, open_writer
from storeds.batching.shared_memory import (
    MAX_INLINE,
    ReceivedBuffers,
    SharedBufferPool,
    _InlineTensor,
    _received,
    send_inline,
)

COUNT, WIDTH, BATCH = 256, 4096, 16  # 256 KiB a batch: more than is sent inline


@pytest.fixture
def in_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.batching.shared_memory.get_worker_info", lambda: object())


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("sending") / "rows.h5"
    fields: Any = {"row": {"kind": "array", "dtype": "f4", "shape": [WIDTH]}, "label": "int"}
    with open_writer(f"hdf5://{path}", fields) as writer:
        writer.append({"row": np.full(WIDTH, at, "f4"), "label": at} for at in range(COUNT))
    return f"hdf5://{path}"


def dataset(url: str, **options: Any) -> StoreDataset:
    return StoreDataset(url, reader="array", **options)


def received(tensor: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = pickle.loads(ForkingPickler.dumps(tensor))
    assert type(made) is torch.Tensor
    return made


# --- Inline ---


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4),
        torch.tensor(7.5),
        torch.empty(0, 3),
        torch.tensor([True, False]),
        torch.rand(5).to(torch.bfloat16),
        torch.rand(5, dtype=torch.complex64),
        torch.rand(MAX_INLINE // 4),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)
def test_small_tensors_are_sent_inline(in_worker: None, tensor: torch.Tensor) -> None:
    marked = send_inline(tensor.clone())
    assert type(marked) is _InlineTensor
    made = received(marked)
    assert (made.dtype, made.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(made, tensor)
    made.zero_()  # it can be written
    assert torch.equal(marked.as_subclass(torch.Tensor), tensor)  # in memory of its own


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(MAX_INLINE // 4 + 1),
        torch.rand(3, 4).T,
        torch.rand(3).requires_grad_(),
        torch.rand(3).to_sparse(),
        torch.rand(3, dtype=torch.complex64).conj(),
        torch.rand(3, device="meta"),
        torch.nn.Parameter(torch.rand(3)),
    ],
    ids=["large", "in another order", "with gradients", "sparse", "conjugate", "without memory", "of another type"],
)
def test_other_tensors_go_as_torch_sends_them(in_worker: None, tensor: torch.Tensor) -> None:
    assert send_inline(tensor) is tensor


def test_tensors_of_the_training_process_stay_as_they_are() -> None:
    tensor = torch.arange(3)
    assert send_inline(tensor) is tensor


def test_what_was_changed_since_is_sent_as_it_is_now(in_worker: None) -> None:
    marked = send_inline(torch.arange(6).reshape(2, 3))
    marked.t_()
    assert torch.equal(received(marked), torch.arange(6).reshape(2, 3).T)
    wanted = send_inline(torch.zeros(2)).requires_grad_()
    assert received(wanted).requires_grad


def test_results_and_copies_are_plain(in_worker: None) -> None:
    marked = send_inline(torch.arange(3))
    for made in (marked + 1, marked[1:], copy.deepcopy(marked), pickle.loads(pickle.dumps(marked))):
        assert type(made) is torch.Tensor


# --- Batches of numbers, through any collating ---


def rows(batches: Any) -> list[tuple[list[float], list[int]]]:
    """Return the first number of each row and the labels, after a look at the rest; keeps no batch."""
    found = []
    for batch in batches:
        data, labels = batch.values() if isinstance(batch, dict) else batch
        assert type(data) is type(labels) is torch.Tensor
        assert data.shape[1:] == (WIDTH,)
        assert (data == data[:, :1]).all()
        found.append((data[:, 0].tolist(), labels.tolist()))
    return found


def expected(order: Any = range(COUNT)) -> list[tuple[list[float], list[int]]]:
    parts = [list(order)[at : at + BATCH] for at in range(0, COUNT, BATCH)]
    return [([float(at) for at in part], part) for part in parts]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
@pytest.mark.parametrize("collate_fn", [default_collate, storeds.collate], ids=["torch's", "storeds'"])
@pytest.mark.parametrize("as_dict", [False, True])
def test_batches_are_right_whatever_is_held(url: str, start_method: str, collate_fn: Any, as_dict: bool) -> None:
    loader: Any = StoreLoader(
        Subset(dataset(url, as_dict=as_dict), range(COUNT)),
        batch_size=BATCH,
        num_workers=2,
        collate_fn=collate_fn,
        persistent_workers=True,
        multiprocessing_context=start_method,
    )
    for _ in range(3):
        assert rows(loader) == expected()  # each is let go at once
    assert rows(list(loader)) == expected()  # all are held: more than the pool keeps


@pytest.mark.parametrize("as_dict", [False, True])
def test_samples_that_are_asked_for_are_plain(url: str, as_dict: bool) -> None:
    store = dataset(url, as_dict=as_dict)
    plain = dict if as_dict else tuple
    assert [type(sample) for sample in (*store[[1, 2]], *store[3:5], store[7])] == [plain] * 5


# --- Memory that is received once ---


def test_a_piece_is_received_once(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def count(self: ReceivedBuffers, *piece: Any) -> None:
        new.append(piece[:2])
        add(self, *piece)

    new: list[Any] = []
    add = ReceivedBuffers.add
    monkeypatch.setattr(ReceivedBuffers, "add", count)
    loader: Any = StoreLoader(dataset(url), batch_size=BATCH, num_workers=1, persistent_workers=True)
    for _ in range(5):
        assert rows(loader) == expected()
    assert 0 < len(new) == len(set(new)) < 8  # of 80 batches


def test_pieces_go_with_the_worker(url: str) -> None:
    before = open_files()
    for _ in range(3):
        assert rows(StoreLoader(dataset(url), batch_size=BATCH, num_workers=2)) == expected()
        abandoned = iter(StoreLoader(dataset(url), batch_size=BATCH, num_workers=2))
        next(abandoned)
        del abandoned
    gc.collect()
    assert len(_received) == 0
    assert len(open_files() - before) == 0


def open_files() -> set[str]:
    """Return the shared memory that this process has open or mapped."""
    shared = [
        line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "torch" in line
    ]
    return {path for path in shared if "/dev/shm/" in path}


class Growing(torch.utils.data.Dataset[Any]):
    """Batches of which each needs more memory than the one before."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((60_000 + 30_000 * index,), float(index))

    def __len__(self) -> int:
        return 24


def test_larger_batches_take_the_place_of_smaller_ones() -> None:
    loader: Any = DataLoader(Growing(), 1, num_workers=1, collate_fn=storeds.collate, persistent_workers=True)
    for _ in range(3):
        for index, batch in enumerate(loader):
            assert batch.shape == (1, 60_000 + 30_000 * index)
            assert (batch == index).all()
        assert 0 < len(_received) <= 16


KILLED = """
import gc, os, signal, sys
from storeds import StoreDataset, StoreLoader
from storeds.batching.shared_memory import _received

gate, key = os.pipe()

class Dies(StoreDataset):
    # While it reads: one killed between two batches may hold a lock that torch's own shutdown then waits for, for ever.
    def __getitems__(self, indices):
        if 0 not in indices:
            os.read(gate, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitems__(indices)

def read():
    loader = StoreLoader(Dies(sys.argv[1], reader="array"), batch_size=16, num_workers=1, persistent_workers=True)
    batches = iter(loader)
    held = next(batches)
    assert len(_received) > 0
    try:
        os.write(key, b"x")
        # Of a worker that is still dying torch may tell a broken connection instead.
        os.waitid(os.P_PID, loader._iterator._workers[0].pid, os.WEXITED | os.WNOWAIT)
        list(batches)
    except RuntimeError as error:
        assert "killed" in str(error) or "exited" in str(error), error
    else:
        sys.exit("no error reported the worker's death")
    return held

held = read()
gc.collect()
assert len(_received) == 0
assert held[1].tolist() == list(range(16)) and (held[0] == held[0][:, :1]).all()
loader = StoreLoader(StoreDataset(sys.argv[1], reader="array"), batch_size=16, num_workers=1)
print(sum(int(labels.sum()) for _, labels in loader))
"""


def test_a_worker_that_was_killed_takes_its_pieces_along(url: str) -> None:
    # In a process of its own: torch raises the worker's death wherever the training process is just then.
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, url], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == sum(range(COUNT))


def test_memory_of_an_unknown_worker_is_refused() -> None:
    with pytest.raises(RuntimeError, match="only the process which started the worker has"):
        ReceivedBuffers(known=3, is_over=lambda words: bool(words[4])).find(os.getpid(), 0)


def test_memory_of_a_process_that_is_no_child_is_not_kept() -> None:
    pieces, words = ReceivedBuffers(known=3, is_over=lambda words: bool(words[4])), np.zeros(8, np.int64)
    pieces.add(os.getppid(), 0, words, words)
    assert words[3] == 0
    assert len(pieces) == 0


class Process:
    """How the end of a worker is noticed."""


def test_a_worker_with_the_number_of_one_that_ended_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(process: Process, serial: int) -> None:
        monkeypatch.setattr("storeds.batching.shared_memory._child", lambda _: process)
        pieces.add(7, serial, np.zeros(8, np.int64), np.full(1, serial))

    pieces, old, new = ReceivedBuffers(known=3, is_over=lambda words: bool(words[4])), Process(), Process()
    add(old, 1)
    add(new, 2)
    monkeypatch.undo()
    del old
    assert pieces.find(7, 2)[1] == [2]
    del new
    assert len(pieces) == 0


def test_no_more_is_kept_than_files_may_be_open(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces, process = ReceivedBuffers(known=3, is_over=lambda words: bool(words[4])), Process()
    monkeypatch.setattr("storeds.batching.shared_memory._child", lambda _: process)
    monkeypatch.setattr("resource.getrlimit", lambda _: (40, 40))
    words = [np.zeros(8, np.int64) for _ in range(12)]
    for serial, each in enumerate(words):
        pieces.add(7, serial, each, each)
    assert [int(each[3]) for each in words] == [1] * 10 + [0] * 2
    words[0][4] = 1
    pieces.add(7, 12, words[11], words[11])
    assert words[11][3] == 1
    inner = pieces._workers[7].buffers
    pieces.clear()  # as a forked child does
    assert not inner


def test_small_pieces_leave_room_for_large_ones_and_are_not_many() -> None:
    pool = SharedBufferPool()
    for size in (1 << 20, 5 << 20, 1 << 15, 5 << 20):
        held = []
        while (tensor := pool.empty((size,), torch.uint8)) is not None:
            held.append(tensor)
            received(tensor)
        assert len(held) == (8 if size > 4 << 20 else 16)
        del tensor, held
    assert sum(len(piece.bytes) for piece in pool._buffers) <= 16 * (4 << 20) + 8 * (5 << 20)


class Wanting(torch.utils.data.Dataset[Any]):
    """Samples that want gradients, as a transform that is a module makes them."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((3,), float(index), requires_grad=True)

    def __len__(self) -> int:
        return 8


def test_gradients_are_an_error_in_a_worker_and_no_hang() -> None:
    loader = DataLoader(Wanting(), 4, num_workers=1, collate_fn=storeds.collate, timeout=60)
    with pytest.raises(RuntimeError, match="automatic differentiation") as raised:
        list(loader)
    end_workers(raised)
