"""COCO: pictures, and one JSON file with the boxes, masks, keypoints or captions of all of them.

``records.py`` turns annotations into the fields of records and back, for ``read.py`` and ``write.py``.
"""
