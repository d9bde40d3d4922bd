"""The package: what it exports, what importing it loads, and which way its modules depend on one another."""

from __future__ import annotations

import ast
import importlib
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
IDS = list(MODULES)

# What the design promises to export; `storeds.__all__` may have more.
PROMISED = {
    "Backend",
    "Config",
    "Decoder",
    "EpochSampler",
    "Meta",
    "Reader",
    "Record",
    "SampleContext",
    "StoreDataset",
    "StoreIterable",
    "Writer",
    "build_dataset",
    "build_loader",
    "collate",
    "convert",
    "errors",
    "info",
    "load_config",
    "open_backend",
    "open_writer",
    "pack",
    "register_backend",
    "register_decoder",
    "register_layout",
    "register_reader",
    "register_source",
    "to_device",
    "verify",
}


def test_what_is_promised_is_exported() -> None:
    assert set(storeds.__all__) >= PROMISED
    assert len(set(storeds.__all__)) == len(storeds.__all__)
    assert storeds.__all__ == sorted(storeds.__all__) == dir(storeds)


@pytest.mark.parametrize("name", storeds.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(importlib.import_module("storeds"), name) is not None


def test_every_lazy_name_is_exported_and_a_wrong_one_is_an_attribute_error() -> None:
    assert set(storeds._LAZY) <= set(storeds.__all__)
    with pytest.raises(AttributeError, match="module 'storeds' has no attribute 'StoreDataSet'"):
        storeds.StoreDataSet  # noqa: B018


PACKAGES = [module for module, path in MODULES.items() if path.name == "__init__.py" and module != "storeds._utils"]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_of_a_package_can_be_imported(package: str) -> None:
    found = importlib.import_module(package)
    assert [name for name in getattr(found, "__all__", ()) if not hasattr(found, name)] == []
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        found.Nothing  # noqa: B018


@pytest.mark.parametrize("package", ["backends", "datasets", "records", "batching", "loaders", "layouts", "testing"])
def test_importing_a_package_loads_no_engine_and_not_torch(package: str) -> None:
    code = f"import sys, storeds.{package}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & {"torch", "lmdb", "h5py", "pymongo", "PIL", "pytest"}


def test_importing_storeds_loads_no_engine_and_not_torch() -> None:
    code = "import sys, storeds; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "storeds.protocols" in loaded
    assert not loaded & {"torch", "lmdb", "h5py", "pymongo", "bson", "PIL", "yaml", "typer", "rich"}


@pytest.mark.parametrize(
    ("names", "absent"),
    [
        ("open_backend, open_writer", {"torch", "lmdb", "h5py", "pymongo"}),
        ("StoreDataset", {"lmdb", "h5py", "pymongo"}),
        ("load_config", {"lmdb", "h5py", "pymongo"}),
    ],
)
def test_a_name_loads_no_more_than_it_needs(names: str, absent: set[str]) -> None:
    code = f"from storeds import {names}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert not set(done.stdout.split()) & absent


@pytest.mark.parametrize(("scheme", "engine"), [("lmdb", "lmdb"), ("hdf5", "h5py"), ("mongodb", "pymongo")])
def test_a_backend_loads_its_own_engine_only(scheme: str, engine: str) -> None:
    code = f"""
import sys, storeds
from storeds.registry import BACKENDS
BACKENDS.get({scheme!r})
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & {"lmdb", "h5py", "pymongo", "torch"} == {engine}


@pytest.mark.parametrize("module", IDS)
def test_every_module_says_in_one_sentence_what_it_is_for(module: str) -> None:
    text = ast.get_docstring(ast.parse(MODULES[module].read_text()))
    assert text, "no docstring"
    summary = text.split("\n\n")[0]
    assert "\n" not in summary, "the first sentence does not fit its line"
    assert summary.endswith(".")
    assert len(summary.split()) > 2


@pytest.mark.parametrize("module", [m for m in IDS if not m.endswith("__main__")])
def test_every_module_lists_what_it_offers(module: str) -> None:
    tree = ast.parse(MODULES[module].read_text())
    defined = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if not _offers(tree):
        return
    assert "__all__" in defined, "no __all__"
    listed = ast.literal_eval(defined["__all__"])
    assert len(set(listed)) == len(listed)
    found = importlib.import_module(module)
    assert [name for name in listed if not hasattr(found, name)] == []


def _offers(tree: ast.Module) -> bool:
    """Whether a module defines anything for others; one that only draws a package together need not."""
    return any(isinstance(node, (ast.FunctionDef, ast.ClassDef)) for node in tree.body)


# Each package imports those of lower levels and itself, nothing else; `make lint` checks the same with import-linter.

LEVELS: dict[str, int] = {
    name: level
    for level, names in enumerate(
        (
            ("errors",),
            ("protocols", "registry"),
            ("_utils",),
            ("records",),
            ("jpeg",),
            ("backends", "readers", "transforms"),
            ("layouts", "batching", "plugins", "testing"),
            ("datasets",),
            ("loaders",),
            ("config",),
            ("ops",),
            ("cli",),
        )
    )
    for name in names
}


def imported_by(module: str) -> set[str]:
    """Return the storeds modules that `module` imports at run time, wherever in it."""
    found: set[str] = set()
    names = set(MODULES)
    tree = ast.parse(MODULES[module].read_text())
    for node in _run_time_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            base = node.module or ""
            submodules = {f"{base}.{alias.name}" for alias in node.names} & names
            found |= submodules or {base}
    return {name for name in found if name == "storeds" or name.startswith("storeds.")}


def _run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        nodes += [node, *_run_time_nodes(node)]
    return nodes


def area(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("module", [m for m in IDS if area(m) in LEVELS])
def test_dependencies_point_down(module: str) -> None:
    level = LEVELS[area(module)]
    upward = {name for name in imported_by(module) if area(name) != area(module) and LEVELS.get(area(name), -1) > level}
    assert upward == set()


def test_no_property_has_a_lock_that_a_fork_may_copy_locked() -> None:
    functions = [
        node for path in FILES for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    decorators = {ast.unparse(each) for function in functions for each in function.decorator_list}
    assert not [
        each for each in decorators if "cached_property" in each
    ]  # up to Python 3.11, all instances share a lock


@pytest.mark.parametrize("module", [m for m in IDS if area(m) in ("backends", "readers", "layouts")])
def test_backends_and_readers_never_import_each_other(module: str) -> None:
    forbidden = {"backends": {"readers"}, "readers": {"backends", "layouts"}, "layouts": {"readers"}}[area(module)]
    assert {name for name in imported_by(module) if area(name) in forbidden} == set()


@pytest.mark.parametrize("module", [m for m in IDS if area(m) in ("backends", "layouts")])
def test_an_engine_imports_no_other_engine(module: str) -> None:
    engines = {"lmdb", "hdf5", "mongodb"} & set(module.split("."))
    others = {"lmdb", "hdf5", "mongodb"} - engines if engines else set()
    wrong = {name for name in imported_by(module) if others & set(name.split("."))}
    assert {name for name in wrong if area(name) in ("backends", "layouts")} == set()


@pytest.mark.parametrize("module", [m for m in IDS if area(m) not in ("cli", "ops", "config", "testing", "")])
def test_only_the_top_imports_the_package_itself(module: str) -> None:
    assert "storeds" not in imported_by(module)


def test_the_modules_that_everything_needs_import_no_engine() -> None:
    for module in (
        "storeds",
        "storeds.protocols",
        "storeds.errors",
        "storeds.records.codec",
        "storeds.registry",
        "storeds.backends.opening",
    ):
        names = {
            name.partition(".")[0] for node in ast.parse(MODULES[module].read_text()).body for name in _absolute(node)
        }
        assert not names & {"torch", "lmdb", "h5py", "pymongo", "PIL"}, module


def _absolute(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []
