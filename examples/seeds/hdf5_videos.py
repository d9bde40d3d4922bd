"""Read HDF5 files of many videos (JPEG frames, one group per video) interleaved, and open each file once.

With TensorFlow, `pip install 'storeds[tf]'`, it also reads them as a `tf.data.Dataset`.
"""

from __future__ import annotations

import importlib.util
import io
import tempfile

import h5py
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import storeds

FILES, VIDEOS = 3, 20


def jpeg(value: int) -> np.ndarray:
    file = io.BytesIO()
    Image.fromarray(np.full((24, 32, 3), value, np.uint8)).save(file, "jpeg")
    return np.frombuffer(file.getvalue(), np.uint8)


def write(folder: str) -> list[str]:
    """Write videos of 3 to 9 frames, as a dataset of variable-length JPEGs each."""
    paths = [f"{folder}/videos-{number}.h5" for number in range(FILES)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as file:
            for video in range(VIDEOS):
                group = file.create_group(f"video_{video:03d}")
                group.attrs["label"] = number
                frames = group.create_dataset("frames", (3 + video % 7,), h5py.vlen_dtype(np.uint8))
                for at in range(len(frames)):
                    frames[at] = jpeg(10 * video + at)
    return paths


def main(folder: str) -> None:
    paths = write(folder)

    # A video is a sample: here 4 frames of each, spread evenly; only those are read.
    options = {"frames": 4, "sampling": "uniform"}
    dataset = storeds.StoreDataset(paths[0], reader="video", decode="tensor", reader_options=options)
    clip, label = dataset[5]
    assert clip.shape == (4, 3, 24, 32) and label == 0

    # Interleaved over the files, shuffled, shared out between workers; whole videos, padded with a mask.
    stream = storeds.StoreIterable(paths, reader="video", decode="tensor", shuffle=True, block_size=2, window=8, seed=0)
    lengths, labels = [], []
    for clips, batch_labels in DataLoader(stream, batch_size=5, num_workers=2, collate_fn=storeds.collate):
        mask = clips.mask if hasattr(clips, "mask") else torch.ones(clips.shape[:2], dtype=torch.bool)
        lengths += mask.sum(1).tolist()
        labels += batch_labels.tolist()
    assert sorted(lengths) == sorted(FILES * [3 + video % 7 for video in range(VIDEOS)])
    assert sorted(labels) == sorted(VIDEOS * list(range(FILES)))
    print(f"{len(lengths)} videos of {FILES} files")

    with h5py.File(f"{folder}/images.h5", "w") as file:
        file["train_img"] = np.arange(8 * 27 * 61 * 3, dtype=np.uint8).reshape(8, 27, 61, 3)
    images = f"{folder}/images.h5?columns=image:train_img[]"
    (image,) = storeds.StoreDataset(images, reader="array")[3]
    assert image.shape == (27, 61, 3)
    if importlib.util.find_spec("tensorflow") is not None:
        read_with_tensorflow(paths, images, sorted(lengths))


def read_with_tensorflow(paths: list[str], images: str, lengths: list[int]) -> None:
    """Read batches of whole videos, and single images of one size, whose shape is known beforehand."""
    from storeds.loaders import to_tf_dataset

    order = {"shuffle": True, "block_size": 2, "window": 8, "seed": 0}
    videos = to_tf_dataset(paths, reader="video", batch_size=5, ragged=True, **order)
    for _ in range(2):  # each pass is another epoch
        assert sorted(int(length) for clips, _ in videos for length in clips.row_lengths()) == lengths
    singles = to_tf_dataset(images, reader="array")
    assert singles.element_spec[0].shape == (27, 61, 3)
    assert [image.numpy()[0, 0, 0] for (image,) in singles][1] == 27 * 61 * 3 % 256
    print(f"{len(lengths)} videos in {len(videos)} batches of TensorFlow's")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(folder)
