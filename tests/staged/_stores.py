"""Small stores for tests of staging: written, read, and put into a bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import storeds

__all__ = ["COUNT", "FIELDS", "numbers", "upload", "write"]

FIELDS = {"blob": "bytes", "n": "int", "key": "str"}
COUNT = 60


def write(url: str, first: int = 0, count: int = COUNT) -> str:
    with storeds.open_writer(url, FIELDS) as writer:
        writer.append({"blob": bytes([n % 256]) * 20_000, "n": n, "key": f"k{n}"} for n in range(first, first + count))
    return url


def numbers(url: Any, **how: Any) -> list[int]:
    with storeds.open_backend(url, **how) as backend:
        return [row["n"] for row in backend.get_many(range(len(backend)))]  # type: ignore[index]  # none is bad


def upload(bucket: Any, folder: Path, prefix: str) -> int:
    """Put the files below a folder, and return their bytes."""
    import obstore

    total = 0
    for path in sorted(folder.rglob("*")) if folder.is_dir() else [folder]:
        if path.is_file():
            name = f"{prefix}/{path.relative_to(folder)}" if folder.is_dir() else prefix
            obstore.put(bucket, name, path)
            total += path.stat().st_size
    return total
