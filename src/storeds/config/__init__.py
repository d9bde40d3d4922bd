"""Builds datasets and loaders from a config file: `load_config`, then `build_dataset` and `build_loader`.

`Config` holds the validated tables: `DatasetSettings`, `LoaderSettings`, and what differs for a split. `files.py` parses
files, `variables.py` and `overrides.py` change values, `splits.py` selects the records of splits.
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
from storeds.config.overrides import override
from storeds.config.splits import PLACEHOLDER, shared_records, urls_of, with_split
from storeds.config.variables import expand
from storeds.datasets.settings import DatasetSettings
from storeds.errors import ConfigError, suggest
from storeds.loaders.settings import LoaderSettings
from storeds.protocols import Backend
from storeds.protocols import Field as StoreField
from storeds.records.columns import read_column
from storeds.redaction import redact

if TYPE_CHECKING:
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.mixture import StoreMixture
    from storeds.loaders.loader import StoreLoader

__all__ = ["Config", "build_dataset", "build_loader", "config_schema", "load_config"]

_LOG = logging.getLogger("storeds")
_SHOWN, _LONG = 8, 60  # values in a message, characters of one


def _named_by_text(splits: Any) -> Any:
    """Return the split tables with text keys: YAML reads ``0:`` as a number. Messages show these names."""
    if isinstance(splits, Mapping) and any(redact(str(name)) != str(name) for name in splits):
        raise ValueError("a split has a name such as train, and one of these looks like a URL")
    if not isinstance(splits, Mapping):
        return splits
    return {str(name): {} if table is None else table for name, table in splits.items()}  # `train:` alone, in YAML


class Split(Settings, frozen=True):
    """The settings of one split that differ from ``[dataset]`` and ``[loader]``."""

    dataset: dict[str, Any] = msgspec.field(default_factory=dict)
    loader: dict[str, Any] = msgspec.field(default_factory=dict)


class Part(NamedTuple):
    """One dataset of a split: its name and weight, if it is of a mixture, and its settings.

    Attributes
    ----------
    name : str or None
    weight : Any
    settings : DatasetSettings
        Without those of the split.
    changes : mapping
        Those of the split.
    """

    name: str | None
    weight: Any
    settings: DatasetSettings
    changes: Mapping[str, Any]


class Mixture(Settings, frozen=True):
    """What ``[dataset]`` says where it has ``sources``."""

    sources: Annotated[
        list[dict[str, Any]], msgspec.Meta(min_length=1, description="Several datasets, mixed by their weights.")
    ]
    temperature: Annotated[
        Annotated[float, msgspec.Meta(gt=0)] | None,
        msgspec.Meta(description="Instead of weights: above 1, small sources come more often than their size says."),
    ] = None
    stop: Annotated[
        Literal["first", "last"] | None,
        msgspec.Meta(description="An epoch ends when the first or the last source has come once."),
    ] = None
    shared: dict[str, Any] = msgspec.field(default_factory=dict)
    """The other keys of ``[dataset]``, which are settings of all sources."""

    @classmethod
    def parse(cls, table: Mapping[str, Any], shared: Mapping[str, Any]) -> Mixture:
        """Validate a table over the settings of all sources; raises ConfigError."""
        own = {name: value for name, value in table.items() if name in _OF_MIXTURE}
        rest = {name: value for name, value in table.items() if name not in own}
        try:
            merged = DatasetSettings.merged(shared, rest)
        except ConfigError as error:
            raise ConfigError(f"config: dataset: {error}") from None
        mixture = cls.validated({**own, "shared": merged}, "config: dataset")
        mixture.parts({})
        return mixture

    def parts(self, changes: Mapping[str, Any]) -> list[Part]:
        """Return the sources, each with the settings of a split; raises ConfigError with the name of a wrong source."""
        parts = []
        for place, entry in enumerate(self.sources):
            own = dict(entry)
            name, weight = str(own.pop("name", place)), own.pop("weight", None)
            try:
                settings = DatasetSettings.parse(own, over=self.shared)
            except ConfigError as error:
                raise ConfigError(f"config: source {redact(name)!r} of the mixture: {error}") from None
            parts.append(Part(name, weight, settings, changes))
        names = [part.name for part in parts]
        if len(set(names)) < len(names):
            raise ConfigError(
                f"config: sources of a mixture have different names, and these have {', '.join(map(str, names))}"
            )
        return parts


_OF_MIXTURE = ("sources", "temperature", "stop")


class Config(Settings, frozen=True):
    """A whole config: ``[dataset]``, ``[loader]``, and ``[splits.NAME.dataset]`` or ``[splits.NAME.loader]`` over them.

    Attributes
    ----------
    dataset : DatasetSettings
        Of a mixture, its first source.
    loader : LoaderSettings
    splits : dict
        Split name → settings that differ for this split.
    allow_overlap : bool
        Whether two splits may have records in common.
    mixture : object or None
        Where ``[dataset]`` has ``sources``.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"splits": _named_by_text}

    dataset: DatasetSettings
    loader: LoaderSettings = LoaderSettings()
    splits: dict[str, Split] = msgspec.field(default_factory=dict)
    allow_overlap: Annotated[
        bool, msgspec.Meta(description="Allow two splits to share records, which is an error otherwise.")
    ] = False
    mixture: Mixture | None = None

    @classmethod
    def parse(cls, mapping: Any) -> Config:
        """Expand variables and validate a mapping of the tables; raises ConfigError with the wrong key or value."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"config: expected a mapping of keys to values, got {type(mapping).__name__}")
        tables = expand(mapping)
        for name in ("mixture", "sources"):
            if name in tables:
                raise ConfigError(f"config: there is no table {name!r}; sources is a key of [dataset]")
        dataset = tables.get("dataset")
        if isinstance(dataset, Mapping) and "sources" in dataset:
            tables["mixture"] = Mixture.parse(dataset, {})
            tables["dataset"] = tables["mixture"].parts({})[0].settings
        elif isinstance(dataset, Mapping):
            tables["dataset"] = DatasetSettings.parse(dataset, "config: dataset")
        return cls.validated(tables, "config")

    def source_for(self, split: str | int | None, fields: Mapping[str, StoreField] | None = None) -> DatasetSettings:
        """Return the dataset settings for one split, of a mixture those of its first source; no I/O.

        ``[splits.NAME.dataset]`` overrides ``[dataset]``, and the split's name replaces ``{split}`` in the URL. If the
        URL has no ``{split}`` and the table has no ``url``, ``where``, ``fold`` or ``keys_file``, the split selects the records
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
        return self.settings_of(self.sources_for(split)[1][0], split, fields)

    def sources_for(self, split: str | int | None) -> tuple[Mixture | None, list[Part]]:
        """Return the mixture of a split, if it is one, and its datasets; `settings_of` applies the split to each.

        ``sources``, ``temperature`` and ``stop`` of ``[splits.NAME.dataset]`` override those of ``[dataset]``, and a ``url``
        there stands in place of ``sources``.
        """
        changes, mixture = self._split(split).dataset, self.mixture
        shared = structs.asdict(self.dataset) if mixture is None else mixture.shared
        if "sources" in changes:
            mixture = Mixture.parse(changes, {name: value for name, value in shared.items() if name != "url"})
            return mixture, [part._replace(changes={"url": part.settings.url}) for part in mixture.parts({})]
        mixing = {name: value for name, value in changes.items() if name in _OF_MIXTURE}
        changes = {name: value for name, value in changes.items() if name not in mixing}
        if mixture is None or "url" in changes:
            where = f"[splits.{split}.dataset]"
            if mixing:
                raise ConfigError(f"{where}: {next(iter(mixing))} is for a mixture, and there are no sources")
            settings = (
                self.dataset if mixture is None else DatasetSettings.parse({"url": changes["url"]}, where, over=shared)
            )
            return None, [Part(None, None, settings, changes)]
        mixture = Mixture.validated({**structs.asdict(mixture), **mixing}, f"[splits.{split}.dataset]")
        return mixture, mixture.parts(changes)

    def settings_of(
        self, source: Part, split: str | int | None, fields: Mapping[str, StoreField] | None = None
    ) -> DatasetSettings:
        """Return the settings of a source of `sources_for`; see `source_for`."""
        if split is None:
            return source.settings
        changes = with_split(source.settings, source.changes, str(split), fields)
        if changes is None and not self.splits:
            raise ConfigError(
                f"config: nothing says which records are split {split!r}: [dataset] url has no {PLACEHOLDER}, the "
                f"store has no field 'split', and there is no [splits.{split}.dataset] with a where or url"
            )
        return source.settings.replaced(source.changes if changes is None else changes, f"[splits.{split}.dataset]")

    def loader_for(self, split: str | int | None) -> LoaderSettings:
        """Return the loader's settings for one split."""
        changes = self._split(split).loader
        return LoaderSettings.validated({**structs.asdict(self.loader), **changes}, f"[splits.{split}.loader]")

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
    if not isinstance(path_or_mapping, Mapping):
        mapping = read_mapping(path_or_mapping)
        try:
            return load_config(mapping, overrides=overrides)
        except ConfigError as error:
            shown = redact(os.fspath(path_or_mapping))
            raise ConfigError(f"{shown}: {str(error).removeprefix('config: ')}") from None
    config = Config.parse(override(path_or_mapping, overrides) if overrides else path_or_mapping)
    for split in config.splits:  # report errors now, not when a split is first used
        for source in config.sources_for(split)[1]:
            config.settings_of(source, split)
        config.loader_for(split)
    return config


