"""bench: what is measured, what counts as cold, which part of the work it names, and what it leaves out.

Imports private modules, because a report does not show the rules behind its advice.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
import mmap
import pickle
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import storeds
from _damaged import PICTURES, write
from _foreign_lmdb import put
from photographs import jpeg
from storeds import StoreDataset, errors
from storeds._utils.locations import file_system
from storeds.backends import MemoryBackend
from storeds.cli import app
from storeds.errors import RecordError
from storeds.ops import Bottleneck, Measurement, Progress, bench
from storeds.ops.benchmarking import _usual_workers
from storeds.ops.benchmarking.page_cache import PageCache
from storeds.ops.benchmarking.report import PARTS, advise, best_workers, bottleneck_of
from storeds.ops.benchmarking.runner import Batch, Probe, endless, once
from storeds.protocols import Field, Record

MakeUrl = Callable[[str], str]
BRIEF = 0.05  # seconds: these tests are about what is measured, not about how fast it is
COUNT = 24


def images(url: str, count: int = COUNT) -> str:
    with storeds.open_writer(url, {"image": "image", "label": "int"}) as writer:
        writer.append({"image": jpeg(n % 4), "label": n % 3} for n in range(count))
    return url


def arrays(url: str, shapes: Sequence[tuple[int, ...]], declared: Sequence[int | None]) -> str:
    with storeds.open_writer(url, {"x": Field("array", "<f4", tuple(declared))}) as writer:
        writer.append({"x": np.zeros(shape, "f4")} for shape in shapes)
    return url


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Give a folder on a disk, which a temporary one need not be on."""
    if file_system(str(tmp_path)) != "tmpfs":
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=Path(__file__).parent) as folder:
        yield Path(folder)


# What is measured


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_every_stage_is_measured_by_number_of_workers(make_engine_url: MakeUrl, engine: str) -> None:
    report = bench(images(make_engine_url(engine)), workers=(0, 2), batch_size=8, seconds=BRIEF, cold=False)
    assert [(m.stage, m.workers, m.cache) for m in report.measurements] == [
        (stage, workers, "warm") for workers in (0, 2) for stage in ("raw", "decoded", "full")
    ]
    for measured in report.measurements:
        assert measured.samples == measured.records > 0
        assert measured.bad == 0
        assert measured.rate == pytest.approx(measured.samples / measured.seconds)
        assert measured.bytes >= measured.records * min(len(jpeg(n)) for n in range(4))
        assert tuple(measured.parts) == PARTS
        assert sum(measured.shares.values()) == pytest.approx(1)
        assert measured.start_seconds >= 0
    assert report.images
    assert report.count == COUNT
    assert report.workers in (0, 2)
    assert report.bottleneck is not None


def test_each_stage_includes_the_one_before(make_engine_url: MakeUrl) -> None:
    report = bench(images(make_engine_url("memory")), workers=[0], batch_size=8, seconds=BRIEF)
    busy = {
        m.stage: {part for part, seconds in m.parts.items() if seconds and part != "transport"}
        for m in report.measurements
    }
    assert busy == {
        "raw": {"storage"},
        "decoded": {"storage", "decode"},
        "full": {"storage", "decode", "transform", "collate"},
    }


def test_parts_sum_to_the_workers_time() -> None:
    done = [Batch(samples=4, records=4, bytes=400, seconds={"storage": 0.1, "decode": 0.3}) for _ in range(4)]
    measured = Measurement.of("full", 2, "warm", done, 1.0, 0.2)
    assert measured.parts == pytest.approx(
        {"storage": 0.4 / 16, "decode": 1.2 / 16, "transform": 0, "collate": 0, "transport": 0.4 / 16}
    )
    assert sum(measured.parts.values()) * measured.samples == pytest.approx(2 * measured.seconds)
    assert measured.rate == 16
    assert measured.mib_rate == pytest.approx(1600 / 2**20)


