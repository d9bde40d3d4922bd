"""Read an epoch of the digits twice, and pause the second one while docker/network.sh changes the network."""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
from collections.abc import Collection
from contextlib import closing
from typing import Any

from pymongo import MongoClient
from torch.utils.data import DataLoader

import storeds

URL = "mongodb://reader:{}@mongo1,mongo2,mongo3/storeds/digits_train?replicaSet=rs0&authSource=admin"
BATCH, WORKERS = 20, 2
GO_ON = signal.SIGUSR1


def main() -> None:
    """Read the command line and both epochs; they must be the same."""
    parser = argparse.ArgumentParser(description="Read the digits twice; in the second epoch, wait for signals.")
    parser.add_argument("stops", type=int, nargs="*", help="batches of the second epoch to stop before")
    parser.add_argument("--timeout-ms", type=int, help="the URL's timeoutMS; the default if not given")
    arguments = parser.parse_args()
    # Workers inherit the mask, and a signal that comes early stays pending until sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {GO_ON})
    url = URL.format(os.environ["STOREDS_READER_PASSWORD"])
    if arguments.timeout_ms is not None:
        url += f"&timeoutMS={arguments.timeout_ms}"
    with closing(storeds.StoreDataset(url, mode="L", transform="ToTensor")) as dataset:
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)
        digests = [read_epoch(loader, url, stops) for stops in ((), arguments.stops)]
    if len(set(digests)) != 1:
        raise SystemExit(f"the digests differ: {digests}")


def read_epoch(loader: DataLoader[Any], url: str, stops: Collection[int]) -> str:
    """Return the digest of all samples; before each batch in `stops`, print a line and wait for the signal."""
    digest, start = hashlib.sha256(), time.monotonic()
    for number, (images, labels) in enumerate(loader):
        if number in stops:
            say(f"stopped before batch {number} of {len(loader)}, the primary is {primary(url)}")
            signal.sigwait({GO_ON})
        digest.update(images.numpy().tobytes())
        digest.update(labels.numpy().tobytes())
    say(f"epoch of {len(loader)} batches in {time.monotonic() - start:.1f} s, digest {digest.hexdigest()[:16]}")
    return digest.hexdigest()


def primary(url: str) -> str:
    """Return the host of the primary."""
    client: MongoClient[dict[str, Any]]
    with MongoClient(url.replace("/digits_train", "")) as client:
        client.admin.command("ping")
        address = client.primary
    if address is None:
        raise SystemExit("the primary has gone since it answered; run this again")
    return address[0]


def say(line: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
