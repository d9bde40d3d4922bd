"""`StoreDataset`, the map-style dataset: indices in, samples out, one storage call a batch, whatever the engine."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from multiprocessing.context import get_spawning_popen
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset

from storeds._utils.arguments import check_int
from storeds.backends.class_numbers import check_same_classes
from storeds.backends.selecting import Conditions
from storeds.datasets.assembly import (
    Transforms,
    bind_joint,
    bind_transforms,
    build_transforms,
    fit_reader,
    make_reader,
    open_source,
    reader_name,
    transforms_by_element,
    with_stats,
)
from storeds.datasets.batch import Ask, Counted, Made
from storeds.datasets.classes import with_classes
from storeds.datasets.counters import Event, Policy, SampleCounters, SampleReport
from storeds.datasets.epoch import MAX_EPOCH, SharedChange, SharedEpoch
from storeds.datasets.pipeline import SamplePipeline
from storeds.datasets.settings import DatasetSettings, over_settings
from storeds.datasets.tree import resolve_indices
from storeds.errors import ConfigError, RecordError
from storeds.protocols import Array, Backend, Field, Reader, ReaderSpec, SampleContext, Transform
from storeds.readers.reader import built_in
from storeds.records.arrays import read_arrays
from storeds.records.classes import stored_classes
from storeds.records.columns import read_column
from storeds.registry import import_object
from storeds.transforms import build_transform
from storeds.transforms.binding import check_picklable

__all__ = ["SHOW", "StoreDataset"]


_process = os.getpid()  # whose garbage collector is as it should be


def _freeze_inherited() -> None:
    """Keep the garbage collector of a forked process from writing to inherited objects, which copies their pages (pytorch#13246)."""
    global _process
    if _process != os.getpid():
        _process = os.getpid()
        gc.freeze()


SHOW, _IN_NOTEBOOK = "storeds.ops.showing:show", 24  # what shows samples, loaded on use, and how many a notebook shows


class StoreDataset(Dataset[Any]):
    """Samples of a store, for `torch.utils.data.DataLoader` in every mode.

    Parameters
    ----------
    url : str, path, sequence of them, Backend or DatasetSettings
        What `open_backend` takes (a pattern or a list joins many stores), an open backend, or a `DatasetSettings`. Each
        argument that is passed beside it replaces its setting.
    reader : str or ReaderSpec
        ``"image"``, ``"sample"``, ``"array"``, ``"video"`` or a registered name. ``"image"`` becomes ``"sample"`` with
        `transforms` or `roles`, and where an element has the role mask, boxes or keypoints. It becomes ``"array"`` where the
        store has arrays and no pictures.
    fields : sequence of str, or mapping of str to str, optional
        The sample's elements, in order; ``"index"`` may be among them. A mapping of elements to fields renames them:
        ``{"pixel_values": "image", "labels": "label"}``. By default the reader chooses: the image and, if the store has
        one, the label; and with roles, the fields that have one.
    decode : str, Decoder or mapping of str to these, optional
        ``"pil"``, ``"tensor"`` (uint8, channels × height × width), ``"bytes"`` (as stored) or a registered name. By
        default the reader chooses: ``"pil"`` for images, ``"tensor"`` for samples and videos. With the reader
        ``"array"``, ``"tensor"`` returns array images as channels × height × width. A mapping sets it for each of
        several images.
    channels : str or mapping of str to str, optional
        Where the channels of array images are, ``"last"`` or ``"first"``; required where the shape is ambiguous. A
        mapping sets it for each of several elements.
    mode : str or mapping of str to str
        The Pillow mode of the sample's image; ``"unchanged"`` keeps the mode of the file. Further images of a sample,
        such as masks, stay unchanged. A mapping sets the mode of each: ``{"image": "RGB", "depth": "F"}``.
    roles : mapping, optional
        What elements mean, for stores of other tools: ``{"boxes": {"role": "boxes", "format": "xywh"}, "seg": "mask"}``.
        See `storeds.readers.sample`.
    transforms : callable or config, optional
        Applied to the whole sample, before `transform`: images, masks, boxes and keypoints move together. What
        `build_transform` takes: built-in transforms, those of torchvision v2 and albumentations, and functions of a
        dict.
    transform, target_transform : callable or config, optional
        Applied to the image (the reader's data), and to the label (without a field ``label``, to the first other
        element). Any callable, or what `storeds.transforms.build_transform` takes. A mapping applies transforms by
        element: ``{"image": […], "depth": […]}``. A transform with a parameter ``generator`` receives the sample's own.
    as_dict : bool
        Return samples as dicts; tuples by default.
    repair : bool
        Whether to repair a damaged JPEG before decoding it, and to log that. The store never changes. Without repair,
        such a picture raises `DecodeError`.
    min_recovered : float
        A repaired picture of which a smaller fraction is left, 0 to 1, raises `DecodeError`.
    on_error : str
        What happens to a sample that cannot be read, decoded or transformed. ``"raise"`` raises its `RecordError`.
        ``"skip"`` puts a `Skipped` in its place, which `storeds.collate` drops; in a batch whose samples are all bad,
        replacements take their places. ``"replace"`` takes another sample of this dataset, in an order that depends on
        (seed, epoch, index) alone. `report` counts them all.
    max_bad, max_bad_fraction : int, float, optional
        More bad samples than this in one pass over an epoch, or a larger fraction of those seen, raise `BadSamplesError`.
    where : mapping or str, optional
        Select the records whose fields have these values: ``{"split": "train"}``; a list means any of its values, and a
        label may be the name of its class. Or a condition: ``'label in ("cat", "dog") and width >= 512'``, see
        `storeds.records.conditions.Condition`.
    fold : mapping, optional
        Of these, take some folds of the store: ``{"of": 5, "take": 0}``, or ``"without": 0`` for the others. Further keys
        are ``group_by``, a field whose values each stay in one fold; ``stratify_by``, a field whose values all folds share
        alike; and ``seed``, for another division.
    keys_file : str or path, optional
        Of these, take those whose field ``key`` is a line of this text file.
    join : mapping, optional
        Columns of a CSV or Parquet file beside the store: ``{"path": "train.csv", "on": "key", "fields": {"label": "target"}}``.
        ``on`` is the field whose value names the row, or ``{field: column}``. The columns are fields like those of the store, for
        samples, ``where``, folds and weights; by default all. A record without a row, or a row without a record, is a
        ConfigError, and ``"missing": "drop"`` leaves both out.
    seed : int, optional
        Makes a sample's randomness a function of (seed, epoch, index) alone, the same with any number of workers.
    layout, options
        As for `open_backend`.
    reader_options : mapping, optional
        Further arguments of the reader.
    **store_options
        Options of the store as keywords: ``columns={"image": "{label}/{}"}`` is short for ``options={"columns": …}``.

    Raises
    ------
    ConfigError
        A name or value is unknown; the message lists the known ones. Or a transform would crop, flip or resize one
        element and leave another, such as a mask, unchanged.
    StoreNotFoundError, FormatError, UnavailableError
        From opening the store. Reading raises `RecordError` and its subclasses for single samples.

    Notes
    -----
    Works in the process that made it and in workers started by fork, spawn or forkserver, before and after first use:
    processes never share a handle. Thread-safe. The pickle is small, whatever the number of records.

    `transforms`, `transform`, `target_transform`, `as_dict` and `seed` may be assigned, as in ``dataset.transform = None``;
    the other arguments may not. The next sample uses the new value. Copies keep theirs, also those in workers that are
    running. A `StoreLoader` starts others with its next pass. Persistent workers of a PyTorch DataLoader never receive it:
    they raise ConfigError once `set_epoch` was called after it.
    """

    @over_settings
    def __init__(
        self,
        url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Backend | DatasetSettings,
        *,
        reader: str | ReaderSpec[Any] = "image",
        fields: Sequence[str] | Mapping[str, str] | None = None,
        decode: Any = None,
        channels: str | Mapping[str, str] | None = None,
        mode: str | Mapping[str, str] = "RGB",
        roles: Mapping[str, Any] | None = None,
        transforms: Any = None,
        transform: Any = None,
        target_transform: Any = None,
        as_dict: bool = False,
        repair: bool = True,
        min_recovered: float = 0.5,
        on_error: str = "raise",
        max_bad: int | None = None,
        max_bad_fraction: float | None = None,
        where: Mapping[str, Any] | str | None = None,
        fold: Mapping[str, Any] | None = None,
        keys_file: str | os.PathLike[str] | None = None,
        join: Mapping[str, Any] | None = None,
        seed: int | None = None,
        layout: str | None = None,
        options: Mapping[str, Any] | None = None,
        reader_options: Mapping[str, Any] | None = None,
        **store_options: Any,
    ) -> None:
        super().__init__()
        policy = Policy(on_error, max_bad, max_bad_fraction)
        self._as_dict: bool = as_dict
        self._seed: int | None = _checked_seed(seed)
        opened = DatasetSettings.merged({"options": options}, store_options)["options"]
        self._backend: Backend = open_source(url, layout, opened, join)
        self._how = Conditions.of(self.backend, where, fold, keys_file)
        self._view: Backend = self._how.view(self.backend)
        decoding = {
            "decode": decode,
            "channels": channels,
            "mode": mode,
            "repair": repair,
            "min_recovered": min_recovered,
        }
        spec = make_reader(
            reader,
            fields,
            {**decoding, "roles": with_classes(roles, fields, self.backend)},
            reader_options,
            self._view.meta.fields,
            joint=transforms is not None,
        )
        self._bound: Reader[Any] = spec.bind(self._view)
        self._transforms: Transform | None = build_transform(self._with_stats(transforms), "transforms")
        self._transform: Transforms = build_transforms(self._with_stats(transform))
        self._target_transform: Transform | None = _target_transform(target_transform)
        # Shared with workers, so that set_epoch reaches persistent ones (pytorch#97326).
        self._epoch = SharedEpoch()
        self._assigned = SharedChange()
        self._counters = SampleCounters(policy, len(self._bound), self._epoch, self.url)
        self._build()

    def _build(self) -> None:
        """Make what depends on the transforms and on `as_dict`: the reader that fits them, and the pipeline."""
        declared = self.backend.meta.fields
        transforms = transforms_by_element(self._bound, self.url, declared, self._transform, self._target_transform)
        reader = fit_reader(self._bound, transforms, self._transforms)
        joint = bind_joint(reader, self._transforms)
        bound, tails = bind_transforms(reader, transforms, joint)
        self._pipeline = SamplePipeline(self._view, reader, bound, self._as_dict, self._counters.policy, joint, tails)
        own = built_in(reader)
        self._column_fields: dict[str, Field] = {} if own is None or transforms else own.columns

    def _with_stats(self, spec: Any) -> Any:
        return with_stats(spec, self._bound, self.backend)

    def _change(self, **settings: Any) -> None:
        """Use other settings from the next sample on; an error leaves the dataset as it was."""
        changed = copy.copy(self)
        changed.__dict__.update(settings)
        changed._build()
        self.__dict__.update(changed.__dict__, _assigned=self._assigned.report(self._epoch))

    def __copy__(self) -> Self:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__, _assigned=SharedChange())  # not that of the workers of this one
        return copied

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _FIXED and type(self) is StoreDataset:  # a subclass may have attributes of these names
            raise ConfigError(
                f"{name} cannot be assigned: the samples of this dataset would stay as they are. Make another StoreDataset; "
                "transforms, transform, target_transform, as_dict and seed may be assigned"
            )
        super().__setattr__(name, value)

    @property
    def backend(self) -> Backend:
        """The open store."""
        return self._backend

    @property
    def reader(self) -> Reader[Any]:
        """What makes samples of records."""
        return self._pipeline.reader

    @property
    def transforms(self) -> Transform | None:
        """The transforms of whole samples. They may be assigned; see the notes of the class about workers."""
        return self._transforms

    @transforms.setter
    def transforms(self, value: Any) -> None:
        self._change(_transforms=build_transform(self._with_stats(value), "transforms"))

    @property
    def transform(self) -> Transforms:
        """The transform of the image, or of each named element. It may be assigned, as `transforms`."""
        return self._transform

    @transform.setter
    def transform(self, value: Any) -> None:
        self._change(_transform=build_transforms(self._with_stats(value)))

    @property
    def target_transform(self) -> Transform | None:
        """The transform of the label. It may be assigned, as `transforms`."""
        return self._target_transform

    @target_transform.setter
    def target_transform(self, value: Any) -> None:
        self._change(_target_transform=_target_transform(value))

    @property
    def as_dict(self) -> bool:
        """Whether samples are dicts. It may be assigned, as `transforms`."""
        return self._as_dict

    @as_dict.setter
    def as_dict(self, value: bool) -> None:
        self._change(_as_dict=value)

    @property
    def seed(self) -> int | None:
        """What makes the randomness of samples the same in each run. It may be assigned, as `transforms`."""
        return self._seed

    @seed.setter
    def seed(self, value: int | None) -> None:
        self._seed = _checked_seed(value)
        if "_assigned" in vars(self):  # a subclass may set it before it calls __init__
            self._assigned = self._assigned.report(self._epoch)

    @property
    def records(self) -> Backend:
        """The records that samples are made of: the backend, or the part of it that `where` selects."""
        return self._view

    @property
    def url(self) -> str:
        """The store's URL, with secrets removed."""
        return self.backend.url

    @property
    def where(self) -> dict[str, list[Any]] | str | None:
        """The selection: field → values, any of which matches, or a condition; None if there is no selection."""
        condition = self._how.condition
        return dict(self._how.where) or (None if condition is None else condition.text)

    @property
    def classes(self) -> list[str]:
        """The class names in order of their label, from `roles` or from the store. AttributeError if neither has any."""
        own = built_in(self.reader)
        if own is not None and own.joint is not None and own.joint.classes is not None:
            return list(own.joint.classes)
        classes = stored_classes(self.backend.meta.attrs, self.reader.target)
        if classes is None:
            raise AttributeError(f"{self.url} has no 'classes' among its attrs")
        return classes

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Class name → label."""
        return {name: label for label, name in enumerate(self.classes)}

    @property
    def targets(self) -> list[Any]:
        """The labels of all samples, read as one column without touching an image."""
        if self.reader.target is None:
            raise AttributeError(f"the samples of {self.url} have no label")
        targets: list[Any] = self.column(self.reader.target).tolist()
        return targets

    def column(self, field: str) -> Array:
        """Return an element, or another stored field, of every sample, read as one column without touching an image.

        Raises
        ------
        ConfigError
            The field does not exist, or is not of kind int, float, bool or str.
        """
        # A sample of several records has one value too.
        column = getattr(self.reader, "column", read_column)
        values: Array = column(self._view, field)
        return values

    @property
    def epoch(self) -> int:
        """The epoch of the pass that began last, or the one set since. The randomness of samples depends on it."""
        return self._epoch.number

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, for persistent workers too, and for the next pass of every loader with an `EpochSampler`."""
        self._epoch.set(check_int("epoch", epoch, 0, MAX_EPOCH))

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: Any) -> Any:
        """Return one sample, or for a slice or a sequence of indices a list of samples, read in one storage call."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        if isinstance(index, (list, tuple, range)) or getattr(index, "ndim", None):
            return self.__getitems__(index)
        (sample,) = self._counted([index], fill=False)
        return sample

    def __getitems__(self, indices: Iterable[Any]) -> list[Any]:
        """Return the samples of `indices`, in their order; negative ones count from the end.

        Raises
        ------
        IndexError
            An index is outside ``[-len, len)``.
        RecordError
            A record cannot be read (or decoded, or transformed: its subclasses).
        UnavailableError
            The engine cannot be reached.
        """
        kind = type(self)
        if kind.__getitem__ is not StoreDataset.__getitem__ and kind.__getitems__ is StoreDataset.__getitems__:
            return [self[index] for index in indices]  # a subclass says what a sample is
        return self._counted(indices, fill=True)

    def _counted(self, indices: Iterable[Any], *, fill: bool) -> list[Any]:
        """Return samples, after counting what happened to them."""
        made = self.read(Ask(list(indices), fill=fill))
        for each in made.counted:
            self._counters.add(each.epoch, each.seen, each.events)
        samples: list[Any] = made.result()
        return samples

    def read(self, ask: Ask) -> Made:
        """Return the samples of a batch, and what happened to them, which nothing counts here. For loaders."""
        made = Made()
        _freeze_inherited()
        is_from_elsewhere = ask.epoch is None  # not from a loader of storeds, which starts other workers itself
        if ask.epoch is None:
            ask = ask._replace(epoch=self._epoch.number)
        try:
            if is_from_elsewhere and self._assigned.is_due(self._epoch):
                raise ConfigError(
                    f"a setting of the dataset of {self.url} was assigned after this worker began, which has the old one: make "
                    "another DataLoader, without persistent_workers, or use StoreLoader, which then starts other workers"
                )
            made.samples = self._made(resolve_indices(ask.indices, len(self), self.url), ask, made)
        except Exception as error:
            made.error = error
        return made

    def _made(self, resolved: list[int], ask: Ask, made: Made) -> Any:
        """Return samples, or columns, which are read without making samples."""
        assert ask.epoch is not None
        known: RecordError | None = None
        if self._column_fields and resolved:
            own = built_in(self.reader)
            assert own is not None
            began = time.perf_counter()
            try:
                arrays = own.batches(read_arrays(self._view, resolved, own.stored))
            except RecordError as error:
                known = error  # the pipeline applies the policy
            else:
                made.work.add_time("read", began)
                made.work.add_bytes([arrays])
                made.counted.append(Counted(self, ask.epoch, len(resolved), ()))
                # What has no column is the index.
                columns = {n: arrays[n] if n in arrays else np.array(resolved, np.int64) for n in self._column_fields}
                return columns if ask.as_columns else _split_columns(columns, self._column_fields, self.as_dict)
        seed = ask.seed if self.seed is None else self.seed
        contexts = [SampleContext(index, ask.epoch, seed) for index in resolved]
        if ask.allowed is not None:
            ask = ask._replace(allowed=partial(ask.allowed, self))
        events: list[Event] = []
        try:
            return self._pipeline.samples(contexts, ask, made.work, events, known)
        finally:
            if contexts:
                made.counted.append(Counted(self, contexts[0].epoch, len(contexts), events))

    def __add__(self, other: Dataset[Any]) -> ConcatDataset[Any]:
        """Return both datasets as one; raises ConfigError where a label would mean different classes."""
        if isinstance(other, StoreDataset) and self.reader.target is not None:
            check_same_classes(self.backend, other.backend)
        return super().__add__(other)

    def report(self) -> SampleReport:
        """Return how many samples were requested, repaired and bad so far, in this process and its workers."""
        return self._counters.report()

    def show(self, indices: Iterable[int] | None = None) -> Any:
        """Return samples to look at, by default some of every class: a notebook displays them, ``save(path)`` writes them.

        See `storeds.ops.show`. Transforms are left out.
        """
        return import_object(SHOW)(self, None if indices is None else list(indices))

    def _repr_html_(self) -> str:
        html: str = import_object(SHOW)(self, count=_IN_NOTEBOOK)._repr_html_()
        return html

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # copies in this process may hold what cannot be pickled
            for name in ("transforms", "transform", "target_transform"):
                check_picklable(name, getattr(self, name))
        return self.__dict__

    def close(self) -> None:
        """Close the store; reading raises `ClosedError` from then on."""
        self.backend.close()

    def __repr__(self) -> str:
        how = str(self._how)
        reader = f"fields={self.reader.fields}, reader={reader_name(self.reader)}"
        return f"StoreDataset({self.url!r}{how and f', {how}'}, count={len(self)}, {reader})"


_FIXED = frozenset(inspect.signature(StoreDataset).parameters) - {
    *("transforms", "transform", "target_transform", "as_dict", "seed")
}


def _checked_seed(seed: Any) -> int | None:
    """Return the seed; raises ConfigError unless it is an int or None."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ConfigError(f"seed must be an int or None, got {seed!r}")
    return seed


def _target_transform(spec: Any) -> Transform | None:
    return None if spec is None else build_transform(spec, "target_transform")


def _split_columns(columns: Mapping[str, Array], fields: Mapping[str, Field], as_dict: bool) -> list[Any]:
    """Return the samples of some columns, equal to what the reader builds from records."""
    elements = [
        # Copies: a view would keep the whole batch in memory, and pickle all of it.
        column.tolist() if fields[name].is_scalar else [torch.from_numpy(row.copy()) for row in _rows(column)]
        for name, column in columns.items()
    ]
    rows = zip(*elements, strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows] if as_dict else list(rows)


def _rows(column: Array) -> list[Array]:
    return [column[at, ...] for at in range(len(column))]
