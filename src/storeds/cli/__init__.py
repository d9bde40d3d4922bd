"""The command ``storeds``: pack, convert, repair, info, verify, bench, backends, config schema, demo.

Exit codes: 0 all is well; 1 `verify`, `repair` or `demo` found something; 2 wrong usage or config; 3 a store or source is
missing, in the way or damaged; 4 an engine is unavailable; 130 interrupted, 143 terminated.
"""

from storeds.cli import bench as _bench  # noqa: F401  # each adds its commands to `app`
from storeds.cli import show as _looking  # noqa: F401  # each adds its commands to `app`
from storeds.cli import verify as _verify  # noqa: F401  # each adds its commands to `app`
from storeds.cli import write as _copying  # noqa: F401  # each adds its commands to `app`
from storeds.cli.app import app, main

__all__ = ["app", "main"]
