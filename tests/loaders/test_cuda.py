"""On a GPU: pinned batches, copies that run beside the training step, and the state of a loader that reads ahead.

Run by ``make test-gpu``. Without CUDA every test here is skipped; the same code paths on the CPU are in test_loader.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import storeds
from storeds import StoreDataset, StoreLoader, to_device
from threaded import threaded

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: PyTorch sees no CUDA device"),
]

cuda: Any = torch.cuda  # its streams and events are not typed
COUNT, BATCH, SIZE = 96, 8, 256


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose record `n` is an array filled with `n`."""
    url = f"lmdb://{tmp_path}/x.lmdb"
    fields = {"x": {"kind": "array", "dtype": "float32", "shape": [SIZE, SIZE]}, "label": "int"}
    with storeds.open_writer(url, fields) as writer:
        writer.append({"x": torch.full((SIZE, SIZE), float(n)).numpy(), "label": n} for n in range(COUNT))
    return url


def loader(url: str, kind: Any = StoreLoader, **arguments: Any) -> Any:
    dataset = StoreDataset(url, reader="array", fields=["x", "label"])
    return kind(dataset, batch_size=BATCH, pin_memory=True, **arguments)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, StoreLoader, threaded])
def test_batches_are_pinned_and_hold_their_records(url: str, kind: Any, workers: int) -> None:
    seen = []
    for x, label in loader(url, kind, num_workers=workers):
        assert x.is_pinned()
        assert torch.equal(x[:, 0, 0], label.float())
        assert torch.equal(x, x[:, :1, :1].expand_as(x))
        seen += label.tolist()
    assert seen == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [StoreLoader, threaded])
def test_batches_reach_the_gpu_whole_while_steps_run(url: str, kind: Any, workers: int) -> None:
    """Long steps keep the GPU behind the CPU: memory that is reused too early would show in the sums."""
    weights = torch.eye(2048, device="cuda")
    sums = []
    for x, label in to_device(loader(url, kind, num_workers=workers), "cuda"):
        for _ in range(20):
            weights = weights @ torch.eye(2048, device="cuda")
        sums.append((x.double().mean(dim=(1, 2)), label))
    means = torch.cat([mean for mean, _ in sums]).cpu()
    assert means.tolist() == torch.cat([label for _, label in sums]).tolist() == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [StoreLoader, threaded])
def test_lists_for_detectors_are_pinned_and_reach_the_gpu(tmp_path: Path, kind: Any, workers: int) -> None:
    fields: Any = {
        "image": {"kind": "array", "dtype": "uint8", "shape": [3, None, None], "role": "image"},
        "boxes": {"kind": "array", "dtype": "float32", "shape": [None, 4], "role": "boxes"},
        "labels": {"kind": "array", "dtype": "int64", "shape": [None], "role": "labels"},
    }
    with storeds.open_writer(f"lmdb://{tmp_path}/b.lmdb", fields) as writer:
        writer.append(
            {
                "image": torch.full((3, 60 + n % 3, 80), n, dtype=torch.uint8).numpy(),
                "boxes": torch.tensor([[0.0, 0, 1, n + 1]]).repeat(n % 3, 1).numpy(),
                "labels": torch.full((n % 3,), n).numpy(),
            }
            for n in range(COUNT)
        )
    dataset = StoreDataset(f"lmdb://{tmp_path}/b.lmdb", reader="array")
    batches = kind(
        dataset, batch_size=BATCH, collate_fn=storeds.collate_detection, pin_memory=True, num_workers=workers
    )
    for images, targets in batches:
        assert all(image.is_pinned() for image in images)
        assert all(target["labels"].is_pinned() for target in targets if len(target["labels"]))
    n = 0
    for images, targets in to_device(batches, "cuda"):
        for image, target in zip(images, targets, strict=True):
            assert image.is_cuda
            assert image.mul(255).round().eq(n).all()
            assert target["labels"].tolist() == [n] * (n % 3)
            assert target["boxes"][:, 3].tolist() == [n + 1] * (n % 3)
            n += 1
    assert n == COUNT


def test_the_next_batch_arrives_while_a_step_still_runs(url: str) -> None:
    """A copy on the stream of the training step would wait for its end."""
    batches = iter(to_device(loader(url), "cuda"))
    next(batches)
    cuda._sleep(4_000_000_000)  # some two seconds of the GPU's clock, on the stream of the training step
    step_end = cuda.Event()
    step_end.record()
    x, label = next(batches)
    other = cuda.Stream()
    arrived = False
    while not arrived and not step_end.query():
        with cuda.stream(other):
            arrived = torch.equal(x[:, 0, 0].cpu(), label.cpu().float())
    assert not step_end.query()
    assert arrived


def test_the_state_counts_what_the_training_loop_got(url: str) -> None:
    made = loader(url, shuffle=True, seed=5)
    order = [int(n) for _, label in loader(url, shuffle=True, seed=5) for n in label.tolist()]
    moved = to_device(made, "cuda")
    got: list[int] = []
    for step, (_, label) in enumerate(moved):
        got += label.tolist()
        if step == 3:
            break
    state = moved.state_dict()
    again = to_device(loader(url, shuffle=True, seed=5), "cuda")
    again.load_state_dict(state)
    rest = [int(n) for _, label in again for n in label]
    assert got + rest == order
