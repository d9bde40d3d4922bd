"""The interfaces of backends, writers, readers and decoders.

Read this file first. A *backend* returns records by position; a *reader* turns records into samples. Neither knows the
other. `storeds.testing.BackendTests` checks the rules stated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    runtime_checkable,
)

import numpy as np
import xxhash

from storeds.errors import RecordError

if TYPE_CHECKING:
    import torch

__all__ = [
    "JSON",
    "KINDS",
    "ROLES",
    "Array",
    "Backend",
    "Box",
    "ChooseBoxes",
    "CropRequest",
    "Cropped",
    "Cropper",
    "Decoder",
    "Description",
    "Field",
    "Kind",
    "Meta",
    "Place",
    "Reader",
    "ReaderSpec",
    "Record",
    "Repair",
    "Role",
    "SampleContext",
    "SupportsBatchArrays",
    "SupportsColumns",
    "SupportsDescription",
    "SupportsKeys",
    "SupportsParts",
    "SupportsWhere",
    "Transform",
    "Window",
    "Writer",
]


JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Record: TypeAlias = dict[str, Any]
Transform: TypeAlias = Callable[..., Any]
Box: TypeAlias = tuple[slice, ...]
"""A part of an array: a start and an end along each axis."""
Kind: TypeAlias = Literal["image", "bytes", "str", "int", "float", "bool", "array", "json"]

Role: TypeAlias = Literal["image", "mask", "boxes", "keypoints", "label", "labels", "text"]

KINDS: tuple[str, ...] = get_args(Kind)
ROLES: tuple[str, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Field:
    """The type of one field, the same in every record.

    Parameters
    ----------
    kind : str
        ``image`` or ``bytes`` (bytes), ``str``, ``int`` (int64), ``float`` (binary64), ``bool``,
        ``array`` (`numpy.ndarray`) or ``json`` (anything JSON).
    dtype : str or None
        For an array: its little-endian NumPy dtype, for example ``"<f4"``.
    shape : tuple of (int or None), or None
        For an array: its shape; None marks a dimension that may differ between records.
    role : str or None
        What the values mean, which decides what joint transforms do with them: ``image``, ``mask`` (class ids of
        pixels), ``boxes``, ``keypoints``, ``label`` (one class), ``labels`` (several classes) or ``text``.
    format : str or None
        Of boxes: ``xyxy``, ``xywh`` or ``cxcywh``. Of a mask of kind json: ``coco``, a list of polygons or run-length
        encodings, one for each instance.
    relative : bool
        Whether coordinates are fractions of the width and the height of the image, instead of pixels.
    of : str or None
        The field of boxes whose rows these rows describe. When a transform drops a box, it drops its row here too.
    """

    kind: Kind
    dtype: str | None = None
    shape: tuple[int | None, ...] | None = None
    role: Role | None = None
    format: str | None = None
    relative: bool = False
    of: str | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether the field holds one number per record."""
        return self.kind in ("int", "float", "bool")

    @property
    def is_blob(self) -> bool:
        """Whether values can be large, so that unneeded reads are costly."""
        return self.kind in ("image", "bytes", "array")

    @property
    def is_fixed(self) -> bool:
        """Whether every value takes the same number of bytes."""
        return self.is_scalar or (self.shape is not None and None not in self.shape)


@dataclass(frozen=True, slots=True)
class Meta:
    """The description of a store; its size does not depend on the number of records.

    Parameters
    ----------
    id : str
        A content hash: xxh3-128 over fields, attrs and all record checksums. Equal in every engine.
    build : str
        A random value, new at every publish, that shows when an open store was replaced.
    count : int
        Number of records.
    layout : str
        ``"storeds/1"``, or the name of a foreign layout.
    fields : mapping of str to Field
        The fields of every record, in declared order. Beside an image of a native store, ``<image>_finding`` (str) and
        ``<image>_recovered`` (float) hold the verdict on it, see `storeds.pictures.Verdict`.
    attrs : mapping of str to JSON
        User data, such as class names and provenance.
    fast_crops : int or None
        Number of pictures of which readers can decode a crop alone, as the program that wrote the store counted them.
        None if it did not.
    """

    id: str
    build: str
    count: int
    layout: str
    fields: Mapping[str, Field]
    attrs: Mapping[str, JSON] = field(default_factory=dict)
    fast_crops: int | None = None


