"""Memory that workers share with the training process: never written to while anything refers to a batch in it.

The memory of a pool that is private to one process is tested in ``tests/loaders/test_threads.py``.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset

import storeds
from _processes import end_workers
from make_store import make_store
from photographs import jpeg
from storeds import EpochSampler, StoreDataset, StoreLoader, errors
from storeds.batching.memory import SlotPool
from storeds.transforms import Compose, build_transform

COUNT = 48
CROP = [{"name": "RandomResizedCrop", "size": 160}]
FLOAT = [*CROP, {"name": "ToTensor"}, {"name": "Normalize", "mean": [0.5], "std": [0.5]}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    records = ({"image": jpeg(at % 4, (90 + at, 120)), "label": at} for at in range(COUNT))
    url = f"lmdb://{tmp_path_factory.mktemp('shared')}/photos.lmdb"
    return make_store({"image": "image", "label": "int"}, records, url)


def dataset(url: str, transform: Any = FLOAT, **options: Any) -> StoreDataset:
    return StoreDataset(url, decode="tensor", transform=transform, seed=3, **options)


def flat(batches: Any) -> list[tuple[np.ndarray[Any, Any], list[int]]]:
    found = [tuple(batch.values()) if isinstance(batch, dict) else tuple(batch) for batch in batches]
    return [(images.numpy(), labels.tolist()) for images, labels in found]


class Whole(Dataset[Any]):
    """Batches that are made as a whole, and contain their number."""

    def __init__(self, make: Callable[[int], Any], count: int = 24) -> None:
        self.make, self.count = make, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def only(samples: list[Any]) -> Any:
    return samples[0]


def loader(make: Callable[[int], Any], **arguments: Any) -> StoreLoader:
    return StoreLoader(Whole(make), **{"batch_size": 1, "collate_fn": only, "num_workers": 2, **arguments})


def plain(make: Callable[[int], Any], **arguments: Any) -> Any:
    """Return PyTorch's DataLoader, whose workers own the memory."""
    return DataLoader(Whole(make), **{"batch_size": 1, "collate_fn": storeds.collate, "num_workers": 2, **arguments})


def numbered(number: int) -> Any:
    return torch.full((100_000,), float(number)), torch.tensor([number])


# --- Batches arrive as they are ---


@pytest.mark.parametrize(
    ("kind", "transform", "as_dict", "start_method"),
    [
        (DataLoader, FLOAT, False, "fork"),
        (DataLoader, CROP, True, "spawn"),
        (StoreLoader, FLOAT, True, "fork"),
        (StoreLoader, CROP, False, "spawn"),
    ],
    ids=["plain", "plain-spawn", "ours", "ours-spawn"],
)
def test_batches_are_those_that_one_process_makes(
    url: str, kind: Any, transform: Any, as_dict: bool, start_method: str
) -> None:
    expected = flat(DataLoader(dataset(url, transform, as_dict=as_dict), batch_size=8))
    part = Subset(dataset(url, transform, as_dict=as_dict), range(COUNT))
    made = kind(part, batch_size=8, collate_fn=storeds.collate, num_workers=2, multiprocessing_context=start_method)
    for found, (images, labels) in zip(flat(list(made)), expected, strict=True):
        assert (found[0] == images).all()
        assert found[1] == labels


PARTS: dict[str, Callable[[], Any]] = {
    "numbers": lambda: torch.arange(12).reshape(3, 4),
    "a scalar": lambda: torch.tensor(7.5),
    "nothing": lambda: torch.empty(0, 3),
    "bfloat16": lambda: torch.rand(5).to(torch.bfloat16),
    "conjugate": lambda: torch.rand(3, dtype=torch.complex64).conj(),
    "another order": lambda: torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "a view": lambda: torch.arange(1000.0)[500:],
    "large": lambda: torch.arange(300_000),
    "parts": lambda: list(torch.arange(12.0).reshape(3, 4)),
    "a dict": lambda: {"x": (torch.ones(3), [torch.zeros(2), "text", None])},
    "an array": lambda: np.arange(5),
}


