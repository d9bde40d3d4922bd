"""Print the packages that pyproject.toml requires to build and run storeds, and the named ones of its groups.

python requirements.py pytest hypothesis > requirements.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(pyproject: Path, named: list[str]) -> list[str]:
    """Return the requirements; raise SystemExit for a name that no dependency group has."""
    tables = tomllib.loads(pyproject.read_text())
    lines = [line for group in tables["dependency-groups"].values() for line in group if isinstance(line, str)]
    by_name = {re.split(r"[^\w.-]", line)[0]: line for line in lines}
    if unknown := sorted(set(named) - set(by_name)):
        raise SystemExit(f"{pyproject}: no group has {', '.join(unknown)}; they have {', '.join(sorted(by_name))}")
    needed: list[str] = [*tables["build-system"]["requires"], *tables["project"]["dependencies"]]
    return needed + [by_name[name] for name in named]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path("pyproject.toml"), sys.argv[1:])) + "\n")
