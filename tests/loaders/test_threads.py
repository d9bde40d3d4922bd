"""Batches made by threads: the same as by processes, never written to while somebody holds them, nothing left behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, StoreLoader, build_loader, errors, load_config
from storeds.batching import BufferPool
from threaded import threaded

COUNT = 40
TRANSFORM = [
    {"name": "RandomResizedCrop", "size": 32},
    {"name": "RandomHorizontalFlip"},
    {"name": "ToTensor"},
    {"name": "Normalize", "mean": [0.5], "std": [0.2]},
]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Photographs, of which every eighth is cut in its header and every fifth in its scan."""
    records = []
    for number in range(COUNT):
        blob = jpeg(number % 4, (90 + number, 64))
        cut = 100 if number % 8 == 3 else len(blob) * 9 // 10 if number % 5 == 0 else len(blob)
        records.append({"image": blob[:cut], "label": number})
    url = f"lmdb://{tmp_path_factory.mktemp('threads')}/x.lmdb"
    return make_store({"image": "image", "label": "int"}, records, url)


def loader(url: str, start_method: str, workers: int = 2, **settings: Any) -> StoreLoader:
    dataset = {"url": url, "decode": "tensor", "transform": TRANSFORM, "seed": 3, "on_error": "skip"}
    settings = {"batch_size": 6, "shuffle": True, "num_workers": workers, **settings}
    return build_loader(load_config({"dataset": dataset, "loader": {**settings, "start_method": start_method}}))


def numbers(url: str, **arguments: Any) -> StoreLoader:
    dataset = StoreDataset(url, reader="array", fields=["label"])
    return threaded(dataset, **{"batch_size": 6, "num_workers": 2, **arguments})


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("storeds")}


