"""The source for datasets as Python objects: PyTorch's, torchvision's, 🤗 datasets', or any list of samples."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from storeds._utils.text import counted
from storeds.backends.view import View
from storeds.errors import ConfigError
from storeds.formats.format import Format
from storeds.formats.stores import rows_at
from storeds.formats.tables.read import hugging_face
from storeds.formats.taking import LOSSLESS, original_of, take
from storeds.layouts.files.folders import class_notes
from storeds.layouts.files.rows import Bad, BadItem, File, Row, Rows, from_start
from storeds.layouts.files.walk import is_text, show
from storeds.protocols import JSON, Array, Backend, Field, Record
from storeds.records.fields import parse_fields
from storeds.values.codecs import beginning
from storeds.values.coerce import as_numpy, is_picture, missing, plain
from storeds.values.infer import Part, Path, evenly, field_of, lacks, leaves, path_text, value_at
from storeds.values.names import field_names

__all__ = ["DATASET", "dataset"]

_TRIED = 16  # samples that are tried to learn the fields
_NOT_APPLIED = (
    "its transform is not applied: pack stores the original files or records, and training applies a transform; "
    "fields= packs what the dataset returns instead"
)


def dataset(
    source: Any,
    *,
    fields: Sequence[str] | Mapping[str, Any] | None = None,
    columns: Sequence[str] | str | None = None,
    label_column: str | None = None,
    label: bool | None = None,
) -> Rows:
    """Rows of a map-style dataset: an object with ``__getitem__`` and ``__len__`` whose samples are tuples or dicts.

    Parameters
    ----------
    source : object
        A `StoreDataset` gives the records of its store that its ``where`` selects, torchvision's ImageFolder its files,
        and 🤗 datasets their columns, with images as files. PyTorch's Subset and ConcatDataset of the first two work too.
        Any other dataset is read sample by sample, in the calling thread.
    fields : sequence of str or mapping, optional
        Names for the elements of a tuple in order, or names and kinds as for `open_writer`. For a dict, the keys to
        pack. By default an image is ``image``, an integer after it ``label``, and other elements are ``field2``,
        ``field3``, … or named after their keys. A mapping in an element that holds arrays gives a field for each of its
        entries. Kinds are those of 16 samples, as for stores of other tools. With `fields`, samples are packed one
        by one as the dataset returns them, decoded and transformed.
    columns, label_column, label : optional
        For 🤗 datasets without `fields`, as for `~storeds.formats.tables.read.table`: the columns to pack, the one of
        labels, and False to pack without labels.

    Notes
    -----
    A PIL image is stored as the file that it was opened from if its pixels are unchanged, else as PNG (TIFF for modes
    that PNG lacks). Tensors, arrays and lists of numbers are stored as arrays, other lists as JSON. The
    names in ``classes`` go to attrs.

    Raises
    ------
    ConfigError
        It is not a dataset, it is empty, or the kinds of its samples are unclear.
    """
    if fields is None and (_is(source, "datasets", "Dataset") or _is(source, "datasets", "DatasetDict")):
        return hugging_face(source, columns=columns, label_column=label_column, label=label is not False)
    for name, given in {"columns": columns, "label_column": label_column, "label": label}.items():
        if given is not None:
            raise ConfigError(f"{name}: not supported for samples of a {type(source).__name__}; only fields= is")
    if not callable(getattr(source, "__getitem__", None)) or not isinstance(source, Sized):
        raise ConfigError(f"a {type(source).__name__} is not a dataset: it needs __getitem__ and __len__")
    if not len(source):
        raise ConfigError(f"the {type(source).__name__} is empty")
    leaves, places = _origins(source)
    found = None
    if fields is None and all(map(_is_folder, leaves)):
        found = _files(leaves, places)
    elif fields is None and all(map(_is_records, leaves)):
        found = _records(leaves, places)
    if found is None:
        return _samples(source, fields)
    if any(getattr(leaf, name, None) is not None for leaf in leaves for name in ("transform", "target_transform")):
        found.notes.append(_NOT_APPLIED)
    return found


def _is(source: Any, module: str, name: str) -> bool:
    """Whether `source` is an instance of a class; if its module is not loaded, it cannot be one."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(source, kind)


def _is_folder(source: Any) -> bool:
    """Whether samples are the images of files and their labels, as torchvision's ImageFolder reads them."""
    module = sys.modules.get("torchvision.datasets.folder")
    if module is None or not isinstance(source, module.ImageFolder):
        return False
    reads = type(source).__getitem__ is module.DatasetFolder.__getitem__ and source.loader is module.default_loader
    return reads and source.target_transform is None


