"""What is done to whole stores: pack, convert, verify, info."""

from storeds.ops.convert import convert
from storeds.ops.info import Info, info
from storeds.ops.pack import pack
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.verify import Finding, Report, verify

__all__ = ["Finding", "Info", "Progress", "ProgressHook", "Report", "convert", "info", "pack", "verify"]
