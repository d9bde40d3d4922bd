"""`DatasetSettings`: the settings of a dataset, which are the table ``[dataset]`` of a config and the arguments of `StoreDataset`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, ParamSpec, cast

import msgspec
from msgspec import structs

from storeds._utils.arguments import from_omegaconf
from storeds._utils.settings import Settings
from storeds.errors import ConfigError
from storeds.redaction import redact

__all__ = ["DatasetSettings", "over_settings", "path_text"]

P = ParamSpec("P")


def path_text(value: Any) -> Any:
    """Return a path, or each path in a list, as text; anything else as it is."""
    if type(value) in (list, tuple):
        return type(value)(map(path_text, value))
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


class DatasetSettings(Settings, frozen=True):
    """The settings of a `StoreDataset`; also the ``[dataset]`` table of a config.

    Every key is the `StoreDataset` argument of the same name.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"url": path_text, "keys_file": path_text}
    renamed: ClassVar[Mapping[str, str]] = {"keys": "keys_file"}

    url: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | Annotated[list[str], msgspec.Meta(min_length=1)],
        msgspec.Meta(description="The URL or path of a store, a glob pattern, or a list of these."),
    ]
    layout: Annotated[str | None, msgspec.Meta(description="A foreign layout; detected by default.")] = None
    options: Annotated[dict[str, Any] | None, msgspec.Meta(description="Options of the backend.")] = None
    reader: Annotated[str, msgspec.Meta(description="image, sample, array, video, or a registered reader.")] = "image"
    reader_options: Annotated[dict[str, Any] | None, msgspec.Meta(description="Further arguments of the reader.")] = (
        None
    )
    fields: Annotated[
        tuple[str, ...] | dict[str, str] | None,
        msgspec.Meta(description="The sample's elements, in order; or a table of element → stored field."),
    ] = None
    roles: Annotated[
        dict[str, str | dict[str, Any]] | None,
        msgspec.Meta(
            description="What elements mean: a table of element → role, or a table with role, format, relative, of, classes."
        ),
    ] = None
    decode: Annotated[
        str | dict[str, str] | None,
        msgspec.Meta(
            description="pil, tensor, bytes, or a registered decoder; pil for images, tensor for samples and videos by default. "
            "A table of decoders for several images."
        ),
    ] = None
    channels: Annotated[
        Literal["first", "last"] | dict[str, Literal["first", "last"]] | None,
        msgspec.Meta(description="The position of the channels in array images; a table for several arrays."),
    ] = None
    mode: Annotated[
        str | dict[str, str],
        msgspec.Meta(description="The Pillow mode of the image, or unchanged; a table of modes for several images."),
    ] = "RGB"
    transforms: Annotated[
        Any,
        msgspec.Meta(
            description="A list of transforms for whole samples: images, masks, boxes and keypoints move together."
        ),
    ] = None
    transform: Annotated[
        Any,
        msgspec.Meta(
            description="A list of transforms: names, or tables with name and arguments. Or a table of element → list."
        ),
    ] = None
    target_transform: Annotated[Any, msgspec.Meta(description="The same, for the label.")] = None
    as_dict: Annotated[bool, msgspec.Meta(description="Samples as dicts instead of tuples.")] = False
    repair: Annotated[bool, msgspec.Meta(description="Repair a damaged JPEG before decoding it.")] = True
    min_recovered: Annotated[
        float, msgspec.Meta(ge=0, le=1, description="A repaired image with less than this fraction recovered is bad.")
    ] = 0.5
    on_error: Annotated[
        Literal["raise", "skip", "replace"], msgspec.Meta(description="What happens to a bad sample.")
    ] = "raise"
    max_bad: Annotated[int, msgspec.Meta(ge=0, description="More bad samples in an epoch stop the run.")] | None = None
    max_bad_fraction: (
        Annotated[float, msgspec.Meta(ge=0, le=1, description="A larger fraction of bad samples stops the run.")] | None
    ) = None
    where: Annotated[
        dict[str, Any] | str | None,
        msgspec.Meta(description="Field → the value, or list of values, to select; or a condition as text."),
    ] = None
    fold: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(
            description="A table with of (how many folds), take or without (their numbers), group_by and stratify_by."
        ),
    ] = None
    keys_file: Annotated[
        str | None, msgspec.Meta(description="A text file; only records whose field key is one of its lines.")
    ] = None
    join: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(description="Columns of a CSV or Parquet file: a table with path, on, fields and missing."),
    ] = None
    seed: Annotated[
        int | None, msgspec.Meta(description="Makes a sample's randomness depend only on (seed, epoch, index).")
    ] = None

    def __post_init__(self) -> None:
        for name, parse in self.parsers.items():
            structs.force_setattr(self, name, parse(getattr(self, name)))

    @classmethod
    def parse(
        cls, table: Any, where: str = "[dataset]", *, over: Mapping[str, Any] = MappingProxyType({})
    ) -> DatasetSettings:
        """Validate a table over another one, see `merged`; raises ConfigError, which begins with `where`."""
        if not isinstance(table, Mapping):
            raise ConfigError(f"{where}: expected a table of settings, got {type(table).__name__}")
        try:
            merged = cls.merged(over, table)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return cls.validated(merged, where)

    def replaced(self, changes: Mapping[str, Any], where: str = "[dataset]") -> DatasetSettings:
        """Return these settings with those of a table over them."""
        return self.parse(changes, where, over=structs.asdict(self))

    @classmethod
    def merged(cls, table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return a table with the settings of another in it. Values are not checked.

        An option of the store that is a key of `changes` replaces the one of its name in the ``options`` of `table`.

        Raises
        ------
        ConfigError
            An option is given twice in `changes`, or is a misspelt setting of the dataset.
        """
        own = {name: value for name, value in changes.items() if name in cls.__struct_fields__}
        of_store = {name: value for name, value in changes.items() if name not in own}
        merged = {**table, **own}
        if not of_store:
            return merged
        options = merged.get("options") or {}
        if not isinstance(options, Mapping):
            raise ConfigError(f"options: expected a table, got {type(options).__name__}")
        for name in of_store:
            near = get_close_matches(str(name), cls.__struct_fields__, 1, 0.75)
            if near:
                raise ConfigError(f"unknown key {redact(str(name))!r}; did you mean {near[0]!r}?")
            if "options" in own and name in options:
                raise ConfigError(f"the option {name!r} is given twice: in options, and as a keyword or key of its own")
        return {**merged, "options": {**options, **of_store}}


def over_settings(init: Callable[P, None]) -> Callable[P, None]:
    """Let the `url` of a constructor be a `DatasetSettings`, whose settings each argument that is passed replaces."""

    @functools.wraps(init)
    def wrapper(self: Any, url: Any, **arguments: Any) -> None:
        url, arguments = from_omegaconf(url), from_omegaconf(arguments)
        if isinstance(url, DatasetSettings):
            arguments = url.merged(structs.asdict(url), arguments)
            url = arguments.pop("url")
        cast("Callable[..., None]", init)(self, url, **arguments)

    return cast("Callable[P, None]", wrapper)
