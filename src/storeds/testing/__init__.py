"""The conformance kit: pytest classes that check the contract of backends and readers. Start with ``backends.py``.

The whole test of a plug-in is a subclass with a fixture::

    class TestMine(BackendTests):
        @pytest.fixture
        def make_url(self, tmp_path):
            return lambda: f"mine://{tmp_path}/{uuid4().hex}"

The kit needs ``pytest`` and ``hypothesis``. `storeds.testing.mongod`, which runs a MongoDB server, needs neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storeds.testing.backends import BackendTests as BackendTests
    from storeds.testing.readers import ReaderTests as ReaderTests

__all__ = ["BackendTests", "ReaderTests"]

_LAZY = {"BackendTests": "storeds.testing.backends", "ReaderTests": "storeds.testing.readers"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'storeds.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
