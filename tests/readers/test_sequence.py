"""Windows of episodes: equal to slices of the arrays themselves, never across episodes, in every engine and loader."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import storeds
from conftest import ENGINES
from make_store import make_store
from shares import examples
from storeds import StoreDataset, StoreLoader
from storeds.errors import ConfigError, DecodeError, RecordError
from storeds.protocols import Array
from threaded import threaded

LENGTHS = (7, 1, 12, 5)
ACTIONS = [np.random.default_rng(at).normal(size=(length, 3)).astype("f4") for at, length in enumerate(LENGTHS)]
IMAGES = [np.random.default_rng(at).integers(0, 255, (length, 8, 6, 3), np.uint8) for at, length in enumerate(LENGTHS)]


@pytest.fixture(scope="module")
def demonstrations(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as robomimic writes it."""
    path = tmp_path_factory.mktemp("robot") / "demo.hdf5"
    with h5py.File(path, "w") as file:
        for at in range(len(LENGTHS)):
            file[f"data/demo_{at}/actions"] = ACTIONS[at]
            file[f"data/demo_{at}/obs/view_image"] = IMAGES[at]
            file[f"data/demo_{at}/rewards"] = np.arange(LENGTHS[at], dtype="f8")
    return path


def window(values: Array, step: int, offsets: list[int]) -> tuple[Array, Array]:
    """Return the rows of an episode, and which of them lie outside of it."""
    wanted = np.array([step + offset for offset in offsets])
    inside = np.clip(wanted, 0, len(values) - 1)
    return values[inside], inside != wanted


offsets = st.lists(st.integers(-9, 9), min_size=1, max_size=6)


@given(offsets, offsets, st.integers(1, 3), st.sampled_from(["pad", "drop"]))
@settings(max_examples=examples(60))
def test_windows_are_slices(demonstrations: Path, seen: list[int], done: list[int], stride: int, ends: str) -> None:
    options = {"windows": {"obs_view_image": seen, "actions": done}, "stride": stride, "ends": ends}
    dataset = StoreDataset(
        demonstrations,
        reader="sequence",
        fields=["obs_view_image", "actions", "rewards", "index"],
        as_dict=True,
        channels={"obs_view_image": "last"},
        reader_options=options,
    )
    expected = []
    for actions, images in zip(ACTIONS, IMAGES, strict=True):
        for step in range(len(actions)):
            image, image_out = window(images, step, [at * stride for at in seen])
            action, action_out = window(actions, step, [at * stride for at in done])
            reach = [0, *[at * stride for at in (*seen, *done)]]
            if ends == "drop" and not 0 <= step + min(reach) <= step + max(reach) < len(actions):
                continue
            expected.append((image, image_out, action, action_out, step))
    assert len(dataset) == len(expected)
    for index, (sample, (image, image_out, action, action_out, step)) in enumerate(
        zip(dataset[:], expected, strict=True)
    ):
        assert torch.equal(sample["obs_view_image"], torch.from_numpy(image.transpose(0, 3, 1, 2).copy()))
        assert np.array_equal(sample["actions"], action)
        assert sample["rewards"] == step
        assert sample["index"] == index
        if ends == "pad":
            assert sample["actions_is_pad"].tolist() == action_out.tolist()
            assert sample["obs_view_image_is_pad"].tolist() == image_out.tolist()
    assert dataset.column("rewards").tolist() == [step for *_, step in expected]


def jpeg(pixels: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).resize((48, 40)).save(file, "jpeg")
    return file.getvalue()


FIELDS: dict[str, Any] = {
    "image": "image",
    "episode": "str",
    "step": "int",
    "action": {"kind": "array", "dtype": "float32", "shape": [3]},
}


