"""HDF5 files as well-known tools write them, with plain h5py, and the records that h5py alone finds in them.

Nothing here uses `storeds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from _foreign_hdf5_groups import Truth
from photographs import jpeg, photograph

__all__ = [
    "aloha",
    "aloha_compressed",
    "brats",
    "cats_and_dogs",
    "libero",
    "opaque_pictures",
    "padded_blobs",
    "robomimic",
    "super_resolution",
    "variable_blobs",
    "video_features",
    "write",
]

Arrays = Mapping[str, Any]
DRAW = np.random.default_rng(1)


def write(path: Path, datasets: Arrays, **attributes: Any) -> Path:
    """Write datasets by path, and attributes of the root."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(attributes)
    return path


def _fields(arrays: Arrays, row: Any) -> dict[str, Any]:
    """Return one record, under the names of its fields."""
    return {name.replace("/", "_"): _plain(value[row]) for name, value in arrays.items()}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def aloha(path: Path) -> Truth:
    """An episode as ALOHA records it."""
    arrays = {name: DRAW.random((40, 14)) for name in ("action", "observations/qpos", "observations/qvel")}
    frames = np.stack([np.asarray(photograph(at, (32, 24))) for at in range(40)])
    write(path, arrays, sim=True)
    with h5py.File(path, "a") as file:
        file.create_dataset("observations/images/top", data=frames, chunks=(1, 24, 32, 3))
    return [_fields({**arrays, "observations/images/top": frames}, at) for at in range(40)]


def aloha_compressed(path: Path) -> Truth:
    """The same with JPEGs padded to one length, as ALOHA's converter writes."""
    blobs = [jpeg(at, (32, 24)) for at in range(40)]
    padded = np.stack([np.frombuffer(blob.ljust(max(map(len, blobs)), b"\0"), "u1") for blob in blobs])
    lengths = np.array([[len(blob) for blob in blobs]], "f4")
    write(path, {"action": np.zeros((40, 14)), "observations/images/top": padded, "compress_len": lengths})
    return [{"action": np.zeros(14), "observations_images_top": blob} for blob in blobs]


def robomimic(path: Path) -> Truth:
    """Demonstrations as robomimic's `dataset_states_to_obs.py` writes them."""
    demos = [_demonstration(steps, ("obs/agentview_image", "next_obs/agentview_image")) for steps in (9, 11, 10)]
    masks = {"mask/train": np.array(["demo_2", "demo_0"], "S"), "mask/valid": np.array(["demo_1"], "S")}
    return _demonstrations(path, demos, masks)


def libero(path: Path) -> Truth:
    """Demonstrations as LIBERO's `create_dataset.py` writes them."""
    return _demonstrations(path, [_demonstration(steps, ("obs/agentview_rgb",)) for steps in (4, 7)], {})


def _demonstration(steps: int, images: tuple[str, ...]) -> dict[str, Any]:
    arrays = {"actions": DRAW.random((steps, 7)), "dones": np.eye(1, steps, steps - 1, dtype="u1")[0]}
    return arrays | {name: DRAW.integers(0, 256, (steps, 12, 12, 3), "u1") for name in images}


def _demonstrations(path: Path, demos: list[dict[str, Any]], others: Arrays) -> Truth:
    datasets = {f"data/demo_{at}/{name}": rows for at, demo in enumerate(demos) for name, rows in demo.items()}
    write(path, {**datasets, **others})
    with h5py.File(path, "a") as file:
        file["data"].attrs["env_args"] = '{"env_name": "Lift"}'
        for demo in file["data"].values():
            demo.attrs["model_file"] = "<mujoco/>" * 1000
    return [
        {**_fields(demo, step), "episode": at, "step": step, "key": f"demo_{at}/{step}"}
        for at, demo in enumerate(demos)
        for step in range(len(demo["actions"]))
    ]


def brats(path: Path) -> Truth:
    """Slices of BraTS 2020, a file each: four modalities, a mask of three, and a label."""
    truth = []
    for number in range(3):
        arrays = {"image": DRAW.random((24, 24, 4)), "label": number, "mask": DRAW.integers(0, 2, (24, 24, 3), "u1")}
        write(path.with_name(f"volume_1_slice_{number}.h5"), arrays)
        truth.append({**arrays, "key": f"volume_1_slice_{number}"})
    return truth


def super_resolution(path: Path) -> Truth:
    """Pictures of two sizes, a group for each size."""
    pictures = [{"lr": photograph(at, (8, 6)), "hr": photograph(at, (16, 12))} for at in range(12)]
    truth = [{name: np.asarray(picture) for name, picture in pair.items()} for pair in pictures]
    write(path, {f"{name}/{at}": value for at, pair in enumerate(truth) for name, value in pair.items()})
    return [{**pair, "key": str(at)} for at, pair in enumerate(truth)]


def opaque_pictures(path: Path) -> Truth:
    """Sixty JPEGs as opaque scalars, some with NULs at their end, under the same five names in twelve groups."""
    places = [(f"g{at:02}", name) for at in range(12) for name in ("ant", "bee", "cow", "dog", "emu")]
    blobs = [jpeg(at) + bytes(at % 3) for at in range(60)]
    write(path, {"/".join(place): np.void(blob) for place, blob in zip(places, blobs, strict=True)})
    return [{"image": blobs[at], "scene": group, "key": f"{group}/{name}"} for at, (group, name) in enumerate(places)]


def cats_and_dogs(path: Path) -> Truth:
    """`cat.0.jpg` … `dog.5.jpg`, in one group."""
    truth = {f"{'dog' if at > 5 else 'cat'}.{at % 6}.jpg": jpeg(at) for at in range(12)}
    write(path, {key: np.frombuffer(blob, "u1") for key, blob in truth.items()})
    return [{"image": blob, "key": key} for key, blob in truth.items()]


def video_features(path: Path) -> Truth:
    """Features of segments in a group for each video, which is not a class."""
    places = [("run_2", at) for at in (2, 9, 10)] + [("walk_1", at) for at in (3, 17)]
    features = {f"{group}/{at}": DRAW.random(16) for group, at in places}
    write(path, features)
    return [{"array": features[f"{group}/{at}"], "clip": group, "segment": at} for group, at in places]


def padded_blobs(path: Path) -> Truth:
    """JPEGs that end in NULs, a dataset each."""
    write(path, {key: np.frombuffer(blob, "u1") for key, blob in _padded()})
    return [{"image": blob, "key": key} for key, blob in _padded()]


def variable_blobs(path: Path) -> Truth:
    """JPEGs that end in NULs, as bytes of variable length."""
    with h5py.File(path, "w") as file:
        rows = file.create_dataset("image", (5,), h5py.vlen_dtype("u1"))
        for at, (_, blob) in enumerate(_padded()):
            rows[at] = np.frombuffer(blob, "u1")
    return [{"image": blob} for _, blob in _padded()]


def _padded() -> Iterator[tuple[str, bytes]]:
    return ((f"img_{at}", jpeg(at) + bytes(at)) for at in range(5))
