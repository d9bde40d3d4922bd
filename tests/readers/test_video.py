"""Test clips of videos stored as runs of frames, and folders of frames as a source."""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import storeds
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, collate, errors, open_backend, pack, readers
from storeds.backends import Store
from storeds.backends.hdf5.reading import Hdf5Opener
from storeds.formats import open_source
from storeds.readers import ClipPlan
from storeds.testing import ReaderTests

FIELDS: dict[str, Any] = {
    "image": "image",
    "label": "int",
    "video": "int",
    "frame": "int",
    "key": "str",
    "time": "float",
    "gaze": {"kind": "array", "dtype": "float32", "shape": [2]},
}
LENGTHS = (5, 1, 9, 20)
READER: Any = readers.video


def frame(video: int, number: int, size: tuple[int, int] = (16, 12)) -> bytes:
    return jpeg(7 * video + number, size, quality=95)


def pixels(video: int, number: int) -> torch.Tensor:
    with Image.open(io.BytesIO(frame(video, number))) as image:
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def records(lengths: Sequence[int] = LENGTHS) -> list[dict[str, Any]]:
    return [
        {
            "image": frame(video, number),
            "label": video % 2,
            "video": video,
            "frame": number,
            "key": f"video{video}.mp4",
            "time": number / 25,
            "gaze": np.array([video, number], "f4"),
        }
        for video, length in enumerate(lengths)
        for number in range(length)
    ]


def store(path: Path, content: list[dict[str, Any]], fields: dict[str, Any] | None = None) -> str:
    url = f"hdf5://{path}"
    make_store(fields or FIELDS, content, url, overwrite=True)
    return url


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store(tmp_path_factory.mktemp("frames") / "videos.h5", records())


def videos(url: Any, *, decode: Any = None, **arguments: Any) -> StoreDataset:
    own = {"fields", "seed", "as_dict", "on_error", "where", "transform", "repair", "min_recovered"}
    given = {name: arguments.pop(name) for name in own & arguments.keys()}
    return StoreDataset(url, reader=READER, decode=decode, reader_options=arguments, **given)


