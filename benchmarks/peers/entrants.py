"""Lists the entrants and the ratios between them. To add an entrant or a ratio, add a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENGINES = ("lmdb", "hdf5", "mongodb")


@dataclass(frozen=True, eq=False)  # a key, though it holds mappings
class Entrant:
    """One way of delivering the photos.

    Attributes
    ----------
    name : str
        As tables show it.
    module : str
        Of this package; a `benchmarks.peers._job.Peer`.
    tags : set of str
        What ratios select by. ``peer`` marks another library, ``formats`` those that shuffle files of their own. Of
        storeds' ways, ``exact`` gives the pixels that Pillow gives, ``shortcuts`` may differ from them, and ``crops``
        gives exact pixels out of a store packed with ``fast_crops=True``.
    output : str
        ``float32`` or ``uint8`` batches of 224 × 224.
    options : mapping
        For the module.
    """

    name: str
    module: str
    tags: frozenset[str]
    output: str = "float32"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """The fastest entrant that has all of the tags `over`, by the fastest with those of `under`."""

    name: str
    over: frozenset[str]
    under: frozenset[str]
    least: float | None = None


def tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


def store(engine: str, loader: str, decode: str, output: str = "float32") -> Entrant:
    """Return storeds over one engine, with a loader of `benchmarks.peers.stores` and a decoder of storeds."""
    pixels = "shortcuts" if decode == "fast" else "exact"
    name = f"storeds {engine}, {loader}, {pixels}" + (", uint8" if output == "uint8" else "")
    options = {"engine": engine, "loader": loader, "decode": decode, "output": output}
    return Entrant(name, "stores", tags(f"storeds {engine} {loader} {pixels} {output}"), output, options)


def crops(output: str, decode: str = "tensor") -> Entrant:
    """Return storeds' loader over an LMDB of photos with restart markers."""
    pixels = "shortcuts" if decode == "fast" else "exact"
    name = f"storeds lmdb, StoreLoader, {pixels}, fast crops, {output}"
    options = {"engine": "lmdb", "loader": "StoreLoader", "decode": decode, "output": output, "fast_crops": True}
    return Entrant(name, "stores", tags(f"storeds crops crops-{pixels} {output}"), output, options)


ENTRANTS = (
    Entrant("files + torchvision", "files", tags("peer files")),
    *(
        Entrant(f"{each} as in articles", "articles", tags(f"peer articles-{each}"), options={"engine": each})
        for each in ENGINES
    ),
    Entrant("WebDataset", "webdataset_tar", tags("peer formats webdataset")),
    Entrant("LitData", "litdata_chunks", tags("peer formats litdata")),
    Entrant("Streaming (MDS)", "streaming_mds", tags("peer formats streaming")),
    Entrant("HF datasets", "hf_datasets", tags("peer formats hf")),
    Entrant("FFCV", "ffcv_beton", tags("peer ffcv")),
    *(store(engine, loader, "tensor") for loader in ("DataLoader", "StoreLoader") for engine in ENGINES),
    store("lmdb", "ThreadLoader", "tensor"),
    store("lmdb", "StoreLoader", "fast"),
    *(
        store("lmdb", loader, decode, "uint8")
        for decode in ("tensor", "fast")
        for loader in ("StoreLoader", "ThreadLoader")
    ),
    crops("float32"),
    crops("uint8"),
    crops("float32", "fast"),
)

_EXACT, _CROPS = tags("storeds float32 exact"), tags("crops-exact float32")
_SHORT, _BOTH = tags("storeds float32 shortcuts"), tags("crops-shortcuts float32")

RATIOS = (
    Ratio("exact pixels ÷ FFCV", _EXACT, tags("ffcv"), 1.0),
    Ratio("shortcuts on ÷ FFCV", _SHORT, tags("ffcv"), 1.0),
    Ratio("DataLoader, exact pixels ÷ FFCV", _EXACT | {"DataLoader"}, tags("ffcv"), 0.7),
    Ratio("exact pixels ÷ best of WebDataset, LitData, Streaming, HF", _EXACT, tags("formats"), 1.8),
    *(Ratio(f"exact pixels ÷ {each.name}", _EXACT, each.tags, 1.0) for each in ENTRANTS if "peer" in each.tags),
    Ratio("threads ÷ processes", _EXACT | {"ThreadLoader"}, _EXACT | {"lmdb", "StoreLoader"}),
    *(
        Ratio(f"{each} ÷ lmdb", _EXACT | {each, "StoreLoader"}, _EXACT | {"lmdb", "StoreLoader"}, 0.75)
        for each in ENGINES[1:]
    ),
    Ratio("fast crops ÷ FFCV", _CROPS, tags("ffcv"), 1.0),
    Ratio("fast crops ÷ without", _CROPS, _EXACT | {"lmdb", "StoreLoader"}),
    Ratio("fast crops with shortcuts ÷ fast crops", _BOTH, _CROPS),
    Ratio("fast crops with shortcuts ÷ shortcuts", _BOTH, _SHORT),
    *(Ratio(f"fast crops ÷ {each.name}", _CROPS, each.tags) for each in ENTRANTS if "peer" in each.tags),
)