class Repair(NamedTuple):
    """A repair made by a reader: its kind, for counting, and a description."""

    kind: str
    message: str


@dataclass(frozen=True)
class SampleContext:
    """The sample being built, and its own source of randomness.

    Parameters
    ----------
    index : int
        The sample's index in its dataset.
    epoch : int
        The current epoch.
    seed : int or None
        The seed of the run; with None, transforms use the global generators.
    """

    index: int
    epoch: int = 0
    seed: int | None = None
    notes: list[Repair] = field(default_factory=list, compare=False, repr=False)
    """The reader's repairs, which the dataset reports."""

    @property
    def sample_seed(self) -> int | None:
        """A 64-bit number that depends on (seed, epoch, index) and on nothing else."""
        if self.seed is None:
            return None
        return xxhash.xxh3_64_intdigest(f"{self.seed}/{self.epoch}/{self.index}".encode())

    @property
    def generator(self) -> torch.Generator | None:
        """The sample's own `torch.Generator`, or None without a seed."""
        # Not functools.cached_property: up to Python 3.11 all instances share a lock, which a fork may copy locked.
        made: torch.Generator | None = self.__dict__.get("_generator")
        seed = self.sample_seed if made is None else None
        if seed is not None:
            import torch

            made = self.__dict__["_generator"] = torch.Generator().manual_seed(seed)
        return made


S_co = TypeVar("S_co", covariant=True)


