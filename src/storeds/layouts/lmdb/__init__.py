"""Layouts of LMDB environments that other tools wrote.

Start with `base.py`; `environment.py` opens files, `entries.py` separates records from other entries. `images.py`, `caffe.py`,
`serialised.py` and `documents.py` hold the layouts. `unpickler.py` reads pickles without running code from them. A plug-in with a layout
of its own may use `unpickle`, `parse_datum`, `decompress`, `decode_json` and `decode_npz`: they raise ValueError for any
bytes that are not valid, and take bounded time and memory.
"""

from storeds.layouts.lmdb.base import ForeignLmdb
from storeds.layouts.lmdb.caffe import CaffeLmdb, parse_datum
from storeds.layouts.lmdb.documents import JsonLmdb, MsgpackLmdb, NpzLmdb
from storeds.layouts.lmdb.images import FramesLmdb, KeyedLmdb, OcrLmdb, ResolutionsLmdb
from storeds.layouts.lmdb.pairs import PairsLmdb
from storeds.layouts.lmdb.serialised import PickledLmdb, PyarrowLmdb, TensorpackLmdb
from storeds.layouts.lmdb.unpickler import PickleError, unpickle
from storeds.layouts.lmdb.values import decode_json, decode_npz, decompress

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
    "PickleError",
    "PickledLmdb",
    "PyarrowLmdb",
    "ResolutionsLmdb",
    "TensorpackLmdb",
    "decode_json",
    "decode_npz",
    "decompress",
    "parse_datum",
    "unpickle",
]
