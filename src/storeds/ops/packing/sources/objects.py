"""The source for datasets as Python objects: PyTorch's, torchvision's, 🤗 datasets', or any list of samples."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds._utils.text import counted
from storeds.backends.view import View
from storeds.errors import ConfigError
from storeds.ops.packing.rows import Bad, BadItem, File, Reference, Row, Rows, from_start, read_file
from storeds.ops.packing.sources.columns import field_names
from storeds.ops.packing.sources.folders import class_notes, is_text, show
from storeds.ops.packing.sources.stores import rows_at
from storeds.pictures.formats import open_picture
from storeds.protocols import JSON, Array, Backend, Field, Record
from storeds.records.codec import canonical_value
from storeds.records.fields import parse_fields
from storeds.values.codecs import is_image

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["dataset", "take"]

_TRIED = 16  # samples that are tried to learn the fields
# PNG cannot store the pixels of the other modes unchanged.
_FORMATS = {
    **dict.fromkeys(("1", "L", "LA", "P", "RGB", "RGBA", "I;16"), "PNG"),
    **dict.fromkeys(("I", "F", "CMYK", "YCbCr", "LAB", "PA"), "TIFF"),
}
_NOT_APPLIED = (
    "its transform is not applied: pack stores the original files or records, and training applies a transform; "
    "fields= packs what the dataset returns instead"
)


def dataset(source: Any, *, fields: Sequence[str] | Mapping[str, Any] | None = None, **options: Any) -> Rows:
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
        ``field3``, … or named after their keys. Kinds are those of the first sample; if bytes in it are no image and those
        of most samples after it are, of the first one with an image there. With `fields`, samples are packed one
        by one as the dataset returns them, decoded and transformed.
    **options
        For 🤗 datasets: ``columns``, ``label`` and ``label_column``, as for `table`.

    Notes
    -----
    A PIL image is stored as the file that it was opened from if its pixels are unchanged, else as PNG (TIFF for modes
    that PNG lacks). Tensors and arrays are stored as arrays of the first sample's dtype and shape, lists as JSON. The
    names in ``classes`` go to attrs.

    Raises
    ------
    ConfigError
        It is not a dataset, it is empty, or the kinds of its samples are unclear.
    """
    if fields is None and (_is(source, "datasets", "Dataset") or _is(source, "datasets", "DatasetDict")):
        from storeds.ops.packing.sources.tables import hugging_face

        return hugging_face(source, **options)
    if options:
        raise ConfigError(
            f"{', '.join(options)}: not supported for samples of a {type(source).__name__}; only fields= is"
        )
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
    return _is(source, "storeds.datasets.map_dataset", "StoreDataset") and len(source) == len(source.view)


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
    views = [leaf.view for leaf in leaves]
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
    first = _first(source)
    names = _names(first, fields)
    kinds = _fields(first, names, fields)
    kind = f"{type(source).__module__}.{type(source).__qualname__}"
    others: dict[Any, set[int]] = {}  # key that the first sample lacks → the samples that have it

    def items(start: int) -> Iterator[Row | Bad]:
        for index in range(start, count):
            try:
                sample = _sample(source, index)
                for key in sample.keys() - names.keys() if fields is None and isinstance(sample, Mapping) else ():
                    others.setdefault(key, set()).add(index)
                yield Row(f"sample {index}", _record(sample, names, kinds))
            except BadItem as error:
                yield Bad(f"sample {index}", str(error))

    # What a dataset knows without reading an image: torchvision's their targets, those of 🤗 datasets a token.
    known = (getattr(source, "_fingerprint", ""), _lists(getattr(source, "targets", "")))
    return Rows(
        fields=kinds,
        attrs={**({} if classes is None else {"classes": classes}), "source": {"kind": "dataset", "type": kind}},
        items=items,
        state=known,
        count=count,
        columns={str(key): name for key, name in names.items()},
        notes=list(_notes(_elements(first), names, kinds)),
        late_notes=lambda: [
            f"left out {key!r}, which the first sample lacks and {counted(len(found), 'sample has', 'samples have')}"
            for key, found in others.items()
        ],
        stores=tuple(_stores_of(source)),
    )


