"""`Source`: the validated settings of a dataset, from a URL, a mapping, a YAML or a TOML file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from storeds._utils.arguments import DEEPEST, is_omegaconf, plain
from storeds._utils.locations import redact, redact_message
from storeds.errors import ConfigError, is_like_url, suggest

__all__ = ["Settings", "Source", "expand", "shown_key"]

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_MOST_VALUES = 1_000_000


class Settings(BaseModel):
    """Base of all config tables: frozen, without unknown keys, and with secrets hidden in `repr`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True
    )
    where_from: ClassVar[str] = "config"

    @classmethod
    def parse(cls, mapping: Any) -> Self:
        """Expand variables and validate a mapping; raises ConfigError with each wrong key and its nearest match."""
        if not isinstance(mapping, Mapping):
            raise ConfigError(f"{cls.where_from}: expected a mapping of keys to values, got {type(mapping).__name__}")
        return cls.validated(expand(mapping))

    @classmethod
    def validated(cls, mapping: Mapping[str, Any]) -> Self:
        """Validate a mapping whose variables are already expanded; raises ConfigError."""
        try:
            return cls.model_validate(mapping)
        except ValidationError as error:
            wrong = f"{cls.where_from}: {explain(error, cls)}"
        raise ConfigError(wrong)  # outside the handler: pydantic's error as context would show the values

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        return [(name, _hide(value)) for name, value in super().__repr_args__()]


def _list_or_table(value: Any) -> Any:
    # One message, where the union of both would give two.
    if value is None or isinstance(value, (list, tuple, Mapping)):
        return value
    raise PydanticCustomError("fields", "input should be a list, or a table of element = field")


