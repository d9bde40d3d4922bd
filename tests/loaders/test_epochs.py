"""Each pass has a new order and new random numbers, whatever makes it; no one else's random numbers change."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset

import storeds
from _jittered import COUNT, Wrapper, jittered_dataset, numbered_store, one_pass

SUPPORT = Path(__file__).parents[1] / "support"
WORKERS: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
PERSISTENT: dict[str, Any] = {"num_workers": 1, "persistent_workers": True}
LOADERS: dict[str, tuple[type[storeds.StoreLoader], dict[str, Any]]] = {
    "main process": (storeds.StoreLoader, {}),
    "workers": (storeds.StoreLoader, WORKERS),
    "persistent": (storeds.StoreLoader, {**PERSISTENT, "num_workers": 2}),
    "spawned": (storeds.StoreLoader, {**PERSISTENT, "multiprocessing_context": "spawn"}),
    "threads": (storeds.StoreLoader, {"num_workers": 2, "start_method": "thread"}),
}


def make_loader(how: str, dataset: storeds.StoreDataset) -> storeds.StoreLoader:
    kind, arguments = LOADERS[how]
    return kind(dataset, batch_size=4, shuffle=True, **arguments)


@pytest.mark.share(3)
@pytest.mark.parametrize(
    ("how", "seed"), [*((how, 7) for how in LOADERS), *((how, None) for how in LOADERS if how != "spawned")]
)
def test_each_pass_has_a_new_order_and_new_pixels_and_a_run_can_be_repeated(
    tmp_path: Path, how: str, seed: int | None
) -> None:
    url, runs = numbered_store(tmp_path), []
    for manual_seed in (3, 3, 4):
        torch.manual_seed(manual_seed)
        loader = make_loader(how, jittered_dataset(url, seed))
        runs.append([one_pass(loader) for _ in range(3)])
    orders = [[int(value) for value in epoch] for epoch in runs[0]]
    assert [sorted(order) for order in orders] == [list(range(12))] * 3
    assert len(set(map(tuple, orders))) == 3
    assert len({value for epoch in runs[0] for value in epoch}) == 3 * 12
    assert runs[0] == runs[1]
    assert (runs[0] == runs[2]) == (seed is not None)


@pytest.mark.parametrize("how", ["main process", "workers", "threads"])
def test_loaders_iterated_side_by_side_keep_their_own_epochs(tmp_path: Path, how: str) -> None:
    dataset = jittered_dataset(numbered_store(tmp_path), 7)
    one, other = (make_loader(how, dataset) for _ in range(2))
    expected = [one_pass(one) for _ in range(4)]
    one.set_epoch(1)
    other.set_epoch(3)
    side_by_side = list(zip(one, other, strict=True))
    assert one_pass(batch for batch, _ in side_by_side) == expected[1]
    assert one_pass(batch for _, batch in side_by_side) == expected[3]


@pytest.mark.parametrize("how", [how for how in LOADERS if how != "spawned"])
def test_datasets_of_users_around_ours_get_the_epoch_of_the_pass(tmp_path: Path, how: str) -> None:
    url = numbered_store(tmp_path)
    inner = [jittered_dataset(url, 7) for _ in range(2)]
    wrappers: list[Any] = [Wrapper(inner), Subset(Wrapper(inner[:1]), range(COUNT)), ConcatDataset([Wrapper(inner)])]
    truth = jittered_dataset(url, 7)
    for wrapper in wrappers:
        loader = make_loader(how, wrapper)
        for epoch in (0, 1, 5):
            if epoch == 5:
                loader.set_epoch(epoch)
            next(iter(loader))  # a pass that is broken off, with batches ahead
            loader.set_epoch(epoch)
            truth.set_epoch(epoch)
            assert sorted(one_pass(loader)) == [float(value) for (value,) in truth[:]]


@pytest.mark.slow
@pytest.mark.share(1)
@pytest.mark.parametrize("framework", ["lightning", "accelerate", "fastai", "transformers"])
def test_every_framework_gets_a_new_order_and_new_pixels_in_each_epoch(tmp_path: Path, framework: str) -> None:
    command = [sys.executable, "-W", "ignore", str(SUPPORT / "_frameworks.py"), framework, numbered_store(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    fits = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    assert len(fits) == 6, ended.stderr
    for (what, seed, given), again in zip(fits[::2], fits[1::2], strict=True):
        orders = {tuple(map(int, given[at : at + 12])) for at in range(0, 36, 12)}
        assert [sorted(order) for order in orders] == [list(range(12))] * 3, (what, seed)
        assert len(set(given)) == 36, (what, seed)
        assert again == [what, seed, given]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two ranks wrote in `_two_ranks.py`."""
    folder = tmp_path_factory.mktemp("ranks")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = [str(SUPPORT / "_two_ranks.py"), numbered_store(folder), str(folder)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*torchrun, *program], env=environment, timeout=500, check=True)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_loaders_that_are_made_before_the_ranks_meet_divide_the_epoch(ranks: list[Any]) -> None:
    first, second = ranks
    for name, (before, length, *epochs) in first["loaders"].items():
        assert (before, length) == tuple(second["loaders"][name][:2]), name
        assert before > length == len(epochs[0]), name
        for mine, theirs in zip(epochs, second["loaders"][name][2:], strict=True):
            assert len(mine) == len(theirs), name
            given = [x for batches in (mine, theirs) for batch in batches for x in batch]
            assert sorted(given) == list(range(12)), name
    for refused in (first["refused"], second["refused"]):
        assert "num_replicas is 3, and torch.distributed has 2 processes" in refused["num_replicas"]
        assert "began with 1 processes of torch.distributed, and there are 2" in refused["interrupted"]
        assert "Call set_epoch on the stream before each pass" in refused["unannounced"]
    assert first["alone"] == second["alone"] == 4  # num_replicas=1, rank=0: each rank reads everything


def test_ranks_without_a_seed_agree_on_one_order(ranks: list[Any]) -> None:
    runs = list(zip(*(each["seedless"] for each in ranks), strict=True))
    for one, other in zip(*runs[0], strict=True):  # the epochs of each loader and stream
        epochs = [mine + theirs for mine, theirs in zip(one, other, strict=True)]
        assert [sorted(epoch) for epoch in epochs] == [list(range(12))] * 3
        assert len(set(map(tuple, epochs))) == 3
    assert runs[1] == runs[0]  # each rank had called torch.manual_seed


def test_nothing_draws_from_the_global_generators(tmp_path: Path) -> None:
    program = [sys.executable, str(SUPPORT / "_seeded_program.py"), str(tmp_path)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr


def test_epochs_left_unfinished_at_exit_say_nothing(tmp_path: Path) -> None:
    script = f"""
import os, storeds
url = {numbered_store(tmp_path)!r}
dataset = storeds.StoreDataset(url, reader="array", fields=["x"])
os.epochs = [
    iter(storeds.StoreIterable(url, reader='array', fields=['x'])),
    iter(storeds.StoreLoader(dataset, start_method="thread", num_workers=2, batch_size=2)),
    iter(storeds.StoreLoader(dataset, num_workers=1, batch_size=2)),
]
for epoch in os.epochs:
    next(epoch)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