def test_a_store_smaller_than_a_batch_is_read_repeatedly(make_engine_url: MakeUrl) -> None:
    report = bench(images(make_engine_url("memory"), 3), workers=[0], batch_size=16, seconds=BRIEF)
    assert all(m.samples >= 16 for m in report.measurements)


def test_endless_order_visits_every_sample_in_each_round() -> None:
    drawn = list(itertools.chain(*itertools.islice(endless(np.arange(5), 3, np.random.default_rng(0)), 10)))
    assert [sorted(drawn[start : start + 5]) for start in range(0, 30, 5)] == [[0, 1, 2, 3, 4]] * 6
    assert drawn[:5] != drawn[5:10]


def test_one_pass_has_no_sample_twice() -> None:
    batches = list(once(10, 4, np.random.default_rng(0)))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    assert sorted(itertools.chain(*batches)) == list(range(10))


def test_an_empty_batch_does_not_touch_the_store(make_engine_url: MakeUrl) -> None:
    dataset = StoreDataset(images(make_engine_url("lmdb")))
    probe = Probe(dataset, "full", storeds.collate)
    dataset.close()
    assert probe.__getitems__([]) == Batch()
    with pytest.raises(errors.ClosedError):
        probe.__getitems__([0])


def test_a_probe_is_picklable(make_engine_url: MakeUrl) -> None:
    dataset = StoreDataset(images(make_engine_url("lmdb")), transform="ToTensor")
    copy = pickle.loads(pickle.dumps(Probe(dataset, "full", storeds.collate)))
    batch = copy.__getitems__([1, 2])
    assert set(batch.seconds) == {"storage", "decode", "transform", "collate"}
    assert batch.values[0].shape == (2, 3, 64, 96)
    assert (batch.samples, batch.records, batch.bad) == (2, 2, 0)


def test_progress_counts_measurements(make_engine_url: MakeUrl) -> None:
    reported: list[Progress] = []
    url = images(make_engine_url("memory"))
    report = bench(url, workers=[0], batch_size=8, seconds=BRIEF, progress=reported.append)
    assert {state.total for state in reported} == {len(report.measurements)}
    assert {state.done for state in reported} == set(range(len(report.measurements)))
    assert reported[-1].bytes >= sum(m.bytes for m in report.measurements)


def test_the_usual_numbers_of_workers_go_up_to_the_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for cpus in (1, 2, 6, 8):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cpus=cpus: set(range(cpus)))
        found[cpus] = _usual_workers()
    assert found == {1: [0, 1], 2: [0, 1, 2], 6: [0, 1, 2, 4, 6], 8: [0, 1, 2, 4, 8]}


# Cold


