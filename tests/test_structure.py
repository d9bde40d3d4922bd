"""The files of the package call one another in one direction."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import storeds

_ROOT = Path(storeds.__file__).parent
_MODULES = {
    ".".join(("storeds", *path.relative_to(_ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(_ROOT.rglob("*.py"))
}


def _at_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes but those that only a type checker reads; imports inside of functions are among them."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        yield from _at_run_time(child)


def _imports(source: str) -> set[str]:
    """Return the modules of storeds that a source imports."""
    found = set[str]()
    for node in _at_run_time(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            inside = {f"{node.module}.{each.name}" for each in node.names}
            found |= {each if each in _MODULES else node.module for each in inside}
        elif isinstance(node, ast.Import):
            found |= {each.name for each in node.names}
    return found & _MODULES.keys()


def test_no_files_import_one_another_in_a_circle() -> None:
    graph = {name: _imports(path.read_text()) - {name} for name, path in _MODULES.items()}
    assert "storeds.backends.store" in graph["storeds.backends.engine"]
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_an_import_inside_of_a_function_counts() -> None:
    assert _imports("def f():\n    from storeds.ops import copy\n") == {"storeds.ops.copy"}
