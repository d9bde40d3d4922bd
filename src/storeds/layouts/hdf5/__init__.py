"""Foreign layouts of HDF5: files that other programs wrote.

`parallel` reads datasets as columns, `per_file` a file as one record, `per_sample` datasets or groups as records,
`per_video` frames, `per_episode` steps of demonstrations. Read ``base.py`` first, then ``parallel.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

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

__getattr__ = export_lazily(
    __name__,
    {
        "files": ("ForeignOptions",),
        "parallel": ("ParallelHdf5", "ParallelOptions"),
        "per_episode": ("PerEpisodeHdf5", "PerEpisodeOptions"),
        "per_file": ("PerFileHdf5", "PerFileOptions"),
        "per_sample": ("PerSampleHdf5", "PerSampleOptions"),
        "per_video": ("PerVideoHdf5", "PerVideoOptions"),
    },
)
