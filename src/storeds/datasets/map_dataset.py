"""The map-style Dataset: positions in, samples out, one storage call a batch, whatever the engine."""

from __future__ import annotations

import functools
import gc
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from multiprocessing.context import get_spawning_popen
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, get_worker_info

from storeds._utils.config_text import plain
from storeds._utils.validation import integer
from storeds.backends.concatenated import check_same_classes
from storeds.backends.opening import open_backend
from storeds.backends.selection import Selection
from storeds.batching.columnar import ColumnarBatch, stacking_elements, unmarked
from storeds.batching.rows import image_element, to_batch_rows
from storeds.datasets.epoch import MOST, SharedEpoch
from storeds.datasets.pipeline import SamplePipeline
from storeds.datasets.policy import Policy
from storeds.datasets.repeats import Repeats
from storeds.datasets.report import SampleReport, Tally
from storeds.datasets.source import Source
from storeds.errors import ConfigError, RecordError, suggest
from storeds.protocols import Backend, Field, Reader, SampleContext, Transform
from storeds.readers import ArrayReader, ImageReader
from storeds.records.columns import read_arrays, read_column
from storeds.registry import READERS
from storeds.transforms import BoundTransform, build_transform
from storeds.transforms.checks import (
    check_picklable,
    check_spatial,
    first_crop,
    takes_images,
    takes_strided,
    warn_of_own_generators,
)
from storeds.transforms.deferred import asked_to_defer, in_order

__all__ = [
    "StoreDataset",
    "Transforms",
    "build_transforms",
    "changed_arguments",
    "check_seed",
    "enable_fast_decode",
    "freeze_inherited",
    "make_reader",
    "one_of",
    "open_source",
    "transforms_by_element",
    "with_images",
]


Transforms: TypeAlias = Transform | dict[str, Transform] | None
"""For the sample's data, or for each of the elements that the user named."""

_DEFAULTS = {
    "decode": None,
    "channels": None,
    "mode": "RGB",
    "repair": True,
    "min_recovered": 0.5,
}  # of a dataset, which hands them on to its reader


