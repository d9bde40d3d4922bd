"""The data that the contracts speak of: fields, what a store says about itself, records, and a sample's context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import xxhash

if TYPE_CHECKING:
    import torch

__all__ = [
    "JSON",
    "KINDS",
    "Array",
    "Field",
    "Kind",
    "Meta",
    "Note",
    "Record",
    "SampleContext",
    "Transform",
]

JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Record: TypeAlias = dict[str, Any]
Transform: TypeAlias = Callable[..., Any]
Kind: TypeAlias = Literal["image", "bytes", "str", "int", "float", "bool", "array", "json"]

KINDS: tuple[str, ...] = get_args(Kind)


@dataclass(frozen=True, slots=True)
class Field:
    """What one field of every record holds.

    Parameters
    ----------
    kind : str
        ``image`` or ``bytes`` (bytes), ``str``, ``int`` (int64), ``float`` (binary64), ``bool``,
        ``array`` (`numpy.ndarray`) or ``json`` (anything JSON).
    dtype : str or None
        For an array: its little-endian NumPy dtype, for example ``"<f4"``.
    shape : tuple of (int or None), or None
        For an array: its shape; None stands for a dimension that may differ from record to record.
    """

    kind: Kind
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether a column of it is one number a record."""
        return self.kind in ("int", "float", "bool")

    @property
    def is_blob(self) -> bool:
        """Whether values can be large enough that reading them for nothing would hurt."""
        return self.kind in ("image", "bytes", "array")

    @property
    def is_fixed(self) -> bool:
        """Whether every value takes the same number of bytes."""
        return self.is_scalar or (self.shape is not None and None not in self.shape)


@dataclass(frozen=True, slots=True)
class Meta:
    """What a store says about itself; small, whatever the number of records.

    Parameters
    ----------
    id : str
        Content: xxh3-128 over fields, attrs and all record checksums; equal in every engine.
    build : str
        Random, new at every publish: tells a store that was replaced behind a reader's back.
    count : int
        Number of records.
    layout : str
        ``"storeds/1"``, or the name of a foreign layout.
    fields : mapping of str to Field
        The fields every record has, in declared order.
    attrs : mapping of str to JSON
        Class names, provenance and the like.
    verdicts : tuple of str
        The image fields of which each record has a verdict, see `storeds.jpeg.Verdict`; the text lies in the reserved field
        ``_verdict_<image>``, which `Backend.get_many` returns where it is asked for by name.
    """

    id: str
    build: str
    count: int
    layout: str
    fields: Mapping[str, Field]
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    verdicts: tuple[str, ...] = ()


class Note(NamedTuple):
    """Something odd that a reader mended: its sort, for counting, and what was done, in words."""

    kind: str
    message: str


@dataclass(frozen=True)
class SampleContext:
    """Which sample is being made, and the randomness that belongs to it alone.

    Parameters
    ----------
    index : int
        The sample's index in its dataset.
    epoch : int
        The epoch it is made for.
    seed : int or None
        The run's seed; None leaves randomness to the global generators.
    """

    index: int
    epoch: int = 0
    seed: int | None = None
    notes: list[Note] = field(default_factory=list, compare=False, repr=False)
    """What the reader found odd and mended; the dataset sees to it that somebody hears of it."""

    @property
    def sample_seed(self) -> int | None:
        """A 64-bit number that depends on (seed, epoch, index) and on nothing else."""
        if self.seed is None:
            return None
        return xxhash.xxh3_64_intdigest(f"{self.seed}/{self.epoch}/{self.index}".encode())

    @property
    def generator(self) -> torch.Generator | None:
        """The sample's own `torch.Generator`, or None without a seed."""
        # Not a functools.cached_property: up to Python 3.11 it has a lock, one for all, which a fork could catch closed.
        made: torch.Generator | None = self.__dict__.get("_generator")
        seed = self.sample_seed if made is None else None
        if seed is not None:
            import torch

            made = self.__dict__["_generator"] = torch.Generator().manual_seed(seed)
        return made
