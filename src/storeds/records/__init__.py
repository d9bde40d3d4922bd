"""Records: their fields, encoding, checksums and metadata, columns, and selection by value.

Start with ``fields.py``, which says what a record holds, then ``codec.py``, which turns one into bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from storeds.registry import export_lazily

if TYPE_CHECKING:
    from storeds.records.codec import ContentHash, Places, RecordCodec, canonical_value, checksum
    from storeds.records.columns import (
        cache_folder,
        check_where,
        column_from_records,
        index_path,
        load_index,
        matching_positions,
        read_arrays,
        read_column,
        save_index,
    )
    from storeds.records.fields import (
        Channels,
        Layout,
        Verdict,
        canonical_json,
        fields_from_json,
        fields_to_json,
        is_mask,
        is_spatial,
        layout_of,
        meta_from_row,
        meta_from_text,
        meta_to_row,
        meta_to_text,
        new_build,
        parse_fields,
        pictures,
        verdict_fields,
    )

__all__ = [
    "Channels",
    "ContentHash",
    "Layout",
    "Places",
    "RecordCodec",
    "Verdict",
    "cache_folder",
    "canonical_json",
    "canonical_value",
    "check_where",
    "checksum",
    "column_from_records",
    "fields_from_json",
    "fields_to_json",
    "index_path",
    "is_mask",
    "is_spatial",
    "layout_of",
    "load_index",
    "matching_positions",
    "meta_from_row",
    "meta_from_text",
    "meta_to_row",
    "meta_to_text",
    "new_build",
    "parse_fields",
    "pictures",
    "read_arrays",
    "read_column",
    "save_index",
    "verdict_fields",
]

__getattr__ = export_lazily(
    __name__,
    {
        "codec": ("ContentHash", "Places", "RecordCodec", "canonical_value", "checksum"),
        "columns": (
            "cache_folder",
            "check_where",
            "column_from_records",
            "index_path",
            "load_index",
            "matching_positions",
            "read_arrays",
            "read_column",
            "save_index",
        ),
        "fields": (
            "Channels",
            "Layout",
            "Verdict",
            "canonical_json",
            "fields_from_json",
            "fields_to_json",
            "is_mask",
            "is_spatial",
            "layout_of",
            "meta_from_row",
            "meta_from_text",
            "meta_to_row",
            "meta_to_text",
            "new_build",
            "parse_fields",
            "pictures",
            "verdict_fields",
        ),
    },
)