def _record(sample: Any, names: Mapping[Any, str], fields: Mapping[str, Field]) -> Record:
    """Return the record of a sample; raises `BadItem`."""
    values = _elements(sample)
    lacking = [repr(key) for key in names if key not in values]
    if lacking and isinstance(sample, Mapping):
        raise BadItem(f"has no {', '.join(lacking)}")
    if len(values) != len(names) and not isinstance(sample, Mapping):
        raise BadItem(f"has {len(values)} elements, but the first sample has {len(names)}")
    record: Record = {}
    for key, name in names.items():
        try:
            record[name] = take(fields[name], values[key])
        except BadItem as error:
            raise BadItem(f"its {name} {error}") from None
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            what = type(values[key]).__name__
            raise BadItem(f"its {name} is a {what}, and the field is of kind {fields[name].kind}: {error}") from None
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
        yield source.view
        return
    inside = getattr(source, "__dict__", {})
    parts = inside.get("datasets")
    for part in (inside.get("dataset"), *(parts if isinstance(parts, (list, tuple)) else ())):
        yield from () if part is None else _stores_of(part)


def _first(source: Any) -> Any:
    """Return the first sample that can be read, without damaged images where other samples have images."""
    samples, reason = [], ""
    for index in range(min(len(source), _TRIED)):
        try:
            samples.append(_sample(source, index))
        except BadItem as error:
            reason = reason or f"sample {index} {error}"
        if samples and not any(_is_blob(value) and not is_image(value) for value in _elements(samples[0]).values()):
            return samples[0]
    if not samples:
        raise ConfigError(f"none of the first samples can be read, so their fields are unknown: {reason}")
    images = [
        {key for key, value in _elements(each).items() if _is_blob(value) and is_image(value)} for each in samples
    ]
    usual = {key for key in _elements(samples[0]) if 2 * sum(key in found for found in images) > len(samples)}
    return next((sample for sample, found in zip(samples, images, strict=True) if usual <= found), samples[0])


def _is_blob(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


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


def _names(sample: Any, fields: Sequence[str] | Mapping[str, Any] | None) -> dict[Any, str]:
    """Return the field name for each key or position of a sample."""
    elements = _elements(sample)
    if isinstance(fields, str):
        raise ConfigError(f"fields={fields!r} must be a list of names, or a mapping of names to kinds")
    given = None if fields is None else list(fields)
    if isinstance(sample, Mapping):
        if not all(isinstance(key, str) for key in elements):
            raise ConfigError(f"the keys of a sample must be text, not {list(elements)[:8]!r}")
        known = field_names(elements, (), "the first sample")
        keys = {name: key for key, name in known.items()} | {key: key for key in known}
        unknown = next((name for name in given or () if name not in keys), None)
        if unknown is not None:
            raise ConfigError(f"fields: the first sample has no {unknown!r}, only {', '.join(map(repr, elements))}")
        return known if given is None else {keys[name]: known.get(name, name) for name in given}
    if given is None and hasattr(sample, "_fields"):  # a named tuple
        given = list(field_names(sample._fields, (), "the first sample").values())
    if given is None:
        kinds = [_infer(f"element{position}", value).kind for position, value in elements.items()]
        known_as = {(0, "image"): "image", (1, "int"): "label"}
        given = [known_as.get(each, f"field{each[0]}") for each in enumerate(kinds)]
    if len(given) != len(elements):
        raise ConfigError(f"fields: {len(given)} names ({', '.join(given)}) for {len(elements)} elements of a sample")
    return dict(zip(elements, given, strict=True))


def _fields(sample: Any, names: Mapping[Any, str], given: object) -> dict[str, Field]:
    kinds = {name: given.get(name, given.get(key)) for key, name in names.items()} if isinstance(given, Mapping) else {}
    elements = _elements(sample)
    return parse_fields({name: kinds.get(name) or _infer(name, elements[key]) for key, name in names.items()})


def _infer(name: str, value: Any) -> Field:
    """Return the field for `value` of the first sample; raises ConfigError."""
    try:
        value = _plain(value)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor with a dtype that NumPy lacks
        raise ConfigError(f"{name!r} of the first sample cannot be a NumPy array: {error}") from None
    if isinstance(value, np.ndarray):
        return parse_fields({name: {"kind": "array", "dtype": value.dtype.str, "shape": list(value.shape)}})[name]
    if isinstance(value, bytes):
        return Field("image" if is_image(value) else "bytes")
    if _is_picture(value) or _is_file(value):
        return Field("image")
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return Field(kind.__name__)  # type: ignore[arg-type]  # these names are kinds
    if isinstance(value, (list, tuple, dict)):
        return Field("json")
    raise ConfigError(
        f"{name!r} of the first sample is {'None' if value is None else f'a {type(value).__name__}'}, which no field "
        "can store; pass fields= to give the kind of each element"
    )


def take(field: Field, value: Any) -> Any:
    """Return `value` in the form that the field stores, or a `Reference` to it; raises BadItem or TypeError."""
    value = _plain(value)
    if value is None and field.kind != "json":
        raise BadItem("is None")
    if field.kind == "json":
        value = _lists(value)
    elif field.kind == "array" and not isinstance(value, np.ndarray):
        value = np.asarray(value)
    elif field.kind == "image" and _is_picture(value):
        original = _original(value)
        return _Picture(value) if original is None else original
    elif field.kind == "image" and _is_file(value):
        value = value["bytes"] if value["bytes"] is not None else read_file(str(value["path"]))
    try:
        stored = canonical_value(field, value)
    except ValueError as error:
        raise BadItem(f"cannot be stored: {error}") from None
    return value if field.kind == "json" else stored


def _plain(value: Any) -> Any:
    """Return tensors as arrays, zero-dimensional values as numbers, buffers as bytes."""
    if not isinstance(value, np.ndarray) and callable(
        getattr(value, "detach", None)
    ):  # a tensor, without importing torch
        value = value.detach().cpu().contiguous().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and not value.shape):
        value = value.item()
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else value


