"""The package: what it exports, and what importing it loads; import-linter checks which way its modules depend."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import storeds

ROOT = Path(storeds.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in FILES}


def test_the_reference_has_every_name_in_its_group() -> None:
    page = (ROOT.parents[1] / "docs/api/index.md").read_text("utf-8")
    table = page[page.index("| to |") : page.index("```")]
    listed = re.findall(r"`(\w+)`", table[table.index("\n") :])
    assert sorted(listed) == storeds.__all__ == dir(storeds)
    assert len(storeds.__all__) <= 40


def test_a_wrong_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'storeds' has no attribute 'StoreDataSet'"):
        storeds.StoreDataSet  # noqa: B018


PACKAGES = [module for module, path in MODULES.items() if path.name == "__init__.py" and module != "storeds._utils"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_package_can_be_imported(package: str) -> None:
    found = importlib.import_module(package)
    assert [name for name in getattr(found, "__all__", ()) if not hasattr(found, name)] == []
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        found.Nothing  # noqa: B018


ENGINES = {"lmdb", "h5py", "pymongo"}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        *(
            (f"import storeds.{package}", ENGINES | {"torch", "PIL", "pytest"})
            for package in ("backends", "datasets", "records", "batching", "loaders", "layouts", "testing")
        ),
        ("from storeds import open_backend, open_writer", ENGINES | {"torch"}),
        ("from storeds import StoreDataset, load_config", ENGINES),
        *(
            (f"from storeds.registry import BACKENDS; BACKENDS.get({scheme!r})", (ENGINES | {"torch"}) - {engine})
            for scheme, engine in (("lmdb", "lmdb"), ("hdf5", "h5py"), ("mongodb", "pymongo"))
        ),
        ("import storeds", ENGINES | {"torch", "bson", "PIL", "yaml", "typer", "rich"}),
    ],
)
def test_importing_loads_no_engine_that_is_not_needed_and_not_torch(code: str, absent: set[str]) -> None:
    command = [sys.executable, "-W", "error", "-c", f"{code}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & absent


def test_no_property_has_a_lock_that_a_fork_may_copy_locked() -> None:
    functions = [
        node for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    decorators = {ast.unparse(each) for function in functions for each in function.decorator_list}
    assert not [
        each for each in decorators if "cached_property" in each
    ]  # up to Python 3.11, all instances share a lock
