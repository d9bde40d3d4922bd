"""Training chosen by config: `load_config`, then `build_dataset` and `build_loader`."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from storeds._utils.arguments import read_mapping
from storeds._utils.text import counted
from storeds.config.overrides import override
from storeds.config.splits import shared_records, split_value, with_split
from storeds.datasets.source import Settings, Source
from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend
from storeds.protocols import Field as StoreField
from storeds.records.columns import read_column
from storeds.registry import import_object

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.loaders.loader import StoreLoader

__all__ = ["Config", "Loader", "build_dataset", "build_loader", "config_schema", "load_config"]

_LOG = logging.getLogger("storeds")
_PLACEHOLDER = "{split}"
_SHOWN, _LONG = 8, 60  # values in a message, characters of one


class Loader(Settings):
    """The ``[loader]`` table: arguments of `torch.utils.data.DataLoader`; what is left out is picked and logged."""

    where_from: ClassVar[str] = "[loader]"

    batch_size: int | None = Field(32, ge=1, description="Samples a batch; null for samples that are not batched.")
    shuffle: bool = Field(False, description="A new order each epoch, repeated by a run of the same dataset seed.")
    block_size: int | None = Field(None, ge=1, description="Shuffle blocks of so many neighbours, for cold disks.")
    window: int | None = Field(None, ge=1, description="Blocks whose samples are mixed; 8 by default.")
    drop_last: bool = Field(False, description="Drop the last batch when it is short, and what not every rank gets.")
    collate: str = Field("storeds", description="storeds, default, or the dotted path of a function.")
    pad: list[str | int] = Field(
        default_factory=list,
        description="Elements that storeds.collate pads in every batch: names, or places in a tuple.",
    )
    num_workers: int | None = Field(
        None, ge=0, description="Workers; by default as many as the CPUs this process may use."
    )
    start_method: Literal["fork", "spawn", "forkserver", "thread"] | None = Field(
        None, description="How workers start; thread makes them threads of this process."
    )
    persistent_workers: bool | None = Field(
        None, description="Keep workers between epochs; by default if there are any."
    )
    prefetch_factor: int | None = Field(None, ge=1, description="Batches loaded ahead by each worker.")
    pin_memory: bool | None = Field(None, description="Copy batches to pinned memory; by default with CUDA.")
    timeout: float = Field(0, ge=0, description="Seconds to wait for a batch from a worker; 0 for no limit.")
    in_order: bool = Field(True, description="Give batches in the sampler's order, whichever is ready first.")
    worker_init_fn: str | None = Field(None, description="The dotted path of a function called in each worker.")


def _named_by_text(splits: Any) -> Any:
    """Return the tables of splits by names that are text: in YAML, ``0:`` is a number."""
    return {str(name): table for name, table in splits.items()} if isinstance(splits, Mapping) else splits


class Config(Settings):
    """A whole config: ``[dataset]``, ``[loader]``, and ``[splits.NAME.dataset]`` or ``[splits.NAME.loader]`` over them.

    Attributes
    ----------
    dataset : Source
    loader : Loader
    splits : dict
        Split name → what differs for it.
    allow_overlap : bool
        Whether two splits may have records in common.
    """

    dataset: Source
    loader: Loader = Loader()
    splits: Annotated[dict[str, Split], BeforeValidator(_named_by_text)] = Field(default_factory=dict)
    allow_overlap: bool = Field(False, description="Two splits may have records in common; else that is an error.")

    def source_for(self, split: str | int | None, fields: Mapping[str, StoreField] | None = None) -> Source:
        """Return the dataset's description for one split; no I/O.

        It is what ``[splits.NAME.dataset]`` makes of ``[dataset]``, with ``{split}`` in the URL replaced. Where neither
        the URL has a ``{split}`` nor the table a ``url`` or a ``where``, the split is further limited to records whose
        field ``split`` has its name.

        Parameters
        ----------
        split : str, int or None
            None for ``[dataset]`` as it is.
        fields : mapping, optional
            The fields of the store. If ``split`` is not among them, nothing is limited. If it holds integers, the name is
            read as one. Without `fields`, it is taken to be there and to hold text.

        Raises
        ------
        ConfigError
            There is no such split, or its table is wrong.
        """
        if split is None:
            return self.dataset
        split = str(split)
        table = self._split(split)
        changes = dict(table.dataset)
        url = changes.get("url", self.dataset.url)
        urls = [url] if isinstance(url, str) else url
        if any(_PLACEHOLDER in each for each in urls):
            replaced = [each.replace(_PLACEHOLDER, split) for each in urls]
            changes["url"] = replaced[0] if isinstance(url, str) else replaced
        elif "url" not in changes and "where" not in changes:
            value = split_value(split, fields)
            if value is not None:
                changes["where"] = with_split(self.dataset.where, value)
            elif not self.splits:
                raise ConfigError(
                    f"config: nothing says which records are split {split!r}: [dataset] url has no {_PLACEHOLDER}, the "
                    f"store has no field 'split', and there is no [splits.{split}.dataset] with a where or url"
                )
        return Source.validated({**dict(self.dataset), **changes})

    def loader_for(self, split: str | int | None) -> Loader:
        """Return the loader's settings for one split."""
        return Loader.validated({**dict(self.loader), **self._split(split).loader})

    def _split(self, split: str | int | None) -> Split:
        if split is None:
            return Split()
        if self.splits and str(split) not in self.splits:
            raise ConfigError(f"config: unknown split {split!r}; {suggest(split, self.splits, 'splits')}")
        return self.splits.get(str(split), Split())


