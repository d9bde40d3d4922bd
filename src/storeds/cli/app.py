"""What all commands share: the application, exit codes, progress, and output for people and programs."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TextIO, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.text import Text

from storeds._utils.tables import text_table
from storeds._utils.text import printable
from storeds.errors import ConfigError, MissingDependencyError, StoredsError, UnavailableError
from storeds.redaction import redact_message

if TYPE_CHECKING:
    from storeds.ops.progress import Progress, ProgressHook
    from storeds.protocols import Backend

__all__ = [
    "ERR",
    "LOOK",
    "MAKE",
    "MORE",
    "OUT",
    "TRAIN",
    "AsJson",
    "CommitEvery",
    "Overwrite",
    "Resume",
    "StoreArgument",
    "Target",
    "Where",
    "app",
    "command",
    "config_app",
    "main",
    "named_values",
    "print_json",
    "print_result",
    "print_table",
    "progress",
    "say",
    "say_error",
    "selecting",
]

_SETTINGS = {"help_option_names": ["-h", "--help"]}
app: typer.Typer = typer.Typer(
    no_args_is_help=True,
    context_settings=_SETTINGS,
    pretty_exceptions_show_locals=False,  # they may contain passwords of URLs
    help="One dataset over HDF5, LMDB and MongoDB.",
)
config_app: typer.Typer = typer.Typer(no_args_is_help=True, context_settings=_SETTINGS, help="Work with config files.")


def _console(*, stderr: bool = False) -> Console:
    # URLs, keys and messages may contain "[red]" or ":smile:", which are not markup or emoji.
    return Console(stderr=stderr, soft_wrap=True, markup=False, emoji=False, highlight=False)


OUT, ERR = _console(), _console(stderr=True)
_REDRAW_SECONDS = 0.1
_LOG = logging.getLogger("storeds")
F = TypeVar("F", bound=Callable[..., Any])


StoreArgument = Annotated[str, typer.Argument(metavar="STORE", help="A store: a URL, a file or a folder.")]
Target = Annotated[
    str, typer.Argument(metavar="TARGET", help="The new store: lmdb://…, hdf5://…, mongodb://… or a path.")
]
Layout = Annotated[str | None, typer.Option(help="How another tool arranged the records: `storeds formats`.")]
Options = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the store, name=value: `storeds formats lmdb`.")
]
Where = Annotated[
    list[str] | None, typer.Option(help="Only records with this value: field=value, or field=[value, value].")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing store or unfinished work.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue interrupted work.")]
CommitEvery = Annotated[int, typer.Option("--commit-every", help="Records per durable batch.")]

MAKE, GROW, LOOK, TRAIN, MORE = "Make", "Grow", "Look", "Train", "More"
"""The panels of ``storeds --help``, in the order in which their modules are imported."""
app.add_typer(config_app, name="config", rich_help_panel=TRAIN)
_CODES = {
    0: "success",
    1: "a problem was found",
    2: "wrong arguments or config",
    3: "a store or file is missing, exists already or is damaged",
    4: "a server cannot be reached",
}


class _OutputError(Exception):
    """Stdout or stderr cannot be written. It is no OSError: Click and Rich would end the process with exit code 1."""


class _Output(io.FileIO):
    """Stdout or stderr."""

    def write(self, data: Any, /) -> int:
        # docstring inherited
        try:
            return super().write(data)
        except OSError as error:
            raise _OutputError(str(error)) from None


def _stream(stream: TextIO | None) -> TextIO:
    """Return a standard stream whose failures are `_OutputError`; one that is closed fails when it is written."""
    descriptor = os.open(os.devnull, os.O_RDONLY) if stream is None else stream.fileno()
    file = io.BufferedWriter(_Output(descriptor, "w", closefd=False))
    settings = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering") if stream is not None}
    return io.TextIOWrapper(file, **settings)


def main() -> None:
    """Run the command line."""
    # SIGTERM unwinds like Ctrl-C, so that a writer keeps its durable work.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    _occupy_standard_descriptors()
    # A config names functions of modules in the current folder, which comes last, so that it replaces no other module.
    sys.path.append("")
    sys.stdout = _stream(sys.stdout)
    if sys.stderr is not None:  # what is said there is not the result of a command
        sys.stderr = _stream(sys.stderr)
    try:
        try:
            app(prog_name="storeds")
        finally:
            sys.stdout.flush()
    except _OutputError as error:
        with contextlib.suppress(_OutputError):
            say_error("error: ", f"the output cannot be written: {error}", "bold red")
        for stream in filter(None, (sys.stdout, sys.stderr)):  # so that Python does not try again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        sys.exit(3)


def _occupy_standard_descriptors() -> None:
    """Open ``/dev/null`` as each standard descriptor that is closed: otherwise it would become that of a store."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _exit_code(error: Exception) -> int:
    if isinstance(error, (ConfigError, MissingDependencyError)):
        return 2
    return 4 if isinstance(error, UnavailableError) else 3


