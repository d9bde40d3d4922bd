"""What the tests share: a MongoDB server for the session, and URLs of new targets in every engine."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pymongo
import pytest
from hypothesis import settings

from _torchvision import enable_torchvision
from storeds.testing.mongod import run_mongod

# A change is judged by the same examples each time; at a desk, every run looks for new ones.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")

enable_torchvision()

# albumentations asks PyPI for a newer version when it is imported.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

ENGINES = ("lmdb", "hdf5", "mongodb", "memory")


@pytest.fixture(scope="session")
def mongodb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URI of a real server: ``STOREDS_TEST_MONGODB_URI``, or one that this session runs. Never skips."""
    given = os.environ.get("STOREDS_TEST_MONGODB_URI")
    if given:
        yield given
    else:
        with run_mongod(tmp_path_factory.mktemp("mongod")) as uri:
            yield uri


@pytest.fixture
def mongodb_database(mongodb: str) -> Iterator[str]:
    """URL of a database of this test's own, dropped afterwards; a collection's URL has ``/name`` more."""
    name = f"storeds_test_{secrets.token_hex(6)}"
    yield with_path(mongodb, name)
    client: pymongo.MongoClient[Any] = pymongo.MongoClient(mongodb)
    with client:
        client.drop_database(name)


def with_path(uri: str, path: str) -> str:
    """Append a segment to the path of a URI, before its options."""
    place, mark, options = uri.partition("?")
    return f"{place.rstrip('/')}/{path}{mark}{options}"


@pytest.fixture
def make_engine_url(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Return a function that names a new, empty target of an engine at every call."""
    numbers = itertools.count()

    def make(engine: str) -> str:
        name = f"store{next(numbers)}"
        if engine == "mongodb":
            # Looked up only now, so that tests of other engines need no server.
            return with_path(request.getfixturevalue("mongodb_database"), name)
        if engine == "memory":
            return f"memory://{tmp_path.name}-{secrets.token_hex(6)}-{name}"
        return f"{engine}://{tmp_path}/{name}.{engine}"

    return make