def steps(damaged: int | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for episode, (actions, images) in enumerate(zip(ACTIONS, IMAGES, strict=True)):
        for step in range(len(actions)):
            blob = jpeg(images[step])
            blob = blob[:60] if len(found) == damaged else blob
            found.append({"image": blob, "episode": f"e{episode}", "step": step, "action": actions[step]})
    return found


@pytest.mark.parametrize("engine", ENGINES)
def test_pictures_in_every_engine(engine: str, make_engine_url: Callable[[str], str]) -> None:
    url = make_store(FIELDS, steps(), make_engine_url(engine))
    options = {"windows": {"image": [-1, 0], "action": "0:4"}}
    dataset = StoreDataset(url, reader="sequence", as_dict=True, reader_options=options)
    single = StoreDataset(url, decode="tensor", fields=["image"])
    for index, sample in enumerate(dataset[:]):
        before = index - (0 if sample["image_is_pad"][0] else 1)
        assert torch.equal(sample["image"], torch.stack([single[before][0], single[index][0]]))
        assert sample["action"].shape == (4, 3)
    crops = StoreDataset(
        url,
        reader="sequence",
        seed=3,
        transform=[{"name": "RandomCrop", "size": 24}, "ToTensor"],
        reader_options={"windows": {"image": [0, 0]}},
    )
    image, mask = crops[4]
    assert image.shape == (2, 3, 24, 24)
    assert torch.equal(image[0], image[1])  # one crop for the whole window
    assert mask.tolist() == [False, False]


class Noted:
    """A backend that notes the fields and the positions of each storage call."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.calls = backend, list[tuple[tuple[str, ...], list[int]]]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __len__(self) -> int:
        return len(self.backend)

    def get_many(self, positions: Any, /, fields: Any = None) -> Any:
        self.calls.append((tuple(fields), sorted(positions)))
        return self.backend.get_many(positions, fields)

    def get_arrays(self, positions: Any, /, fields: Any = None) -> Any:
        self.calls.append((tuple(fields), sorted(positions)))
        return self.backend.get_arrays(positions, fields)


def test_a_batch_is_one_storage_call_a_window_and_reads_only_its_rows(demonstrations: Path) -> None:
    noted: Any = Noted(storeds.open_backend(demonstrations))
    windows = {"obs_view_image": [-1, 0], "actions": "0:3"}
    fields = ["obs_view_image", "actions", "rewards"]
    dataset = StoreDataset(noted, reader="sequence", fields=fields, reader_options={"windows": windows})
    noted.calls.clear()
    dataset.__getitems__([1, 9, 10])  # steps of the first episode, of seven, and of the third, which begins at 8
    assert sorted(noted.calls) == [
        (("actions",), [1, 2, 3, 9, 10, 11, 12]),
        (("obs_view_image",), [0, 1, 8, 9, 10]),
        (("rewards",), [1, 9, 10]),
    ]


@pytest.mark.parametrize("kind", [threaded])
def test_loaders_stack_windows(demonstrations: Path, kind: type[StoreLoader]) -> None:
    dataset = StoreDataset(
        demonstrations,
        reader="sequence",
        as_dict=True,
        channels={"obs_view_image": "last"},
        reader_options={"windows": {"actions": [0, 1], "obs_view_image": [0]}},
    )
    for batch in kind(dataset, batch_size=5, num_workers=2, shuffle=True, seed=1):
        assert batch["actions"].shape[1:] == (2, 3)
        assert batch["obs_view_image"].shape[1:] == (1, 3, 8, 6)
        assert batch["actions_is_pad"].dtype == torch.bool


def test_a_bad_picture_is_a_bad_sample_of_each_window_that_has_it() -> None:
    url = make_store(FIELDS, steps(damaged=3))
    settings: dict[str, Any] = {"reader": "sequence", "reader_options": {"windows": {"image": [0, 1]}}}
    with pytest.raises(DecodeError, match="row 0 of the window of 'image'"):
        StoreDataset(url, **settings)[3]
    dataset = StoreDataset(url, **settings, on_error="skip")
    kept = [at for at, sample in enumerate(dataset[:7]) if not isinstance(sample, storeds.Skipped)]
    assert kept == [0, 1, 4, 5, 6]
    assert dataset.report().skipped == 2


def test_a_record_that_cannot_be_read_is_one_too(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    fields = {name: FIELDS[name] for name in ("episode", "step", "action")}
    make_store(fields, [{name: row[name] for name in fields} for row in steps()], f"hdf5://{path}")
    with h5py.File(path, "r+") as file:
        file["records/action"][2] = 9
    dataset = StoreDataset(path, reader="sequence", reader_options={"windows": {"action": [0, 1]}}, on_error="skip")
    assert [isinstance(sample, storeds.Skipped) for sample in dataset[:5]] == [False, True, True, False, False]
    with pytest.raises(RecordError, match="checksum"):
        StoreDataset(path, reader="sequence", reader_options={"windows": {"action": [0, 1]}})[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "needs windows, element → offsets"),
        ({"windows": {"actoins": [0]}}, "no field 'actoins'; did you mean 'actions'"),
        ({"windows": {"actions": []}}, "'actions' has offsets such as"),
        ({"windows": {"actions": "0-4"}}, "'actions' has offsets such as"),
        ({"windows": {"actions": [0.5]}}, "'actions' has offsets such as"),
        ({"windows": {"actions": [0]}, "by": "demo"}, "no 'demo'"),
        ({"windows": {"actions": [0]}, "ends": "wrap"}, "unknown ends 'wrap'"),
        ({"windows": {"actions": [0]}, "stride": 0}, "stride"),
    ],
)
def test_wrong_windows_are_refused(demonstrations: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        StoreDataset(demonstrations, reader="sequence", reader_options=options)


def test_an_element_without_a_window_has_one_name(demonstrations: Path) -> None:
    for windows in ({"index": [0, 1]}, {"index": "0:2", "actions": [0]}):
        with pytest.raises(ConfigError, match="windows names 'index', which is the number of a sample"):
            StoreDataset(demonstrations, reader="sequence", reader_options={"windows": windows})
    with pytest.raises(ConfigError, match="windows names 'rewards'"):
        StoreDataset(
            demonstrations, reader="sequence", fields=["actions"], reader_options={"windows": {"rewards": [0]}}
        )


def test_two_elements_of_one_field_share_no_memory() -> None:
    fields = {"episode": "int", "x": {"kind": "array", "dtype": "<f4", "shape": [3]}, "y": "float"}
    url = make_store(fields, ({"episode": 0, "x": np.full(3, at, "f4"), "y": at / 2} for at in range(6)))
    elements = {"a": "x", "b": "x", "c": "y", "d": "y", "step": "x"}
    windows = {name: [-1, 0] for name in "abcd"}
    dataset = StoreDataset(url, reader="sequence", fields=elements, reader_options={"windows": windows}, as_dict=True)
    (sample,) = dataset[[3]]
    before = {name: sample[name].clone() for name in elements}
    for name in elements:
        sample[name] += 1
        for other in elements.keys() - {name}:
            assert torch.equal(sample[other], before[other])
        sample[name] -= 1
