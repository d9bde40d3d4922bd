"""Makes records ready for a store, in threads or in processes: reading, examining, re-encoding, in bounded order."""

from __future__ import annotations

import io
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image, ImageOps

from storeds._utils.text import counted
from storeds.errors import StoredsError
from storeds.jpeg import Verdict, examine, repair
from storeds.jpeg.markers import surely_opens
from storeds.ops.common import die_with_parent, starting_dependents
from storeds.ops.packing.sources.base import BadItem, PackSource
from storeds.ops.packing.sources.files import FilesSource
from storeds.ops.packing.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.packing.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.packing.sources.stores import StoreSource
from storeds.ops.packing.sources.tars import TarSource
from storeds.ops.packing.sources.videos import FrameFolderSource, VideoSource
from storeds.ops.packing.splits import Split
from storeds.protocols import Record
from storeds.readers.decoders import decode_reason
from storeds.records.fields import UNCHECKED, verdict_field

__all__ = ["Prepared", "Preparer", "prepared_chunks"]

_CHUNK_ITEMS = 256
_CHUNK_BYTES = 8 << 20
_AHEAD_BYTES = 4 << 20  # what all threads read ahead together: enough for what an engine writes at a time
_LEAST_BYTES = 256 << 10
_AHEAD = 2  # chunks in flight for each worker process
_QUALITY = 90
# Several threads may call `read` of these at once. Others, a subclass too, may belong to one thread.
_READ_IN_THREADS = frozenset[type](
    (
        FilesSource,
        FlatFolderSource,
        FrameFolderSource,
        ImageFolderSource,
        JsonIndexSource,
        ManifestSource,
        StoreSource,
        TarSource,
    )
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """The outcome for one item of a source.

    Attributes
    ----------
    record : dict or None
        With the verdicts on its pictures; None where there is nothing to store.
    reason : str or None
        What is wrong with it.
    damaged : bool
        Whether a part of one of its pictures is missing or wrong.
    """

    record: Record | None
    reason: str | None = None
    damaged: bool = False


@dataclass(frozen=True)
class Preparer:
    """Reads items of a source and makes records of them; picklable.

    Parameters
    ----------
    source : PackSource
    max_side : int or None
        Images with a longer side are scaled down to it and encoded again.
    quality : int or None
        Every image is encoded again as JPEG of this quality.
    split : Split, optional
        Fills the field ``split``.
    check : bool
        Examine each picture as it comes, unless the source has a verdict on it.
    """

    source: PackSource
    max_side: int | None = None
    quality: int | None = None
    split: Split | None = None
    check: bool = True

    def prepare(self, index: int) -> Prepared:
        """Return the outcome for item `index`; raises nothing for a bad one."""
        return self.finish(index, self.read(index))

    def read(self, index: int) -> Record | BadItem:
        """Return item `index`, or why it cannot be read."""
        try:
            return self.source.read(index)
        except BadItem as error:
            return error

    def finish(self, index: int, item: Record | BadItem) -> Prepared:
        """Return the outcome for what `read` returned; any thread may call it."""
        if isinstance(item, BadItem):
            return Prepared(None, str(item))
        record = dict(item)
        if self.split is not None:
            record["split"] = self.split.of(index, item)
        reasons, damaged = [], False
        for name, field in self.source.fields.items():
            if field.kind == "image":
                reason, verdict = self._take(record, name)
                if reason is not None:
                    reasons.append(reason)
                damaged = damaged or not (verdict is None or verdict.is_whole)
        return Prepared(record, "; ".join(reasons) or None, damaged)

    @property
    def encodes(self) -> bool:
        """Whether images may be encoded again."""
        return self.max_side is not None or self.quality is not None

    def _take(self, record: Record, image: str) -> tuple[str | None, Verdict | None]:
        """Put field `image` of `record` into its final form, with its verdict; return why it is bad, and the verdict."""
        blob = record[image]
        verdict = Verdict.from_text(record.get(verdict_field(image), UNCHECKED))
        if verdict is None and self.check:
            verdict = examine(blob)
        reason = _unreadable(blob, verdict)
        if reason is None and self.encodes:
            record[image], verdict, reason = self._encoded(blob, verdict)
        record[verdict_field(image)] = UNCHECKED if verdict is None else verdict.to_text()
        return reason, verdict

    def _encoded(self, blob: bytes, verdict: Verdict | None) -> tuple[bytes, Verdict | None, str | None]:
        """Return the picture as it is stored, its verdict, and why it is bad.

        A damaged picture keeps the verdict on what it was, since its new bytes look whole.
        """
        try:
            # Pillow reads the header only.
            with Image.open(io.BytesIO(blob)) as image:
                large = self.max_side is not None and max(image.size) > self.max_side
            if not large and self.quality is None:
                return blob, verdict, None
            found = verdict or examine(blob)
            if verdict is None and not found.is_whole and found.kind != "missing_eoi":
                return blob, None, _loss(found)
            encoded = self._encode(blob if found.is_whole else repair(blob))
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            return blob, verdict, _no_image(blob, decode_reason(error))
        return encoded, Verdict("intact") if verdict is not None and verdict.is_whole else verdict, None

    def _encode(self, blob: bytes) -> bytes:
        with Image.open(io.BytesIO(blob)) as opened:
            image = ImageOps.exif_transpose(opened)
            profile = opened.info.get("icc_profile")
            if self.max_side is not None:
                image.thumbnail((self.max_side, self.max_side), Image.Resampling.LANCZOS)
            if image.mode not in ("L", "RGB", "CMYK"):
                image = image.convert("RGB")
            buffer = io.BytesIO()
            image.save(buffer, "JPEG", quality=self.quality or _QUALITY, icc_profile=profile)
        return buffer.getvalue()


def _unreadable(blob: bytes, verdict: Verdict | None) -> str | None:
    """Return why nothing of a picture can be read, by its verdict; without one, whether Pillow opens it."""
    if not blob:
        return "is empty (0 bytes)"
    if verdict is not None:
        nothing = not verdict.is_whole and verdict.recovered == 0.0 and verdict.exact
        return _no_image(blob, verdict.reason or verdict.kind) if nothing else None
    if surely_opens(blob):
        return None
    try:
        with Image.open(io.BytesIO(blob)):
            return None
    except Exception as error:  # decoders raise whatever they like on damaged bytes
        return _no_image(blob, decode_reason(error))


def _no_image(blob: bytes, why: str) -> str:
    return f"is no image that can be read ({counted(len(blob), 'byte')} beginning {blob[:4].hex(' ')}): {why}"


def _loss(found: Verdict) -> str:
    """Return why a damaged picture without a verdict is not encoded again: it would look whole, and nobody would know."""
    return (
        f"is damaged: {found.reason}; encoded again it would look whole, so leave out check=False (--no-check), which keeps "
        "no verdict, or pack it as it is"
    )


Chunk: TypeAlias = tuple[range, list[Prepared]]


def prepared_chunks(preparer: Preparer, start: int, workers: int | None) -> Iterator[Chunk]:
    """Yield ranges of items from `start` on, in order, and the outcome for each; memory is bounded by bytes.

    Parameters
    ----------
    workers : int, optional
        How many threads read, examine and encode; 0 is one. A source that is not known to be safe for threads is read by
        this thread, and what is read examined in threads; with a number, by as many processes.

    Raises
    ------
    StoredsError
        A worker process died.
    """
    kind = type(preparer.source)
    busy = preparer.check or preparer.encodes
    threads = max(workers or 1, 1) if workers is not None or not busy else len(os.sched_getaffinity(0))
    if kind in _READ_IN_THREADS:
        yield from _prepared_in_threads(preparer, start, threads)
    elif workers:
        yield from _prepared_in_processes(preparer, start, workers)
    elif kind is VideoSource:  # it encodes frames as it reads them, in one thread
        yield from _prepared_in_threads(preparer, start, 1)
    elif workers is None and busy:
        yield from _prepared_in_threads(preparer, start, threads, read_here=True)
    else:
        for items in _ranges(preparer.source, start, _AHEAD_BYTES):
            yield items, [preparer.prepare(index) for index in items]


def _prepared_in_threads(preparer: Preparer, start: int, threads: int, *, read_here: bool = False) -> Iterator[Chunk]:
    """Prepare in threads: reading a file, decoding and writing the store all release Python's lock."""
    stop = threading.Event()

    def prepare(items: range) -> list[Prepared]:
        return [preparer.prepare(index) for index in items if not stop.is_set()]

    def finish(items: range, read: list[Record | BadItem]) -> list[Prepared]:
        return [preparer.finish(index, item) for index, item in zip(items, read, strict=True) if not stop.is_set()]

    with ThreadPoolExecutor(threads, "storeds-pack") as pool:
        running: deque[tuple[range, Future[list[Prepared]]]] = deque()
        try:
            for items in _ranges(preparer.source, start, max(_AHEAD_BYTES // threads, _LEAST_BYTES)):
                if read_here:
                    future = pool.submit(finish, items, [preparer.read(index) for index in items])
                else:
                    future = pool.submit(prepare, items)
                running.append((items, future))
                if len(running) > threads:  # while the oldest is written, each thread has one
                    yield _finish(running)
            while running:
                yield _finish(running)
        finally:
            stop.set()


def _prepared_in_processes(preparer: Preparer, start: int, workers: int) -> Iterator[Chunk]:
    ranges = _ranges(preparer.source, start, _CHUNK_BYTES)
    # spawn: a fork would copy whatever locks and handles this process holds.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (preparer,)) as pool:
        running: deque[tuple[range, Future[list[Prepared]]]] = deque()
        try:
            for items in ranges:
                with starting_dependents():  # a worker too, while there are too few
                    running.append((items, pool.submit(_prepare_in_worker, items)))
                if len(running) >= _AHEAD * workers:
                    yield _finish(running)
            while running:
                yield _finish(running)
        finally:
            for _, future in running:
                future.cancel()


def _finish(running: deque[tuple[range, Future[list[Prepared]]]]) -> Chunk:
    items, future = running.popleft()
    try:
        return items, future.result()
    except BrokenProcessPool as error:
        raise StoredsError(
            f"a worker process died while it prepared items {items.start} to {items.stop - 1}; a script that packs with "
            "workers needs `if __name__ == '__main__':` around what it does"
        ) from error


def _ranges(source: PackSource, start: int, most: int) -> Iterator[range]:
    size, first = 0, start
    for index in range(start, len(source)):
        size += source.size(index)
        if size >= most or index + 1 - first >= _CHUNK_ITEMS:
            yield range(first, index + 1)
            size, first = 0, index + 1
    if first < len(source):
        yield range(first, len(source))


_worker: Preparer | None = None


def _start_worker(preparer: Preparer) -> None:
    global _worker
    _worker = preparer
    die_with_parent()


def _prepare_in_worker(items: range) -> list[Prepared]:
    assert _worker is not None
    return [_worker.prepare(index) for index in items]