def changed_arguments(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return those of the `given` arguments of `function` that differ from its defaults."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in given.items() if not _is_same(value, parameters[name].default)}


def _is_same(value: Any, default: Any) -> bool:
    # Whatever else is given is not compared: an array has no single truth.
    return value is default or (type(value) in (str, float) and bool(value == default))


def check_seed(seed: Any) -> int | None:
    """Return the seed; raises ConfigError for what is neither an int nor None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    return seed


def one_of(source: Any, url: Any) -> Any:
    """Return whichever of the two names of the store is given; raises ConfigError for both and for none."""
    if (source is None) == (url is None):
        given = "neither is" if source is None else "both are"
        raise ConfigError(f"a dataset has one store: give it as the first argument or as url=, of which {given} given")
    return url if source is None else source


def open_source(source: Any, layout: str | None, options: Mapping[str, Any] | None) -> Backend:
    """Return the backend that `source` names, or is."""
    for name in options or {}:
        if not isinstance(name, str) or name in ("url", "layout"):
            raise ConfigError(f"options: {name!r} is no option of a store; url and layout are arguments beside options")
    if isinstance(source, (str, os.PathLike, list, tuple)):
        return open_backend(source, layout=layout, **(options or {}))
    if not isinstance(source, Backend):
        raise ConfigError(
            f"source must be a URL, a path, a list of them, a Backend or a Source, not {type(source).__name__}"
        )
    if layout is not None or options:
        raise ConfigError("layout and options belong to the opening of a store; this one is open already")
    return source


def make_reader(
    reader: Any,
    fields: Sequence[str] | None,
    image_options: Mapping[str, Any],
    reader_options: Mapping[str, Any] | None,
) -> Reader[Any]:
    """Return the reader for a name, a class or an instance; only an image reader takes decode, mode, repair, …."""
    own = dict(reader_options or {})
    if not isinstance(reader, (str, type)):
        given = ["fields"] if fields is not None else []
        given += ["reader_options"] if own else []
        given += [name for name, value in image_options.items() if value != _DEFAULTS[name]]
        if given:
            raise ConfigError(f"{', '.join(given)} belong to the making of a reader; this one is made already")
        return cast("Reader[Any]", reader)
    target = READERS.get(reader) if isinstance(reader, str) else reader
    accepted = inspect.signature(target).parameters
    options = [name for name in accepted if name != "fields" and not _is_internal(name, target)]
    for name in own:
        if name == "fields":
            raise ConfigError("fields is an argument of StoreDataset, or a key of [dataset], not one of reader_options")
        if name not in options:
            raise ConfigError(f"reader {reader!r} has no option {name!r}; {suggest(name, options, 'options')}")
        if name in image_options and image_options[name] not in (_DEFAULTS[name], own[name]):
            raise ConfigError(f"{name} is given to the dataset and, another one, in reader_options; give it once")
    if isinstance(fields, str):
        raise ConfigError(f"fields is a sequence of names, not the text {fields!r}")
    for name, value in image_options.items():
        if name not in accepted and value != _DEFAULTS[name]:
            raise ConfigError(f"reader {reader!r} takes no {name}: it would be without effect; leave it out")
    kept = ("decode", "channels")  # which a reader may declare with another default than None
    named = {
        name: value
        for name, value in image_options.items()
        if name in accepted and (name not in kept or value is not None)
    }
    return cast("Reader[Any]", target(fields=tuple(fields or ()), **{**named, **own}))


def _is_internal(name: str, target: Any) -> bool:
    """Whether an argument of a reader is what its binding sets, and not what a plug-in declares for itself."""
    own = vars(target).get("__annotations__", {}) if isinstance(target, type) else {}
    return name.startswith("_") or (name in getattr(target, "internal", ()) and name not in own)


def build_transforms(spec: Any) -> Transforms:
    """Return what `transform` describes: one transform, or a mapping of elements to theirs, which has no key ``name``."""
    if not isinstance(spec, Mapping) or "name" in spec:
        return build_transform(spec)
    built = {name: build_transform(each, f"transform.{name}") for name, each in spec.items()}
    return {name: each for name, each in built.items() if each is not None}


def transforms_by_element(
    reader: Reader[Any],
    url: str,
    fields: Mapping[str, Field],
    transform: Transforms,
    target_transform: Transform | None,
) -> dict[str, Transform]:
    """Return element → transform, the data first; raises ConfigError for those that elements of a sample do not fit."""
    named = isinstance(transform, dict)
    given = dict(transform) if isinstance(transform, dict) else {}
    for name in given:
        if name not in reader.fields:
            raise ConfigError(f"transform names {name!r}; {suggest(name, reader.fields, 'elements of a sample')}")
    own = ((reader.data, None if isinstance(transform, dict) else transform), (reader.target, target_transform))
    for element, function in own:
        if function is not None and element is None:
            raise ConfigError(
                f"the samples of {url}, {reader.fields}, have no element that this transform applies to: {function!r}"
            )
        if function is not None and element is not None:
            if element in given:
                raise ConfigError(f"transform and target_transform both name {element!r}; give it one")
            given[element] = function
    stored = {name: fields[name] for name in reader.fields if name in fields}
    check_spatial(stored, reader.data, {name: each for name, each in given.items() if name in stored}, named)
    return given


def with_images(reader: Reader[Any], fields: Mapping[str, Field], transforms: Mapping[str, Transform]) -> Reader[Any]:
    """Return a bound reader whose arrays have their channels first where a transform takes images; raises ConfigError."""
    if not isinstance(reader, ArrayReader):
        return reader
    images = [name for name, each in transforms.items() if takes_images(each)]
    return reader.with_channels_first(name for name in images if name in fields and fields[name].kind == "array")


def enable_fast_decode(reader: Reader[Any], transform: Transform | None) -> Reader[Any]:
    """Return a bound reader that does no more than such a transform needs, if nobody else sees its image.

    Pixels stay where the decoder put them; and those below the window of a crop may not be decoded at all.
    """
    if isinstance(reader, ArrayReader) and reader.data in reader.layouts:
        return replace(reader, views=takes_strided(transform))
    crop = first_crop(transform)  # which gives pixels in order, whatever comes after it
    if type(reader) is not ImageReader or reader.strided or not (crop or takes_strided(transform)):
        return reader
    if [name for name, field in zip(reader.fields, reader.kinds, strict=True) if field.kind == "image"][1:]:
        return reader
    return replace(reader, strided=True, cropper=None if reader.orient else crop)


_frozen_in = 0


def freeze_inherited() -> None:
    """Keep a forked worker's garbage collector from writing to, and so copying, what it inherited (pytorch#13246)."""
    global _frozen_in
    if _frozen_in != os.getpid():
        _frozen_in = os.getpid()
        if get_worker_info() is not None:
            gc.freeze()


_NO_MASK = "a mask is no list of indices; use where= or mask.nonzero()"


class StoreDataset(Dataset[Any]):
    """Samples of a store, for `torch.utils.data.DataLoader` in every mode.

    Parameters
    ----------
    source : str, path, sequence of them, Backend or Source
        What `open_backend` takes (a pattern or a list makes many stores one), an open backend, or a validated `Source`,
        whose settings then stand for every argument that is left at its default here.
    url : str, path or sequence of them, optional
        The same as `source`, by the name that it has in a config. Give one of the two.
    reader : str or Reader
        ``"image"``, ``"array"``, ``"video"`` or a registered name.
    fields : sequence of str, optional
        The sample's elements, in order; ``"index"`` may be among them. The reader's choice by default: image and,
        where there is one, label.
    decode : str or Decoder, optional
        ``"pil"``, ``"tensor"`` (uint8, channels × height × width), ``"bytes"`` (untouched) or a registered name. The
        reader's choice by default: ``"pil"`` for images, ``"tensor"`` for videos.
        With the reader ``"array"``, ``"tensor"`` gives array images as channels × height × width.
    channels : str or mapping of str to str, optional
        Where the channels of array images lie, ``"last"`` or ``"first"``; for the reader ``"array"``, and needed where
        shapes do not tell. A mapping says it for each of several elements.
    mode : str or mapping of str to str
        The Pillow mode that the sample's image is converted to; ``"unchanged"`` leaves it as its file has it. Further images
        of a sample, such as masks, stay unchanged. A mapping has the mode of each: ``{"image": "RGB", "depth": "F"}``.
    transform, target_transform : callable or config, optional
        Applied to the image (the reader's data) and to the label, or the first other element where there is no field
        ``label``. Anything callable, or what `storeds.transforms.build_transform` takes. A mapping of elements to these
        names what is transformed: ``{"image": […], "depth": […]}``. A transform with a parameter ``generator`` is given
        the sample's own.
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
        A name or value is unknown; the message lists what exists. Or a transform would crop, flip or resize one element
        and leave another, such as a mask, as it is.
    StoreNotFoundError, FormatError, UnavailableError
        From opening the store. Reading raises `RecordError` and its children for single samples.

    Notes
    -----
    Works in the process that made it and in workers started by fork, spawn or forkserver, used before or not: no handle
    is ever shared. Thread-safe. Pickles small, whatever the number of records.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Backend | Source | None = None,
        *,
        url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        reader: str | Reader[Any] = "image",
        fields: Sequence[str] | None = None,
        decode: Any = None,
        channels: str | Mapping[str, str] | None = None,
        mode: str | Mapping[str, str] = "RGB",
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
            "channels": channels,
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
        given = {name: plain(value) for name, value in given.items()}
        source = plain(one_of(source, url))
        if isinstance(source, Source):
            self._setup(source.url, **{**source.arguments(), **changed_arguments(StoreDataset, given)})
        else:
            self._setup(source, **given)

    def _setup(self, source: Any, *, reader: Any, transform: Any, target_transform: Any, **given: Any) -> None:
        self._policy = Policy(given["on_error"], given["max_bad"], given["max_bad_fraction"])
        self.transform = build_transforms(transform)
        self.target_transform = build_transform(target_transform, "target_transform")
        self.as_dict, self.seed = given["as_dict"], check_seed(given["seed"])
        self.backend = open_source(source, given["layout"], given["options"])
        self._view: Backend = self.backend if given["where"] is None else Selection(self.backend, given["where"])
        image_options = {name: given[name] for name in ("decode", "channels", "mode", "repair", "min_recovered")}
        made = make_reader(reader, given["fields"], image_options, given["reader_options"])
        bound = made.bind(self._view)
        declared = self.backend.meta.fields
        self._transforms = transforms_by_element(bound, self.url, declared, self.transform, self.target_transform)
        for name, function in self._transforms.items():
            warn_of_own_generators(name, function)
        image_transform = self._transforms.get(bound.data or "")
        bound = with_images(bound, declared, self._transforms)
        self.reader: Reader[Any] = enable_fast_decode(bound, image_transform)
        self._finish = in_order if takes_strided(image_transform) else None
        self._stacks = {} if self._transforms else stacking_elements(self.reader, self.backend)
        self._image = image_element(self.reader, self.as_dict)
        self._maker = SamplePipeline(self._view, self.reader, self._bind_transforms(), self.as_dict)
        self._waiting_maker = replace(self._maker, transforms=self._bind_transforms(may_wait=True))
        # Shared with workers, so that set_epoch reaches persistent ones (pytorch#97326).
        self._epoch = SharedEpoch()
        self._tally = Tally()
        is_random = self.seed is not None and (self._transforms or hasattr(self.reader, "sampling"))
        self._repeats = Repeats() if is_random else None

    def _bind_transforms(self, *, may_wait: bool = False) -> list[tuple[str, BoundTransform]]:
        data = self.reader.data
        return [
            (name, BoundTransform(function, self._finish if name == data else None, may_wait and name == data))
            for name, function in self._transforms.items()
        ]

    @property
    def view(self) -> Backend:
        """The records that samples are made of: the backend, or the part of it that `where` selects."""
        return self._view

    @property
    def url(self) -> str:
        """The store's URL, secrets removed."""
        return self.backend.url

    @property
    def where(self) -> dict[str, list[Any]] | None:
        """What records must have to be taken: field → values, any of which will do; None if all are taken."""
        return self._view.where if isinstance(self._view, Selection) else None

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
        """The epoch of the pass that began last, or the one set since. The randomness of samples depends on it."""
        return self._epoch.of_samples(None)[0]

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, for persistent workers too, and for the next pass of every loader with an `EpochSampler`."""
        self._epoch.set(integer("epoch", epoch, 0, MOST))

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or for a slice or a sequence of indices a list of samples, read in one storage call."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        if isinstance(index, (list, tuple, range)) or getattr(index, "ndim", None):
            return [*map(unmarked, self._many(index))]
        if get_worker_info() is not None:  # elsewhere, this is not a loader's way to ask, except for a wrapper's
            self._watch([index])
        return self._policy.samples(self._maker, self._contexts([index]), self._tally, fill=False)[0]

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of `indices`, in their order; negative ones count from the end.

        Where all their elements are numbers and arrays of fixed shape that nothing transforms, each is made when it is
        looked at, and `storeds.collate` or torch's ``default_collate`` makes a batch of them in one step.

        Raises
        ------
        IndexError
            An index is outside ``[-len, len)``.
        RecordError
            A record cannot be read (or decoded, or transformed: its children).
        UnavailableError
            The engine cannot be reached.
        """
        self._watch(indices)
        return self._many(indices)

    def _watch(self, indices: Iterable[Any]) -> None:
        """Warn where a loader makes the same random samples in each pass, because it does not announce passes."""
        if self._repeats is None or self._epoch.is_set:
            return
        resolved = self._resolve(indices)
        if self._repeats.check(resolved, len(self)):
            epoch, seed = self._epoch.of_samples(self.seed)

            def make(at: int) -> Any:
                (made,) = self._maker.make([SampleContext(resolved[0], at, seed)])
                return made.sample

            self._repeats.settle(make, epoch, f"sample {resolved[0]} of {self.url}")

    def _many(self, indices: Iterable[Any]) -> list[Any]:
        if self._stacks:
            indices = self._resolve(indices)
            if indices and (stacked := self._stacked(indices)) is not None:
                return stacked
        with asked_to_defer() as wanted:
            element = None if wanted or get_worker_info() is None else self._image
            maker = self._maker if element is None and not wanted else self._waiting_maker
            samples = self._policy.samples(maker, self._contexts(indices), self._tally, fill=True)
        return samples if element is None else to_batch_rows(samples, element)

    def _stacked(self, indices: list[int]) -> ColumnarBatch | None:
        """Return the samples as arrays, or None if one is bad: the policy says what becomes of it."""
        freeze_inherited()
        read = functools.partial(self._read_arrays, indices)
        try:
            stacked = ColumnarBatch(read, indices, self._stacks, self.as_dict)
        except RecordError:
            return None
        self._tally.saw(len(indices), self.epoch)
        return stacked

    def _read_arrays(self, indices: list[int]) -> dict[str, Any]:
        assert isinstance(self.reader, ArrayReader)
        return self.reader.arranged(read_arrays(self._view, indices, self.reader.stored))

    def _until_bad(self, indices: Iterable[Any]) -> tuple[list[Any], RecordError | None]:
        """Return what a stream gives for `indices`, and the error that ends it, if one does."""
        # Unfilled: what stands in for a batch of bad samples would be in the stream twice.
        return self._policy.fetch_until_error(self._maker, self._contexts(indices), self._tally, fill=False)

    def _contexts(self, indices: Iterable[Any]) -> list[SampleContext]:
        freeze_inherited()
        epoch, seed = self._epoch.of_samples(self.seed)
        return [SampleContext(index, epoch, seed) for index in self._resolve(indices)]

    def _resolve(self, indices: Iterable[Any]) -> list[int]:
        if getattr(indices, "dtype", None) in (torch.bool, np.dtype(bool)):
            raise TypeError(_NO_MASK)
        count = len(self)
        if type(indices) is list and set(map(type, indices)) == {int} and min(indices) >= 0 and max(indices) < count:
            return indices  # what a sampler gives
        resolved = []
        for index in indices:
            if isinstance(index, bool) or getattr(index, "dtype", None) is torch.bool:  # which Python takes for numbers
                raise TypeError(_NO_MASK)
            at = operator.index(index)
            if not -count <= at < count:
                raise IndexError(f"index {at} is outside [0, {count}) of {self.url}")
            resolved.append(at + count if at < 0 else at)
        return resolved

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Return both datasets as one; raises ConfigError where a label would mean different classes."""
        if isinstance(other, StoreDataset) and self.reader.target is not None:
            check_same_classes(self.backend, other.backend)
        return super().__add__(other)

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
        reader = f"fields={self.reader.fields}, reader={type(self.reader).__name__}"
        return f"StoreDataset({self.url!r}{where}, count={len(self)}, {reader})"
