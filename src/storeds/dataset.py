"""The map-style Dataset: positions in, samples out, one storage call a batch, whatever the engine."""

from __future__ import annotations

import gc
import inspect
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from storeds._columns import read_column
from storeds._samples import SampleMaker
from storeds._shared import SharedNumber
from storeds._suggest import suggest
from storeds._tally import Tally
from storeds._transform_checks import check_picklable
from storeds.errors import ConfigError
from storeds.policy import Policy
from storeds.protocols import Backend, Reader, SampleContext
from storeds.registry import READERS
from storeds.report import SampleReport
from storeds.selection import Selection
from storeds.source import Source
from storeds.stores import open_backend
from storeds.transforms import BoundTransform, build_transform

__all__ = ["StoreDataset"]

_frozen_in = 0


class StoreDataset(Dataset[Any]):
    """Samples of a store, for `torch.utils.data.DataLoader` in every mode.

    Parameters
    ----------
    source : str, path, sequence of them, Backend or Source
        What `open_backend` takes (a pattern or a list makes many stores one), an open backend, or a validated `Source`, whose settings then stand for every
        argument that is left at its default here.
    reader : str or Reader
        ``"image"``, ``"array"`` or a registered name.
    fields : sequence of str, optional
        The sample's elements, in order; ``"index"`` may be among them. The reader's choice by default: image and,
        where there is one, label.
    decode : str or Decoder
        ``"pil"``, ``"tensor"`` (uint8, channels × height × width), ``"bytes"`` (untouched) or a registered name.
    mode : str
        The Pillow mode that images are converted to; ``"unchanged"`` leaves them as their files have them.
    transform, target_transform : callable or config, optional
        Applied to the image (the reader's data) and to the label (the first other element). Anything callable, or
        what `storeds.transforms.build_transform` takes. A transform with a parameter ``generator`` is given the
        sample's own.
    as_dict : bool
        Give samples as dicts; tuples by default.
    repair : bool
        Whether a damaged JPEG is mended before it is decoded (and a log line tells); never in the store. If not, it is a
        `DecodeError`.
    min_recovered : float
        A mended picture of which a smaller share is there, 0 to 1, is a `DecodeError` all the same.
    on_error : str
        What happens to a sample that cannot be read, decoded or transformed. ``"raise"``: its `RecordError`.
        ``"skip"``: a `Skipped` takes its place, which `storeds.collate` drops; a batch in which all are bad is made of
        replacements. ``"replace"``: another sample of this dataset does, found in an order that depends on (seed, epoch,
        index) alone. All are counted: see `report`.
    max_bad, max_bad_fraction : int, float, optional
        More bad samples than this in one epoch, or a larger share of those seen, are a `BadSamplesError`.
    where : mapping, optional
        Take only records whose fields have these values: ``{"split": "train"}``; a list means any of it.
    seed : int, optional
        Makes a sample's randomness a function of (seed, epoch, index) alone, the same with any number of workers.
    layout, options
        As for `open_backend`.
    reader_options : mapping, optional
        Further arguments of the reader.

    Raises
    ------
    ConfigError
        A name or value is unknown; the message lists what exists.
    StoreNotFoundError, FormatError, UnavailableError
        From opening the store. Reading raises `RecordError` and its children for single samples.

    Notes
    -----
    Works in the process that made it and in workers started by fork, spawn or forkserver, used before or not: no handle
    is ever shared. Thread-safe. Pickles small, whatever the number of records.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Backend | Source,
        *,
        reader: str | Reader[Any] = "image",
        fields: Sequence[str] | None = None,
        decode: Any = "pil",
        mode: str = "RGB",
        transform: Any = None,
        target_transform: Any = None,
        as_dict: bool = False,
        repair: bool = True,
        min_recovered: float = 0.5,
        on_error: str = "raise",
        max_bad: int | None = None,
        max_bad_fraction: float | None = None,
        where: Mapping[str, Any] | None = None,
        seed: int | None = None,
        layout: str | None = None,
        options: Mapping[str, Any] | None = None,
        reader_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        given = {
            "reader": reader,
            "fields": fields,
            "decode": decode,
            "mode": mode,
            "transform": transform,
            "target_transform": target_transform,
            "as_dict": as_dict,
            "repair": repair,
            "min_recovered": min_recovered,
            "on_error": on_error,
            "max_bad": max_bad,
            "max_bad_fraction": max_bad_fraction,
            "where": where,
            "seed": seed,
            "layout": layout,
            "options": options,
            "reader_options": reader_options,
        }
        if isinstance(source, Source):
            changed = {name: value for name, value in given.items() if not _is_default(name, value)}
            self._setup(source.url, **{**source.arguments(), **changed})
        else:
            self._setup(source, **given)

    def _setup(self, source: Any, *, reader: Any, transform: Any, target_transform: Any, **given: Any) -> None:
        self._policy = Policy(given["on_error"], given["max_bad"], given["max_bad_fraction"])
        self.transform, self.target_transform = build_transform(transform), build_transform(target_transform)
        self.as_dict, self.seed = given["as_dict"], _check_seed(given["seed"])
        self.backend = _open(source, given["layout"], given["options"])
        self._view: Backend = self.backend if given["where"] is None else Selection(self.backend, given["where"])
        image_options = {name: given[name] for name in ("decode", "mode", "repair", "min_recovered")}
        made = _make_reader(reader, given["fields"], image_options, given["reader_options"])
        self.reader: Reader[Any] = made.bind(self._view)
        self._maker = SampleMaker(self._view, self.reader, self._bind_transforms(), self.as_dict)
        # Shared with workers, so that set_epoch reaches persistent ones (pytorch#97326).
        self._epoch = SharedNumber()
        self._tally = Tally()

    def _bind_transforms(self) -> list[tuple[str, BoundTransform]]:
        bound = []
        for name, function in ((self.reader.data, self.transform), (self.reader.target, self.target_transform)):
            if function is not None and name is None:
                raise ConfigError(
                    f"the samples of {self!r} have no element that this transform applies to: {function!r}"
                )
            if function is not None and name is not None:
                bound.append((name, BoundTransform(function)))
        return bound

    @property
    def url(self) -> str:
        """The store's URL, secrets removed."""
        return self.backend.url

    @property
    def classes(self) -> list[str]:
        """The class names, in order of their label; AttributeError where the store has none."""
        classes = self.backend.meta.attrs.get("classes")
        if not isinstance(classes, list):
            raise AttributeError(f"{self.url} has no 'classes' among its attrs")
        return [str(name) for name in classes]

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """The labels of all samples, read as one column without touching an image."""
        if self.reader.target is None:
            raise AttributeError(f"the samples of {self.url} have no label")
        # A sample of several records has one label all the same.
        column = getattr(self.reader, "column", read_column)
        targets: list[Any] = column(self._view, self.reader.target).tolist()
        return targets

    @property
    def epoch(self) -> int:
        """The epoch that the randomness of samples belongs to."""
        return self._epoch.get()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, for persistent workers too."""
        self._epoch.set(epoch)

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or for a slice or a sequence of indices a list of samples, read in one storage call."""
        if isinstance(index, slice):
            return self.__getitems__(range(*index.indices(len(self))))
        if isinstance(index, (list, tuple, range)) or getattr(index, "ndim", None):
            return self.__getitems__(index)
        return self._samples([index], fill=False)[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of `indices`, in their order; negative ones count from the end.

        Raises
        ------
        IndexError
            An index is outside ``[-len, len)``.
        RecordError
            A record cannot be read (or decoded, or transformed: its children).
        UnavailableError
            The engine cannot be reached.
        """
        return self._samples(indices, fill=True)

    def _samples(self, indices: Iterable[Any], *, fill: bool) -> list[Any]:
        _freeze_inherited()
        epoch = self.epoch
        contexts = [SampleContext(index, epoch, self.seed) for index in self._resolve(indices)]
        return self._policy.samples(self._maker, contexts, self._tally, fill=fill)

    def _resolve(self, indices: Iterable[Any]) -> list[int]:
        if getattr(indices, "dtype", None) in (torch.bool, np.dtype(bool)):
            raise TypeError("a mask is no list of indices; use where= or mask.nonzero()")
        count = len(self)
        resolved = []
        for index in indices:
            at = operator.index(index)
            if not -count <= at < count:
                raise IndexError(f"index {at} is outside [0, {count}) of {self.url}")
            resolved.append(at + count if at < 0 else at)
        return resolved

    def report(self) -> SampleReport:
        """Return how many samples were asked for, mended and bad so far, here and in the workers started from here."""
        return SampleReport.of(self.url, self._policy.on_error, self._tally)

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # copies in this process may hold what cannot be pickled
            for name in ("transform", "target_transform"):
                check_picklable(name, getattr(self, name))
        return self.__dict__

    def close(self) -> None:
        """Let go of the store; reading raises `ClosedError` from then on."""
        self.backend.close()

    def __repr__(self) -> str:
        where = f", where={self._view.where!r}" if isinstance(self._view, Selection) else ""
        return f"StoreDataset({self.url!r}{where}, count={len(self)}, fields={self.reader.fields}, reader={type(self.reader).__name__})"


def _freeze_inherited() -> None:
    """Keep a forked worker's garbage collector from writing to, and so copying, all that it inherited (pytorch#13246)."""
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        if get_worker_info() is not None:
            gc.freeze()


def _is_default(name: str, value: Any) -> bool:
    default = inspect.signature(StoreDataset.__init__).parameters[name].default
    return value is default or (type(value) in (str, float) and bool(value == default))


def _check_seed(seed: Any) -> int | None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    return seed


def _open(source: Any, layout: str | None, options: Mapping[str, Any] | None) -> Backend:
    if isinstance(source, (str, os.PathLike, list, tuple)):
        return open_backend(source, layout=layout, **(options or {}))
    if not isinstance(source, Backend):
        raise ConfigError(
            f"source must be a URL, a path, a list of them, a Backend or a Source, not {type(source).__name__}"
        )
    if layout is not None or options:
        raise ConfigError("layout and options belong to the opening of a store; this one is open already")
    return source


def _make_reader(
    reader: Any,
    fields: Sequence[str] | None,
    image_options: Mapping[str, Any],
    reader_options: Mapping[str, Any] | None,
) -> Reader[Any]:
    """Return the reader for a name, a class or an instance; only an image reader takes decode, mode, repair, …."""
    own = dict(reader_options or {})
    if not isinstance(reader, (str, type)):
        if fields is not None or own:
            raise ConfigError("fields and reader_options belong to the making of a reader; this one is made already")
        return cast("Reader[Any]", reader)
    target = READERS.get(reader) if isinstance(reader, str) else reader
    accepted = inspect.signature(target).parameters
    for name in own:
        if name not in accepted:
            raise ConfigError(f"reader {reader!r} has no option {name!r}; {suggest(name, accepted, 'options')}")
    if isinstance(fields, str):
        raise ConfigError(f"fields is a sequence of names, not the text {fields!r}")
    named = {name: value for name, value in image_options.items() if name in accepted}
    return cast("Reader[Any]", target(fields=tuple(fields or ()), **{**named, **own}))