def _lists(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _is_picture(value: Any) -> bool:
    """Whether `value` is a PIL image."""
    return callable(getattr(value, "tobytes", None)) and hasattr(value, "getbands")


def _is_file(value: Any) -> bool:
    """Whether `value` is an undecoded image of 🤗 datasets."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


class _Picture(Reference):
    """A copy of a PIL image, which a thread encodes without loss."""

    __slots__ = ("image", "size", "state")

    def __init__(self, image: Image.Image) -> None:
        if image.mode not in _FORMATS:
            raise BadItem(f"is a PIL image of mode {image.mode}, which has no lossless format; pass its array")
        self.image = image.copy()  # a dataset may draw on it again
        self.size, self.state = image.width * image.height * len(image.getbands()), ()

    def read(self) -> bytes:
        # docstring inherited
        buffer = io.BytesIO()
        try:
            self.image.save(buffer, _FORMATS[self.image.mode])
        except (OSError, ValueError, SyntaxError) as error:
            raise BadItem(f"its PIL image cannot be encoded: {error}") from None
        return buffer.getvalue()


def _original(image: Image.Image) -> bytes | None:
    """Return the file that a PIL image was opened from, if its pixels are unchanged, or None."""
    if getattr(image, "format", None) is None:
        return None
    # The image may have been drawn on, scaled, or moved to another frame since it was opened.
    try:
        if (file := getattr(image, "fp", None)) is not None:
            place = file.tell()
            file.seek(0)
            data: bytes = file.read()
            file.seek(place)
        else:
            data = read_file(os.fsdecode(image.filename))  # type: ignore[attr-defined]  # of a file that was opened by its path
        with open_picture(data) as opened:
            described = (opened.size, opened.mode, opened.format, opened.getpalette())
            is_same = described == (image.size, image.mode, image.format, image.getpalette())
            return data if is_same and opened.tobytes() == image.tobytes() else None
    except Exception:  # Pillow raises any exception on damaged files; `fp` may be closed
        return None


def _notes(elements: Mapping[Any, Any], names: Mapping[Any, str], fields: Mapping[str, Field]) -> Iterator[str]:
    """Yield sentences about fields that take much more space than the files that they come from."""
    for key, name in names.items():
        value, field = elements[key], fields[name]
        if field.kind == "image" and _is_picture(value) and _original(value) is None:
            yield (
                f"images of field {name!r} are decoded, so each is stored without loss, as {_FORMATS.get(value.mode, 'PNG')}, "
                "which may be ten times as large as a JPEG: pack the folder or a list to keep the original files, or pass "
                "quality=90 to store JPEG"
            )
        if field.kind == "array" and np.ndim(value) >= 2:
            yield (
                f"field {name!r} is stored as an array of {field.dtype} {tuple(np.shape(value))}, not as an image; read it with "
                "reader='array'"
            )