def resident(path: Path) -> float:
    """Return the share of a file's pages that mincore(2) says are in memory."""
    mapped = np.memmap(path, np.uint8, "c")
    pages = np.zeros(-(-mapped.size // mmap.PAGESIZE), np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mincore(
        ctypes.c_void_p(mapped.ctypes.data), ctypes.c_size_t(mapped.size), ctypes.c_void_p(pages.ctypes.data)
    )
    assert done == 0
    return float((pages & 1).mean())


def on_disk(disk: Path, engine: str, count: int = 400) -> tuple[str, Path]:
    url = images(f"{engine}://{disk}/store.{engine}", count)
    return url, disk / f"store.{engine}"


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_dropping_the_cache_drops_the_pages_of_a_store_that_was_just_written(disk: Path, engine: str) -> None:
    url, path = on_disk(disk, engine)
    path.read_bytes()
    assert resident(path) == 1
    with storeds.open_backend(url) as backend:
        cache = PageCache.of(backend)
        assert cache.files == [str(path)]
        state = cache.drop()
    assert state.is_cold
    assert state.left is not None
    assert state.left < 0.1
    assert resident(path) < 0.1


@pytest.mark.parametrize("engine", ["lmdb", "hdf5"])
def test_cold_measurements_start_with_an_empty_cache(disk: Path, engine: str) -> None:
    url, _ = on_disk(disk, engine)
    report = bench(url, workers=(0, 1), batch_size=8, seconds=BRIEF)
    cold = [m for m in report.measurements if m.cache == "cold"]
    assert [(m.stage, m.workers) for m in cold] == [("raw", 0), ("full", 0), ("raw", 1), ("full", 1)]
    assert all(m.left_in_cache is not None and m.left_in_cache < 0.1 for m in cold)
    assert all(m.samples <= 400 for m in cold)  # a sample read twice would be warm
    assert report.cold_bottleneck is not None
    assert report.cold_bottleneck.cache == "cold"


def test_mapped_pages_stay_cached_and_are_reported(disk: Path) -> None:
    url, path = on_disk(disk, "lmdb")
    mapped = np.memmap(path, np.uint8, "r")
    assert mapped.sum() > 0
    report = bench(url, workers=[0], batch_size=8, seconds=BRIEF)
    assert {m.cache for m in report.measurements} == {"warm"}
    assert any("there are no cold rates: 100% of it stays" in note for note in report.notes)
    assert resident(path) == 1


def test_unknown_cache_state_adds_a_note(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, path = on_disk(disk, "hdf5")
    monkeypatch.setattr("os.access", lambda *_: False)  # someone else's file, which may only be read
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    report = bench(url, workers=[0], batch_size=8, seconds=BRIEF)
    assert {m.left_in_cache for m in report.measurements if m.cache == "cold"} == {None}
    assert any("cold rates may be warm: " in note for note in report.notes)


def test_many_files_are_all_dropped(disk: Path) -> None:
    paths = [disk / f"{number}.h5" for number in range(2)]
    for path in paths:
        images(f"hdf5://{path}", 200)
        path.read_bytes()
    with storeds.open_backend(f"hdf5://{disk}/*.h5") as backend:
        assert PageCache.of(backend).drop().is_cold
    assert [resident(path) < 0.1 for path in paths] == [True, True]


def test_a_store_in_memory_is_never_cold() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # tmpfs on every Linux
        report = bench(images(f"hdf5://{folder}/a.h5"), workers=[0], batch_size=8, seconds=BRIEF)
    assert any("there are no cold rates: it is on tmpfs" in note for note in report.notes)
    assert {m.cache for m in report.measurements} == {"warm"}


@pytest.mark.parametrize(
    ("engine", "why"), [("memory", "memory of this process"), ("mongodb", "belongs to its server")]
)
def test_a_cache_that_cannot_be_dropped_is_reported(make_engine_url: MakeUrl, engine: str, why: str) -> None:
    report = bench(images(make_engine_url(engine)), workers=[0], batch_size=8, seconds=BRIEF)
    assert {m.cache for m in report.measurements} == {"warm"}
    assert report.cold_bottleneck is None
    assert [note for note in report.notes if why in note]


def test_no_cold_drops_nothing(disk: Path) -> None:
    url, path = on_disk(disk, "hdf5")
    path.read_bytes()
    report = bench(url, workers=[0], batch_size=8, seconds=BRIEF, cold=False)
    assert {m.cache for m in report.measurements} == {"warm"}
    assert resident(path) == 1


# The bottleneck

SLOW = 0.004  # seconds a sample, more than everything else together takes


def slow_transform(image: Image.Image) -> torch.Tensor:
    time.sleep(SLOW)
    return torch.zeros(3)


def quick_transform(image: Image.Image) -> torch.Tensor:
    return torch.zeros(3)


def slow_decoder(blob: bytes, mode: str) -> Image.Image:
    time.sleep(SLOW)
    return Image.new(mode, (8, 8))


class SlowBackend(MemoryBackend):
    """A store whose every record takes its time."""

    def _read(self, positions: list[int], fields: tuple[str, ...]) -> list[Record | RecordError]:
        time.sleep(SLOW * len(positions))
        return super()._read(positions, fields)


@pytest.fixture
def slow_store(make_engine_url: MakeUrl) -> str:
    name = f"slow{secrets.token_hex(4)}"
    storeds.register_backend(name, SlowBackend)
    return images(make_engine_url("memory")).replace("memory", name, 1)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("part", ["storage", "decode", "transform"])
def test_the_slow_part_is_the_bottleneck(make_engine_url: MakeUrl, slow_store: str, part: str, workers: int) -> None:
    url = slow_store if part == "storage" else images(make_engine_url("memory"))
    transform = slow_transform if part == "transform" else quick_transform
    decode = functools.partial(slow_decoder) if part == "decode" else None
    more: dict[str, Any] = {} if decode is None else {"decode": decode}
    report = bench(url, transform=transform, workers=[workers], batch_size=8, seconds=0.3, **more)
    assert report.bottleneck is not None
    assert (report.bottleneck.part, report.bottleneck.workers) == (part, workers)
    assert report.bottleneck.share > 0.5
    full = report.find("full", workers)
    assert full is not None
    assert full.parts[part] >= SLOW


def test_slow_transfer_counts_as_transport(make_engine_url: MakeUrl) -> None:
    url = images(make_engine_url("memory"))
    report = bench(
        url, transform=quick_transform, workers=[1], batch_size=8, seconds=0.5, progress=lambda _: time.sleep(0.05)
    )
    assert report.bottleneck is not None
    assert report.bottleneck.part == "transport"
    assert any("use fewer workers" in advice for advice in report.advice)


def figure(workers: int, rate: float, **seconds: float) -> Measurement:
    return Measurement.of("full", workers, "warm", [Batch(samples=int(rate), seconds=seconds)], 1.0, 0.0)


def test_the_fewest_workers_near_the_best_rate_are_recommended() -> None:
    found = [figure(0, 100), figure(1, 95), figure(2, 180), figure(4, 195), figure(8, 200)]
    assert best_workers(found) == 2
    assert best_workers(found[:2]) == 0
    assert best_workers([]) is None


def test_the_bottleneck_is_the_largest_part_of_the_workers_time() -> None:
    for seconds, part, share in (
        ({"decode": 0.9, "storage": 0.7}, "decode", 0.45),
        ({"decode": 0.5}, "transport", 0.75),
        ({"collate": 2.0}, "collate", 1),
    ):
        found = [figure(2, 100, **seconds)]
        named = bottleneck_of(found, 2, "warm")
        assert named is not None
        assert (named.part, named.workers, named.cache) == (part, 2, "warm")
        assert named.share == pytest.approx(share)
    assert bottleneck_of(found, 2, "cold") is None
    assert bottleneck_of(found, None, "warm") is None


@pytest.mark.parametrize(
    ("url", "part", "decode", "reported"),
    [
        ("lmdb:///a.lmdb", "storage", None, "the files are in memory"),
        ("mongodb://host/db/c", "storage", None, "a nearer server"),
        ("lmdb:///a.lmdb", "decode", None, "decode = 'tensor'"),
        ("lmdb:///a.lmdb", "decode", "tensor", "use more CPUs"),
        ("lmdb:///a.lmdb", "transform", None, "the transform takes most"),
        ("lmdb:///a.lmdb", "collate", None, "collating takes most"),
        ("lmdb:///a.lmdb", "transport", None, "transferring batches from the workers"),
    ],
)
def test_the_advice_is_about_the_bottleneck(url: str, part: str, decode: str | None, reported: str) -> None:
    first, second = advise(url, [figure(1, 100)], 1, (Bottleneck(part, 0.6, 1, "warm"), None), decode)
    assert first == "num_workers = 1 gives 100 samples/s"
    assert reported in second


def test_without_workers_there_is_no_advice_on_transfer() -> None:
    _, reported = advise("lmdb:///a.lmdb", [figure(0, 100)], 0, (Bottleneck("transport", 0.6, 0, "warm"), None), None)
    assert "larger batches" in reported
    assert "workers" not in reported


def test_waiting_for_the_disk_has_its_own_advice() -> None:
    both = Bottleneck("decode", 0.6, 1, "warm"), Bottleneck("storage", 0.6, 1, "cold")
    assert "block_size in [loader]" in advise("lmdb:///a.lmdb", [figure(1, 100)], 1, both, None)[-1]


def test_a_slow_process_gets_advice_on_torchs_threads() -> None:
    found = [figure(0, 40), figure(1, 100)]
    assert any("OMP_NUM_THREADS=1" in text for text in advise("lmdb:///a.lmdb", found, 1, (None, None), None))


# Stores of all sorts


def test_bad_samples_are_counted_but_excluded_from_rates(make_engine_url: MakeUrl) -> None:
    url = make_engine_url("memory")
    write(url)
    report = bench(url, workers=[0], batch_size=len(PICTURES), seconds=BRIEF)
    bad = sum(not picture.is_readable for picture in PICTURES.values())
    for measured in report.measurements:
        passes = measured.samples // len(PICTURES)
        if measured.stage == "raw":
            assert measured.bad == 0
        else:
            assert measured.bad >= bad * passes
            assert 0 < measured.rate < measured.samples / measured.seconds
    assert any(f"storeds verify {url}" in advice for advice in report.advice)


def test_a_store_of_bad_images_has_no_bottleneck(make_engine_url: MakeUrl) -> None:
    url = make_engine_url("lmdb")
    with storeds.open_writer(url, {"image": "image"}) as writer:
        writer.append([{"image": b"<html>"}] * 3)
    report = bench(url, workers=[0], batch_size=4, seconds=BRIEF, cold=False)
    assert (report.workers, report.bottleneck) == (None, None)
    assert "unknown, because no sample was good" in run(url, "--workers", 0, "--seconds", BRIEF, "--no-cold")


def test_an_empty_store_is_refused(make_engine_url: MakeUrl) -> None:
    url = images(make_engine_url("hdf5"), 0)
    with pytest.raises(errors.ConfigError, match="nothing to measure: .* has no samples"):
        bench(url)
    assert "nothing to measure" in run(url, code=2)


def test_arrays_have_no_decoded_stage(make_engine_url: MakeUrl) -> None:
    url = arrays(make_engine_url("hdf5"), [(2, 3)] * 20, [2, 3])
    report = bench(url, workers=[0], batch_size=4, seconds=BRIEF, cold=False)
    assert (report.reader, report.images, report.transform) == ("array", False, None)
    assert [m.stage for m in report.measurements] == ["raw", "full"]
    assert any("no images" in note for note in report.notes)


def test_arrays_that_do_not_stack_become_lists(make_engine_url: MakeUrl) -> None:
    url = arrays(make_engine_url("memory"), [(2, 2 + n % 3) for n in range(20)], [2, None])
    report = bench(url, workers=[0], batch_size=8, seconds=BRIEF)
    assert report.bottleneck is not None
    assert any("batches are lists" in note for note in report.notes)


def test_a_foreign_store_with_options_is_measured(tmp_path: Path) -> None:
    put(tmp_path / "foreign", [(str(n).encode(), jpeg(n)) for n in range(4)], database=b"pictures")
    url = f"lmdb://{tmp_path}/foreign"
    how = ["--layout", "keyed", "--option", "database=pictures", "--workers", 0, "--seconds", BRIEF, "--batch-size", 4]
    found = json.loads(run(url, *how, "--json"))
    assert found["layout"] == "keyed"
    assert found["count"] == 4


# Settings


def test_a_config_overrides_everything_but_the_url(make_engine_url: MakeUrl) -> None:
    config = {
        "dataset": {"url": "lmdb://nowhere/{split}.lmdb", "decode": "tensor", "where": {"label": 1}},
        "loader": {"batch_size": 5},
        "splits": {"train": {"dataset": {"transform": ["ToTensor", {"name": "CenterCrop", "size": 8}]}}},
    }
    url = images(make_engine_url("memory"))
    report = bench(url, config=config, split="train", workers=[0], seconds=BRIEF)
    assert report.count == COUNT // 3
    assert report.batch_size == 5
    assert report.transform is not None
    assert "CenterCrop(size=8" in report.transform
    assert bench(url, config=config, split="train", workers=[0], batch_size=3, seconds=BRIEF).batch_size == 3


def test_samples_of_a_config_that_do_not_stack_are_an_error(make_engine_url: MakeUrl) -> None:
    url = arrays(make_engine_url("memory"), [(2, 2 + n % 3) for n in range(20)], [2, None])
    config = {"dataset": {"url": "x.lmdb", "reader": "array"}}
    with pytest.raises(errors.ConfigError, match="make no batch"):
        bench(url, config=config, workers=[0], seconds=BRIEF)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": [-1]}, "each 0 or more"),
        ({"workers": []}, "each 0 or more"),
        ({"workers": [True]}, "each 0 or more"),
        ({"batch_size": 0}, "batch_size must be 1 or more"),
        ({"seconds": 0}, "seconds must be more than 0"),
        ({"seconds": float("nan")}, "seconds must be more than 0"),
        ({"split": "train"}, "needs a config"),
        ({"reader": "imge"}, "did you mean 'image'"),
        ({"config": {"dataset": {"url": "x", "decoed": "pil"}}}, "did you mean 'decode'"),
    ],
)
def test_invalid_arguments_raise(make_engine_url: MakeUrl, wrong: dict[str, Any], message: str) -> None:
    url = images(make_engine_url("memory"), 1)
    with pytest.raises(errors.ConfigError, match=message):
        bench(url, **wrong)


