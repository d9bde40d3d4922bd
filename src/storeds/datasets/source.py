"""`Source`: the validated settings of a dataset, from a URL, a mapping, a YAML or a TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import structs

from storeds._utils.arguments import DEEPEST, is_omegaconf, plain
from storeds._utils.settings import Settings
from storeds.errors import ConfigError
from storeds.redaction import redact

__all__ = ["Source", "expand", "path_text"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOST_VALUES = 1_000_000


def path_text(value: Any) -> Any:
    """Return a path, or each path in a list, as text; anything else as it is."""
    if type(value) in (list, tuple):
        return type(value)(map(path_text, value))
    return os.fsdecode(value) if isinstance(value, os.PathLike) else value


class Source(Settings, frozen=True):
    """The validated settings of a `StoreDataset`; also the ``[dataset]`` table of a config.

    Every key is the `StoreDataset` argument of the same name, or an option of the store, such as ``columns``.
    """

    parsers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {"url": path_text, "keys": path_text}

    url: Annotated[
        Annotated[str, msgspec.Meta(min_length=1)] | Annotated[list[str], msgspec.Meta(min_length=1)],
        msgspec.Meta(description="The URL or path of a store, a glob pattern, or a list of these."),
    ]
    layout: Annotated[str | None, msgspec.Meta(description="A foreign layout; detected by default.")] = None
    options: Annotated[dict[str, Any], msgspec.Meta(description="Options of the backend.")] = msgspec.field(
        default_factory=dict
    )
    reader: Annotated[str, msgspec.Meta(description="image, sample, array, video, or a registered reader.")] = "image"
    reader_options: Annotated[dict[str, Any], msgspec.Meta(description="Further arguments of the reader.")] = (
        msgspec.field(default_factory=dict)
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
        dict[str, Any] | None, msgspec.Meta(description="Field → the value, or list of values, to select.")
    ] = None
    fold: Annotated[
        dict[str, Any] | None,
        msgspec.Meta(
            description="A table with of (how many folds), take or without (their numbers), group_by and stratify_by."
        ),
    ] = None
    keys: Annotated[
        str | None, msgspec.Meta(description="A text file; only records whose field key is one of its lines.")
    ] = None
    seed: Annotated[
        int | None, msgspec.Meta(description="Makes a sample's randomness depend only on (seed, epoch, index).")
    ] = None

    def __post_init__(self) -> None:
        for name, parse in self.parsers.items():
            structs.force_setattr(self, name, parse(getattr(self, name)))

    @classmethod
    def parse(cls, mapping: Any) -> Source:
        """Expand variables and validate a mapping, such as the table ``[dataset]`` of a config; raises ConfigError."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"[dataset]: expected a mapping of keys to values, got {type(mapping).__name__}")
        return cls.of_table(expand(mapping))

    @classmethod
    def of_table(cls, table: Mapping[str, Any], where: str = "[dataset]") -> Source:
        """Validate a table whose variables are already expanded; raises ConfigError, which begins with `where`."""
        own = {name: value for name, value in table.items() if name in cls.__struct_fields__}
        more = {name: value for name, value in table.items() if name not in own}
        try:
            options = cls.store_options(own.get("options"), more)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        return cls.validated({**own, "options": options} if more else own, where)

    @classmethod
    def store_options(cls, options: Any, more: Mapping[str, Any]) -> Any:
        """Return the options of the store, with those given as keywords or keys of their own.

        Raises
        ------
        ConfigError
            One is given twice, or is a misspelt setting of the dataset.
        """
        for name in more:
            near = get_close_matches(str(name), cls.__struct_fields__, 1, 0.75)
            if near:
                raise ConfigError(f"unknown key {redact(str(name))!r}; did you mean {near[0]!r}?")
            if options and name in options:
                raise ConfigError(f"the option {name!r} is given twice: in options, and as a keyword or key of its own")
        return {**(options or {}), **more} if more else options

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `StoreDataset`."""
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "url"}

    @classmethod
    def default(cls, name: str) -> Any:
        """Return the default of a setting."""
        return getattr(cls(url=""), name)

    @classmethod
    def unchecked(cls, url: Any, **settings: Any) -> Source:
        """Return settings without validation, since they may hold objects; `StoreDataset` checks them.

        `url` may be a `Source`, which provides every setting left at its default here.
        """
        given = {name: plain(value) for name, value in settings.items()}
        url = plain(url)
        if isinstance(url, Source):
            changed = {name: value for name, value in given.items() if not cls._is_default(name, value)}
            return cls(**{"url": url.url, **url.arguments(), **changed})
        return cls(url=url, **given)

    @classmethod
    def _is_default(cls, name: str, value: Any) -> bool:
        default = cls.default(name)
        # Compare only str and float: comparing arrays gives no single truth value.
        return value is None or value is default or (type(value) in (str, float) and bool(value == default))


def expand(value: Any) -> Any:
    """Return `value` with each ``${NAME}`` in its texts replaced by that environment variable.

    OmegaConf resolves its own containers instead.

    Raises
    ------
    ConfigError
        A variable is not set, an integer has more than 64 bits, or `value` contains itself, is nested more than 64 deep
        or has more than a million parts, counting repeated ones.
    """
    return _Expansion().of(value, ())


class _Expansion:
    """One walk over a config, limited in size so that shared or cyclic parts cannot make it endless."""

    def __init__(self) -> None:
        self._left = _MOST_VALUES

    def of(self, value: Any, path: tuple[Any, ...], *, variables: bool = True) -> Any:
        self._left -= 1
        if len(path) > DEEPEST or self._left < 0:
            what = f"nested more than {DEEPEST} deep" if self._left >= 0 else f"more than {_MOST_VALUES:,} values"
            raise ConfigError(f"config: {_dotted(path[:3])}: {what}, or part of itself")
        if isinstance(value, str):
            return _VARIABLE.sub(_variable, value) if variables else value
        if isinstance(value, PurePath):
            return type(value)(self.of(str(value), path, variables=variables))
        if isinstance(value, int) and not isinstance(value, bool) and not -(1 << 63) <= value < 1 << 64:
            raise ConfigError(f"config: {_dotted(path)}: an integer of more than 64 bits")
        if is_omegaconf(value):
            return self.of(plain(value), path, variables=False)
        if isinstance(value, Mapping):
            return {key: self.of(item, (*path, key), variables=variables) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.of(item, (*path, at), variables=variables) for at, item in enumerate(value))
        return value


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(redact(str(key)) for key in path) or "it"


def _variable(match: re.Match[str]) -> str:
    try:
        return os.environ[match[1]]
    except KeyError:
        pass
    raise ConfigError(f"config: the environment variable {match[1]} is not set, and {match[0]} asks for it")
