"""What all commands share: the application, errors as exit codes, progress, output for people and for programs."""

from __future__ import annotations

import functools
import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from storeds import registry
from storeds._utils.locations import redact_message
from storeds._utils.text import printable
from storeds.cli.complete import complete_layout, complete_url
from storeds.errors import ConfigError, MissingDependencyError, StoredsError, UnavailableError
from storeds.ops.progress import Progress, ProgressHook

__all__ = [
    "ERR",
    "OUT",
    "AsJson",
    "CommitEvery",
    "Index",
    "Overwrite",
    "Resume",
    "StoreArgument",
    "Target",
    "app",
    "command",
    "config_app",
    "main",
    "print_json",
    "print_table",
    "progress",
    "say",
    "say_error",
]

_SETTINGS = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    no_args_is_help=True,
    context_settings=_SETTINGS,
    pretty_exceptions_show_locals=False,  # passwords of URLs are among them
    help="One dataset over HDF5, LMDB and MongoDB.",
)
config_app = typer.Typer(no_args_is_help=True, context_settings=_SETTINGS, help="About config files.")
app.add_typer(config_app, name="config")


def _console(*, stderr: bool = False, width: int | None = None) -> Console:
    # URLs, keys and messages come from anywhere, and none of them means markup by "[red]" or an emoji by ":smile:".
    return Console(stderr=stderr, width=width, soft_wrap=True, markup=False, emoji=False, highlight=False)


OUT, ERR = _console(), _console(stderr=True)
_WIDE = 4000  # columns of what is no terminal: there a program reads, and a folded path is none
_GO_ON = "; what is durable stays, --resume goes on from there"
_LOG = logging.getLogger("storeds")
F = TypeVar("F", bound=Callable[..., Any])

StoreArgument = Annotated[str, typer.Argument(help="The store: a URL or a file.", autocompletion=complete_url)]
Target = Annotated[
    str, typer.Argument(help="Where it goes: lmdb://…, hdf5://…, mongodb://… or a path.", autocompletion=complete_url)
]
Layout = Annotated[
    str | None,
    typer.Option(
        help=f"The foreign layout, where looking does not tell: {', '.join(registry.LAYOUTS.names())}.",
        autocompletion=complete_layout,
    ),
]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the store, name=value; the value may be JSON.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a store that exists, and what an interrupted writer left.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from what an interrupted writer left.")]
CommitEvery = Annotated[int, typer.Option("--commit-every", help="Records per durable batch.")]
Index = Annotated[list[str] | None, typer.Option("--index", help="A field that MongoDB indexes; may be repeated.")]


def main() -> None:
    """Run the command line."""
    # As Ctrl-C does, so that a writer keeps what is durable.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    app(prog_name="storeds")


def _exit_code(error: StoredsError) -> int:
    if isinstance(error, (ConfigError, MissingDependencyError)):
        return 2
    return 4 if isinstance(error, UnavailableError) else 3


def command(function: F) -> F:
    """Turn our errors into a message and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        warnings = _Warnings(logging.WARNING)
        _LOG.addHandler(warnings)
        try:
            function(*args, **options)
        except StoredsError as error:
            if options.get("as_json"):
                print_json({"error": {"type": _kind_of(error), "message": redact_message(str(error))}})
            else:
                say_error("error: ", f"{_kind_of(error)}: {redact_message(str(error))}", "bold red")
            raise typer.Exit(_exit_code(error)) from None
        except KeyboardInterrupt:
            ERR.print("interrupted" + (_GO_ON if "resume" in options else ""))
            raise typer.Exit(130) from None
        finally:
            _LOG.removeHandler(warnings)

    return run  # type: ignore[return-value]  # same signature, by wraps


class _Warnings(logging.Handler):
    """Shows what the library logs on stderr, with names that cannot steer the terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        say_error(f"{record.levelname.lower()}: ", redact_message(record.getMessage()), "bold yellow")


def say(text: str) -> None:
    """Print a line to stdout; control characters in names are escaped."""
    OUT.print(printable(text, "\n"))


def _kind_of(error: StoredsError) -> str:
    """Return the public class of an error: that of a private subclass is what the documentation lists."""
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ == StoredsError.__module__)


def say_error(head: str, text: str, style: str = "") -> None:
    """Print a line to stderr, whose `head` may be coloured; control characters in `text` are escaped."""
    ERR.print(Text.assemble((head, style), printable(text, "\n")))


def print_json(value: Any) -> None:
    """Write `value` to stdout as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def print_table(columns: Mapping[str, str], rows: Iterable[tuple[str, ...]], *, head: bool = True) -> None:
    """Print a table for people.

    Parameters
    ----------
    columns : mapping
        Heading → ``left`` or ``right``.
    rows : iterable of tuple of str
        Any text, names of users' files among it.
    head : bool
        Whether to print the headings.
    """
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=head)
    for heading, side in columns.items():
        table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console = OUT if OUT.is_terminal else _console(width=_WIDE)
    with console.capture() as captured:
        console.print(table)
    # Rich fills lines up with spaces, to the width of the longest cell.
    sys.stdout.writelines(f"{line.rstrip()}\n" for line in captured.get().splitlines() if line.strip())


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[ProgressHook | None]:
    """Show a bar on stderr while the body runs; gives what is to be called with each `Progress`."""
    if quiet:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=ERR, transient=True, disable=not ERR.is_terminal) as bar:
        task = bar.add_task(what, total=None, rate="")

        def show(state: Progress) -> None:
            seconds = max(bar.tasks[0].elapsed or 0.0, 1e-9)
            rate = f"{state.done / seconds:,.0f}/s {state.bytes / seconds / 1e6:,.1f} MB/s"
            rate += f" {state.bad} bad" if state.bad else ""
            rate += f" {state.odd} odd" if state.odd else ""
            bar.update(task, completed=state.done, total=state.total, rate=rate)

        yield show


def parse_option(text: str) -> tuple[str, Any]:
    """Return the name and the value of ``name=value``, whose value is text where it is no JSON."""
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise ConfigError(f"an option reads name=value, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
