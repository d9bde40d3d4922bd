"""WebDataset: tar shards, read in sequence and shuffled in a buffer."""

from __future__ import annotations

import webdataset as wds

from benchmarks.peers._job import Epoch, Job
from benchmarks.peers._torchvision import ToImage
from benchmarks.photos import listed

_SHARDS, _BUFFER = 16, 1000


def prepare(job: Job) -> None:
    paths = listed(job.photos)
    with wds.ShardWriter(str(job.work / "%04d.tar"), maxcount=-(-len(paths) // _SHARDS), verbose=0) as writer:
        for number, path in enumerate(paths):
            writer.write({"__key__": f"{number:08}", "jpg": path.read_bytes(), "cls": number})


def epochs(job: Job) -> Epoch:
    shards = sorted(map(str, job.work.glob("*.tar")))
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), detshuffle=False, empty_check=False)
        .shuffle(_BUFFER)
        .to_tuple("jpg", "cls")
        .map_tuple(ToImage(), int)
    )
    batches = wds.WebLoader(dataset, batch_size=job.batch, num_workers=job.workers, persistent_workers=job.workers > 0)
    return lambda: batches
