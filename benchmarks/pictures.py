"""Samples of photographs in two checkouts, each in a process of its own, with native and foreign stores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT, Result, Run, entry, ratio
from benchmarks.photos import jpegs

_BATCH = 10
_NORMALIZE = {"name": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_CROP: list[Any] = [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor", _NORMALIZE]

Case = tuple[str, str, bool]  # store, decoder, whether it crops


def serve(photos: str, work: str) -> None:
    """Write the stores; then, for each case on a line of input, print the processor seconds of each batch of a pass."""
    import lmdb
    import torch

    import storeds

    torch.set_num_threads(1)
    blobs = [path.read_bytes() for path in sorted(Path(photos).iterdir())]
    with storeds.open_writer(f"{work}/native.lmdb", {"image": "image", "label": "int"}) as writer:
        writer.append({"image": blob, "label": at} for at, blob in enumerate(blobs))
    with lmdb.open(f"{work}/foreign.lmdb", map_size=1 << 32, lock=False) as env, env.begin(write=True) as txn:
        for at, blob in enumerate(blobs):
            txn.put(b"%08d.jpg" % at, blob)
    datasets: dict[str, Any] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        store, decode, crops = json.loads(line)
        if line not in datasets:
            options = {"decode": decode, "transform": _CROP if crops else None, "fields": ["image"], "seed": 0}
            datasets[line] = storeds.StoreDataset(f"{work}/{store}.lmdb", **options)
        dataset, times = datasets[line], []
        for first in range(0, len(dataset), _BATCH):
            start = time.process_time()
            samples = dataset[first : first + _BATCH]
            times.append(time.process_time() - start)
        total = float(sum(torch.as_tensor(sample[0]).double().mean() for sample in samples)) if crops else 0.0
        print(json.dumps([times, total]), flush=True)


@contextmanager
def served(checkout: Path, photos: Path, work: Path) -> Iterator[Callable[[Case], Any]]:
    """Start the process of one checkout; give a function that measures a case."""
    work.mkdir()
    code = f"from benchmarks.pictures import serve; serve({str(photos)!r}, {str(work)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(ROOT)))}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **pipes) as process:
        questions, answers = process.stdin, process.stdout
        assert questions is not None
        assert answers is not None
        answers.readline()

        def measure(case: Case) -> Any:
            print(json.dumps(case), file=questions, flush=True)
            return json.loads(answers.readline() or "null") or sys.exit(f"the process of {checkout} ended early")

        yield measure
        questions.close()


@entry(
    "pictures",
    "Samples of photographs in another checkout against this one, from native and foreign stores, by decoder",
    needs="--option against=CHECKOUT",
)
def pictures(run: Run) -> Iterator[Result]:
    photos = run.folder / "photos"
    photos.mkdir()
    for at, blob in enumerate(jpegs(run.count(300, _BATCH), 500)):
        (photos / f"{at:06}.jpg").write_bytes(blob)
    with ExitStack() as stack:
        ours = stack.enter_context(served(ROOT, photos, run.folder / "ours"))
        theirs = stack.enter_context(served(Path(run.options["against"]).resolve(), photos, run.folder / "theirs"))
        for store in ("native", "foreign"):
            for decode in ("tensor", "pil", "fast"):
                for crops in (True, False):
                    yield compared((store, decode, crops), ours, theirs, run.rounds)


def compared(case: Case, ours: Callable[[Case], Any], theirs: Callable[[Case], Any], rounds: int) -> Result:
    """Compare the processor time of both; of each batch the fastest pass counts, and the spread is over batches."""
    name = f"{case[0]}, decode={case[1]}, {'crop' if case[2] else 'whole'}"
    if ours(case)[1] != theirs(case)[1]:
        raise AssertionError(f"{name}: the two checkouts give other pixels")
    passes: dict[Any, list[Sequence[float]]] = {ours: [], theirs: []}
    for number in range(rounds):
        for checkout in (ours, theirs) if number % 2 else (theirs, ours):
            passes[checkout].append(checkout(case)[0])
    mine, other = ([min(times) for times in zip(*passes[way], strict=True)] for way in (ours, theirs))
    each = f"{1e6 * sum(mine) / len(mine) / _BATCH:,.0f} µs a sample"
    return ratio(name, other, mine, least=0.97, detail=each)
