"""What a benchmark measures: the dataset's arguments, from a config, the command line or the store itself, and the limits."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from storeds.errors import ConfigError
from storeds.protocols import Meta

__all__ = ["BenchSettings"]

_BATCH = 64
_TRANSFORM = [{"name": "RandomResizedCrop", "size": 224}, "RandomHorizontalFlip", "ToTensor"]


@dataclass(frozen=True)
class BenchSettings:
    """Validated settings of one benchmark.

    Attributes
    ----------
    arguments : dict
        Of `StoreDataset`, but for the source, the layout and the options.
    layout : str or None
    options : dict
        Of the backend.
    from_config : bool
    pad : list
        Elements that `storeds.collate` pads.
    where_of : callable or None
        Gives what a config's split takes of a store with this `Meta`.
    workers : sequence of int
    batch_size : int
    seconds : float
    """

    arguments: dict[str, Any]
    layout: str | None
    options: dict[str, Any]
    from_config: bool
    pad: list[str | int] = field(default_factory=list)
    where_of: Callable[[Meta], dict[str, Any] | None] | None = None
    workers: Sequence[int] = ()
    batch_size: int = _BATCH
    seconds: float = 3.0

    @property
    def seed(self) -> int:
        """The seed of the order."""
        return self.arguments.get("seed") or 0

    @classmethod
    def of(
        cls, config: str | os.PathLike[str] | Mapping[str, Any] | None, split: str | None, **given: Any
    ) -> BenchSettings:
        """Return the settings of a config, with what is given besides over them; raises ConfigError."""
        arguments: dict[str, Any] = {}
        more: dict[str, Any] = {}
        if config is not None:
            from storeds.config import load_config

            loaded = load_config(config)
            arguments, loader = loaded.source_for(split).arguments(), loaded.loader_for(split)
            more = {"pad": loader.pad, "batch_size": loader.batch_size or 1}
            more["where_of"] = lambda meta: loaded.source_for(split, meta.fields).where
        elif split is not None:
            raise ConfigError(f"split {split!r} is one of a config, and there is none; give both, or leave it out")
        arguments |= {name: value for name, value in given.items() if value is not None}
        layout, options = arguments.pop("layout", None), dict(arguments.pop("options", None) or {})
        return cls(arguments, layout, options, config is not None, **more)

    def measuring(self, workers: Sequence[int] | None, batch_size: int | None, seconds: float) -> BenchSettings:
        """Return the settings with these limits, and the usual ones where they are None; raises ConfigError."""
        counts = _usual_workers() if workers is None else list(dict.fromkeys(workers))
        if not counts or any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for n in counts):
            raise ConfigError(f"workers are numbers of processes, each 0 or more, got {workers!r}")
        size = self.batch_size if batch_size is None else batch_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(f"batch_size must be 1 or more, got {size!r}")
        if not 0 < seconds < float("inf"):
            raise ConfigError(f"seconds must be more than 0, got {seconds}")
        return replace(self, workers=sorted(counts), batch_size=size, seconds=float(seconds))

    def fitted(self, meta: Meta) -> BenchSettings:
        """Return the settings with what is left open chosen for a store."""
        arguments = dict(self.arguments)
        if self.where_of is not None:
            arguments["where"] = self.where_of(meta)
        has_images = any(declared.kind == "image" for declared in meta.fields.values())
        arguments.setdefault("reader", "image" if has_images else "array")
        usual = not self.from_config and arguments["reader"] == "image" and arguments.get("decode") != "bytes"
        if usual and "transform" not in arguments:
            arguments["transform"] = _TRANSFORM
        return replace(self, arguments=arguments)

    def images(self, stored: Sequence[str], meta: Meta) -> bool:
        """Return whether the samples that are made of these fields hold images that are decoded."""
        kinds = {field.kind for name, field in meta.fields.items() if name in stored}
        decodes = self.arguments["reader"] != "array" and self.arguments.get("decode") != "bytes"
        return "image" in kinds and decodes

    def collate(self) -> Callable[..., Any]:
        """Return what makes batches of samples."""
        from storeds.batching.collate import collate

        return functools.partial(collate, pad=tuple(self.pad)) if self.pad else collate


def _usual_workers() -> list[int]:
    """Return 0, 1, 2, 4 and so on, and the CPUs that this process may use."""
    cpus = len(os.sched_getaffinity(0))
    return sorted({0, cpus, *(1 << power for power in range(cpus.bit_length()) if 1 << power < cpus)})
