"""Training begins with the first members of a store that is still copied: ``block_size="member"``."""

from __future__ import annotations

import itertools
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import storeds
from s3_server import BreakingProxy
from staged._stores import numbers, upload, write
from storeds import EpochSampler, StoreDataset, StoreLoader, errors, ops

MEMBERS, EACH = 6, 20
SIZES = [EACH + number for number in range(MEMBERS)]
TOTAL = sum(SIZES)
MEMBER_OF = np.repeat(np.arange(MEMBERS), SIZES)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A versioned store of several members of different sizes."""
    folder, first = tmp_path_factory.mktemp("store"), 0
    for number, size in enumerate(SIZES):
        storeds.append(f"lmdb://{folder}/store/", write(f"hdf5://{folder}/{number}.h5", first, size))
        first += size
    return folder / "store"


def order(dataset: Any, epoch: int = 0, **how: Any) -> list[int]:
    sampler = EpochSampler(dataset, shuffle=True, seed=2, block_size="member", **how)
    sampler.set_epoch(epoch)
    return list(sampler)


def test_the_first_epoch_has_members_one_window_after_the_other(store: Path) -> None:
    dataset = StoreDataset(f"lmdb://{store}/", reader="array", fields=["n"])
    first = order(dataset)
    assert sorted(first) == [*range(TOTAL)]
    came = [list(group) for _, group in itertools.groupby(MEMBER_OF[order(dataset, window=1)].tolist())]
    assert sorted(each[0] for each in came) == [*range(MEMBERS)]  # one block each
    assert [each[0] for each in came] != [*range(MEMBERS)]
    for start, end in ((0, 1), (1, 3), (3, 5), (5, 6)):  # the first one alone, then by default two are mixed
        window = {each[0] for each in came[start:end]}
        size = sum(SIZES[member] for member in window)
        taken, first = first[:size], first[size:]
        assert set(MEMBER_OF[taken].tolist()) == window
        assert taken != sorted(taken)
        assert (len([*itertools.groupby(MEMBER_OF[taken].tolist())]) > 4) == (len(window) == 2)
    assert len({*MEMBER_OF[order(dataset, epoch=1)[:EACH]].tolist()}) > 2
    assert order(dataset) != [*EpochSampler(dataset, shuffle=True, seed=8, block_size="member")]


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_any_number_of_ranks_has_the_same_order(store: Path, replicas: int) -> None:
    dataset = StoreDataset(f"lmdb://{store}/", reader="array", fields=["n"])
    ranks = [order(dataset, num_replicas=replicas, rank=rank, drop_last=True) for rank in range(replicas)]
    together = [index for step in zip(*ranks, strict=True) for index in step]
    assert together == order(dataset)[: len(together)]


def test_selections_subsets_patterns_and_windows_have_the_members_of_their_records(store: Path, tmp_path: Path) -> None:
    selected = StoreDataset(f"lmdb://{store}/?where=n >= 30", reader="array", fields=["n"])
    last = StoreDataset(f"lmdb://{store}/", reader="array", fields=["n"], where={"n": [*range(90, TOTAL)]})
    chosen = torch.utils.data.Subset(selected, [*range(0, len(selected), 3)])
    files = [write(f"hdf5://{tmp_path}/{number}.h5", 10 * number, 10) for number in range(4)]
    pattern = StoreDataset(f"hdf5://{tmp_path}/*.h5", reader="array", fields=["n"])
    joined: Any = torch.utils.data.ConcatDataset([pattern, selected])
    for dataset, member_of in (
        (selected, MEMBER_OF[30:]),
        (last, MEMBER_OF[90:]),
        (chosen, MEMBER_OF[30::3]),
        (pattern, np.repeat(np.arange(len(files)), 10)),
        (joined, np.concatenate([np.repeat(np.arange(len(files)), 10), 10 + MEMBER_OF[30:]])),
    ):
        came = [member for member, _ in itertools.groupby(member_of[order(dataset, window=1)].tolist())]
        assert sorted(came) == sorted({*member_of.tolist()})
    with pytest.raises(errors.ConfigError, match="block_size='member' is for stores with members"):
        order(torch.utils.data.TensorDataset(torch.zeros(4)))
    with pytest.raises(errors.ConfigError, match="block_size must be"):
        EpochSampler(selected, shuffle=True, block_size="members")


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_the_first_batches_come_before_most_members_are_there(
    start_method: Any, store: Path, bucket: Any, proxy: BreakingProxy, tmp_path: Path
) -> None:
    size, cache = upload(bucket, store, f"first-{start_method}"), tmp_path / "cache"
    proxy.held_after = (
        proxy.received + size * 3 // 10
    )  # of six members, the first one of the epoch and a part of the next
    dataset = StoreDataset(f"s3://bucket/first-{start_method}/", reader="array", fields=["n"], stage=cache)
    how: dict[str, Any] = {"num_workers": 2, "start_method": start_method, "timeout": 30}
    loader = StoreLoader(dataset, batch_size=5, shuffle=True, seed=2, block_size="member", **how)
    found = []
    for (batch,) in loader:
        found += batch.tolist()
        if not proxy.release.is_set() and len(found) == 10:
            assert len([*cache.glob("*/store/members/*.lmdb")]) <= 2
            proxy.release.set()
    assert found == order(dataset)
    (copy,) = ops.staged(cache)
    assert copy.is_complete
    assert sorted(int(n) for (batch,) in loader for n in batch) == [*range(TOTAL)]


def test_a_run_that_is_resumed_goes_on_in_the_order_of_members(store: Path) -> None:
    dataset = StoreDataset(f"lmdb://{store}/", reader="array", fields=["n"])
    how: dict[str, Any] = {"batch_size": 5, "shuffle": True, "seed": 2, "block_size": "member"}
    loader = StoreLoader(dataset, **how)
    batches = iter(loader)
    seen = [int(n) for _ in range(3) for n in next(batches)[0]]
    state = loader.state_dict()
    other = StoreLoader(dataset, **how)
    other.load_state_dict(state)
    assert seen + [int(n) for (batch,) in other for n in batch] == order(dataset)
    with pytest.raises(errors.ConfigError):
        StoreLoader(dataset, **{**how, "block_size": None}).load_state_dict(state)


def test_a_copying_process_that_is_killed_is_replaced(
    store: Path, bucket: Any, proxy: BreakingProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "storeds")
    size, killed = upload(bucket, store, "killed"), 0
    proxy.rate = size / 3
    with storeds.open_backend("s3://bucket/killed/", stage=tmp_path / "cache") as backend:
        for position in range(0, TOTAL, TOTAL // 5):
            assert backend.get_many([position], ["n"]) == [{"n": position}]
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            for pid in children:
                if b"storeds.backends.staged.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(int(pid), 9)
                    killed += 1
    assert killed
    assert numbers("s3://bucket/killed/", stage=tmp_path / "cache") == [*range(TOTAL)]
    assert "waiting for" in caplog.text


def test_what_the_copying_process_finds_wrong_is_the_error_of_the_reader(
    store: Path, bucket: Any, proxy: BreakingProxy, tmp_path: Path
) -> None:
    import obstore

    upload(bucket, store, "wrong")
    member = min((store / "members").iterdir())
    data = bytearray(member.read_bytes())
    data[data.rindex(b"\x01" * 1000)] ^= 8
    obstore.put(bucket, f"wrong/members/{member.name}", bytes(data))
    with (
        storeds.open_backend("s3://bucket/wrong/", stage=tmp_path / "cache") as backend,
        pytest.raises(errors.FormatError, match="what was copied is damaged") as caught,
    ):
        backend.get_many(range(TOTAL))
    assert "never-shown" not in str(caught.value)
    with (
        storeds.open_backend("s3://bucket/wrong/", stage={"path": tmp_path / "small", "limit": "100kB"}) as backend,
        pytest.raises(errors.StoredsError, match=r"of the limit of 100.0 kB .* are missing"),
    ):
        backend.get_many([0])
