"""Records: their fields, encoding, checksums and metadata, columns, and selection by value.

Start with ``fields.py``, which says what a record holds, then ``codec.py``, which turns one into bytes.
"""
