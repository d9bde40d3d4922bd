"""What `stats` measures, against NumPy over all pixels that Pillow decodes; where it keeps that, and who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import storeds
from _damaged import PICTURES
from _damaged import write as write_damaged
from make_store import make_store
from photographs import by_pillow, jpeg, saved
from storeds import ops
from storeds.errors import ConfigError
from storeds.ops import Stats
from storeds.readers import image as image_reader

EXACT = 1e-6
BLOBS = [jpeg(n, (20 + 7 * n, 90 - 5 * n)) for n in range(12)] + [jpeg(0, (20, 90)), saved(Image.new("L", (5, 3), 40))]
"""Of different sizes. One comes twice, one is a grey PNG."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "storeds"


def write(url: str | None = None, blobs: Sequence[bytes] = BLOBS) -> str:
    records = [{"image": blob, "label": at % 3, "key": f"{at}"} for at, blob in enumerate(blobs)]
    fields = {"image": "image", "label": "int", "key": "str"}
    return make_store(fields, records, url, attrs={"classes": ["cat", "dog", "fox"]})


def truth(blobs: Sequence[bytes], mode: str = "RGB") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return mean and deviation of each channel over all pixels in [0, 1]."""
    pixels = np.concatenate([by_pillow(blob, mode).reshape(-1, len(mode)) for blob in blobs]) / 255
    return pixels.mean(0), pixels.std(0)


def is_true(found: Stats, blobs: Sequence[bytes], mode: str = "RGB") -> bool:
    mean, std = truth(blobs, mode)
    return bool(np.abs(mean - found.mean).max() < EXACT and np.abs(std - found.std).max() < EXACT)


@pytest.mark.parametrize("engine", ["lmdb", "hdf5", "mongodb"])
def test_every_engine_gives_what_numpy_gives(make_engine_url: Callable[[str], str], engine: str) -> None:
    found = ops.stats(write(make_engine_url(engine)), all=True)
    assert is_true(found, BLOBS)
    height, width = np.array([by_pillow(blob).shape[:2] for blob in BLOBS]).T
    columns = {"width": width, "height": height, "aspect_ratio": width / height, "bytes": [*map(len, BLOBS)]}
    assert found.sizes.keys() == columns.keys()
    assert all(found.sizes[name] == pytest.approx(spread(values)) for name, values in columns.items())
    assert found.classes == {"cat": 5, "dog": 5, "fox": 4}
    assert (found.duplicates, found.judged, found.damaged) == (1, len(BLOBS), {})
    assert (found.count, found.examined, found.is_exact) == (len(BLOBS), len(BLOBS), True)
    assert found.mean_error == found.std_error == [0.0] * 3


def spread(values: Any) -> dict[str, float]:
    names = ("min", "p5", "median", "p95", "max", "mean")
    return dict(zip(names, (*np.percentile(values, (0, 5, 50, 95, 100)), np.mean(values)), strict=True))


def test_the_exact_result_does_not_depend_on_threads() -> None:
    blobs = BLOBS * 9  # several batches
    found = [ops.stats(write(blobs=blobs), workers=workers) for workers in (0, 3)]
    turned = ops.stats(write(blobs=blobs[::-1]))
    assert [(each.mean, each.std) for each in found] == [(turned.mean, turned.std)] * 2


def tiny(number: int) -> bytes:
    """Return a picture of random size, brightness and contrast; large ones are brighter."""
    rng = np.random.default_rng(number)
    height, width = rng.integers(2, 24, 2)
    light = rng.integers(10, 200, 3) + height * width // 12
    pixels = rng.normal(light, rng.uniform(2, 40), (height, width, 3))
    return saved(Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)), "BMP")


def test_two_standard_errors_around_a_sample_hold_the_truth() -> None:
    blobs = [tiny(number) for number in range(400)]
    url, (mean, std) = write("memory://tiny", blobs), truth(blobs)
    found = [ops.stats(url, sample=80, seed=seed, workers=0) for seed in range(100)]
    assert all((each.examined, each.is_exact) == (80, False) for each in found)
    for channel in range(3):
        for values, errors, true in (("mean", "mean_error", mean), ("std", "std_error", std)):
            off = np.array([getattr(each, values)[channel] for each in found]) - true[channel]
            error = np.array([getattr(each, errors)[channel] for each in found])
            assert (np.abs(off) <= 2 * error).sum() >= 88
            assert error.mean() == pytest.approx(off.std(), rel=0.25)  # and they are no larger than they must be


def test_damaged_pictures_are_counted_and_have_no_pixels(tmp_path: Path) -> None:
    whole = [picture.blob for picture in PICTURES.values() if picture.finding in ("intact", "trailing_data")]
    for checked in (True, False):  # by the verdicts in the store, and by decoding
        url = f"lmdb://{tmp_path}/{checked}.lmdb"
        write_damaged(url, check=checked)
        found = ops.stats(url)
        assert is_true(found, whole)
        assert (found.decoded, found.judged) == (len(whole), len(PICTURES))
        assert sum(found.damaged.values()) == len(PICTURES) - len(whole)
        assert found.damaged["truncated_scan"] == 4


DEEP = saved(Image.fromarray(np.full((4, 4), 3000.0, np.float32)), "TIFF")
# The pictures, the arguments, those whose pixels count, and what else is found.
CASES: dict[str, tuple[list[bytes], dict[str, Any], list[bytes], dict[str, Any]]] = {
    "grey": (BLOBS, {"mode": "L"}, BLOBS, {"decoded": len(BLOBS)}),
    "a selection": (BLOBS, {"where": {"label": "dog"}}, BLOBS[1::3], {"count": 5, "classes": {"cat": 0, "dog": 5, "fox": 0}}),
    "too deep for the mode": ([*BLOBS, DEEP], {}, BLOBS, {"examined": len(BLOBS) + 1, "decoded": len(BLOBS), "damaged": {}}),
    "nothing": ([], {}, [], {"mean": [], "std": [], "sizes": {}, "damaged": {}}),
    "a web page": ([b"<html>"], {}, [], {"mean": [], "std": [], "damaged": {"not_jpeg": 1}}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_pixels_that_count_and_pictures_that_do_not(name: str) -> None:
    blobs, arguments, counted, wanted = CASES[name]
    found = ops.stats(write(blobs=blobs), **arguments)
    assert {attribute: getattr(found, attribute) for attribute in wanted} == wanted
    assert not counted or is_true(found, counted, arguments.get("mode", "RGB"))


def test_the_result_is_kept_until_the_store_changes(tmp_path: Path, cache: Path) -> None:
    url, blobs = f"lmdb://{tmp_path}/a.lmdb", BLOBS * 5
    write(url, blobs)
    calls: list[Any] = []

    def stats(**arguments: Any) -> Stats:
        return ops.stats(url, progress=calls.append, **arguments)

    assert stats(sample=10).examined == 10
    read = len(calls)
    assert stats(sample=10) == stats(sample=10)
    assert len(calls) == read
    assert stats(sample=10, seed=1).mean != stats(sample=10).mean
    exact = stats(all=True)
    read = len(calls)
    assert exact == stats() == stats(sample=10) == stats(sample=10, seed=1)  # more than what is wanted
    (tmp_path / "a.lmdb").rename(tmp_path / "b.lmdb")
    assert ops.stats(str(tmp_path / "b.lmdb"), progress=calls.append).mean == exact.mean
    assert len(calls) == read
    write(url, [blobs[1], *blobs[1:]])  # as many, of which one is another
    assert stats(all=True).mean != exact.mean
    assert len(calls) > read
    assert not list(cache.glob("*.fresh"))


def test_an_interrupted_call_goes_on_where_it_was(tmp_path: Path) -> None:
    blobs, done = [*BLOBS, jpeg(1)[:-2]] * 9, []
    url = write(f"lmdb://{tmp_path}/a.lmdb", blobs)

    def interrupt(state: ops.Progress) -> None:
        done.append(state.done)
        if len(done) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ops.stats(url, all=True, workers=0, progress=interrupt)
    found = ops.stats(url, all=True, workers=0, progress=interrupt)
    assert done == sorted(set(done))  # no batch is examined twice
    assert is_true(found, BLOBS * 9)
    assert (found.examined, found.damaged) == (len(blobs), {"missing_eoi": 9})


# What a cache of another version, or of something else, may hold; and whether the mean of it can be used.
OTHER_SHAPES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "a field less": (lambda kept: {name: value for name, value in kept.items() if name != "judged"}, True),
    "null": (lambda kept: None, False),
    "texts": (lambda kept: dict.fromkeys(kept, "text"), False),
    "other sizes": (lambda kept: {**kept, "sizes": {"width": [1, 2]}}, True),
    "a mean without numbers": (lambda kept: {**kept, "mean": ["0.5"] * 3}, False),
    "one channel": (lambda kept: {**kept, "mean": [0.5], "std": [0.5]}, False),
    "another count": (lambda kept: {**kept, "count": 99, "examined": 99}, True),
}


@pytest.mark.parametrize("shape", OTHER_SHAPES)
def test_a_cache_of_another_shape_is_made_again(cache: Path, shape: str) -> None:
    url, (change, has_mean) = write(), OTHER_SHAPES[shape]
    expected = ops.stats(url)
    (file,) = cache.glob("*.json")
    other = json.dumps(change(json.loads(file.read_text())))
    file.write_text(other)
    dataset = partial(storeds.StoreDataset, url, transform=["ToTensor", {"name": "Normalize", "from": "stats"}])
    if not has_mean:
        with pytest.raises(ConfigError, match="run: storeds stats"):
            dataset()
    assert ops.stats(url) == expected
    assert json.loads(file.read_text()) != json.loads(other)
    dataset()


def test_an_unwritable_cache_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("STOREDS_CACHE", "/proc/nowhere")
    assert is_true(ops.stats(write("memory://nocache")), BLOBS)
    assert "are not kept, since /proc/nowhere/storeds cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"field": "label"}, "field 'label' holds no pictures"),
        ({"field": "imag"}, "did you mean 'image'"),
        ({"mode": "P"}, "mode is RGB or L"),
        ({"sample": 0}, "sample at least 1"),
        ({"where": {"label": "cow"}}, "has no class 'cow'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        ops.stats(write(), **arguments)


# Normalize from stats

SCALED = [{"name": "Resize", "size": [8, 8]}, "ToTensor"]
FROM_STATS = {"name": "Normalize", "from": "stats"}


def batch(url: str, normalize: dict[str, Any], split: str | None = None, **dataset: Any) -> torch.Tensor:
    config = {"dataset": {"url": url, "transform": [*SCALED, normalize], **dataset}, "loader": {"batch_size": 8}}
    images: torch.Tensor = next(iter(storeds.build_loader(config, split)))[0]
    return images


def numbers_of(url: str, **arguments: Any) -> dict[str, Any]:
    """Return the step that normalizes by the stats of a store, as numbers."""
    found = ops.stats(url, **arguments)
    return {"name": "Normalize", "mean": found.mean, "std": found.std}


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_normalize_from_stats_equals_normalize_with_these_numbers(tmp_path: Path, mode: str) -> None:
    url = write(f"lmdb://{tmp_path}/a.lmdb")
    missing = f"are not known here yet; run: storeds stats {url} --field image --mode {mode}$"
    with pytest.raises(ConfigError, match=missing):
        batch(url, FROM_STATS, mode=mode)
    numbers = numbers_of(url, mode=mode)
    # All records of the store count for a part of it.
    part: dict[str, Any] = {"mode": mode, "where": {"label": "dog"}}
    for options in ({"mode": mode}, part):
        assert torch.equal(batch(url, FROM_STATS, **options), batch(url, numbers, **options))
    image = storeds.StoreDataset(url, reader=image_reader(mode=mode), transform=["ToTensor", FROM_STATS])[3][0]
    assert torch.equal(image, storeds.StoreDataset(url, mode=mode, transform=["ToTensor", numbers])[3][0])
    dataset = storeds.StoreDataset(url, mode=mode)
    dataset.transform = ["ToTensor", FROM_STATS]
    assert torch.equal(image, dataset[3][0])


def test_the_stats_of_another_store_for_each_split(tmp_path: Path) -> None:
    train, val = (f"lmdb://{tmp_path}/{name}.lmdb" for name in ("train", "val"))
    write(train)
    write(val, BLOBS[:8])
    numbers = numbers_of(train)
    images = batch(f"lmdb://{tmp_path}/{{split}}.lmdb", {**FROM_STATS, "of": train}, "val")
    assert torch.equal(images, batch(val, numbers))


def test_normalize_from_stats_by_element_in_a_composition_and_for_whole_samples() -> None:
    url = write()
    numbers = numbers_of(url)

    def image(normalize: dict[str, Any], key: str, wrap: Callable[[Any], Any]) -> Any:
        settings = {"fields": {"pixels": "image"}, "as_dict": True, key: wrap([*SCALED, normalize])}
        return storeds.StoreDataset(url, **settings)[3]["pixels"]

    ways: list[tuple[str, Callable[[Any], Any]]] = [
        ("transform", lambda steps: {"pixels": steps}),
        ("transform", lambda steps: {"name": "Compose", "transforms": steps}),
        ("transforms", lambda steps: steps),
    ]
    for key, wrap in ways:
        assert torch.equal(image(FROM_STATS, key, wrap), image(numbers, key, wrap))
    for wrong in ({"from": "here"}, {"from": "stats", "mean": [0.5]}):
        with pytest.raises(ConfigError, match="Normalize takes mean and std, or from = 'stats'"):
            image({"name": "Normalize", **wrong}, "transform", lambda steps: steps)
