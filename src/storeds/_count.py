"""A number whose pickle takes the same room whatever its size, so that a dataset's does too."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Count"]


class Count(int):
    """An int below 2**64; pickled, it takes 8 bytes."""

    def __reduce__(self) -> tuple[Callable[[bytes], Count], tuple[bytes]]:
        return _unpickle, (self.to_bytes(8, "little"),)


def _unpickle(data: bytes) -> Count:
    return Count(int.from_bytes(data, "little"))
