"""Epochs of a DataLoader during which something happens to the servers, and the digest that must come out all the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import storeds
from _processes import digest, loader, open_rows, row

__all__ = ["BATCH", "Rows", "run_epoch"]

BATCH = 20


class Rows:
    """Records that anyone can make again: an image of `size` bytes, a multiple of 64, and a label."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size

    def __getitem__(self, number: int) -> dict[str, Any]:
        image = hashlib.shake_128(f"{number}".encode()).digest(64) * (self.size // 64)
        return {"image": image, "label": number * 7 % 13}

    def write(self, url: str, **options: Any) -> None:
        """Write all of them, or those that an interrupted write lacks."""
        with storeds.open_writer(url, {"image": "image", "label": "int"}, **options) as writer:
            writer.append(self[number] for number in range(writer.count, self.count))

    @property
    def digest(self) -> str:
        """What `run_epoch` returns when every record came out once, as it went in."""
        made = (self[number] for number in range(self.count))
        return digest(row((each["image"], each["label"], number)) for number, each in enumerate(made))


def run_epoch(url: str, events: Mapping[int, Callable[[], object]]) -> str:
    """Read all of a store with two forked workers; return the digest of the records.

    `events` maps the number of a batch to what is called before that batch is taken. The workers go on meanwhile.
    """
    found = []
    with closing(open_rows(url)) as dataset:
        for number, (_, batch) in enumerate(loader(dataset, "fork", batch_size=BATCH)):
            if number in events:
                events[number]()
            found += batch
    return digest(found)
