"""Sphinx configuration: MyST pages, an API reference from docstrings, every unresolved reference an error.

``make docs`` builds with ``-W -n``, with and without a network.
"""

from __future__ import annotations

import builtins
import importlib
import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging

import storeds

project = "storeds"
author = "the storeds authors"
copyright = f"2026, {author}"
release = version = storeds.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"storeds {release}"
myst_heading_anchors = 3
exclude_patterns = ["inventories"]
copybutton_prompt_text = "$ "  # of a console block, the button copies the commands without their output
nitpicky = True
# Type variables, a class that Python's inventory lists under another name, numbers of a file, a class of TensorFlow, which
# has no inventory: there is nothing to lead to.
nitpick_ignore = [
    ("py:class", "storeds.protocols.S_co"),
    ("py:class", "storeds.backends.raw.H"),
    ("py:class", "os.stat_result"),
    ("py:class", "tf.data.Dataset"),
    ("py:class", "storeds.layouts.files.rows.FileStatus"),
]
nitpick_ignore_regex = [("py:class", r"storeds\.readers\.\w+\.\w+Spec")]

# Docstrings follow NumPy's style. Their types are prose ("sequence of str, optional"): the linked types are those of the
# signatures, so napoleon must not make a reference of every word.
napoleon_google_docstring = False
napoleon_use_param = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
default_role = "py:obj"
# The types of arguments that `storeds.transforms.arguments` declares, without what checks them.
autodoc_type_aliases = {
    "Edges": "int | collections.abc.Sequence[int]",
    "Pixels": "int",
    "Coordinate": "int",
    "Padding": "int | collections.abc.Sequence[int] | None",
    "Interval": "collections.abc.Sequence[float]",
    "Numbers": "collections.abc.Sequence[float]",
    "Length": "float",
    "Probability": "float",
    "Flag": "bool",
    "Interpolation": "str",
    "Pairs": "collections.abc.Sequence[collections.abc.Sequence[int]]",
}

# Each project's own inventory is asked first. Where it cannot be fetched (no network, a proxy), the one in docs/inventories/
# stands in: it lists what these pages refer to, in Sphinx's plain-text format, version 1. A reference that it lacks
# is an error offline; add a line.
intersphinx_timeout = 5
intersphinx_mapping = {
    name: (url, (None, f"inventories/{name}.inv"))
    for name, url in {
        "python": "https://docs.python.org/3",
        "numpy": "https://numpy.org/doc/stable",
        "torch": "https://docs.pytorch.org/docs/stable",
        "pillow": "https://pillow.readthedocs.io/en/stable",
        "pymongo": "https://pymongo.readthedocs.io/en/stable",
        "h5py": "https://docs.h5py.org/en/stable",
    }.items()
}

# The modules whose every public name must stand in the reference.
DOCUMENTED = ("storeds", "storeds.errors", "storeds.ops", "storeds.registry", "storeds.testing", "storeds.transforms")

# Names of other projects that signatures or docstrings use without their module.
ELSEWHERE = {
    "DataLoader": "torch.utils.data.DataLoader",
    "Dataset": "torch.utils.data.Dataset",
    "torch._C.Generator": "torch.Generator",
}


def leave_builtins(app: Sphinx, doctree: nodes.document) -> None:
    """Keep ``bytes`` in a signature from leading to some attribute of that name."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("reftype") == "class" and hasattr(builtins, node["reftarget"]):
            node.replace_self(nodes.Text(node["reftarget"]))


def resolve(app: Sphinx, env: BuildEnvironment, node: Any, contnode: Any) -> Any:
    """Find what a docstring means by a short name, or by the private module that a public name was made in."""
    if node.get("refdomain") != "py":
        return None
    names = node["reftarget"].split(", ")  # "Raises" may name several exceptions in one line
    found = [_link(app, env, node, name, contnode if len(names) == 1 else nodes.literal(text=name)) for name in names]
    if None in found:
        return None
    out = nodes.inline()
    for number, link in enumerate(found):
        out += [nodes.Text(", "), link] if number else [link]
    return out


def _link(app: Sphinx, env: BuildEnvironment, node: Any, name: str, contnode: Any) -> Any:
    if node["reftype"] == "obj" and ((name.isidentifier() and name.islower()) or name.endswith(".py")):
        return contnode  # a parameter, a method or a file; names with a capital or another dot must resolve
    domain = env.domains.python_domain
    for wanted in (name, name.rpartition(".")[0]):  # `Meta.id`: an attribute is described with its class
        short = wanted.rpartition(".")[2]
        if wanted.count(".") and not wanted.startswith("storeds.") and wanted != name:
            continue
        known = [
            full
            for full, entry in domain.objects.items()
            if full.rpartition(".")[2] == short and full.startswith("storeds.") and not entry.aliased
        ]
        if short and len(known) == 1:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", known[0], node, contnode)
    elsewhere = ELSEWHERE.get(name)
    if elsewhere is None:
        return None
    node["reftarget"] = elsewhere
    return app.emit_firstresult("missing-reference", env, node, contnode)


def shorten(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: Any, returns: Any) -> Any:
    """Write ``JSON`` again where autodoc has spelled that recursive type out, and defaults so that Sphinx can parse them."""
    signature = signature and signature.replace("= <factory>", "= ...")
    for _ in range(2):  # it spells two levels
        signature, returns = (text and _SPELLED_OUT.sub("JSON", text) for text in (signature, returns))
    return signature, returns


_SPELLED_OUT = re.compile(
    r"bool \| int \| float \| str \| [~\w.]*Sequence\[JSON\] \| [~\w.]*Mapping\[str, JSON\] \| None"
)


def check_coverage(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names that the reference leaves out."""
    objects = env.domains.python_domain.objects
    for module in DOCUMENTED:
        for name in importlib.import_module(module).__all__:
            if not any(f"{place}.{name}" in objects for place in (module, "storeds")):
                logging.getLogger(__name__).warning("%s.%s is public, but not in docs/api", module, name)


def setup(app: Sphinx) -> None:
    """Connect the hooks."""
    app.connect("autodoc-process-signature", shorten)
    app.connect("doctree-read", leave_builtins)
    app.connect("missing-reference", resolve, priority=900)  # after intersphinx
    app.connect("env-check-consistency", check_coverage)
