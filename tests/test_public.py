"""The package: its names, what importing it loads, the direction of its imports, and the tree of errors."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, Dataset

import storeds
from storeds import errors
from storeds.errors import RecordError, StoredsError

ROOT = Path(storeds.__file__).parent
MODULES = {
    ".".join(("storeds", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Parse each module once."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def test_the_reference_has_every_name_in_its_group() -> None:
    page = (ROOT.parents[1] / "docs/api/index.md").read_text("utf-8")
    table = page[page.index("| to |") : page.index("```")]
    listed = re.findall(r"`(\w+)`", table[table.index("\n") :])
    assert sorted(listed) == storeds.__all__ == dir(storeds)
    assert len(storeds.__all__) <= 40


PACKAGES = [module for module, path in MODULES.items() if path.name == "__init__.py" and module != "storeds._utils"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_package_can_be_imported(package: str) -> None:
    found = importlib.import_module(package)
    assert [name for name in getattr(found, "__all__", ()) if not hasattr(found, name)] == []
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        found.Nothing  # noqa: B018


ENGINES = {"lmdb", "h5py", "pymongo"}
LIGHT = ("backends", "datasets", "records", "batching", "loaders", "layouts", "testing")
# What is imported, and what that does not load.
IMPORTS = {
    "import storeds": ENGINES | {"torch", "bson", "PIL", "yaml", "typer", "rich"},
    "; ".join(f"import storeds.{package}" for package in LIGHT): ENGINES | {"torch", "PIL", "pytest"},
    "from storeds import open_backend, open_writer": ENGINES | {"torch"},
    "from storeds import StoreDataset, load_config": ENGINES,
    "from storeds.registry import BACKENDS; BACKENDS.get('lmdb')": {"torch", "h5py", "pymongo"},
    "from storeds.registry import BACKENDS; BACKENDS.get('hdf5')": {"torch", "lmdb", "pymongo"},
    "from storeds.registry import BACKENDS; BACKENDS.get('mongodb')": {"torch", "lmdb", "h5py"},
}


@pytest.mark.parametrize("code", IMPORTS)
def test_importing_loads_no_engine_that_is_not_needed_and_not_torch(code: str) -> None:
    command = [sys.executable, "-W", "error", "-c", f"{code}; import sys; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & IMPORTS[code]


def test_no_property_has_a_lock_that_a_fork_may_copy_locked() -> None:
    """Up to Python 3.11, all instances of a class share the lock of a cached_property."""
    functions = [node for tree in trees().values() for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    decorators = {ast.unparse(each) for function in functions for each in function.decorator_list}
    assert not [each for each in decorators if "cached_property" in each]


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that only a type checker reads; imports inside of functions are among them."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"):
            yield from _at_run_time(child)


def _imports(source: ast.Module) -> set[str]:
    """Return the modules of storeds that a source imports."""
    found = set[str]()
    for node in _at_run_time(source):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = {f"{node.module}.{each.name}" for each in node.names}
            found |= {each if each in MODULES else node.module for each in inside}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & MODULES.keys()


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = {name: _imports(tree) - {name} for name, tree in trees().items()}
    assert "storeds.backends.store" in graph["storeds.backends.engine"]
    assert _imports(ast.parse("def f():\n    from storeds.ops import copy\n")) == {"storeds.ops.copy"}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


# Errors: one tree, built from one string, and whole after pickling or a DataLoader worker

EVERY: list[type[StoredsError]] = [getattr(errors, name) for name in errors.__all__]
# name, built-in it also derives from, as drawn: "├── ConfigError (ValueError)   something …"
DRAWN = dict(re.findall(r"^[│ ]*[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "", re.MULTILINE))


def test_the_tree_is_drawn_in_full() -> None:
    assert set(DRAWN) | {"StoredsError"} == set(errors.__all__)
    defined = {name for name, thing in vars(errors).items() if isinstance(thing, type) and issubclass(thing, Exception)}
    assert defined == set(errors.__all__)


@pytest.mark.parametrize("error", EVERY)
def test_every_error_is_ours_and_the_built_in_it_is_drawn_as_and_one_string(error: type[StoredsError]) -> None:
    assert issubclass(error, StoredsError)
    assert error.__doc__
    drawn = DRAWN.get(error.__name__)
    if drawn:
        assert issubclass(error, getattr(builtins, drawn))
    elif error is not StoredsError:
        assert error.__bases__ == (RecordError,)
    message = "lmdb:///x: what went wrong; what to do (ü)"
    for copy in (error(message), pickle.loads(pickle.dumps(error(message))), error(str(error(message)))):
        assert (type(copy), str(copy), copy.args) == (error, message, (message,))


@pytest.mark.parametrize("error", [each for each in EVERY if issubclass(each, RecordError)])
def test_a_record_error_says_where_and_keeps_it_in_a_pickle(error: type[RecordError]) -> None:
    made = error.at("lmdb:///x", 7, "its checksum does not match its bytes")
    assert str(made) == "record 7 of lmdb:///x: its checksum does not match its bytes"
    assert (type(made), made.key) == (error, None)
    named = error.at("lmdb:///x", 7, "gone", key="n01/a 'b'.jpg")
    assert str(named) == "record 7 (key \"n01/a 'b'.jpg\") of lmdb:///x: gone"
    assert (named.url, named.position, named.key, named.reason) == ("lmdb:///x", 7, "n01/a 'b'.jpg", "gone")
    copy = pickle.loads(pickle.dumps(named))
    assert (type(copy), str(copy), vars(copy)) == (error, str(named), vars(named))
    rebuilt = error(str(named))
    assert (rebuilt.url, rebuilt.position, rebuilt.key, rebuilt.reason) == (None, None, None, "")


class Failing(Dataset[Any]):
    def __getitem__(self, index: int) -> Any:
        error = EVERY[index]
        raise (
            error.at("lmdb:///x", index, "bad “bytes”", key="k") if issubclass(error, RecordError) else error("lost: ü")
        )

    def __len__(self) -> int:
        return len(EVERY)


def test_a_worker_keeps_type_and_message() -> None:
    samples = iter(DataLoader(Failing(), batch_size=None, num_workers=1))
    for index, error in enumerate(EVERY):
        said = f"record {index} (key 'k') of lmdb:///x: bad “bytes”" if issubclass(error, RecordError) else "lost: ü"
        with pytest.raises(error, match=re.escape(said)) as caught:
            next(samples)
        assert type(caught.value) is error
