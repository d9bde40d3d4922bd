"""The conformance kit: pytest classes that check the contract of backends and readers. Start with ``backends.py``.

The whole test of a plug-in is a subclass with a fixture::

    class TestMine(BackendTests):
        @pytest.fixture
        def make_url(self, tmp_path):
            return lambda: f"mine://{tmp_path}/{uuid4().hex}"

The kit needs ``pytest`` and ``hypothesis``. `run_mongod`, which runs a MongoDB server, needs neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.testing.backends import BackendTests, PickleTests, ProcessTests
    from storeds.testing.kit import FIELDS, MakeUrl, assert_same, fingerprint, frozen, kept, make_records, reference_id
    from storeds.testing.mongod import find_mongod, launch_mongod, mongod_error, require_mongod, run_mongod
    from storeds.testing.properties import PropertyTests, contents
    from storeds.testing.readers import ReaderTests
    from storeds.testing.reads import ArrayTests, ReadTests
    from storeds.testing.writes import PublishTests, WriteTests

__all__ = [
    "FIELDS",
    "ArrayTests",
    "BackendTests",
    "MakeUrl",
    "PickleTests",
    "ProcessTests",
    "PropertyTests",
    "PublishTests",
    "ReadTests",
    "ReaderTests",
    "WriteTests",
    "assert_same",
    "contents",
    "find_mongod",
    "fingerprint",
    "frozen",
    "kept",
    "launch_mongod",
    "make_records",
    "mongod_error",
    "reference_id",
    "require_mongod",
    "run_mongod",
]

__getattr__ = export_lazily(
    __name__,
    {
        "backends": ("BackendTests", "PickleTests", "ProcessTests"),
        "kit": ("FIELDS", "MakeUrl", "assert_same", "fingerprint", "frozen", "kept", "make_records", "reference_id"),
        "mongod": ("find_mongod", "launch_mongod", "mongod_error", "require_mongod", "run_mongod"),
        "properties": ("PropertyTests", "contents"),
        "readers": ("ReaderTests",),
        "reads": ("ArrayTests", "ReadTests"),
        "writes": ("PublishTests", "WriteTests"),
    },
)
