"""Builds transforms from configs: built-in ones by name, and others by their dotted path."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from storeds._utils.arguments import from_omegaconf
from storeds.errors import ConfigError, MissingDependencyError, suggest
from storeds.protocols import Transform
from storeds.transforms.arguments import is_list
from storeds.transforms.binding import TAKES_STRIDED, Compose, Views
from storeds.transforms.images import FilterBoxes

__all__ = ["build_transform"]

_BUILT_IN: dict[str, type] = {each.__name__: each for each in (*TAKES_STRIDED, Compose, FilterBoxes, Views)}


def build_transform(spec: Any, where: str = "transform") -> Transform | None:
    """Build the transform that a config describes.

    Parameters
    ----------
    spec : None, callable, str, mapping or sequence
        None and callables are returned unchanged. A string is the name of a built-in transform or of one of
        ``torchvision.transforms.v2`` (``"ColorJitter"``), or the dotted path of another one
        (``"albumentations.CLAHE"`` or ``"package.module:Name"``). A mapping holds the
        ``name`` and the arguments: ``{"name": "RandomResizedCrop", "size": 224}``. A sequence becomes a `Compose`.
        A class at a dotted path is instantiated with the arguments. A function is called with them and the value.
        A dotted path runs the code that it names: load only configs that you would run as programs.
    where : str
        Name of the setting in error messages.

    Returns
    -------
    callable or None
        Bind it with `BoundTransform` to give it a sample's randomness.

    Raises
    ------
    ConfigError
        A name or argument is unknown, missing or invalid. The message says which one, where, and what exists.
    MissingDependencyError
        A dotted path leads to a package that is not installed.
    """
    return None if spec is None else _build(spec, where)


def _build(spec: Any, where: str) -> Transform:
    spec = from_omegaconf(spec)
    if callable(spec):
        transform: Transform = spec
        return transform
    if isinstance(spec, Mapping):
        return _from_mapping(spec, where)
    if isinstance(spec, str):
        return _make(spec, {}, where)
    if is_list(spec):
        return Compose(_build_all(spec, where))
    raise ConfigError(
        f"{where}: expected a callable, a name, a mapping with a name and arguments, or a list of those, not {spec!r}"
    )


def _build_all(specs: Sequence[Any], where: str) -> list[Transform]:
    return [_build(spec, f"{where}[{index}]") for index, spec in enumerate(specs)]


def _from_mapping(spec: Mapping[Any, Any], where: str) -> Transform:
    name = spec.get("name")
    if not isinstance(name, str) or not all(isinstance(key, str) for key in spec):
        raise ConfigError(
            f"{where}: a mapping needs the transform's 'name', a string, and arguments named by strings; it is {dict(spec)!r}"
        )
    arguments = {key: value for key, value in spec.items() if key != "name"}
    # The transforms inside a composition may be descriptions too.
    inner: Any = arguments.get("transforms")
    if is_list(inner):
        if name == "Compose":
            arguments["transforms"] = _build_all(inner, where)
        elif name == "Views" or all(map(_is_spec, inner)):
            arguments["transforms"] = _build_all(inner, f"{where}.transforms")
    return _make(name, arguments, where)


def _is_spec(item: object) -> bool:
    return isinstance(item, str) or (isinstance(item, Mapping) and "name" in item)


def _make(name: str, arguments: dict[str, Any], where: str) -> Transform:
    if name in _BUILT_IN:
        target: Any = _BUILT_IN[name]
    elif "." in name or ":" in name:
        target = _import(name, where)
    else:
        target = _of_torchvision(name, where)
    if not callable(target):
        raise ConfigError(f"{where}: {name!r} is not callable: it is {target!r}")
    _check_arguments(target, arguments, name, where)
    if getattr(target, "__module__", "").startswith("torchvision."):
        arguments = {key: _for_torchvision(key, value, where) for key, value in arguments.items()}
    if not isinstance(target, type):
        transform: Transform = functools.partial(target, **arguments) if arguments else target
        return transform
    try:
        transform = target(**arguments)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    except ImportError as error:
        raise MissingDependencyError(f"{where}: {name!r} needs a package that is missing: {error}") from error
    except Exception as error:  # a third-party class may raise anything
        raise ConfigError(
            f"{where}: {name!r} refuses the arguments {arguments!r}: {type(error).__name__}: {error}"
        ) from error
    if not callable(transform):
        raise ConfigError(f"{where}: an instance of {name!r} is not callable")
    return transform


def _of_torchvision(name: str, where: str) -> Any:
    """Return the transform of ``torchvision.transforms.v2`` with this name."""
    try:
        from torchvision.transforms import v2
    except ImportError as error:
        raise MissingDependencyError(
            f"{where}: {name!r} is not built in; {suggest(name, sorted(_BUILT_IN), 'built-in transforms')}. Other names are "
            f"those of torchvision, which cannot be imported ({error}): pip install 'storeds[vision]'"
        ) from error
    names = {each for each, value in vars(v2).items() if isinstance(value, type) and issubclass(value, v2.Transform)}
    if name not in names:
        raise ConfigError(
            f"{where}: unknown transform {name!r}; {suggest(name, sorted(names | set(_BUILT_IN)), 'transforms')}; name those of "
            "other packages by their dotted path, package.module.Name"
        )
    return getattr(v2, name)


def _for_torchvision(key: str, value: Any, where: str) -> Any:
    """Return an argument that torchvision does not take by its name as what it takes: a dtype, an interpolation."""
    if key == "dtype" and isinstance(value, str):
        import torch

        found = getattr(torch, value.removeprefix("torch."), None)
        if not isinstance(found, torch.dtype):
            raise ConfigError(f"{where}: dtype {value!r} is not a dtype of torch, such as float32")
        return found
    if key == "interpolation" and isinstance(value, str):
        from torchvision.transforms import InterpolationMode

        with suppress(ValueError):  # torchvision says what it takes
            return InterpolationMode(value)
    return value


def _check_arguments(target: Any, arguments: Mapping[str, Any], name: str, where: str) -> None:
    """Raise ConfigError for an unknown or a missing argument: a function would raise only when it is called."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return  # written in C, without a signature: calling it will tell
    # A function gets the value to transform, perhaps a generator, and these arguments.
    value = () if isinstance(target, type) else (None,)
    named = list(signature.parameters)[len(value) :]
    given = {"generator": None} if value and "generator" in named else {}
    try:
        for bind in (signature.bind_partial, signature.bind):  # first what is unknown, then what is missing
            bind(*value, **{**given, **arguments})
    except TypeError as error:
        unknown = next((key for key in arguments if key not in named), "")
        raise ConfigError(f"{where}: {name!r}: {error}; {suggest(unknown, named, 'arguments')}") from None


def _import(path: str, where: str) -> Any:
    """Return the object at ``package.module.Name`` or ``package.module:Name``."""
    module, _, inner = path.partition(":") if ":" in path else path.rpartition(".")
    names = inner.split(".")
    if not all(part.isidentifier() for part in (*module.split("."), *names)):
        raise ConfigError(f"{where}: {path!r} must have the form package.module.Name or package.module:Name")
    try:
        return functools.reduce(getattr, names, importlib.import_module(module))
    except AttributeError as error:
        listing = suggest(str(error.name), [each for each in dir(error.obj) if not each.startswith("_")], "names there")
        raise ConfigError(f"{where}: {path!r} cannot be imported: {error}; {listing}") from error
    except ImportError as error:
        raise MissingDependencyError(f"{where}: {path!r} cannot be imported: {error}") from error
    except Exception as error:  # a third-party module may raise anything
        raise ConfigError(f"{where}: {path!r} cannot be imported: {type(error).__name__}: {error}") from error
