"""Count the files of storeds that one training, one foreign read and one pack execute.

Run ``python scripts/count_files.py``. A profile function notes the file of each Python call, also in forked workers. Files
that are only imported do not count. ``--list`` prints their names.
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

SOURCE = str(Path(storeds.__file__).parent) + os.sep


class Files:
    """The files executed in this process and, through `folder`, in its forked children."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seen = folder, set[str]()
        # Not os.register_at_fork: a child clears its finalizers after those hooks.
        multiprocessing.util.register_after_fork(self, Files._begin_in_child)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_name != "<module>" and code.co_filename.startswith(SOURCE):
            self.seen.add(code.co_filename.removeprefix(SOURCE))

    def _begin_in_child(self) -> None:
        self.seen = set()
        multiprocessing.util.Finalize(None, self._save, exitpriority=100)

    def _save(self) -> None:
        (self.folder / str(os.getpid())).write_text("\n".join(self.seen))

    def of(self, job: Callable[[], object]) -> set[str]:
        """Return the files that `job` executes."""
        self.seen = set()
        for file in self.folder.iterdir():
            file.unlink()
        sys.setprofile(self._note)
        threading.setprofile(self._note)
        try:
            job()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # None ends it, as the documentation says
        return self.seen.union(*(file.read_text().split() for file in self.folder.iterdir()))


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
        trips = _trips(Path(root))
        (Path(root) / "seen").mkdir()
        files = Files(Path(root) / "seen")
        for name, job in trips.items():
            found = files.of(job)
            print(f"{len(found):3} files: {name}")
            for file in sorted(found) if wanted else ():
                print(f"      {file}")


def _trips(root: Path) -> dict[str, Callable[[], object]]:
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
        "foreign HDF5 with JPEGs": train(f"hdf5://{root}/foreign.h5", decode="tensor", transform=crop),
        "foreign HDF5 with gzip arrays": train(f"hdf5://{root}/arrays.h5", reader="array"),
        "pack a folder": lambda: storeds.pack(folder, f"lmdb://{root}/packed.lmdb"),
    }


if __name__ == "__main__":
    main()
