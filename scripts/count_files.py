"""Count the files of storeds that one training, one batch, one foreign read and one pack execute.

Run ``python scripts/count_files.py``. A profile function notes the file of each Python call, also in forked workers. Files
that are only imported do not count. ``--list`` prints their names, and the functions of one batch in the order in which
it reaches them.
"""

import argparse
import contextlib
import importlib
import io
import multiprocessing.util
import os
import pkgutil
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import h5py
import numpy as np
from PIL import Image

import storeds
from storeds.loaders.worker import BatchFetcher

SOURCE = str(Path(storeds.__file__).parent) + os.sep


class Files:
    """The functions executed in this process and, through `folder`, in its forked children; in order, once each.

    `of_batch` narrows it to one batch: in a worker, to the request of this epoch and number.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, dict[str, None]()
        self.of_batch: tuple[int, int] | None = None
        # Not os.register_at_fork: a child clears its finalizers after those hooks.
        multiprocessing.util.register_after_fork(self, Files._begin_in_child)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code.co_name == "<module>" or not code.co_filename.startswith(SOURCE):
            return
        if event == "call":
            if self.of_batch and code is BatchFetcher.__getitem__.__code__:
                self.seen = {}
            self.seen[f"{code.co_filename.removeprefix(SOURCE)}:{code.co_qualname}"] = None
        elif event == "return" and code is BatchFetcher.__getitem__.__code__:
            asked = frame.f_locals["request"].batch
            if (asked.epoch, asked.number) == self.of_batch:
                sys.setprofile(None)

    def _begin_in_child(self) -> None:
        self.seen = {}
        multiprocessing.util.Finalize(None, self._save, exitpriority=100)

    def _save(self) -> None:
        (self.folder / str(os.getpid())).write_text("\n".join(self.seen))

    def of(self, job: Callable[[], object]) -> list[str]:
        """Return the functions that `job` executes."""
        self.seen = {}
        for file in self.folder.iterdir():
            file.unlink()
        sys.setprofile(self._note)
        threading.setprofile(self._note)
        try:
            job()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, as the documentation says
        return [*self.seen, *(line for file in self.folder.iterdir() for line in file.read_text().splitlines())]

    def second_batch(self, url: str) -> None:
        """Make the second batch of the second epoch, and forget what was executed before."""
        transform = ["RandomHorizontalFlip", "ToTensor"]
        dataset = storeds.StoreDataset(
            url, decode="tensor", transform=[{"name": "RandomResizedCrop", "size": 32}, *transform]
        )
        self.of_batch = 1, 1
        loader = storeds.StoreLoader(dataset, batch_size=4, num_workers=1, persistent_workers=True, shuffle=True)
        for _ in loader:
            pass
        batches = iter(loader)
        next(batches)
        self.seen = {}
        next(batches)
        sys.setprofile(None)
        self.of_batch = None


def jpeg(seed: int) -> bytes:
    """Return a picture of 64 x 48 pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).resize((64, 48)).save(buffer, "JPEG")
    return buffer.getvalue()


def main() -> None:
    """Print how many files each trip executes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="print the files")
    wanted = parser.parse_args().list
    for module in pkgutil.walk_packages(storeds.__path__, "storeds."):
        with contextlib.suppress(ImportError):  # of an optional dependency
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "seen").mkdir()
        files = Files(Path(root) / "seen")
        for name, job in _trips(Path(root), files).items():
            functions = files.of(job)
            found = sorted({function.partition(":")[0] for function in functions})
            print(f"{len(found):3} files: {name}")
            for line in (functions if name == "one batch" else found) if wanted else ():
                print(f"      {line}")


def _trips(root: Path, files: Files) -> dict[str, Callable[[], object]]:
    folder = root / "photos"
    for at in range(20):
        (folder / f"class{at % 2}").mkdir(parents=True, exist_ok=True)
        (folder / f"class{at % 2}" / f"{at}.jpg").write_bytes(jpeg(at))
    store = f"lmdb://{root}/train.lmdb"
    storeds.pack(folder, store)
    with h5py.File(root / "foreign.h5", "w") as file:
        kind = h5py.vlen_dtype(np.uint8)
        images = file.create_dataset("images", (20,), kind)
        for at in range(20):
            images[at] = np.frombuffer(jpeg(at), np.uint8)
        file["labels"] = np.arange(20)
    with h5py.File(root / "arrays.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((40, 16), np.float32), chunks=(8, 16), compression="gzip")
        file["y"] = np.arange(40)

    def train(url: str, **dataset: object) -> Callable[[], object]:
        loader = {"batch_size": 4, "num_workers": 1, "shuffle": True}
        config = {"dataset": {"url": url, **dataset}, "loader": loader}
        return lambda: list(storeds.build_loader(storeds.load_config(config)))

    crop = [{"name": "RandomResizedCrop", "size": 32}, "ToTensor"]
    return {
        "config, native LMDB, training loop, one worker": train(store, decode="tensor", transform=crop),
        "one batch": lambda: files.second_batch(store),
        "foreign HDF5 with JPEGs": train(f"hdf5://{root}/foreign.h5", decode="tensor", transform=crop),
        "foreign HDF5 with gzip arrays": train(f"hdf5://{root}/arrays.h5", reader="array"),
        "pack a folder": lambda: storeds.pack(folder, f"lmdb://{root}/packed.lmdb"),
    }


if __name__ == "__main__":
    main()
