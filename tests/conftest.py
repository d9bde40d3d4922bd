"""Fixtures and hooks of every test: a MongoDB server, URLs of new stores, markers, and the share of cases that runs."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from hypothesis import HealthCheck, settings

from _torchvision import enable_torchvision
from shares import FULL, SEED, examples, share

# CI tries the same examples each time; elsewhere, every run looks for new ones. A busy machine fails no test.
settings.register_profile(
    "storeds",
    max_examples=examples(100),
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("storeds")

enable_torchvision()

# albumentations asks PyPI for a newer version during its import.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

ENGINES = ("lmdb", "hdf5", "mongodb", "memory")

PROCESSES = (
    "crashes distributed examples failover forks loader modes modes_bad_input mongod plugin_example processes ray "
    "samples_equal sampling two_writers verify_damage"
)
PROCESS_FILES = frozenset(f"test_{name}.py" for name in PROCESSES.split())
"""Files whose tests get the marker ``process``."""

SLOW_FILES = frozenset(("test_bad_stores.py", "test_crashes.py", "test_examples.py", "test_never_silent.py"))
"""Files whose tests get the marker ``slow``; other slow tests carry it themselves."""


def pytest_report_header() -> str:
    """Print what repeats this run."""
    return "storeds: every case" if FULL else f"storeds: a share of the repeated cases, STOREDS_TEST_SEED={SEED}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add the markers ``mongodb``, ``process`` and ``slow``, and keep a share of the cases that repeat.

    Of the cases whose processes import torch again, a run takes one of each test. The marker ``share`` says how many cases
    of its test a run takes.
    """
    for item in items:
        if needs_mongodb(item):
            item.add_marker("mongodb")
        if item.path.name in PROCESS_FILES:
            item.add_marker("process")
        if item.path.name in SLOW_FILES:
            item.add_marker("slow")
    every = list(items)
    take_share(items, lambda item: 1 if spawns(item) else None)
    take_share(items, lambda item: next((mark.args[0] for mark in item.iter_markers("share")), None))
    kept = set(items)
    config.hook.pytest_deselected(items=[item for item in every if item not in kept])


def take_share(items: list[pytest.Item], count_of: Callable[[pytest.Item], int | None]) -> None:
    """Drop items beyond the count of those of their test; None keeps an item."""
    cases: dict[tuple[str, int], list[pytest.Item]] = {}
    for item in items:
        count = count_of(item)
        if count is not None:
            cases.setdefault((item.nodeid.partition("[")[0], count), []).append(item)
    skipped: set[pytest.Item] = set()
    for (_, count), of_one_test in cases.items():
        skipped |= set(of_one_test).difference(share(of_one_test, count))
    items[:] = [item for item in items if item not in skipped]


def spawns(item: pytest.Item) -> bool:
    """Return whether a test is parametrized with a start method whose processes import everything again."""
    for value in item.callspec.params.values() if hasattr(item, "callspec") else ():
        parts = value if isinstance(value, tuple) else (value,)
        if any(isinstance(part, str) and part in ("spawn", "forkserver") for part in parts):
            return True
    return False


def needs_mongodb(item: pytest.Item) -> bool:
    """Return whether a test requests a server, itself or for an engine that it is parametrized with."""
    names: list[str] = getattr(item, "fixturenames", [])
    values = item.callspec.params.values() if hasattr(item, "callspec") else ()
    return "mongodb" in names or ("make_engine_url" in names and "mongodb" in map(str, values))


@pytest.fixture(scope="session")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of ``STOREDS_TEST_MONGODB_URI``, or of a server that this process of the session starts. Never skips."""
    given = os.environ.get("STOREDS_TEST_MONGODB_URI")
    if given:
        yield given
    else:
        from storeds.testing import run_mongod

        with run_mongod(tmp_path_factory.mktemp("mongod")) as uri:
            yield uri


@pytest.fixture
def mongodb_database(mongodb: str) -> Iterator[str]:
    """URL of a new database, dropped after the test; append ``/name`` for a collection."""
    name = f"storeds_test_{secrets.token_hex(6)}"
    yield with_path(mongodb, name)
    with pymongo.MongoClient[Any](mongodb) as client:
        client.drop_database(name)


@pytest.fixture
def database(mongodb_database: str) -> Iterator[Any]:
    """The database of `mongodb_database`, as PyMongo sees it."""
    with pymongo.MongoClient[Any](mongodb_database) as client:
        yield client.get_default_database()


def with_path(uri: str, path: str) -> str:
    """Append a segment to the path of a URI, before its options."""
    before, mark, options = uri.partition("?")
    return f"{before.rstrip('/')}/{path}{mark}{options}"


@pytest.fixture
def make_engine_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that returns the URL of a new store of an engine at every call."""
    numbers = itertools.count()

    def make(engine: str) -> str:
        name = f"store{next(numbers)}"
        if engine == "mongodb":
            # Requested here, so that tests of other engines need no server.
            return with_path(request.getfixturevalue("mongodb_database"), name)
        if engine == "memory":
            return f"memory://{tmp_path.name}-{secrets.token_hex(6)}-{name}"
        return f"{engine}://{tmp_path}/{name}.{engine}"

    return make


@pytest.fixture
def registries() -> Iterator[None]:
    """Forget what a test registers."""
    from storeds.registry import BACKENDS, DECODERS, FORMATS, LAYOUTS, READERS

    every = (BACKENDS, LAYOUTS, READERS, DECODERS, FORMATS)
    for each in every:
        each.names()  # scans the entry points, which is not repeated
    before = [dict(each._known) for each in every]
    yield
    for each, known in zip(every, before, strict=True):
        each._known.clear()
        each._known.update(known)
