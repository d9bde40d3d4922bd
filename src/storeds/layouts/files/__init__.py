"""Folders of images and tar shards.

`folders.py`, `masks.py` and `tars.py` list what is there as `rows.py` describes it, and `detect.py` says which of them does.
"""
