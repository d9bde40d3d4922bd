"""The source for datasets as Python objects: PyTorch's, torchvision's, Hugging Face's, or any list of samples."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

import numpy as np

from storeds._utils.text import byte_size
from storeds.errors import ConfigError
from storeds.layouts.codecs import is_image
from storeds.ops.packing.sources.base import BadItem, Fingerprint, Problem, read_file
from storeds.ops.packing.sources.columns import field_names
from storeds.protocols import JSON, Array, Backend, Field, Record
from storeds.records.codec import canonical_value
from storeds.records.fields import fields_to_json, parse_fields

if TYPE_CHECKING:
    from PIL import Image

__all__ = ["DatasetSource", "class_names", "take", "undecoded"]


# PNG cannot store the pixels of other modes unchanged.
_PNG_MODES = {"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}
_TIFF_MODES = {"I", "F", "CMYK", "YCbCr", "LAB", "PA"}


def _encoded(image: Image.Image) -> bytes:
    """Return the file that `image` was opened from if its pixels are unchanged, else a PNG or TIFF of it."""
    original = _original(image)
    if original is not None and _is_unchanged(original, image):
        return original
    if image.mode not in _PNG_MODES | _TIFF_MODES:
        raise BadItem(f"a PIL image of mode {image.mode} has no lossless format; pass its array")
    buffer = io.BytesIO()
    try:
        image.save(buffer, "PNG" if image.mode in _PNG_MODES else "TIFF")
    except (OSError, ValueError, SyntaxError) as error:
        raise BadItem(f"its PIL image cannot be encoded: {error}") from None
    return buffer.getvalue()


def _reencoding_note(image: Image.Image) -> str | None:
    """Return how images such as `image` are stored, as the end of a sentence, or None if their files are stored."""
    original = _original(image)
    if original is not None and _is_unchanged(original, image):
        return None
    try:
        blob, buffer = _encoded(image), io.BytesIO()
        image.convert("RGB").save(buffer, "JPEG", quality=90)
    except (BadItem, OSError, ValueError):
        return None
    times = len(blob) / len(buffer.getvalue())
    return (
        f"are decoded, so each is stored as {'PNG' if image.mode in _PNG_MODES else 'TIFF'}; the first takes "
        f"{byte_size(len(blob))}, {times:.1f} times as much as a JPEG of quality 90: pack the folder or a "
        "manifest to keep the original files, or pass quality=90 to store JPEG"
    )


def _original(image: Image.Image) -> bytes | None:
    if getattr(image, "format", None) is None:
        return None
    file = getattr(image, "fp", None)
    if file is not None:
        try:
            place = file.tell()
            file.seek(0)
            data: bytes = file.read()
            file.seek(place)
        except (OSError, ValueError, AttributeError):  # closed, or not a seekable file
            pass
        else:
            return data
    path = getattr(image, "filename", "")
    if not isinstance(path, (str, bytes)) or not path:
        return None
    try:
        return read_file(os.fsdecode(path))
    except (BadItem, ValueError):
        return None


def _is_unchanged(data: bytes, image: Image.Image) -> bool:
    # The image may have been drawn on, scaled, or moved to another frame since it was opened.
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as opened:
            if (opened.size, opened.mode, opened.format) != (image.size, image.mode, image.format):
                return False
            if opened.getpalette() != image.getpalette():
                return False
            return opened.tobytes() == image.tobytes()
    except Exception:  # Pillow raises any exception on damaged files
        return False


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
    if _is_pil_image(value) or _is_file(value):
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
    """Return `value` in the form that the field stores; raises BadItem or TypeError."""
    value = _plain(value)
    if value is None and field.kind != "json":
        raise BadItem("is None")
    if field.kind == "array":
        return _fitting(field, np.asarray(value))
    if field.kind == "json":
        value = _lists(value)
    elif field.kind == "image" and _is_pil_image(value):
        return _encoded(value)
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


def _is_pil_image(value: Any) -> bool:
    return callable(getattr(value, "tobytes", None)) and hasattr(value, "getbands")


def _is_file(value: Any) -> bool:
    """Whether `value` is an undecoded image of Hugging Face's datasets."""
    return isinstance(value, Mapping) and value.keys() == {"bytes", "path"}


def _fitting(field: Field, array: Array) -> Array:
    dtype, shape = np.dtype(field.dtype), field.shape or ()
    fits = array.ndim == len(shape) and all(want in (None, got) for want, got in zip(shape, array.shape, strict=True))
    if array.dtype.newbyteorder("<") != dtype or not fits:
        raise BadItem(
            f"is {array.dtype} {array.shape}, and the field {dtype} {shape}; pass fields= with None for a dimension "
            "that varies"
        )
    return array


