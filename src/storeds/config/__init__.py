"""Builds datasets and loaders from a config file: `load_config`, then `build_dataset` and `build_loader`.

`Config` and `Loader` (``loader.py``) are the validated tables. `files.py` parses files, `overrides.py` applies ``key=value`` texts, `splits.py` selects splits.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import structs

from storeds._utils.settings import Settings
from storeds.config.files import read_mapping
from storeds.config.loader import Loader
from storeds.config.overrides import override
from storeds.config.splits import shared_records, split_value, urls_of, with_split
from storeds.datasets.source import Source, expand, path_text
from storeds.errors import ConfigError, suggest
from storeds.protocols import Backend
from storeds.protocols import Field as StoreField
from storeds.records.columns import read_column
from storeds.redaction import redact

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.mixture import StoreMixture
    from storeds.loaders.loader import StoreLoader

__all__ = ["Config", "Loader", "build_dataset", "build_loader", "config_schema", "load_config"]

_LOG = logging.getLogger("storeds")
_PLACEHOLDER = "{split}"
_SHOWN, _LONG = 8, 60  # values in a message, characters of one


def _named_by_text(splits: Any) -> Any:
    """Return the split tables with text keys: YAML reads ``0:`` as a number. Messages show these names."""
    if isinstance(splits, Mapping) and any(redact(str(name)) != str(name) for name in splits):
        raise ValueError("a split has a name such as train, and one of these looks like a URL")
    return {str(name): table for name, table in splits.items()} if isinstance(splits, Mapping) else splits


class Split(Settings, frozen=True):
    """The settings of one split that differ from ``[dataset]`` and ``[loader]``."""

    dataset: dict[str, Any] = msgspec.field(default_factory=dict)
    loader: dict[str, Any] = msgspec.field(default_factory=dict)


class Mixing(Settings, frozen=True):
    """What ``[dataset]`` says about a mixture, beside its ``sources``."""

    temperature: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        msgspec.Meta(description="Instead of weights: above 1, small sources come more often than their size says."),
    ] = None
    stop: Annotated[
        Literal["first", "last"] | None,
        msgspec.Meta(description="An epoch ends when the first or the last source has come once."),
    ] = None


class MixedSource(NamedTuple):
    """A source of a mixture: its name, its weight, and the config of its dataset."""

    name: str
    weight: Any
    config: Config


class Config(Settings, frozen=True):
    """A whole config: ``[dataset]``, ``[loader]``, and ``[splits.NAME.dataset]`` or ``[splits.NAME.loader]`` over them.

    Attributes
    ----------
    dataset : Source
        Of a mixture, its first source.
    loader : Loader
    splits : dict
        Split name → settings that differ for this split.
    allow_overlap : bool
        Whether two splits may have records in common.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"splits": _named_by_text}

    dataset: Source
    loader: Loader = Loader()
    splits: dict[str, Split] = msgspec.field(default_factory=dict)
    allow_overlap: Annotated[
        bool, msgspec.Meta(description="Allow two splits to share records, which is an error otherwise.")
    ] = False
    sources: tuple[MixedSource, ...] = ()
    mixing: Mixing = Mixing()

    @classmethod
    def parse(cls, mapping: Any) -> Config:
        """Expand variables and validate a mapping of the tables; raises ConfigError with the wrong key or value."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"config: expected a mapping of keys to values, got {type(mapping).__name__}")
        return cls._of_tables(expand(mapping))

    @classmethod
    def _of_tables(cls, tables: dict[str, Any]) -> Config:
        for name in ("sources", "mixing"):
            if name in tables:
                raise ConfigError(f"config: {name!r} is a key of [dataset], not a table of its own")
        shared = tables.get("dataset")
        if isinstance(shared, Mapping) and "sources" in shared:
            return cls._mixed(tables, dict(shared))
        if isinstance(tables.get("dataset"), Mapping):
            tables["dataset"] = Source.of_table(tables["dataset"], "config: dataset")
        return cls.validated(tables, "config")

    @classmethod
    def _mixed(cls, tables: dict[str, Any], shared: dict[str, Any]) -> Config:
        """Return the config of a mixture: each source has the keys of ``[dataset]`` and its own over them."""
        entries = shared.pop("sources")
        mixing = {name: shared.pop(name) for name in Mixing.__struct_fields__ if name in shared}
        if not isinstance(entries, (list, tuple)) or not entries or not all(isinstance(e, Mapping) for e in entries):
            raise ConfigError("config: dataset.sources: expected a list of tables, each with a url")
        parts = []
        for place, entry in enumerate(entries):
            own = dict(entry)
            name, weight = str(own.pop("name", place)), own.pop("weight", None)
            try:
                parts.append(MixedSource(name, weight, cls._of_tables({**tables, "dataset": {**shared, **own}})))
            except ConfigError as error:
                raise ConfigError(f"config: source {name!r} of the mixture: {error}") from None
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ConfigError(f"config: sources of a mixture have different names, and these have {', '.join(names)}")
        settings = Mixing.validated(mixing, "config: dataset")
        return structs.replace(parts[0].config, sources=tuple(parts), mixing=settings)

    def source_for(self, split: str | int | None, fields: Mapping[str, StoreField] | None = None) -> Source:
        """Return the dataset settings for one split; no I/O.

        ``[splits.NAME.dataset]`` overrides ``[dataset]``, and the split's name replaces ``{split}`` in the URL. If the
        URL has no ``{split}`` and the table has no ``url``, ``where``, ``fold`` or ``keys``, the split selects the records
        whose field ``split`` equals its name.

        Parameters
        ----------
        split : str, int or None
            None for ``[dataset]`` unchanged.
        fields : mapping, optional
            The fields of the store. Without a field ``split``, nothing is filtered. If ``split`` holds integers, the
            name is read as an integer. Without `fields`, the store is assumed to have a text field ``split``.

        Raises
        ------
        ConfigError
            The split does not exist, or its table is invalid.
        """
        if split is None:
            return self.dataset
        split = str(split)
        table = self._split(split)
        changes = dict(table.dataset)
        url = path_text(changes.get("url", self.dataset.url))
        if any(_PLACEHOLDER in each for each in ([url] if isinstance(url, str) else url)):
            named = [each.replace(_PLACEHOLDER, split) for each in ([url] if isinstance(url, str) else url)]
            changes["url"] = named[0] if isinstance(url, str) else named
        elif changes.keys().isdisjoint(("url", "where", "fold", "keys")):
            value = split_value(split, fields)
            if value is not None:
                changes["where"] = with_split(self.dataset.where, value)
            elif not self.splits:
                raise ConfigError(
                    f"config: nothing says which records are split {split!r}: [dataset] url has no {_PLACEHOLDER}, the "
                    f"store has no field 'split', and there is no [splits.{split}.dataset] with a where or url"
                )
        return Source.of_table({**structs.asdict(self.dataset), **changes})

    def loader_for(self, split: str | int | None) -> Loader:
        """Return the loader's settings for one split."""
        return Loader.validated({**structs.asdict(self.loader), **self._split(split).loader}, "[loader]")

    def _split(self, split: str | int | None) -> Split:
        if split is None:
            return Split()
        if self.splits and str(split) not in self.splits:
            raise ConfigError(f"config: unknown split {split!r}; {suggest(split, self.splits, 'splits')}")
        return self.splits.get(str(split), Split())


