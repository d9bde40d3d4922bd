"""Finds which records of an HDF5 file a pattern matches, and infers the fields from some of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import h5py
import numpy as np

from storeds.errors import ConfigError, FormatError, suggest
from storeds.layouts.hdf5.elements import default_name, element_field, fits, read_attribute, read_element
from storeds.layouts.hdf5.files import (
    MOST_WALKED,
    Address,
    Hdf5Files,
    Member,
    NoSuchNameError,
    Unreadable,
    attribute_fields,
    attributes,
    describe,
    members,
    names_in,
)
from storeds.layouts.hdf5.frames import label_of, names_categories, names_columns, parts_of
from storeds.layouts.hdf5.ranges import rows_of
from storeds.layouts.hdf5.values import Values, is_single, packing, row_count, values_of
from storeds.layouts.pattern import (
    ATTRIBUTES,
    EVERYTHING,
    KEY,
    NO_FILE,
    NameFields,
    Pattern,
    Place,
    Template,
    check_names,
    natural_order,
)
from storeds.layouts.tree import LeftOutError
from storeds.protocols import JSON, Array, Field
from storeds.values.infer import evenly
from storeds.values.names import field_names

__all__ = [
    "FRAMES",
    "NUMBERS",
    "Facts",
    "Plan",
    "Scan",
    "computed_names",
    "is_class_list",
    "is_column",
]

_LISTED = 8  # names in a message
_SAMPLED = 16  # records or sequences that are inspected to infer fields
NUMBERS = {"video": "frame", "episode": "step"}
"""A name in a pattern → the field with the number of each row."""
FRAMES = ("frames", "video", "rgb")
"""Names that only frames of a video have; their field is called ``image`` or ``array``."""
_PICTURES = {"image", "images", "img", "imgs"}
_CHANNELS = (1, 3, 4)

Sort = Literal["row", "dataset", "attribute", "shared"]


@dataclass(frozen=True)
class Plan:
    """How the values of one field are found.

    Attributes
    ----------
    field : Field
    path : Template
        Of the object, from the group of the store.
    sort : str
        ``row`` of a dataset, a whole ``dataset``, an ``attribute``, or ``shared``: a number or text for each sequence,
        which the scan has read.
    attribute : str
        Its name.
    column : str
        The column of the dataset, which is a table.
    file : Template
        The file that holds the object, as `Place` has it.
    ranges : tuple of (str, Template)
        The bounds of the rows of each record, as `Place` has them.
    """

    field: Field
    path: Template
    sort: Sort
    attribute: str = ""
    column: str = ""
    file: Template = NO_FILE
    ranges: tuple[tuple[str, Template], ...] = ()

    @property
    def where(self) -> str:
        """The place, as a pattern shows it."""
        file = f"{self.file}::" if self.file else ""
        column = f"/{self.column}" if self.column else ""
        end = f"@{self.attribute}" if self.attribute else ""
        if self.sort == "row":
            end = f"[{', '.join(f'{name}: {path}' for name, path in self.ranges)}]"
        return f"{file}{self.path}{column}{end}"


@dataclass(frozen=True)
class Facts:
    """What a scan finds, beside the names of the records or sequences.

    Attributes
    ----------
    plans : dict of str to Plan
    named : NameFields
        The fields of the names in the pattern.
    shared : dict of str to list
        Field → its value in each sequence.
    empty : list of str
        Sequences without rows.
    attrs : dict of str to JSON
    files : list
        Path, device, inode, size and modification time of each file that the scan opened.
    unread : list of str or None
        What no field holds; None if that is not known yet.
    """

    plans: dict[str, Plan]
    named: NameFields
    shared: dict[str, list[bool | int | float | str]]
    empty: list[str]
    attrs: dict[str, Any]
    files: list[Any]
    unread: list[str] | None = None


def computed_names(pattern: Pattern) -> set[str]:
    """Return the fields that follow from a record's position: the number of a row, and keys without ``{}``. A stored one wins."""
    names = pattern.names
    if not pattern.has_rows:
        return set() if names else {KEY}
    numbers = {number for name, number in NUMBERS.items() if name in names and number not in names}
    return numbers | ({KEY} if "episode" in names else set())


