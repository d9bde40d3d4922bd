"""Readers make samples of records: `image`, `sample`, `array`, `video`, `sequence` and `patch` describe one.

``bind`` of what these functions return gives an `ElementReader` of a store. Start with ``reader.py``: ``rows.py`` says which records
make a sample, and ``elements.py`` makes each value of it. ``choice.py`` finds the fields of the elements.
"""

from storeds.pictures.decode import decode_windows
from storeds.pictures.decoders import decode_bytes, decode_fast, decode_pil, decode_tensor
from storeds.readers.arrays import array
from storeds.readers.clips import ClipPlan
from storeds.readers.images import image
from storeds.readers.patches import patch
from storeds.readers.reader import ElementReader
from storeds.readers.samples import sample
from storeds.readers.sequences import sequence
from storeds.readers.videos import video
from storeds.records.segmentations import rasterised

__all__ = [
    "ClipPlan",
    "ElementReader",
    "array",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_tensor",
    "decode_windows",
    "image",
    "patch",
    "rasterised",
    "sample",
    "sequence",
    "video",
]