@runtime_checkable
class Backend(Protocol):
    """Reads records by dense position ``0..count-1`` from one storage engine.

    Obligations on implementers
    ---------------------------
    *Threads*: several threads may call any method at once.
    *Processes*: a backend works in the process that created it, after a fork, and after pickling into another process.
    A handle is used and closed only in the process that opened it.
    *Pickling*: a pickle holds configuration and `Meta` only, so its size does not depend on ``count``; unpickling opens
    nothing.
    *Determinism*: the same positions return the same records. *Memory*: results own their memory.

    Attributes
    ----------
    url : str
        The store's location without secrets; safe to print.
    meta : Meta
        Read once, when the backend is created.
    """

    @property
    def url(self) -> str: ...

    @property
    def meta(self) -> Meta: ...

    def __len__(self) -> int: ...

    def get_many(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> list[Record | RecordError]:
        """Read records in one storage round trip.

        Parameters
        ----------
        positions : sequence of int
            Any order, duplicates allowed, NumPy integers accepted.
        fields : sequence of str, optional
            The fields to return; all of them by default.

        Returns
        -------
        list
            ``out[j]`` belongs to ``positions[j]``. A damaged or missing record becomes a `RecordError` *value* in its
            place, so one bad record does not lose the others.

        Raises
        ------
        IndexError
            A position is outside ``[0, count)``.
        ConfigError
            A field does not exist.
        UnavailableError
            The engine cannot be reached.
        ClosedError
            The backend was closed.
        """
        ...

    def close(self) -> None:
        """Release the engine; idempotent. Waits for reads in progress in other threads."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class SupportsColumns(Protocol):
    """A backend that reads one field of every record without reading blobs."""

    def column(self, name: str, /) -> Array:
        """Return field `name` of all records, shape ``(count,)`` (``(count, *shape)`` for fixed-shape arrays).

        dtypes: int64, float64, bool, the array's own, or `numpy.dtypes.StringDType` for ``str``.
        """
        ...


@runtime_checkable
class SupportsBatchArrays(Protocol):
    """A backend that reads fixed-size fields of many records as arrays, without building records."""

    def get_arrays(self, positions: Sequence[int], /, fields: Sequence[str] | None = None) -> dict[str, Array]:
        """Return fields as writable arrays of shape ``(len(positions), *shape)`` that share no memory with the store.

        dtypes: int64, float64, bool, or the array's own, in the machine's byte order. Records are verified as by
        ``get_many`` for the same fields.

        Parameters
        ----------
        positions : sequence of int
            Any order, duplicates allowed, NumPy integers accepted.
        fields : sequence of str, optional
            The fields to return; by default all of fixed size: ``int``, ``float``, ``bool`` and fixed-shape arrays.

        Raises
        ------
        IndexError
            A position is outside ``[0, count)``.
        ConfigError
            A field does not exist, or has no fixed size.
        RecordError
            A record is incomplete or does not match its checksum. This is the error of the first such record in
            ``positions``; ``get_many`` returns the good records, with errors as values.
        UnavailableError, ClosedError
            As for ``get_many``.
        """
        ...


ChooseBoxes: TypeAlias = Callable[[int, Mapping[str, tuple[int, ...]]], Mapping[str, Box]]
"""Returns field → the box to read, given the place of a part in the request and the shape of each array of its record.

Fields that it leaves out are read whole. A ValueError says why the record has no such part, which then is bad.
"""


@runtime_checkable
class SupportsParts(Protocol):
    """A backend that reads parts of large arrays without reading the rest."""

    def get_parts(
        self, positions: Sequence[int], choose: ChooseBoxes, /, fields: Sequence[str] | None = None
    ) -> list[Record | RecordError]:
        """Return records with a part of some arrays.

        Parameters
        ----------
        positions : sequence of int
            Any order. A position that occurs several times gives several parts of one record.
        choose : callable
            Which part. It is called once for each position, in any order, and reads nothing.
        fields : sequence of str, optional
            As for ``get_many``, as are the result and the errors.
        """
        ...


@runtime_checkable
class SupportsKeys(Protocol):
    """A backend whose store finds records by key as well as by position."""

    def keys(self) -> Array:
        """Return the key of every record as text, shape ``(count,)``, `numpy.dtypes.StringDType`."""
        ...

    def positions(self, keys: Sequence[str], /) -> Array:
        """Return the int64 positions of the records with these keys, in the same order; duplicates allowed.

        Raises
        ------
        ConfigError
            A key does not exist.
        """
        ...


@runtime_checkable
class SupportsWhere(Protocol):
    """A backend whose engine can select records."""

    def select(self, where: Mapping[str, Any], /) -> Array:
        """Return the ascending int64 positions of records whose fields equal (or are in) the given values."""
        ...


class Place(NamedTuple):
    """Where a record lies: the store that holds it, the position there, and what else names it, such as its ``_id``."""

    url: str
    position: int
    name: str = ""


@dataclass(frozen=True)
class Description:
    """What a store says of itself besides its `Meta`, for `storeds.info`.

    Parameters
    ----------
    bytes : int or None
        The size of the store in its engine.
    settings : mapping of str to JSON
        How it is opened.
    advice : sequence of str
        Problems with its location or settings, and what to do.
    unread : sequence of str
        The parts of the store that no record holds, each with a reason; few, of which the last may count the rest.
    faults : sequence of str
        Those of `unread` that should be records, and cannot be read: `storeds.verify` reports them.
    recognised : str or None
        Why a store of another tool was opened as what it is, if no argument said so.
    leftovers : str or None
        Where an interrupted writer of this store left its work.
    writer : str or None
        The process that is rewriting this store.
    """

    bytes: int | None = None
    settings: Mapping[str, JSON] = field(default_factory=dict)
    advice: Sequence[str] = ()
    unread: Sequence[str] = ()
    faults: Sequence[str] = ()
    recognised: str | None = None
    leftovers: str | None = None
    writer: str | None = None


@runtime_checkable
class SupportsDescription(Protocol):
    """A backend that describes its store, and tells where its records lie."""

    def describe(self) -> Description:
        """Return what the store says of itself; it may read the store."""
        ...

    def place(self, position: int, /) -> Place:
        """Return where a record lies. Raises IndexError."""
        ...


class Writer(Protocol):
    """Builds a store in a temporary place and publishes it in one atomic step.

    A context manager: a clean exit publishes, and an exception suspends, or aborts a new writer without durable records. Use
    it in one thread of one process.

    Attributes
    ----------
    count : int
        Number of records so far, including those of a resumed write; a caller that resumes continues at this record.
    note : JSON
        The last note, of this writer or of the one that it resumes.
    """

    @property
    def count(self) -> int: ...

    @property
    def note(self) -> JSON: ...

    def append(self, records: Record | Iterable[Record], /, *, note: JSON = None) -> int:
        """Add one record, or many, and return how many.

        Parameters
        ----------
        records : dict, or iterable of dict
        note : JSON, optional
            Where to continue after these records. They become durable together with it, so a writer that resumes has no
            record that its note does not count.

        Raises
        ------
        RecordError
            A value does not fit its field or its role. Records before it have been added, unless there is a note.
        """
        ...

    def flush(self, note: JSON = None) -> None:
        """Make all appended records durable, together with `note`, if given."""
        ...

    def publish(self, attrs: Mapping[str, JSON] | None = None) -> Meta:
        """Make the complete store visible under its URL and return its `Meta`.

        Raises
        ------
        ConfigError
            `attrs` are not JSON. The writer stays open, and keeps its records when a ``with`` block ends.
        RecordError
            A class id of a field with role ``label`` or ``labels`` has no name in ``attrs["classes"]``. As above.
        """
        ...

    def abort(self) -> None:
        """Drop everything written; the target stays absent or unchanged.

        After an exception or an interrupt too, unless another writer has continued the write meanwhile: `StoreExistsError`.
        """
        ...

    def suspend(self) -> None:
        """Stop and keep the durable records for ``open_writer(…, resume=True)``."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ReaderSpec(Protocol[S_co]):
    """Describes a reader that is not bound to a store yet. Picklable.

    One class may be this and `Reader` in one: then `bind` returns a copy of the object that knows the store.
    """

    def bind(self, backend: Backend, /) -> Reader[S_co]:
        """Return a reader for `backend`; may read columns. Raises `ConfigError` for fields of an unsupported kind."""
        ...


class Reader(Protocol[S_co]):
    """Turns records of one store into samples. Picklable, stateless between calls, thread-safe.

    Attributes
    ----------
    fields : tuple of str
        The names of the sample's elements, in order; may include ``"index"`` and ``"key"``.
    stored : tuple of str
        The record fields that `build` needs.
    data, target : str or None
        The elements that ``transform`` and ``target_transform`` apply to.
    """

    @property
    def fields(self) -> tuple[str, ...]: ...

    @property
    def stored(self) -> tuple[str, ...]: ...

    @property
    def data(self) -> str | None: ...

    @property
    def target(self) -> str | None: ...

    def __len__(self) -> int:
        """Return the number of samples, which need not be the number of records."""
        ...

    def locate(self, index: int, context: SampleContext, /) -> Sequence[int]:
        """Return the positions of the records for sample `index`; no I/O."""
        ...

    def build(self, records: Sequence[Record], context: SampleContext, /) -> S_co:
        """Build the sample from its records; raises `DecodeError` if their bytes cannot be decoded.

        A mapping *name → value* for each of `fields` lets `StoreDataset` apply transforms and build tuples.
        """
        ...


class Decoder(Protocol):
    """Decodes images. Picklable and thread-safe."""

    def __call__(self, blob: bytes, mode: str, /) -> Any:
        """Decode `blob`; `mode` is a Pillow mode such as ``"RGB"``. Any exception counts as a decoding failure."""
        ...


Window: TypeAlias = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image, in pixels."""


class CropRequest(NamedTuple):
    """A window to cut out of an image, and the size (height, width) to which a transform then resizes it."""

    window: Window
    size: tuple[int, int]


class Cropper(Protocol):
    """A transform that begins with crops whose windows depend only on the size of the image.

    The decoder then skips pixels outside the windows.
    """

    def crops(self, height: int, width: int, generator: torch.Generator | None = None) -> Sequence[CropRequest]:
        """Draw the crops of an image of this size; return none to get the whole image. Beyond edges, windows are zero."""
        ...


class Cropped(NamedTuple):
    """The windows of an image, cut out but not resized, which a reader passes to a `Cropper` instead of the image.

    Attributes
    ----------
    images : tuple of torch.Tensor
        uint8, shape (channels, height, width) each. Decoded at a smaller scale, they may be smaller than the windows.
    """

    images: tuple[torch.Tensor, ...]
