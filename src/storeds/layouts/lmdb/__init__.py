"""Layouts of LMDB environments that other tools wrote.

Start with `base.py`; `environment.py` opens files, `entries.py` separates records from other entries. `images.py`, `caffe.py`,
`serialised.py` and `documents.py` hold the layouts. `storeds.layouts.codecs` decodes their values; a plug-in with a layout of
its own may use it too.
"""

from storeds.layouts.lmdb.base import ForeignLmdb
from storeds.layouts.lmdb.caffe import CaffeLmdb
from storeds.layouts.lmdb.documents import JsonLmdb, MsgpackLmdb, NpzLmdb
from storeds.layouts.lmdb.images import FramesLmdb, KeyedLmdb, OcrLmdb, ResolutionsLmdb
from storeds.layouts.lmdb.pairs import PairsLmdb
from storeds.layouts.lmdb.serialised import PickledLmdb, PyarrowLmdb, TensorpackLmdb

__all__ = [
    "CaffeLmdb",
    "ForeignLmdb",
    "FramesLmdb",
    "JsonLmdb",
    "KeyedLmdb",
    "MsgpackLmdb",
    "NpzLmdb",
    "OcrLmdb",
    "PairsLmdb",
    "PickledLmdb",
    "PyarrowLmdb",
    "ResolutionsLmdb",
    "TensorpackLmdb",
]