def test_batches_reports_and_positions_are_those_of_processes(url: str) -> None:
    ours, theirs = loader(url, "thread", 3), loader(url, "fork")
    for epoch in range(2):
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        # Not at once: a fork while a thread writes to a log leaves the child with a locked file.
        expected = [(batch, theirs.state_dict()) for batch in theirs]
        for mine, (other, state) in zip(ours, expected, strict=True):
            assert all(torch.equal(one, two) for one, two in zip(mine, other, strict=True))
            assert ours.state_dict() == state
    assert ours.dataset.report().bad == theirs.dataset.report().bad  # type: ignore[attr-defined]
    assert len(ours) == len(theirs) == -(-COUNT // 6)


def test_threads_end_with_the_epoch_with_a_break_and_with_an_error(url: str) -> None:
    before = threads()
    assert sum(len(labels) for (labels,) in numbers(url)) == COUNT
    assert threads() == before
    for _ in numbers(url):
        assert threads() > before
        break
    for thread in threading.enumerate():  # which end by themselves
        if thread.name.startswith("storeds"):
            thread.join(60)
    assert threads() == before

    def refuse(samples: list[Any]) -> Any:
        raise ZeroDivisionError("in a thread")

    with pytest.raises(ZeroDivisionError, match="in a thread"):
        list(numbers(url, collate_fn=refuse))
    assert threads() == before


def test_each_thread_computes_alone_and_others_as_before(url: str) -> None:
    inside: set[int] = set()

    def note(samples: list[Any]) -> list[Any]:
        inside.add(torch.get_num_threads())
        return samples

    before = torch.get_num_threads()
    assert len(list(numbers(url, collate_fn=note))) == 7
    assert inside == {1}
    outside: list[int] = []
    later = threading.Thread(target=lambda: outside.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert (torch.get_num_threads(), outside) == (before, [before])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"persistent_workers": True}, "takes no persistent_workers"),
        ({"multiprocessing_context": "fork"}, "takes no multiprocessing_context"),
        ({"timeout": 3.0}, "takes no timeout"),
        ({"worker_init_fn": print}, "takes no worker_init_fn"),
        ({"in_order": False}, "takes no in_order"),
        ({"prefetch_factor": 0}, "prefetch_factor: expected an integer >= 1"),
        ({"shuffle": True, "sampler": storeds.EpochSampler(COUNT)}, "leave out one of them"),
    ],
)
def test_what_is_for_processes_alone_is_refused(url: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(errors.ConfigError, match=message):
        numbers(url, **arguments)
    for key in ({"timeout": 3.0}, {"worker_init_fn": "os.getpid"}, {"in_order": False}, {"persistent_workers": True}):
        with pytest.raises(errors.ConfigError, match=f"start_method is 'thread', which takes no {next(iter(key))}"):
            loader(url, "thread", **key)


def test_start_methods_have_one_name(url: str) -> None:
    dataset = StoreDataset(url, reader="array", fields=["label"])
    with pytest.raises(errors.ConfigError, match="start_method: expected 'fork', 'spawn', 'forkserver', 'thread'"):
        StoreLoader(dataset, start_method="threads")
    with pytest.raises(errors.ConfigError, match="which takes no multiprocessing_context"):
        StoreLoader(dataset, num_workers=1, start_method="spawn", multiprocessing_context="fork")
    for package in (storeds, storeds.loaders):
        with pytest.raises(ImportError, match=r'StoreLoader\(dataset, start_method="thread"\)'):
            package.ThreadLoader  # noqa: B018
    for start_method in ("fork", "spawn", "forkserver", "thread"):
        made = StoreLoader(dataset, batch_size=COUNT, num_workers=1, start_method=start_method)
        assert [labels.tolist() for (labels,) in made] == [list(range(COUNT))]
        with pytest.raises(errors.ConfigError, match="start_method cannot be assigned"):
            made.start_method = "fork"
        alone = StoreLoader(dataset, batch_size=COUNT, start_method=start_method)
        assert [labels.tolist() for (labels,) in alone] == [list(range(COUNT))]


# --- Memory that is used again ---

BIG = (1 << 18,)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_memory_is_kept_for_whoever_holds_any_part_of_it() -> None:
    parts: list[Callable[[torch.Tensor], Any]] = [lambda t: t, lambda t: t[5:6], lambda t: t.view(2, -1).T]
    for held in [*parts, torch.Tensor.numpy, torch.Tensor.detach]:
        memory = BufferPool(4)
        place = address(memory.empty(BIG, torch.int32))
        tensor = memory.empty(BIG, torch.float32).fill_(7)
        assert address(tensor) == place  # nobody held it
        kept = held(tensor)
        del tensor
        others = [memory.empty(BIG, torch.float32).fill_(1) for _ in range(6)]
        assert place not in map(address, others)
        assert len({address(other) for other in others}) == 6
        assert (torch.as_tensor(kept) == 7).all()


def test_batches_that_are_kept_stay_as_they_were(url: str, tmp_path: Path) -> None:
    rows = ({"x": torch.full((1 << 17,), float(number)).numpy()} for number in range(24))
    fields = {"x": {"kind": "array", "dtype": "float32", "shape": [1 << 17]}}
    big = make_store(fields, rows, f"lmdb://{tmp_path}/big.lmdb")
    made = StoreLoader(StoreDataset(big, reader="array"), start_method="thread", batch_size=4, num_workers=3)
    kept = [batch[0] for batch in made]
    list(made)
    assert [batch[:, 0].tolist() for batch in kept] == [[4.0 * n + k for k in range(4)] for n in range(6)]
    assert all((batch == batch[:, :1]).all() for batch in kept)


@pytest.mark.parametrize("kind", [StoreLoader, threaded])
def test_a_collate_of_ones_own_is_given_floats(url: str, kind: Any) -> None:
    dataset = StoreDataset(url, decode="tensor", transform=TRANSFORM, on_error="replace", seed=1)
    loader = kind(dataset, sampler=storeds.EpochSampler(dataset), batch_size=4, num_workers=2, collate_fn=kinds)
    assert {each for batch in loader for each in batch} == {(True, torch.float32)}


def kinds(samples: list[Any]) -> list[tuple[bool, torch.dtype]]:
    return [(isinstance(image, torch.Tensor), image.dtype) for image, _ in samples]


def test_a_pass_that_the_garbage_collector_ends_waits_for_nobody(url: str) -> None:
    lock = threading.RLock()
    begun = threading.Event()

    def wait(samples: list[Any]) -> list[Any]:
        begun.set()
        with lock:
            return samples

    passing: list[Any] = [iter(numbers(url, collate_fn=wait, num_workers=1))]
    next(passing[0])
    passing.append(passing)  # a cycle
    begun.clear()
    with lock:
        passing = []
        gc.collect()  # would wait for a thread that waits for us
