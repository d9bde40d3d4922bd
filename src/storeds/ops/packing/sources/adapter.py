"""Rows of the sources that still have random access."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from storeds.ops.packing.rows import Bad, Reference, Row, Rows

__all__ = ["adapted"]


def _wrap(target: Callable[..., Any]) -> Callable[..., Rows]:
    def make(source: Any, **options: Any) -> Rows:
        return adapted(target(source, **options))

    make.__signature__ = inspect.signature(target)  # type: ignore[attr-defined]
    return make


class _Item(Reference):
    __slots__ = ("_index", "_source", "size", "state")

    def __init__(self, source: Any, index: int) -> None:
        self._source, self._index, self.size, self.state = source, index, source.size(index), ()

    def read(self) -> Any:
        return self._source.read(self._index)


def adapted(source: Any) -> Rows:
    """Return the rows of a source with ``read(index)``."""
    problems = [Bad(each.name, each.reason) for each in source.problems]
    in_threads = getattr(source, "thread_safe", False)

    def items(start: int) -> Iterator[Row | Bad]:
        yield from problems[start:]
        for index in range(max(start - len(problems), 0), len(source)):
            item = _Item(source, index)
            if in_threads:
                yield Row(source.name(index), {"record": item})
                continue
            from storeds.ops.packing.rows import BadItem

            try:
                yield Row(source.name(index), {"record": item.read()})
            except BadItem as error:
                yield Bad(source.name(index), str(error))
        rows.notes = list(getattr(source, "notes", ()))

    def strata() -> Iterator[Any]:
        from storeds.ops.packing.sources.base import strata_of

        yield from (None for _ in problems)
        yield from strata_of(source)

    rows = Rows(
        fields=source.fields,
        attrs=source.attrs,
        items=items,
        finish=lambda values: values["record"],
        fingerprint=source.fingerprint,
        count=len(source) + len(problems),
        strata=strata,
        columns=dict(getattr(source, "columns", {})),
        notes=list(getattr(source, "notes", ())),
        stores=tuple(getattr(source, "stores", ())),
    )
    return rows


def __getattr__(name: str) -> Callable[..., Rows]:
    from storeds.ops.packing.sources.coco import CocoSource
    from storeds.ops.packing.sources.exported import ExportedSource
    from storeds.ops.packing.sources.manifests import ManifestSource
    from storeds.ops.packing.sources.originals import dataset_source
    from storeds.ops.packing.sources.tables import TableSource
    from storeds.ops.packing.sources.tars import TarSource
    from storeds.ops.packing.sources.yolo import YoloSource

    targets: dict[str, Callable[..., Any]] = {
        "coco": CocoSource,
        "exported": ExportedSource,
        "csv": partial(ManifestSource, format="csv"),
        "jsonl": partial(ManifestSource, format="jsonl"),
        "dataset": dataset_source,
        "table": TableSource,
        "tar": TarSource,
        "yolo": YoloSource,
    }
    return _wrap(targets[name])