class Split(Settings):
    """What differs from ``[dataset]`` and ``[loader]`` in one split."""

    where_from: ClassVar[str] = "[splits]"

    dataset: dict[str, Any] = Field(default_factory=dict)
    loader: dict[str, Any] = Field(default_factory=dict)


Config.model_rebuild()


def load_config(
    path_or_mapping: str | os.PathLike[str] | Mapping[str, Any], *, overrides: Iterable[str] = ()
) -> Config:
    """Return the validated config in a TOML, YAML or JSON file, or in a mapping.

    ``${NAME}`` in any text stands for that environment variable, so that no secret needs to stand in a file. In a
    mapping, an OmegaConf ``DictConfig`` is resolved by OmegaConf's own rules instead.

    Parameters
    ----------
    path_or_mapping : str, path or mapping
        A mapping may be, or hold, an OmegaConf ``DictConfig``.
    overrides : iterable of str
        Values to change, in order: ``"loader.batch_size=16"``, ``"splits.val.dataset.transform=null"``. Each value is
        read as TOML, else as YAML; a number in the path is a place in a list.

    Raises
    ------
    ConfigError
        It cannot be parsed, a key is unknown, a value is of the wrong type, a variable is not set; it is a URL; an
        override is malformed.
    StoreNotFoundError
        There is no such file.
    """
    mapping = path_or_mapping if isinstance(path_or_mapping, Mapping) else read_mapping(path_or_mapping)
    config = Config.parse(override(mapping, overrides) if overrides else mapping)
    for split in config.splits:  # say now what is wrong, not when the split is used
        config.source_for(split)
        config.loader_for(split)
    return config