def _loaded(config: Config | str | os.PathLike[str] | Mapping[str, Any]) -> Config:
    return config if isinstance(config, Config) else load_config(config)


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema of a config, for editors and checks."""
    schema = msgspec.json.schema(Config)
    definitions = schema["$defs"]
    whole, mixture = definitions.pop("Config"), definitions.pop("Mixture")["properties"]
    del whole["properties"]["mixture"], mixture["shared"]  # the keys of a mixture are written in [dataset]
    mixture["sources"]["items"] = {
        "type": "object",
        "description": "The keys of a dataset, and a name and a weight: a number, or a table of epoch → number.",
    }
    dataset = definitions["DatasetSettings"]
    dataset["properties"] |= mixture
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
    mixture, sources = config.sources_for(split)
    if split is None:
        _check_unsplit(config, sources)
    datasets = [_build_one(config, split, source) for source in sources]
    if mixture is None:
        return datasets[0]
    from storeds.datasets.mixture import StoreMixture

    return StoreMixture(
        {str(source.name): dataset for source, dataset in zip(sources, datasets, strict=True)},
        {str(source.name): source.weight for source in sources if source.weight is not None} or None,
        temperature=mixture.temperature,
        stop=mixture.stop,
    )


def _build_one(config: Config, split: str | int | None, source: Part) -> StoreDataset:
    from storeds.datasets.assembly import open_source
    from storeds.datasets.map_dataset import StoreDataset
    from storeds.datasets.mixture import SOURCE, Tagged

    unlimited = config.settings_of(source, split)
    backend = open_source(unlimited.url, unlimited.layout, unlimited.options, unlimited.join)
    settings = config.settings_of(source, split, backend.meta.fields)
    if split is not None and not config.allow_overlap:
        _check_overlap(config, str(split), settings, backend)
    fields = settings.fields
    if source.name is not None and SOURCE in (fields.values() if isinstance(fields, dict) else fields or ()):
        backend = Tagged(backend, SOURCE, source.name)
    opened: Any = {"url": backend, "layout": None, "options": None}
    dataset = StoreDataset(structs.replace(settings, **opened))
    if not len(dataset):
        for name, wanted in dataset.where.items() if isinstance(dataset.where, Mapping) else ():
            _check_values(dataset, name, wanted)
    return dataset


def _check_unsplit(config: Config, sources: Iterable[Part]) -> None:
    names = ", ".join(config.splits) or "no names"
    if any(PLACEHOLDER in url for source in sources for url in urls_of(source.settings)):
        raise ConfigError(f"config: [dataset] url has {PLACEHOLDER}, so name a split; [splits] has {names}")
    if config.splits:
        _LOG.warning("no split is named, so the records of all splits (%s) are taken together", names)


def _check_overlap(config: Config, split: str, settings: DatasetSettings, backend: Backend) -> None:
    """Raise ConfigError if another split of the config selects some of the records of `split`."""
    for other, source in (
        (name, each) for name in config.splits if name != split for each in config.sources_for(name)[1]
    ):
        shared = shared_records(settings, backend, config.settings_of(source, other, backend.meta.fields))
        if shared is not None:
            raise ConfigError(
                f"splits {split!r} and {other!r} of the config share {shared}. Give each its own: put {PLACEHOLDER} into the url of [dataset], or set where or "
                f"url in [splits.{split}.dataset] and [splits.{other}.dataset], or pack with --shares, which adds a field "
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
    """Build ``StoreLoader(build_dataset(config, split), **table)``, where the table is ``[loader]`` with those of the split.

    The keys have the defaults of `StoreLoader`, which are those of PyTorch: no workers, for example, and samples in order.
    """
    config = _loaded(config)
    from storeds.loaders.loader import StoreLoader

    return StoreLoader(build_dataset(config, split), **config.loader_for(split).changed())
