"""Layouts of LMDB environments that other tools wrote.

Start with `base.py`; `environment.py` opens files, `entries.py` separates records from other entries. `images.py`, `caffe.py`,
`serialised.py` and `documents.py` hold the layouts. `unpickler.py` reads pickles without running code from them.
"""

from storeds.layouts.lmdb.base import ForeignLmdb
from storeds.layouts.lmdb.caffe import CaffeLmdb
from storeds.layouts.lmdb.documents import JsonLmdb, MsgpackLmdb, NpzLmdb
from storeds.layouts.lmdb.images import FramesLmdb, KeyedLmdb, OcrLmdb, ResolutionsLmdb
from storeds.layouts.lmdb.serialised import PickledLmdb, PyarrowLmdb, TensorpackLmdb
from storeds.layouts.lmdb.unpickler import PickleError, unpickle

__all__ = [
    "CaffeLmdb",
    "ForeignLmdb",
    "FramesLmdb",
    "JsonLmdb",
    "KeyedLmdb",
    "MsgpackLmdb",
    "NpzLmdb",
    "OcrLmdb",
    "PickleError",
    "PickledLmdb",
    "PyarrowLmdb",
    "ResolutionsLmdb",
    "TensorpackLmdb",
    "unpickle",
]
