"""Makes records ready for a store, in a thread or in workers: reading, checking, re-encoding, in bounded order."""

from __future__ import annotations

import io
import multiprocessing
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeAlias

from PIL import Image, ImageOps

from storeds._text import counted
from storeds.decode import decode_reason
from storeds.errors import StoredsError
from storeds.jpeg import Finding, repair, triage
from storeds.ops._dependents import become_dependent, starting_dependents
from storeds.ops._jpeg_header import surely_opens
from storeds.ops.finding_fields import FindingFields
from storeds.ops.pictures import look
from storeds.ops.sources.base import BadItem, PackSource
from storeds.ops.sources.files import FilesSource
from storeds.ops.sources.folders import FlatFolderSource, ImageFolderSource
from storeds.ops.sources.manifests import JsonIndexSource, ManifestSource
from storeds.ops.sources.stores import StoreSource
from storeds.ops.sources.tars import TarSource
from storeds.ops.sources.videos import FrameFolderSource, VideoSource
from storeds.ops.splits import Split
from storeds.protocols import Record

__all__ = ["Prepared", "Preparer", "prepared_chunks"]

_CHUNK_ITEMS = 256
_CHUNK_BYTES = 8 << 20
_AHEAD_BYTES = 4 << 20  # enough for what an engine writes at a time, and few, as they are held once more
_AHEAD = 2  # chunks in flight for each worker
_QUALITY = 90
# A thread may call `read` of these while this one calls `size`. Others, a subclass too, may belong to one thread.
_READ_IN_A_THREAD = frozenset[type](
    (
        FilesSource,
        FlatFolderSource,
        FrameFolderSource,
        ImageFolderSource,
        JsonIndexSource,
        ManifestSource,
        StoreSource,
        TarSource,
        VideoSource,
    )
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What became of one item of a source.

    Attributes
    ----------
    record : dict or None
        None where there is nothing to store.
    reason : str or None
        What is wrong with it.
    odd : bool
        Whether it has a damaged JPEG, which readers mend or refuse.
    """

    record: Record | None
    reason: str | None = None
    odd: bool = False


@dataclass(frozen=True)
class Preparer:
    """Reads items of a source and makes records of them; picklable.

    Parameters
    ----------
    source : PackSource
    max_side : int or None
        Images with a longer side are scaled down to it and encoded anew.
    quality : int or None
        Every image is encoded anew as JPEG of this quality.
    split : Split, optional
        Fills the field ``split``.
    findings : FindingFields, optional
        Fields to fill in with what is found in the pictures, as they came.
    """

    source: PackSource
    max_side: int | None = None
    quality: int | None = None
    split: Split | None = None
    findings: FindingFields | None = None

    def prepare(self, index: int) -> Prepared:
        """Return what became of item `index`; raises nothing for a bad one."""
        try:
            record = self.source.read(index)
        except BadItem as error:
            return Prepared(None, str(error))
        if self.split is not None:
            record = {**record, "split": self.split.of(index, record)}
        reasons, odd = [], False
        for name, field in self.source.fields.items():
            if field.kind == "image":
                finding = self._check(record, name)
                record[name], reason = self._image(record[name], finding)
                if reason is not None:
                    reasons.append(reason)
                elif finding.is_damaged:
                    odd = True
        return Prepared(record, "; ".join(reasons) or None, odd)

    @property
    def _encodes(self) -> bool:
        return self.max_side is not None or self.quality is not None

    def _check(self, record: Record, image: str) -> Finding:
        """Return what triage says about field `image` of `record`, whose finding is filled in if that is asked for."""
        if self.findings is None:
            return triage(record[image])
        picture = look(record[image])
        record.update(self.findings.values(record, image, picture))
        return picture.finding

    def _loss(self, blob: bytes, finding: Finding) -> str | None:
        """Return what is wrong with a picture that would look whole, once it is encoded anew, and nobody would be told."""
        if self.findings is not None or not finding.is_damaged:
            return None
        exact = triage(blob)
        if exact.kind == "missing_eoi" or not exact.is_damaged:
            return None
        return (
            f"is damaged: {exact.reason}; encoded anew it would look whole, so keep what was found (check=True, --check), or "
            "pack it as it is"
        )

    def _image(self, blob: bytes, finding: Finding) -> tuple[bytes, str | None]:
        if not blob:
            return blob, "is empty (0 bytes)"
        if not self._encodes and surely_opens(blob, finding):
            return blob, None
        try:
            # Pillow reads the header only; the frame is decoded when it has to be encoded anew.
            with Image.open(io.BytesIO(blob)) as image:
                large = self.max_side is not None and max(image.size) > self.max_side
            if not large and self.quality is None:
                return blob, None
            loss = self._loss(blob, finding)
            return (self._encode(repair(blob, finding)), None) if loss is None else (blob, loss)
        except Exception as error:  # decoders raise whatever they like on damaged bytes
            return (
                blob,
                f"is no image that can be read ({counted(len(blob), 'byte')} beginning {blob[:4].hex(' ')}): {decode_reason(error)}",
            )

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


Chunk: TypeAlias = tuple[range, list[Prepared]]


def prepared_chunks(preparer: Preparer, start: int, workers: int) -> Iterator[Chunk]:
    """Yield ranges of items from `start` on, in order, and what became of each; memory is bounded by bytes.

    Raises
    ------
    StoredsError
        A worker process died.
    """
    if not workers:
        yield from _prepared_here(preparer, start)
        return
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


def _prepared_here(preparer: Preparer, start: int) -> Iterator[Chunk]:
    ranges = _ranges(preparer.source, start, _AHEAD_BYTES)
    if type(preparer.source) not in _READ_IN_A_THREAD:
        for items in ranges:
            yield items, [preparer.prepare(index) for index in items]
        return
    stop = threading.Event()

    def prepare(items: range) -> list[Prepared]:
        return [preparer.prepare(index) for index in items if not stop.is_set()]

    # One chunk ahead: files are read while the store is written, both of which release Python's lock.
    with ThreadPoolExecutor(1, "storeds-pack") as pool:
        try:
            ahead: tuple[range, Future[list[Prepared]]] | None = None
            for items in ranges:
                done, ahead = ahead, (items, pool.submit(prepare, items))
                if done is not None:
                    yield done[0], done[1].result()
            if ahead is not None:
                yield ahead[0], ahead[1].result()
        finally:
            stop.set()


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
    become_dependent()


def _prepare_in_worker(items: range) -> list[Prepared]:
    assert _worker is not None
    return [_worker.prepare(index) for index in items]