class Scan:
    """Finds the records or sequences that a pattern matches, and infers the fields from some of them."""

    def __init__(self, files: Hdf5Files, pattern: Pattern) -> None:
        self._files, self._pattern = files, pattern
        self._group = files.settings.group.rstrip("/")
        self._attrs: dict[str, JSON] = {}
        self._found: list[tuple[str, ...]] = []
        self._left: list[str] = []  # what a place leaves out though it belongs to each record
        self._unread: list[tuple[Place, Unreadable]] = []  # what it leaves out, and may belong to each
        self._counts: dict[tuple[str, ...], int] = {}  # of the sequences that were counted by themselves
        self._shapes: dict[str, set[tuple[int | None, ...]]] = {}  # field → its shapes in all sequences
        self._seen: dict[str, dict[Address, Any]] = {}  # field → its values that several records share

    def run(self) -> tuple[list[bytes], Array, Facts]:
        """Return the names of the records or sequences, the positions of their first records, and the facts."""
        pattern, url = self._pattern, self._files.url
        found = [*_matches(self._files, self._group, pattern.leading)]
        if not found:
            raise FormatError(f"{url}: nothing matches the place {pattern.leading.text!r}")
        plans = self._plans(self._examples(found))
        shared = {name: plan for name, plan in plans.items() if plan.sort == "shared"}
        counts = [self._visit(plans, shared, values) for values in found]
        self._found = [values for values, count in zip(found, counts, strict=True) if count or not pattern.names]
        if not self._found:
            raise FormatError(f"{url}: no dataset has rows at the place {pattern.leading.text!r}")
        self._check_left_out(plans)
        plans = {name: self._settled(name, plan) for name, plan in plans.items()}
        values_of_all = {
            name: [self._seen[name][self._fill(plan, values)] for values in self._found]
            for name, plan in plans.items()
            if plan.sort == "shared"
        }
        named = NameFields.infer(pattern.names, self._found)
        if named.classes:
            self._attrs["classes"] = [*named.classes]
        names = ["/".join(values).encode("utf-8", "surrogateescape") for values in self._found]
        empty = ["/".join(values) for values, count in zip(found, counts, strict=True) if pattern.names and not count]
        bounds = np.cumsum([0, *(count for count in counts if count or not pattern.names)], dtype=np.int64)
        return names, bounds, Facts(plans, named, values_of_all, empty, self._attrs, self._files.seen())

    def _examples(self, found: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
        """Return some of the records, or of the sequences that have rows and the first of these; they show the fields."""
        some = [found[at] for at in evenly(len(found), _SAMPLED)]
        if not (self._pattern.has_rows and self._pattern.names):
            return some
        first = next((values for values in found if self._count(values)), None)
        if first is None:
            raise FormatError(f"{self._files.url}: no dataset has rows at the place {self._pattern.leading.text!r}")
        return [first, *(values for values in some if values != first and self._count(values))]

    def _fill(self, at: Place | Plan, values: Sequence[str]) -> Address:
        named = dict(zip(self._pattern.names, values, strict=True))
        return Address(f"{self._group}/{at.path.fill(named)}", at.file.fill(named))

    def _count(self, values: tuple[str, ...]) -> int:
        """Return how many rows a sequence has; 0 if its dataset is missing."""
        if values not in self._counts:
            self._counts[values] = self._counted(values)
        return self._counts[values]

    def _counted(self, values: tuple[str, ...]) -> int:
        place = next(place for _, place in self._pattern.places if place.rows)
        address = self._fill(place, values)
        try:
            if place.deep:
                return _common_length(
                    [each.dataset for each in members(self._files, address, skipped=[]) if is_column(each)]
                )
            dataset, column = self._with_rows(place, address)
            return self._rows(place, values, dataset, column)[column].count
        except NoSuchNameError:
            if not self._pattern.names:
                raise
            return 0

    def _rows(
        self, at: Place | Plan, values: Sequence[str], dataset: h5py.Dataset, column: str, field: Field | None = None
    ) -> Mapping[str, Values]:
        """Return the rows of a dataset, or one value for each range of them."""
        bounds = {name: self._fill(Place("", path, at.file), values) for name, path in at.ranges}
        return rows_of(self._files, dataset, column, field, bounds)

    def _with_rows(self, place: Place, address: Address) -> tuple[h5py.Dataset, str]:
        """Return the dataset at an address, which has rows, and the name of a column if it is a table."""
        dataset, column = self._files.find(address)
        if isinstance(dataset, h5py.Group):
            raise ConfigError(
                f"{self._files.url}: the place {place.text!r} is a group; it holds {', '.join(natural_order(dataset)[:_LISTED])}"
            )
        if is_single(dataset):
            raise FormatError(f"{self._files.url}: {address} has no rows; leave out [] of {place.text!r}")
        return dataset, column

    def _plans(self, sampled: Sequence[tuple[str, ...]]) -> dict[str, Plan]:
        places = dict(self._pattern.places)
        several = [name for name in (EVERYTHING, ATTRIBUTES) if name in places]
        parts = {name: {name: self._plan(name, places[name], sampled)} for name in places if name not in several}
        for name in several:  # attributes come last, so that a dataset keeps its name
            others = {field: plan for part in parts.values() for field, plan in part.items()}
            parts[name] = self._several(name, places[name], sampled, others)
        order = sorted(places, key=lambda name: name == ATTRIBUTES)
        plans = {field: plan for name in order for field, plan in parts[name].items()}
        if not plans and not self._left and not self._unread:
            raise FormatError(f"{self._files.url}: no field can hold what is at {self._pattern.leading.text!r}")
        return {name: replace(plan, field=_with_role(name, plan.field)) for name, plan in plans.items()}

    def _several(
        self, name: str, place: Place, sampled: Sequence[tuple[str, ...]], others: Mapping[str, Plan]
    ) -> dict[str, Plan]:
        """Return the fields at a place of ``"*"`` or ``"@"`` that are not among `others`, which keep their names."""
        found = self._everything(place, sampled) if name == EVERYTHING else self._attributes(place, sampled)
        read = {plan.where for plan in others.values()}
        read |= {f"{path}[]" for plan in others.values() for _, path in plan.ranges}
        new = {label: plan for label, plan in found.items() if plan.where not in read}
        check_names(self._pattern.names, new, f"{self._files.url}: ")
        names = field_names([*new], others.keys() | (computed_names(self._pattern) - new.keys()))
        return dict(zip(names, new.values(), strict=True))

    def _plan(self, name: str, place: Place, sampled: Sequence[tuple[str, ...]]) -> Plan:
        if place.attribute:
            kinds = {key: plan for values in sampled for key, plan in self._attributes(place, [values]).items()}
            if place.attribute not in kinds:
                raise ConfigError(
                    f"{self._files.url}: columns[{name!r}]: {self._fill(place, sampled[0])} has no attribute "
                    f"{place.attribute!r} of one number or text; {suggest(place.attribute, kinds, 'attributes')}"
                )
            return kinds[place.attribute]
        plans = self._dataset_at(place, sampled)
        column, plan = next(iter(plans.items()))
        if column and plan.path == place.path:
            raise ConfigError(
                f"{self._files.url}: columns[{name!r}] is {place.text!r}, a table; name a column: {place.path}/{column}[]"
            )
        return plan

    def _dataset_at(self, place: Place, sampled: Sequence[tuple[str, ...]]) -> dict[str, Plan]:
        """Return how the dataset at a place is read: one field under ``""``, or one for each column of a table."""
        if not place.rows:
            field = element_field(self._files, [self._fill(place, values) for values in sampled])
            return {"": Plan(field, place.path, self._sort(place), file=place.file)}
        dataset, member = self._with_rows(place, self._fill(place, sampled[0]))
        *before, last = place.path.texts
        path = Template((*before, last.removesuffix(f"/{member}") if member else last), place.path.names)
        return {
            column: Plan(values.field, path, "row", "", column, place.file, place.ranges)
            for column, values in self._rows(place, sampled[0], dataset, member).items()
        }

    def _sort(self, place: Place, sort: Sort = "dataset") -> Sort:
        """Return whether a value is read with its record, or belongs to several records and is read by the scan."""
        return "shared" if self._pattern.has_rows or len(place.names) < len(self._pattern.names) else sort

    def _everything(self, place: Place, sampled: Sequence[tuple[str, ...]]) -> dict[str, Plan]:
        """Return the fields that a place of ``"*"`` holds, under their names in the file."""
        if not place.deep:
            found = self._dataset_at(place, sampled)
            return {column or default_name(plan.field): plan for column, plan in found.items()}
        return self._rows_below(place, sampled[0]) if place.rows else self._elements_below(place, sampled)

    def _rows_below(self, place: Place, values: tuple[str, ...]) -> dict[str, Plan]:
        """Return the datasets with one row for each record, and what the records share."""
        plans: dict[str, Plan] = {}
        at = Plan(Field("int"), place.path, "shared", file=place.file)
        first, count = self._fill(place, values), self._count(values)
        skipped: list[Unreadable] = []
        found = self._members(place, first, skipped)
        indexes = _vector_indexes(found)
        for member in found:
            if member.path in indexes.values() or names_columns(member.dataset):
                continue
            plan = replace(at, path=_below(place.path, member.path))
            if member.path in indexes:
                ends = ("ends", _below(place.path, indexes[member.path]))
                plans |= self._rows_of(member, replace(plan, ranges=(ends,)), values, skipped)
            elif is_class_list(member):
                self._attrs["classes"] = values_of(self._files, member.dataset)[""].column().tolist()
            elif is_single(member.dataset):
                if self._pattern.names and member.dataset.shape is not None:
                    plans |= self._single(member, first.below(member.path), plan, skipped)
            elif row_count(member.dataset) == count:
                plans |= self._rows_of(member, plan, values, skipped)
            else:
                rows = row_count(member.dataset)
                why = f"it has {rows} rows, and others {count}; the place {plan.where!r} gives each record all of them"
                skipped.append(Unreadable(member.path, why, rows))
        self._note_skipped(place, skipped, count)
        return self._with_frames(plans)

    def _note_skipped(self, place: Place, skipped: Sequence[Unreadable], count: int) -> None:
        for each in skipped:
            if each.rows == count or (each.rows is None and "/" not in each.path):
                self._left.append(str(each))
            elif self._pattern.names:
                self._unread.append((place, each))

    def _check_left_out(self, plans: Mapping[str, Plan]) -> None:
        """Raise LeftOutError for what belongs to each record, and no field holds."""
        left = self._left + [str(each) for place, each in self._unread if self._is_everywhere(place, each.path)]
        if left:
            raise LeftOutError(self._files.url, left, {name: plan.where for name, plan in plans.items()})

    def _is_everywhere(self, place: Place, path: str) -> bool:
        """Whether each record or sequence has something at a path below its place."""
        for values in self._found:
            try:
                _, rest = self._files.locate(self._fill(place, values).below(path))
            except NoSuchNameError:
                return False
            except FormatError:
                continue  # a link that leads nowhere
            if rest:
                return False
        return True

    def _with_frames(self, plans: dict[str, Plan]) -> dict[str, Plan]:
        """Return the fields of a video with the name of its frames: ``image`` or ``array``, if that is clear and free."""
        frames = [name for name in FRAMES if name in plans]
        if "video" not in self._pattern.names or len(frames) != 1:
            return plans
        name = default_name(plans[frames[0]].field)
        return plans if name in plans else {name if label in frames else label: plan for label, plan in plans.items()}

    def _members(self, place: Place, group: Address, skipped: list[Unreadable]) -> list[Member]:
        """Return the datasets below a group; raises FormatError if there are more than a record may have."""
        found = [*members(self._files, group, skipped=skipped)]
        if len(found) >= MOST_WALKED:
            raise FormatError(
                f"{self._files.url}: {place.text!r} holds {MOST_WALKED:,} datasets or more; columns= names those to read"
            )
        return found

    def _single(self, member: Member, dataset: Address, plan: Plan, skipped: list[Unreadable]) -> dict[str, Plan]:
        """Return the field of a number or text that all records of a sequence share."""
        try:
            field = element_field(self._files, [dataset])
        except FormatError as error:
            skipped.append(self._unreadable(member.path, error))
            return {}
        if not field.is_scalar and field.kind != "str":
            skipped.append(
                Unreadable(member.path, f"one value for all rows; the place {plan.where!r} gives it to each record")
            )
            return {}
        return {member.path: replace(plan, field=field)}

    def _rows_of(
        self, member: Member, plan: Plan, sequence: Sequence[str], skipped: list[Unreadable]
    ) -> dict[str, Plan]:
        """Return the fields of a dataset with rows: itself, or its columns if it is a table."""
        plans: dict[str, Plan] = {}
        failed: list[Unreadable] = []
        rows = row_count(member.dataset)
        for column in parts_of(member.dataset):
            label = label_of(member.dataset, member.path, column)
            try:
                values = self._rows(plan, sequence, member.dataset, column)[column]
            except FormatError as error:
                failed.append(self._unreadable(label, error, rows))
            else:
                plans[label] = replace(plan, field=values.field, sort="row", column=column)
        skipped += failed if plans else [replace(each, path=member.path) for each in failed[:1]]
        self._note_packing(member.path, member.dataset)
        return plans

    def _unreadable(self, path: str, error: FormatError, rows: int | None = None) -> Unreadable:
        return Unreadable(path, str(error).removeprefix(f"{self._files.url}: "), rows)

    def _note_packing(self, path: str, dataset: h5py.Dataset) -> None:
        if packed := packing(dataset):
            self._left.append(f"{path} (its {', '.join(packed)} would not be applied)")

    def _elements_below(self, place: Place, sampled: Sequence[tuple[str, ...]]) -> dict[str, Plan]:
        """Return the datasets that most of the sampled groups have."""
        paths: dict[str, list[Address]] = {}
        datasets: dict[str, h5py.Dataset] = {}  # with a value
        skipped: list[Unreadable] = []
        for values in sampled:
            group = self._fill(place, values)
            for member in self._members(place, group, skipped):
                # Behind a link to another file, the dataset has another name.
                paths.setdefault(member.path, []).append(group.below(member.path))
                if member.dataset.shape is not None:
                    datasets.setdefault(member.path, member.dataset)
        plans: dict[str, Plan] = {}
        for path, dataset in datasets.items():
            if 2 * len(paths[path]) < len(sampled):
                continue
            try:
                field = element_field(self._files, paths[path])
            except FormatError as error:
                skipped.append(self._unreadable(path, error))
                continue
            plans[path] = Plan(field, _below(place.path, path), self._sort(place), file=place.file)
            self._note_packing(path, dataset)
        for path, each in {each.path: each for each in skipped}.items():
            if path not in plans:
                self._unread.append((place, each))
        return plans

    def _attributes(self, place: Place, sampled: Sequence[tuple[str, ...]]) -> dict[str, Plan]:
        """Return the attributes of the objects at a place, and of the datasets below it if it ends in ``**``."""
        first = self._fill(place, sampled[0])
        owners = {"": first}
        if place.deep:
            owners |= {member.path: first.below(member.path) for member in members(self._files, first, skipped=[])}
        kinds = {below: attribute_fields(attributes(self._files.find(owner)[0])) for below, owner in owners.items()}
        owned = Counter(name for fields in kinds.values() for name in fields)
        plans: dict[str, Plan] = {}
        for below, fields in kinds.items():
            template = _below(place.path, below)
            for name, field in fields.items():
                label = f"{below}/{name}" if below and owned[name] > 1 else name
                plans[label] = Plan(field, template, self._sort(place, "attribute"), name, file=place.file)
        return plans

    def _visit(self, plans: Mapping[str, Plan], shared: Mapping[str, Plan], values: tuple[str, ...]) -> int:
        """Compare a record or sequence with the fields, read what several records share, and return how many records it has."""
        count = 1
        if self._pattern.has_rows:
            count = self._rows_in(plans, values) if self._pattern.names else self._count(values)
        for name, plan in shared.items() if count else ():
            self._note_shared(name, plan, self._fill(plan, values))
        return count

    def _rows_in(self, plans: Mapping[str, Plan], values: tuple[str, ...]) -> int:
        """Return how many rows a sequence has, 0 if it has no dataset of a field; raises FormatError if the fields do not fit it."""
        counts: dict[Address, int] = {}
        missing: NoSuchNameError | None = None
        for name, plan in plans.items():
            if plan.sort == "row":
                address = self._fill(plan, values)
                try:
                    dataset = self._files.dataset(address)
                except NoSuchNameError as error:
                    missing = error
                else:
                    rows = self._rows(plan, values, dataset, plan.column, plan.field)[plan.column]
                    self._check_rows(name, plan, address, dataset, rows.field)
                    counts[address] = rows.count
        if missing is not None and any(counts.values()):
            raise missing
        if len({*counts.values()}) > 1:
            shown = ", ".join(f"{address} has {count}" for address, count in counts.items())
            raise FormatError(f"{self._files.url}: datasets of one sequence differ in their number of rows: {shown}")
        return max(counts.values(), default=0)

    def _check_rows(self, name: str, plan: Plan, address: Address, dataset: h5py.Dataset, got: Field) -> None:
        """Raise FormatError unless rows are values of a field; note their shape."""
        same_rank = len(got.shape or ()) == len(plan.field.shape or ())
        if (got.kind, got.dtype) != (plan.field.kind, plan.field.dtype) or not same_rank:
            raise FormatError(
                f"{self._files.url}: {address} holds {describe(dataset)}, unlike field {name!r} of the other sequences"
            )
        self._shapes.setdefault(name, set()).add(got.shape or ())

    def _note_shared(self, name: str, plan: Plan, address: Address) -> None:
        """Read a value that several records share; raises FormatError for a missing one, or one of another kind.

        Arrays are compared with their field, and read later.
        """
        seen = self._seen.setdefault(name, {})
        if address in seen:
            return
        value = None
        if plan.attribute:
            value = read_attribute(self._files, address, plan.attribute, plan.field)
        elif not plan.field.is_blob:
            value = read_element(self._files, plan.field, address)
        elif not fits(plan.field, dataset := self._files.dataset(address)):
            raise FormatError(
                f"{self._files.url}: {address} holds {describe(dataset)}, unlike field {name!r} of the other records"
            )
        if isinstance(value, ValueError):
            raise FormatError(f"{self._files.url}: field {name!r}: {value}")
        seen[address] = value

    def _settled(self, name: str, plan: Plan) -> Plan:
        """Return a plan after all visits: a size that differs is open, and a shared array is read with each batch."""
        if plan.sort == "shared" and not plan.attribute and plan.field.is_blob:
            return replace(plan, sort="dataset")
        shapes = self._shapes.get(name, ())
        if len(shapes) > 1:
            sizes = tuple(axis[0] if len(set(axis)) == 1 else None for axis in zip(*shapes, strict=True))
            return replace(plan, field=replace(plan.field, shape=sizes))
        return plan


def _with_role(name: str, field: Field) -> Field:
    """Return a field, with the role of an image if it certainly holds pictures: by its name, type and channels."""
    shape = field.shape or ()
    is_picture = name in _PICTURES and field.dtype == "|u1" and len(shape) == 3 and shape[2] in _CHANNELS
    return replace(field, role="image") if is_picture else field


def is_class_list(member: Member) -> bool:
    """Whether a dataset is a list of texts under a name that only class names have."""
    is_text = h5py.check_string_dtype(member.dataset.dtype) is not None and len(member.dataset.shape or ()) == 1
    return is_text and _CLASS_NAMES.fullmatch(member.path) is not None


def _vector_indexes(found: Sequence[Member]) -> dict[str, str]:
    """Return the paths of ragged columns of NWB, each with the path of its ``VectorIndex``, which holds the ends of ranges."""
    paths = {member.path for member in found}
    indexes = {
        member.path.removesuffix("_index"): member.path
        for member in found
        if member.path.endswith("_index") and attributes(member.dataset).get("neurodata_type") == "VectorIndex"
    }
    return {path: index for path, index in indexes.items() if path in paths and path not in indexes.values()}


def is_column(member: Member) -> bool:
    """Whether a dataset may have a value for each record: no single value, no list of class names or of columns."""
    dataset = member.dataset
    return not (is_single(dataset) or is_class_list(member) or names_columns(dataset) or names_categories(dataset))


_CLASS_NAMES = re.compile(r"(list_)?(classes|class_names|labels?_names)", re.IGNORECASE)


def _common_length(datasets: Sequence[h5py.Dataset]) -> int:
    """Return the number of rows that most datasets have, of several the one of the largest dataset; 0 without datasets."""
    found: dict[int, list[int]] = {}
    for dataset in datasets:
        found.setdefault(row_count(dataset), []).append(dataset.nbytes)
    return max(found, key=lambda rows: (len(found[rows]), max(found[rows])), default=0)


def _below(path: Template, name: str) -> Template:
    if not name:
        return path
    start = f"{path.texts[-1]}/" if path.texts != ("",) else ""
    return Template((*path.texts[:-1], start + name), path.names)


def _matches(files: Hdf5Files, group: str, place: Place) -> Iterator[tuple[str, ...]]:
    """Yield the texts of the names of each object that a place matches, in natural order."""
    last = not (place.deep or place.attribute)
    for values, file in files.matching(place.file) if place.file.names else [((), str(place.file))]:
        yield from _descend(files, Address(group, file), place.path.split(), values, last)


def _descend(
    files: Hdf5Files, path: Address, parts: Sequence[Template], values: tuple[str, ...], last: bool
) -> Iterator[tuple[str, ...]]:
    if not any(part.names for part in parts):
        yield values  # what is missing below a match is a bad record
        return
    part, rest = parts[0], parts[1:]
    if not part.names:
        yield from _descend(files, path.below(part.fill({})), rest, values, last)
        return
    datasets, groups = names_in(files, path)
    pattern = part.regex()
    for name in natural_order(datasets if last and not rest else groups):
        match = pattern.fullmatch(name)
        if match is None:
            continue
        found = (*values, *match.groups())
        yield from _descend(files, path.below(name), rest, found, last)
