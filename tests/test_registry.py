"""Plug-ins: built-in names, names registered at run time, and entry points of other people's packages."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import textwrap
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import storeds
from _writing import in_fork
from make_store import make_store
from mask_files import write
from storeds.backends.memory import MEMORY
from storeds.errors import ConfigError, MissingDependencyError
from storeds.registry import BACKENDS, DECODERS, READERS, Registry


def test_an_unknown_name_lists_what_exists_and_the_nearest() -> None:
    with pytest.raises(ConfigError, match="'lmbd'; did you mean 'lmdb'") as caught:
        storeds.open_backend("lmbd:///x")
    assert all(name in str(caught.value) for name in ("hdf5", "lmdb", "memory", "mongodb", "mongodb+srv"))
    with pytest.raises(ConfigError, match="did you mean 'lmdb/caffe'"):
        storeds.open_backend("lmdb:///x", layout="cafe")


@pytest.mark.parametrize(("name", "instead"), [("Source", "DatasetSettings"), ("register_source", "register_format")])
def test_a_removed_name_says_the_new_one(name: str, instead: str) -> None:
    with pytest.raises(ImportError, match=f"storeds.{name} was removed: use {instead}"):
        getattr(storeds, name)


# Registering


def test_what_is_registered_opens(registries: None) -> None:
    make_store({"a": "int"}, [{"a": 1}], "memory://mine", overwrite=True)
    asked: list[str] = []

    def mine(url: str, **options: Any) -> Any:
        asked.append(url)
        return MEMORY(url.replace("mine:", "memory:"), **options)

    storeds.register_backend("mine", mine)
    storeds.register_backend("text", "storeds.backends.memory:MEMORY")
    storeds.register_layout("memory", "foreign", mine)
    assert BACKENDS.get("text") is MEMORY  # imported on first use
    for url, options in (("mine://mine", {}), ("memory://mine", {"layout": "foreign"})):
        with storeds.open_backend(url, **options) as backend:
            assert (backend.get_many([0]), asked[-1]) == ([{"a": 1}], url)
    with pytest.raises(ConfigError, match="backend 'mine' can only read"):
        storeds.open_writer("mine://x", {"a": "int"})


def test_a_name_is_taken_unless_clobbered(registries: None) -> None:
    storeds.register_reader("mine", dict)
    for register, name in ((storeds.register_reader, "mine"), (storeds.register_decoder, "pil")):
        with pytest.raises(ConfigError, match=rf"'{name}' exists already \(.*\); pass clobber=True to replace it"):
            register(name, list)
        register(name, list, clobber=True)
    assert (READERS.get("mine"), DECODERS.get("pil")) == (list, list)
    with pytest.raises(ConfigError, match=r"backend 'lmdb' exists already \(built in\)"):
        storeds.register_backend("lmdb", MEMORY)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no_such_module:Thing", "No module named 'no_such_module'"),
        ("storeds.errors:NoSuchName", "module 'storeds.errors' has no 'NoSuchName'"),
        ("storeds.errors", "must read package.module:name"),
    ],
)
def test_what_cannot_be_imported_says_what_to_install(registries: None, target: str, says: str) -> None:
    storeds.register_backend("mine", target, needs="some-package>=2")
    with pytest.raises(MissingDependencyError) as caught:
        storeds.open_backend("mine://x")
    assert says in str(caught.value)
    assert str(caught.value).startswith("backend 'mine' (registered) cannot be imported: ")
    assert str(caught.value).endswith("; install some-package>=2")
    assert isinstance(caught.value.__cause__, ImportError)


def test_a_format_is_an_object_and_not_the_function_that_reads(registries: None) -> None:
    with pytest.raises(ConfigError, match=r"format 'mine' is a storeds.formats.Format or package.module:name, not"):
        storeds.register_format("mine", dict)
    storeds.register_format("mine", "storeds.formats.voc:voc")
    says = r"format 'mine' \(registered\) must be a storeds.formats.Format, not <function"
    with pytest.raises(ConfigError, match=says):
        storeds.pack(".", "memory://mine", kind="mine")


# Entry points of other distributions

GOOD = """
    from storeds.backends.memory import MEMORY
    import storeds

    def GoodBackend(url, **options):
        with storeds.open_writer("memory://good", {"a": "int"}, overwrite=True) as writer:
            writer.append([{"a": 41}, {"a": 42}])
        return MEMORY("memory://good", **options)

    def read(**options): return "good reader"
    def decode(blob, mode): return "good decoder"
