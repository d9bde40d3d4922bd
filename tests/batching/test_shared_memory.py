"""Memory that workers share for batches: never two batches in it at once, and used again as soon as nobody holds one."""

from __future__ import annotations

import copy
import functools
import gc
import os
import pickle
from collections.abc import Iterable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

import storeds
from photographs import jpeg
from storeds import EpochSampler, StoreDataset, StoreLoader, open_writer
from storeds.batching import SharedBatchTensor, SharedBufferPool, batch_memory
from storeds.readers import ImageReader
from storeds.transforms import Compose, build_transform

SHAPE = (4, 3, 160, 160)  # of float32: more than the least size that is shared
COUNT = 96
SIZE = 160
CROP = [{"name": "RandomResizedCrop", "size": SIZE}]
FLOAT = [*CROP, {"name": "ToTensor"}, {"name": "Normalize", "mean": [0.5], "std": [0.5]}]


def delivered(tensor: torch.Tensor) -> torch.Tensor:
    """Return what the main process makes of what a worker sends; here both are this one."""
    received = pickle.loads(ForkingPickler.dumps(tensor))
    assert type(received) is torch.Tensor
    return received


def shared_batch(pool: SharedBufferPool, value: float = 1.0) -> SharedBatchTensor:
    tensor = pool.empty(SHAPE, torch.float32)
    assert tensor is not None
    tensor.fill_(value)
    return tensor


def test_a_piece_is_used_again_once_the_batch_was_let_go() -> None:
    pool = SharedBufferPool()
    sent = shared_batch(pool)
    place = sent.data_ptr()
    batch = delivered(sent)
    del sent
    assert batch.shape == SHAPE
    assert (batch == 1).all()
    view = batch[1, 2].T
    del batch
    other = shared_batch(pool, 2)
    assert other.data_ptr() != place  # the view is still held
    assert (view == 1).all()
    delivered(other)
    del view, other
    assert pool.empty(SHAPE, torch.float32).data_ptr() == place  # type: ignore[union-attr]  # a piece is free


def test_once_something_else_was_sent_than_the_batch_nothing_is_shared() -> None:
    pool = SharedBufferPool()
    tensor = shared_batch(pool)
    part = tensor[2:]
    array = part.numpy()
    assert type(part) is torch.Tensor
    assert type(tensor * 2) is torch.Tensor
    delivered(part)  # torch moves it, and the array stays behind
    del tensor, part
    assert pool.empty(SHAPE, torch.float32) is None
    assert (array == 1).all()


def test_held_batches_keep_their_values_and_beyond_some_nothing_is_shared() -> None:
    pool = SharedBufferPool()
    batches: list[torch.Tensor] = []
    while (tensor := pool.empty(SHAPE, torch.float32)) is not None:
        tensor.fill_(len(batches))
        batches.append(delivered(tensor))
        del tensor
        assert len(batches) < 100
    assert [float(batch.sum()) for batch in batches] == [at * batches[0].numel() for at in range(len(batches))]
    del batches[3]
    assert pool.empty(SHAPE, torch.float32) is not None


def test_small_tensors_are_not_worth_it_and_larger_ones_replace_a_piece() -> None:
    pool = SharedBufferPool()
    assert pool.empty((10,), torch.int64) is None
    first = shared_batch(pool)
    small = first.data_ptr()
    delivered(first)
    del first
    large = pool.empty((8, *SHAPE[1:]), torch.float32)
    assert large is not None
    assert large.data_ptr() % 64 == 0
    place = large.data_ptr()
    assert place != small
    assert len(pool._buffers) == 1


def test_a_tensor_changed_in_place_into_another_view_is_sent_as_it_is() -> None:
    pool = SharedBufferPool()
    tensor = shared_batch(pool)
    tensor.copy_(torch.arange(tensor.numel()).reshape(SHAPE))
    expected = tensor.as_subclass(torch.Tensor).clone().transpose(0, 3)
    tensor.transpose_(0, 3)
    assert torch.equal(delivered(tensor), expected)


