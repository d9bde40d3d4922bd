"""StoreIterable: order, shares of ranks and workers, storage calls, threads, epochs, states, bad samples.

Imports private modules, because the order of a stream is checked part by part against independent models.
"""

from __future__ import annotations

import gc
import itertools
import json
import pickle
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ChainDataset, DataLoader

import storeds
from photographs import jpeg
from shares import examples
from storeds import StoreDataset, errors
from storeds._utils.prefetch import ReadAhead
from storeds.backends import MemoryBackend
from storeds.datasets import StoreIterable
from storeds.datasets.stream import (
    Addresses,
    IndexRange,
    Interleave,
    Remainder,
    Shard,
    ShuffleBuffer,
    rank_bounds,
    shard_ranges,
)
from storeds.loaders import permute, round_keys

SIZES = (7, 3, 0, 11, 5)
TOTAL = sum(SIZES)
ENGINES = ("lmdb", "hdf5", "memory", "lmdb", "hdf5")
EVERY = [(source, index) for source, size in enumerate(SIZES) for index in range(size)]
Found = list[tuple[int, int]]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """URLs of stores of `SIZES` records that say which source they are of."""
    folder = tmp_path_factory.mktemp("stream")
    found = []
    for number, (engine, size) in enumerate(zip(ENGINES, SIZES, strict=True)):
        place = f"{folder}/" if engine != "memory" else folder.name
        url = f"{engine}://{place}{number}"
        with storeds.open_writer(url, {"source": "int", "key": "str"}) as writer:
            writer.append({"source": number, "key": f"{number}/{at}"} for at in range(size))
        found.append(url)
    return found


def stream(sources: Any, **arguments: Any) -> StoreIterable:
    return StoreIterable(sources, reader="array", fields=["source", "index"], **arguments)


def as_list(samples: list[Any]) -> Found:
    return [tuple(map(int, sample)) for sample in samples]  # type: ignore[misc]


def load(dataset: Any, workers: int, method: str | None = None, batch: int = 4, **arguments: Any) -> DataLoader[Any]:
    context = method if workers else None
    return DataLoader(
        dataset, batch, num_workers=workers, collate_fn=as_list, multiprocessing_context=context, **arguments
    )


# The order, as plain Python has it.


def plain_interleave(sequences: Sequence[Sequence[Any]], cycle_length: int, block_length: int) -> list[Any]:
    """tf.data's InterleaveDataset::GetNext, element by element."""
    waiting = iter(sequences)
    slots: list[Iterator[Any] | None] = [None] * cycle_length
    ended, at, block = False, 0, 0
    out: list[Any] = []
    nothing = object()
    while not ended or any(slot is not None for slot in slots):
        slot = slots[at]
        if slot is not None:
            element = next(slot, nothing)
            if element is nothing:
                slots[at], at, block = None, (at + 1) % cycle_length, 0
                continue
            out.append(element)
            block += 1
            if block == block_length:
                at, block = (at + 1) % cycle_length, 0
        elif not ended:
            following = next(waiting, None)
            ended = following is None
            slots[at] = None if following is None else iter(following)
        else:
            at, block = (at + 1) % cycle_length, 0
    return out


def plain_shuffle(elements: Sequence[Any], size: int, draws: Sequence[int], drain: Sequence[int]) -> list[Any]:
    """Shuffle through a buffer whose draws are given."""
    buffer, out = list(elements[:size]), []
    for element, slot in zip(elements[size:], draws, strict=True):
        out.append(buffer[slot])
        buffer[slot] = element
    return out + [buffer[slot] for slot in drain]


def plain_row(counts: Sequence[int], seed: int | None, epoch: int, shares: int) -> Found:
    """All addresses, source by source."""
    order = list(range(len(counts)))
    if seed is None:
        return [(source, index) for source in order for index in range(counts[source])]
    keys = round_keys("storeds.sources", 1, seed, epoch)
    order = permute(torch.arange(len(counts)).numpy().astype("uint64"), len(counts), keys).tolist()
    row = [(source, index) for source in order for index in range(counts[source])]
    turn = int(keys[0]) % len(row) if row and shares > 1 else 0
    return row[turn:] + row[:turn]


def plain_pieces(part: Found) -> list[Found]:
    """Split where it goes on in another source, or elsewhere in the same one."""
    found: list[Found] = []
    for address in part:
        if found and found[-1][-1] == (address[0], address[1] - 1):
            found[-1].append(address)
        else:
            found.append([address])
    return found


