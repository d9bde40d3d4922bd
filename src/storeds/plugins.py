"""Re-exports the base classes and helpers for third-party backends and layouts; see ``docs/extending.md``."""

from storeds._utils.redaction import redact, redact_message
from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path, file_url
from storeds.backends.base import BackendOptions, HandleBackend, StoreBackend
from storeds.backends.handles import HandlePool, Opener
from storeds.backends.writer import Sink
from storeds.errors import appeared
from storeds.readers.base import RecordReader
from storeds.records.codec import Seals, checksum
from storeds.records.columns import column_from_records
from storeds.records.fields import fields_from_json, fields_to_json, parse_fields
from storeds.records.meta import meta_from_text, meta_to_text
from storeds.records.where import check_where

__all__ = [
    "BackendOptions",
    "HandleBackend",
    "HandlePool",
    "Opener",
    "RecordReader",
    "Seals",
    "Sink",
    "StoreBackend",
    "StoreURL",
    "appeared",
    "check_where",
    "checksum",
    "column_from_records",
    "fields_from_json",
    "fields_to_json",
    "file_path",
    "file_url",
    "meta_from_text",
    "meta_to_text",
    "parse_fields",
    "parse_options",
    "redact",
    "redact_message",
]