def load_config(
    path_or_mapping: str | os.PathLike[str] | Mapping[str, Any], *, overrides: Iterable[str] = ()
) -> Config:
    """Load and validate a config from a TOML, YAML or JSON file, or from a mapping.

    ``${NAME}`` in any text is replaced by that environment variable, so secrets can stay out of the file. OmegaConf
    resolves an OmegaConf ``DictConfig`` by its own rules instead.

    Parameters
    ----------
    path_or_mapping : str, path or mapping
        A mapping may be, or hold, an OmegaConf ``DictConfig``.
    overrides : iterable of str
        Values to change, in order: ``"loader.batch_size=16"``, ``"splits.val.dataset.transform=null"``. Each value is
        read as TOML, else as JSON, else as text; a number in the path is a list index.

    Raises
    ------
    ConfigError
        The config cannot be parsed, a key is unknown, a value has the wrong type, a variable is not set, or an override
        is malformed.
    StoreNotFoundError
        The file does not exist.
    """
    mapping = path_or_mapping if isinstance(path_or_mapping, Mapping) else read_mapping(path_or_mapping)
    config = Config.parse(override(mapping, overrides) if overrides else mapping)
    for split in config.splits:  # report errors now, not when a split is first used
        config.source_for(split)
        config.loader_for(split)
    return config