# The command


def test_the_table_names_the_bottleneck_and_json_has_everything(make_engine_url: MakeUrl) -> None:
    url = images(make_engine_url("lmdb"))
    how = [url, "--workers", "0,1", "--seconds", BRIEF, "--batch-size", 8, "--no-cold"]
    shown = run(*how)
    rows = [line.split()[:3] for line in shown.splitlines()]
    for stage in ("raw", "decoded", "full"):
        assert [stage, "0", "–"] in rows
        assert [stage, "1", "–"] in rows
    assert f"{url}: {COUNT} samples, batches of 8" in shown
    assert "bottleneck: " in shown
    assert "advice: num_workers = " in shown

    found = json.loads(run(*how, "--json"))
    assert found["url"] == url
    assert found["bottleneck"]["part"] in PARTS
    assert found["workers"] in (0, 1)
    assert found["advice"]
    assert found["machine"]["cpus"] > 0
    assert found["machine"]["file_system"] == file_system(url.removeprefix("lmdb://"))
    assert found["versions"]["storeds"] == storeds.__version__
    assert len(found["measurements"]) == 6
    assert found["measurements"][0]["samples_per_second"] > 0


def test_a_plot_is_drawn(make_engine_url: MakeUrl, tmp_path: Path) -> None:
    url, plot = images(make_engine_url("lmdb")), tmp_path / "bench.png"
    shown = run(url, "--workers", 0, "--seconds", BRIEF, "--batch-size", 8, "--plot", plot)
    assert f"wrote {plot}" in shown
    with Image.open(plot) as image:
        assert image.format == "PNG"
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    warm = (0x2B, 0x5F, 0x94)
    assert (colours == warm).all(axis=1).sum() > 500  # bars, not an empty frame


def test_an_unwritable_plot_raises_before_measuring(
    make_engine_url: MakeUrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "lmdb://nowhere.lmdb"  # which would be the error if it came to that
    assert "does not end in .png" in run(url, "--plot", tmp_path / "bench.jpg", code=2)
    assert "cannot be written" in run(url, "--plot", tmp_path / "nowhere" / "bench.png", code=2)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'storeds[plot]'" in run(url, "--plot", tmp_path / "bench.png", code=2)
    assert list(tmp_path.glob("*.png")) == []


def test_wrong_usage_and_missing_stores_have_their_exit_codes() -> None:
    assert "must be numbers separated by commas" in run("lmdb://x.lmdb", "--workers", "two", code=2)
    assert "no store at" in run("lmdb://nowhere.lmdb", code=3)
    url = "mongodb://user:hunter2secret@127.0.0.1:9/db/c?serverSelectionTimeoutMS=200"
    shown = run(url, code=4)
    assert "hunter2secret" not in shown
    assert "127.0.0.1:9" in shown