class TestVideoReaderKeepsTheContract(ReaderTests):
    refuses = {"image": "image", "label": "int"}

    @pytest.fixture(
        params=[{}, {"frames": 4}, {"frames": 3, "stride": 2, "clips": 2}, {"frames": 6, "sampling": "uniform"}],
        ids=lambda options: ",".join(options) or "all",
    )
    def reader(self, request: pytest.FixtureRequest) -> Any:
        return readers.video(("image", "label", "index", "frame", "gaze"), **request.param)

    @pytest.fixture
    def content(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        return FIELDS, records()


# What a sample is


def test_by_default_a_sample_is_every_frame_and_the_label(url: str) -> None:
    dataset = videos(url)
    assert len(dataset) == 4
    assert dataset.reader.fields == ("image", "label")
    for video, (clip, label) in enumerate(dataset[:]):
        assert label == video % 2
        assert clip.dtype == torch.uint8
        assert clip.equal(torch.stack([pixels(video, number) for number in range(LENGTHS[video])]))


def test_per_frame_fields_become_one_tensor(url: str) -> None:
    fields = ["index", "frame", "time", "gaze", "key", "video"]
    sample = videos(
        url, fields=fields, as_dict=True, frames=3, sampling="uniform", per_frame=["frame", "time", "gaze"]
    )[2]
    assert sample["frame"].tolist() == [1, 4, 7]
    assert sample["time"].tolist() == [1 / 25, 4 / 25, 7 / 25]
    assert sample["gaze"].tolist() == [[2, 1], [2, 4], [2, 7]]
    assert (sample["index"], sample["key"], sample["video"]) == (2, "video2.mp4", 2)


def test_pillow_images_come_as_lists_and_several_clips_have_a_dimension_of_their_own(url: str) -> None:
    described = {"url": url, "reader": "video", "decode": "pil", "reader_options": {"frames": 3, "sampling": "spaced"}}
    images, _ = storeds.build_dataset(storeds.load_config({"dataset": described}))[1]
    assert [image.size for image in images] == [(16, 12)] * 3
    assert len({id(image) for image in images}) == 3  # what changes one of them changes no other
    clips, _ = videos(url, decode="pil", frames=3, clips=2)[0]
    assert [len(clip) for clip in clips] == [3, 3]
    clips, numbers = videos(url, fields=["image", "frame"], frames=2, clips=3, stride=2, seed=1)[3]
    for clip, row in zip(clips, numbers.tolist(), strict=True):
        assert row[1] == row[0] + 2
        assert clip.equal(torch.stack([pixels(3, number) for number in row]))


def test_clips_of_different_lengths_are_padded_with_a_mask(url: str) -> None:
    padded, labels = collate(videos(url)[:])
    assert padded.values.shape == (4, 20, 3, 12, 16)
    assert padded.values.dtype == torch.uint8
    assert padded.mask.sum(1).tolist() == list(LENGTHS)
    assert not padded.values[~padded.mask].any()
    assert labels.tolist() == [0, 1, 0, 1]
    batch = collate(videos(url, as_dict=True, frames=8, short="pad", fields=["image", "frame"])[:])
    assert batch["image_mask"].equal(batch["frame_mask"])
    assert batch["image_mask"].sum(1).tolist() == [5, 1, 8, 8]


# Where videos begin and end


def test_runs_end_where_the_video_changes_or_the_frame_number_falls(tmp_path: Path) -> None:
    parts = [store(tmp_path / f"part{n}.h5", records([n + 2])) for n in range(3)]  # each has a video 0 and no other
    assert [len(clip) for clip, _ in videos(parts)[:]] == [2, 3, 4]
    assert len(videos(store(tmp_path / "none.h5", []))) == 0
    fields = {"image": "image", "name": "str"}
    rows = [{"image": frame(0, n), "name": name} for n, name in enumerate("aabbba")]
    named = store(tmp_path / "named.h5", rows, fields)
    clips = StoreDataset(named, reader=readers.video(by="name"))[:]
    assert [len(clip) for (clip,) in clips] == [2, 3, 1]


def test_a_pickle_is_small_and_needs_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOREDS_CACHE", str(tmp_path / "cache"))
    fields = {"image": "image", "video": "int", "frame": "int"}
    sizes = []
    for count in (10, 2000):
        rows = [{"image": b"", "video": n // 2, "frame": n % 2} for n in range(count)]
        dataset = videos(store(tmp_path / f"{count}.h5", rows, fields), fields=["video", "frame"])
        sizes.append(len(pickle.dumps(dataset)))
    assert sizes[1] < sizes[0] + 64 < 8192
    for file in (tmp_path / "cache" / "storeds").iterdir():
        file.unlink()
    assert pickle.loads(pickle.dumps(dataset))[999][0] == 999
    damaged = next(iter((tmp_path / "cache" / "storeds").iterdir()))
    damaged.write_bytes(b"no index")
    assert pickle.loads(pickle.dumps(dataset))[999][0] == 999


# Reading


def test_only_frames_of_the_clip_are_read_in_one_call_and_the_file_stays_open(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    open_file, get_many = Hdf5Opener.open, Store.get_many

    def counted_open(self: Hdf5Opener) -> Any:
        calls.append("open")
        return open_file(self)

    def counted(self: Store, positions: Sequence[int], /, fields: Any = None) -> Any:
        calls.append(len(positions))
        return get_many(self, positions, fields)

    dataset = pickle.loads(pickle.dumps(videos(url, frames=3, stride=2, seed=1)))
    monkeypatch.setattr(Hdf5Opener, "open", counted_open)
    monkeypatch.setattr(Store, "get_many", counted)
    for _ in range(3):
        dataset[[3, 0, 2, 3]]
    assert calls.count("open") <= 1
    assert [call for call in calls if call != "open"] == [4 * 3] * 3


def test_random_clips_depend_on_seed_epoch_and_index_alone(url: str) -> None:
    dataset = videos(url, frames=4, fields=["image", "frame"], seed=5)

    def drawn(workers: int) -> list[list[int]]:
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=list)
        return [numbers.tolist() for batch in loader for _, numbers in batch]

    first = drawn(0)
    assert drawn(2) == first == [numbers.tolist() for _, numbers in dataset[:]]
    assert dataset[3][1].tolist() == first[3]
    starts = set()
    for epoch in range(20):
        dataset.set_epoch(epoch)
        starts.add(dataset[3][1][0].item())
    assert len(starts) > 8


# What goes wrong


def test_an_undecodable_frame_is_named_and_handled_by_the_policy(tmp_path: Path) -> None:
    content = records()
    content[5 + 1 + 4]["image"] = b"no image"
    url = store(tmp_path / "bad.h5", content)
    with pytest.raises(errors.DecodeError, match="frame 4 of video 2: the image cannot be decoded") as caught:
        videos(url)[2]
    assert caught.value.key == "video2.mp4"
    dataset = videos(url, on_error="skip")
    assert len(collate(dataset[:])[1]) == 3
    assert dataset.report().bad == {"not_jpeg": 1}
    assert len(videos(url, stride=3)[2][0]) == 3  # frames 0, 3, 6: other frames do no harm


def test_a_damaged_frame_is_repaired_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    content = [{**row, "image": jpeg(n, (64, 48))} for n, row in enumerate(records([5]))]
    content[2]["image"] = content[2]["image"][:-200]
    url = store(tmp_path / "cut.h5", content)
    assert videos(url, min_recovered=0.0)[0][0].shape == (5, 3, 48, 64)
    assert "frame 2 of video 0: a damaged picture was repaired" in caplog.text
    with pytest.raises(errors.DecodeError, match="frame 2 of video 0: the image is damaged, and repair is off"):
        videos(url, repair=False)[0]


def test_short_videos_follow_the_option(url: str) -> None:
    fields = ["frame"]
    assert videos(url, frames=4, stride=2, fields=fields)[0][0].tolist() == [0, 2, 4, 4]
    assert videos(url, frames=4, stride=2, fields=fields, short="pad")[0][0].tolist() == [0, 2, 4]
    assert videos(url, frames=8, fields=fields, sampling="uniform", short="pad")[0][0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(errors.DecodeError, match="video 0 is short: it has 5 frames, but a clip needs 7"):
        videos(url, frames=4, stride=2, fields=fields, short="error")[0]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"frames": 0}, "frames must be at least 1"),
        ({"frames": 2, "sampling": "randm"}, "'random'"),
        ({"frames": 2, "sampling": "all"}, "takes every frame"),
        ({"frames": 2, "sampling": "uniform", "stride": 2}, "do not pass stride"),
        ({"frames": 2, "clips": 2, "short": "pad"}, "use 'repeat'"),
        ({"by": "vido"}, "'video'"),
        ({"by": "time"}, "of kind float"),
        ({"_runs": 3}, "no option '_runs'; .*he options are (?!.*(_runs|strided|fields|made))"),
        ({"per_frame": ["time", "scoer"]}, "per_frame: .*no field 'scoer'"),
    ],
)
def test_an_invalid_option_is_named(url: str, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.ConfigError, match=reason):
        StoreDataset(url, reader=READER, reader_options=options)


