"""The command ``storeds``.

Make: pack, convert, repair, export. Grow: append, edit, merge, commit, log, rollback, compact, clean. Look: info, head, get,
stats, show, verify. Train: bench, config, stage.
More: formats, plugins, demo.

Exit codes: 0 success; 1 `verify`, `repair` or `demo` found a problem; 2 wrong usage or config; 3 a store or source is
missing, exists already or is damaged; 4 an engine is unavailable; 130 interrupted, 143 terminated. Read `app` first.
"""

# isort: off
from storeds.cli import make, versions, look, train, staging, more  # noqa: F401  # each adds its commands to `app`, in this order

# isort: on
from storeds.cli.app import app, main

__all__ = ["app", "main"]
