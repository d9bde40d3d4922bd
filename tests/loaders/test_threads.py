"""Batches made by threads: the same as by processes, never written to while somebody holds them, nothing left behind."""

from __future__ import annotations

import functools
import gc
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import storeds
from make_store import make_store
from photographs import jpeg
from picture_stores import picture_store
from storeds import StoreDataset, StoreLoader, build_loader, errors, load_config
from storeds.batching import BufferPool
from storeds.transforms import CenterCrop, Compose, Normalize, RandomHorizontalFlip, Resize, ToTensor
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


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_reports_and_positions_are_those_of_processes(url: str, workers: int) -> None:
    ours, theirs = loader(url, "thread", workers), loader(url, "fork")
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


def test_an_error_comes_in_its_place(url: str) -> None:
    def refuse_the_third(samples: list[Any]) -> list[Any]:
        if samples[0][0] == 12:
            raise ZeroDivisionError
        return samples

    batches = iter(numbers(url, collate_fn=refuse_the_third))
    assert [next(batches)[0][0] for _ in range(2)] == [0, 6]
    with pytest.raises(ZeroDivisionError):
        next(batches)


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


@pytest.mark.parametrize(
    "held",
    [
        lambda t: t,
        lambda t: t[5:6],
        lambda t: t.view(2, -1).T,
        lambda t: t.numpy(),
        lambda t: t.detach(),
        lambda t: [t],
    ],
    ids=["itself", "slice", "view", "numpy", "detached", "list"],
)
def test_memory_is_kept_for_whoever_holds_any_part_of_it(held: Any) -> None:
    memory = BufferPool(4)
    place = address(memory.empty(BIG, torch.int32))
    tensor = memory.empty(BIG, torch.float32).fill_(7)
    assert address(tensor) == place  # nobody held it
    kept = held(tensor)
    del tensor
    others = [memory.empty(BIG, torch.float32).fill_(1) for _ in range(6)]
    assert place not in map(address, others)
    assert len({address(other) for other in others}) == 6
    assert (torch.as_tensor(kept[0] if isinstance(kept, list) else kept) == 7).all()


def test_no_more_is_kept_than_agreed() -> None:
    memory = BufferPool(2)
    held = [memory.empty(BIG, torch.uint8) for _ in range(2)] + [
        memory.empty((1 << 20,), torch.uint8) for _ in range(5)
    ]
    assert len(memory._buffers) == 2
    del held
    assert len(pickle.loads(pickle.dumps(memory))._buffers) == 0


def test_batches_that_are_kept_stay_as_they_were(url: str, tmp_path: Path) -> None:
    rows = ({"x": torch.full((1 << 17,), float(number)).numpy()} for number in range(24))
    fields = {"x": {"kind": "array", "dtype": "float32", "shape": [1 << 17]}}
    big = make_store(fields, rows, f"lmdb://{tmp_path}/big.lmdb")
    made = StoreLoader(StoreDataset(big, reader="array"), start_method="thread", batch_size=4, num_workers=3)
    kept = [batch[0] for batch in made]
    list(made)
    assert [batch[:, 0].tolist() for batch in kept] == [[4.0 * n + k for k in range(4)] for n in range(6)]
    assert all((batch == batch[:, :1]).all() for batch in kept)


# --- Scaling that waits for the batch ---


class Doubled(torch.utils.data.Dataset[Any]):
    """A dataset of somebody's own, which looks at the samples."""

    def __init__(self, inner: StoreDataset) -> None:
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        image, label = self.inner[index]
        return 2 * image, label


def look(image: torch.Tensor) -> torch.Tensor:
    assert image.dtype == torch.float32
    return 2 * image


def look_and_scale(image: torch.Tensor) -> torch.Tensor:
    return look(Compose(SCALE)(image))


def halves(image: torch.Tensor) -> torch.Tensor:
    return image.float() / 255 if int(image[0, 0, 0]) % 2 else image


SCALE: list[Any] = [ToTensor(), Normalize([0.5], [0.2])]
SCALED: dict[str, tuple[Any, Callable[[StoreDataset], Any]]] = {  # a transform, and what wraps the dataset
    "last": (TRANSFORM, lambda dataset: dataset),
    "last, of a part": (TRANSFORM, lambda dataset: torch.utils.data.Subset(dataset, range(4))),
    "last, of somebody's own": (TRANSFORM, Doubled),
    "before a flip": (Compose([*SCALE, RandomHorizontalFlip(1.0)]), lambda dataset: dataset),
    "before a function": (Compose([Compose(SCALE), look]), lambda dataset: dataset),
    "in a function": (Compose([look_and_scale]), lambda dataset: dataset),
    "in a composition": (Compose([Resize(32), CenterCrop(32), Compose(SCALE)]), lambda dataset: dataset),
    "of some floats": (Compose([halves, *SCALE]), lambda dataset: dataset),
}


@pytest.mark.parametrize("case", SCALED)
@pytest.mark.parametrize(("kind", "workers"), [(StoreLoader, 0), (StoreLoader, 2), (threaded, 0), (threaded, 2)])
def test_images_are_scaled_as_samples_are_whoever_makes_the_batch(kind: Any, workers: int, case: str) -> None:
    blobs = [jpeg(number, (64, 48)) for number in range(4)]
    transform, wrap = SCALED[case]
    dataset = wrap(StoreDataset(picture_store(blobs), decode="tensor", transform=transform, seed=1))
    expected = torch.stack([image for image, _ in (dataset[at] for at in range(4))])
    sampler = storeds.EpochSampler(dataset, shuffle=False)
    for collate in (storeds.collate, functools.partial(storeds.collate, pad=[0])):
        sampler.set_epoch(0)
        made = kind(dataset, sampler=sampler, batch_size=4, num_workers=workers, collate_fn=collate)
        if kind is threaded and case == "of some floats":
            torch.set_default_dtype(torch.float64)  # which does not matter
        try:
            ((images, labels),) = list(made)
        finally:
            torch.set_default_dtype(torch.float32)
        images = images if collate is storeds.collate else images.values
        assert images.dtype == torch.float32
        assert torch.equal(images, expected)
        assert labels.tolist() == [0, 1, 2, 3]


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
