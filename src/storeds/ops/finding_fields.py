"""The fields in which a store keeps what was found in its pictures: what they are called, and what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

import numpy as np

from storeds._columns import read_column
from storeds.errors import ConfigError
from storeds.jpeg.finding import Kind
from storeds.ops.pictures import Picture
from storeds.protocols import Backend, Field, Record

__all__ = ["DAMAGES", "FindingFields", "Tally"]

KINDS: tuple[str, ...] = get_args(Kind)
DAMAGES = frozenset(KINDS) - {"intact", "trailing_data", "not_jpeg"}


class FindingFields:
    """Two fields for each image field: ``finding``, the kind that triage gave it, and ``recovered``, the share that is there.

    Parameters
    ----------
    fields : mapping
        Of the source. Where it has several image fields, the names begin with the image's: ``left_finding``.
    where : str
        What messages call the source.

    Attributes
    ----------
    names : dict
        Image field → the names of its two.
    fields : dict
        `fields` with them; those that the source has already keep their places.

    Raises
    ------
    ConfigError
        There is no image field; or the source has other fields of these names.
    """

    def __init__(self, fields: Mapping[str, Field], where: str) -> None:
        images = [name for name, declared in fields.items() if declared.kind == "image"]
        if not images:
            shown = ", ".join(f"{name} ({declared.kind})" for name, declared in fields.items())
            raise ConfigError(f"{where} has no field of kind image to be checked, only {shown}")
        self.where = where
        self.names = {name: _names(name, alone=len(images) == 1) for name in images}
        self.fields = dict(fields)
        for finding, recovered in self.names.values():
            own = {finding: Field("str"), recovered: Field("float")}
            taken = {name: fields[name] for name in own if name in fields}
            if taken and taken != own:
                raise self._taken(", ".join(f"{name} ({declared.kind})" for name, declared in taken.items()))
            self.fields |= own

    def _taken(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self.where} has {what} already, and not as findings are kept (a str that names the finding, a float that "
            "says how much is there); pack it under another name"
        )

    def values(self, record: Record, image: str, picture: Picture) -> Record:
        """Return the two values for what `picture` holds, which is field `image` of `record`."""
        finding, recovered = self.names[image]
        known = record.get(finding)
        if known is not None and known not in KINDS:
            raise self._taken(f"{finding} {known!r}")
        if known in DAMAGES and picture.recovered >= record[recovered]:
            # It was mended before: whole by its structure now, but no more of it is there than there was.
            return {finding: known, recovered: record[recovered]}
        return {finding: picture.finding.kind, recovered: picture.recovered}


def _names(image: str, *, alone: bool) -> tuple[str, str]:
    return ("finding", "recovered") if alone else (f"{image}_finding", f"{image}_recovered")


@dataclass(frozen=True)
class Tally:
    """How many pictures of a store have which finding.

    Attributes
    ----------
    kinds : dict
        Kind → pictures, the most frequent first.
    lost : dict
        Kind → those of which nothing is there.
    """

    kinds: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: Backend, fields: FindingFields) -> Tally:
        """Count what the two columns of each image field of `backend` say."""
        kinds: Counter[str] = Counter()
        lost: Counter[str] = Counter()
        for finding, recovered in fields.names.values():
            found = read_column(backend, finding)
            kinds.update(found.tolist())
            lost.update(found[np.asarray(read_column(backend, recovered)) == 0.0].tolist())
        return cls(dict(kinds.most_common()), dict(lost.most_common()))
