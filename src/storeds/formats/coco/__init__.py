"""COCO: pictures, and one JSON file with the boxes, masks, keypoints or captions of all of them.

``records.py`` turns annotations into the fields of records and back, for ``read.py`` and ``write.py``.
"""

from storeds.formats.coco.read import coco
from storeds.formats.coco.write import CocoExporter
from storeds.formats.format import Format

__all__ = ["COCO"]

COCO = Format(
    about="COCO: pictures, and a JSON file with their boxes, masks, keypoints or captions",
    read=coco,
    write=CocoExporter,
)
