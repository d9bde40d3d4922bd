"""Foreign layouts of HDF5: files that other programs wrote.

`parallel` reads datasets as columns, `per_file` a file as one record, `per_sample` datasets or groups as records,
`per_video` frames, `per_episode` steps of demonstrations. Read ``base.py`` first, then ``inference.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from storeds.layouts.hdf5.files import ForeignOptions
    from storeds.layouts.hdf5.parallel import ParallelHdf5, ParallelOptions
    from storeds.layouts.hdf5.per_episode import PerEpisodeHdf5, PerEpisodeOptions
    from storeds.layouts.hdf5.per_file import PerFileHdf5, PerFileOptions
    from storeds.layouts.hdf5.per_sample import PerSampleHdf5, PerSampleOptions
    from storeds.layouts.hdf5.per_video import PerVideoHdf5, PerVideoOptions

__all__ = [
    "ForeignOptions",
    "ParallelHdf5",
    "ParallelOptions",
    "PerEpisodeHdf5",
    "PerEpisodeOptions",
    "PerFileHdf5",
    "PerFileOptions",
    "PerSampleHdf5",
    "PerSampleOptions",
    "PerVideoHdf5",
    "PerVideoOptions",
]

_MODULES = {"Foreign": "files", "Parallel": "parallel", "PerEpisode": "per_episode", "PerFile": "per_file"}
_MODULES |= {"PerSample": "per_sample", "PerVideo": "per_video"}


def __getattr__(name: str) -> Any:  # each layout is imported when it is needed
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name.removesuffix('Options').removesuffix('Hdf5')]}"), name)
