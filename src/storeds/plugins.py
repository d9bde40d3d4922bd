"""Re-exports the base classes and helpers for third-party backends and layouts; see ``docs/extending.md``."""

from storeds._utils.settings import parse_options
from storeds._utils.urls import StoreURL, file_path, file_url
from storeds.backends.engine import Engine
from storeds.backends.handles import POOL
from storeds.backends.raw import BackendOptions, Fault, Opener, RawStore, Rows, Stacked
from storeds.backends.store import Store
from storeds.backends.writer import Sink
from storeds.errors import appeared
from storeds.protocols import Decoder, ReaderSpec
from storeds.records.codec import Seals, checksum
from storeds.records.columns import column_from_records
from storeds.records.fields import fields_from_json, fields_to_json, parse_fields
from storeds.records.meta import meta_to_text
from storeds.records.verifier import native_meta
from storeds.records.where import check_where
from storeds.redaction import redact, redact_message

__all__ = [
    "POOL",
    "BackendOptions",
    "Decoder",
    "Engine",
    "Fault",
    "Opener",
    "RawStore",
    "ReaderSpec",
    "Rows",
    "Seals",
    "Sink",
    "Stacked",
    "Store",
    "StoreURL",
    "appeared",
    "check_where",
    "checksum",
    "column_from_records",
    "fields_from_json",
    "fields_to_json",
    "file_path",
    "file_url",
    "meta_to_text",
    "native_meta",
    "parse_fields",
    "parse_options",
    "redact",
    "redact_message",
]
