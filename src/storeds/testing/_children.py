"""What the conformance kit runs in other processes; imports neither pytest nor hypothesis, so that they start fast."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from storeds.protocols import Backend
from storeds.stores import open_writer
from storeds.testing._values import SMALL, fingerprint, small_records

__all__ = ["answer", "write_and_die"]


def answer(pipe: Connection, backend: Backend | bytes, batches: Sequence[Sequence[int]]) -> None:
    """Send the fingerprints of batches read with a backend, or with a pickled one; a traceback if that fails."""
    try:
        # The parent pickled it, to choose itself what the child unpickles.
        opened: Backend = pickle.loads(backend) if isinstance(backend, bytes) else backend
        prints = [fingerprint(opened.get_many(batch)) for batch in batches]
        opened.close()
        pipe.send(prints)
    except BaseException:
        pipe.send(traceback.format_exc())


def write_and_die(url: str, count: int, how: Mapping[str, Any]) -> None:
    """Append small records, then end as the kernel ends a process that took too much memory."""
    writer = open_writer(url, SMALL, **how)
    writer.append(small_records(count))
    os.kill(os.getpid(), signal.SIGKILL)
