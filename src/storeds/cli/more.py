"""The commands about storeds itself: formats, plugins, demo, --version."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from storeds import __version__, registry
from storeds.cli.app import MORE, OUT, AsJson, app, command, print_json, print_table, say
from storeds.errors import ConfigError, suggest
from storeds.layouts.presets import PRESETS

if TYPE_CHECKING:
    from storeds.formats import Format

__all__ = ["demo", "formats", "plugins", "root"]

_STORES = {
    "lmdb": "storeds.backends.lmdb.format:LmdbOptions",
    "hdf5": "storeds.backends.hdf5.reading:Hdf5Options",
    "mongodb": "storeds.backends.raw:BackendOptions",
}
"""Engine → the options of its native stores."""
_PARAMETER = re.compile(r"^(?P<names>\*{0,2}\w+(?:, \w+)*)(?: : .*)?$")
_MARKUP = re.compile(r"``|`~?(?:[\w.]*\.)?(\w+)`")


@dataclass(frozen=True)
class _Listed:
    """Something that storeds reads or writes.

    Attributes
    ----------
    use : str
        ``pack``, ``export`` or ``open``.
    name, about : str
    options : list of dict
        What ``--option`` takes: name, default and meaning.
    """

    use: str
    name: str
    about: str
    options: list[dict[str, Any]] = field(default_factory=list)


@command(MORE, "storeds formats", "storeds formats csv", "storeds formats hdf5")
def formats(
    kind: Annotated[
        str | None, typer.Argument(metavar="[KIND]", help="One of them: shows what --option takes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List what pack reads, what export writes, and what opens as a store; of one KIND, its options."""
    known = [*_formats(), *_stores()]
    if kind is not None:
        names = {each.name for each in known}
        known = [each for each in known if kind in (each.name, each.name.rpartition("/")[2])]
        if not known:
            raise ConfigError(f"there is no format {kind!r}; {suggest(kind, sorted(names), 'formats')}")
    if as_json:
        print_json({"formats": [vars(each) for each in known]})
        return
    print_table(
        dict.fromkeys(("for", "format", "what it is"), "left"), ((each.use, each.name, each.about) for each in known)
    )
    if kind is None:
        say("storeds formats KIND lists the options of one")
        return
    for each in known:
        OUT.print()
        say(f"--option of {each.use} {each.name}:" if each.options else f"{each.use} {each.name} takes no --option")
        rows = ((row["name"], json.dumps(row["default"], ensure_ascii=False), row["about"]) for row in each.options)
        if each.options:
            print_table(dict.fromkeys(("option", "default", "meaning"), "left"), rows)


def _formats() -> Iterator[_Listed]:
    """Yield what pack reads, and then what export writes."""
    known: dict[str, Format] = {}
    for name in registry.FORMATS.names():
        try:
            known[name] = registry.FORMATS.get(name)
        except Exception as error:  # `storeds plugins` tells why a plug-in does not load
            yield _Listed("pack", name, f"cannot be loaded: {type(error).__name__}")
    for name, each in known.items():
        if each.read is not None:
            yield _Listed("pack", name, each.about, list(_options(each.read)))
    for name, each in known.items():
        if each.write is not None:
            yield _Listed("export", name, each.about)


def _stores() -> Iterator[_Listed]:
    for engine, native in _STORES.items():
        yield _Listed("open", engine, "a store that storeds wrote", list(_options(registry.import_object(native))))
        yield from _layouts(engine)
    yield from _layouts("files")


def _layouts(engine: str) -> Iterator[_Listed]:
    """Yield the layouts of an engine, each with the options that it takes."""
    for name in registry.LAYOUTS.names():
        if not name.startswith(f"{engine}/"):
            continue
        if not registry.LAYOUTS.is_built_in(name):
            yield _Listed("open", name, "a layout of a plug-in")
            continue
        preset = PRESETS[name.partition("/")[2]]
        pattern = f": columns={json.dumps(dict(preset.columns), ensure_ascii=False)}" if preset.columns else ""
        options = list(_options(registry.import_object(preset.options)))
        yield _Listed("open", name, f"{preset.about}{pattern}", options)


def _documented_part(made: Any) -> Any:
    """Return the function of which `made` is a partial one, otherwise `made`."""
    return getattr(made, "func", made)


def _options(made: Any) -> Iterator[dict[str, Any]]:
    """Yield name, default and meaning of what a function or class takes behind its source or store."""
    documented, skipped = _documented(made), 0 if isinstance(made, type) else 1
    for name, parameter in list(inspect.signature(made).parameters.items())[skipped:]:
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            default = None if parameter.default is parameter.empty else parameter.default
            default = default if isinstance(default, (bool, int, float, str, type(None))) else str(default)
            yield {"name": name, "default": default, "about": documented.get(name, "")}


def _documented(made: Any) -> dict[str, str]:
    """Return parameter or attribute → its description, of a NumPy docstring and those of its base classes."""
    found: dict[str, str] = {}
    for each in reversed(made.__mro__ if isinstance(made, type) else [_documented_part(made)]):
        names: list[str] = []
        section = ""
        lines = (inspect.cleandoc(each.__doc__) if each.__doc__ else "").splitlines()
        for line, after in pairwise([*lines, ""]):
            if after and set(after) == {"-"}:
                section, names = line, []
            elif section in ("Parameters", "Attributes") and not line.startswith(" "):
                match = _PARAMETER.match(line)
                names = match["names"].split(", ") if match else []
                found |= dict.fromkeys(names, "")
            elif names:
                text = _MARKUP.sub(r"\1", line.strip())
                found |= {name: f"{found[name]} {text}".strip() for name in names}
    return found


@command(MORE, "storeds plugins")
def plugins(as_json: AsJson = False) -> None:
    """List all plug-ins: their origin, their requirements, and whether they load."""
    known = (registry.BACKENDS, registry.LAYOUTS, registry.READERS, registry.DECODERS, registry.FORMATS)
    rows = [{"sort": kind.what, **row} for kind in known for row in kind.describe()]
    if as_json:
        print_json({"plugins": rows})
        return
    columns = dict.fromkeys(("sort", "name", "origin", "needs", "state"), "left")
    print_table(columns, (tuple(row.values()) for row in rows))


@command(MORE, "storeds demo", finds=True)
def demo(
    mongodb: Annotated[
        str | None, typer.Option(help="The URL of a MongoDB server; by default the demo starts one.")
    ] = None,
) -> None:
    """Pack real images, train from a config, and read the same samples from all three engines."""
    from storeds.cli.demo import run_demo

    if not run_demo(mongodb):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """One dataset over HDF5, LMDB and MongoDB."""
    if version:
        OUT.print(f"storeds {__version__}")
        raise typer.Exit
