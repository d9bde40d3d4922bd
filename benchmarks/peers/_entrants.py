"""Lists the entrants and the ratios between them. To add an entrant or a ratio, add a line here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ENGINES = ("lmdb", "hdf5", "mongodb")
LOADERS = ("DataLoader", "StoreLoader", "ThreadLoader")
EQUAL = ("DataLoader", "StoreLoader")  # with which the engines are held against each other


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
        What ratios select by. ``peer`` marks another library, ``other`` those but FFCV. Of storeds' ways, ``exact`` gives
        the pixels that Pillow gives, ``shortcuts`` may differ from them, ``stock`` uses torch's DataLoader and ``own``
        ours. ``crops`` gives exact pixels out of a store packed with ``fast_crops=True``.
    output : str
        ``float32`` and ``uint8`` batches of 224 × 224, or ``decoded`` photos.
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
    target: float | None = 1.0


@dataclass(frozen=True)
class CropTargets:
    """The ratios that a store packed with ``fast_crops=True`` must reach, on photos of one size."""

    ffcv: float
    others: float
    decoding: float = 0.75


CROP_TARGETS = {500: CropTargets(1.8, 3.0), 2000: CropTargets(5.0, 4.0)}  # by pixels on the longer side


def tags(names: str) -> frozenset[str]:
    return frozenset(names.split())


def store(engine: str, loader: str, decode: str, output: str = "float32") -> Entrant:
    """Return storeds over one engine, with a loader of `benchmarks.peers.stores` and a decoder of storeds."""
    kind = "stock" if loader == "DataLoader" else "own"
    pixels = "shortcuts" if decode == "fast" else "exact"
    name = f"storeds {engine}, {loader}, {pixels}" + (", uint8" if output == "uint8" else "")
    options = {"engine": engine, "loader": loader, "dataset": {"decode": decode}, "output": output}
    return Entrant(name, "stores", tags(f"storeds {engine} {kind} {loader} {pixels} {output}"), output, options)


def crops(output: str) -> Entrant:
    """Return storeds' loader over an LMDB of photos with restart markers."""
    name = "storeds lmdb, StoreLoader, exact, fast crops" + (", uint8" if output == "uint8" else "")
    options = {"engine": "lmdb", "loader": "StoreLoader", "dataset": {"decode": "tensor"}, "output": output}
    return Entrant(name, "stores", tags(f"storeds crops {output}"), output, {**options, "fast_crops": True})


ENTRANTS = (
    Entrant("files + torchvision", "files", tags("peer other files")),
    *(
        Entrant(
            f"{engine} as in articles",
            "blogs",
            tags(f"peer other articles articles-{engine}"),
            options={"engine": engine},
        )
        for engine in ENGINES
    ),
    Entrant("WebDataset", "webdataset_tar", tags("peer other formats webdataset")),
    Entrant("LitData", "litdata_chunks", tags("peer other formats litdata")),
    Entrant("Streaming (MDS)", "streaming_mds", tags("peer other formats streaming")),
    Entrant("HF datasets", "hf_datasets", tags("peer other formats hf")),
    Entrant("FFCV", "ffcv_beton", tags("peer ffcv")),
    *(store(engine, loader, "tensor") for loader in EQUAL for engine in ENGINES),
    store("lmdb", "ThreadLoader", "tensor"),
    *(store("lmdb", loader, "fast") for loader in LOADERS),
    *(store("lmdb", loader, decode, "uint8") for decode in ("tensor", "fast") for loader in LOADERS),
    crops("float32"),
    crops("uint8"),
    Entrant(
        "the same windows alone, 2 threads",
        "windows_alone",
        tags("decoding windows"),
        "decoded",
        {"engine": "lmdb", "fast_crops": True, "threads": 2},
    ),
    Entrant("simplejpeg alone, 1 thread", "simplejpeg_alone", tags("decoding one"), "decoded", {"threads": 1}),
    Entrant("simplejpeg alone, 2 threads", "simplejpeg_alone", tags("decoding two"), "decoded", {"threads": 2}),
)

_EXACT, _SHORTCUTS = tags("storeds float32 exact"), tags("storeds float32 shortcuts")

_FORMATS = "best of WebDataset, LitData, Streaming, HF"

RATIOS = (
    Ratio("best way, exact pixels ÷ FFCV", _EXACT, tags("ffcv"), 1.2),
    Ratio("best way, shortcuts on ÷ FFCV", _SHORTCUTS, tags("ffcv"), 1.6),
    Ratio("stock DataLoader, exact pixels ÷ FFCV", _EXACT | {"stock"}, tags("ffcv"), 1.0),
    Ratio("stock DataLoader, shortcuts on ÷ FFCV", _SHORTCUTS | {"stock"}, tags("ffcv"), 1.2),
    Ratio(f"best way, exact pixels ÷ {_FORMATS}", _EXACT, tags("formats"), 1.8),
    Ratio(f"stock DataLoader, exact pixels ÷ {_FORMATS}", _EXACT | {"stock"}, tags("formats"), 1.8),
    *(
        Ratio(
            f"uint8 batches, {name} ÷ simplejpeg alone, exact, as many threads",
            tags(f"storeds uint8 {pixels}"),
            tags("decoding two"),
            target,
        )
        for name, pixels, target in (("exact pixels", "exact", 0.5), ("shortcuts on", "shortcuts", 0.6))
    ),
    Ratio("threads ÷ processes, exact pixels", _EXACT | {"ThreadLoader"}, _EXACT | {"StoreLoader"}, None),
)


def crop_ratios(long: int) -> tuple[Ratio, ...]:
    """Return the ratios of fast crops on photos with `long` pixels on the longer side; only two sizes have targets."""
    wanted, exact, name = CROP_TARGETS.get(long), tags("crops float32"), f"fast crops, exact pixels, {long} px"
    return (
        Ratio(f"{name} ÷ FFCV", exact, tags("ffcv"), wanted and wanted.ffcv),
        Ratio(f"{name} ÷ best of the others", exact, tags("other"), wanted and wanted.others),
        Ratio(f"{name} ÷ without", exact, _EXACT | tags("lmdb StoreLoader"), None),
        Ratio(
            f"fast crops, uint8 batches, {long} px ÷ decoding the same windows alone",
            tags("crops uint8"),
            tags("decoding windows"),
            wanted and wanted.decoding,
        ),
    )
