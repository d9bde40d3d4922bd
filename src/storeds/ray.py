"""Packs the parts of a versioned store as tasks of a Ray cluster, and reads stores as Ray datasets.

Every machine of the cluster has storeds, and sees the source and the store under the same paths.
"""

from __future__ import annotations

import importlib
import itertools
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np

from storeds import ops
from storeds.backends.opening import open_backend
from storeds.backends.staging import ActiveWriterError
from storeds.backends.versions.document import Version
from storeds.backends.versions.reading import VersionedStore
from storeds.backends.view import describe
from storeds.errors import ConfigError, MissingDependencyError, RecordError, StoredsError, UnavailableError, suggest
from storeds.layouts.files.rows import Bad
from storeds.ops.growing import folder_of
from storeds.ops.members import unpublished_parts
from storeds.ops.packing import Packed
from storeds.ops.progress import Progress, ProgressHook
from storeds.protocols import Backend, Field
from storeds.records.canonical_json import canonical_json

__all__ = ["pack", "read"]

_PATIENCE, _PAUSE, _GRACE = 120.0, 0.5, 1.0  # seconds
_BYTES_AT_ONCE, _MOST_ROWS = 16 << 20, 1024  # of one call of `get_many`


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(f"{name} cannot be imported ({error}): pip install 'storeds[ray]'") from error


# --- Packing ---