def _loaded(config: Config | str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    return config if isinstance(config, Config) else load_config(config)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config, for editors and checks."""
    schema = msgspec.json.schema(Config)
    definitions = schema["$defs"]
    whole = definitions.pop("Config")
    for name in ("sources", "mixing"):  # these are written in [dataset]
        del whole["properties"][name]
    del definitions["MixedSource"]
    dataset = definitions["Source"]
    source = {
        "type": "object",
        "description": "The keys of a dataset, and a name and a weight: a number, or a table of epoch → number.",
    }
    dataset["properties"] |= {
        "sources": {"type": "array", "items": source, "description": "Several datasets, mixed by their weights."},
        **definitions.pop("Mixing")["properties"],
    }
    dataset["anyOf"] = [{"required": [name]} for name in (*dataset.pop("required"), "sources")]
    return {**whole, "$defs": definitions}


def build_dataset(
    config: Config | str | os.PathLike[str] | Mapping[str, Any], split: str | int | None = None
) -> StoreDataset | StoreMixture:
    """Build the dataset that a config describes: a `StoreMixture` of its ``sources``, if it has these.

    Parameters
    ----------
    config : Config, str, path or mapping
        `load_config` loads anything that is not a `Config`.
    split : str or int, optional
        See `Config.source_for`.

    Raises
    ------
    ConfigError
        No record has the split or another value in `where`; the message lists the existing values. Or another split
        selects some of the same records, and ``allow_overlap`` is not true.
    """
    config = _loaded(config)
    if config.sources:
        return _build_mixture(config, split)
    return _build_one(config, split)


def _build_mixture(config: Config, split: str | int | None) -> StoreMixture:
    from storeds.datasets.mixture import StoreMixture

    sources = {part.name: _build_one(part.config, split, part.name) for part in config.sources}
    weights = {part.name: part.weight for part in config.sources if part.weight is not None}
    return StoreMixture(sources, weights or None, temperature=config.mixing.temperature, stop=config.mixing.stop)


def _build_one(config: Config, split: str | int | None, name: str | None = None) -> StoreDataset:
    """Build the dataset of a config without sources; `name` is that of a source, which its samples may have as a field."""
    from storeds.datasets.assembly import open_source
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.mixture import SOURCE, Tagged

    unlimited = config.source_for(split)
    if split is None:
        _check_unsplit(config)
    backend = open_source(unlimited.url, unlimited.layout, unlimited.options)
    source = config.source_for(split, backend.meta.fields)
    if split is not None and not config.allow_overlap:
        _check_overlap(config, str(split), source, backend)
    arguments = {**source.arguments(), "layout": None, "options": None}  # the open backend already has these
    if name is not None and SOURCE in (
        source.fields.values() if isinstance(source.fields, dict) else source.fields or ()
    ):
        backend = Tagged(backend, SOURCE, name)
    dataset = StoreDataset(backend, **arguments)
    if not len(dataset):
        for name, wanted in (dataset.where or {}).items():
            _check_values(dataset, name, wanted)
    return dataset


def _check_unsplit(config: Config) -> None:
    names = ", ".join(config.splits) or "no names"
    if any(_PLACEHOLDER in url for url in urls_of(config.dataset)):
        raise ConfigError(f"config: [dataset] url has {_PLACEHOLDER}, so name a split; [splits] has {names}")
    if config.splits:
        _LOG.warning("no split is named, so the records of all splits (%s) are taken together", names)


def _check_overlap(config: Config, split: str, source: Source, backend: Backend) -> None:
    """Raise ConfigError if another split of the config selects some of the records of `split`."""
    for other in config.splits:
        if other == split:
            continue
        shared = shared_records(source, backend, config.source_for(other, backend.meta.fields))
        if shared is not None:
            raise ConfigError(
                f"splits {split!r} and {other!r} of the config share {shared}. Give each its own: put {_PLACEHOLDER} into the url of [dataset], or set where or "
                f"url in [splits.{split}.dataset] and [splits.{other}.dataset], or pack with --split, which adds a field "
                "'split'. If they are meant to overlap, set allow_overlap = true at the top of the config"
            )


def _check_values(dataset: StoreDataset, name: str, wanted: list[Any]) -> None:
    """Raise ConfigError if no record has one of these values, so that a misspelt value is reported."""
    there = {value for value in read_column(dataset.backend, name).tolist() if value == value}  # leaves out NaN
    if wanted and there.isdisjoint(wanted):
        values = ", ".join(repr(value)[:_LONG] for value in wanted[:_SHOWN])
        names = [str(value)[:_LONG] for value in sorted(there)]
        raise ConfigError(
            f"no record of {dataset.url} has the {name} {values}; {suggest(str(wanted[0]), names, f'values of {name}')}"
        )


def build_loader(
    config: Config | str | os.PathLike[str] | Mapping[str, Any], split: str | int | None = None
) -> StoreLoader:
    """Build a `DataLoader` over `build_dataset` and an `EpochSampler`; logs the settings that it picks.

    Defaults: one worker per CPU that this process may use, divided among the ranks of this machine. Workers are
    persistent. Batches go to pinned memory if CUDA is available.

    The dataset's seed sets the order of an epoch; without a seed the order differs between runs. The ranks of
    torch.distributed divide each epoch. Each new iteration is the next epoch: see `StoreLoader`.

    Logs a warning if the loader has no batch: the store is empty, no record is selected, or `drop_last` drops all.
    """
    import torch

    from storeds.datasets.map_dataset import StoreDataset
    from storeds.loaders.loader import StoreLoader
    from storeds.loaders.planning import PLAN_SETTINGS
    from storeds.loaders.sampler import EpochSampler

    config = _loaded(config)
    dataset, settings = build_dataset(config, split), config.loader_for(split)
    workers = _cpus_of_this_rank() if settings.num_workers is None else settings.num_workers
    pin = torch.cuda.is_available() if settings.pin_memory is None else settings.pin_memory
    plan = {name: getattr(settings, name) for name in PLAN_SETTINGS}
    if not settings.shuffle:
        plan |= {"block_size": None, "window": None}
    sampler = EpochSampler(
        dataset, shuffle=settings.shuffle, drop_last=settings.drop_last, batch_size=settings.batch_size, **plan
    )
    _LOG.info("loader: %d workers, pin_memory=%s, rank %d of %d", workers, pin, sampler.rank, sampler.num_replicas)
    arguments: dict[str, Any] = {
        "sampler": sampler,
        "batch_size": settings.batch_size,
        "drop_last": settings.drop_last and settings.batch_size is not None,
        "collate_fn": settings.collate_fn(),
        "pin_memory": pin,
    }
    persistent = settings.persistent_workers
    loader = StoreLoader(
        dataset,
        **arguments,
        num_workers=workers,
        start_method=settings.start_method,
        persistent_workers=workers > 0 and (settings.start_method != "thread" if persistent is None else persistent),
        prefetch_factor=settings.prefetch_factor if workers else None,
        timeout=settings.timeout if workers else 0,
        in_order=settings.in_order,
        worker_init_fn=settings.function("worker_init_fn"),
    )
    if isinstance(dataset, StoreDataset) and not len(dataset.backend):
        _LOG.warning("there is no batch to load: %s holds no records", dataset.url)
    elif len(dataset) and not len(loader):  # a dataset without samples has warned about that
        _LOG.warning(
            "there is no batch to load: %d samples of %s for %d ranks make no whole batch of %d, and drop_last drops a smaller "
            "one; reduce batch_size, or set drop_last = false",
            *(len(dataset), dataset.url, sampler.num_replicas, settings.batch_size or 1),
        )
    return loader


def _cpus_of_this_rank() -> int:
    """Return how many CPUs this process may use, divided among the ranks that torchrun started on this machine."""
    cpus = len(os.sched_getaffinity(0))
    return max(cpus // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 1)