"""
POINTS = """
    [storeds.backends]
    good = third_party.good:GoodBackend
    raises = third_party.raises:Backend
    missing = third_party.needs_more:Backend
    nameless = third_party.good:NoSuchName
    lmdb = third_party.good:GoodBackend

    [storeds.layouts]
    memory/theirs = third_party.good:GoodBackend

    [storeds.readers]
    good = third_party.good:read

    [storeds.decoders]
    good = third_party.good:decode
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder with an installed distribution, as pip leaves it."""
    return write(
        tmp_path,
        {
            "third_party/__init__.py": "",
            "third_party/good.py": textwrap.dedent(GOOD),
            "third_party/raises.py": "raise RuntimeError('cannot start')\n",
            "third_party/needs_more.py": "import no_such_engine\n",
            "third_party-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n",
            "third_party-1.0.dist-info/entry_points.txt": textwrap.dedent(POINTS),
        },
    )


PROGRAM = """
    import json, sys, warnings
    import storeds
    from storeds.registry import BACKENDS, DECODERS, READERS

    loaded = [module for module in sys.modules if "third_party" in module]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with storeds.open_backend("good://x") as backend:
            records = backend.get_many([1, 0])
        with storeds.open_backend("memory://good", layout="theirs") as backend:
            count = len(backend)
        storeds.open_writer("memory://other", {"a": "int"}).abort()
    errors = {}
    for scheme in ("raises", "missing", "nameless"):
        try:
            storeds.open_backend(f"{scheme}://x")
        except storeds.errors.StoredsError as error:
            errors[scheme] = [type(error).__name__, str(error)]
    print(json.dumps({
        "loaded by import": loaded,
        "records": records,
        "count": count,
        "said": [str(each.message) for each in caught if each.category is RuntimeWarning],
        "errors": errors,
        "lmdb": BACKENDS.get("lmdb").opener.__module__,
        "others": [READERS.get("good")(), DECODERS.get("good")(b"", "RGB")],
        "rows": {row["name"]: row for row in BACKENDS.describe()},
    }))
"""


def test_good_plug_ins_work_and_broken_ones_only_warn_and_importing_loads_none(site: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{textwrap.dedent(PROGRAM)}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["loaded by import"] == []
    assert (found["records"], found["count"]) == ([{"a": 42}, {"a": 41}], 2)
    assert found["said"] == ["backend 'lmdb' of third-party is ignored: built in has that name"]
    kind, nameless = found["errors"].pop("nameless")
    assert (kind, "NoSuchName" in nameless) == ("MissingDependencyError", True)
    missing = (
        "backend 'missing' (third-party) cannot be imported: No module named 'no_such_engine'; install third-party"
    )
    assert found["errors"] == {
        "raises": ["ConfigError", "backend 'raises' (third-party) cannot be loaded: RuntimeError: cannot start"],
        "missing": ["MissingDependencyError", missing],
    }
    assert found["lmdb"] == "storeds.backends.lmdb.reading"
    assert found["others"] == ["good reader", "good decoder"]
    rows = found["rows"]
    assert rows["good"] == {"name": "good", "origin": "third-party", "needs": "third-party", "state": "ok"}
    assert rows["lmdb"] == {"name": "lmdb", "origin": "built in", "needs": "lmdb", "state": "ok"}
    assert "cannot start" in rows["raises"]["state"]
    assert "no_such_engine" in rows["missing"]["state"]


# A scan of the entry points, which takes seconds on a network file system


def use(registry: Registry) -> None:
    """Call everything that looks into a registry."""
    assert registry.names() == ["pytest"]
    assert [row["name"] for row in registry.describe()] == ["pytest"]
    registry.get("pytest")
    registry.add("mine", dict, clobber=True)


def test_a_child_and_other_threads_do_not_wait_for_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry("thing", "console_scripts")
    started, may_end = threading.Event(), threading.Event()
    real, failed = importlib.metadata.entry_points, list[BaseException]()

    def slow(**group: str) -> Any:
        if threading.current_thread() is thread:
            started.set()
            may_end.wait()
        return real(**group).select(name="pytest")

    def scan() -> None:
        try:
            assert registry.names()[-1] == "pytest"
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=scan)
    monkeypatch.setattr(importlib.metadata, "entry_points", slow)
    thread.start()
    started.wait()
    try:
        in_fork(lambda: use(registry))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no name is said to be taken by itself
            use(registry)
    finally:
        may_end.set()
        thread.join()
    assert not failed