def test_a_child_that_lets_go_of_its_copy_frees_nothing() -> None:
    pool = SharedBufferPool()
    batch = delivered(shared_batch(pool, 7))
    place = pool._buffers[0].bytes.ctypes.data
    child = os.fork()
    if child == 0:
        del batch
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert shared_batch(pool, 8).data_ptr() != place
    assert (batch == 7).all()


# --- In workers ---


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("shared") / "photos.lmdb"
    with open_writer(f"lmdb://{path}", {"image": "image", "label": "int"}) as writer:
        writer.append({"image": jpeg(at % 4, (90 + at, 120)), "label": at} for at in range(COUNT))
    return f"lmdb://{path}"


def dataset(url: str, transform: Any = FLOAT, **options: Any) -> StoreDataset:
    return StoreDataset(url, decode="tensor", transform=transform, seed=3, **options)


def flat(batches: Any) -> list[tuple[np.ndarray[Any, Any], list[int]]]:
    found = [tuple(batch.values()) if isinstance(batch, dict) else tuple(batch) for batch in batches]
    return [(images.numpy(), labels.tolist()) for images, labels in found]


def first_image_only(samples: Any) -> Any:
    return samples[0][0]


@pytest.mark.share(5)
@pytest.mark.parametrize("collate_fn", [None, storeds.collate], ids=["torch's", "storeds'"])
@pytest.mark.parametrize("transform", [FLOAT, CROP], ids=["float32", "uint8"])
@pytest.mark.parametrize(("as_dict", "start_method"), [(False, "fork"), (True, "fork"), (False, "spawn")])
def test_batches_are_those_that_one_process_makes(
    url: str, collate_fn: Any, transform: Any, as_dict: bool, start_method: str
) -> None:
    arguments = {"batch_size": 16, "collate_fn": collate_fn}
    expected = flat(DataLoader(dataset(url, transform, as_dict=as_dict), **arguments))
    loader = DataLoader(
        Subset(dataset(url, transform, as_dict=as_dict), range(COUNT)),
        num_workers=2,
        multiprocessing_context=start_method,
        **arguments,
    )
    held = list(loader)  # all of them, more than the pool keeps
    for found, (images, labels) in zip(flat(held), expected, strict=True):
        assert (found[0] == images).all()
        assert found[1] == labels


def test_batches_that_are_left_behind_cost_no_memory(url: str) -> None:
    loader: Any = StoreLoader(dataset(url), batch_size=16, num_workers=2, persistent_workers=True, prefetch_factor=2)
    for _ in range(24):
        for batch in loader:
            assert type(batch[0]) is torch.Tensor
            break
    # Two that each worker is ahead, the loop's, and the one before it, which Python drops once it has the next.
    most = 6 * batch[0].nbytes / 2**20
    assert most / 2 < _shared_mib(worker.pid for worker in loader._iterator._workers) < most + 1


def _shared_mib(pids: Iterable[int]) -> float:
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Shmem")) / 1024


def with_its_kind(samples: Any, collate_fn: Any) -> Any:
    batch = collate_fn(samples)
    return [*batch, torch.tensor(isinstance(batch[0], SharedBatchTensor))]


def test_workers_go_on_lending(url: str) -> None:
    collating = functools.partial(with_its_kind, collate_fn=storeds.collate)
    store = dataset(url)
    loader = DataLoader(store, batch_size=16, num_workers=1, collate_fn=collating, persistent_workers=True)
    for epoch in range(3):
        store.set_epoch(epoch)
        assert all(is_lent for _, _, is_lent in loader)


def test_a_collate_fn_of_one_s_own_gets_tensors(url: str) -> None:
    expected = [sample[0] for sample in dataset(url)[::16]]
    found = list(DataLoader(dataset(url), batch_size=16, num_workers=1, collate_fn=first_image_only))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert all(one.untyped_storage().nbytes() == one.nbytes for one in found)


