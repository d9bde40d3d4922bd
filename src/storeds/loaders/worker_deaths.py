"""Adds the probable cause and a remedy to PyTorch's error about a dead worker process, which names only the signal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from storeds._utils.text import some

__all__ = ["explaining_deaths"]

# What torch.utils.data says when a worker is gone.
_DEATH = re.compile(r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) (is killed by signal|exited unexpectedly)")


@contextmanager
def explaining_deaths(dataset: Any) -> Iterator[None]:
    """Add to PyTorch's RuntimeError about a dead worker which stores it read, and what to run."""
    try:
        yield
    except RuntimeError as error:
        if not _DEATH.search(str(error)):
            raise
        urls = list(dict.fromkeys(_urls(dataset)))
        raise RuntimeError(f"{error}{_advice(urls)}") from error


def _advice(urls: list[str]) -> str:
    files = [url for url in urls if url.startswith("lmdb://")]
    read = f"It read {some(urls)}." if urls else ""
    if not files:
        return f"\n{read}" if read else ""
    return (
        f"\n{read} LMDB maps its file: a damaged or truncated one ends the process that reads it, by SIGBUS or SIGSEGV. "
        f"Run `storeds verify {files[0]}` to find damage; read=safe in the URL ({files[0]}?read=safe) makes it an error. "
        "If the file is whole, look for the kernel's out-of-memory killer (SIGKILL) and for too little shared memory."
    )


def _urls(dataset: Any) -> Iterator[str]:
    """Yield the URLs of the stores below a dataset: through Subset, ConcatDataset and the like."""
    url = getattr(dataset, "url", None)
    if isinstance(url, str):
        yield url
        return
    inner = getattr(dataset, "dataset", None)
    for each in [inner] if inner is not None else getattr(dataset, "datasets", ()):
        yield from _urls(each)
