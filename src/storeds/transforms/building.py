"""Builds transforms from configs: built-in ones by name, and others by their dotted path."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from storeds._utils.arguments import plain
from storeds.errors import ConfigError, MissingDependencyError, suggest
from storeds.protocols import Transform
from storeds.transforms.arguments import is_list
from storeds.transforms.binding import TAKES_STRIDED, Compose, Views
from storeds.transforms.boxes import FilterBoxes

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
    spec = plain(spec)
    if callable(spec):
        transform: Transform = spec
        return transform
    if isinstance(spec, Mapping):
        return _from_mapping(spec, where)
    if isinstance(spec, str):
        return _make(spec, {}, where)
    if is_list(spec):
        return _compose(spec, where)
    raise ConfigError(
        f"{where}: expected a callable, a name, a mapping with a name and arguments, or a list of those, not {spec!r}"
    )


def _compose(items: Sequence[Any], where: str) -> Transform:
    return Compose([_build(item, f"{where}[{index}]") for index, item in enumerate(items)])


def _from_mapping(spec: Mapping[Any, Any], where: str) -> Transform:
    name = spec.get("name")
    if not isinstance(name, str):
        raise ConfigError(f"{where}: a mapping needs the transform's 'name', a string; it is {dict(spec)!r}")
    arguments = {key: value for key, value in spec.items() if key != "name"}
    invalid = [key for key in arguments if not isinstance(key, str)]
    if invalid:
        raise ConfigError(f"{where}: the arguments of {name!r} must be named by strings, not {invalid[0]!r}")
    # The transforms inside a composition may be descriptions too.
    inner: Any = arguments.get("transforms")
    if name == "Compose" and set(arguments) == {"transforms"} and is_list(inner):
        return _compose(inner, where)
    if is_list(inner) and (name == "Views" or (name not in _BUILT_IN and inner and all(map(_is_spec, inner)))):
        arguments["transforms"] = [_build(item, f"{where}.transforms[{index}]") for index, item in enumerate(inner)]
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
        arguments = _for_torchvision(arguments, where)
    if isinstance(target, type):
        return _instantiate(target, arguments, name, where)
    transform: Transform = functools.partial(target, **arguments) if arguments else target
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


def _for_torchvision(arguments: dict[str, Any], where: str) -> dict[str, Any]:
    """Return arguments with the dtypes and interpolations that torchvision does not take by name."""
    made = dict(arguments)
    if isinstance(made.get("dtype"), str):
        made["dtype"] = _torch_dtype(made["dtype"], where)
    if isinstance(made.get("dtype"), Mapping):
        made["dtype"] = {key: _torch_dtype(each, where) for key, each in made["dtype"].items()}
    if isinstance(made.get("interpolation"), str):
        from torchvision.transforms import InterpolationMode

        with suppress(ValueError):  # torchvision says what it takes
            made["interpolation"] = InterpolationMode(made["interpolation"])
    return made


def _torch_dtype(name: Any, where: str) -> Any:
    import torch

    found = getattr(torch, name.removeprefix("torch."), None) if isinstance(name, str) else name
    if isinstance(name, str) and not isinstance(found, torch.dtype):
        raise ConfigError(f"{where}: dtype {name!r} is not a dtype of torch, such as float32")
    return found


def _instantiate(target: type, arguments: dict[str, Any], name: str, where: str) -> Transform:
    try:
        transform: Transform = target(**arguments)
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


def _check_arguments(target: Any, arguments: Mapping[str, Any], name: str, where: str) -> None:
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return  # written in C, without a signature: calling it will tell
    # A function gets the value to transform, perhaps a generator, and these arguments.
    at_call: tuple[str, ...] = ()
    if not isinstance(target, type):
        parameters, at_call = parameters[1:], ("generator",)
    named = [each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    accepted = [each.name for each in named]
    if not any(each.kind == each.VAR_KEYWORD for each in parameters):
        for key in arguments:
            if key not in accepted:
                raise ConfigError(f"{where}: {name!r} has no argument {key!r}; {suggest(key, accepted, 'arguments')}")
    for each in named:
        if each.default is each.empty and each.name not in arguments and each.name not in at_call:
            listing = suggest("", accepted, "arguments")
            raise ConfigError(f"{where}: {name!r} needs the argument {each.name!r}; {listing}")


def _import(path: str, where: str) -> Any:
    """Return the object at ``package.module.Name`` or ``package.module:Name``."""
    module_name, colon, inner = path.partition(":")
    parts = [*module_name.split("."), *(inner.split(".") if colon else [])]
    if not all(part.isidentifier() for part in parts) or len(parts) < 2:
        raise ConfigError(f"{where}: {path!r} must have the form package.module.Name or package.module:Name")
    # Without a colon, try the longest module path first: Name may be Class.method.
    lengths = [module_name.count(".") + 1] if colon else range(len(parts) - 1, 0, -1)
    tried = []
    for length in lengths:
        tried.append(".".join(parts[:length]))
        module = _import_module(tried[-1], path, where)
        if module is not None:
            return _attribute(module, parts[length:], path, where)
    if _import_module(parts[0], path, where) is not None:
        raise ConfigError(f"{where}: {path!r} cannot be imported: there is no module {tried[0]!r}")
    raise MissingDependencyError(
        f"{where}: {path!r} cannot be imported: no package {parts[0]!r} is installed; tried {', '.join(tried)}"
    )


def _import_module(name: str, path: str, where: str) -> ModuleType | None:
    """Import a module; return None if there is none of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise MissingDependencyError(
            f"{where}: {path!r} cannot be imported: {name!r} needs a package that is missing: {error}"
        ) from error
    except ImportError as error:
        raise MissingDependencyError(f"{where}: {path!r} cannot be imported: importing {name!r}: {error}") from error
    except Exception as error:  # a third-party module may raise anything
        raise ConfigError(
            f"{where}: {path!r} cannot be imported: importing {name!r} raised {type(error).__name__}: {error}"
        ) from error


def _attribute(module: ModuleType, names: Sequence[str], path: str, where: str) -> Any:
    found: Any = module
    for index, name in enumerate(names):
        if not hasattr(found, name):
            holder = ".".join([module.__name__, *names[:index]])
            public = [each for each in dir(found) if not each.startswith("_")]
            raise ConfigError(
                f"{where}: {path!r} cannot be imported: {holder!r} has no {name!r}; "
                f"{suggest(name, public, 'names there')}"
            )
        found = getattr(found, name)
    return found
