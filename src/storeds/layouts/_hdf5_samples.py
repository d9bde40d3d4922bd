"""What the samples of a foreign HDF5 file hold, where they are one or several datasets each: found once and kept packed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storeds.errors import FormatError
from storeds.fields import fields_from_json, fields_to_json
from storeds.layouts._hdf5_elements import attribute_fields, attributes, element_field
from storeds.layouts._hdf5_files import Hdf5Files, NoSuchNameError
from storeds.layouts._hdf5_names import PackedIndex, field_names, natural_order, split
from storeds.layouts._hdf5_pairs import Sample
from storeds.layouts._hdf5_series import Arrangement, Part, arrange, spread
from storeds.protocols import JSON, Array, Field

__all__ = ["KEY", "SamplePlan", "SampleScan", "path_of"]

KEY, LABEL, CLASS, GROUP = "key", "label", "class", "group"
_IN_A_ROW = re.compile(
    r"(video|vid|v|clip|sequence|seq|episode|demo|traj(ectory)?|scene|shot|subject|subj|sub|s|patient|person|participant|user|case|"
    r"session|trial|run|recording|sensor|camera|cam|fold|part|shard|chunk|batch|slide|study|scan|volume|frame|sample)s?"
    r"[ _-]?\d+",
    re.IGNORECASE,
)
_LOOKED_AT = 64  # more than to recognise a store: what is one number in all of them is taken to be one in all others


def path_of(group: str, part: Part, key: str, classes: bool) -> str:
    """Return where the dataset of a sample is: its class's group stands before what the field adds to the key."""
    before, after = part
    head, slash, tail = key.partition("/") if classes else ("", "", key)
    return f"{group.rstrip('/')}/{head}{slash}{before}{tail}{after}"


@dataclass(frozen=True)
class SamplePlan:
    """How each sample is laid out; equal for all of them.

    Attributes
    ----------
    group : str
        That holds the samples, or the classes.
    classes : sequence of str or None
        The groups that are classes; None where there are none.
    label : str
        The field of the class: ``label``, or ``class`` where a dataset is the label; ``group`` where groups need not be
        classes.
    parts : mapping of str to Part
        Field → its datasets.
    fields : mapping of str to Field
    attributes : mapping of str to (Part, str)
        Field → what has the attribute, and its name there.
    attribute_kinds : mapping of str to Field
    """

    group: str
    classes: list[str] | None
    label: str
    parts: Mapping[str, Part]
    fields: Mapping[str, Field]
    attributes: Mapping[str, tuple[Part, str]]
    attribute_kinds: Mapping[str, Field]

    def to_json(self) -> dict[str, JSON]:
        """Return the plan as JSON."""
        return {
            "group": self.group,
            "classes": None if self.classes is None else list(self.classes),
            "label": self.label,
            "parts": {name: list(part) for name, part in self.parts.items()},
            "fields": fields_to_json(self.fields),
            "attributes": {name: [list(part), attribute] for name, (part, attribute) in self.attributes.items()},
            "attribute_kinds": fields_to_json(self.attribute_kinds),
        }

    @classmethod
    def from_json(cls, told: Any) -> SamplePlan:
        """Return the plan that `to_json` wrote."""
        return cls(
            told["group"],
            told["classes"],
            told["label"],
            {name: (before, after) for name, (before, after) in told["parts"].items()},
            fields_from_json(told["fields"]),
            {name: ((before, after), attribute) for name, ((before, after), attribute) in told["attributes"].items()},
            fields_from_json(told["attribute_kinds"]) if told["attribute_kinds"] else {},
        )


class SampleScan:
    """Finds the samples of a file.

    Parameters
    ----------
    files : Hdf5Files
    group : str
        Below which they are.
    sample : str or None
        What one sample is, if the user said so.
    """

    def __init__(self, files: Hdf5Files, group: str, sample: Sample | None) -> None:
        self._files, self._group, self._sample = files, group, sample

    def scan(self) -> Array:
        """Return the array of a `PackedIndex`: the samples' names, the numbers of their classes, and the plan."""
        found = arrange(self._files, self._group, self._sample)
        if found is None:
            raise self._error()
        return PackedIndex.make(found.series.keys, found.labels, self._plan(found).to_json())

    def _error(self) -> FormatError:
        url, group = self._files.url, self._group
        names, groups = split(self._files.group(group))
        if names and groups:
            return FormatError(
                f"{url}: {group} holds datasets and groups ({names[0]!r}, {groups[0]!r}); group= names the one that holds samples"
            )
        if not groups:
            return FormatError(f"{url}: {group} holds no dataset, so no sample")
        there = ", ".join(natural_order(groups)[:4])
        return FormatError(
            f"{url}: the groups of {group} ({there}) are neither samples, which hold the same datasets each, nor classes, whose "
            "samples are alike; group= names the one that holds samples"
        )

    def _plan(self, found: Arrangement) -> SamplePlan:
        files, group, classes = self._files, found.group, found.classes
        keys = spread(found.series.keys, _LOOKED_AT)
        kinds: dict[str, Field] = {}
        owners = {("", ""): path_of(group, ("", ""), keys[0], False)} if found.series.sort == "groups" else {}
        for name, part in found.series.parts.items():
            paths = _existing(files, [path_of(group, part, key, classes is not None) for key in keys])
            kinds[name] = element_field(files, paths)
            owners[part] = paths[0]
        names = field_names([name or _called(kinds[name]) for name in kinds], [KEY])
        fields = {field: kinds[name] for name, field in zip(kinds, names.values(), strict=True)}
        parts = dict(zip(fields, found.series.parts.values(), strict=True))
        label = (
            GROUP if classes and not are_classes(classes, [*fields.values()]) else CLASS if LABEL in fields else LABEL
        )
        noted: dict[str, tuple[Part, str]] = {}
        noted_kinds: dict[str, Field] = {}
        for part, path in owners.items():
            has = attributes(files.find(path)[0])
            told = attribute_fields(has)
            for attribute, field in field_names(
                list(has), [*fields, *noted, KEY, *([label] if classes else [])]
            ).items():
                noted[field], noted_kinds[field] = (part, attribute), told[attribute]
        return SamplePlan(group, None if classes is None else list(classes), label, parts, fields, noted, noted_kinds)


def are_classes(groups: Sequence[str], fields: Sequence[Field]) -> bool:
    """Whether groups are classes: they hold pictures or other arrays of two dimensions, and are not called things in a row.

    A group of feature vectors is a video or a person as well as a class: a label made of it would be invented.
    """
    if all(map(_IN_A_ROW.fullmatch, groups)):
        return False
    return any(field.kind == "image" or (field.kind == "array" and len(field.shape or ()) > 1) for field in fields)


def _existing(files: Hdf5Files, paths: list[str]) -> list[str]:
    """Return the datasets that are there: one that is missing spoils its own sample, not the store."""
    found = []
    for path in paths:
        with contextlib.suppress(NoSuchNameError):
            files.dataset(path)
            found.append(path)
    return found or paths[:1]


def _called(field: Field) -> str:
    return field.kind if field.kind in ("image", "bytes", "array") else "value"
