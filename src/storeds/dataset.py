"""The map-style Dataset: positions in, samples out, one storage call a batch, whatever the engine."""

from __future__ import annotations

import inspect
import logging
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from storeds._columns import read_column
from storeds._shared import SharedNumber
from storeds._suggest import suggest
from storeds.errors import ConfigError, DecodeError, RecordError, TransformError
from storeds.protocols import Backend, Reader, Record, SampleContext
from storeds.registry import READERS
from storeds.selection import Selection
from storeds.source import Source
from storeds.stores import open_backend
from storeds.transforms import BoundTransform, build_transform

__all__ = ["StoreDataset"]

_LOG = logging.getLogger("storeds")
_POLICIES = ("raise",)


class StoreDataset(Dataset[Any]):
    """Samples of a store, for `torch.utils.data.DataLoader` in every mode.

    Parameters
    ----------
    source : str, path, Backend or Source
        What `open_backend` takes, an open backend, or a validated `Source`, whose settings then stand for every
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
        What happens to a sample whose record cannot be read, decoded or transformed: ``"raise"``.
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
        source: str | os.PathLike[str] | Backend | Source,
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
            "where": where,
            "seed": seed,
            "layout": layout,
            "options": options,
            "reader_options": reader_options,
        }
        if isinstance(source, Source):
            changed = {name: value for name, value in given.items() if value is not _default(name)}
            self._setup(source.url, **{**source.arguments(), **changed})
        else:
            self._setup(source, **given)

    def _setup(self, source: Any, *, reader: Any, transform: Any, target_transform: Any, **given: Any) -> None:
        if given["on_error"] not in _POLICIES:
            raise ConfigError(
                f"unknown on_error {given['on_error']!r}; {suggest(given['on_error'], _POLICIES, 'policies')}"
            )
        self.transform, self.target_transform = build_transform(transform), build_transform(target_transform)
        self.as_dict, self.on_error, self.seed = given["as_dict"], given["on_error"], _check_seed(given["seed"])
        self.backend = _open(source, given["layout"], given["options"])
        self._view: Backend = self.backend if given["where"] is None else Selection(self.backend, given["where"])
        image_options = {name: given[name] for name in ("decode", "mode", "repair", "min_recovered")}
        made = _make_reader(reader, given["fields"], image_options, given["reader_options"])
        self.reader: Reader[Any] = made.bind(self._view)
        self._transforms = self._bind_transforms()
        # Shared with workers, so that set_epoch reaches persistent ones (pytorch#97326).
        self._epoch = SharedNumber()
        self._told = False

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
        targets: list[Any] = read_column(self._view, self.reader.target).tolist()
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
        return self.__getitems__([index])[0]

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
        epoch = self.epoch
        contexts = [SampleContext(index, epoch, self.seed) for index in self._resolve(indices)]
        located = [self.reader.locate(context.index, context) for context in contexts]
        flat = [position for positions in located for position in positions]
        records = iter(self._view.get_many(flat, self.reader.stored))
        return [
            self._sample([next(records) for _ in positions], positions, context)
            for positions, context in zip(located, contexts, strict=True)
        ]

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

    def _sample(self, records: list[Record | RecordError], positions: Sequence[int], context: SampleContext) -> Any:
        for record in records:
            if isinstance(record, RecordError):
                raise record
        try:
            sample = self.reader.build(records, context)  # type: ignore[arg-type]  # errors are gone
        except DecodeError as error:
            raise self._at(DecodeError, positions, str(error), error.kind) from error.__cause__
        if context.notes and not self._told:
            self._told = True
            _LOG.warning(
                "%s (further ones are not announced)",
                self._at(RecordError, positions, "; ".join(note.message for note in context.notes)),
            )
        for name, transform in self._transforms:
            try:
                sample[name] = transform(sample[name], context)
            except Exception as error:  # whatever a user's transform raises
                reason = f"transform {transform!r} failed on {name!r}: {type(error).__name__}: {error}"
                raise self._at(TransformError, positions, reason) from error
        return self._shape(sample)

    def _shape(self, sample: Any) -> Any:
        if self.as_dict or not isinstance(sample, dict):
            return sample
        return tuple(sample[name] for name in self.reader.fields)

    def _at(
        self, error: type[RecordError], positions: Sequence[int], reason: str, kind: str | None = None
    ) -> RecordError:
        position = positions[0] if positions else -1
        key = None
        if positions and "key" in self._view.meta.fields:
            (record,) = self._view.get_many([position], ("key",))
            key = None if isinstance(record, RecordError) else str(record["key"])
        if isinstance(self._view, Selection) and positions:
            position = int(self._view.positions[position])
        return error.at(self.url, position, reason, key=key, kind=kind)

    def close(self) -> None:
        """Let go of the store; reading raises `ClosedError` from then on."""
        self.backend.close()

    def __repr__(self) -> str:
        where = f", where={self._view.where!r}" if isinstance(self._view, Selection) else ""
        return f"StoreDataset({self.url!r}{where}, count={len(self)}, fields={self.reader.fields}, reader={type(self.reader).__name__})"


def _default(name: str) -> Any:
    return inspect.signature(StoreDataset.__init__).parameters[name].default


def _check_seed(seed: Any) -> int | None:
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    return seed


def _open(source: Any, layout: str | None, options: Mapping[str, Any] | None) -> Backend:
    if isinstance(source, (str, os.PathLike)):
        return open_backend(source, layout=layout, **(options or {}))
    if not isinstance(source, Backend):
        raise ConfigError(f"source must be a URL, a path, a Backend or a Source, not {type(source).__name__}")
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