def command(panel: str, *examples: str, finds: bool = False, of: typer.Typer = app) -> Callable[[F], F]:
    """Return a decorator that adds a function to the command line, with errors as a message and an exit code.

    Parameters
    ----------
    panel : str
        Where the help lists it.
    *examples : str
        Lines to paste, for its help.
    finds : bool
        Whether its exit code is 1 if it finds a problem.
    of : Typer
    """
    codes = "; ".join(f"{code} {what}" for code, what in _CODES.items() if code != 1 or finds)
    epilog = "\n\n".join(["Examples:", *examples, f"Exit codes: {codes}."])

    def add(function: F) -> F:
        reporting = _reporting(function)
        of.command(rich_help_panel=panel, epilog=epilog)(reporting)
        return reporting

    return add


def _reporting(function: F) -> F:
    """Turn errors of storeds into a message and an exit code."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> None:
        warnings = _Warnings(logging.WARNING)
        _LOG.addHandler(warnings)
        try:
            function(*args, **options)
        except (StoredsError, OSError) as error:
            kind, message = _kind_of(error), redact_message(_explained(error, options))
            if options.get("as_json"):
                print_json({"error": {"type": kind, "message": message}})
            else:
                say_error("error: ", f"{kind}: {message}", "bold red")
            raise typer.Exit(_exit_code(error)) from None
        except KeyboardInterrupt as error:
            for line in ("interrupted", *getattr(error, "__notes__", ())):  # a note says what a writer keeps
                say_error("", redact_message(line))
            raise typer.Exit(130) from None
        finally:
            _LOG.removeHandler(warnings)

    return run  # type: ignore[return-value]  # functools.wraps keeps the signature


class _Warnings(logging.Handler):
    """Prints the library's warnings to stderr, with control characters escaped."""

    def emit(self, record: logging.LogRecord) -> None:
        say_error(f"{record.levelname.lower()}: ", redact_message(record.getMessage()), "bold yellow")


def say(text: str) -> None:
    """Print a line to stdout, with control characters escaped."""
    OUT.print(printable(text, "\n"))


def _kind_of(error: Exception) -> str:
    """Return the name of the public class of an error, which the documentation lists, or of an error of the system."""
    public = (StoredsError.__module__, OSError.__module__)
    return next(each.__name__ for each in type(error).__mro__ if each.__module__ in public)


def _explained(error: Exception, arguments: Mapping[str, Any]) -> str:
    """Return the text of an error; one of the system that names no file is followed by the files of the command."""
    if isinstance(error, StoredsError) or getattr(error, "filename", None) is not None:
        return str(error)
    given = [arguments.get(name) for name in ("source", "stores", "url", "path", "output")]
    files = [str(each) for value in given if value for each in (value if isinstance(value, list) else [value])]
    return f"{error}, about {' or '.join(files) or 'no file of this command'}"


