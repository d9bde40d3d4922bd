"""Checks with pyright that every public name and attribute declares its type.

Public is what the ``__init__.py`` of a package lists in ``__all__``. Pyright itself would report every module without an
underscore, so this keeps its findings on public names and on what belongs to them.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import storeds


def public_names() -> set[str]:
    """Return where each public object is defined, such as ``storeds.datasets.map_dataset.StoreDataset``."""
    found = {f"storeds.{name}" for name in storeds.__all__}
    packages = ["storeds", *(each.name for each in pkgutil.walk_packages(storeds.__path__, "storeds.") if each.ispkg)]
    for package in packages:
        if any(part.startswith("_") for part in package.split(".")):
            continue
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            thing = getattr(module, name)
            found |= {
                f"{package}.{name}",
                f"{getattr(thing, '__module__', package)}.{getattr(thing, '__qualname__', name)}",
            }
    return found


def findings(names: set[str]) -> Iterator[str]:
    """Yield pyright's errors on `names` and their public members."""
    command = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, "--outputjson", "--ignoreexternal"]
    # An editable installation has a folder `storeds` without `py.typed`, which pyright would find first.
    environment = {**os.environ, "PYTHONPATH": str(Path(storeds.__file__).parents[1])}
    done = subprocess.run(  # noqa: S603  # this interpreter, with constant arguments
        [*command, "--verifytypes", "storeds"], env=environment, capture_output=True, text=True, check=False
    )
    symbols = json.loads(done.stdout)["typeCompleteness"]["symbols"]
    if not symbols:
        yield f"pyright found no symbols: {done.stderr}"
    for symbol in symbols:
        parts = symbol["name"].split(".")
        owners = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
        if any(part.startswith("_") and not part.startswith("__") for part in parts) or names.isdisjoint(owners):
            continue
        for finding in symbol["diagnostics"]:
            # `mypy --strict` reports what is unknown; pyright reports what type checkers may infer differently.
            if finding["severity"] == "error" and "missing type annotation" in finding["message"]:
                yield f"{symbol['name']}: {' '.join(finding['message'].split())}"


def main() -> int:
    """Print every finding and return the exit status."""
    wrong = sorted(set(findings(public_names())))
    sys.stdout.writelines(f"{message}\n" for message in wrong)
    sys.stdout.write(f"{len(wrong)} public names do not declare their type\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
