"""What is done to whole stores: pack, convert, verify, repair, info, bench."""

from storeds.ops.bench import BenchPlot, BenchReport, Bottleneck, Measurement, bench
from storeds.ops.contact_sheet import ContactSheet
from storeds.ops.convert import convert
from storeds.ops.info import Info, info
from storeds.ops.pack import pack
from storeds.ops.packed import Packed
from storeds.ops.progress import Progress, ProgressHook
from storeds.ops.repair import RepairReport, repair
from storeds.ops.verify import Finding, Report, verify

__all__ = [
    "BenchPlot",
    "BenchReport",
    "Bottleneck",
    "ContactSheet",
    "Finding",
    "Info",
    "Measurement",
    "Packed",
    "Progress",
    "ProgressHook",
    "RepairReport",
    "Report",
    "bench",
    "convert",
    "info",
    "pack",
    "repair",
    "verify",
]