def _lists(value: Any) -> Any:
    value = _plain(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value


_TRIED = 16


class DatasetSource:
    """A map-style dataset: an object with ``__getitem__`` and ``__len__`` whose samples are tuples or dicts.

    Parameters
    ----------
    dataset : object
        Worker processes get a pickled copy.
    fields : sequence of str or mapping, optional
        Names for the elements of a tuple in order, or names and kinds as for `open_writer`. For a dict, the keys to
        pack. By default an image is ``image``, an integer after it ``label``, and other elements are ``field2``,
        ``field3``, … or named after their keys. Kinds are those of the first sample.

    Notes
    -----
    A PIL image is stored as the file that it was opened from if its pixels are unchanged, else as PNG (TIFF for modes
    that PNG lacks). Tensors and arrays are stored as arrays of the first sample's dtype and shape, lists as JSON. Images
    of a Hugging Face dataset are stored as their files. ``classes``, or the names of a Hugging Face label, go to attrs.

    Raises
    ------
    ConfigError
        It is empty, or the kinds of its samples are unclear.
    """

    problems: Sequence[Problem] = ()
    stores: Sequence[Backend] = ()

    def __init__(self, dataset: Any, fields: Sequence[str] | Mapping[str, Any] | None = None) -> None:
        if not callable(getattr(dataset, "__getitem__", None)) or not isinstance(dataset, Sized):
            raise ConfigError(f"a {type(dataset).__name__} is not a dataset: it needs __getitem__ and __len__")
        self._count = len(dataset)
        if not self._count:
            raise ConfigError(f"the {type(dataset).__name__} is empty")
        self._classes = class_names(dataset)
        token = getattr(dataset, "_fingerprint", "")
        self._dataset = undecoded(dataset)
        first = self._first()
        self._names = _names(first, fields)
        self.fields: Mapping[str, Field] = _fields(first, self._names, fields)
        kind = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
        provenance: dict[str, JSON] = {"kind": "dataset", "type": kind}
        named: dict[str, JSON] = {} if self._classes is None else {"classes": list(self._classes)}
        self.attrs: Mapping[str, JSON] = {**named, "source": provenance}
        self.fingerprint: JSON = self._hash(kind, token if isinstance(token, str) else "", dataset)
        self._size = _volume(first)
        self.columns: Mapping[str, str | None] = {str(key): name for key, name in self._names.items()}
        self.notes: Sequence[str] = tuple(_notes(_elements(first), self._names, self.fields))

    def _first(self) -> Any:
        reason = ""
        for index in range(min(self._count, _TRIED)):
            try:
                return self._sample(index)
            except BadItem as error:
                reason = reason or f"{self.name(index)} {error}"
        raise ConfigError(f"none of the first samples can be read, so their fields are unknown: {reason}")

    def _hash(self, kind: str, token: str, dataset: Any) -> JSON:
        fingerprint = Fingerprint()
        fingerprint.add(f"{kind} {token} {self._classes} {fields_to_json(self.fields)}")
        # torchvision's datasets know these without reading an image.
        for target in _targets(dataset, self._count):
            fingerprint.add(str(target))
        return fingerprint.finish("dataset", self._count)

    def __len__(self) -> int:
        return self._count

    def name(self, index: int, /) -> str:
        # docstring inherited
        return f"sample {index}"

    def size(self, index: int, /) -> int:
        # docstring inherited
        return self._size

    def read(self, index: int, /) -> Record:
        # docstring inherited
        index = range(self._count)[index]
        sample = self._sample(index)
        values = _elements(sample)
        if isinstance(sample, Mapping):
            lacking = [key for key in self._names if key not in values]
            if lacking:
                raise BadItem(f"has no {', '.join(map(repr, lacking))}")
        elif len(values) != len(self._names):
            raise BadItem(f"has {len(values)} elements, but the first sample has {len(self._names)}")
        record: Record = {}
        for key, name in self._names.items():
            try:
                record[name] = take(self.fields[name], values[key])
            except BadItem as error:
                raise BadItem(f"its {name} {error}") from None
            except (TypeError, ValueError, OverflowError, RuntimeError):
                what, kind = type(values[key]).__name__, self.fields[name].kind
                raise BadItem(f"its {name} is a {what}, but the field is of kind {kind}") from None
        return record

    def _sample(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:  # third-party code may raise anything
            raise BadItem(f"cannot be read: {type(error).__name__}: {error}") from error


def _notes(elements: Mapping[Any, Any], names: Mapping[Any, str], fields: Mapping[str, Field]) -> Iterator[str]:
    for key, name in names.items():
        value = elements[key]
        said = _reencoding_note(value) if callable(getattr(value, "getbands", None)) else None
        if said is not None:
            yield f"images of field {name!r} {said}"
        if fields[name].kind == "array" and len(fields[name].shape or ()) >= 2:
            size = int(np.prod(np.shape(value))) * np.dtype(fields[name].dtype).itemsize
            yield (
                f"field {name!r} is stored as an array of {fields[name].dtype} {tuple(np.shape(value))}, {byte_size(size)} a sample, "
                "not as an image; read it with reader='array'"
            )


def _targets(dataset: Any, count: int) -> list[Any]:
    targets = getattr(dataset, "targets", None)
    if not (isinstance(targets, Sized) and isinstance(targets, Iterable) and len(targets) == count):
        return []
    return [target.item() if callable(getattr(target, "item", None)) else target for target in targets]


def _elements(sample: Any) -> dict[Any, Any]:
    """Return the values of a sample by key, or by position."""
    if isinstance(sample, Mapping):
        return dict(sample)
    if isinstance(sample, (tuple, list)):
        return dict(enumerate(sample))
    return {0: sample}


def _names(sample: Any, fields: Sequence[str] | Mapping[str, Any] | None) -> dict[Any, str]:
    """Return the field name for each key or position of a sample."""
    keys = list(_elements(sample))
    if isinstance(fields, str):
        raise ConfigError(f"fields={fields!r} must be a list of names, or a mapping of names to kinds")
    given = None if fields is None else list(fields)
    if isinstance(sample, Mapping):
        if not all(isinstance(key, str) for key in keys):
            raise ConfigError(f"the keys of a sample must be text, not {keys[:8]!r}")
        known = field_names(keys, (), "the first sample")
        unknown = [name for name in given or () if name not in known.values() and name not in known]
        if unknown:
            raise ConfigError(f"fields: the first sample has no {unknown[0]!r}, only {', '.join(map(repr, keys))}")
        if given is None:
            return known
        return {next(key for key in known if name in (key, known[key])): known.get(name, name) for name in given}
    if given is not None:
        if len(given) != len(keys):
            raise ConfigError(f"fields: {len(given)} names ({', '.join(given)}) for {len(keys)} elements of a sample")
        return dict(zip(keys, given, strict=True))
    own = getattr(sample, "_fields", None)
    if own is not None:
        return dict(zip(keys, field_names(own, (), "the first sample").values(), strict=True))
    return {position: _name(position, _infer(f"element{position}", _elements(sample)[position])) for position in keys}


def _name(position: int, field: Field) -> str:
    if position == 0 and field.kind == "image":
        return "image"
    return "label" if position == 1 and field.kind == "int" else f"field{position}"


def _fields(sample: Any, names: dict[Any, str], given: object) -> dict[str, Field]:
    kinds = {name: given.get(name, given.get(key)) for key, name in names.items()} if isinstance(given, Mapping) else {}
    elements = _elements(sample)
    return parse_fields({name: kinds.get(name) or _infer(name, elements[key]) for key, name in names.items()})


def class_names(dataset: Any) -> list[str] | None:
    """Return the class names that a dataset declares, or None."""
    classes: Any = getattr(dataset, "classes", None)
    features = getattr(dataset, "features", None)
    if classes is None and isinstance(features, Mapping):
        feature = features.get("label") or next((item for item in features.values() if hasattr(item, "names")), None)
        classes = getattr(feature, "names", None)
    if not isinstance(classes, (list, tuple)) or not all(isinstance(name, str) for name in classes):
        return None
    return list(classes)


def undecoded(dataset: Any) -> Any:
    """Return a Hugging Face dataset that gives its images as encoded files."""
    features, cast = getattr(dataset, "features", None), getattr(dataset, "cast_column", None)
    if not isinstance(features, Mapping) or not callable(cast):
        return dataset
    for name, feature in features.items():
        if type(feature).__name__ == "Image" and getattr(feature, "decode", False):
            make: Callable[..., Any] = type(feature)
            dataset = dataset.cast_column(name, make(decode=False))
    return dataset


def _volume(sample: Any) -> int:
    total = 0
    for value in _elements(sample).values():
        size = getattr(value, "size", None)
        if isinstance(value, (bytes, str)):
            total += len(value)
        elif isinstance(size, tuple):  # a PIL image: about one byte per pixel
            total += int(size[0]) * int(size[1])
        else:
            total += int(getattr(value, "nbytes", 8))
    return total
