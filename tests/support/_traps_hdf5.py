"""Write HDF5 files of robots, medical images, super-resolution and video features, with plain h5py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from photographs import jpeg, photograph

__all__ = ["aloha", "brats_slice", "columns_of", "demonstrations", "pairs", "pictures_in_groups", "write"]

Arrays = Mapping[str, Any]


def write(path: Path, datasets: Arrays, **attributes: Any) -> Path:
    """Write datasets by path, and attributes of the root."""
    with h5py.File(path, "w") as file:
        for name, value in datasets.items():
            file[name] = value
        file.attrs.update(attributes)
    return path


def columns_of(path: Path) -> dict[str, Any]:
    """Return every dataset of a file by its path, as h5py reads it."""
    found: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return found


def aloha(path: Path, steps: int = 40, *, compressed: bool = False, seed: int = 0) -> Path:
    """An episode as ALOHA records it; with `compressed`, frames are JPEGs padded to one length, as its converter writes."""
    draw = np.random.default_rng(seed)
    frames = [photograph(seed + at, (32, 24)) for at in range(steps)]
    with h5py.File(path, "w") as file:
        file.attrs["sim"], file.attrs["compress"] = True, compressed
        file["action"] = draw.random((steps, 14))
        file["observations/qpos"], file["observations/qvel"] = draw.random((2, steps, 14))
        if not compressed:
            file.create_dataset(
                "observations/images/top", data=np.stack(list(map(np.asarray, frames))), chunks=(1, 24, 32, 3)
            )
            return path
        blobs = [jpeg(seed + at, (32, 24)) for at in range(steps)]
        longest = max(map(len, blobs))
        padded = np.stack([np.frombuffer(blob.ljust(longest, b"\0"), "u1") for blob in blobs])
        file.create_dataset("observations/images/top", data=padded, chunks=(1, longest))
        file["compress_len"] = np.array([[len(blob) for blob in blobs]], "f4")
    return path


def brats_slice(folder: Path, number: int) -> Path:
    """A slice of BraTS 2020 as its widespread HDF5 copy has them: four modalities, a mask of three."""
    draw = np.random.default_rng(number)
    arrays = {"image": draw.random((240, 240, 4)), "mask": draw.integers(0, 2, (240, 240, 3), "u1")}
    return write(folder / f"volume_1_slice_{number}.h5", arrays)


def pairs(path: Path, low: str, high: str, count: int = 14) -> Path:
    """Pictures of two sizes, a group for each size, as for super-resolution."""
    small = {f"{low}/{at}": np.asarray(photograph(at, (8, 6))) for at in range(count)}
    return write(path, {**small, **{f"{high}/{at}": np.asarray(photograph(at, (16, 12))) for at in range(count)}})


def pictures_in_groups(path: Path, groups: int, names: tuple[str, ...]) -> dict[str, bytes]:
    """Write opaque scalars, a JPEG each, under the same names in every group, and return path → JPEG."""
    truth = {f"g{at:02}/{name}": jpeg(7 * at + number) for at in range(groups) for number, name in enumerate(names)}
    write(path, {name: np.void(data) for name, data in truth.items()})
    return truth


def demonstrations(path: Path, lengths: tuple[int, ...] = (9, 11, 10), *, libero: bool = False) -> Path:
    """Demonstrations as robomimic's `dataset_states_to_obs.py` writes them, or LIBERO's `create_dataset.py`."""
    draw = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["total"], data.attrs["env_args"] = (
            sum(lengths),
            json.dumps({"env_name": "Lift", "type": 1}, indent=4),
        )
        for number, steps in enumerate(lengths):
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"], demo.attrs["model_file"] = steps, "<mujoco/>" * 1000
            demo["actions"], demo["states"] = draw.random((steps, 7)), draw.random((steps, 32))
            if libero:
                demo["rewards"], demo["dones"] = (np.eye(1, steps, steps - 1, dtype="u1")[0] for _ in range(2))
                demo["robot_states"] = draw.random((steps, 9))
                demo.attrs["init_state"] = draw.random(32)
                for name, size in (
                    ("ee_pos", 3),
                    ("ee_ori", 3),
                    ("ee_states", 6),
                    ("gripper_states", 2),
                    ("joint_states", 7),
                ):
                    demo[f"obs/{name}"] = draw.random((steps, size))
                for name in ("agentview_rgb", "eye_in_hand_rgb"):
                    demo[f"obs/{name}"] = draw.integers(0, 256, (steps, 16, 16, 3), "u1")
                continue
            demo["rewards"], demo["dones"] = np.zeros(steps), np.eye(1, steps, steps - 1, dtype="i8")[0]
            for name in ("obs", "next_obs"):
                demo[f"{name}/robot0_eef_pos"] = draw.random((steps, 3))
                images = draw.integers(0, 256, (steps, 12, 12, 3), "u1")
                demo.create_dataset(f"{name}/agentview_image", data=images, compression="gzip")
        if libero:
            data.attrs["problem_info"] = json.dumps({"language_instruction": "open the drawer"})
            data.attrs["bddl_file_content"] = "(define)" * 1000
            data.attrs["num_demos"], data.attrs["macros_image_convention"] = len(lengths), "opengl"
        else:
            file["mask/train"] = np.array(["demo_2", "demo_0"], dtype="S")
            file["mask/valid"] = np.array(["demo_1"], dtype="S")
    return path
