"""Writes tables for people, as wide as the terminal, with control characters escaped."""

from __future__ import annotations

import io
import random
import shutil
import sys
from collections.abc import Iterable, Mapping

from storeds._utils.text import printable

__all__ = ["text_table"]

_WIDE = 4000  # columns without a terminal: a program that reads the output needs paths on one line


def text_table(columns: Mapping[str, str], rows: Iterable[tuple[str, ...]], *, head: bool = True) -> str:
    """Return a table, without a line break at its end.

    Parameters
    ----------
    columns : mapping
        Heading → ``left`` or ``right``.
    rows : iterable of tuple of str
        Any text, including names of files.
    head : bool
        Whether to write the headings.
    """
    state = random.getstate()  # the import of rich draws from the generator that users seed
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    random.setstate(state)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, show_header=head)
    for heading, side in columns.items():
        table.add_column(heading, justify="right" if side == "right" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else _WIDE
    text = io.StringIO()
    Console(file=text, width=width, color_system=None, legacy_windows=False).print(table)
    # Rich pads lines with spaces to the width of the longest cell.
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines() if line.strip())
