"""Says how much of a picture a list of scans carries, going by what each scan declares.

ITU-T T.81, annex G: a scan carries a band of coefficients (Ss to Se) of some components, down to bit Al. libjpeg does not
notice when a scan is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from storeds.jpeg.structure import Component, Scan, Structure

__all__ = ["blocks_of", "coverage", "grid_of", "units_of"]

_BAND = 64


def coverage(structure: Structure, scans: Sequence[Scan]) -> float:
    """Return the share of the coefficients that `scans` carry; 1.0 exactly if every bit of every one.

    A coefficient of which n bits are still to come counts for 1 / 2**n.
    """
    sequential = structure.frame is None or not structure.frame.process.startswith("progressive")
    if sequential and any(len(scan.parts) == len(structure.components) for scan in scans):
        return 1.0
    # Bits still to come of each coefficient; a refinement counts only where all before it has come (Ah).
    missing: list[list[int | None]] = [[None] * _BAND for _ in structure.components]
    for scan in scans:
        ss, se, ah, al = (0, _BAND - 1, 0, 0) if sequential else (scan.ss, scan.se, scan.ah, scan.al)
        for place, _, _ in scan.parts:
            band = missing[place]
            for k in range(ss, se + 1):
                if not ah or band[k] == ah:
                    band[k] = al
    weights = [component.h * component.v for component in structure.components]
    carried = sum(
        weight * sum(0.5**bits for bits in band if bits is not None)
        for weight, band in zip(weights, missing, strict=True)
    )
    return carried / (_BAND * sum(weights))


def grid_of(structure: Structure, component: Component) -> tuple[int, int]:
    """Return the (columns, rows) of blocks, or of samples in a lossless file, that a scan of this component alone holds."""
    assert structure.frame is not None
    widest = max(other.h for other in structure.components)
    tallest = max(other.v for other in structure.components)
    width = -(-structure.frame.width * component.h // widest)
    height = -(-structure.frame.height * component.v // tallest)
    side = _side(structure)
    return -(-width // side), -(-height // side)


def units_of(structure: Structure, scan: Scan) -> int:
    """Return how many MCUs `scan` holds."""
    assert structure.frame is not None
    if len(scan.parts) == 1:
        columns, rows = grid_of(structure, structure.components[scan.parts[0][0]])
        return columns * rows
    side = _side(structure)
    widest = side * max(component.h for component in structure.components)
    tallest = side * max(component.v for component in structure.components)
    return -(-structure.frame.width // widest) * -(-structure.frame.height // tallest)


def _side(structure: Structure) -> int:
    """Return how many samples a side a block has."""
    assert structure.frame is not None
    return 1 if structure.frame.process.startswith("lossless") else 8


def blocks_of(structure: Structure, scan: Scan) -> list[tuple[int, int]]:
    """Return the (DC table, AC table) of each block of one MCU of `scan`."""
    if len(scan.parts) == 1:
        return [scan.parts[0][1:]]
    return [
        (dc, ac)
        for place, dc, ac in scan.parts
        for _ in range(structure.components[place].h * structure.components[place].v)
    ]