def every_part(_: int) -> dict[str, Any]:
    torch.manual_seed(0)
    return {name: make() for name, make in PARTS.items()}


def described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dense = value.to_dense().resolve_conj()
        return value.dtype, tuple(value.shape), value.layout, dense.stride(), dense.tolist()
    if isinstance(value, dict):
        return {name: described(each) for name, each in value.items()}
    return [described(each) for each in value] if isinstance(value, (list, tuple)) else repr(value)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
@pytest.mark.parametrize("slots", [256, 1])
def test_tensors_of_every_kind_arrive_as_they_are(slots: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one slot, the other batches are sent without."""
    monkeypatch.setattr("storeds.batching.memory._MAX_SLOTS", slots)
    for batch in list(loader(every_part)):
        assert described(batch) == described(every_part(0))
        for name in ("numbers", "large"):
            batch[name].zero_()  # it can be written
        if slots > 1:
            assert batch["a view"].untyped_storage().nbytes() == 4 * 500  # it keeps and saves no more than it has


def test_a_transform_may_ask_another_dataset(url: str) -> None:
    floats = build_transform(FLOAT)
    assert floats is not None
    transform = Compose([floats, Pasted(dataset(url))])
    part = Subset(dataset(url, transform), range(12))
    expected = flat(DataLoader(part, batch_size=4))
    for made in (
        StoreLoader(part, batch_size=4, num_workers=1),
        storeds.StoreLoader(part, start_method="thread", batch_size=4, num_workers=2),
    ):
        for (images, labels), truth in zip(flat(made), expected, strict=True):
            assert (images == truth[0]).all()
            assert labels == truth[1]


class Pasted:
    """A transform that takes a sample of another dataset."""

    def __init__(self, other: StoreDataset) -> None:
        self.other = other

    def __call__(self, image: torch.Tensor) -> Any:
        return torch.add(image, self.other[5][0]) + self.other[[7]][0][0]


# --- A slot is used again, and never too early ---

HOLD: list[Callable[[torch.Tensor], Any]] = [
    lambda t: t,
    lambda t: t.view(2, -1).T,
    lambda t: t.numpy(),
    lambda t: t[10:].numpy()[1:],
    lambda t: t.untyped_storage(),
]


@pytest.mark.parametrize("kind", [loader, plain])
def test_memory_is_kept_for_anything_that_refers_to_a_part_of_it(kind: Any) -> None:
    held: list[Any] = []
    made = kind(numbered, persistent_workers=True)
    for _ in range(4):
        for number, (values, label) in enumerate(made):
            assert int(label) == number
            assert (values == number).all()
            if number % 5 == 1:
                held.append((number, HOLD[number // 5](values)))
    for number, kept in held:
        if isinstance(kept, torch.UntypedStorage):
            kept = torch.empty(0).set_(kept)
        assert (torch.as_tensor(kept) == number).all()


@pytest.mark.parametrize("kind", [loader, plain])
def test_all_batches_may_be_held_more_than_memory_is_reused(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.batching.memory._MAX_SLOTS", 3)
    monkeypatch.setattr("storeds.batching.buffers._MAX_BUFFERS", 3)
    batches = list(kind(numbered))
    assert [(float(values.unique()), int(label)) for values, label in batches] == [(n, n) for n in range(24)]


def growing(number: int) -> torch.Tensor:
    return torch.full((30_000 * number, 2), float(number))


@pytest.mark.parametrize("kind", [loader, plain])
def test_memory_grows_with_its_batches_and_may_hold_nothing(kind: Any) -> None:
    made = kind(growing, num_workers=1, persistent_workers=True)
    for _ in range(2):
        for number, batch in enumerate(made):
            assert batch.view(-1, 2).shape == (30_000 * number, 2)
            assert (batch == number).all()


def test_few_slots_serve_many_batches_and_passes_that_are_broken_off() -> None:
    made: Any = loader(numbered, persistent_workers=True, prefetch_factor=2)
    found = {batch[0].data_ptr() for _ in range(2) for batch in made}
    for _ in range(40):
        for batch in made:
            found.add(batch[0].data_ptr())
            break
    # Two that each worker is ahead, the loop's, the one before it, and one for the next request.
    assert len(found) <= 7
    most = 7 * batch[0].nbytes / 2**20 + 1
    assert _shared_mib(worker.pid for worker in made._iterator._workers) < most


def numbered_until_20(number: int) -> Any:
    if number == 20:
        raise ValueError("number 20")
    return numbered(number)


def collated_until_20(samples: list[Any]) -> Any:
    if samples[0][1] == 20:
        raise errors.DecodeError("number 20")
    return samples[0]


def consumed(batches: StoreLoader) -> None:
    for _ in batches:
        pass


def broken_off(batches: StoreLoader) -> None:
    for number, _ in enumerate(batches):
        if number == 3:
            raise KeyError(number)


def closed(batches: StoreLoader) -> None:
    one_pass = iter(batches)
    next(one_pass)
    one_pass.close()


def abandoned(batches: StoreLoader) -> None:
    next(iter(batches))


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize(
    ("make", "end", "raised", "arguments"),
    [
        (numbered_until_20, consumed, ValueError, {}),
        (numbered_until_20, consumed, ValueError, {"in_order": False}),
        (numbered, consumed, errors.DecodeError, {"collate_fn": collated_until_20}),
        (numbered, broken_off, KeyError, {}),
        (numbered, closed, (), {}),
        (numbered, abandoned, (), {}),
    ],
    ids=["sample", "in any order", "collate", "loop", "closed", "abandoned"],
)
def test_a_pass_gives_its_slots_back_however_it_ends(
    make: Any, end: Callable[[Any], Any], raised: Any, arguments: dict[str, Any], persistent: bool
) -> None:
    made = loader(make, persistent_workers=persistent, prefetch_factor=2, **arguments)
    for _ in range(8 if persistent else 2):
        with pytest.raises(raised) if raised else nullcontext():
            end(made)
    gc.collect()
    # Two that each worker is ahead, the loop's, the one before it, and one for the next request.
    assert len(set(_open_slots())) <= (7 if persistent else 0)


def numbers_of_files(_: int) -> Any:
    """Return values in which storeds.collate puts no pixel, and the files of batches that this worker has."""
    return torch.zeros(100_000), torch.tensor([len(shared_files())])


def test_a_worker_of_a_plain_dataloader_uses_its_memory_again() -> None:
    made = plain(numbers_of_files, num_workers=1, persistent_workers=True, prefetch_factor=2)
    most = max(int(files) for _ in range(4) for _, files in made)
    # Of five batches: a file, what locks it (here, and on the way), and a mapping.
    assert 0 < most <= 5 * 4


def _shared_mib(pids: Iterable[int]) -> float:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem")) / 1024


@pytest.mark.parametrize("kind", [loader, plain])
def test_a_child_of_the_training_process_keeps_the_batch_that_it_inherited(kind: Any) -> None:
    made = kind(numbered, persistent_workers=True)
    batches = iter(made)
    held: list[Any] = [next(batches)[0].numpy()]  # torch's threads do not exist in the child
    next(batches)  # the iterator refers to the batch that it gave last
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0 if (held[0] == 0).all() else 1)
    held.clear()  # the parent releases it, and the workers go on
    for _ in range(3):
        assert [int(label) for _, label in made] == list(range(24))
    os.close(read_end)
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0


def check_late(received: Any, gate: Any, result: Any) -> None:
    values, label = received.get()
    gate.wait()
    result.put(bool((values == label).all()))


def test_another_process_that_receives_a_batch_of_a_plain_dataloader_keeps_it() -> None:
    context = torch.multiprocessing.get_context("spawn")
    received, gate, result = context.Queue(), context.Event(), context.Queue()
    other = context.Process(target=check_late, args=(received, gate, result))
    other.start()
    made = plain(numbered, persistent_workers=True)
    for number, batch in enumerate(made):
        if number == 3:
            received.put(batch)
    for _ in range(3):
        assert [int(label) for _, label in made] == list(range(24))
    gate.set()
    assert result.get(timeout=500)
    other.join()


kept_in_worker: list[Any] = []


def changed(samples: list[Any]) -> Any:
    """Keep, change and wrap a batch of storeds.collate."""
    values, label = storeds.collate(samples)
    kept_in_worker.append((values, int(label)))
    values[0, 0] = -1
    assert all((values[0, 1:] == number).all() for values, number in kept_in_worker)
    return {"part": values[0, 1:], "whole": [values], "label": label}


@pytest.mark.parametrize("kind", [loader, plain])
def test_a_collate_function_may_keep_change_and_wrap_a_batch(kind: Any) -> None:
    for number, batch in enumerate(kind(numbered, collate_fn=changed)):
        assert int(batch["label"]) == number
        assert batch["whole"][0][0, 0] == -1
        assert (batch["part"] == number).all()


def test_children_cost_no_slots_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.batching.memory._MAX_SLOTS", 12)
    made = loader(numbered, persistent_workers=True)
    for _ in range(3):
        for number, (values, _) in enumerate(made):
            child = os.fork()
            if child == 0:
                os._exit(0)
            os.waitpid(child, 0)
            assert (values == number).all()
    slots = made._iterator._index_sampler._slots  # type: ignore[union-attr]  # torch's iterator
    names = [slots.acquire() for _ in range(12)]
    assert len(names) - names.count(None) >= 10


def _open_slots() -> list[str]:
    """Return the slots that this process has open."""
    opened = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it
            opened.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [name for name in opened if "memfd:storeds" in name]


def shared_files() -> list[str]:
    """Return the slots that this process has open or mapped."""
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return _open_slots() + [name for name in mapped if "memfd:storeds" in name]


@pytest.mark.parametrize("kind", [loader, plain])
def test_memory_goes_with_the_iterator(kind: Any) -> None:
    gc.collect()
    before = len(shared_files())
    for _ in range(2):
        assert len(list(kind(numbered))) == 24
        abandoned = iter(kind(numbered))
        batch = next(abandoned)
        del abandoned
    gc.collect()
    assert len(shared_files()) <= before + 3  # the batch that is held: a file and two mappings of it
    assert (batch[0] == 0).all()
    del batch
    gc.collect()
    assert len(shared_files()) <= before


# --- Processes that end ---

_TRAINING = """
import os, signal, sys, torch
from torch.utils.data import DataLoader
from storeds import StoreDataset, StoreLoader, collate

gate, key = os.pipe()

class Dies(StoreDataset):
    # While it reads: one killed between two batches may hold a lock that torch's own shutdown then waits for, for ever.
    def __getitems__(self, indices):
        if sys.argv[2] == "worker" and 0 not in indices:
            os.read(gate, 1)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitems__(indices)

kind = {"StoreLoader": StoreLoader, "DataLoader": DataLoader}[sys.argv[3]]
loader = kind(
    Dies(sys.argv[1], decode="tensor"), batch_size=1, num_workers=1, persistent_workers=True, collate_fn=collate
)
batches = iter(loader)
held = next(batches)
before = held[0].clone()
if sys.argv[2] == "training":
    print(sum(1 for batch in batches) > 0, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
try:
    os.write(key, b"x")
    # Of a worker that is still dying torch may report a broken connection instead.
    os.waitid(os.P_PID, loader._iterator._workers[0].pid, os.WEXITED | os.WNOWAIT)
    list(batches)
except RuntimeError as error:
    assert "killed" in str(error) or "exited" in str(error), error
assert torch.equal(held[0], before)
print(sum(int(labels) for _, labels in StoreLoader(StoreDataset(sys.argv[1], decode="tensor"), batch_size=1, num_workers=1)))
"""


@pytest.mark.parametrize(("kind", "who"), [("StoreLoader", "worker"), ("DataLoader", "training")])
def test_nothing_is_left_of_a_process_that_is_killed(url: str, kind: str, who: str) -> None:
    before = set(os.listdir("/dev/shm"))

    def left() -> set[str]:  # semaphores are those of other programs
        return {name for name in set(os.listdir("/dev/shm")) - before if not name.startswith("sem.")}

    # In a process of its own: torch raises the worker's death wherever the training process is just then.
    ended = subprocess.run(
        [sys.executable, "-c", _TRAINING, url, who, kind], capture_output=True, text=True, timeout=500, check=False
    )
    assert ended.returncode == (-signal.SIGKILL if who == "training" else 0), ended.stderr
    assert ended.stdout.strip() == ("True" if who == "training" else str(sum(range(COUNT))))
    deadline = time.monotonic() + 60
    while left():  # other processes have files there for a moment
        assert time.monotonic() < deadline, sorted(left())
        time.sleep(0.1)


# --- Where memory is short, or may not be shared ---


@pytest.mark.parametrize(
    ("kind", "opens"),
    [(loader, "storeds.batching.memory.SlotMemory.__init__"), (plain, "storeds.batching.buffers._locked")],
)
def test_a_worker_that_may_not_open_the_memory_sends_batches_as_pytorch_does(
    kind: Any, opens: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise PermissionError

    monkeypatch.setattr(opens, refuse)
    assert [(float(values.unique()), int(label)) for values, label in kind(numbered)] == [(n, n) for n in range(24)]


@pytest.mark.parametrize("what", ["file", "memory of another batch"])
def test_what_got_the_number_of_the_memory_is_never_written_to(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire, opened = SlotPool.acquire, list[int]()

    def elsewhere(pool: SlotPool) -> Any:
        name = acquire(pool)
        assert name is not None
        is_file = what == "file"
        other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT) if is_file else os.memfd_create(f"{name.label}0")
        os.pwrite(other, b"weights", 0)
        opened.append(other)
        return name._replace(path=f"/proc/{os.getpid()}/fd/{other}")

    monkeypatch.setattr(SlotPool, "acquire", elsewhere)
    found = [(float(values.unique()), int(label)) for values, label in loader(numbered)]
    assert found == [(n, n) for n in range(24)]
    assert {os.pread(other, 100, 0) for other in opened} == {b"weights"}
    for other in opened:
        os.close(other)


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.posix_fallocate", refuse)
        yield


def test_too_little_memory_is_an_error_that_says_so(url: str, full: None) -> None:
    made = DataLoader(dataset(url), batch_size=16, num_workers=1, collate_fn=storeds.collate)
    with pytest.raises(RuntimeError, match="no memory is left for a batch of .*No space left") as raised:
        list(made)
    end_workers(raised)


def wants_gradients(_: int) -> Any:
    return torch.ones(3, requires_grad=True) * 2


def test_gradients_are_an_error_in_a_worker_and_no_hang() -> None:
    made = loader(wants_gradients, num_workers=1, timeout=60)
    with pytest.raises(errors.ConfigError, match="requires gradients") as raised:
        list(made)
    end_workers(raised)


# --- Without workers ---


def test_a_loader_without_workers_uses_the_memory_of_batches_again(url: str) -> None:
    store = dataset(url)
    expected = flat(DataLoader(store, batch_size=16))
    made = StoreLoader(store, batch_size=16, sampler=EpochSampler(store, shuffle=False), collate_fn=storeds.collate)
    found = set()
    for batch, (images, labels) in zip(made, expected, strict=True):
        assert (batch[0].numpy() == images).all()
        assert batch[1].tolist() == labels
        found.add(batch[0].data_ptr())
    assert len(found) <= 2
    made.set_epoch(0)
    for batch, (images, _) in zip(flat(list(made)), expected, strict=True):  # all are held
        assert (batch[0] == images).all()
