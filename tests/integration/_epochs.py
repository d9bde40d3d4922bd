"""Epochs of a DataLoader during which something happens to the servers, and the digest that must come out all the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any

import storeds
from _processes import digest, loader, open_rows, row

__all__ = ["Rows", "run_epoch"]

BATCH = 20


class Rows:
    """Records that anyone can make again: an image of so many bytes, and a label.

    Parameters
    ----------
    count, size : int
        How many, and how many bytes each image has, a multiple of 64.
    """

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.size = size

    def __getitem__(self, number: int) -> dict[str, Any]:
        if not 0 <= number < self.count:
            raise IndexError(number)
        image = hashlib.shake_128(f"{number}".encode()).digest(64) * (self.size // 64)
        return {"image": image, "label": self.label(number)}

    @staticmethod
    def label(number: int) -> int:
        """Return the label of record `number`."""
        return number * 7 % 13

    def write(self, url: str, **options: Any) -> None:
        """Write all of them."""
        with storeds.open_writer(url, {"image": "image", "label": "int"}, **options) as writer:
            writer.append(self[number] for number in range(self.count))

    @property
    def digest(self) -> str:
        """What `run_epoch` returns when every record came out once, as it went in."""
        made = (self[number] for number in range(self.count))
        return digest(row((each["image"], each["label"], number)) for number, each in enumerate(made))


def run_epoch(url: str, events: Mapping[int, Callable[[], object]], start_method: str = "fork") -> str:
    """Read all of a store with two workers; return the digest of what came.

    Parameters
    ----------
    url : str
        The store.
    events : mapping
        Number of a batch → what is called before that batch is taken. The workers go on meanwhile.
    start_method : str
        Of the workers.
    """
    found = []
    with closing(open_rows(url)) as dataset:
        for number, (_, batch) in enumerate(loader(dataset, start_method, batch_size=BATCH)):
            events.get(number, _nothing)()
            found += batch
    return digest(found)


def _nothing() -> None:
    pass
