"""Checks records against the roles of their fields: when they are written, and when a store is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from storeds.protocols import JSON, Field, Record
from storeds.records.annotations import check_mask, check_mask_mode, check_values
from storeds.records.classes import class_fields, classes_in, unnamed_class
from storeds.records.shapes import layout_of

__all__ = ["LOSSY", "RoleChecker"]

LOSSY = "its JPEG compression changes class ids at the edges of objects; store masks as PNG"
"""Why a mask should not be a JPEG."""


class RoleChecker:
    """Checks the values of one record after another. Stateless between calls, and so thread-safe.

    Parameters
    ----------
    fields : mapping of str to Field
        All declared fields.
    read_header : callable
        Returns format, mode, height and width of a picture from its first bytes, or None, as
        `storeds.pictures.read_picture_header` does.
    on_lossy : callable, optional
        Called with the name of a field whose mask is a JPEG.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        read_header: Callable[[bytes], Any],
        on_lossy: Callable[[str], object] | None = None,
    ) -> None:
        self._read_header = read_header
        self._fields = {name: field for name, field in fields.items() if field.role is not None or field.of is not None}
        self._classes = class_fields(fields)
        self._on_lossy = on_lossy
        self._masks = [name for name, field in fields.items() if field.role == "mask" and field.kind == "image"]
        # The image that boxes and masks belong to, which is not clear if there are several.
        images = [name for name, field in fields.items() if field.role == "image"]
        images = images or [name for name, field in fields.items() if field.kind == "image" and field.role is None]
        is_sized = any(field.role in ("boxes", "mask") for field in fields.values())
        self._image = (images[0], fields[images[0]].shape) if is_sized and len(images) == 1 else None

    def __bool__(self) -> bool:
        """Whether any field has a role."""
        return bool(self._fields)

    def check(self, record: Record) -> None:
        """Raise ValueError for the first value of `record` that does not fit its role.

        Whether a value fits its kind is not checked here.
        """
        size = self._size(record)
        check_values(record, self._fields, size)
        for name in self._masks:
            header = self._header(record.get(name))
            if header is None:
                continue
            check_mask_mode(name, header.mode)
            check_mask(name, (header.height, header.width), size)
            if header.format == "JPEG" and self._on_lossy is not None:
                self._on_lossy(name)

    def fault(self, record: Record, classes: JSON) -> str | None:
        """Return what `check` finds, or a class of the record that `classes` of the attributes lacks; None if it is good."""
        try:
            self.check(record)
        except ValueError as error:
            return str(error)
        found = {name: dict.fromkeys(classes_in(field, record[name]), 0) for name, field in self._classes.items()}
        unnamed = unnamed_class(found, classes)
        return None if unnamed is None else unnamed[1]

    def _size(self, record: Record) -> tuple[int, int] | None:
        """Return height and width of the image as stored, or None if that is not clear."""
        if self._image is None:
            return None
        name, shape = self._image
        value = record.get(name)
        if shape is None:
            header = self._header(value)
            return None if header is None else (header.height, header.width)
        layout = layout_of(shape)
        if layout is None or not isinstance(value, np.ndarray):
            return None
        height, width = value.shape[-3:-1] if layout == "last" else value.shape[-2:]
        return height, width

    def _header(self, value: Any) -> Any:
        return self._read_header(bytes(value)) if isinstance(value, (bytes, bytearray, memoryview)) else None