def pack(
    source: str | os.PathLike[str] | Any,
    url: str | os.PathLike[str],
    *,
    parts: int | None = None,
    address: str | None = None,
    retries: int = 3,
    message: str = "",
    progress: ProgressHook | None = None,
    on_problem: Callable[[Bad], None] | None = None,
    **options: Any,
) -> Packed:
    """Pack a source into a versioned store: its parts as tasks of a Ray cluster, then `storeds.ops.commit`.

    The same call repeats one that was interrupted, and packs the parts that are missing.

    Parameters
    ----------
    source, url, on_problem, **options
        As for `storeds.pack`, which raises the same errors. A part has as many CPUs as `workers`, by default 1.
    parts : int, optional
        How many. By default one for each CPU of the cluster, or the number of an interrupted call. The id does not depend on it.
    address : str, optional
        Of the cluster, as for ``ray.init``, if this process is not connected to one. By default it is the one that runs on
        this machine; ``"local"`` starts one for this call.
    retries : int
        How often a part continues after its machine died or the store was unavailable.
    message : str
        For `storeds.ops.log`.
    progress : callable, optional
        Called after each part with a `Progress` that counts parts.

    Returns
    -------
    Packed
        With the id and count of the new version, and the reports of the parts together; one that was there reports nothing.

    Raises
    ------
    MissingDependencyError
        Ray is not installed.
    UnavailableError
        There is no cluster, or the machines of a part died more often than `retries`.
    RecordError
        Parts have bad items: the message names the parts. All others are written first, and stay.
    """
    if options.pop("part", None) is not None or (parts is not None and parts < 1):
        raise ConfigError("packing with Ray writes all parts: leave out part= (--part); parts= is how many, 1 or more")
    place = folder_of(url)
    target = os.fspath(url) if place.engine == "mongodb" else place.url  # absolute, or with its secrets
    options.setdefault("workers", 1)
    packed, errors = list[Packed](), list[RecordError]()
    with _cluster(address) as ray:
        begun = {of for _, of in unpublished_parts(place)}
        count = parts or (begun.pop() if len(begun) == 1 else max(int(ray.cluster_resources().get("CPU", 1)), 1))
        task = ray.remote(_pack_part).options(
            num_cpus=max(options["workers"] or 1, 1),
            max_retries=retries,
            retry_exceptions=[UnavailableError],
            scheduling_strategy="SPREAD",
        )
        job = ray.put((os.getcwd(), source, target, options))
        tasks = {task.remote(job, part): part for part in (f"{number}/{count}" for number in range(1, count + 1))}
        try:
            for result, problems in _results(ray, tasks):
                (errors if isinstance(result, RecordError) else packed).append(result)
                for problem in problems:
                    if on_problem is not None:
                        on_problem(problem)
                if progress is not None:
                    bad, damaged = sum(each.left_out for each in packed), sum(each.damaged for each in packed)
                    progress(Progress(len(packed) + len(errors), count, 0, bad, damaged))
        finally:
            # Others may fail now for the same reason. To cancel a task that is just ending can abort this process (ray#54846).
            for each in ray.wait(list(tasks), num_returns=count, timeout=_GRACE)[1]:
                ray.cancel(each)
    if errors:
        errors[0].args = ("\n".join(map(str, errors)),)
        raise errors[0]
    return _together(ops.commit(target, message=message), packed)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Give the module of Ray, connected to a cluster while the body runs."""
    ray = _import("ray")
    was_connected = ray.is_initialized()
    try:
        if not was_connected:
            ray.init(address or "auto", logging_level=logging.WARNING)
    except ConnectionError as error:
        raise UnavailableError(
            f"no Ray cluster at {address or 'auto'}: `ray start` starts one, and address='local' (--ray local) "
            f"one for this call ({error})"
        ) from None
    try:
        yield ray
    finally:
        if not was_connected:
            ray.shutdown()


def _pack_part(job: tuple[str, Any, str, dict[str, Any]], part: str) -> tuple[Packed | RecordError, list[Bad]]:
    """Pack one part, in a task. A RecordError is a result: other parts go on."""
    folder, source, url, options = job
    with suppress(FileNotFoundError):  # absolute paths need no such folder on this machine
        os.chdir(folder)
    problems: list[Bad] = []
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            return ops.pack(source, url, part=part, on_problem=problems.append, **options), problems
        except RecordError as error:
            return error, problems
        except ActiveWriterError:  # a task may live a little longer than its machine
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)


def _results(ray: Any, tasks: Mapping[Any, str]) -> Iterator[tuple[Any, list[Bad]]]:
    """Yield the results of tasks as they end. Errors name the part."""
    left = list(tasks)
    while left:
        (done,), left = ray.wait(left)
        try:
            result, problems = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, StoredsError):
                error.cause.args = (f"part {tasks[done]}: {error.cause}",)
                raise error.cause from None
            raise
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"part {tasks[done]}: {error}") from None
        if isinstance(result, RecordError):
            result.args = (f"part {tasks[done]}: {result}",)
        yield result, problems


def _together(version: Version, parts: Sequence[Packed]) -> Packed:
    """Return the report on a version that has all parts."""
    meta = version.meta(f"version {version.number}")
    own: dict[str, Any] = {name: getattr(meta, name) for name in ("id", "build", "count", "layout", "fields", "attrs")}
    for name in ("reasons", "findings", "restarts"):
        sums = sum((Counter(getattr(part, name)) for part in parts), Counter[str]())
        own[name] = dict(sums.most_common())
    crops = [part.fast_crops for part in parts]
    own["fast_crops"] = None if None in crops else sum(filter(None, crops))
    own["notes"] = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Packed(columns=parts[0].columns, left_out=sum(part.left_out for part in parts), **own)


# --- Reading ---


def read(url: str | os.PathLike[str], *, fields: Sequence[str] | None = None) -> Any:
    """Return the records of a store as a ``ray.data.Dataset``, a row for each. Raises the errors of `open_backend`.

    One task reads a member of a versioned store, or a range of any other store. Numbers are int64 or float64, arrays tensors, and
    json its text. Blocks come in any order, as Ray reads them. The dataset keeps the version that was opened. Using it raises
    the `RecordError` of a bad record.

    Parameters
    ----------
    url : str
    fields : sequence of str, optional
        By default all. Raises ConfigError if one does not exist.
    """
    data, datasource = _import("ray.data"), _import("ray.data.datasource")
    metadata = _import("ray.data.block").BlockMetadata
    backend = open_backend(url)
    declared = backend.meta.fields
    unknown = [name for name in fields or () if name not in declared]
    if unknown:
        raise ConfigError(f"{backend.url} has no field {unknown[0]!r}; {suggest(unknown[0], declared, 'fields')}")
    wanted = {name: declared[name] for name in (declared if fields is None else fields)}

    class Stores(datasource.Datasource):  # type: ignore[misc, name-defined]
        def estimate_inmemory_data_size(self) -> int:
            return sum(size for *_, size in _pieces(backend, 1))

        def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, **_: object) -> list[Any]:
            return [
                datasource.ReadTask(
                    partial(_blocks, store, wanted, start, stop, size),
                    metadata(num_rows=stop - start, size_bytes=size, exec_stats=None, input_files=None),
                    per_task_row_limit=per_task_row_limit,
                )
                for store, start, stop, size in _pieces(backend, parallelism)
            ]

    # By default Ray would divide the blocks of few members.
    blocks = len(_pieces(backend, 1)) if isinstance(backend, VersionedStore) else None
    return data.read_datasource(Stores(), override_num_blocks=blocks)


def _pieces(backend: Backend, parallelism: int) -> list[tuple[Backend, int, int, int]]:
    """Return what each task reads: a store, the first position, the end, and the stored bytes. Opens no member."""
    pieces: list[tuple[Backend, int, int, int]] = []
    if isinstance(backend, VersionedStore):
        for store, member in zip(backend.stores, backend.version.members, strict=True):
            if member.kept:
                size = backend.size_of(member)
                pieces.append((store, 0, member.kept, size * member.kept // member.count))
    elif len(backend):
        count, size = len(backend), describe(backend).bytes or 0
        tasks = min(parallelism, count)
        bounds = [count * number // tasks for number in range(tasks + 1)]
        pieces = [(backend, start, stop, size * (stop - start) // count) for start, stop in itertools.pairwise(bounds)]
    return pieces or [(backend, 0, 0, 0)]


def _blocks(backend: Backend, fields: Mapping[str, Field], start: int, stop: int, size: int) -> Iterator[Any]:
    """Yield the records of a range as Arrow tables, in a task."""
    rows = min(max(_BYTES_AT_ONCE * (stop - start) // max(size, 1), 1), _MOST_ROWS)
    with backend:
        for first in range(start, max(stop, start + 1), rows):  # without records, a table that has the types
            records: Any = backend.get_many(range(first, min(first + rows, stop)), list(fields))
            for record in records:
                if isinstance(record, RecordError):
                    raise record
            columns = {name: _column(each, [record[name] for record in records]) for name, each in fields.items()}
            yield _import("pyarrow").table(columns)


def _column(field: Field, values: list[Any]) -> Any:
    """Return the values of a field as an Arrow array."""
    if field.kind == "array":
        if not values:  # an empty array has its type from one value
            return _column(field, [np.zeros([size or 1 for size in field.shape or ()], field.dtype)])[:0]
        extensions = _import("ray.data.extensions")
        tensors = extensions.ArrowTensorArray if field.is_fixed else extensions.ArrowVariableShapedTensorArray
        return tensors.from_numpy(values)
    pa = _import("pyarrow")
    types = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string(), "json": pa.string()}
    return pa.array(
        map(canonical_json, values) if field.kind == "json" else values, types.get(field.kind, pa.large_binary())
    )
