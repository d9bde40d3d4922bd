"""What the conformance kit runs in other processes; imports neither pytest nor hypothesis, so that they start fast."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Connection

from storeds.protocols import Backend
from storeds.testing._values import fingerprint

__all__ = ["answer"]


def answer(pipe: Connection, backend: Backend | bytes, batches: Sequence[Sequence[int]]) -> None:
    """Send the fingerprints of batches read with a backend, or with a pickled one; a traceback if that fails."""
    try:
        if isinstance(backend, bytes):
            backend = pickle.loads(backend)  # noqa: S301  # the parent pickled it
        prints = [fingerprint(backend.get_many(batch)) for batch in batches]
        backend.close()
        pipe.send(prints)
    except BaseException:
        pipe.send(traceback.format_exc())
