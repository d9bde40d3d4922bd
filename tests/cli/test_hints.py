"""Every flag and option that a message of storeds names exists."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import typer

import storeds
from storeds import registry
from storeds.cli import app

ROOT = Path(storeds.__file__).parent
NO_MESSAGES = {"mongod.py"}  # calls another program


def texts() -> Iterator[tuple[str, str]]:
    """Yield the file and the text of each string in the source that is no docstring."""
    for path in sorted(ROOT.rglob("*.py")):
        if path.name in NO_MESSAGES:
            continue
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield path.name, node.value


def test_flags_in_messages_exist() -> None:
    command = typer.main.get_command(app)
    known = {"--help", "--shm-size", "--status"}  # the others of Docker and of h5clear
    pending = [command]
    while pending:
        each = pending.pop()
        pending += list(getattr(each, "commands", {}).values())
        known |= {flag for parameter in each.params for flag in (*parameter.opts, *parameter.secondary_opts)}
    wrong = {
        (name, flag) for name, text in texts() for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text) if flag not in known
    }  # fmt: skip
    assert sorted(wrong) == []


def test_options_of_sources_in_messages_exist() -> None:
    formats = [registry.FORMATS.get(name) for name in registry.FORMATS.names() if registry.FORMATS.is_built_in(name)]
    reads = [each.read for each in formats if each.read is not None]
    known = {parameter for read in reads for parameter in inspect.signature(read).parameters}
    folder = ROOT / "formats"
    files = {path.name for path in folder.rglob("*.py")}
    wrong = {
        (name, option)
        for name, text in texts()
        if name in files
        for option in re.findall(r"--option '?([a-z_]+)=", text)
        if option not in known
    }
    assert not wrong
