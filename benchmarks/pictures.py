"""The cost of samples of photographs in two checkouts, from a native and a foreign store, with each decoder.

Run as ``python -m benchmarks.pictures --against CHECKOUT``, where ``CHECKOUT/src`` is the other source tree. Each checkout
runs in a process of its own, which writes the stores. Both take turns with passes over the same samples. The time of a
batch is the minimum over all passes, in processor seconds, so that other work on the machine hardly matters. A ratio above
1 means that this checkout takes less time. The spread is over the batches.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._common import Result, Spread, parser, report
from benchmarks.photos import listed, make_photos

_ROOT = Path(__file__).resolve().parents[1]
_BATCH = 10
_NORMALIZE = {"name": "Normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
_TRANSFORMS: dict[str, list[Any] | None] = {
    "crop": [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor", _NORMALIZE],
    "whole": None,
}
# Store, decoder, transform, whether every pass is the first of a new dataset; and the minimum ratio.
_CASES: tuple[tuple[str, str, str, bool, float | None], ...] = (
    ("native", "tensor", "crop", False, 1.0),
    ("native", "tensor", "whole", False, 1.0),
    ("native", "pil", "crop", False, 1.0),
    ("native", "pil", "whole", False, 1.0),
    ("native", "fast", "crop", False, 1.0),
    ("foreign", "tensor", "crop", False, 0.97),
    ("foreign", "tensor", "crop", True, None),
    ("foreign", "tensor", "whole", False, 0.97),
    ("foreign", "pil", "crop", False, 0.75),
    ("foreign", "pil", "whole", False, 0.75),
    ("foreign", "fast", "crop", False, 0.97),
    ("foreign", "fast", "crop", True, None),
)


def write_stores(photos: Sequence[Path], work: Path) -> dict[str, str]:
    """Write a native store and a foreign LMDB file; return their URLs."""
    import lmdb

    import storeds

    urls = {"native": f"{work}/native.lmdb", "foreign": f"{work}/foreign.lmdb"}
    with storeds.open_writer(urls["native"], {"image": "image", "label": "int"}) as writer:
        writer.append({"image": path.read_bytes(), "label": at} for at, path in enumerate(photos))
    env = lmdb.open(urls["foreign"], map_size=1 << 32, lock=False)
    with env.begin(write=True) as txn:
        for at, path in enumerate(photos):
            txn.put(b"%08d.jpg" % at, path.read_bytes())
    env.close()
    return urls


def serve(folder: str, work: str) -> None:
    """Write the stores; then, for each case on a line of input, print the processor seconds of each batch of a pass."""
    import torch

    import storeds

    torch.set_num_threads(1)
    urls = write_stores(listed(Path(folder) / "photos"), Path(work))
    datasets: dict[str, Any] = {}
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        store, decode, transform, is_first = json.loads(line)
        if is_first or line not in datasets:
            options = {"decode": decode, "transform": _TRANSFORMS[transform], "fields": ["image"], "seed": 0}
            datasets[line] = storeds.StoreDataset(urls[store], **options)
        dataset, times = datasets[line], []
        for first in range(0, len(dataset), _BATCH):
            start = time.process_time()
            dataset[first : first + _BATCH]
            times.append(time.process_time() - start)
        print(json.dumps(times), flush=True)


@contextmanager
def served(checkout: Path, folder: Path, work: Path) -> Iterator[Any]:
    """Start the process of one checkout; yield a function that measures a case."""
    work.mkdir()
    code = f"from benchmarks.pictures import serve; serve({str(folder)!r}, {str(work)!r})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(_ROOT)))}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        answers, questions = process.stdout, process.stdin

        def answer() -> Any:
            line = answers.readline()
            if not line:
                raise SystemExit(f"the process of {checkout} ended early")
            return json.loads(line)

        def measure(case: Sequence[Any]) -> Any:
            print(json.dumps(case), file=questions, flush=True)
            return answer()

        answer()
        yield measure
        questions.close()


def main() -> int:
    options = parser(__doc__ or "", "pictures.json")
    options.add_argument("--against", type=Path, required=True, help="the other checkout")
    options.add_argument("--photos", type=int, default=300)
    options.add_argument("--only", default="", help="those cases of which this is a part of the name")
    given = options.parse_args()
    cases = [case for case in _CASES if given.only in _name(case)]
    with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
        work = Path(folder)
        known = make_photos(work / "source", given.photos)
        with (
            served(_ROOT, work / "source", work / "ours") as ours,
            served(given.against.resolve(), work / "source", work / "theirs") as theirs,
        ):
            results = [_compared(case, ours, theirs, given.rounds) for case in cases]
    setup = {**known, "rounds": given.rounds, "against": str(given.against), "transform": _TRANSFORMS["crop"]}
    met = report("Samples of photographs, two checkouts", results, setup, given.out)
    return 1 if given.check and not met else 0


def _name(case: Sequence[Any]) -> str:
    store, decode, transform, is_first, _ = case
    return f"{store}, decode={decode}, {transform}" + (", first epoch" if is_first else "")


def _compared(case: Sequence[Any], ours: Any, theirs: Any, rounds: int) -> Result:
    *asked, target = case
    ours(asked), theirs(asked)
    passes: dict[Any, list[list[float]]] = {ours: [], theirs: []}
    for number in range(rounds):
        for checkout in (ours, theirs) if number % 2 else (theirs, ours):
            passes[checkout].append(checkout(asked))
    own, other = ([min(times) for times in zip(*passes[checkout], strict=True)] for checkout in (ours, theirs))
    ratio = Spread.of([b / a for a, b in zip(own, other, strict=True)])
    mine, others = (1e6 * sum(times) / len(times) / _BATCH for times in (own, other))
    detail = f"{mine:,.0f} against {others:,.0f} µs a sample"
    met = target is None or ratio.median >= target
    return Result(_name(case), "ratio", ratio, "" if target is None else f"≥ {target:g}", met, detail)


if __name__ == "__main__":
    raise SystemExit(main())