def say_error(head: str, text: str, style: str = "") -> None:
    """Print a line to stderr with a styled `head`, and with control characters in `text` escaped."""
    ERR.print(Text.assemble((head, style), printable(text, "\n")))


def print_json(value: Any) -> None:
    """Write `value` to stdout as one line of JSON, with control characters escaped."""
    text = json.dumps(value, ensure_ascii=False)
    if not text.isprintable():  # JSON allows U+007F to U+009F, which a terminal obeys
        text = "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write(text + "\n")


def print_result(result: Any, *, as_json: bool) -> None:
    """Print what an operation returned, as ``print`` would, or its JSON."""
    if as_json:
        print_json(result.to_json())
    else:
        sys.stdout.write(printable(str(result), "\n") + "\n")


def print_table(columns: Mapping[str, str], rows: Iterable[tuple[str, ...]], *, head: bool = True) -> None:
    """Print a table; see `text_table`."""
    sys.stdout.write(text_table(columns, rows, head=head) + "\n")


@contextmanager
def progress(what: str, *, quiet: bool) -> Iterator[ProgressHook | None]:
    """Show a progress bar on stderr while the body runs. Gives a hook to call with each `Progress`."""
    if quiet:
        yield None
        return
    columns = (
        *(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}")),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    # This thread draws: a drawing thread could hold a lock while workers are forked.
    with Bar(*columns, console=ERR, transient=True, auto_refresh=False, disable=not ERR.is_terminal) as bar:
        task = bar.add_task(what, total=None, rate="")
        drawn = 0.0

        def show(state: Progress) -> None:
            nonlocal drawn
            seconds = max(bar.tasks[0].elapsed or 0.0, 1e-9)
            rate = f"{state.done / seconds:,.0f}/s {state.bytes / seconds / 1e6:,.1f} MB/s" if state.bytes else ""
            rate += f" {state.bad} bad" if state.bad else ""
            rate += f" {state.damaged} damaged" if state.damaged else ""
            bar.update(task, completed=state.done, total=state.total, rate=rate)
            if bar.get_time() - drawn > _REDRAW_SECONDS:
                drawn = bar.get_time()
                bar.refresh()

        yield show


_VALUE = re.compile(r"\s*[a-z][a-z0-9_]*=(?!=)", re.IGNORECASE)


def selecting(texts: list[str] | None, stores: Callable[[], Iterable[Backend]]) -> dict[str, Any] | str | None:
    """Return what ``--where`` selects: a condition, or fields and their values by the kind of each field.

    A value is text, unless it is a JSON text or list.

    Parameters
    ----------
    texts : list of str or None
        As ``name=value``, or conditions such as ``label == 3``, of which a record meets all.
    stores : callable
        Opens the stores whose fields are meant; they are closed again.
    """
    if not texts:
        return None
    conditions = [text for text in texts if not _VALUE.match(text)]
    if len(conditions) == len(texts):
        return " and ".join(f"({text})" for text in conditions) if len(texts) > 1 else texts[0]
    if conditions:
        raise ConfigError(f"--where takes name=value or conditions, not both: {', '.join(texts)}")
    kinds: dict[str, str] = {}
    for store in stores():
        with store:
            kinds |= {name: field.kind for name, field in store.meta.fields.items()}
    found = named_values(texts)
    for text in texts:
        name, _, value = text.partition("=")
        is_number = (
            kinds.get(name) == "int" and type(found[name]) is int
        )  # otherwise a class, perhaps named true or 1e3
        if kinds.get(name) in ("str", "int") and not isinstance(found[name], (str, list)) and not is_number:
            found[name] = value
    return found


def named_values(texts: list[str] | None) -> dict[str, Any]:
    """Return the names and values of ``name=value``. A value that is not JSON is text."""
    found: dict[str, Any] = {}
    for text in texts or []:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"an option has the form name=value, got {text!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
