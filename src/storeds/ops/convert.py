"""Copies a store from any backend to any other, record by record, and proves that nothing changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storeds._meta import NATIVE
from storeds._url import redact
from storeds.errors import FormatError
from storeds.ops._batches import read_batches
from storeds.ops._itself import refuse_itself
from storeds.ops.progress import ProgressHook
from storeds.ops.resumable import resumable
from storeds.protocols import Meta
from storeds.stores import open_backend, open_writer

__all__ = ["convert"]


def convert(
    src_url: str | Sequence[str],
    dst_url: str,
    *,
    overwrite: bool = False,
    resume: bool = False,
    commit_every: int = 1000,
    index: Sequence[str] = (),
    layout: str | None = None,
    options: Mapping[str, Any] | None = None,
    progress: ProgressHook | None = None,
) -> Meta:
    """Copy the store at `src_url` to `dst_url`; order, fields and attrs stay the same, and a native store's `Meta.id`.

    Parameters
    ----------
    src_url : str or list of str
        As for `open_backend`: one store, or a pattern or list of several, which become one.
    dst_url : str
        As for `open_writer`.
    overwrite, resume, commit_every, index
        As for `open_writer`.
    layout, options : str, mapping, optional
        Of the source, as for `open_backend`: a foreign store is converted as any other.
    progress : callable, optional
        Called with a `Progress` now and then.

    Returns
    -------
    Meta
        Of the new store.

    Raises
    ------
    ConfigError
        The target is the source, or one of the stores that it reads as one.
    RecordError
        A record of the source is bad; nothing is published.
    FormatError
        The copy's `Meta.id` differs from the source's, so the source is damaged where no checksum of a record shows it.
    """
    with open_backend(src_url, layout=layout, **(options or {})) as source:
        refuse_itself(source, dst_url)
        writer = open_writer(
            dst_url,
            source.meta.fields,
            overwrite=overwrite,
            resume=resume,
            commit_every=commit_every,
            plan={"convert": source.meta.id},
            index=index,
        )
        with resumable(writer):
            for records, state in read_batches(source, writer.count):
                writer.append(records)
                if progress is not None:
                    progress(state)
            meta = writer.publish(source.meta.attrs)
        if source.meta.layout == NATIVE and meta.id != source.meta.id:
            raise FormatError(
                f"{redact(dst_url)} holds what was read from {source.url}, but its content id {meta.id} differs from the "
                f"source's {source.meta.id}: the source is damaged; run storeds verify on it"
            )
        return meta
