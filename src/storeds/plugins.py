"""What the authors of backends and layouts build on, in one place; ``docs/extending.md`` shows how."""

from storeds._columns import column_from_records
from storeds._handles import HandlePool, Opener
from storeds._meta import meta_from_text, meta_to_text
from storeds._seals import Places
from storeds._url import file_path, redact
from storeds._where_checks import check_where
from storeds._writer import COMMIT_EVERY, Sealed, StoreWriter
from storeds.backends.base import BackendOptions, HandleBackend, StoreBackend, parse_options
from storeds.fields import fields_from_json, fields_to_json, parse_fields
from storeds.readers.base import RecordReader
from storeds.record import checksum

__all__ = [
    "COMMIT_EVERY",
    "BackendOptions",
    "HandleBackend",
    "HandlePool",
    "Opener",
    "Places",
    "RecordReader",
    "Sealed",
    "StoreBackend",
    "StoreWriter",
    "check_where",
    "checksum",
    "column_from_records",
    "fields_from_json",
    "fields_to_json",
    "file_path",
    "meta_from_text",
    "meta_to_text",
    "parse_fields",
    "parse_options",
    "redact",
]