def _loaded(config: Config | str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    return config if isinstance(config, Config) else load_config(config)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config, for editors and checks."""
    return Config.model_json_schema()


def build_dataset(
    config: Config | str | os.PathLike[str] | Mapping[str, Any], split: str | int | None = None
) -> StoreDataset:
    """Return the dataset that a config describes.

    Parameters
    ----------
    config : Config, str, path or mapping
        Anything but a `Config` goes through `load_config`.
    split : str or int, optional
        See `Config.source_for`.

    Raises
    ------
    ConfigError
        No record at all has the split, or another value that `where` asks for; the message lists those that there are.
        Or another split of the config has some of the same records, and ``allow_overlap`` is not true.
    """
    from storeds.datasets.map_dataset import StoreDataset, open_source

    config = _loaded(config)
    unlimited = config.source_for(split)
    if split is None:
        _check_unsplit(config)
    backend = open_source(unlimited.url, unlimited.layout, unlimited.options)
    source = config.source_for(split, backend.meta.fields)
    if split is not None and not config.allow_overlap:
        _check_overlap(config, str(split), source, backend)
    arguments = {**source.arguments(), "layout": None, "options": None}  # those of opening are used
    dataset = StoreDataset(backend, **arguments)
    if not len(dataset):
        for name, wanted in (dataset.where or {}).items():
            _check_values(dataset, name, wanted)
    return dataset


def _check_unsplit(config: Config) -> None:
    url = config.dataset.url
    names = ", ".join(config.splits) or "no names"
    if any(_PLACEHOLDER in each for each in ([url] if isinstance(url, str) else url)):
        raise ConfigError(f"config: [dataset] url has {_PLACEHOLDER}, so name a split; [splits] has {names}")
    if config.splits:
        _LOG.warning("no split is named, so the records of all splits (%s) are taken together", names)


def _check_overlap(config: Config, split: str, source: Source, backend: Backend) -> None:
    """Raise ConfigError if another split of the config has some of the records of `split`."""
    for other in config.splits:
        if other == split:
            continue
        shared = shared_records(source, backend, config.source_for(other, backend.meta.fields))
        if shared is not None:
            key = "" if shared.key is None else f", key {shared.key[:_LONG]!r}"
            raise ConfigError(
                f"splits {split!r} and {other!r} of the config share {counted(shared.records, 'record')} of {shared.url} (the first at position "
                f"{shared.position}{key}). Give each its own: put {_PLACEHOLDER} into the url of [dataset], or set where or "
                f"url in [splits.{split}.dataset] and [splits.{other}.dataset], or pack with --split, which adds a field "
                "'split'. If they are meant to overlap, set allow_overlap = true at the top of the config"
            )


def _check_values(dataset: StoreDataset, name: str, wanted: list[Any]) -> None:
    """Raise ConfigError if no record at all has one of these values: else nothing would tell of a misspelt one."""
    there = {value for value in read_column(dataset.backend, name).tolist() if value == value}  # NaN is like nothing
    if wanted and there.isdisjoint(wanted):
        values = ", ".join(repr(value)[:_LONG] for value in wanted[:_SHOWN])
        names = [str(value)[:_LONG] for value in sorted(there)]
        raise ConfigError(
            f"no record of {dataset.url} has the {name} {values}; {suggest(str(wanted[0]), names, f'values of {name}')}"
        )


def build_loader(
    config: Config | str | os.PathLike[str] | Mapping[str, Any], split: str | int | None = None
) -> StoreLoader:
    """Return a `DataLoader` over `build_dataset` and an `EpochSampler`; what the config leaves open is picked and logged.

    Workers: as many as the CPUs this process may use, shared with the ranks beside it. Persistent if there are any. Pinned memory with CUDA. The order of
    an epoch is that of the dataset's seed; without one it differs between runs. It is shared between the ranks of torch.distributed. Each new pass is the next
    epoch: see `StoreLoader`.

    Where it has no batch at all, because the store is empty, nothing is selected of it, or `drop_last` drops everything,
    a warning says so.
    """
    import torch

    from storeds.loaders.sampler import EpochSampler

    config = _loaded(config)
    dataset, settings = build_dataset(config, split), config.loader_for(split)
    workers = _cpus_of_this_rank() if settings.num_workers is None else settings.num_workers
    pin = torch.cuda.is_available() if settings.pin_memory is None else settings.pin_memory
    sampler = EpochSampler(
        dataset,
        shuffle=settings.shuffle,
        drop_last=settings.drop_last,
        block_size=settings.block_size if settings.shuffle else None,
        window=settings.window if settings.shuffle else None,
    )
    _LOG.info("loader: %d workers, pin_memory=%s, rank %d of %d", workers, pin, sampler.rank, sampler.num_replicas)
    arguments = {
        "sampler": sampler,
        "batch_size": settings.batch_size,
        "drop_last": settings.drop_last and settings.batch_size is not None,
        "collate_fn": _collate(settings),
        "pin_memory": pin,
    }
    make = _threaded if settings.start_method == "thread" else _with_processes
    loader = make(settings, dataset, workers, arguments)
    selects_none = not len(dataset) and len(dataset.backend)  # of which the dataset has warned
    if not len(loader) and not selects_none:
        _LOG.warning("there is no batch to load: %s", _why_none(dataset, sampler.num_replicas, settings))
    return loader


def _why_none(dataset: StoreDataset, ranks: int, settings: Loader) -> str:
    """Return why a loader of `dataset` has no batch."""
    if not len(dataset.backend):
        return f"{dataset.url} holds no records"
    shared = f", shared by {ranks} ranks," if ranks > 1 else ""
    return (
        f"{len(dataset)} samples of {dataset.url}{shared} make no whole batch of "
        f"{settings.batch_size or 1}, and drop_last drops others; take smaller batches, or keep the last one"
    )


def _with_processes(settings: Loader, dataset: StoreDataset, workers: int, arguments: dict[str, Any]) -> StoreLoader:
    from storeds.loaders.loader import StoreLoader

    return StoreLoader(
        dataset,
        **arguments,
        num_workers=workers,
        multiprocessing_context=settings.start_method if workers else None,
        persistent_workers=workers > 0 and settings.persistent_workers is not False,
        prefetch_factor=settings.prefetch_factor if workers else None,
        timeout=settings.timeout if workers else 0,
        in_order=settings.in_order,
        worker_init_fn=_function("worker_init_fn", settings.worker_init_fn),
    )


def _threaded(settings: Loader, dataset: StoreDataset, workers: int, arguments: dict[str, Any]) -> StoreLoader:
    from storeds.loaders.threaded import ThreadLoader

    given = {"timeout": settings.timeout, "worker_init_fn": settings.worker_init_fn, "in_order": not settings.in_order}
    for name in (name for name, value in given.items() if value):
        raise ConfigError(f"[loader]: {name} is for processes, and start_method is 'thread'; leave one of them out")
    return ThreadLoader(dataset, **arguments, num_workers=workers, prefetch_factor=settings.prefetch_factor or 2)


def _cpus_of_this_rank() -> int:
    """Return how many CPUs this process may use, shared with the other ranks of this machine as torchrun tells."""
    cpus = len(os.sched_getaffinity(0))
    return max(cpus // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 1)


def _collate(settings: Loader) -> Callable[..., Any] | None:
    batched = settings.batch_size is not None
    if settings.pad and not (batched and settings.collate == "storeds"):
        told = f"collate = {settings.collate!r}" if batched else "batch_size = null"
        raise ConfigError(f"[loader]: pad is for batches that storeds.collate makes, and the config says {told}")
    if settings.collate == "default" or (settings.collate == "storeds" and not batched):
        return None
    if settings.collate == "storeds":
        from storeds.batching.collate import collate

        return functools.partial(collate, pad=tuple(settings.pad)) if settings.pad else collate
    return _function("collate", settings.collate)


def _function(key: str, path: str | None) -> Callable[..., Any] | None:
    """Return the function that a config names."""
    if path is None:
        return None
    try:
        found = import_object(path if ":" in path else ":".join(path.rsplit(".", 1)))
    except (ImportError, ValueError) as error:
        raise ConfigError(f"[loader]: {key} {path!r} cannot be imported: {error}") from error
    if not callable(found):
        raise ConfigError(f"[loader]: {key} {path!r} is no function but a {type(found).__name__}")
    return cast("Callable[..., Any]", found)
