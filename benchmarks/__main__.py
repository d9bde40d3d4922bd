"""Lists the benchmarks, or runs some or all of them: a table here, and JSON in build/bench.

``python -m benchmarks`` lists them, ``python -m benchmarks all`` runs those that need nothing special.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
from pathlib import Path

from benchmarks._common import ENTRIES, Run, run_entry

MODULES = (
    "reading",
    "loading",
    "packing",
    "folders",
    "cold",
    "decoding",
    "samples",
    "patches",
    "staging",
    "versions",
    "silent",
    "device",
    "peers",
)


def load() -> None:
    """Import every module, which registers its entries."""
    for module in MODULES:
        importlib.import_module(f"benchmarks.{module}")


def main() -> int:
    load()
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    options.add_argument("names", nargs="*", choices=[*ENTRIES, "all", []], metavar="NAME", help="entries, or all")
    options.add_argument("--scale", type=float, default=1.0, help="share of the records and photographs")
    options.add_argument("--rounds", type=int, default=7, help="measured rounds, at least 5 for figures to publish")
    options.add_argument("--work", type=Path, help="folder for the stores, on the disk to measure; a temporary one")
    options.add_argument("--json", type=Path, default=Path("build/bench"), metavar="FOLDER", help="where JSON goes")
    options.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    options.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="for one entry")
    given = options.parse_args()
    if not given.names:
        for name, found in ENTRIES.items():
            print(f"{name:17}{found.title}" + (f" (needs {found.needs})" if found.needs else ""))
        return 0
    usual = [name for name, found in ENTRIES.items() if not found.needs]
    met = True
    for name in usual if "all" in given.names else given.names:
        with tempfile.TemporaryDirectory(dir=given.work, prefix="storeds-bench-") as folder:
            run = Run(Path(folder), given.scale, given.rounds, dict(each.split("=", 1) for each in given.option))
            met &= run_entry(name, run, given.json)
    return 1 if given.check and not met else 0


if __name__ == "__main__":
    raise SystemExit(main())
