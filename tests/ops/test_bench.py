"""bench: what it measures, which stage it names, what it refuses, and what it prints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from _damaged import PICTURES, write
from _packing import storeds_command, storeds_json
from make_store import make_store
from photographs import jpeg
from storeds import StoreLoader, errors
from storeds.datasets.batch import STAGES
from storeds.ops import Progress, bench
from storeds.ops.benchmarking import Measurement, _best

MakeUrl = Callable[[str], str]
BRIEF = 0.05  # seconds: these tests are about what is measured, not about how fast it is
COUNT = 24


def images(url: str, count: int = COUNT) -> str:
    return make_store(
        {"image": "image", "label": "int"}, ({"image": jpeg(n % 4), "label": n % 3} for n in range(count)), url
    )


def test_a_store_is_measured_by_number_of_workers(make_engine_url: MakeUrl) -> None:
    reported: list[Progress] = []
    url = images(make_engine_url("lmdb"))
    report = bench(url, workers=(2, 0), batch_size=8, seconds=BRIEF, progress=reported.append)
    assert ({state.total for state in reported}, {state.done for state in reported}) == ({2}, {0, 1})
    assert [(measured.workers, measured.bad) for measured in report.measurements] == [(0, 0), (2, 0)]
    for measured in report.measurements:
        assert measured.samples > 0
        assert measured.rate == pytest.approx(measured.samples / measured.seconds)
        assert set(measured.stages) == {*STAGES, "waiting"}
        assert all(measured.stages[stage] > 0 for stage in STAGES)
        # All the time of the workers is that of a stage.
        spent = sum(measured.stages.values()) * measured.samples
        assert spent >= 0.99 * measured.seconds * max(measured.workers, 1)
    assert (report.count, report.batch_size, report.reader) == (COUNT, 8, "image")


@pytest.mark.parametrize(("seconds", "stage"), [({"transform": 1e6}, "transform"), ({}, "waiting")])
def test_the_stage_that_takes_most_is_the_bottleneck(
    make_engine_url: MakeUrl, monkeypatch: pytest.MonkeyPatch, seconds: dict[str, float], stage: str
) -> None:
    stats = StoreLoader.stats
    spent = {**dict.fromkeys(STAGES, 0.0), **seconds}
    monkeypatch.setattr(StoreLoader, "stats", lambda self: {**stats(self), "seconds": spent})
    report = bench(images(make_engine_url("memory")), workers=[1], batch_size=8, seconds=BRIEF)
    assert report.bottleneck == stage
    assert report.measurements[0].shares[stage] > 0.5
    assert len(report.advice) > 1  # what the loader says


@pytest.mark.parametrize(
    ("rates", "best"), [({0: 100, 1: 95, 2: 180, 4: 195, 8: 200}, 2), ({0: 100, 1: 95}, 0), ({1: 50}, 1)]
)
def test_the_fewest_workers_near_the_best_rate_are_recommended(rates: dict[int, int], best: int) -> None:
    measured = [Measurement(workers, rate, 0, 1.0, 0.0, {"read": 1.0}) for workers, rate in rates.items()]
    assert _best(measured).workers == best


# Stores of all sorts


def test_bad_samples_are_counted_and_replaced(make_engine_url: MakeUrl) -> None:
    url = make_engine_url("memory")
    write(url)
    bad = sum(not picture.is_readable for picture in PICTURES.values())
    report = bench(url, workers=[0], batch_size=len(PICTURES), seconds=BRIEF)
    assert report.measurements[0].bad >= bad * report.measurements[0].samples // len(PICTURES) > 0
    assert any(f"storeds verify {url}" in advice for advice in report.advice)


# Settings


def test_a_config_is_measured_with_its_split_for_its_store_or_another(make_engine_url: MakeUrl) -> None:
    url = images(make_engine_url("memory"))
    config: dict[str, Any] = {
        "dataset": {"url": "lmdb://nowhere/{split}.lmdb", "decode": "tensor", "where": {"label": 1}},
        "loader": {"batch_size": 5},
        "splits": {"train": {"dataset": {"transform": ["ToTensor", {"name": "CenterCrop", "size": 8}]}}},
    }
    report = bench(url, config=config, split="train", workers=[0], seconds=BRIEF)
    assert (report.url, report.count, report.batch_size) == (url, COUNT // 3, 5)
    config["dataset"]["url"] = url
    report = bench(config=config, split="train", workers=[0], batch_size=3, seconds=BRIEF)
    assert (report.url, report.count, report.batch_size) == (url, COUNT // 3, 3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": [-1]}, "workers must be at least 0"),
        ({"workers": []}, "workers is an empty list"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"seconds": float("nan")}, "seconds must be more than 0"),
        ({"split": "train"}, "a config with its split"),
        ({"url": None}, "pass a store, or a config"),
        ({"config": {"dataset": {"url": "x", "decoed": "pil"}}}, "did you mean 'decode'"),
        ({"batch_size": 2, "config": {"dataset": {}, "loader": {"drop_last": True}}}, "nothing to measure"),
    ],
)
def test_invalid_arguments_raise(make_engine_url: MakeUrl, wrong: dict[str, Any], message: str) -> None:
    url = images(make_engine_url("memory"), 1)
    if "loader" in wrong.get("config", {}):
        wrong["config"]["dataset"]["url"] = url
    with pytest.raises(errors.ConfigError, match=message):
        bench(**{"url": url, **wrong})
    assert "takes numbers separated by commas" in storeds_command("bench", url, "--workers", "two", code=2)


# The command


def test_the_table_shows_stages_and_json_has_everything(make_engine_url: MakeUrl) -> None:
    url = images(make_engine_url("memory"))
    how = [url, "--workers", 0, "--seconds", BRIEF, "--batch-size", 8]
    shown = storeds_command("bench", *how)
    rows = [line.split() for line in shown.splitlines() if line]
    assert " ".join(rows[0]) == "workers samples/s start s read µs decode µs transform µs collate µs waiting µs"
    assert rows[2][0] == "0"
    assert f"{url}: {COUNT} samples, batches of 8" in shown
    assert "advice: num_workers = 0 gives " in shown
    found = storeds_json("bench", *how)
    assert (found["url"], found["workers"], len(found["measurements"])) == (url, 0, 1)
    assert found["measurements"][0]["samples_per_second"] > 0
    assert sum(found["measurements"][0]["shares"].values()) == pytest.approx(1)