def plain(
    counts: Sequence[int],
    shard: Shard,
    *,
    cycle_length: int = 4,
    block_length: int = 1,
    remainder: Remainder = "keep",
    seed: int | None = None,
    epoch: int = 0,
) -> Found:
    """What a worker yields without a buffer."""
    row = plain_row(counts, seed, epoch, shard.replicas * shard.workers)
    total = len(row)
    kept = {"keep": total, "drop": total // shard.replicas * shard.replicas}
    total = kept.get(remainder, -(-total // shard.replicas) * shard.replicas)
    row = (row * (shard.replicas + 1))[:total] if row else []
    own = row[total * shard.rank // shard.replicas : total * (shard.rank + 1) // shard.replicas]
    part = own[len(own) * shard.worker // shard.workers : len(own) * (shard.worker + 1) // shard.workers]
    return plain_interleave(plain_pieces(part), cycle_length, block_length)


class TestInterleave:
    def test_it_is_the_example_of_tf_data(self) -> None:
        order = Interleave([6] * 5, cycle_length=2, block_length=4)
        found = [order.locate(position)[0] + 1 for position in range(len(order))]
        assert "".join(map(str, found)) == "111122221122333344443344555555"

    @given(st.lists(st.integers(0, 20), max_size=12), st.integers(1, 8), st.integers(1, 6))
    def test_every_position_is_where_reading_in_turn_comes_to(
        self, lengths: list[int], cycle_length: int, block_length: int
    ) -> None:
        order = Interleave(lengths, cycle_length, block_length)
        sequences = [[(sequence, at) for at in range(length)] for sequence, length in enumerate(lengths)]
        expected = plain_interleave(sequences, cycle_length, block_length)
        assert [order.locate(position) for position in range(len(order))] == expected

    def test_a_million_million_elements_take_no_memory(self) -> None:
        order = Interleave([10**12, 10**11], 2, 3)
        assert [order.locate(10**9 * 6 + at) for at in (2, 3)] == [(0, 3 * 10**9 + 2), (1, 3 * 10**9)]
        assert order.locate(len(order) - 1) == (0, 10**12 - 1)
        assert len(order._stretches) < 10


class TestShuffleBuffer:
    @given(st.integers(0, 60), st.integers(0, 70), st.integers(0, 3), st.data())
    def test_it_is_a_buffer_and_goes_on_anywhere(self, count: int, size: int, seed: int, data: st.DataObject) -> None:
        buffer = ShuffleBuffer(count, size, seed)
        whole = list(buffer.walk(0))
        assert sorted(whole) == list(range(count))
        start = data.draw(st.integers(0, count))
        assert list(buffer.walk(start)) == whole[start:]
        if count and size > 1:
            draws = buffer._drawn(0, buffer._refills).tolist()
            slots = buffer._slots(buffer._refills).tolist()
            drain = [slots.index(each) for each in whole[buffer._refills :]]
            assert plain_shuffle(range(count), buffer._size, draws, drain) == whole
        else:
            assert whole == list(range(count))

    def test_going_on_far_in_does_not_replay_what_came_before(self) -> None:
        buffer = ShuffleBuffer(10**12, 1000, 7)
        following = list(itertools.islice(buffer.walk(5 * 10**11), 3000))
        assert list(itertools.islice(buffer.walk(5 * 10**11 + 2000), 1000)) == following[2000:]
        assert len(set(following)) == 3000

    def test_it_mixes_as_widely_as_it_holds(self) -> None:
        moved = [abs(at - element) for at, element in enumerate(ShuffleBuffer(10_000, 1000, 1).walk(0))]
        assert (
            400 < sum(moved) / len(moved) < 1200
        )  # a real buffer holds an element for 1,000 steps, give or take 1,000
        assert [*ShuffleBuffer(100, 10, 1).walk(0)] != [*ShuffleBuffer(100, 10, 2).walk(0)]


class TestShares:
    @settings(max_examples=examples(200))
    @given(
        st.lists(st.integers(0, 9), min_size=1, max_size=6),
        st.integers(1, 6),
        st.integers(1, 4),
        st.sampled_from(["keep", "drop", "pad"]),
        st.sampled_from([None, 0, 5]),
        st.integers(1, 4),
        st.integers(1, 3),
    )
    def test_nothing_is_lost_or_doubled(
        self,
        counts: list[int],
        replicas: int,
        workers: int,
        remainder: Remainder,
        seed: int | None,
        cycle_length: int,
        block_length: int,
    ) -> None:
        total, sizes, union = sum(counts), [], []
        for rank in range(replicas):
            of_rank = 0
            for worker in range(workers):
                shard = Shard(rank, replicas, worker, workers)
                own = shard_ranges(counts, shard, remainder, seed, 3)
                found = list(Addresses(own, cycle_length, block_length, 0).walk())
                expected = plain(
                    counts,
                    shard,
                    cycle_length=cycle_length,
                    block_length=block_length,
                    remainder=remainder,
                    seed=seed,
                    epoch=3,
                )
                assert found == expected
                of_rank += len(found)
                union += found
            first, last = rank_bounds(total, Shard(rank, replicas), remainder)
            assert of_rank == last - first
            sizes.append(of_rank)
        every = [(source, index) for source, count in enumerate(counts) for index in range(count)]
        extra = len(union) - total
        assert max(sizes) - min(sizes) <= (remainder == "keep")
        if remainder == "drop":
            assert len(set(union)) == len(union) == total - total % replicas
        else:
            assert sorted(set(union)) == every
            assert extra == (-total % replicas if remainder == "pad" and total else 0)

    def test_the_rank_that_has_a_part_changes_with_the_epoch(self) -> None:
        found = {shard_ranges([100], Shard(0, 2), "keep", 1, epoch)[0].start for epoch in range(10)}
        assert len(found) > 5
        assert shard_ranges([100], Shard(0, 2), "keep", None, 1) == [IndexRange(0, 0, 50)]


class TestOrder:
    @pytest.mark.parametrize(("cycle_length", "block_length"), [(1, 1), (2, 1), (4, 3), (9, 2)])
    @pytest.mark.parametrize("read_batch", [1, 4, 100])
    def test_sources_are_read_in_turn(
        self, urls: list[str], cycle_length: int, block_length: int, read_batch: int
    ) -> None:
        found = stream(urls, cycle_length=cycle_length, block_length=block_length, read_batch=read_batch)
        expected = plain(SIZES, Shard(), cycle_length=cycle_length, block_length=block_length)
        assert as_list(list(found)) == expected == as_list(list(found))
        assert len(found) == TOTAL

    @pytest.mark.parametrize("read_ahead", [0, 1, 5])
    def test_one_source_comes_in_its_own_order(self, urls: list[str], read_ahead: int) -> None:
        assert as_list(list(stream(urls[3], read_ahead=read_ahead, read_batch=2))) == [(3, at) for at in range(11)]

    def test_samples_are_those_of_the_datasets(self, urls: list[str]) -> None:
        for number, url in enumerate(urls):
            own = StoreDataset(url, reader="array", fields=["key", "index"])
            found = list(StoreIterable(own))
            assert found == own[:] == [(f"{number}/{at}", at) for at in range(SIZES[number])]

    def test_sources_may_be_anything_a_dataset_takes(self, urls: list[str]) -> None:
        ready = StoreDataset(urls[3], reader="array", fields=["source", "index"])
        sources = [urls[0], Path(urls[1].removeprefix("hdf5://")), storeds.open_backend(urls[2]), ready]
        sources.append(storeds.Source(url=urls[4]))
        assert sorted(as_list(list(stream(sources)))) == EVERY
        assert as_list(list(stream(iter(urls[:1])))) == [(0, at) for at in range(7)]

    @pytest.mark.parametrize("arguments", [{}, {"layout": "storeds/1", "options": {"readahead": True}}])
    def test_a_pattern_is_as_many_sources_as_files(self, tmp_path: Path, arguments: dict[str, Any]) -> None:
        files = [f"lmdb://{tmp_path}/{number}.lmdb" for number in range(3)]
        for number, url in enumerate(files):
            with storeds.open_writer(url, {"source": "int"}) as writer:
                writer.append({"source": number} for _ in range(number + 1))
        order: dict[str, Any] = {"cycle_length": 2, "seed": 1, "shuffle_buffer": 2, **arguments}
        listed = stream([files[2], *files[:2]], **order)
        expected = list(listed)
        for pattern in (f"lmdb://{tmp_path}/*.lmdb", Path(f"{tmp_path}/*.lmdb")):
            found = stream([files[2], f"lmdb://{tmp_path}/[01].lmdb"], **order)
            assert [dataset.url for dataset in found.datasets] == [dataset.url for dataset in listed.datasets]
            assert list(found) == expected
            assert as_list(list(stream(pattern, **arguments))) == plain((1, 2, 3), Shard())
        with pytest.raises(errors.StoreNotFoundError, match="no file matches"):
            stream(f"lmdb://{tmp_path}/*.h5")

    def test_a_pattern_among_other_sources_is_pickled_and_shared_out(self, urls: list[str], tmp_path: Path) -> None:
        storeds.convert(urls[1], f"hdf5://{tmp_path}/a.h5")
        storeds.convert(urls[3], f"hdf5://{tmp_path}/b.h5")
        found = stream([urls[0], f"hdf5://{tmp_path}/*.h5"])
        expected = [(0, at) for at in range(7)] + [(1, at) for at in range(3)] + [(3, at) for at in range(11)]
        assert sorted(sum(load(found, 2, "forkserver"), [])) == expected

    def test_shuffling_depends_on_seed_and_epoch_alone(self, urls: list[str]) -> None:
        found = stream(urls, seed=3, shuffle_buffer=8)
        orders = []
        for epoch in range(3):
            found.set_epoch(epoch)
            orders.append(as_list(list(found)))
            assert sorted(orders[-1]) == EVERY
            again = stream(urls, seed=3, shuffle_buffer=8, read_batch=5, read_ahead=0)
            again.set_epoch(epoch)
            assert as_list(list(again)) == orders[-1]
        assert len(set(map(tuple, orders))) == 3
        assert as_list(list(stream(urls, seed=4, shuffle_buffer=8))) != orders[0]

    def test_a_seed_alone_shuffles_the_sources(self, urls: list[str]) -> None:
        found = stream(urls, seed=1, cycle_length=1)
        orders = set()
        for epoch in range(6):
            found.set_epoch(epoch)
            samples = as_list(list(found))
            assert samples == plain(SIZES, Shard(), cycle_length=1, seed=1, epoch=epoch)
            orders.add(tuple(dict.fromkeys(source for source, _ in samples)))
        assert len(orders) > 3

    def test_sources_do_not_share_their_randomness(self, urls: list[str]) -> None:
        found = stream([urls[0], urls[0]], seed=5, transform=draw)
        numbers = [number for number, _ in found]
        assert len(set(numbers)) == len(numbers) == 14
        assert [found.datasets[0][at][0] for at in range(7)] == [
            StoreDataset(urls[0], reader="array", fields=["source", "index"], seed=5, transform=draw)[at][0]
            for at in range(7)
        ]

    def test_streams_add_up(self, urls: list[str]) -> None:
        joined = stream(urls[0]) + stream(urls[1])
        assert isinstance(joined, ChainDataset)
        assert as_list(list(joined)) == [(0, at) for at in range(7)] + [(1, at) for at in range(3)]
        assert len(joined) == 10


def draw(value: int, generator: torch.Generator) -> int:
    return int(torch.randint(2**40, (), generator=generator))


class TestLoaders:
    @pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (2, "fork"), (2, "forkserver")])
    def test_ranks_and_workers_share_an_epoch(self, urls: list[str], workers: int, method: str | None) -> None:
        union: Found = []
        for rank in range(2 if method != "forkserver" else 1):
            found = stream(urls, seed=2, shuffle_buffer=4, num_replicas=2, rank=rank)
            loader = load(found, workers, method)
            assert len(loader) == -(-len(found) // 4)
            own = [sample for batch in loader for sample in batch]  # torch would warn of more batches than samples
            assert len(own) == len(found) == TOTAL // 2
            union += own
        assert sorted(union) == EVERY if rank else len(set(union)) == TOTAL // 2

    def test_spawned_workers_yield_what_forked_ones_do(self, urls: list[str]) -> None:
        found = stream(urls, seed=2, shuffle_buffer=4, transform=draw)
        both = []
        for method in ("spawn", "fork"):
            found.set_epoch(3)
            both.append(list(load(found, 2, method)))
        assert both[0] == both[1]

    @pytest.mark.filterwarnings("ignore:This DataLoader will create 5 worker processes:UserWarning")
    def test_a_worker_without_samples_yields_none(self, urls: list[str]) -> None:
        assert sorted(load(stream(urls[1]), 5, "fork")) == [[(1, 0)], [(1, 1)], [(1, 2)]]

    def test_ranks_are_those_of_torch_distributed(self, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
        monkeypatch.setattr("torch.distributed.get_world_size", lambda: 3)
        monkeypatch.setattr("torch.distributed.get_rank", lambda: 2)
        assert as_list(list(stream(urls))) == plain(SIZES, Shard(2, 3))

    def test_each_worker_yields_its_own_part(self, urls: list[str]) -> None:
        batches = list(load(stream(urls), 2, "fork", batch=100))
        assert batches == [plain(SIZES, Shard(worker=worker, workers=2)) for worker in range(2)]

    def test_an_epoch_reaches_persistent_workers(self, urls: list[str]) -> None:
        found = stream(urls, seed=2, shuffle_buffer=4, transform=draw)
        loader = load(found, 2, "fork", persistent_workers=True)
        epochs = []
        for epoch in (0, 1, 1):
            found.set_epoch(epoch)
            epochs.append([sample for batch in loader for sample in batch])
        assert epochs[0] != epochs[1] == epochs[2]
        assert {index for index, _ in epochs[0]} != {index for index, _ in epochs[1]}  # the numbers drawn differ too

    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
    def test_each_pass_is_the_next_epoch(self, urls: list[str], workers: int, persistent: bool) -> None:
        def make() -> tuple[StoreIterable, DataLoader[Any]]:
            made = stream(urls, seed=2, shuffle_buffer=4, transform=draw)
            return made, load(made, workers, "fork", persistent_workers=persistent)

        found, loader = make()
        counted = [list(loader) for _ in range(4)]
        assert found.epoch == 3
        other, loader = make()
        for epoch in (0, 1, 1, 3):
            other.set_epoch(epoch)
            assert list(loader) == counted[epoch]
        other.set_epoch(0)
        next(iter(loader))  # broken off
        assert [list(loader), list(loader)] == counted[1:3]

    def test_passes_of_two_loaders_side_by_side_keep_to_their_epochs(self, urls: list[str]) -> None:
        found = stream(urls, seed=2, shuffle_buffer=4, transform=draw)
        loader = load(found, 2, "fork")
        counted = [list(loader) for _ in range(2)]
        found.set_epoch(0)
        side_by_side = list(zip(loader, loader, strict=True))
        assert [one for one, _ in side_by_side] == counted[0]
        assert [other for _, other in side_by_side] == counted[1]

    def test_workers_that_draw_the_same_seed_in_each_pass_are_distinguished(self, urls: list[str]) -> None:
        loader = load(stream(urls, seed=2, shuffle_buffer=4, transform=draw), 2, "fork")
        passes = []
        for _ in range(3):
            torch.manual_seed(0)
            passes.append(str(list(loader)))
        assert len(set(passes)) == 3

    @pytest.mark.parametrize("workers", [0, 2])
    def test_without_a_seed_runs_differ_and_repeat_after_manual_seed(self, urls: list[str], workers: int) -> None:
        def run() -> list[Any]:
            loader = load(stream(urls, shuffle_buffer=4, transform=draw), workers, "fork")
            return [list(loader), list(loader)]

        torch.manual_seed(5)
        runs = [run(), run()]
        torch.manual_seed(5)
        assert run() == runs[0]
        assert len({str(each) for found in runs for each in found}) == 4

    def test_a_drawn_seed_is_part_of_the_state(self, urls: list[str]) -> None:
        found = stream(urls, shuffle_buffer=6)
        samples = iter(found)
        begun = [next(samples) for _ in range(9)]
        other = stream(urls, shuffle_buffer=6)
        other.load_state_dict(json.loads(json.dumps(found.state_dict())))
        assert sorted(as_list(begun + list(other))) == EVERY

    def test_a_pickle_is_small_and_equal(self, urls: list[str]) -> None:
        found = stream(urls, seed=2, shuffle_buffer=4)
        running = iter(found)
        next(running)
        blob = pickle.dumps(found)
        assert len(blob) < 40_000
        assert as_list(list(pickle.loads(blob))) == as_list(list(found))

    def test_empty_stores_yield_nothing(self, urls: list[str]) -> None:
        found = stream([urls[2], urls[2]], seed=1, shuffle_buffer=3, num_replicas=3, rank=1, remainder="pad")
        assert list(found) == []
        assert len(found) == len(load(found, 0)) == 0
        assert list(load(found, 2, "fork")) == []


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What was asked of LMDB: the size of each call, and the files opened."""
    from storeds.backends.lmdb import backend as lmdb

    seen: dict[str, list[Any]] = {"calls": [], "opens": []}
    get_many, open_file = lmdb.LmdbBackend.get_many, lmdb.LmdbOpener.open

    def counted(self: Any, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> Any:
        seen["calls"].append(len(positions))
        return get_many(self, positions, fields)

    def opened(self: Any, shared: Any = None) -> Any:
        seen["opens"].append(self.url)
        return open_file(self, shared)

    monkeypatch.setattr(lmdb.LmdbBackend, "get_many", counted)
    monkeypatch.setattr(lmdb.LmdbOpener, "open", opened)
    return seen


class TestReading:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        urls = [f"lmdb://{tmp_path}/{number}.lmdb" for number in range(6)]
        for number, url in enumerate(urls):
            with storeds.open_writer(url, {"source": "int"}) as writer:
                writer.append({"source": number} for _ in range(20))
        return urls

    def test_a_batch_is_one_storage_call_a_source(self, files: list[str], storage: dict[str, list[Any]]) -> None:
        assert len(list(stream(files, cycle_length=3, read_batch=12, read_ahead=0))) == 120
        assert storage["calls"] == [4] * 30
        storage["calls"].clear()
        assert len(list(stream(files[0], read_batch=8))) == 20
        assert sorted(storage["calls"]) == [4, 8, 8]

    @pytest.mark.parametrize("shuffle_buffer", [0, 30])
    def test_a_file_is_opened_once(self, files: list[str], storage: dict[str, list[Any]], shuffle_buffer: int) -> None:
        found = stream(files, cycle_length=2, seed=1, shuffle_buffer=shuffle_buffer)
        storage["opens"].clear()  # of reading what a store says about itself
        assert len(list(found)) == 120
        assert sorted(storage["opens"]) == sorted(dataset.url for dataset in found.datasets)

    def test_a_worker_opens_what_it_has_a_share_of(self, files: list[str], storage: dict[str, list[Any]]) -> None:
        found = stream(files, num_replicas=3, rank=1)
        storage["opens"].clear()
        assert {source for source, _ in as_list(list(found))} == {2, 3}
        assert len(storage["opens"]) == 2

    def test_reading_is_ahead_and_bounded(self, files: list[str], storage: dict[str, list[Any]]) -> None:
        samples = iter(stream(files, cycle_length=1, read_batch=4, read_ahead=3))
        assert storage["calls"] == []
        next(samples)
        deadline = time.monotonic() + 10
        while len(storage["calls"]) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.02)
        assert storage["calls"] == [4] * 4


def reading_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("storeds-read-ahead")]


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + 10
    while reading_threads() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert reading_threads() == []


class TestThreads:
    @pytest.mark.parametrize("how", ["end", "close", "drop", "cycle"])
    def test_they_end_with_the_iterator(self, urls: list[str], how: str) -> None:
        samples = iter(stream(urls, read_batch=2))
        assert reading_threads() == []
        next(samples)
        assert reading_threads()
        if how == "end":
            list(samples)
            assert reading_threads() == []
        elif how == "close":
            samples.close()  # type: ignore[attr-defined]
            assert reading_threads() == []
            assert list(samples) == []
        elif how == "cycle":
            samples.itself = samples  # type: ignore[attr-defined]
        gone = weakref.ref(samples)
        del samples
        gc.collect()
        assert gone() is None
        wait_for_no_threads()

    def test_results_come_in_order_and_errors_in_their_place(self) -> None:
        released = [threading.Event() for _ in range(6)]

        def work(job: int) -> int:
            assert released[job].wait(10)
            if job == 4:
                raise ValueError("four")
            return job

        results = ReadAhead(work, iter(range(6)), 3)
        for event in reversed(released):
            event.set()
        assert list(itertools.islice(results, 4)) == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="four"):
            next(results)
        assert list(results) == []
        assert reading_threads() == []

    def test_after_a_job_failed_none_of_those_behind_it_is_begun(self) -> None:
        begun: list[int] = []
        failing = threading.Event()

        def work(job: int) -> int:
            begun.append(job)
            if job == 1:
                failing.set()
                raise ValueError("the server is lost")
            assert failing.wait(20)
            return job

        results = ReadAhead(work, iter(range(20)), 8, threads=2)
        assert next(results) == 0
        with pytest.raises(ValueError, match="the server is lost"):
            list(results)
        assert len(begun) <= 3

    def test_the_error_of_the_first_failing_job_is_raised_and_results_before_it_are_given(self) -> None:
        later = threading.Event()

        def work(job: int) -> int:
            if job == 0:
                assert later.wait(20)
                return job
            later.set()
            raise ValueError(f"job {job}")

        results = ReadAhead(work, iter(range(9)), 4, threads=2)
        assert next(results) == 0
        with pytest.raises(ValueError, match="job 1"):
            next(results)

    def test_an_iterator_is_not_for_a_forked_child(self, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        samples = iter(stream(urls, read_batch=1))
        next(samples)
        with monkeypatch.context() as child:
            child.setattr("storeds._utils.prefetch.os.getpid", lambda: -1)
            with pytest.raises(errors.ClosedError, match="process that created it"):
                next(samples)
        wait_for_no_threads()

    def test_threads_that_a_forked_child_started_end_with_the_iterator_there(
        self, urls: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with monkeypatch.context() as parent:
            parent.setattr("storeds._utils.prefetch.os.getpid", lambda: -1)
            samples = iter(stream(urls, read_batch=1))
        next(samples)
        assert reading_threads()
        samples.close()  # type: ignore[attr-defined]
        assert reading_threads() == []

    def test_workers_with_threads_exit(self, urls: list[str]) -> None:
        loader = load(stream(urls, read_batch=1, read_ahead=4), 2, "fork", batch=1)
        running = iter(loader)
        next(running)
        workers = running._workers  # type: ignore[attr-defined]
        del running
        assert [worker.exitcode for worker in workers] == [0, 0]  # torch kills a worker that does not end

    def test_workers_may_be_forked_while_it_reads(self, urls: list[str]) -> None:
        found = stream(urls, read_batch=1)
        samples = iter(found)
        first = next(samples)
        assert sorted(sum(load(found, 2, "fork"), [])) == EVERY
        assert sorted(as_list([first, *samples])) == EVERY


class TestState:
    CASES = [
        {},
        {"cycle_length": 2, "block_length": 3},
        {"seed": 4, "shuffle_buffer": 6},
        {"seed": 4, "shuffle_buffer": 100, "num_replicas": 2, "rank": 1},
        {"seed": 4, "num_replicas": 3, "rank": 0, "remainder": "pad"},
    ]

    @pytest.mark.parametrize("arguments", CASES)
    def test_it_goes_on_at_every_position(self, urls: list[str], arguments: dict[str, Any]) -> None:
        found = stream(urls, read_batch=4, **arguments)
        found.set_epoch(2)
        whole, following = as_list(list(found)), as_list(list(found))
        assert len(whole) == len(found)
        found.set_epoch(2)
        samples = iter(found)
        for position in range(len(whole) + 1):
            state = found.state_dict()
            assert state["position"] == position
            assert len(json.dumps(state)) < 400
            other = stream(urls, read_batch=3, read_ahead=position % 2, **arguments)
            other.load_state_dict(json.loads(json.dumps(state)))
            assert other.state_dict() == state
            assert other.epoch == 2
            if position < len(whole):
                assert as_list(list(other)) == whole[position:]
            assert as_list(list(other)) == following
            assert other.epoch == 3
            if position < len(whole):
                assert as_list([next(samples)]) == [whole[position]]

    def test_it_outlives_the_iterator_and_a_loader_without_workers_counts_batches(self, urls: list[str]) -> None:
        found = stream(urls)
        for _ in zip(range(3), load(found, 0), strict=False):
            pass
        assert found.state_dict()["position"] in (12, 16)  # zip takes one more where range ends second
        rest = stream(urls)
        rest.load_state_dict(found.state_dict())
        assert len(list(rest)) == TOTAL - found.state_dict()["position"]

    def test_engines_do_not_matter(self, urls: list[str], tmp_path: Path) -> None:
        moved = f"hdf5://{tmp_path}/moved.h5"
        storeds.convert(urls[0], moved)
        one, two = stream([urls[0], urls[1]]), stream([moved, urls[1]])
        samples = iter(one)
        next(samples)
        two.load_state_dict(one.state_dict())
        assert list(two) == list(samples)

    @pytest.mark.parametrize(
        ("change", "named"),
        [
            ({"seed": 5}, "seed was 4 and is 5"),
            ({"shuffle_buffer": 7}, "shuffle_buffer was 6 and is 7"),
            ({"cycle_length": 3}, "cycle_length was 4 and is 3"),
            ({"block_length": 2}, "block_length was 1 and is 2"),
            ({"num_replicas": 2}, "num_replicas was 1 and is 2"),
            ({"remainder": "drop"}, "remainder was 'keep' and is 'drop'"),
            ({"where": {"source": 0}}, "stores was"),
            ({"sources": 3}, "stores was"),
        ],
    )
    def test_another_stream_refuses_it_and_says_why(self, urls: list[str], change: dict[str, Any], named: str) -> None:
        own = {"seed": 4, "shuffle_buffer": 6}
        state = stream(urls, **own).state_dict()
        other = stream(urls[: change.pop("sources", 5)], **{**own, **change})
        with pytest.raises(errors.ConfigError, match=f"another stream: .*{named}"):
            other.load_state_dict(state)

    def test_what_is_no_state_is_refused(self, urls: list[str]) -> None:
        found = stream(urls)
        state = found.state_dict()
        lacking = {name: value for name, value in state.items() if name != "position"}
        for wrong, named in [
            ({}, "version"),
            (None, "version"),
            ({**state, "version": 99}, "99"),
            (lacking, "lacks position"),
            ({**state, "position": TOTAL + 1}, "position"),
            ({**state, "position": -1}, "position"),
            ({**state, "epoch": "1"}, "epoch"),
        ]:
            with pytest.raises(errors.ConfigError, match=named):
                found.load_state_dict(wrong)  # type: ignore[arg-type]
        assert as_list(list(found)) == plain(SIZES, Shard())

    def test_a_state_of_one_process_is_not_for_two_workers(
        self, urls: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = stream(urls)
        found.load_state_dict({**found.state_dict(), "position": 3})
        monkeypatch.setattr(
            "storeds.datasets.iterable_dataset.get_worker_info", lambda: SimpleNamespace(id=1, num_workers=2)
        )
        with pytest.raises(errors.ConfigError, match="num_workers was 1 and is 2; worker was 0 and is 1"):
            iter(found)

    def test_the_rest_of_an_epoch_that_was_over_is_nothing_if_it_is_set(self, urls: list[str]) -> None:
        found = stream(urls)
        list(found)
        found.load_state_dict(found.state_dict())
        found.set_epoch(0)
        assert list(found) == []
        assert len(list(found)) == TOTAL
        assert found.epoch == 1

    def test_another_epoch_begins_at_its_beginning(self, urls: list[str]) -> None:
        found = stream(urls)
        found.load_state_dict({**found.state_dict(), "position": 3, "epoch": 1})
        assert found.epoch == 1
        found.set_epoch(2)
        assert found.state_dict()["position"] == 0
        assert len(list(found)) == TOTAL

    def test_the_end_of_an_epoch_leaves_a_later_one_as_it_is(self, urls: list[str]) -> None:
        found = stream(urls)
        list(found)
        state = found.state_dict()
        found.set_epoch(1)
        found.load_state_dict(state)
        assert found.epoch == 1
        assert len(list(found)) == TOTAL


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
class TestStatefulDataLoader:
    @pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
    def test_it_goes_on_after_every_batch(self, urls: list[str], workers: int, persistent: bool) -> None:
        module = pytest.importorskip("torchdata.stateful_dataloader")

        def make() -> tuple[StoreIterable, Any]:
            found = stream(urls, seed=9, shuffle_buffer=5)
            options = {"multiprocessing_context": "fork", "persistent_workers": persistent} if workers else {}
            return found, module.StatefulDataLoader(found, 3, num_workers=workers, collate_fn=as_list, **options)

        found, loader = make()
        epochs, states = [], []
        for epoch in range(2):
            found.set_epoch(epoch)
            batches = []
            for batch in loader:
                batches.append(batch)
                if epoch:
                    states.append(loader.state_dict())
            epochs.append(batches)
        assert sorted(sum(epochs[1], [])) == EVERY
        for at in range(0, len(states), 3 if workers else 1):
            other, again = make()
            other.set_epoch(1)
            again.load_state_dict(states[at])
            assert list(again) == epochs[1][at + 1 :]
            other.set_epoch(0)
            assert list(again) == epochs[0]


class TestBadSamples:
    BAD = (2, 3, 9)

    @pytest.fixture
    def photos(self, tmp_path: Path) -> str:
        url = f"memory://{tmp_path.name}-photos"
        with storeds.open_writer(url, {"image": "image", "label": "int"}, overwrite=True) as writer:
            writer.append({"image": b"no" if at in self.BAD else jpeg(at), "label": at} for at in range(10))
        return url

    @staticmethod
    def labels(samples: Any) -> list[int]:
        return [label for _, label in samples]

    @pytest.mark.parametrize("read_batch", [1, 3, 32])
    @pytest.mark.parametrize("read_ahead", [0, 2])
    def test_an_error_comes_in_its_place_and_ends_the_stream(
        self, photos: str, read_batch: int, read_ahead: int
    ) -> None:
        found = StoreIterable([photos, photos], read_batch=read_batch, read_ahead=read_ahead)
        samples = iter(found)
        assert self.labels(itertools.islice(samples, 4)) == [0, 0, 1, 1]
        with pytest.raises(errors.DecodeError, match="record 2 of memory://"):
            next(samples)
        assert list(samples) == []
        assert found.state_dict()["position"] == 4
        wait_for_no_threads()

    def test_an_error_is_counted_once_and_its_batch_read_once(
        self, photos: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = StoreIterable(photos, read_batch=10, read_ahead=0)
        calls = []
        get_many = MemoryBackend.get_many

        def counted(self: Any, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> Any:
            calls.append(len(positions))
            return get_many(self, positions, fields)

        monkeypatch.setattr(MemoryBackend, "get_many", counted)
        with pytest.raises(errors.DecodeError):
            list(found)
        assert (found.report().seen, found.report().bad) == (10, {"not_jpeg": 1})
        assert calls == [10]

    @pytest.mark.parametrize("read_batch", [1, 2, 32])
    def test_skipped_samples_are_left_out(self, photos: str, read_batch: int) -> None:
        found = StoreIterable(photos, on_error="skip", read_batch=read_batch)
        whole = [0, 1, 4, 5, 6, 7, 8]
        assert self.labels(found) == whole
        assert len(found) == 10
        samples = iter(found)
        for taken in range(len(whole) + 1):
            rest = StoreIterable(photos, on_error="skip")
            rest.load_state_dict(found.state_dict())
            assert self.labels(rest) == whole[taken:]
            next(samples, None)
        report = StoreIterable([photos, photos], on_error="skip")
        list(report)
        assert (report.report().seen, report.report().skipped) == (20, 6)
        assert report.report().url.endswith("and 1 more")

    def test_replaced_samples_keep_the_count(self, photos: str) -> None:
        labels = self.labels(StoreIterable(photos, on_error="replace", seed=1))
        assert len(labels) == 10
        assert not set(labels) & set(self.BAD)

    def test_too_many_bad_ones_over_all_sources_end_the_stream(self, photos: str) -> None:
        assert len(list(StoreIterable([photos, photos], on_error="skip", max_bad=6))) == 14
        with pytest.raises(errors.BadSamplesError, match="max_bad=5"):
            list(StoreIterable([photos, photos], on_error="skip", max_bad=5))

    def test_a_share_of_bad_ones_is_of_all_sources(self, photos: str) -> None:
        # Of ten, four bad ones are too many; of twenty, six are not.
        share: dict[str, Any] = {"max_bad_fraction": 0.3, "read_batch": 4}
        assert len(list(StoreIterable([photos, photos], on_error="skip", **share))) == 14
        with pytest.raises(errors.BadSamplesError, match="max_bad_fraction=0.2 of 20"):
            list(StoreIterable([photos, photos], on_error="skip", max_bad_fraction=0.2, read_batch=4))

    def test_an_error_of_the_engine_is_raised(self, photos: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*_: Any) -> Any:
            raise errors.UnavailableError("gone")

        found = StoreIterable(photos, on_error="skip")
        monkeypatch.setattr(MemoryBackend, "get_many", fail)
        with pytest.raises(errors.UnavailableError, match="gone"):
            list(found)

    def test_datasets_that_were_made_elsewhere_report_for_themselves(self, photos: str) -> None:
        ready = StoreDataset(photos, on_error="skip")
        found = StoreIterable(ready)
        list(found)
        assert ready.report().skipped == 3
        with pytest.raises(errors.ConfigError, match="call report.. on each"):
            found.report()


class TestBadInput:
    @pytest.mark.parametrize(
        ("arguments", "named"),
        [
            ({"cycle_length": 0}, "cycle_length must be at least 1, got 0"),
            ({"block_length": 0}, "block_length must be at least 1"),
            ({"block_length": 1.5}, "block_length must be an int"),
            ({"shuffle_buffer": -1, "seed": 0}, "shuffle_buffer must be at least 0"),
            ({"shuffle_buffer": 5, "num_replicas": 2, "rank": 0}, "the ranks would shuffle differently"),
            ({"seed": True}, "seed must be an int, got True"),
            ({"seed": "x"}, "seed must be an int"),
            ({"read_batch": 0}, "read_batch"),
            ({"read_ahead": -1}, "read_ahead"),
            ({"remainder": "padd"}, "unknown remainder 'padd'; did you mean 'pad'"),
            ({"num_replicas": 0}, "num_replicas"),
            ({"num_replicas": 2, "rank": 2}, "rank must be from 0 to 1, got 2"),
            ({"rank": 1}, "rank must be from 0 to 0"),
        ],
    )
    def test_arguments(self, urls: list[str], arguments: dict[str, Any], named: str) -> None:
        with pytest.raises(errors.ConfigError, match=named):
            stream(urls, **arguments)

    @pytest.mark.parametrize(
        ("sources", "named"),
        [
            ([], "at least one source"),
            ({"a", "b"}, "a set has none"),
            ({"url": "a"}, "a mapping is not a source: pass Source.parse"),
            (3, "not int"),
            ([3], "not int"),
        ],
    )
    def test_sources(self, sources: Any, named: str) -> None:
        with pytest.raises(errors.ConfigError, match=named):
            stream(sources)

    def test_an_epoch_that_cannot_be_sent_to_workers(self, urls: list[str]) -> None:
        found = stream(urls)
        for epoch in (-1, 2**63, 1.5):
            with pytest.raises(errors.ConfigError, match="epoch must be"):
                found.set_epoch(epoch)  # type: ignore[arg-type]
        found.set_epoch(2**63 - 1)
        assert len(list(found)) == TOTAL

    def test_a_source_that_is_no_store(self, urls: list[str], tmp_path: Path) -> None:
        with pytest.raises(errors.StoreNotFoundError, match="missing"):
            stream([urls[0], f"lmdb://{tmp_path}/missing.lmdb"])

    def test_sources_of_different_fields(self, urls: list[str], tmp_path: Path) -> None:
        other = f"memory://{tmp_path.name}-other"
        with storeds.open_writer(other, {"source": "str", "key": "str"}) as writer:
            writer.append([])
        with pytest.raises(errors.ConfigError, match=rf"kinds are .*{urls[0]}.*{other}"):
            stream([urls[0], other])
        ready = StoreDataset(urls[1], reader="array", fields=["key"])
        with pytest.raises(errors.ConfigError, match=rf"fields are .*{urls[0]}.*{urls[1]}"):
            stream([urls[0], ready])
        ready = StoreDataset(urls[1], reader="array", fields=["source", "index"], as_dict=True)
        with pytest.raises(errors.ConfigError, match="as_dict"):
            stream([urls[0], ready])

    def test_arguments_for_datasets_that_are_made(self, urls: list[str]) -> None:
        with pytest.raises(errors.ConfigError, match="as_dict are for making datasets"):
            StoreIterable(StoreDataset(urls[0], reader="array"), as_dict=True)

    def test_a_closed_stream(self, urls: list[str]) -> None:
        found = stream(urls)
        found.close()
        with pytest.raises(errors.ClosedError):
            list(found)

    def test_repr(self, urls: list[str]) -> None:
        assert repr(stream(urls, num_replicas=2, rank=1)).endswith("0 and 4 more', count=26, rank=1 of 2)")
