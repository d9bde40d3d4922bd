"""A layout of your own: read the graphs of an Open Catalyst LMDB, which torch_geometric pickled.

Importing this module registers `lmdb/open_catalyst`. Its unpickler builds tensors and graphs, and calls nothing else.
"""

from __future__ import annotations

import io
import pickle
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch

import storeds
from storeds.errors import RecordError
from storeds.plugins import Engine, Fault, Opener, RawStore, Rows, parse_fields
from storeds.protocols import Backend, Field, Meta


class Graph:
    """Stands for torch_geometric's Data, and for the storage in one."""

    def __setstate__(self, state: Any) -> None:
        # Version 1 of Data has the entries as its state; version 2 has them in the state of a GlobalStorage.
        found = state.get("_mapping", state.get("_store", state))
        self.entries: dict[str, Any] = found.entries if isinstance(found, Graph) else found


class Unpickler(pickle.Unpickler):
    """Reads plain data, tensors and graphs."""

    def find_class(self, module: str, name: str) -> Any:
        known = {  # new functions for each pickle, which could set their attributes
            "collections.OrderedDict": lambda: OrderedDict(),
            "_codecs.encode": lambda text, _: text.encode("latin-1"),
            "torch._utils._rebuild_tensor_v2": lambda *given: torch._utils._rebuild_tensor_v2(*given),
            "torch.storage._load_from_bytes": lambda data: torch.load(io.BytesIO(data), weights_only=True),
            "torch_geometric.data.data.Data": Graph,
            "torch_geometric.data.storage.GlobalStorage": Graph,
        }
        return known[f"{module}.{name}"]  # a KeyError for anything else


def entries_of(data: bytes) -> dict[str, Any]:
    """Return the entries of a graph: NumPy arrays, numbers and texts."""
    found = Unpickler(io.BytesIO(data)).load().entries.items()
    return {name: value.numpy() if hasattr(value, "numpy") else value for name, value in found if value is not None}


def kind_of(value: Any) -> Field | str:
    return Field("array", value.dtype.str, (None,) * value.ndim) if hasattr(value, "ndim") else type(value).__name__


class Graphs(RawStore):
    """Graphs under 0, 1, …, with the entries of the first; arrays may have any length."""

    def __init__(self, blobs: Backend) -> None:
        self._blobs, meta = blobs, blobs.meta
        first = entries_of(blobs.get_many([0])[0]["graph"])  # type: ignore[index]
        fields = parse_fields({name: kind_of(value) for name, value in first.items()})
        self.meta = Meta(meta.id, meta.build, meta.count, "open_catalyst", fields)

    def read(self, positions: list[int], fields: tuple[str, ...] | None) -> Rows:
        return Rows([self._graph(each) for each in self._blobs.get_many(positions)])

    def _graph(self, blob: Any) -> dict[str, Any] | Fault:
        try:
            return Fault(blob.reason) if isinstance(blob, RecordError) else entries_of(blob["graph"])
        except Exception as error:  # damage can make an unpickler raise any exception
            return Fault(str(error))


@dataclass(frozen=True)
class OpenCatalyst(Opener[Backend]):
    """Opens the values of an LMDB store as bytes."""

    location: str

    @property
    def url(self) -> str:
        return self.location

    def key(self) -> Hashable:
        return "open_catalyst", self.location

    def open(self) -> Backend:
        return storeds.open_backend(self.location, columns={"graph": {"path": "{}", "kind": "bytes"}})

    def close(self, handle: Backend, /) -> None:
        handle.close()

    def attach(self, handle: Backend, /) -> Graphs:
        return Graphs(handle)


storeds.register_layout("lmdb", "open_catalyst", Engine(lambda url: OpenCatalyst(str(url))))