class Source(Settings):
    """The validated settings of a `StoreDataset`; also the ``[dataset]`` table of a config.

    ``url`` (or ``source``) locates the store; every other key is the `StoreDataset` argument of the same name, or an option of
    the store, such as ``columns``.
    """

    where_from: ClassVar[str] = "[dataset]"

    url: str | list[str] = Field(
        validation_alias=AliasChoices("url", "source"),
        min_length=1,
        description="The URL or path of a store, a glob pattern, or a list of these.",
    )
    layout: str | None = Field(None, description="A foreign layout; detected by default.")
    options: dict[str, Any] = Field(default_factory=dict, description="Options of the backend.")
    reader: str = Field("image", description="image, sample, array, video, or a registered reader.")
    reader_options: dict[str, Any] = Field(default_factory=dict, description="Further arguments of the reader.")
    fields: Annotated[tuple[str, ...] | dict[str, str] | None, BeforeValidator(_list_or_table)] = Field(
        None, description="The sample's elements, in order; or a table of element → stored field."
    )
    roles: dict[str, str | dict[str, Any]] | None = Field(
        None,
        description="What elements mean: a table of element → role, or a table with role, format, relative, of, classes.",
    )
    decode: str | dict[str, str] | None = Field(
        None,
        description="pil, tensor, bytes, or a registered decoder; pil for images, tensor for samples and videos by default. "
        "A table of decoders for several images.",
    )
    channels: Literal["first", "last"] | dict[str, Literal["first", "last"]] | None = Field(
        None, description="The position of the channels in array images; a table for several arrays."
    )
    mode: str | dict[str, str] = Field(
        "RGB", description="The Pillow mode of the image, or unchanged; a table of modes for several images."
    )
    transforms: Any = Field(
        None,
        description="A list of transforms for whole samples: images, masks, boxes and keypoints move together.",
    )
    transform: Any = Field(
        None,
        description="A list of transforms: names, or tables with name and arguments. Or a table of element → list.",
    )
    target_transform: Any = Field(None, description="The same, for the label.")
    as_dict: bool = Field(False, description="Samples as dicts instead of tuples.")
    repair: bool = Field(True, description="Repair a damaged JPEG before decoding it.")
    min_recovered: float = Field(
        0.5, ge=0, le=1, description="A repaired image with less than this fraction recovered is bad."
    )
    on_error: Literal["raise", "skip", "replace"] = Field("raise", description="What happens to a bad sample.")
    max_bad: int | None = Field(None, ge=0, description="More bad samples in an epoch stop the run.")
    max_bad_fraction: float | None = Field(
        None, ge=0, le=1, description="A larger fraction of bad samples stops the run."
    )
    where: dict[str, Any] | None = Field(None, description="Field → the value, or list of values, to select.")
    seed: int | None = Field(None, description="Makes a sample's randomness depend only on (seed, epoch, index).")

    @model_validator(mode="before")
    @classmethod
    def _with_options(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        own = {name: value for name, value in given.items() if name in cls.model_fields or name == "source"}
        more = {name: value for name, value in given.items() if name not in own}
        try:
            options = cls.store_options(own.get("options"), more)
        except ConfigError as error:
            raise PydanticCustomError("option", "{message}", {"message": str(error)}) from None
        return {**own, "options": options} if more else own

    @classmethod
    def store_options(cls, options: Any, more: Mapping[str, Any]) -> Any:
        """Return the options of the store, with those given as keywords or keys of their own.

        Raises
        ------
        ConfigError
            One is given twice, or is a misspelt setting of the dataset.
        """
        for name in more:
            near = get_close_matches(str(name), cls.model_fields, 1, 0.75)
            if near:
                raise ConfigError(f"unknown key {shown_key(name)!r}; did you mean {near[0]!r}?")
            if options and name in options:
                raise ConfigError(f"the option {name!r} is given twice: in options, and as a keyword or key of its own")
        return {**(options or {}), **more} if more else options

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments for `StoreDataset`."""
        return {name: getattr(self, name) for name in type(self).model_fields if name != "url"}

    @classmethod
    def default(cls, name: str) -> Any:
        """Return the default of a setting."""
        return cls.model_fields[name].get_default(call_default_factory=True)

    @classmethod
    def unchecked(cls, url: Any, **settings: Any) -> Source:
        """Return settings without validation, since they may hold objects; `StoreDataset` checks them.

        `url` may be a `Source`, which provides every setting left at its default here.
        """
        given = {name: plain(value) for name, value in settings.items()}
        url = plain(url)
        if isinstance(url, Source):
            changed = {name: value for name, value in given.items() if not cls._is_default(name, value)}
            return cls.model_construct(**{"url": url.url, **url.arguments(), **changed})
        return cls.model_construct(url=url, **given)

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
    return ".".join(map(shown_key, path)) or "it"


def shown_key(key: Any) -> str:
    """Return a key of a config for messages: a URL at the place of a key may hold a password."""
    return "***" if is_like_url(str(key)) else str(key)


def _variable(match: re.Match[str]) -> str:
    try:
        return os.environ[match[1]]
    except KeyError:
        pass
    raise ConfigError(f"config: the environment variable {match[1]} is not set, and {match[0]} asks for it")


def explain(error: ValidationError, cls: type[BaseModel]) -> str:
    """Return the problem of each key, without values, which may be secret."""
    lines = []
    for item in error.errors():
        place = _dotted(item["loc"])
        if item["type"] == "extra_forbidden":
            lines.append(
                f"unknown key {place!r}; {suggest(item['loc'][-1], _known_keys(cls, item['loc'][:-1]), 'keys')}"
            )
        else:
            # TOML and YAML have no tuples, and Python users may pass lists too.
            reason = item["msg"].replace("valid tuple", "list")
            lines.append(f"{place}: {reason[0].lower()}{reason[1:]}")
    return redact_message("; ".join(lines))


def _known_keys(cls: type[BaseModel], table: tuple[int | str, ...]) -> list[str]:
    """Return the keys of a table inside a config, for example of ``("splits", "train")``."""
    for name in table:
        declared = cls.model_fields[str(name)].annotation if str(name) in cls.model_fields else None
        inner = get_args(declared)[-1:] or (declared,)  # a mapping's values
        if isinstance(inner[0], type) and issubclass(inner[0], BaseModel):
            cls = inner[0]
    return list(cls.model_fields)


def _hide(value: Any) -> Any:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {
            shown_key(key) if isinstance(key, str) else key: "***" if _is_secret(key) else _hide(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(map(_hide, value))
    return value


def _is_secret(key: Any) -> bool:
    return redact(f"?{key}=x") != f"?{key}=x"
