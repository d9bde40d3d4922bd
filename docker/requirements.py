"""Prints what pyproject.toml demands to build and run storeds, and those packages of its ``dev`` that are named.

python requirements.py pytest hypothesis > requirements.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, named: list[str]) -> list[str]:
    """Return the requirements; raises SystemExit for a name that ``dev`` does not have."""
    tables = tomllib.loads(pyproject.read_text())
    by_name = {re.split(r"[^\w.-]", line)[0]: line for line in tables["project"]["optional-dependencies"]["dev"]}
    if unknown := sorted(set(named) - set(by_name)):
        raise SystemExit(f"{pyproject}: dev has no {', '.join(unknown)}; it has {', '.join(sorted(by_name))}")
    needed: list[str] = [*tables["build-system"]["requires"], *tables["project"]["dependencies"]]
    return needed + [by_name[name] for name in named]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