def test_what_the_loop_changes_in_a_batch_stays_there(url: str) -> None:
    expected = flat(DataLoader(dataset(url), batch_size=16))
    loader = DataLoader(dataset(url), batch_size=16, num_workers=1)
    for batch, (images, _) in zip(loader, expected, strict=True):
        assert (batch[0].numpy() == images).all()
        batch[0].zero_()


# --- What others do with batches and samples ---


def test_a_child_of_the_training_process_keeps_the_batch_that_it_inherited() -> None:
    pool = SharedBufferPool()
    batch = delivered(shared_batch(pool, 7))
    inherited = batch.numpy()  # torch's threads do not exist in the child
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(write_end)
        os.read(read_end, 1)
        os._exit(0 if (inherited == 7).all() else 1)
    del batch, inherited  # the parent lets go, and the worker goes on
    for value in range(20):
        delivered(shared_batch(pool, value))
    os.close(read_end)
    os.close(write_end)
    assert os.waitpid(child, 0)[1] == 0
    assert len(pool._buffers) < 3


def test_a_tensor_that_wants_gradients_is_sent_so() -> None:
    assert delivered(shared_batch(SharedBufferPool()).requires_grad_()).requires_grad


def test_copies_and_pickles_are_plain_tensors() -> None:
    tensor = shared_batch(SharedBufferPool())
    for made in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert type(made) is torch.Tensor
        assert torch.equal(made, tensor)
        assert made.data_ptr() != tensor.data_ptr()


def test_files_in_shared_memory_are_not_shared_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storeds.batching.shared_memory.get_worker_info", lambda: object())
    assert batch_memory(SHAPE, torch.float32) is not None
    monkeypatch.setattr("storeds.batching.shared_memory.get_sharing_strategy", lambda: "file_system")
    assert batch_memory(SHAPE, torch.float32) is None


class Pasted:
    """A transform that takes a sample of another dataset."""

    def __init__(self, other: StoreDataset) -> None:
        self.other = other

    def __call__(self, image: torch.Tensor) -> Any:
        return torch.add(image, self.other[5][0]) + self.other[[7]][0][0]


class Pair(ImageReader):
    """A reader whose samples are tuples of its own."""

    def build(self, records: Any, context: Any) -> Any:
        return (records[0]["label"],)


def test_a_transform_may_ask_another_dataset(url: str) -> None:
    other = dataset(url)
    floats = build_transform(FLOAT)
    assert floats is not None
    transform = Compose([floats, Pasted(other)])
    expected = flat(DataLoader(dataset(url, transform), batch_size=16))
    for loader in (
        DataLoader(dataset(url, transform), batch_size=16, num_workers=1),
        storeds.ThreadLoader(dataset(url, transform), batch_size=16, num_workers=2),
    ):
        for (images, labels), truth in zip(flat(loader), expected, strict=True):
            assert (images == truth[0]).all()
            assert labels == truth[1]


def test_samples_of_a_reader_of_one_s_own_are_left_as_they_are(url: str) -> None:
    own = StoreDataset(url, reader=Pair(fields=("image", "label")))
    found = [batch for (batch,) in DataLoader(own, batch_size=16, num_workers=1)]
    assert torch.cat(found).tolist() == list(range(COUNT))


# --- Without workers ---


def test_a_loader_without_workers_uses_the_memory_of_batches_again(url: str) -> None:
    store = dataset(url)
    expected = flat(DataLoader(store, batch_size=16))
    loader = StoreLoader(store, batch_size=16, sampler=EpochSampler(store, shuffle=False), collate_fn=storeds.collate)
    places = set()
    for batch, (images, labels) in zip(loader, expected, strict=True):
        assert (batch[0].numpy() == images).all()
        assert batch[1].tolist() == labels
        places.add(batch[0].data_ptr())
    assert len(places) <= 2
    loader.set_epoch(0)
    for found, (images, _) in zip(flat(list(loader)), expected, strict=True):  # all are held
        assert (found[0] == images).all()
