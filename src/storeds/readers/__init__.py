"""Readers build samples from records: `ImageReader`, `SampleReader`, `ArrayReader`, `VideoReader` and `SequenceReader`.

Start with ``base.py``, then read ``image.py``, and ``sample.py``. ``storeds.pictures`` decodes pictures. ``annotations.py`` turns boxes, keypoints, labels and masks into tensors.
"""

from storeds.pictures.decoders import decode_bytes, decode_fast, decode_pil, decode_tensor
from storeds.pictures.windows import decode_windows
from storeds.readers.base import ArrayReader, RecordReader
from storeds.readers.clips import ClipPlan
from storeds.readers.image import ImageReader
from storeds.readers.sample import SampleReader
from storeds.readers.sequence import SequenceReader
from storeds.readers.video import VideoReader
from storeds.records.segmentations import rasterised

__all__ = [
    "ArrayReader",
    "ClipPlan",
    "ImageReader",
    "RecordReader",
    "SampleReader",
    "SequenceReader",
    "VideoReader",
    "decode_bytes",
    "decode_fast",
    "decode_pil",
    "decode_tensor",
    "decode_windows",
    "rasterised",
]
