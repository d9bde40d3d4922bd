"""`BackendTests`: everything a backend and its writer must do, checked against a plain list of records."""

from __future__ import annotations

from typing import Any, ClassVar

from storeds.testing.processes import PickleTests, ProcessTests
from storeds.testing.properties import PropertyTests
from storeds.testing.reads import ArrayTests, ReadTests
from storeds.testing.writes import PublishTests, WriteTests

__all__ = ["BackendTests"]


class BackendTests(ReadTests, ArrayTests, WriteTests, PublishTests, PickleTests, PropertyTests, ProcessTests):
    """The conformance suite of a backend; a subclass whose name begins with ``Test`` runs it.

    Notes
    -----
    A subclass states three things:

    ``make_url``
        A fixture (required): a function that returns the URL of a new, empty target at every call, and may clean up
        when its test ends.
    ``options`` : mapping
        Keywords for `storeds.open_backend` and `storeds.open_writer`, for example a client factory.
    ``cross_process`` : bool
        False for an engine that lives inside one process: the tests that start others then do not exist.

    The suite needs a writer with `flush` and `suspend`, as the protocol `Writer` says. Optional capabilities
    (`SupportsColumns`, `SupportsWhere`) are checked where a backend has them, and `SupportsBatchArrays` beside its default.
    """

    cross_process: ClassVar[bool] = True

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.cross_process:
            for name in vars(ProcessTests):
                if name.startswith("test_"):
                    setattr(cls, name, None)  # pytest collects functions only
