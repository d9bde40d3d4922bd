"""Chooses records, and collects what is shown of each: its panels, texts, and what is wrong with it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from storeds._utils.text import byte_size, counted, printable
from storeds.backends.view import position_in_whole
from storeds.errors import ConfigError, RecordError, StoredsError
from storeds.ops.showing.panels import Panel, class_name, colour_of, mark_parts, panel_of
from storeds.pictures import MAX_PIXELS, Verdict, examine, format_of_picture, read_picture_header, repair
from storeds.pictures.formats import open_picture
from storeds.protocols import Array, Backend, Field, Record, Role
from storeds.readers.annotations import class_ids, coordinates_tensor, mask_tensor, plain_rows
from storeds.readers.channels import channels_first
from storeds.readers.choice import label_of
from storeds.readers.paths import JsonPath, value_at
from storeds.readers.reader import built_in
from storeds.records.annotations import check_values
from storeds.records.classes import stored_classes
from storeds.records.codec import checksum
from storeds.records.columns import read_column
from storeds.records.meta import NATIVE
from storeds.records.shapes import is_image_like, is_mask, is_pixel_array, layout_of
from storeds.records.verdict_fields import pictures, without_verdicts

__all__ = ["Collector", "Shown", "cut", "described", "is_picture", "noted", "spread"]

_LONG = 2000  # characters of a text
_FEW = 64  # numbers of an array that are shown
_BATCH = 32  # records
_MOST_PANELS = 10  # pictures of a record among others
_ROWS = 6  # fields of a record without pictures
_MOST_READ = 20_000  # records of which a field is read for classes, where engines do not store fields as columns
_OVER = ("mask", "boxes", "keypoints", "labels")


@dataclass
class Shown:
    """What is shown of a record.

    Attributes
    ----------
    position : int
    key, label, split : str
        Empty if it has none.
    colour : str
        That of its class, or empty.
    exact : bool
        Whether `key` is the whole key, without escapes, and one line.
    panels : list of Panel
    texts : list of str
        Captions.
    fields : dict
        Field → its value as text.
    tags : list of str
        The kinds of its findings, ``unreadable`` or ``duplicate``.
    notes : list of str
        What is wrong with it, in words.
    """

    position: int
    key: str = ""
    label: str = ""
    colour: str = ""
    split: str = ""
    exact: bool = False
    panels: list[Panel] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    fields: dict[str, str] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    checksum: str = ""

    @property
    def in_tile(self) -> list[Panel]:
        """The panels that are shown among other records."""
        return [panel for panel in self.panels if not panel.aside][:_MOST_PANELS]

    @property
    def facts(self) -> dict[str, Any]:
        """By what a page selects it, and what it copies."""
        return {
            "key": self.key,
            "exact": self.exact,
            "label": [self.label],
            "split": [self.split],
            "tags": self.tags,
        }


def cut(text: str) -> str:
    """Return a text of at most 2,000 characters, with control characters escaped."""
    short = printable(text[:_LONG], "\n\t")
    return short if len(text) <= _LONG else f"{short} … ({counted(len(text), 'character')})"


def _text_of(value: Any) -> str:
    return cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


def described(record: Record, fields: Mapping[str, Field]) -> dict[str, Any]:
    """Return a record as JSON, in which pictures, bytes and arrays are described in words.

    A picture is for example ``JPEG 96 × 64, intact, 1.1 kB (1,090 bytes), checksum d516f18760feb6f9``.
    """
    found: dict[str, Any] = {}
    for name, declared in fields.items():
        value = record[name]
        if isinstance(value, np.ndarray):
            found[name] = f"{value.dtype} {list(value.shape)}" + (f": {value.tolist()}" if value.size <= _FEW else "")
        elif isinstance(value, bytes):
            header, verdict = read_picture_header(value), Verdict.of(record, name)
            what = f"{header.format} {header.width} × {header.height}" if header else format_of_picture(value)
            about = f"{what}, {verdict.finding if verdict else 'not examined'}, " if declared.kind == "image" else ""
            found[name] = f"{about}{byte_size(len(value))}, checksum {checksum(value).hex()}"
        else:
            found[name] = value
    return found


class Collector:
    """Reads records of a store, or of a dataset with its elements and roles.

    Parameters
    ----------
    view : Backend
        The records.
    reader : Reader, optional
        That of a dataset. The reader ``sample`` says what the elements of samples are.
    pixels : int
        A larger picture is shown at about so many.
    """

    def __init__(self, view: Backend, reader: Any = None, pixels: int = 65_536) -> None:
        self.view = view
        self._pixels = pixels
        self._fields = fields = without_verdicts(view.meta.fields)
        elements = {name: (JsonPath(name), each) for name, each in fields.items()}
        bound = built_in(reader)
        if bound is not None and bound.joint is not None:
            own = {each.name: (each.path, each.declared) for each in bound.elements if each.path is not None}
            replaced = {path.field for path, _ in own.values() if not path.steps}
            elements = own | {name: each for name, each in elements.items() if name not in replaced}
        roles = {name: (path, replace(each, role=_role(name, each))) for name, (path, each) in elements.items()}
        # Pictures come first: their size scales what lies over them.
        self._elements = dict(sorted(roles.items(), key=lambda element: element[1][1].role in _OVER))
        labels = [name for name, each in fields.items() if each.role == "label"] or [*label_of(fields)]
        self.label: str | None = labels[0] if labels else None
        self._verdicts = pictures(view.meta.fields).values()
        self.classes: dict[str, list[str]] = {}
        """Field or element → the names of its classes."""
        by_field = isinstance(view.meta.attrs.get("classes"), Mapping)
        for name, (path, each) in self._elements.items():
            if by_field or name == self.label or each.role in ("labels", "mask"):
                self.classes[name] = [cut(text) for text in stored_classes(view.meta.attrs, path.field) or ()]
        self.columns: dict[str, Array] = self._read_columns()
        """The label, the split, verdicts and numbers of all records, where engines store them as columns."""

    def _read_columns(self) -> dict[str, Array]:
        by_class = {self.label, "split"}
        texts = {*by_class, *itertools.chain(*self._verdicts)}
        is_native = self.view.meta.layout == NATIVE
        found: dict[str, Array] = {}
        for name, each in self.view.meta.fields.items():
            if is_native:
                is_wanted = each.kind in ("int", "float") or (each.kind == "str" and name in texts)
            else:  # records are spread over its classes all the same
                is_wanted = each.kind in ("int", "str") and name in by_class and len(self.view) <= _MOST_READ
            if is_wanted:
                with suppress(StoredsError):  # a damaged column, which `verify` reports
                    found[name] = read_column(self.view, name)
        return found

    def name_of(self, field: str, value: Any) -> str:
        """Return a value as text: a class by its name."""
        return cut(class_name(value, self.classes.get(field)))

    def choose(self, most: int, *, worst_first: bool) -> list[int]:
        """Return positions spread over classes and splits; or `worst_first`."""
        if worst_first:
            return self._worst(most)
        by = [self.columns[name] for name in dict.fromkeys((self.label, "split")) if name in self.columns]
        return spread(len(self.view), most, by)

    def _worst(self, most: int) -> list[int]:
        """Return the damaged records, those of which least is left first, and then those with the most unusual numbers."""
        lost, unusual = np.zeros(len(self.view)), np.zeros(len(self.view))
        for finding, share in self._verdicts:
            if finding in self.columns and share in self.columns:
                whole = [kind in ("", "intact", "trailing_data") for kind in self.columns[finding].tolist()]
                lost = np.fmax(lost, np.where(whole, 0, 2 - np.nan_to_num(self.columns[share])))
        for name, numbers in self.columns.items():
            if numbers.dtype.kind in "if" and name not in {self.label, *(share for _, share in self._verdicts)}:
                distance = np.abs(numbers - np.nanmedian(numbers)) / (np.nanstd(numbers) or 1)
                unusual = np.fmax(unusual, distance)
        if not lost.any() and not unusual.any():
            raise ConfigError(
                f"--worst: {self.view.url} has no verdicts on pictures and no numbers that differ; `storeds show --damaged` "
                "examines every picture"
            )
        chosen: list[int] = np.lexsort((-unusual, -lost))[:most].tolist()
        return chosen

    def collect(self, chosen: Sequence[int]) -> Iterator[Shown]:
        """Yield what is shown of the records at these positions, read in batches."""
        for start in range(0, len(chosen), _BATCH):
            batch = chosen[start : start + _BATCH]
            for position, record in zip(batch, self.view.get_many(batch), strict=True):
                yield self._shown(position_in_whole(self.view, position), record)

    def _shown(self, position: int, record: Record | RecordError) -> Shown:
        if isinstance(record, RecordError):
            reason = cut(record.reason or str(record))
            panel = Panel("record", note=reason)
            return Shown(position, cut(record.key or ""), panels=[panel], tags=["unreadable"], notes=[reason])
        shown = Shown(position)
        shown.fields = {name: _text_of(value) for name, value in described(record, self._fields).items()}
        shown.key = shown.fields["key"] if isinstance(record.get("key"), str) else ""
        shown.exact = shown.key != "" and shown.key == record["key"] and "\n" not in shown.key
        shown.split = self.name_of("split", record["split"]) if "split" in record else ""
        if self.label:
            shown.label = self.name_of(self.label, record[self.label])
            shown.colour = colour_of(record[self.label], self.classes.get(self.label))
            if shown.label != shown.fields.get(self.label):
                shown.fields[self.label] = f"{shown.label} ({shown.fields[self.label]})"
        self._add_elements(shown, record)
        if not shown.panels and not shown.texts:
            shown.texts = [cut(f"{name}: {text}") for name, text in shown.fields.items()][:_ROWS]
        shown.notes, shown.tags = [*dict.fromkeys(map(cut, shown.notes))], [*dict.fromkeys(shown.tags)]
        return shown

    def _add_elements(self, shown: Shown, record: Record) -> None:
        size: tuple[int, int] | None = None
        parts: dict[str, tuple[Field, Any]] = {}
        for name, (path, declared) in self._elements.items():
            with noted(shown, name):
                value = value_at(record[path.field], path.steps, name)
                if declared.role == "text":
                    shown.texts.append(_text_of(value))
                elif declared.role == "image":
                    shown.panels += self._panels(shown, name, path.field, declared, value, record)
                    size = size or next((panel.size for panel in shown.panels if any(panel.size)), None)
                elif declared.role in _OVER:
                    parts[name] = declared, _in_pixels(name, value, declared, size)
        masks = [value for declared, value in parts.values() if declared.role == "mask"]
        if masks and not shown.panels:
            shown.panels.append(panel_of("mask", np.zeros(masks[0].shape[-2:], np.uint8), self._pixels))
        if parts and shown.panels:
            with noted(shown, "boxes"):
                mark_parts(shown.panels[0], parts, self.classes)

    def _panels(
        self, shown: Shown, name: str, stored: str, declared: Field, value: Any, record: Record
    ) -> Iterator[Panel]:
        """Yield the panel of a picture; of a damaged one, what is left after its repair, and as it is."""
        shown.checksum = shown.checksum or checksum(value if isinstance(value, bytes) else value.tobytes()).hex()
        if declared.kind != "image":
            yield panel_of(name, channels_first(value, layout_of(value.shape)), self._pixels)
            return
        panel = panel_of(name, value, self._pixels)
        verdict = Verdict.of(record, stored) or examine(value)
        if verdict.is_whole:
            yield panel
            return
        reason = f": {verdict.reason}" if verdict.reason else ""
        shown.tags.append(verdict.finding)
        shown.notes.append(f"{name} is damaged, {verdict.finding}{reason}; {verdict.share} is left")
        repaired = repair(value)
        if verdict.recovered == 0.0 and verdict.finding != "corrupt_data":  # decoders would fill all of it
            yield Panel(name, None, panel.size, f"nothing of it is left: {verdict.finding}{reason}")
        elif repaired is value:
            yield panel
        else:
            after = panel_of(name, repaired, self._pixels)
            after.note += f", repaired: {verdict.share} is left"
            yield after
            panel.name, panel.aside = f"{name}, before repair", True
            yield panel


@contextmanager
def noted(shown: Shown, name: str) -> Iterator[None]:
    """Note a value that does not fit its role, and go on."""
    try:
        yield
    except (StoredsError, ValueError, TypeError, LookupError) as error:
        shown.notes.append(cut(f"{name}: {error}"))
        shown.tags.append("value")


def is_picture(name: str, declared: Field) -> bool:
    """Return whether an element is a picture, by its declaration or its name."""
    return _role(name, declared) == "image"


def _role(name: str, declared: Field) -> Role | None:
    """Return what an element is, also where its declaration does not say it."""
    if declared.role is None and declared.kind == "image":
        return "mask" if is_mask(name) else "image"
    if declared.role is None and declared.kind == "array":
        return "image" if is_image_like(declared) or is_pixel_array(declared) else None
    return declared.role


def _in_pixels(name: str, value: Any, declared: Field, size: tuple[int, int] | None) -> Any:
    """Return class ids, coordinates in pixels, or labels."""
    if declared.role in ("boxes", "keypoints"):
        rows = plain_rows(name, value, declared.role)
        check_values({name: rows}, {name: declared}, size)
        return coordinates_tensor(name, rows, declared, size)
    if declared.role != "mask":
        return value
    if declared.kind != "image":
        return mask_tensor(name, value, declared, size)
    with open_picture(value, MAX_PIXELS) as image:
        return class_ids(name, image, value)


# --- Choosing ---


def spread(count: int, most: int, columns: Iterable[Array]) -> list[int]:
    """Return positions drawn at random from all values of the columns in turn; in ascending order if these are all."""
    if most >= count:
        return list(range(count))
    rows = [*zip(*(column.tolist() for column in columns), strict=True)] or [()] * count
    seen: Counter[Any] = Counter()
    ranked = []  # each position with its rank among those of its values
    for position in np.random.default_rng(0).permutation(count).tolist():
        ranked.append((seen[rows[position]], position))
        seen[rows[position]] += 1
    return [position for _, position in sorted(ranked)[:most]]