# Which frames


plans: st.SearchStrategy[dict[str, Any]] = st.builds(
    dict,
    frames=st.integers(1, 40),
    stride=st.integers(1, 9),
    clips=st.integers(1, 4),
    sampling=st.sampled_from(["random", "spaced"]),
)


@given(plans, st.integers(1, 400), st.integers(0, 2**40))
def test_clips_step_by_the_stride_and_stay_inside(options: dict[str, Any], count: int, seed: int) -> None:
    plan = ClipPlan(**options)
    chosen = plan.choose(count, torch.Generator().manual_seed(seed))
    assert chosen == plan.choose(count, torch.Generator().manual_seed(seed))
    clips = np.array(chosen).reshape(plan.clips, options["frames"])
    assert clips.min() >= 0
    assert clips.max() < count
    for clip in clips:
        expected = clip[0] + plan.stride * np.arange(options["frames"])
        assert (clip == np.minimum(expected, count - 1)).all()
        if count >= plan.needs:
            assert (clip == expected).all()
        else:
            assert clip[0] == 0


@given(st.integers(1, 64), st.integers(1, 400))
def test_uniform_frames_are_the_middles_of_equal_parts(frames: int, count: int) -> None:
    chosen = ClipPlan(frames, sampling="uniform").choose(count)
    assert len(chosen) == frames
    assert chosen == sorted(chosen)
    assert chosen == [int((at + 0.5) * count / frames + 1e-9) for at in range(frames)]
    if frames <= count:
        assert len(set(chosen)) == frames
        middle = ClipPlan(frames, sampling="spaced").choose(count)
        assert abs(middle[0] - (count - 1 - middle[-1])) <= 1


# Folders of frames


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name, count in (("cats/one", 12), ("cats/two", 2), ("dogs/three", 3)):
        (tmp_path / "frames" / name).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "frames" / name / f"img{number}.jpg").write_bytes(frame(0, number))
    return tmp_path / "frames"


def test_a_folder_of_frames_is_a_video_in_the_order_of_their_numbers(folders: Path, tmp_path: Path) -> None:
    meta = pack(folders, f"hdf5://{tmp_path}/out.h5", kind="frames", split={"train": 0.5, "val": 0.5})
    assert meta.attrs == {"classes": ["cats", "dogs"]}
    assert meta.count == 17
    with open_backend(f"hdf5://{tmp_path}/out.h5") as backend:
        rows = backend.get_many(range(17))
    assert [row["image"] for row in rows[:12]] == [frame(0, number) for number in range(12)]  # type: ignore[index]
    assert [(row["video"], row["label"], row["key"]) for row in rows[11:16:2]] == [  # type: ignore[index]
        (0, 0, "cats/one"),
        (1, 0, "cats/two"),
        (2, 1, "dogs/three"),
    ]
    assert [row["frame"] for row in rows[10:16]] == [10, 11, 0, 1, 0, 1]  # type: ignore[index]
    assert len({(row["key"], row["split"]) for row in rows}) == 3  # type: ignore[index]  # a split keeps a video together


@pytest.mark.parametrize(
    ("name", "more", "message"),
    [("cats/one", None, "folders of images, one per video"), (".", "loose/0.jpg", "label=False")],
)
def test_a_folder_that_holds_no_videos_is_an_error(folders: Path, name: str, more: str | None, message: str) -> None:
    if more is not None:
        (folders / more).parent.mkdir(exist_ok=True)
        (folders / more).write_bytes(frame(0, 0))
    with pytest.raises(errors.ConfigError, match=message):
        open_source(folders / name, kind="frames")
