"""The command ``storeds``: pack, convert, repair, info, verify, bench, backends, config schema, demo.

Exit codes: 0 all is well; 1 `verify`, `repair` or `demo` found something; 2 wrong usage or config; 3 a store or source is
missing, in the way or damaged; 4 an engine is unavailable; 130 interrupted, 143 terminated.
"""

from storeds.cli import _bench, _copying, _looking, _verify  # noqa: F401  # each adds its commands to `app`
from storeds.cli._frame import app, main

__all__ = ["app", "main"]