def _is_records(source: Any) -> bool:
    """Whether samples are the records of a store one by one, and not clips of several."""
    return _is(source, "storeds.datasets.map_dataset", "StoreDataset") and len(source) == len(source.records)


def _origins(source: Any) -> tuple[list[Any], Array]:
    """Return the datasets in PyTorch's Subset and ConcatDataset, and for each sample its dataset's number and its index."""
    if _is(source, "torch.utils.data", "Subset"):
        leaves, places = _origins(source.dataset)
        return leaves, places[np.asarray(source.indices, np.int64)]
    if not _is(source, "torch.utils.data", "ConcatDataset"):
        return [source], np.stack([np.zeros(len(source), np.int64), np.arange(len(source))], axis=1)
    leaves, every = [], []
    for part in source.datasets:
        inside, places = _origins(part)
        every.append(places + np.array([len(leaves), 0]))
        leaves += inside
    return leaves, np.concatenate(every)


def _common_attrs(all_attrs: Sequence[Mapping[str, JSON]]) -> dict[str, JSON]:
    """Return the attrs of concatenated datasets; raises ConfigError if their class names differ."""
    first = all_attrs[0]
    for attrs in all_attrs:
        if attrs.get("classes") != first.get("classes"):
            raise ConfigError(
                "the concatenated datasets have different classes, so one label would mean several: "
                f"{first.get('classes')} and {attrs.get('classes')}; pack each separately"
            )
    return {name: value for name, value in first.items() if all(attrs.get(name) == value for attrs in all_attrs)}


def _files(leaves: Sequence[Any], places: Array) -> Rows:
    """Return the files of torchvision's ImageFolders."""

    def items() -> Iterator[Row | Bad]:
        for number, index in places.tolist():
            path, label = leaves[number].samples[index]
            key = os.path.relpath(path, leaves[number].root).replace(os.sep, "/")
            if is_text(key):
                yield Row(key, {"image": File(path), "label": label, "key": key})
            else:
                yield Bad(show(key), "its name is not valid UTF-8, which a key must be; rename it")

    attrs = _common_attrs([{"classes": [*leaf.classes]} for leaf in leaves])
    return Rows(
        fields={"image": Field("image"), "label": Field("int"), "key": Field("str")},
        attrs=attrs,
        items=from_start(items),
        notes=class_notes(leaves[0].classes),
    )


def _records(leaves: Sequence[Any], places: Array) -> Rows | None:
    """Return the records of `StoreDataset`s; None if their fields differ."""
    views = [leaf.records for leaf in leaves]
    if any(view.meta.fields != views[0].meta.fields for view in views):
        return None
    starts = np.cumsum([0, *map(len, views)])
    joined = views[0] if len(views) == 1 else View(views)
    return rows_at(joined, starts[places[:, 0]] + places[:, 1])


def _samples(source: Any, fields: Sequence[str] | Mapping[str, Any] | None) -> Rows:
    """Return the samples of any dataset, as it returns them."""
    count = len(source)
    classes = _class_names(source)
    if _is(source, "datasets", "Dataset"):  # its images as files
        for name, feature in source.features.items():
            if type(feature).__name__ == "Image":
                source = source.cast_column(name, type(feature)(decode=False))
    tried = _tried(source)
    names = _names(tried, fields)
    parts = _parts_of(tried, names, fields)
    kinds = parse_fields({part.name: part.field for part in parts})
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    others: dict[Any, set[int]] = {}  # key that most samples lack → the samples that have it

    def items(start: int) -> Iterator[Row | Bad]:
        for index in range(start, count):
            try:
                sample = _sample(source, index)
                for key in sample.keys() - names.keys() if fields is None and isinstance(sample, Mapping) else ():
                    others.setdefault(key, set()).add(index)
                yield Row(f"sample {index}", _record(sample, names, parts))
            except BadItem as error:
                yield Bad(f"sample {index}", str(error))

    # What a dataset knows without reading an image: torchvision's their targets, those of 🤗 datasets a token.
    known = (getattr(source, "_fingerprint", ""), plain(as_numpy(getattr(source, "targets", ""))))
    return Rows(
        fields=kinds,
        attrs={**({} if classes is None else {"classes": classes}), "source": {"kind": "dataset", "type": kind}},
        items=items,
        state=known,
        count=count,
        columns={_place_of(part, names): part.name for part in parts},
        notes=list(_notes(tried[0], names, parts)),
        late_notes=lambda: [
            f"left out {key!r}, which most samples lack and {counted(len(found), 'sample has', 'samples have')}"
            for key, found in others.items()
        ],
        stores=tuple(_stores_of(source)),
    )


