"""A window that is drawn before its picture is decoded, so that the decoder can leave out what nobody will see."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import torch

__all__ = ["Cropper", "Window", "Windowed", "divisor", "scaled_down"]

Window: TypeAlias = tuple[int, int, int, int]


class Cropper(Protocol):
    """A transform that cuts out a window and resizes it, and can say which one from the size of the picture alone."""

    @property
    def edges(self) -> tuple[int, int]:
        """Height and width of what it makes of the window, in pixels."""
        ...

    def window(self, height: int, width: int, generator: torch.Generator | None = None) -> Window:
        """Draw (top, left, height, width)."""
        ...


class Windowed(NamedTuple):
    """As much of a picture as a window of it needs, and that window, in pixels of `image`."""

    image: torch.Tensor
    window: Window


def divisor(window: Window, size: tuple[int, int]) -> int:
    """Return by how much a picture may be decoded smaller, 1, 2, 4 or 8, so that the window still has `size` pixels."""
    return next(by for by in (8, 4, 2, 1) if by == 1 or (window[2] >= by * size[0] and window[3] >= by * size[1]))


def scaled_down(window: Window, by: int, height: int, width: int) -> Window:
    """Return the window in a picture that was decoded smaller, and has `height` and `width` now."""
    if by == 1:
        return window
    top, left = min(round(window[0] / by), height - 1), min(round(window[1] / by), width - 1)
    return top, left, min(max(round(window[2] / by), 1), height - top), min(max(round(window[3] / by), 1), width - left)
