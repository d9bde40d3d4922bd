"""The command ``storeds``: pack, convert, export, repair, info, stats, head, get, show, verify, bench, backends, layouts, config, demo.

Exit codes: 0 success; 1 `verify`, `repair` or `demo` found a problem; 2 wrong usage or config; 3 a store or source is
missing, exists already or is damaged; 4 an engine is unavailable; 130 interrupted, 143 terminated. Read `app` first.
"""

from storeds.cli import look, show, write  # noqa: F401  # each module adds its commands to `app`
from storeds.cli.app import app, main

__all__ = ["app", "main"]