def _place_of(part: Part, names: Mapping[Any, str]) -> str:
    """Return where a part lies in a sample: ``target.boxes``."""
    first = next(key for key, name in names.items() if name == part.path[0])
    return path_text((first, *part.path[1:]))


def _record(sample: Any, names: Mapping[Any, str], parts: Sequence[Part]) -> Record:
    """Return the record of a sample; raises `BadItem`."""
    values = _elements(sample)
    if len(values) != len(names) and not isinstance(sample, Mapping):
        raise BadItem(f"has {len(values)} elements, but the first sample has {len(names)}")
    elements = {name: values[key] for key, name in names.items() if key in values}
    lacking = [_place_of(part, names) for part in parts if not part.optional and lacks(elements, part.path)]
    if lacking:
        raise BadItem(f"has no {', '.join(map(repr, lacking))}")
    record: Record = {}
    for part in parts:
        value = value_at(elements, part.path)
        try:
            record[part.name] = missing(part.field) if value is None and part.optional else take(part.field, value)
        except BadItem as error:
            raise BadItem(f"its {part.name} {error}") from None
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            what = f"its {part.name} is a {type(value).__name__}, and the field is of kind {part.field.kind}"
            raise BadItem(f"{what}: {error}") from None
    return record


def _class_names(source: Any) -> list[JSON] | None:
    """Return the class names that a dataset declares, or None."""
    classes = getattr(source, "classes", None)
    if classes is None and _is(source, "datasets", "Dataset"):
        labels = [source.features.get("label"), *source.features.values()]
        classes = next((feature.names for feature in labels if hasattr(feature, "names")), None)
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        return None
    return [*classes]


def _stores_of(source: Any) -> Iterator[Backend]:
    """Yield the stores of the `StoreDataset`s that a dataset contains, which `pack` must not replace."""
    if _is(source, "storeds.datasets.map_dataset", "StoreDataset"):
        yield source.records
        return
    inside = getattr(source, "__dict__", {})
    parts = inside.get("datasets")
    for part in (inside.get("dataset"), *(parts if isinstance(parts, (list, tuple)) else ())):
        yield from () if part is None else _stores_of(part)


def _tried(source: Any) -> list[Any]:
    """Return some samples that show what the fields are, of large arrays only the form."""
    samples, reason = [], ""
    for index in evenly(len(source), _TRIED):
        try:
            sample = _sample(source, index)
        except BadItem as error:
            reason = reason or f"sample {index} {error}"
            continue
        try:
            shown = as_numpy(sample)
        except (TypeError, ValueError, RuntimeError) as error:  # a tensor with a dtype that NumPy lacks
            raise ConfigError(f"sample {index} has a value that cannot be a NumPy array: {error}") from None
        samples.append(type(sample)(*shown) if hasattr(sample, "_fields") else beginning(shown))
    if not samples:
        raise ConfigError(f"none of the samples that were tried can be read, so their fields are unknown: {reason}")
    return [sample for sample in samples if isinstance(sample, Mapping) == isinstance(samples[0], Mapping)]


def _sample(source: Any, index: int) -> Any:
    try:
        return source[index]
    except Exception as error:  # third-party code may raise anything
        raise BadItem(f"cannot be read: {type(error).__name__}: {error}") from error


def _elements(sample: Any) -> dict[Any, Any]:
    """Return the values of a sample by key, or by position."""
    if isinstance(sample, Mapping):
        return dict(sample)
    return dict(enumerate(sample)) if isinstance(sample, (tuple, list)) else {0: sample}


