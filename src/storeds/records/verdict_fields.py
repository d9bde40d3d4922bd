"""Names the fields beside an image that hold the verdict on it."""

from __future__ import annotations

from collections.abc import Mapping

from storeds.errors import ConfigError
from storeds.protocols import Field

__all__ = ["UNCHECKED", "pictures", "verdict_fields", "with_verdicts", "without_verdicts"]


UNCHECKED = ""
"""The finding of a picture that was not examined."""


def verdict_fields(image: str) -> tuple[str, str]:
    """Return the names of the fields that hold the verdict on an image field: its finding, and the share that is left."""
    return f"{image}_finding", f"{image}_recovered"


def pictures(fields: Mapping[str, Field]) -> dict[str, tuple[str, str]]:
    """Return each image field that has a verdict, with the names of the two fields that hold it."""
    pairs = {name: verdict_fields(name) for name, field in fields.items() if field.kind == "image"}
    return {image: pair for image, pair in pairs.items() if tuple(map(fields.get, pair)) == _VERDICT}


def without_verdicts(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields that describe no picture: those that samples have by default."""
    verdicts = {name for pair in pictures(fields).values() for name in pair}
    return {name: field for name, field in fields.items() if name not in verdicts}


def with_verdicts(fields: Mapping[str, Field]) -> dict[str, Field]:
    """Return the fields with a verdict for each image.

    Raises
    ------
    ConfigError
        A field with the name of a verdict has another kind.
    """
    found = dict(fields)
    for image in [name for name, field in fields.items() if field.kind == "image"]:
        for name, field in zip(verdict_fields(image), _VERDICT, strict=True):
            if found.setdefault(name, field) != field:
                raise ConfigError(
                    f"field {name!r} holds the verdict on the pictures in {image!r}, so it is of kind {field.kind}, not "
                    f"{found[name].kind}; rename it"
                )
    return found


_VERDICT = (Field("str"), Field("float"))
