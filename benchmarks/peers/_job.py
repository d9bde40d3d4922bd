"""The job that an entrant's process receives, and the functions that its module defines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

SIZE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Epoch = Callable[[], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True)
class Job:
    """Which photos, where to write, and how to deliver them.

    Attributes
    ----------
    photos : Path
        The ImageFolder that `benchmarks.photos` made.
    work : Path
        The folder for the entrant's own format.
    quality : int
        Of the JPEGs, for formats that encode again.
    batch, workers : int
        Photos a batch; worker processes, or threads where a library has those.
    mongodb : str
        URL of a server.
    options : mapping
        The entrant's own.
    """

    photos: Path
    work: Path
    quality: int
    batch: int
    workers: int
    mongodb: str
    options: Mapping[str, Any] = field(default_factory=dict)


class Peer(Protocol):
    """A module of this package that delivers the photos in its library's way."""

    def prepare(self, job: Job) -> None:
        """Write the photos, with their numbers, in the library's own format."""

    def epochs(self, job: Job) -> Epoch:
        """Return a function that begins an epoch: shuffled batches of (images, numbers), each photo once."""