def _names(tried: Sequence[Any], fields: Sequence[str] | Mapping[str, Any] | None) -> dict[Any, str]:
    """Return the field name for each position of a sample, or for each key that at least half of the samples have."""
    if isinstance(fields, str):
        raise ConfigError(f"fields={fields!r} must be a list of names, or a mapping of names to kinds")
    given = None if fields is None else list(fields)
    if isinstance(tried[0], Mapping):
        return _names_of_keys(tried, given)
    elements = _elements(tried[0])
    if given is None and hasattr(tried[0], "_fields"):  # a named tuple
        given = field_names(tried[0]._fields)
    if given is None:
        given = [f"field{position}" for position in elements]
        for position, (kind, name) in enumerate((("image", "image"), ("int", "label"))):
            field = _inferred([_elements(each).get(position) for each in tried], is_label=position == 1)
            if field is not None and field.kind == kind:
                given[position] = name
    if len(given) != len(elements):
        raise ConfigError(f"fields: {len(given)} names ({', '.join(given)}) for {len(elements)} elements of a sample")
    return dict(zip(elements, given, strict=True))


def _names_of_keys(tried: Sequence[Mapping[Any, Any]], given: list[str] | None) -> dict[Any, str]:
    counts = Counter(key for sample in tried for key in sample)
    if not all(isinstance(key, str) for key in counts):
        raise ConfigError(f"the keys of a sample must be text, not {list(counts)[:8]!r}")
    usual = [key for key, count in counts.items() if given is not None or 2 * count >= len(tried)]
    known = dict(zip(usual, field_names(usual), strict=True))
    keys = {name: key for key, name in known.items()} | {key: key for key in known}
    unknown = next((name for name in given or () if name not in keys), None)
    if unknown is not None:
        raise ConfigError(f"fields: the first sample has no {unknown!r}, only {', '.join(map(repr, usual))}")
    return known if given is None else {keys[name]: known.get(name, name) for name in given}


def _parts_of(tried: Sequence[Any], names: Mapping[Any, str], given: object) -> list[Part]:
    """Return the fields of samples; raises ConfigError.

    A mapping in an element that holds arrays gives a field for each of its entries, unless the kind of the element is given.
    """
    kinds = {name: given.get(name, given.get(key)) for key, name in names.items()} if isinstance(given, Mapping) else {}
    samples = [{name: each[key] for key, name in names.items() if key in each} for each in map(_elements, tried)]
    parts = []
    for name in names.values():
        if kinds.get(name) is not None:
            parts.append(Part(name, (name,), parse_fields({name: kinds[name]})[name]))
            continue
        paths = [*leaves([{name: each[name]} for each in samples if name in each])]
        labels = [name]
        if paths != [(name,)]:
            labels = field_names([path_text(path) for path in paths], {*names.values()} - {name})
        parts += [_part_at(samples, path, label) for path, label in zip(paths, labels, strict=True)]
    return parts


def _part_at(samples: Sequence[Mapping[str, Any]], path: Path, name: str) -> Part:
    values = [value_at(each, path) for each in samples]
    field = _inferred(values, is_label=name == "label")
    if field is None:
        first = next((value for value in values if value is not None), None)
        what = "None" if first is None else f"a {type(first).__name__}"
        raise ConfigError(
            f"{name!r} of the first sample is {what}, which no field can store; pass fields= to give the kind of each element"
        )
    has_gaps = name != "label" and any(value is None for value in values)
    return Part(name, path, field, has_gaps and field.kind in ("float", "json"))


def _inferred(values: Sequence[Any], *, is_label: bool) -> Field | None:
    """Return the field of values; of the first if it is a label or they do not agree; None if no field can hold them."""
    known = [value for value in values if value is not None]
    for some_of in (known[:1],) if is_label else (values, known[:1]):
        with contextlib.suppress(ValueError):
            return field_of(some_of) if known else None
    return None


def _notes(sample: Any, names: Mapping[Any, str], parts: Sequence[Part]) -> Iterator[str]:
    """Yield sentences about fields that take much more space than the files that they come from."""
    elements = {name: value for key, value in _elements(sample).items() if (name := names.get(key))}
    for part in parts:
        value, field = value_at(elements, part.path), part.field
        if field.kind == "image" and is_picture(value) and original_of(value) is None:
            yield (
                f"images of field {part.name!r} are decoded, so each is stored without loss, as "
                f"{LOSSLESS.get(value.mode, 'PNG')}, which may be ten times as large as a JPEG: pack the folder or a list to keep "
                "the original files, or pass quality=90 to store JPEG"
            )
        if field.kind == "array" and np.ndim(value) >= 2:
            yield (
                f"field {part.name!r} is stored as an array of {field.dtype} {tuple(np.shape(value))}, not as an image; read it "
                "with reader='array'"
            )


DATASET = Format(
    about="a Python object with __getitem__ and __len__, such as a dataset of torchvision",
    read=dataset,
    takes_objects=True,
)
